"""Which host this is, by the module that exists."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec

from lib_vram.errors import HostFault
from lib_vram.host.base import Host
from lib_vram.message import render, say


def current() -> Host:
    """Return the host that this process is.

    Raises:
        HostFault: it is a host that is not supported, or none that is known; one clear line.
    """
    for is_it, make in _kinds():
        if is_it():
            return make()
    raise HostFault(render(say("guard.host_unknown")))


def _kinds() -> tuple[tuple[Callable[[], bool], Callable[[], Host]], ...]:
    """Return the hosts in the order in which they must be asked for: the later ones' modules exist in the earlier."""
    return (
        (_is_sdnext, _not_supported("SD.Next")),
        (_is_neo, _neo),
        (lambda: _exists("backend.memory_management"), _forge),
        (lambda: _exists("ldm_patched.modules.model_management"), _reforge_or_classic),
        (lambda: _exists("modules.lowvram"), _a1111),
    )


def _exists(module: str) -> bool:
    """Whether ``module`` can be imported. Imports its parents at most, which the host has imported anyway."""
    if module in sys.modules:
        return True
    parent = module.rpartition(".")[0]
    if parent and not _exists(parent):
        return False
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _is_sdnext() -> bool:
    """SD.Next keeps the layout of A1111 and offloads models by a module of its own."""
    return _exists("modules.sd_offload")


def _is_neo() -> bool:
    """Neo keeps Forge's layout; its presets of model families are a module of their own."""
    return _exists("backend.memory_management") and _exists("modules_forge.presets")


def _forge() -> Host:
    from lib_vram.host.forge import Forge

    return Forge()


def _neo() -> Host:
    from lib_vram.host.neo import Neo

    return Neo()


def _reforge_or_classic() -> Host:
    """reForge has moved to a later state of the code that both come from; the Forge before that is as Classic is."""
    if _exists("ldm_patched.modules.patcher_extension"):
        from lib_vram.host.reforge import Reforge

        return Reforge()
    from lib_vram.host.classic import Classic

    return Classic()


def _a1111() -> Host:
    from lib_vram.host.a1111 import A1111

    return A1111()


def _not_supported(name: str) -> Callable[[], Host]:
    def refuse() -> Host:
        raise HostFault(render(say("guard.host_not_supported", host=name)))

    return refuse
