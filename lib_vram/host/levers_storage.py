"""Weights stored in fp8 for one run.

A1111 looks at its option at the beginning of every run and reads the weights anew when the loaded ones are stored
otherwise. Forge and Neo do so when their loading parameters have changed, which they write down when they are told
that an option has. So after the run the settings are as they were, and the next run reads the weights anew.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lib_vram.host.webui import WebUI

A1111_OPTION = "fp8_storage"
FORGE_OPTION = "forge_unet_storage_dtype"
FORGE_FP8 = "float8-e4m3fn"
WHOLE_TYPES = ("fp16", "bf16", "fp32")
"""Types of weights that can be stored in fp8; the others are smaller already."""


def can_store_fp8() -> bool:
    """Whether this PyTorch has the type (2.1 and later), and the device can hold it: Apple's cannot."""
    torch = sys.modules.get("torch")
    backends = getattr(torch, "backends", None)
    apple = getattr(backends, "mps", None)
    return hasattr(torch, "float8_e4m3fn") and not (apple is not None and apple.is_available())


def a1111_in_fp8(host: WebUI, p: Any) -> None:
    """Let the run of ``p`` store the weights of linear and convolution layers in fp8."""
    host.hold_option(p, A1111_OPTION, "Enable")


def forge_in_fp8(host: WebUI, p: Any) -> None:
    """Let the run of ``p`` load the UNet in fp8 (*Diffusion in Low Bits*), with LoRAs as the setting has them."""
    from modules_forge import main_entry

    chosen = str(host.option(FORGE_OPTION, "Automatic"))
    fp8 = FORGE_FP8 + (" (fp16 LoRA)" if chosen.endswith("(fp16 LoRA)") else "")
    host.runs.of(p).of_run.call_when_undone(main_entry.refresh_model_loading_parameters)
    host.hold_option(p, FORGE_OPTION, fp8)
    main_entry.refresh_model_loading_parameters()
