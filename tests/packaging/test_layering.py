"""Imports point one way. Ruff says the same folder by folder; this test holds the whole order in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lib_vram"

BELOW: dict[str, frozenset[str]] = {}
"""Layer → the layers it may import beside itself."""
for _layers in (
    ("errors",), ("units",), ("message",), ("request",), ("physics", "model", "machine"), ("estimate",), ("plan",),
    ("diagnosis", "journal"), ("learning",), ("live",),
):  # fmt: skip
    _known = frozenset(BELOW)
    BELOW |= {layer: _known | (frozenset(_layers) if len(_layers) > 1 else frozenset()) for layer in _layers}
_CORE = frozenset(BELOW)
BELOW["host"] = _CORE | {"guard"}
BELOW["guard"] = _CORE | {"host"}  # the interface and the choice of the host: lib_vram/host/base.py
BELOW["commands"] = _CORE | {"guard"}
BELOW["ui"] = _CORE | {"guard", "host"}
BELOW["lab"] = _CORE | {"guard", "host", "ui"}
BELOW["callbacks"] = _CORE | {"guard", "host", "ui"}
BELOW["__main__"] = frozenset(("commands",))

HOST_MODULES = frozenset(("modules", "modules_forge", "backend", "ldm_patched", "launch"))
MAY_IMPORT_HOST = frozenset(("host", "callbacks"))  # callbacks registers with the WebUI
MAY_IMPORT_GRADIO = frozenset(("ui", "lab", "host", "callbacks"))
MAY_IMPORT_TORCH = ("physics/trace.py", "host/")

FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def imports_of(file: str) -> set[str]:
    """Return the full names of the modules that ``file`` imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            module = node.module or ""
            names |= {f"lib_vram.{alias.name}" for alias in node.names} if module == "lib_vram" else {module}
    return names


def layer_of(file: str) -> str:
    return file.split("/")[0].removesuffix(".py")


@pytest.mark.parametrize("file", [file for file in FILES if file != "__init__.py"])
def test_a_file_imports_only_from_the_layers_below_it(file: str) -> None:
    layer = layer_of(file)
    own = {name.split(".")[1] for name in imports_of(file) if name.startswith("lib_vram.")} - {"__version__"}
    assert own <= BELOW[layer] | {layer}


@pytest.mark.parametrize("file", FILES)
def test_hosts_gradio_and_torch_are_imported_only_where_they_may(file: str) -> None:
    tops = {name.split(".")[0] for name in imports_of(file)}
    layer = layer_of(file)
    if layer not in MAY_IMPORT_HOST:
        assert not tops & HOST_MODULES
    if layer not in MAY_IMPORT_GRADIO:
        assert "gradio" not in tops
    if not file.startswith(MAY_IMPORT_TORCH):
        assert "torch" not in tops
