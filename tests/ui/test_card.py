from lib_vram.ui import card


def test_names_and_values_are_listed_and_escaped():
    assert card.facts([("Card", "RTX <3060>")]) == '<dl class="vg-facts"><dt>Card</dt><dd>RTX &lt;3060&gt;</dd></dl>'
