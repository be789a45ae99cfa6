from hypothesis import given
from hypothesis import strategies as st

from lib_vram.ui.html import Html, escape, join, tag


def test_text_is_escaped_and_markup_is_not_escaped_twice():
    assert tag("p", "<&>", tag("b", '"')) == "<p>&lt;&amp;&gt;<b>&quot;</b></p>"


def test_attributes_are_escaped_named_with_dashes_and_left_out_when_false():
    made = tag("a", class_="x", data_act='"><script>', aria_hidden="true", hidden=True, title=None, open=False)
    assert made == '<a class="x" data-act="&quot;&gt;&lt;script&gt;" aria-hidden="true" hidden></a>'


@given(st.text())
def test_no_text_opens_a_tag_or_leaves_an_attribute(text):
    assert "<" not in escape(text)
    assert tag("i", title=text).count('"') == 2


@given(st.lists(st.text()))
def test_joined_markup_stays_markup(texts):
    once = join(*texts)
    assert join(once) == once
    assert isinstance(once, Html)
