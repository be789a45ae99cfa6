"""From stored tensors to weights: how many numbers a quantised file really holds, and in which type.

A quantised file keeps one weight as several tensors: packed numbers, and the scales that make them weights again.
The numbers are counted from the packed ones, the bytes of the scales belong to the part, and what is no number at
all (indexes, markers, a tokenizer) counts as bytes alone. Layouts known here:

- bitsandbytes NF4 and FP4: two weights a byte, shape lost; ``.absmax``, ``.quant_map``, ``.quant_state.…`` beside it;
  its int8: ``.SCB``.
- fp8 and int8 with scales: ``.scale_weight``, ``.weight_scale``, ``.input_scale``, ``.comfy_quant``.
- Quanto's 8 bits: ``x.weight._data`` and ``x.weight._scale``.
- NVFP4: two weights a byte, with ``.weight_scale`` and ``.weight_scale_2``.
- SVDQuant (Nunchaku): ``.qweight`` with two weights a byte or eight a word, ``.wscales``, low-rank ``.proj_up``; GPTQ.
- GGUF: the blocks hold their scales, so the header's own shape counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lib_vram.model.tensor import Tensor

_DTYPES: Mapping[str, str] = {
    "F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16", "F8_E4M3": "fp8", "F8_E5M2": "fp8", "F8_E8M0": "fp8",
    "F6_E2M3": "fp6", "F6_E3M2": "fp6", "F4": "fp4", "I8": "int8", "U8": "uint8", "BOOL": "bool", "I16": "int16",
    "U16": "uint16", "I32": "int32", "U32": "uint32", "I64": "int64", "U64": "uint64", "C64": "complex64",
}  # fmt: skip
_NO_WEIGHTS = frozenset(("BOOL", "I16", "U16", "I32", "U32", "I64", "U64"))
"""Types that models use for positions and counters."""
_BESIDE_WEIGHT = (
    ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", ".quant_state.bitsandbytes__nf4",
    ".quant_state.bitsandbytes__fp4", "._scale", "._shift",
)  # fmt: skip
"""What stands beside ``x.weight`` as ``x.weight.absmax``."""
_BESIDE_LAYER = (
    ".SCB", ".weight_format", ".scale_weight", ".scale_input", ".weight_scale", ".weight_scale_2", ".input_scale",
    ".weight_scale_inv", ".comfy_quant", ".output_scale",
)  # fmt: skip
"""What stands beside ``x.weight`` as ``x.SCB``."""
_BESIDE_QWEIGHT = (
    ".wscales", ".wzeros", ".wtscale", ".wcscales", ".smooth", ".smooth_factor", ".smooth_orig", ".smooth_factor_orig",
    ".proj_down", ".proj_up", ".lora_down", ".lora_up", ".qzeros", ".scales", ".g_idx",
)  # fmt: skip
"""What stands beside ``x.qweight``."""
_MARKERS = ("scaled_fp8", "spiece_model", "tekken_model", "tokenizer_json")


class Weight(NamedTuple):
    """One tensor as a model sees it. ``shape`` is empty where packing has lost it; scales have no parameters."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parameters: int
    size_bytes: int


def weights_in(tensors: Iterable[Tensor]) -> tuple[Weight, ...]:
    """Return ``tensors`` as weights, in their order."""
    by_name = {tensor.name: tensor for tensor in tensors}
    return tuple(_weight(tensor, by_name) for tensor in by_name.values())


def _weight(tensor: Tensor, beside: Mapping[str, Tensor]) -> Weight:
    dtype = _DTYPES.get(tensor.dtype, tensor.dtype.lower())
    name = tensor.name.removesuffix("._data")
    if name != tensor.name and f"{name}._scale" in beside:
        return Weight(name, dtype, tensor.shape, tensor.elements, tensor.size_bytes)
    if _is_beside(tensor.name, beside):
        return Weight(tensor.name, dtype, tensor.shape, 0, tensor.size_bytes)
    if tensor.name.endswith(".qweight") and tensor.dtype in ("I8", "U8", "I32", "U32"):
        return _qweight(tensor, beside)
    packed = _packed(tensor, beside) if tensor.dtype in ("U8", "I8") else None
    if packed is not None:
        shape = () if packed in ("nf4", "fp4") else (*tensor.shape[:-1], 2 * tensor.shape[-1]) if tensor.shape else ()
        return Weight(tensor.name, packed, shape, 2 * tensor.elements, tensor.size_bytes)
    parameters = 0 if tensor.dtype in _NO_WEIGHTS else tensor.elements
    return Weight(tensor.name, dtype, tensor.shape, parameters, tensor.size_bytes)


def _packed(tensor: Tensor, beside: Mapping[str, Tensor]) -> str | None:
    """Return the 4-bit type of which ``tensor`` holds two numbers a byte; ``None`` when it does not."""
    if tensor.dtype != "U8":
        return None
    for kind in ("nf4", "fp4"):
        if f"{tensor.name}.quant_state.bitsandbytes__{kind}" in beside:
            return kind
    if f"{tensor.name}.absmax" in beside:
        return "nf4"
    return "nvfp4" if f"{tensor.name.removesuffix('weight')}weight_scale_2" in beside else None


def _qweight(tensor: Tensor, beside: Mapping[str, Tensor]) -> Weight:
    scales = beside.get(tensor.name.removesuffix("qweight") + "wscales")
    kind = "fp4" if scales is not None and scales.dtype.startswith("F8") else "int4"
    per_element = 2 if tensor.dtype in ("I8", "U8") else 8
    return Weight(tensor.name, kind, (), per_element * tensor.elements, tensor.size_bytes)


def _is_beside(name: str, names: Mapping[str, Tensor]) -> bool:
    """Return whether ``name`` is a scale or a marker of another tensor."""
    if name.endswith(_MARKERS):
        return True
    if name.endswith(_BESIDE_WEIGHT):
        return name.removesuffix(next(end for end in _BESIDE_WEIGHT if name.endswith(end))) in names or "._" in name
    if name.endswith(_BESIDE_LAYER):
        weight = _layer(name, _BESIDE_LAYER) + ".weight"
        return weight in names or f"{weight}._data" in names
    return name.endswith(_BESIDE_QWEIGHT) and _layer(name, _BESIDE_QWEIGHT) + ".qweight" in names


def _layer(name: str, endings: tuple[str, ...]) -> str:
    return name.removesuffix(next(end for end in endings if name.endswith(end)))
