"""A raw trace: what the tracer writes down, block by block, before it is made into a profile."""

from __future__ import annotations

from dataclasses import dataclass, field

from lib_vram.physics.allocator import rounded

Event = tuple[str, tuple[int, ...]]

FP32_BYTES = 4


def converted(input_bytes: int, output_bytes: int, weight_bytes: int, item_bytes: int) -> tuple[int, int, int]:
    """Return what of a convolution's operands cuDNN converts in its workspace, in bytes.

    Half precision in contiguous layout: all three, to channels last and back. fp32, which tensor cores compute as TF32:
    input and weights. So SDXL's pipeline peaks at 10.47 GiB for one picture of 1024 × 1024 on an RTX 3090, an RTX 4090
    and an A800 (OneDiff's tables), and at 21.72 for four on an A100 (Hugging Face's blog on SDXL): both come out.
    """
    return input_bytes, 0 if item_bytes >= FP32_BYTES else output_bytes, weight_bytes


@dataclass
class RawTrace:
    """Events in order; sizes in bytes as they were asked for.

    ``("alloc", (block, bytes))``, ``("free", (block,))``,
    ``("workspace", (input, output, weight))``: the scratch block of one convolution, taken and
    given back at once; ``("attention", (batch, heads, queries, keys, head_size, itemsize, picture,
    query_block, key_block, value_block))``: attention whose result is the next block, and
    whose way of working is left open.
    """

    events: list[Event] = field(default_factory=list)
    blocks: int = 0
    live_bytes: int = 0
    peak_bytes: int = 0
    _sizes: dict[int, int] = field(default_factory=dict)

    def alloc(self, size_bytes: int) -> int:
        """Record a new block and return its number."""
        self.blocks += 1
        self.events.append(("alloc", (self.blocks, size_bytes)))
        self._sizes[self.blocks] = rounded(size_bytes)
        self.live_bytes += self._sizes[self.blocks]
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return self.blocks

    def free(self, block: int) -> None:
        """Record that ``block`` is given back."""
        self.events.append(("free", (block,)))
        self.live_bytes -= self._sizes.pop(block)

    def workspace(self, input_bytes: int, output_bytes: int, weight_bytes: int) -> None:
        """Record a convolution's scratch block."""
        self.events.append(("workspace", (input_bytes, output_bytes, weight_bytes)))
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + rounded(input_bytes + output_bytes + weight_bytes))

    def attention(self, call: tuple[int, ...]) -> None:
        """Record that the next block is the result of attention."""
        self.events.append(("attention", call))
