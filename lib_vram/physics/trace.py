"""The tracer: runs real modules on ``meta`` tensors and writes down every block they take and give back.

The only file of the core that imports torch. Nothing is computed and no memory is used: a
``meta`` tensor has a shape, a dtype and a storage, and its storage is dropped by Python at the
very moment at which the GPU's block would be. A dispatch mode sees every operation's outputs;
a function mode catches fused attention, which on ``meta`` would take the unfused path.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from lib_vram.physics.attention import FLASH_HEAD_LIMIT, HALF_ITEMSIZE, MASKED, TOKENS
from lib_vram.physics.raw import RawTrace, converted

MASK_ALIGNMENT = 16
"""Elements to which the memory-efficient kernel's bias is padded (``pad_bias<16>``)."""


class _Blocks:
    """Numbers the storages that are alive and records when each comes and goes."""

    def __init__(self, trace: RawTrace) -> None:
        self._trace = trace
        self._alive: dict[int, int | None] = {}

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Mark what was there before the trace: weights and inputs are not counted."""
        for tensor in tensors:
            self._watch(tensor.untyped_storage(), None)

    def see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._alive:
            size_bytes = storage.nbytes()
            self._watch(storage, self._trace.alloc(size_bytes) if size_bytes else None)

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number of the block that ``tensor`` lies in."""
        return self._alive[tensor.untyped_storage()._cdata] or 0

    def _watch(self, storage: torch.UntypedStorage, block: int | None) -> None:
        self._alive[storage._cdata] = block
        weakref.finalize(storage, self._gone, storage._cdata)

    def _gone(self, key: int) -> None:
        block = self._alive.pop(key, None)
        if block is not None:
            self._trace.free(block)


_running: list[tuple[RawTrace, _Blocks]] = []


class _Dispatch(TorchDispatchMode):
    def __init__(self, blocks: _Blocks, trace: RawTrace) -> None:
        super().__init__()
        self._blocks = blocks
        self._trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_composite(func):  # under inference_mode these come whole, and what they take inside would go unseen
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default:
            return self._convolve(func, args, kwargs or {})
        copy = _contiguous_copy(func, args)
        if copy is not None:
            self._blocks.see(copy)
        result = _as_on_a_gpu(func, args, func(*args, **(kwargs or {})))
        for item in tree_iter(result):
            if isinstance(item, torch.Tensor) and item.device.type == "meta":
                self._blocks.see(item)
        return result

    def _convolve(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """Convolve in the layout that cuDNN takes (``cudnn_conv_suggest_memory_format``), input and weights made so.

        Channels last is what tensor cores compute in: half precision has no workspace then.
        """
        layout = _layout(args[0], args[1])
        copies = [item.contiguous(memory_format=layout) for item in args[:2]]
        result = func(*args, **kwargs)
        if layout is not torch.contiguous_format:
            result = torch.empty(result.shape, dtype=result.dtype, device="meta", memory_format=layout)
        for item in (*copies, result):
            self._blocks.see(item)
        if layout is torch.contiguous_format or result.element_size() > HALF_ITEMSIZE:
            operands = (_bytes(args[0]), _bytes(result), _bytes(args[1]))
            self._trace.workspace(*converted(*operands, result.element_size()))
        return result


def _layout(source: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Return the layout in which a convolution is computed: channels last as soon as one operand is."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(weight.dim())
    found = any(suggest_memory_format(item) is last for item in (source, weight)) if last else False
    return last if last and found else torch.contiguous_format


def _as_on_a_gpu(func: Any, args: Any, result: Any) -> Any:
    """Return ``result`` with the strides that a device gives it where those on ``meta`` are others.

    Multiplied or divided by a number, a tensor keeps its strides; on ``meta`` a batch of one gets those of a batch,
    which decide whether torch takes it for channels last.
    """
    if func not in _BY_A_NUMBER or not isinstance(args[0], torch.Tensor) or isinstance(args[1], torch.Tensor):
        return result
    if result.stride() == args[0].stride() or result.dtype != args[0].dtype or result._is_view():
        return result
    return torch.empty_strided(args[0].shape, args[0].stride(), dtype=result.dtype, device="meta")


_BY_A_NUMBER = frozenset(
    (torch.ops.aten.div.Tensor, torch.ops.aten.mul.Tensor, torch.ops.aten.div.Scalar, torch.ops.aten.mul.Scalar)
)


def _contiguous_copy(func: Any, args: Any) -> torch.Tensor | None:
    """Return what layer normalisation copies first: its kernel takes contiguous tensors alone (``expect_contiguous``).

    On ``meta`` it does not.
    """
    if func is not torch.ops.aten.native_layer_norm.default or args[0].is_contiguous():
        return None
    return torch.empty(args[0].shape, dtype=args[0].dtype, device="meta")


@lru_cache(maxsize=1024)
def _is_composite(func: Any) -> bool:
    """Whether torch itself makes ``func`` of others. Not by its Python decompositions: no GPU runs those."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


class _FusedAttention(TorchFunctionMode):
    """Takes the place of torch's attention. ``leave_open`` notes it as such, where it can be, instead."""

    def __init__(self, *, leave_open: bool) -> None:
        super().__init__()
        self._leave_open = leave_open

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _attend(self._leave_open, func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attend(
    leave_open: bool, func: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, *rest: Any, **options: Any
) -> Any:
    """Return attention's output with the footprint of the kernel that a GPU would choose, or with that left open."""
    if query.dim() != 4:
        return func(query, key, value, attn_mask, *rest, **options)
    batch, heads, tokens, size = query.shape
    mask = None if attn_mask is None else _as_bias(attn_mask, query.dtype)
    is_open = leave_open and _note(query, key, value, masked=mask is not None)
    output = torch.empty(batch, tokens, heads, value.shape[-1], dtype=query.dtype, device=query.device)
    if not is_open and mask is None and size <= FLASH_HEAD_LIMIT and query.element_size() <= HALF_ITEMSIZE:
        torch.empty(batch, heads, tokens, dtype=torch.float32, device=query.device)
    return output.transpose(1, 2)


def _note(query: Any, key: Any, value: Any, *, masked: bool) -> bool:
    """Note that the next block is attention's result; return whether it could be: all operands come and go in time."""
    recorded, blocks = _running[-1]
    operands = tuple(blocks.number(item) for item in (query, key, value))
    if not all(operands) or value.shape[-1] != query.shape[-1]:
        return False
    batch, heads, queries, size = query.shape
    kind = MASKED if masked else TOKENS
    recorded.attention((batch, heads, queries, key.shape[2], size, query.element_size(), kind, *operands))
    return True


def _as_bias(mask: Any, dtype: torch.dtype) -> Any:
    """Return a mask as the memory-efficient kernel takes it: as numbers, its rows padded to whole vectors.

    Follows ``convert_boolean_attn_mask`` and ``pad_bias`` of aten's ``transformers/attention.cpp``.
    """
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))
    short = -mask.shape[-1] % MASK_ALIGNMENT
    return torch.nn.functional.pad(mask, (0, short)) if short else mask


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def mark_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int, *, picture: bool = False
) -> torch.Tensor:
    """Return attention's result, noted as such, so that a profile can be replayed with any way of attention.

    The three are [batch, tokens, heads × size], or [batch, channels, rows, columns] for a picture.
    """
    width, queries, keys = query.shape[-1], query.shape[1], key.shape[1]
    if picture:
        width, queries, keys = query.shape[1], query[0, 0].numel(), key[0, 0].numel()
    recorded, blocks = _running[-1]
    call = (query.shape[0], heads, queries, keys, width // heads, query.element_size(), int(picture))
    recorded.attention(call + tuple(blocks.number(item) for item in (query, key, value)))
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)


def live_bytes() -> int:
    """Return what is allocated at this point of the running trace, as code that asks the device would see it."""
    return _running[-1][0].live_bytes


def trace(run: Callable[[], object], *, resident: Iterable[torch.Tensor] = (), leave_open: bool = False) -> RawTrace:
    """Return the blocks that ``run`` takes and gives back, in order; ``resident`` tensors are not counted.

    ``run`` must build its inputs itself, on the device ``meta``, or find them in ``resident``.
    What it returns is freed at the end of the trace. ``leave_open`` notes each use of torch's fused attention
    instead of its footprint, so that a profile can be replayed with any way of attention.
    """
    recorded = RawTrace()
    blocks = _Blocks(recorded)
    blocks.ignore(resident)
    _running.append((recorded, blocks))
    try:
        with torch.no_grad(), _FusedAttention(leave_open=leave_open), _Dispatch(blocks, recorded):
            result = run()
            del result
    finally:
        _running.pop()
    return recorded
