"""The same promises, asked of a WebUI that really runs.

Start A1111 or Forge with ``--api``, this extension and a small virtual card, for example
``VRAM_GUARD_DEVICE="NVIDIA GeForce RTX 3060:6GiB:free=700MiB"`` (A1111 on the CPU: ``free=4800MiB``), and say where:
``WEBUI_URL=http://127.0.0.1:7860 python -m pytest tests/host/test_real_host.py``. ``WEBUI_FORM`` may hold, as JSON,
the fields of a generation that does not fit on that card and that a fix makes fit.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request

import pytest

URL = os.environ.get("WEBUI_URL", "").rstrip("/")
TOO_LARGE = json.loads(os.environ.get("WEBUI_FORM") or '{"width": 256, "height": 256, "batch_size": 4}')
TIMEOUT_S = 1800

pytestmark = pytest.mark.skipif(not URL, reason="WEBUI_URL names no running WebUI")


def call(path, body=None):
    """Return status and answer of the running WebUI."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


def generate(argument, **fields):
    """Return status and answer of one small generation with our argument."""
    body = {
        "prompt": "a cat", "steps": 1, "cfg_scale": 7, "seed": 1, "sampler_name": "Euler a", "width": 64, "height": 64,
        "do_not_save_samples": True, "alwayson_scripts": {"VRAM Guard": {"args": [argument]}},
    }  # fmt: skip
    return call("/sdapi/v1/txt2img", body | fields)


def facts(answer):
    """Return seeds, batch size and the last picture's parameters."""
    info = json.loads(answer["info"])
    return info["all_seeds"], info["batch_size"], info["infotexts"][-1]


@pytest.fixture(scope="module", autouse=True)
def too_large_is_too_large():
    """The tests below mean something only on a card on which the generation does not fit, and a fix does."""
    _, check = call("/vram-guard/v1/check", {"tab": "txt2img", "form": TOO_LARGE})
    if check["verdict"] != "wont_fit" or not check["plan"]["fits"]:
        pytest.skip(f"on this card the generation is {check['verdict']}: choose another card or WEBUI_FORM")


def test_the_host_and_the_card_are_known():
    status, answer = call("/vram-guard/v1/status")
    assert (
        status == 200
        and answer["host"] in ("a1111", "forge", "neo", "reforge", "classic")
        and answer["card"]["total_bytes"] > 0
    )


def test_a_setting_that_is_changed_over_the_api_is_the_one_in_force():
    before = call("/vram-guard/v1/status")[1]["mode"]
    try:
        for mode in ("show", "fix"):
            call("/sdapi/v1/options", {"vram_guard_mode": mode})
            assert call("/vram-guard/v1/status")[1]["mode"] == mode
    finally:
        call("/sdapi/v1/options", {"vram_guard_mode": before})


def test_a_refusal_is_a_500_that_says_what_would_fit():
    status, answer = generate({"mode": "refuse"}, **TOO_LARGE)
    text = answer.get("errors") or answer.get("message")
    assert status == 500 and answer["error"] == "Refused"
    assert "VRAM Guard refused this generation" in text and "It would fit with these changes" in text


def test_fix_makes_the_same_number_of_pictures_with_the_same_seeds():
    status, answer = generate({"mode": "fix"}, **TOO_LARGE)
    count = TOO_LARGE.get("batch_size", 1) * TOO_LARGE.get("n_iter", 1)
    seeds, _, infotext = facts(answer)
    assert status == 200 and seeds == list(range(1, count + 1))
    assert re.search(r"VRAM Guard: [\w .;()><=+*/%-]+->[\w .;()><=+*/%-]+", infotext)


def test_ask_runs_as_it_is_and_says_so_in_the_infotext():
    status, answer = generate({"mode": "ask"}, **TOO_LARGE)
    _, batch_size, infotext = facts(answer)
    assert status == 200 and batch_size == TOO_LARGE.get("batch_size", 1)
    assert "VRAM Guard: would not fit" in infotext


@pytest.mark.parametrize("mode", ["off", "show", "run"])
def test_the_quiet_modes_leave_no_trace_in_the_picture(mode):
    status, answer = generate({"mode": mode}, **TOO_LARGE)
    assert status == 200 and "VRAM Guard" not in facts(answer)[2]


def test_the_levers_leave_the_options_as_they_were():
    _, before = call("/sdapi/v1/options")
    assert generate({"mode": "off", "apart": True, "tiled": True, "tile_size": 256}, width=320)[0] == 200
    _, after = call("/sdapi/v1/options")
    assert {name: after[name] for name in before} == before
