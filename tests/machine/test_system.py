from __future__ import annotations

from types import SimpleNamespace

import pytest

from lib_vram.machine import system


class Fault(Exception):
    """Stands in for ``psutil.Error``."""


def fake_psutil(swap=(8, 2)):
    def swap_memory():
        if isinstance(swap, Exception):
            raise swap
        return SimpleNamespace(total=swap[0], used=swap[1])

    return SimpleNamespace(
        Error=Fault,
        virtual_memory=lambda: SimpleNamespace(total=32, available=20),
        swap_memory=swap_memory,
        Process=lambda pid: SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=5)),
    )


@pytest.fixture
def psutil(monkeypatch):
    return lambda made: monkeypatch.setattr(system, "_psutil", lambda: made)


def test_ram_swap_and_the_disks_of_the_folders_that_are_there(psutil, tmp_path):
    psutil(fake_psutil())
    found = system.read({"models": str(tmp_path), "temp": str(tmp_path / "gone")}, tmp_path / "none")
    assert (found.ram_total_bytes, found.ram_free_bytes, found.own_ram_bytes) == (32, 20, 5)
    assert (found.swap_total_bytes, found.swap_used_bytes) == (8, 2)
    assert [disk.name for disk in found.disks] == ["models"]
    assert found.disks[0].total_bytes >= found.disks[0].free_bytes > 0


def test_a_system_that_does_not_tell_its_swap(psutil, tmp_path):
    psutil(fake_psutil(swap=RuntimeError("no counters")))
    found = system.read({}, tmp_path / "none")
    assert (found.ram_total_bytes, found.swap_total_bytes, found.swap_used_bytes) == (32, None, None)


def test_without_psutil_only_what_needs_none(psutil, tmp_path):
    psutil(None)
    found = system.read({"temp": str(tmp_path)}, tmp_path / "none")
    assert found.ram_total_bytes is None
    assert len(found.disks) == 1


@pytest.mark.parametrize(
    ("content", "percent"),
    [("some avg10=12.50 avg60=1.00 total=5\nfull avg10=3.00\n", 12.5), ("", None), ("some avg10=x", None)],
)
def test_how_much_waits_for_ram_is_read_from_the_kernel(psutil, tmp_path, content, percent):
    psutil(None)
    path = tmp_path / "memory"
    path.write_text(content)
    assert system.read({}, path).waiting_percent == percent
