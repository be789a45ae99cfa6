"""Fixtures over the fake hosts; imported by the ``conftest.py`` of the folders that use them.

``fake`` is a host with the extension loaded, one after the other of :data:`tests.fakehost.hosts.HOSTS`; a test module
about one host alone overrides ``host_name`` with its own fixture. ``fake.make(...)`` gives a processing object,
``page_run(p)`` and ``api_run(p)`` run it, ``fake.record`` tells what the host did, ``fake.load_scripts()`` is
*Reload UI*, ``fake.runner.add(script, defaults)`` adds another extension's script behind ours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import lib_vram.host
from lib_vram import callbacks
from lib_vram.guard import fail_open
from lib_vram.host import webui as host_webui
from lib_vram.machine.card import Card
from tests.fakehost.hosts import HOSTS
from tests.fakehost.webui import FakeHost, forget_modules

GIB = 1024**3
CARD = Card("NVIDIA GeForce RTX 3060", 12 * GIB, 11 * GIB, GIB, "nvml")


@contextmanager
def _marking(half: SimpleNamespace, tile_size: int) -> Iterator[bool]:
    """Stand in for our tiles, which need torch: only the mark on a half of the VAE, which the fake host records."""
    if hasattr(half, "vram_guard_tile_size"):
        yield False
        return
    half.vram_guard_tile_size = tile_size
    try:
        yield True
    finally:
        del half.vram_guard_tile_size


@pytest.fixture(params=list(HOSTS))
def host_name(request: pytest.FixtureRequest) -> str:
    """The hosts, one after the other."""
    return request.param


@pytest.fixture
def fake(host_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHost]:
    """A fake host with the extension loaded, a known checkpoint of SD 1.5 and a card of 12 GiB."""
    checkpoint = tmp_path / "model.safetensors"
    checkpoint.write_bytes(b"")
    for name in forget_modules():
        monkeypatch.delitem(sys.modules, name)
    made = HOSTS[host_name](checkpoint)
    for name, module in made.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    inspected = SimpleNamespace(family="sd15", components=(), problems=())
    monkeypatch.setattr(host_webui, "inspect_file", lambda path: inspected)
    for name in made.reads_headers_in:
        monkeypatch.setattr(f"{name}.inspect_file", lambda path: inspected)
    monkeypatch.setattr(host_webui, "current_card", lambda: CARD)
    monkeypatch.setattr(host_webui, "_system", lambda: {"ram_total_bytes": 32 * GIB, "ram_free_bytes": 20 * GIB})
    monkeypatch.setattr(sys, "argv", ["launch.py"])
    tiles = SimpleNamespace(tiled=_marking)
    for name in ("tiled_decode", "tiled_encode"):
        monkeypatch.setitem(sys.modules, f"lib_vram.host.{name}", tiles)
        monkeypatch.setattr(lib_vram.host, name, tiles, raising=False)
    callbacks.guard.cache_clear()
    fail_open.forget()
    made.load_scripts()
    yield made
    callbacks.guard.cache_clear()
