"""Measures a model class out of a host's source folder, as the extension does with a loaded model inside the host.

    python tools/trace_host.py HOST_FOLDER MODULE:CLASS CONFIG.json [--family F] [--style S] [--part P] [--dtype fp16]
                               [--store FOLDER] [--host-args "--cpu"]

``CONFIG.json`` has the class's arguments. Run it with the host's own Python: the classes' modules are imported from
the folder. Prints what the profile needs at a few sizes; ``--store`` also writes its file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIZES = ((512, 512), (1024, 1024), (1536, 1024))


def main(arguments: list[str]) -> int:
    """Trace, print, and store when asked to; 1 when it cannot be traced."""
    asked = _parser().parse_args(arguments)
    config = json.loads(asked.config.read_text(encoding="utf-8"))
    sys.path[:0] = [str(ROOT), *_paths(asked.folder)]
    sys.argv = [sys.argv[0], *shlex.split(asked.host_args)]
    os.chdir(asked.folder)
    from lib_vram.host import tracing

    part = _part(asked, _made(asked.model, config))
    name = f"{asked.family}-{asked.part}-{asked.dtype}-{asked.style}"
    started = time.thread_time()
    try:
        profiles = tracing.trace_part(name, part, asked.dtype)
    except tracing.GivenUp as fault:
        print(f"{name}: {fault}", file=sys.stderr)
        return 1
    print(f"{name}: {profiles[0].parameters} weights, {time.thread_time() - started:.1f} s of one core")
    for profile in profiles:
        _show(profile)
        if asked.store is not None:
            _store(profile, asked.store)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=lambda text: Path(text).resolve(), help="the host's folder")
    parser.add_argument("model", help="module and class, such as backend.nn.anima:Anima")
    parser.add_argument("config", type=lambda text: Path(text).resolve(), help="the class's arguments, as JSON")
    parser.add_argument("--family", default="loaded")
    parser.add_argument("--style", default="neo", choices=("forge", "a1111", "neo"))
    parser.add_argument("--part", default="denoise", choices=("denoise", "vae_decode", "vae_encode"))
    parser.add_argument("--dtype", default="fp16", choices=("fp16", "fp32"))
    parser.add_argument("--store", type=lambda text: Path(text).resolve(), help="a folder for the profile's file")
    parser.add_argument("--host-args", default="", help="the host's own arguments, such as --cpu")
    return parser


def _paths(folder: Path) -> list[str]:
    """Return where the hosts' own start script looks for modules."""
    found = [folder, folder / "modules_forge" / "packages", folder / "packages_3rdparty"]
    repositories = folder / "repositories"
    return [str(path) for path in (*found, *(repositories.iterdir() if repositories.is_dir() else ()))]


def _made(model: str, config: dict[str, Any]) -> Any:
    import torch

    module, _, name = model.partition(":")
    kind = getattr(importlib.import_module(module), name)
    with torch.device("meta"):
        return kind(**config)


def _part(asked: argparse.Namespace, module: Any) -> Any:
    from lib_vram.host import traced_a1111, traced_ldm, traced_neo

    more = {"methods": traced_a1111.METHODS, "autocast": asked.part != "vae_decode"} if asked.style == "a1111" else {}
    if asked.part == "denoise":
        sizes = {"settings": traced_a1111.SETTINGS, "checked": traced_a1111.CHECKED} if more else {}
        return traced_ldm.denoiser(module, **more, **sizes)
    parts = traced_ldm.vae_parts(module, **more) if more else traced_neo.vae_parts(module)
    return next(part for part in parts if part.part == asked.part)


def _show(profile: Any) -> None:
    from lib_vram.physics.allocator import AllocatorConf
    from lib_vram.physics.minimum import minimum_and_comfortable
    from lib_vram.physics.program import Setting, expand

    for width, height in SIZES:
        for batch in (1,) if profile.name.endswith("_one") else (1, 2):
            trace = expand(profile, Setting(batch, height // 8, width // 8), "sdpa")
            floor = trace.floor_bytes
            minimum, comfortable = minimum_and_comfortable(trace, AllocatorConf(), floor)
            figures = " ".join(f"{value / 2**20:9.1f}" for value in (floor, minimum, comfortable))
            print(f"  {width}x{height} batch {batch}: floor, minimum, comfortable {figures} MiB")


def _store(profile: Any, folder: Path) -> None:
    from lib_vram.physics.cache import MEASURED

    data = profile.to_json() | {"name": profile.name.removeprefix(MEASURED)}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{data['name']}.json"
    path.write_text(json.dumps(data, sort_keys=True, separators=(",", ":")) + "\n", encoding="utf-8", newline="\n")
    print(f"  written: {path.name}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
