"""What one run asks of a WebUI that really runs: seen in the picture's infotext, and gone from the options after it.

Start one as for ``test_real_host.py`` and name it in ``WEBUI_URL``; any card will do.
"""

from __future__ import annotations

import pytest

from tests.host.test_real_host import URL, call, facts, generate

pytestmark = pytest.mark.skipif(not URL, reason="WEBUI_URL names no running WebUI")

LEVERS = [
    {"live_preview": "off"}, {"live_preview": "approx"}, {"attention": "sub_quad"}, {"upscaler_tile": 64},
    {"unload_idle": True}, {"reserve_mb": 3000}, {"fp8_weights": True},
]  # fmt: skip
IN_FP8 = ("FP8 weight: Enable", "Diffusion in Low Bits: float8-e4m3fn")


def options():
    return call("/sdapi/v1/options")[1]


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: "-".join(lever))
def test_a_lever_of_one_run_leaves_the_options_as_they_were(lever):
    before = options()
    assert generate({"mode": "off", **lever})[0] == 200
    after = options()
    assert {name: after[name] for name in before} == before


def test_weights_are_in_fp8_in_the_run_that_asks_for_it_and_not_in_the_next():
    if call("/vram-guard/v1/status")[1]["host"] not in ("a1111", "forge", "neo"):
        pytest.skip("this host does it by a flag only")
    _, in_fp8 = generate({"mode": "off", "fp8_weights": True})
    _, after = generate({"mode": "off"})
    assert any(text in facts(in_fp8)[2] for text in IN_FP8)
    assert not any(text in facts(after)[2] for text in IN_FP8)
