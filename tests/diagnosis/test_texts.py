"""Everything that is said exists in all three languages, with the same figures in it."""

import string

import pytest

from lib_vram.diagnosis.checklist import checklist
from lib_vram.diagnosis.context import Context
from lib_vram.diagnosis.symptoms import SYMPTOMS
from lib_vram.message import LANGUAGES, area
from lib_vram.request import HostName

HOSTS = (None, *HostName.__args__)


def placeholders(text):
    return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name is not None)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", ["diagnosis", "symptoms"])
def test_keys_and_placeholders_are_the_same(name, language):
    english, other = area("en", name), area(language, name)
    assert list(other) == sorted(english)
    assert {key: placeholders(text) for key, text in other.items()} == {
        key: placeholders(text) for key, text in english.items()
    }
    assert all(text.strip() for text in other.values())


@pytest.mark.parametrize("item", SYMPTOMS, ids=lambda item: item.name)
def test_a_row_has_its_words_for_every_host(item):
    keys = [item.title.key, item.cause.key, *(cure.message(host).key for cure in item.cures for host in HOSTS)]
    assert [key for key in keys if key.removeprefix("symptoms.") not in area("en", "symptoms")] == []


def test_every_check_has_its_words():
    assert [c.text.key for c in checklist(Context()) if c.text.key[9:] not in area("en", "symptoms")] == []
