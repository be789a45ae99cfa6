import pytest

from lib_vram.diagnosis.diagnosis import diagnose
from lib_vram.diagnosis.report import report, scrub


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r'File "C:\Users\Ana Maria\sd\modules\processing.py", line 5', 'File "…/processing.py", line 5'),
        ('File "/home/ana/sd/webui.py", line 5', 'File "…/webui.py", line 5'),
        ("/Users/ana/models/x.safetensors is damaged", "…/x.safetensors is damaged"),
        ("listening on 192.168.1.20:7860", "listening on *.*.*.*"),
        ("write to ana@example.org", "write to ***"),
        ("hf_abcdefghijklmnop", "***"),
        ("--gradio-auth ana:secret --xformers", "--gradio-auth *** --xformers"),
        ("8.00 GiB total; 1/20 [00:01<00:09, 2.1it/s]", "8.00 GiB total; 1/20 [00:01<00:09, 2.1it/s]"),
        ("https://pytorch.org/docs/stable/notes/cuda.html", "https://pytorch.org/docs/stable/notes/cuda.html"),
    ],
)
def test_names_paths_and_keys_are_taken_out(text, shown, monkeypatch):
    monkeypatch.setenv("USERNAME", "nobody-here")
    assert scrub(text) == shown


def test_the_user_is_not_named(monkeypatch):
    monkeypatch.setenv("USERNAME", "Valentina")
    assert "alentina" not in scrub("model of valentina and Valentina")


def test_a_report_has_the_diagnosis_and_the_failure_but_no_folder():
    text = "x\n" * 5000
    text += 'File "/home/ana/sd/webui.py", line 1, in load\nCUDA out of memory. Tried to allocate 2.00 GiB'
    made = report(diagnose(text), text, "Forge 2.0")
    assert made.startswith("VRAM Guard · Forge 2.0")
    assert "requested_bytes: 2147483648" in made
    assert "webui.py" in made
    assert "/home" not in made
    assert len(made) < 6000
