import pytest

from lib_vram.message import render
from lib_vram.ui.sections.symptoms import estimates


@pytest.mark.parametrize("language", ["en", "pt", "es"])
@pytest.mark.parametrize(("row", "count", "word"), [("training", 5, "SD 2.1"), ("video", 3, "Wan 2.1 14B")])
def test_the_rows_of_training_and_video_say_what_they_need(row, count, word, language):
    said = [render(item, language) for item in estimates(row)]
    assert len(said) == count
    assert any(word in item for item in said)
    assert all("GiB" in item and "{" not in item for item in said)


def test_other_rows_have_no_figures():
    assert estimates("slow") == ()
