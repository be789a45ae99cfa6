"""The per-request argument."""

from __future__ import annotations

import pytest

from lib_vram.errors import BadInput
from lib_vram.guard.argument import RunArgument


@pytest.mark.parametrize(
    ("values", "argument"),
    [
        ((), RunArgument()),
        (("", False, 768, False), RunArgument()),
        (("run", True, 512, True), RunArgument("run", True, 512, True)),
        (({"mode": "refuse"},), RunArgument("refuse")),
        (({"tiled": True, "tile_size": 1024, "apart": True}, False, 768, False), RunArgument("", True, 1024, True)),
        ((None, None, None, None), RunArgument()),
        (("fix",), RunArgument("fix")),
        (
            ("", False, 768, False, 2048, True, "off", "sub_quad", True, 128),
            RunArgument("", False, 768, False, 2048, True, "off", "sub_quad", True, 128),
        ),
        (({"live_preview": "approx", "reserve_mb": 0},), RunArgument(live_preview="approx")),
        (("fixed: batch 4x1 -> 1x4", False, 768, False), RunArgument(changes="batch 4x1 -> 1x4")),
        (("fixed: " + "x" * 300,), RunArgument(changes="x" * 200)),
    ],
)
def test_values_and_objects_are_understood(values, argument):
    assert RunArgument.of(values) == argument


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (("maybe",), "mode"),
        ((3,), "mode"),
        (({"mode": "fix", "tyled": True},), "tyled"),
        (("", "yes"), "tiled"),
        (("", True, 100), "tile_size"),
        (("", True, "768"), "tile_size"),
        (("", True, True), "tile_size"),
        (("", False, 768, 1), "apart"),
        (({"reserve_mb": -1},), "reserve_mb"),
        (({"unload_idle": "yes"},), "unload_idle"),
        (({"live_preview": "full"},), "live_preview"),
        (({"attention": "fast"},), "attention"),
        (({"fp8_weights": 1},), "fp8_weights"),
        (({"upscaler_tile": 4096},), "upscaler_tile"),
    ],
)
def test_what_cannot_be_used_is_named(values, named):
    with pytest.raises(BadInput, match=named):
        RunArgument.of(values)
