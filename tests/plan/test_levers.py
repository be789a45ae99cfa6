"""The table of what each host can do is complete, and what is not there is not offered."""

from __future__ import annotations

import typing

import pytest

from lib_vram.plan.levers import LEVERS, LeverName, has_lever
from lib_vram.request import HostName


def test_every_lever_is_in_the_table_and_names_its_means():
    assert set(LEVERS) == set(typing.get_args(LeverName))
    for hosts in LEVERS.values():
        assert set(hosts) <= set(typing.get_args(HostName))
        assert all(means.by for means in hosts.values())


@pytest.mark.parametrize("lever", ["batch_to_count", "cond_uncond_apart", "vae_tiled", "hires_scale", "smaller_size"])
@pytest.mark.parametrize("host", ["a1111", "forge", "neo", "reforge", "classic"])
def test_what_every_host_can_do(host, lever):
    assert has_lever(host, lever)


def test_what_a_host_cannot_do_at_all():
    assert not has_lever("a1111", "reserve")
    assert not has_lever("forge", "controlnet_low_vram")
    assert not has_lever("diffusers", "reserve")
    assert not has_lever("diffusers", "live_preview")
    assert not has_lever("diffusers", "cond_uncond_apart")
    assert not has_lever("a1111", "vae_sliced")
    assert not has_lever("forge", "offload")
    assert not has_lever("a1111", "offload_layers")
