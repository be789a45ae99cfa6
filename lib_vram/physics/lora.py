"""What putting a LoRA into a layer takes while it happens: once when it is loaded, or at every use of the layer.

Traced on ``meta`` in Forge's and Forge Neo's ``merge_lora_to_weight`` (layers of 12288 × 3072 and 3072 × 3072, rank 16;
torch 2.13), read in A1111's ``calc_updown`` and ``network_apply_weights``. Backups of weights are kept in RAM by all.
"""

from __future__ import annotations

from lib_vram.request import HostName

_FP32 = 4
CHUNK_ROWS, WIDEST_INPUT = 1024, 15360
"""Neo adds so many rows at a time; the most numbers in a row of a known model (Flux.1's and Klein's second layers)."""


def merging_bytes(host: HostName, layer_parameters: int, itemsize: int) -> int:
    """Return what a layer of ``layer_parameters`` takes while a LoRA is put into it for good, in bytes.

    A1111 makes what is added and then the sum, in the weights' own type. Forge and its relatives work in fp32: the
    layer, what is added, and that times its strength; Neo the layer alone, and its result in the weights' type.
    """
    if host == "a1111":
        return 2 * itemsize * layer_parameters
    if host == "neo":
        return (_FP32 + itemsize) * layer_parameters
    return 3 * _FP32 * layer_parameters


def on_the_fly_bytes(host: HostName, layer_parameters: int, itemsize: int) -> int:
    """Return what a layer takes on top of its unpacked weights while LoRAs are added at every use, in bytes.

    Forge copies the weights, makes what is added, and that times its strength, in the type that is computed in; Neo
    changes the unpacked weights themselves, some rows at a time.
    """
    if host == "neo":
        return min(layer_parameters, CHUNK_ROWS * WIDEST_INPUT) * itemsize
    return 3 * itemsize * layer_parameters
