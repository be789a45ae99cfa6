from __future__ import annotations

import os

import pytest

from lib_vram.machine.drm import DrmReader
from lib_vram.units import GIB, MIB

pytestmark = pytest.mark.skipif(os.name == "nt", reason="these files are Linux's")

CARD, OTHER = "0000:03:00.0", "0000:0a:00.0"


@pytest.fixture
def proc(tmp_path):
    """Return a function that gives process ``pid`` a descriptor."""

    def opened(pid, number, text, target="/dev/dri/renderD128"):
        for name in ("fd", "fdinfo"):
            (tmp_path / "proc" / str(pid) / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / str(pid) / "fd" / str(number)).symlink_to(target)
        (tmp_path / "proc" / str(pid) / "fdinfo" / str(number)).write_text(text)

    return opened


@pytest.fixture
def read(tmp_path):
    def found(own=1):
        return DrmReader(tmp_path / "proc", tmp_path / "kfd", own=own).shares()

    return found


def info(client, memory, card=CARD):
    return f"pos:\t0\ndrm-driver:\tamdgpu\ndrm-pdev:\t{card}\ndrm-client-id:\t{client}\n{memory}\n"


@pytest.mark.parametrize(
    ("memory", "size"),
    [
        ("drm-memory-vram:\t2048 KiB", 2 * MIB),
        ("drm-memory-vram: 9 KiB\ndrm-resident-vram: 3 MiB", 3 * MIB),
        ("drm-total-local0: 4 MiB", 4 * MIB),
        ("drm-resident-vram0: 4096", 4096),
    ],
)
def test_every_drivers_words_for_its_own_memory_are_read(proc, read, memory, size):
    proc(7, 5, info(1, memory))
    assert read() == {7: size}


def test_a_descriptor_that_is_open_twice_counts_once_and_files_of_other_kinds_not_at_all(proc, read):
    proc(7, 5, info(1, "drm-memory-vram: 2 MiB"))
    proc(7, 6, info(1, "drm-memory-vram: 2 MiB"))
    proc(7, 8, info(2, "drm-memory-vram: 1 MiB"))
    proc(7, 9, info(3, "drm-memory-vram: 9 MiB"), target="/home/a/file")
    assert read() == {7: 3 * MIB}


def test_the_card_is_the_one_of_this_process(proc, read):
    proc(7, 5, info(1, "drm-memory-vram: 900 MiB", OTHER))
    proc(8, 5, info(2, "drm-memory-vram: 5 MiB"))
    assert read(own=8) == {8: 5 * MIB}
    assert read(own=1) == {7: 900 * MIB}


def test_what_rocm_holds_for_a_process_is_its_share_too(proc, read, tmp_path):
    proc(7, 5, info(1, "drm-memory-vram: 5 MiB"))
    for pid, size in ((7, 3 * GIB), (9, GIB)):
        (tmp_path / "kfd" / str(pid)).mkdir(parents=True)
        (tmp_path / "kfd" / str(pid) / "vram_41").write_text(f"{size}\n")
    assert read() == {7: 3 * GIB, 9: GIB}


def test_without_such_files_nothing_is_known(read):
    assert read() == {}


def test_the_files_are_read_every_ten_seconds(tmp_path, proc):
    now = [0.0]
    reader = DrmReader(tmp_path / "proc", tmp_path / "kfd", lambda: now[0])
    assert reader.shares() == {}
    proc(7, 5, info(1, "drm-memory-vram: 5 MiB"))
    now[0] = 9.0
    assert reader.shares() == {}
    now[0] = 10.0
    assert reader.shares() == {7: 5 * MIB}
