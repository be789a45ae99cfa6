"""Regenerates the profiles that are shipped, by tracing the model code on meta tensors.

    python tools/trace_profiles.py            writes lib_vram/physics/profiles/*.json
    python tools/trace_profiles.py --check    writes nothing; exit 1 when a file would change

Needs torch (the CPU build is enough); no weights, no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lib_vram.physics.profile import FOLDER, Profile  # noqa: E402
from lib_vram.physics.program import Setting  # noqa: E402
from lib_vram.physics.raw import RawTrace  # noqa: E402
from lib_vram.physics.trace import mark_attention, trace  # noqa: E402
from tools.fitting import fit  # noqa: E402
from tools.meta.controlnet import ControlNet  # noqa: E402
from tools.meta.layers import A1111, FORGE, Style  # noqa: E402
from tools.meta.shapes import UNETS  # noqa: E402
from tools.meta.unet import UNet  # noqa: E402
from tools.meta.vae import Decoder, Encoder, VaeShape  # noqa: E402

DTYPES = {"fp16": torch.float16, "fp32": torch.float32}
STYLES = {"forge": FORGE, "a1111": A1111}
PROMPT_TOKENS = 77
FITTED = (Setting(2, 104, 72), Setting(4, 59, 83), Setting(6, 37, 41), Setting(3, 47, 101), Setting(5, 97, 29))
"""Sizes that a profile is made from: batch and latent rows and columns without common factors, odd ones among them."""


@dataclass(frozen=True)
class Traced:
    """A module on ``meta`` and how it is run at a size."""

    module: torch.nn.Module
    run: Callable[[Setting], object]

    def at(self, setting: Setting) -> RawTrace:
        """Return the trace at ``setting``; the inputs are taken inside it, the weights are not counted."""
        resident = [*self.module.parameters(), *self.module.buffers()]
        return trace(lambda: self.run(setting), resident=resident)

    @property
    def parameters(self) -> int:
        """How many weights the module has."""
        return sum(item.numel() for item in self.module.parameters())


Mark = Callable[..., torch.Tensor]


def mark(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int = 1) -> torch.Tensor:
    """Attention over tokens that leaves its own way of working open."""
    return mark_attention(query, key, heads)


def mark_picture(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention over a picture that leaves its own way of working open."""
    return mark_attention(query, key, 1, picture=True)


def on_meta(make: Callable[[], torch.nn.Module], dtype: torch.dtype) -> torch.nn.Module:
    """Return a module whose weights have a shape and nothing else."""
    with torch.device("meta"):
        return make().to(dtype).eval()


def denoise(family: str, dtype: torch.dtype, style: Style, attend: Mark = mark) -> Traced:
    """Return the UNet of ``family``."""
    shape = UNETS[family]
    unet = on_meta(partial(UNet, shape, attend, style), dtype)

    def run(at: Setting) -> object:
        empty = partial(torch.empty, dtype=dtype, device="meta")
        x = empty(at.batch, shape.latents, at.rows, at.columns)
        context = empty(at.batch, PROMPT_TOKENS, shape.context)
        steps = torch.empty(at.batch, device="meta")
        return unet(x, steps, context, empty(at.batch, shape.pooled) if shape.pooled else None)

    return Traced(unet, run)


def controlnet(family: str, dtype: torch.dtype, style: Style, attend: Mark = mark) -> Traced:
    """Return the ControlNet of ``family``."""
    shape = UNETS[family]
    net = on_meta(partial(ControlNet, shape, attend, style), dtype)

    def run(at: Setting) -> object:
        empty = partial(torch.empty, dtype=dtype, device="meta")
        x = empty(at.batch, shape.latents, at.rows, at.columns)
        hint = empty(at.batch, 3, at.rows * 8, at.columns * 8)
        context = empty(at.batch, PROMPT_TOKENS, shape.context)
        steps = torch.empty(at.batch, device="meta")
        return net(x, hint, steps, context, empty(at.batch, shape.pooled) if shape.pooled else None)

    return Traced(net, run)


def vae_decode(family: str, dtype: torch.dtype, style: Style, attend: Mark = mark_picture) -> Traced:
    """Return the VAE's decoder."""
    decoder = on_meta(partial(Decoder, VaeShape(), attend, style), dtype)
    return Traced(decoder, lambda at: decoder(torch.empty(at.batch, 4, at.rows, at.columns, dtype=dtype, device="meta")))


def vae_encode(family: str, dtype: torch.dtype, style: Style, attend: Mark = mark_picture) -> Traced:
    """Return the VAE's encoder; the picture has eight times the latent's sides."""
    encoder = on_meta(partial(Encoder, VaeShape(), attend, style), dtype)
    return Traced(
        encoder,
        lambda at: encoder(torch.empty(at.batch, 3, at.rows * 8, at.columns * 8, dtype=dtype, device="meta")),
    )


PARTS = {"denoise": denoise, "controlnet": controlnet, "vae_decode": vae_decode, "vae_encode": vae_encode}
SHARED_VAE = "sd15"
"""SD 1.5 and SDXL have the same VAE; its profile is stored once."""


def wanted() -> Iterable[tuple[str, Traced]]:
    """Return every profile's name and module."""
    for part, make in PARTS.items():
        for family in UNETS:
            if part.startswith("vae") and family != SHARED_VAE:
                continue
            for style_name, style in STYLES.items():
                for dtype_name, dtype in DTYPES.items():
                    yield f"{family}-{part}-{dtype_name}-{style_name}", make(family, dtype, style)


def build(name: str, traced: Traced) -> Profile:
    """Return the profile of one module."""
    return fit(name, traced.parameters, FITTED, [traced.at(setting) for setting in FITTED])


def text_of(profile: Profile) -> str:
    """Return the file's text."""
    return json.dumps(profile.to_json(), sort_keys=True, separators=(",", ":")) + "\n"


def main(arguments: list[str]) -> int:
    """Write the profiles, or check that they are what the code gives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file would change")
    check = parser.parse_args(arguments).check
    changed = []
    FOLDER.mkdir(exist_ok=True)
    for name, traced in wanted():
        path, text = FOLDER / f"{name}.json", text_of(build(name, traced))
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            changed.append(path.name)
            if not check:
                path.write_text(text, encoding="utf-8", newline="\n")
    print(f"{len(changed)} of the profiles {'differ' if check else 'were written'}: {', '.join(changed) or 'none'}")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
