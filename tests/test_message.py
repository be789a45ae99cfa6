import json
import string
from pathlib import Path

import pytest

from lib_vram.message import LANGUAGES, TEXT_FOLDER, language_of, render, say, sentence

AREAS = sorted(path.stem for path in (TEXT_FOLDER / "en").glob("*.json"))


def sentences(language: str, area: str) -> dict[str, str]:
    return json.loads(Path(TEXT_FOLDER, language, f"{area}.json").read_text(encoding="utf-8"))


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def test_there_is_a_catalogue() -> None:
    assert AREAS


@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("language", [language for language in LANGUAGES if language != "en"])
def test_every_language_has_the_same_sentences_with_the_same_placeholders(language: str, area: str) -> None:
    english, other = sentences("en", area), sentences(language, area)
    assert set(other) == set(english)
    assert {key: placeholders(text) for key, text in other.items()} == {
        key: placeholders(text) for key, text in english.items()
    }


@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_no_sentence_is_empty_and_files_are_sorted(language: str, area: str) -> None:
    texts = sentences(language, area)
    assert all(text.strip() for text in texts.values())
    assert list(texts) == sorted(texts)


@pytest.mark.parametrize(
    ("code", "language"),
    [("pt_BR", "pt"), ("pt-PT", "pt"), ("es-419", "es"), ("EN", "en"), ("de_DE", "en"), (None, "en"), ("", "en")],
)
def test_a_locale_is_mapped_to_a_language_that_exists(code: str | None, language: str) -> None:
    assert language_of(code) == language


def test_a_sentence_that_no_language_has_is_shown_by_its_key() -> None:
    assert sentence("nowhere.nothing", "pt") == "nowhere.nothing"
    assert render(say("nowhere.nothing", size_bytes=1)) == "nowhere.nothing"
