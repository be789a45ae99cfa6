"""Which host it is, by its modules."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from lib_vram.errors import HostFault
from lib_vram.host import detect

A1111 = ("modules.lowvram",)
FORGE = ("modules.lowvram", "backend.memory_management", "modules_forge.main_entry")


@pytest.fixture
def modules(monkeypatch):
    """Put empty modules of these names, and no other ones of a host, into this process."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("modules", "backend", "modules_forge", "ldm_patched"):
            monkeypatch.delitem(sys.modules, name)

    def put(*names):
        for name in names:
            parent = name.partition(".")[0]
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
            monkeypatch.setitem(sys.modules, name, ModuleType(name))

    return put


@pytest.mark.parametrize(
    ("names", "title"), [(A1111, "AUTOMATIC1111"), (FORGE, "Forge"), ((*FORGE, "modules_forge.presets"), "Forge Neo")]
)
def test_a_host_is_known_by_its_modules(modules, names, title):
    modules(*names)
    assert detect.current().title == title


@pytest.mark.parametrize(
    ("names", "named"),
    [
        ((*A1111, "modules.sd_offload"), "SD.Next"),
    ],
)
def test_a_host_that_is_not_supported_gets_one_clear_line(modules, names, named):
    modules(*names)
    with pytest.raises(HostFault) as fault:
        detect.current()
    assert str(fault.value) == f"VRAM Guard does not support {named} and does nothing here."


def test_outside_a_webui_that_is_said(modules):
    modules()
    with pytest.raises(HostFault, match="none of the WebUIs"):
        detect.current()
