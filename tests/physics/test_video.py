"""Profiles of long videos, made from those of short ones."""

from __future__ import annotations

import pytest

from lib_vram.errors import BadInput, BadProfile
from lib_vram.physics import video
from lib_vram.physics.component import Component
from lib_vram.physics.memory import component_memory
from lib_vram.physics.profile import ALLOC, FREE, Profile
from lib_vram.units import MIB


def film(chunks: int) -> Profile:
    """Return a made-up part: an input as long as the film, and a result that each chunk makes longer by one frame."""
    terms = [((2, 3 * chunks),), ((2, 7),), *(((2, 5 * turn),) for turn in range(1, chunks + 1))]
    tokens = [(ALLOC, 0), (ALLOC, 1), (FREE, 1), (ALLOC, 2)]
    for turn in range(2, chunks + 1):
        tokens += [(ALLOC, 1), (FREE, 1), (ALLOC, turn + 1), (FREE, 3)]
    tokens += [(FREE, 1), (FREE, 2 * chunks + 1)]
    return Profile("film", 1, tuple(terms), (), tuple(tokens))


def sizes(profile: Profile) -> list[tuple[int, object]]:
    """Return the tokens with their sizes in place of numbers."""
    return [(kind, profile.terms[item] if kind == ALLOC else item) for kind, item in profile.tokens]


@pytest.mark.parametrize("times", [0, 1, 2, 9])
def test_a_longer_film_is_the_shorter_one_with_more_chunks(times: int) -> None:
    made = video.lengthened(film(7), film(9), times)
    assert sizes(made) == sizes(film(9 + 2 * times))


def test_two_profiles_that_are_not_one_film_are_refused() -> None:
    with pytest.raises(BadProfile):
        video.lengthened(film(7), film(5), 1)


def test_a_length_without_profiles_has_none() -> None:
    assert video.for_frames(lambda latents: None, 21) is None


@pytest.mark.parametrize("part", ["vae_decode", "vae_encode"])
def test_more_frames_never_take_less(part: str) -> None:
    floors = [
        component_memory(Component("wan21_1b", part, 832, 480, frames=frames, host="neo")).floor_bytes  # type: ignore[arg-type]
        for frames in (1, 5, 9, 17, 33, 49, 81)
    ]
    assert floors == sorted(floors)


@pytest.mark.parametrize(
    ("part", "batch", "frames", "floor_mib"),
    [
        ("vae_decode", 1, 5, 4150.4), ("vae_decode", 2, 5, 8300.3), ("vae_decode", 2, 17, 8668.2),
        ("vae_encode", 2, 5, 5949.6), ("vae_encode", 2, 17, 6619.9), ("vae_encode", 4, 1, 4125.3),
    ],
)  # fmt: skip
def test_several_videos_at_once_take_what_diffusers_takes(part: str, batch: int, frames: int, floor_mib: float) -> None:
    """The peak of a trace of diffusers 0.36's own class at that batch, in fp16."""
    component = Component("wan21_1b", part, 832, 480, batch=batch, frames=frames, code="diffusers")  # type: ignore[arg-type]
    assert component_memory(component).floor_bytes / MIB == pytest.approx(floor_mib, rel=1e-4)


def test_a_picture_model_has_no_frames() -> None:
    with pytest.raises(BadInput, match="frames"):
        component_memory(Component("qwen_image", "vae_decode", 832, 480, frames=81))
