"""``component``: one model part at work."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from lib_vram import units
from lib_vram.commands.options import one_of, one_of_type, required, whole
from lib_vram.commands.reply import Reply
from lib_vram.errors import BadInput
from lib_vram.message import sentence
from lib_vram.physics.component import Code, Component, ComponentMemory, Part
from lib_vram.request import BATCH_LIMITS, SIZE_LIMITS, Attention, Dtype, Family

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "component"
TILE_LIMITS = (128, 4096)
_NUMBERS = ("weights", "floor", "minimum", "comfortable", "low", "high")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this command's options to ``parser``."""
    add: Callable[..., argparse.Action] = parser.add_argument
    add("--family", type=one_of_type("--family", Family), metavar="F", help="sd15, sdxl, ...")
    add("--part", type=one_of_type("--part", Part), metavar="P", help="text_encode, denoise, vae_decode, ...")
    add("--width", type=whole("--width", SIZE_LIMITS), metavar="W", help="pixels")
    add("--height", type=whole("--height", SIZE_LIMITS), metavar="H", help="pixels")
    add("--batch", type=whole("--batch", BATCH_LIMITS), default=1, metavar="N", help="pictures at once (1)")
    add("--frames", type=whole("--frames", (1, 1024)), default=1, metavar="N", help="frames of a video (1)")
    add("--dtype", type=one_of_type("--dtype", Dtype), default="fp16", metavar="D", help="of the activations (fp16)")
    add("--attention", type=one_of_type("--attention", Attention), default="sdpa", metavar="A", help="(sdpa)")
    add("--code", type=one_of_type("--code", Code), default="ldm", metavar="C", help="ldm or diffusers (ldm)")
    add(
        "--cfg",
        type=one_of("--cfg", ("on", "off")),
        default="on",
        metavar="on|off",
        help="cond and uncond together (on)",
    )
    add("--tile", type=whole("--tile", TILE_LIMITS), metavar="N", help="side of a VAE tile in pixels (no tiles)")
    add("--variant", default="", metavar="V", help="which of several published ControlNets (the one that is used most)")
    add("--alloc-conf", default="", metavar="S", help="as in PYTORCH_CUDA_ALLOC_CONF")


def run(arguments: argparse.Namespace) -> Reply:
    """Compute what the part needs.

    Raises:
        BadInput: an option is missing or not usable; ``NotReady`` for a part that is not built yet.
    """
    required(arguments, "--family", "--part", "--width", "--height")
    from lib_vram.physics.memory import component_memory

    component = Component(
        family=arguments.family, part=arguments.part, width=arguments.width, height=arguments.height,
        batch=arguments.batch, frames=arguments.frames, dtype=arguments.dtype, attention=arguments.attention,
        code=arguments.code, cfg=arguments.cfg == "on", tile=arguments.tile, alloc_conf=arguments.alloc_conf,
        variant=arguments.variant,
    )  # fmt: skip
    try:
        memory = component_memory(component)
    except BadInput as error:  # physics names its own field; here it is an option
        option = f"--{error.field.replace('_', '-')}"
        raise type(error)(option, got=error.got, takes=error.takes) from None
    return Reply(dataclasses.asdict(memory), text_of(memory, arguments.language))


def text_of(memory: ComponentMemory, language: str = "en") -> str:
    """Return the six numbers with what each means, and where they come from."""
    rows = [
        (
            sentence(f"cli.{name}", language),
            units.mib(getattr(memory, f"{name}_bytes")),
            sentence(f"cli.{name}_means", language),
        )
        for name in _NUMBERS
    ]
    width = max(len(name) for name, _, _ in rows)
    lines = [f"{name.ljust(width)}  {size:>11}  {meaning}" for name, size, meaning in rows]
    return "\n".join([*lines, f"{sentence('cli.source', language)}: {memory.source}"])
