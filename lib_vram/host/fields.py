"""Fields of a request as plain data: control units, pictures, scripts, and what a checkpoint's UNet takes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

from lib_vram.host.asked import ControlNet
from lib_vram.host.control_files import control_file
from lib_vram.host.unet_patches import UnetPatches
from lib_vram.request import SIZE_LIMITS, ModelVariant

if TYPE_CHECKING:
    from lib_vram.model.inspect import Checkpoint


def control_unit(unit: ControlNet, family: str, weights_dtype: str) -> dict[str, Any]:
    """Return a unit as a request has it, beside a model of ``family`` whose weights are kept in ``weights_dtype``.

    A file that does not say its family is of the model's own.
    """
    found = control_file(unit.model)
    return {
        "kind": found.kind, "family": found.family or family, "low_vram": unit.low_vram, "preprocessor": unit.module,
        "processor_res": unit.resolution, "bytes": found.loaded_bytes(weights_dtype),
    }  # fmt: skip


def picture(size: tuple[int, int]) -> dict[str, int]:
    """Return a picture as a request has it, as near to its size as a request may come."""
    width, height = (min(max(int(side), SIZE_LIMITS[0]), SIZE_LIMITS[1]) for side in size)
    return {"width": width, "height": height}


def patches(found: UnetPatches) -> dict[str, Any]:
    """Return what scripts change about the UNet's work."""
    return {
        "tiled_diffusion": asdict(found.tiles) if found.tiles else None,
        "hr_fix": asdict(found.hr_fix) if found.hr_fix else None,
        "guidance": list(found.guidance),
    }


def variant(checkpoint: Checkpoint | None) -> str:
    """Return which other input the UNet of a checkpoint takes, ``""`` for none or one that the hosts do not feed."""
    found = str(getattr(checkpoint, "variant", ""))
    return found if found in get_args(ModelVariant) else ""
