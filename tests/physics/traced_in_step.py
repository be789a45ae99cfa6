"""Traces the real tiled decode and encode: what they take of the device, with ``meta`` tensors standing in for it.

Feature maps that the code keeps in the system's memory are empty tensors on the CPU that nothing is written to.
"""

from __future__ import annotations

import importlib.util
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from lib_vram.physics.allocator import rounded
from lib_vram.physics.raw import converted

_spec = importlib.util.spec_from_file_location("ldm_decoder", Path(__file__).parents[1] / "host" / "ldm_decoder.py")
ldm_decoder = importlib.util.module_from_spec(_spec)  # type: ignore[arg-type]
_spec.loader.exec_module(ldm_decoder)  # type: ignore[union-attr]


class _Device(TorchDispatchMode):
    """Counts the live bytes on ``meta``, and a convolution's workspace and contiguous input on top of them."""

    def __init__(self, resident: list[torch.Tensor]) -> None:
        super().__init__()
        self._alive = {tensor.untyped_storage()._cdata: 0 for tensor in resident}
        self._live_bytes = self.bare_bytes = self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.copy_.default and args[0].device.type == "cpu" and args[1].device.type == "meta":
            return args[0]
        if func is torch.ops.aten._to_copy.default and args[0].device.type == "meta" and _is_to_cpu(kwargs):
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        result = func(*args, **kwargs)
        for item in tree_iter(result):
            if isinstance(item, torch.Tensor) and item.device.type == "meta":
                self._see(item)
        copied = 0
        if func is torch.ops.aten.convolution.default:
            copied = 0 if args[0].is_contiguous() else rounded(_bytes(args[0]))
            operands = (_bytes(item) for item in (args[0], result, args[1]))
            scratch = rounded(sum(converted(*operands, args[0].element_size())))
            self.peak_bytes = max(self.peak_bytes, self._live_bytes + copied + scratch)
        self.bare_bytes = max(self.bare_bytes, self._live_bytes + copied)
        self.peak_bytes = max(self.peak_bytes, self.bare_bytes)
        return result

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._alive:
            self._alive[storage._cdata] = rounded(storage.nbytes())
            self._live_bytes += self._alive[storage._cdata]
            weakref.finalize(storage, self._gone, storage._cdata)

    def _gone(self, key: int) -> None:
        self._live_bytes -= self._alive.pop(key, 0)


class _Fused(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            batch, heads, tokens, size = args[0].shape
            return torch.empty(batch, tokens, heads, size, dtype=args[0].dtype, device="meta").transpose(1, 2)
        return func(*args, **(kwargs or {}))


def _is_to_cpu(kwargs: dict[str, Any]) -> bool:
    return kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu"


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def peaks(
    make: Callable[..., torch.nn.Module], run: Callable[..., torch.Tensor], given: tuple[int, ...], tile: int,
    dtype: torch.dtype, **shape: Any,
) -> tuple[int, int]:  # fmt: skip
    """Return the peak of live bytes with and without workspaces, of ``run`` on a tensor of shape ``given``."""
    with torch.device("meta"):
        module = make(**shape).to(dtype).requires_grad_(False)
        tensor = torch.empty(given, dtype=dtype)
    device = _Device([tensor, *module.parameters()])
    with torch.no_grad(), _Fused(), device:
        run(module, tensor, tile)
    return device.peak_bytes, device.bare_bytes
