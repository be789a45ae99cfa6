"""Regenerates the profiles that are shipped, by tracing the model code on meta tensors.

    python tools/trace_profiles.py            writes lib_vram/physics/profiles/*.json
    python tools/trace_profiles.py --check    writes nothing; exit 1 when a file would change

Needs torch (the CPU build is enough); no weights, no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Literal, cast

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lib_vram.physics.allocator import AllocatorConf
from lib_vram.physics.fitting import DoesNotFit, check_events, fit
from lib_vram.physics.minimum import minimum_and_comfortable
from lib_vram.physics.profile import FOLDER, LOOP, REPEAT, Profile
from lib_vram.physics.program import Setting, expand
from lib_vram.physics.raw import RawTrace
from lib_vram.physics.trace import mark_attention, trace
from lib_vram.physics.weights import VAE_PARAMETERS
from tools.meta.clip import PROMPT_TOKENS, TextEncoders
from tools.meta.control_lora import as_control_lora
from tools.meta.controlnet import ControlNet
from tools.meta.layers import A1111, FORGE, Style
from tools.meta.shapes import TEXT_ENCODERS, UNETS, VAES
from tools.meta.unet import UNet
from tools.meta.vae import Decoder, Encoder

DTYPES = {"fp16": torch.float16, "fp32": torch.float32}
STYLES = {"forge": FORGE, "a1111": A1111}
FITTED = (Setting(2, 104, 72), Setting(4, 59, 83), Setting(6, 37, 41), Setting(3, 47, 101), Setting(5, 97, 29))
"""Sizes that a profile is made from: batch and latent rows and columns without common factors, odd ones among them."""

HELD_OUT = (Setting(1, 61, 46), Setting(2, 128, 96))
"""Sizes at which every profile is checked against a trace that it was not made from."""


@dataclass(frozen=True)
class Traced:
    """A module on ``meta`` and how it is run at a size."""

    module: torch.nn.Module
    run: Callable[[Setting], object]
    batches: Literal["any", "one", "more"] = "any"
    """The batches at which the order of events is the same; diffusers' attention copies less for a single picture."""
    other_parameters: int = 0
    """Weights of the same model that this part does not run, and that the hosts keep beside it all the same."""
    whole: int = 1
    """The multiple of rows and columns at which the order of events is the same."""
    warm: bool = False
    """Whether the code keeps something from its first run, such as a table of positions."""
    leaves_open: bool = False
    """Whether torch's fused attention is noted as attention, so that other ways can be put in its place."""
    frames: tuple[int, ...] = (1,) * 5
    """Latent frames at the sizes that the profile is made from; the first two are those of the checks."""

    def at(self, setting: Setting) -> RawTrace:
        """Return the trace at ``setting``; the inputs are taken inside it, the weights are not counted."""
        if self.warm:
            with torch.no_grad():
                self.run(setting)
        resident = [*self.module.parameters(), *self.module.buffers()]
        return trace(lambda: self.run(setting), resident=resident, leave_open=self.leaves_open)

    def sizes(self, settings: tuple[Setting, ...]) -> list[Setting]:
        """Return ``settings`` with the batches at which this module is traced."""
        rounded = [
            replace(item, rows=self._up(item.rows), columns=self._up(item.columns), frames=frames)
            for item, frames in zip(settings, self.frames)
        ]
        if self.batches == "any":
            return rounded
        return [replace(item, batch=1 if self.batches == "one" else item.batch + 1) for item in rounded]

    def _up(self, side: int) -> int:
        return -(-side // self.whole) * self.whole

    @property
    def parameters(self) -> int:
        """How many weights the model has that this part belongs to."""
        return count(self.module) + self.other_parameters


def count(module: torch.nn.Module) -> int:
    """Return how many weights ``module`` has: its parameters, and tables that lie in its file (SD 3.5's positions)."""
    tables = (
        table
        for part in module.modules()
        for name, table in part.named_buffers(recurse=False)
        if name not in part._non_persistent_buffers_set and table.is_floating_point()
    )
    return sum(item.numel() for item in (*module.parameters(), *tables))


Mark = Callable[..., torch.Tensor]


def mark(operands: list[torch.Tensor], heads: int) -> torch.Tensor:
    """Attention over tokens that leaves its own way of working open."""
    return mark_attention(*operands, heads)


def mark_picture(operands: list[torch.Tensor]) -> torch.Tensor:
    """Attention over a picture that leaves its own way of working open."""
    return mark_attention(*operands, 1, picture=True)


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


def control_lora(family: str, dtype: torch.dtype, style: Style, attend: Mark = mark) -> Traced:
    """Return the Control-LoRA of ``family``, whose weights without the UNet's are what it brings."""
    traced = controlnet(family, dtype, style, attend)
    shared = as_control_lora(cast(ControlNet, traced.module))
    return replace(traced, other_parameters=-shared)


def vae_decode(family: str, dtype: torch.dtype, style: Style, attend: Mark = mark_picture) -> Traced:
    """Return the VAE's decoder."""
    decoder, encoder = _vae(family, dtype, style, attend)

    def run(at: Setting) -> object:
        return decoder(torch.empty(at.batch, VAES[family].latents, at.rows, at.columns, dtype=dtype, device="meta"))

    return Traced(decoder, run, other_parameters=count(encoder))


def vae_encode(family: str, dtype: torch.dtype, style: Style, attend: Mark = mark_picture) -> Traced:
    """Return the VAE's encoder; the picture has eight times the latent's sides."""
    decoder, encoder = _vae(family, dtype, style, attend)

    def run(at: Setting) -> object:
        return encoder(torch.empty(at.batch, 3, at.rows * 8, at.columns * 8, dtype=dtype, device="meta"))

    return Traced(encoder, run, other_parameters=count(decoder))


def _vae(family: str, dtype: torch.dtype, style: Style, attend: Mark) -> tuple[torch.nn.Module, torch.nn.Module]:
    return tuple(on_meta(partial(half, VAES[family], attend, style), dtype) for half in (Decoder, Encoder))


def text_encode(family: str, dtype: torch.dtype, style: Style, attend: Mark = mark) -> Traced:
    """Return the text encoders of ``family``, at one stretch of the prompt for each picture of the batch."""
    encoders = on_meta(partial(TextEncoders, TEXT_ENCODERS[family]), dtype)
    return Traced(encoders, lambda at: encoders(torch.empty(at.batch, PROMPT_TOKENS, dtype=torch.int64, device="meta")))


def in_diffusers(dtype_name: str, only: str) -> Iterator[tuple[str, Traced]]:
    """Return the parts in diffusers' own code whose profiles have ``only`` in their names."""
    from tools.diffusers_parts import parameters, parts

    for item in parts():
        prefix = f"{item.name}-{dtype_name}-diffusers"
        names = {"one": f"{prefix}_one"} if item.list_batches else {"one": f"{prefix}_one", "more": prefix}
        if not any(only in name for name in names.values()):
            continue
        dtype = DTYPES[dtype_name]
        module = on_meta(item.make, dtype)
        beside = getattr(module, "other_parameters", 0) + parameters(module) - count(module)
        run, is_open = partial(item.run, module, dtype), item.part != "text_encode"
        traced = Traced(module, run, "one", beside, item.whole, True, is_open, item.frames)
        for batches, name in names.items():
            yield name, replace(traced, batches=batches)


PARTS = {
    "denoise": denoise,
    "controlnet": controlnet,
    "controlnet_lora": control_lora,
    "vae_decode": vae_decode,
    "vae_encode": vae_encode,
    "text_encode": text_encode,
}
ONE_STYLE = frozenset(("text_encode",))
"""Parts for which one host's code stands for both: too small to ever decide."""
TWO_ORDERS = frozenset({("sd21", "denoise", A1111)})
"""What gives some blocks back earlier for a batch of one, whose positions stay views through the first projection."""
WITHOUT = frozenset({("sdxl_refiner", "controlnet"), ("sdxl_refiner", "controlnet_lora")})
"""Nobody has made these."""


def in_orders(name: str, traced: Traced, two: bool) -> Iterator[tuple[str, Traced]]:
    """Return the profile for every batch, or the two for a batch of one and for larger ones."""
    if two:
        yield f"{name}_one", replace(traced, batches="one")
        traced = replace(traced, batches="more")
    yield name, traced


def wanted(only: str = "") -> Iterator[tuple[str, Traced]]:
    """Return every profile's name and module; ``only`` those that have it in their names."""
    for part, make in PARTS.items():
        for family in VAES if part.startswith("vae") else UNETS:
            if (family, part) in WITHOUT:
                continue
            for style_name, style in STYLES.items():
                if part in ONE_STYLE and style is not FORGE:
                    continue
                for dtype_name, dtype in DTYPES.items():
                    name = f"{family}-{part}-{dtype_name}-{style_name}"
                    if only in name:
                        yield from in_orders(name, make(family, dtype, style), (family, part, style) in TWO_ORDERS)
    if find_spec("diffusers") is None:
        print("diffusers is not installed: its profiles are left as they are")
        return
    for dtype_name in DTYPES:
        yield from in_diffusers(dtype_name, only)


def build(name: str, traced: Traced) -> Profile:
    """Return the profile of one module, with its attention left open where it can be.

    Raises:
        DoesNotFit: an event is no sum of monomials, or a figure at another size is not that of a fresh trace.
    """
    if traced.leaves_open:
        try:
            return _built(name, traced)
        except DoesNotFit as fault:
            print(f"attention is fused for good: {fault}", file=sys.stderr)
    return _built(name, replace(traced, leaves_open=False))


def _built(name: str, traced: Traced) -> Profile:
    """Return the profile, checked at sizes that it was not made from."""
    settings = traced.sizes(FITTED)
    profile = fit(name, traced.parameters, settings, [traced.at(setting) for setting in settings])
    for setting in traced.sizes(HELD_OUT):
        check_events(profile, setting, traced.at(setting))
    try:
        for setting in traced.sizes(HELD_OUT):
            check_loops(profile, setting)
    except DoesNotFit:
        # What a few stretches leave in the allocator is not what all of them do: replay them all.
        profile = replace(profile, tokens=tuple((REPEAT if kind == LOOP else kind, at) for kind, at in profile.tokens))
    return profile


def check_loops(profile: Profile, setting: Setting) -> None:
    """Fail when a loop cut short gives other figures than the whole.

    Raises:
        DoesNotFit: floor, minimum or comfortable differ.
    """
    figures = set()
    for kept in (2, None):
        at = expand(profile, setting, "sdpa", kept=kept)
        floor = at.floor_bytes
        figures.add((floor, at.bare_floor_bytes, *minimum_and_comfortable(at, AllocatorConf(), floor)))
    if len(figures) > 1:
        raise DoesNotFit(f"{profile.name} at {setting}: a loop cut short gives {figures}")


def text_of(profile: Profile) -> str:
    """Return the file's text."""
    return json.dumps(profile.to_json(), sort_keys=True, separators=(",", ":")) + "\n"


def vae_parameters() -> str:
    """Return the text of the file with the numbers of every VAE's parameters."""
    from tools.diffusers_parts import parts

    table: dict[str, list[list[int]]] = {}
    for item in parts():
        if item.part == "vae_decode":
            state = on_meta(item.make, torch.float16).state_dict()
            table[item.family] = [
                [count, len(list(same))] for count, same in groupby(value.numel() for value in state.values())
            ]
    return json.dumps(table, sort_keys=True, separators=(",", ":")) + "\n"


def main(arguments: list[str]) -> int:
    """Write the profiles, or check that they are what the code gives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file would change")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the profiles with this in their name")
    parser.add_argument("--vae-parameters", action="store_true", help="write the sizes of the VAEs' weights, no more")
    asked = parser.parse_args(arguments)
    if asked.vae_parameters:
        VAE_PARAMETERS.write_text(vae_parameters(), encoding="utf-8", newline="\n")
        return 0
    check, changed, failed = asked.check, [], []
    FOLDER.mkdir(exist_ok=True)
    for name, traced in wanted(asked.only):
        try:
            text = text_of(build(name, traced))
        except DoesNotFit as fault:
            print(fault, file=sys.stderr)
            failed.append(name)
            continue
        path = FOLDER / f"{name}.json"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            changed.append(path.name)
            if not check:
                path.write_text(text, encoding="utf-8", newline="\n")
    print(f"{len(changed)} of the profiles {'differ' if check else 'were written'}: {', '.join(changed) or 'none'}")
    return 1 if failed or (check and changed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
