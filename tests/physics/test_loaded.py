"""A loaded model of no known family: it is computed from the trace of its own classes, and from its file's weights."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lib_vram.errors import NotReady
from lib_vram.estimate.estimator import estimate, forget
from lib_vram.physics import cache
from lib_vram.physics.cache import MEASURED
from lib_vram.physics.component import Component
from lib_vram.physics.families import LOADED
from lib_vram.physics.memory import component_memory
from lib_vram.physics.profile import load
from lib_vram.request import Request

SIDE = 1024
STOOD_IN = {
    "denoise": "zimage-denoise-fp16-neo",
    "vae_decode": "wan-vae_decode-fp16-neo",
    "vae_encode": "wan-vae_encode-fp16-neo",
}
"""Profiles that are given out as those of a model that was traced."""


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[cache.ProfileCache]:
    """Return the cache with the profiles of a loaded model in use."""
    in_use = cache.use(tmp_path)
    for part, other in STOOD_IN.items():
        name = f"{LOADED}-{part}-fp16-neo"
        profile = load(other)
        assert profile is not None
        in_use.put(name, "key", replace(profile, name=MEASURED + name))
    forget()
    yield in_use
    cache.use(None)
    forget()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a file of an architecture that is known by its name alone."""
    shape = [SIDE, SIDE]
    names = ("llm_adapter.blocks.0.mlp.0.weight", "blocks.0.mlp.layer1.weight")
    size = 2 * SIDE**2
    header = {
        f"net.{name}": {"dtype": "F16", "shape": shape, "data_offsets": [place * size, (place + 1) * size]}
        for place, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    path = tmp_path / "anima.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(len(names) * 2 * SIDE**2))
    return path


def asked(checkpoint: Path | None) -> Request:
    """Return a request for a picture of the loaded model."""
    return Request.from_dict(
        {
            "host": "neo", "width": 1024, "height": 1024, "device": {"total_bytes": 12 * 2**30},
            "model": {"family": LOADED, "checkpoint": checkpoint and str(checkpoint)},
        }
    )  # fmt: skip


def test_it_is_computed_from_its_trace_and_its_file(traced: cache.ProfileCache, checkpoint: Path) -> None:
    answer = estimate(asked(checkpoint))
    assert answer.verdict == "fits"
    assert {phase.source for phase in answer.phases} == {"trace"}
    assert "trace.of_loaded_model_without_text" in [note.key for note in answer.notes]
    assert "text_encode" not in [phase.name for phase in answer.phases]
    sampling = next(phase for phase in answer.phases if phase.name == "sampling")
    assert sampling.resident_bytes > 2 * 2 * SIDE**2


def with_text(traced: cache.ProfileCache) -> None:
    """Give out the text encoder of Z-Image as that of the loaded model."""
    profile = load("zimage-text_encode-fp16-neo")
    assert profile is not None
    traced.put(f"{LOADED}-text_encode-fp16-neo", "key", replace(profile, name=f"{MEASURED}text"))
    forget()


def held(checkpoint: Path, size: int | None) -> Request:
    request = asked(checkpoint)
    model = replace(request.model, text_encoders_bytes=size, text_layer_bytes=size and size // 10)
    return request.replace(model=model)


def test_its_text_encoders_are_those_that_the_host_holds(traced: cache.ProfileCache, checkpoint: Path) -> None:
    with_text(traced)
    answer = estimate(held(checkpoint, 8 * 2**30))
    text = next(phase for phase in answer.phases if phase.name == "text_encode")
    known = component_memory(Component("zimage", "text_encode", 512, 512, cfg=False, host="neo"))
    assert dict(text.resident_parts)["text_encoders"] == 8 * 2**30
    assert (text.floor_bytes, text.minimum_bytes, text.source) == (known.floor_bytes, known.minimum_bytes, "trace")
    assert "trace.of_loaded_model" in [note.key for note in answer.notes]


@pytest.mark.parametrize("host", ["neo", "forge"])
def test_they_stay_beside_the_denoiser_where_there_is_room(
    traced: cache.ProfileCache, checkpoint: Path, host: str
) -> None:
    with_text(traced)
    plenty = {"total_bytes": 48 * 2**30}
    request = Request.from_dict({**held(checkpoint, 8 * 2**30).to_dict(), "host": host, "device": plenty})
    sampling = next(phase for phase in estimate(request).phases if phase.name == "sampling")
    assert dict(sampling.resident_parts)["text_encoders"] == 8 * 2**30


@pytest.mark.parametrize(("is_traced", "size"), [(False, 8 * 2**30), (True, None)])
def test_what_is_not_known_of_them_leaves_the_rest_as_it_is(
    traced: cache.ProfileCache, checkpoint: Path, is_traced: bool, size: int | None
) -> None:
    if is_traced:
        with_text(traced)
    answer = estimate(held(checkpoint, size))
    assert answer.verdict == "fits"
    assert "text_encode" not in [phase.name for phase in answer.phases]


def test_its_largest_layer_is_not_known(traced: cache.ProfileCache) -> None:
    whole = component_memory(Component(LOADED, "denoise", 1024, 1024, host="neo"))
    in_fp8 = component_memory(Component(LOADED, "denoise", 1024, 1024, host="neo", dtype="fp8"))
    assert in_fp8.floor_bytes - whole.floor_bytes == 512
    assert in_fp8.weights_bytes * 2 == whole.weights_bytes


def test_without_its_file_nothing_is_said_of_its_weights(traced: cache.ProfileCache) -> None:
    assert estimate(asked(None)).verdict == "unknown"


def test_before_it_is_traced_it_is_unknown(tmp_path: Path, checkpoint: Path) -> None:
    cache.use(tmp_path / "empty")
    forget()
    assert estimate(asked(checkpoint)).verdict == "unknown"
    with pytest.raises(NotReady):
        component_memory(Component(LOADED, "denoise", 1024, 1024, host="neo"))
    cache.use(None)


def test_what_was_traced_is_not_taken_for_the_next_model(traced: cache.ProfileCache, tmp_path: Path) -> None:
    name = f"{LOADED}-denoise-fp16-neo"
    assert traced.newest(name) is not None
    assert traced.forget_loaded()
    assert traced.newest(name) is None
    assert not traced.forget_loaded()
    assert cache.ProfileCache(tmp_path).newest(name) is None
    assert traced.get(name, "key") is not None
    assert traced.newest(name) is not None
