"""The 3-D VAE at work on videos of two to nine latent frames, from which those of longer ones are made.

python tools/video_parts.py --style diffusers [--check]
python tools/video_parts.py --style neo --host-source DIR [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lib_vram.physics.fitting import DoesNotFit, check_events, fit
from lib_vram.physics.profile import FOLDER, Profile
from lib_vram.physics.program import Setting
from lib_vram.physics.raw import RawTrace
from lib_vram.physics.trace import trace
from lib_vram.physics.video import LONGEST_STORED, for_frames
from tools.trace_profiles import DTYPES, FITTED, HELD_OUT, on_meta, text_of

LONGER = (10, 13, 16)
"""Latent frames at which a profile that is made from shorter ones is checked against a trace."""
FRAMES_PER_LATENT = 4


def frames_of(latents: int) -> int:
    """Return the frames of a video with ``latents`` latent frames."""
    return 1 + FRAMES_PER_LATENT * (latents - 1)


def decode(vae: Any, dtype: torch.dtype, latents: int, at: Setting) -> object:
    """Decode a video."""
    return vae.decode(torch.empty(at.batch, 16, latents, at.rows, at.columns, dtype=dtype, device="meta"))


def encode(vae: Any, dtype: torch.dtype, latents: int, at: Setting) -> object:
    """Encode a video."""
    size = (at.batch, 3, frames_of(latents), at.rows * 8, at.columns * 8)
    return vae.encode(torch.empty(*size, dtype=dtype, device="meta"))


def in_diffusers() -> torch.nn.Module:
    """Return diffusers' VAE of Wan 2.1, which Qwen-Image has too."""
    import diffusers

    return diffusers.AutoencoderKLWan()


def in_neo(source: Path) -> torch.nn.Module:
    """Return Forge Neo's."""
    from tools.host_parts import host

    return host("wan_vae", "WanVAE")(base_dim=96, z_dim=16, temporal_downsample=[False, True, True])


def without_end(raw: RawTrace) -> RawTrace:
    """Return the trace without what is given back at its very end, when everything is: Neo keeps a list of chunks."""
    while raw.events[-1][0] == "free":
        raw.events.pop()
    return raw


RUNS: dict[str, Callable[[Any, torch.dtype, int, Setting], object]] = {"vae_decode": decode, "vae_encode": encode}


def profiles(make: Callable[[], torch.nn.Module], style: str) -> Iterator[tuple[str, Profile]]:
    """Return the profiles of both directions, checked at longer videos.

    Raises:
        DoesNotFit: an event is no sum of monomials, or a longer video is not what is made of shorter ones.
    """
    for dtype_name, dtype in DTYPES.items():
        vae = on_meta(make, dtype)
        resident = [*vae.parameters(), *vae.buffers()]
        for part, run in RUNS.items():
            yield from _lengths(f"wan-{part}-{dtype_name}-{style}", partial(run, vae, dtype), resident)


def _lengths(name: str, run: Callable[[int, Setting], object], resident: list[Any]) -> Iterator[tuple[str, Profile]]:
    def traced(latents: int, at: Setting) -> RawTrace:
        return without_end(trace(lambda: run(latents, at), resident=resident, leave_open=True))

    parameters = sum(item.numel() for item in resident if isinstance(item, torch.nn.Parameter))
    settings = [replace(item, batch=1) for item in FITTED]
    made: dict[int, Profile] = {}
    for latents in range(2, LONGEST_STORED + 1):
        full = f"{name}_f{latents}"
        made[latents] = fit(full, parameters, settings, [traced(latents, at) for at in settings])
        yield full, made[latents]
    at = replace(HELD_OUT[0], batch=1)
    for latents in (2, LONGEST_STORED, *LONGER):
        profile = for_frames(made.get, latents)
        if profile is None:
            raise DoesNotFit(f"{name}: nothing for {latents} latent frames")
        check_events(profile, at, traced(latents, at))


def main(arguments: list[str]) -> int:
    """Write the profiles of one form of the code, or check that they are what it gives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--style", choices=("diffusers", "neo"), required=True)
    parser.add_argument("--host-source", type=Path, help="folder of Forge Neo's checkout")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file would change")
    options = parser.parse_args(arguments)
    make = in_diffusers
    if options.style == "neo":
        from tools.host_parts import use

        use(options.host_source.resolve(), options.style)
        make = partial(in_neo, options.host_source)
    changed = []
    for name, profile in profiles(make, options.style):
        path, text = FOLDER / f"{name}.json", text_of(profile)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            changed.append(path.name)
            if not options.check:
                path.write_text(text, encoding="utf-8", newline="\n")
    what = "differ" if options.check else "were written"
    print(f"{len(changed)} of the profiles {what}: {', '.join(changed) or 'none'}")
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
