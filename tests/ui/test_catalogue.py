import string

import pytest

from lib_vram.message import LANGUAGES, area

AREAS = ("ui", "lab", "advice", "levers", "live")


def placeholders(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


@pytest.mark.parametrize("name", AREAS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_every_sentence_with_the_same_figures(name, language):
    english, other = area("en", name), area(language, name)
    assert list(other) == sorted(english)
    assert {key: placeholders(text) for key, text in other.items()} == {
        key: placeholders(text) for key, text in english.items()
    }
    assert all(text.strip() for text in other.values())
