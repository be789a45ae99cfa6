"""A VAE whose tiles go through it in step, layer by layer: what our own tiled decode and encode take on the device.

The feature maps lie in the system's memory, so that what is on the device is one window of one layer at work, and in
the middle block the keys and values of all the picture's positions. Here the walk of ``host/tiled_decode.py``
and ``host/tiled_encode.py`` is written down again without tensors: which block comes when and goes when. The tests
hold it to a trace of that code.

Of each layer's windows two are walked through, a corner's and the largest: the others are between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from lib_vram.physics.allocator import rounded
from lib_vram.physics.program import AT_ONCE, GIVE_BACK, EventTrace, Layout, Operation
from lib_vram.physics.raw import converted

STATISTICS_CHANNELS = 32
"""Channels that are turned to fp32 at once for their statistics (``host/tiled_layers.py``)."""
SCORES_PER_TILE_PIXEL = 64
"""Attention scores held at once per pixel of a tile, which decides how many queries go together (likewise)."""
NORM_VECTORS = 4
"""Mean, variance, weight and bias of a normalisation, in fp32, one number a channel."""
FP32_BYTES = 4
COLOURS = 3

Size = tuple[int, int]
"""Rows and columns."""


@dataclass(frozen=True)
class VaeShape:
    """The numbers that make one VAE of the ``ldm`` shape: channels by level, and its residual blocks in each."""

    widths: tuple[int, ...]
    blocks: int
    latents: int


SHAPES = {"sd15": VaeShape((128, 256, 512, 512), 2, 4), "flux1": VaeShape((128, 256, 512, 512), 2, 16)}
"""By the names under which VAEs are stored: SD 1 and 2 and SDXL have the first; SD 3 and Flux the second."""


@dataclass(frozen=True)
class Window:
    """A window of a map, and the part of the map that a 3x3 convolution sees for it."""

    size: Size
    outer: Size

    @property
    def is_cut(self) -> bool:
        """Whether what the convolution gives is more than the window."""
        return self.size != self.outer


@dataclass(frozen=True)
class Cut:
    """How maps are cut, as ``host/tiled_layers.py``'s ``Tiles`` does."""

    side: int
    picture_width: int

    def windows(self, size: Size, reach: int = 1) -> Iterator[Window]:
        """Yield a corner's window and the largest one of a map of ``size``, once where there is only one."""
        side = max(1, self.side * size[1] // self.picture_width)
        rows, columns = (_sides(length, side, reach) for length in size)
        for place in (0, 1) if len(rows) + len(columns) > 2 else (0,):
            (high, seen_high), (wide, seen_wide) = (
                rows[min(place, len(rows) - 1)],
                columns[min(place, len(columns) - 1)],
            )
            yield Window((high, wide), (seen_high, seen_wide))


def _sides(length: int, side: int, reach: int) -> list[tuple[int, int]]:
    """Return the first stretch of ``length`` and the longest one, each with what it sees; only one if there is one."""
    count = -(-length // side)
    edges = [length * place // count for place in range(count + 1)]
    cuts = [(end - start, min(length, end + reach) - max(0, start - reach)) for start, end in pairwise(edges)]
    longest = max(cuts, key=lambda cut: (cut[1], cut[0]))
    return [cuts[0], longest] if count > 1 else [cuts[0]]


@dataclass
class Card:
    """Writes down what is taken and given back. Sizes are channels × rows × columns of the VAE's own type."""

    item_bytes: int
    sizes: list[int] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    bare_loads: list[int] = field(default_factory=list)

    def take(self, channels: int, size: Size, item_bytes: int = 0) -> int:
        """Take a block and return its number."""
        number = self._size(channels * size[0] * size[1] * (item_bytes or self.item_bytes))
        self.operations.append((number, number))
        self.loads.append(number)
        self.bare_loads.append(number)
        return number

    def give(self, *numbers: int) -> None:
        """Give blocks back."""
        for number in numbers:
            self.operations.append((number, GIVE_BACK))
            self.loads.append(~number)
            self.bare_loads.append(~number)

    def convolve(
        self, inputs: int, seen: Size, outputs: int, made: Size, kernel: int = 9, *, copied: bool = False
    ) -> int:
        """Take a convolution's result, and its workspace for a moment; an input cut out of something is copied."""
        copy = [self.take(inputs, seen)] if copied else []
        result = self.take(outputs, made)
        elements = (inputs * seen[0] * seen[1], outputs * made[0] * made[1], inputs * outputs * kernel)
        given, computed, weights = (count * self.item_bytes for count in elements)
        number = self._size(sum(converted(given, computed, weights, self.item_bytes)))
        self.operations.append((AT_ONCE, number))
        self.loads += (number, ~number)
        self.give(*copy)
        return result

    def normalise(self, channels: int, size: Size) -> int:
        """Take a normalisation's result; its statistics and weights, a few KiB, are there for a moment."""
        self.touch(NORM_VECTORS * channels * FP32_BYTES)
        return self.take(channels, size)

    def count(self, channels: int, size: Size) -> None:
        """Take and give back what the statistics of a window need: some channels at a time, each time as much."""
        if self.item_bytes != FP32_BYTES:
            self.touch(min(STATISTICS_CHANNELS, channels) * size[0] * size[1] * FP32_BYTES)

    def touch(self, size_bytes: int) -> None:
        """Take a block and give it back at once."""
        number = self._size(size_bytes)
        self.operations.append((AT_ONCE, number))
        self.loads += (number, ~number)
        self.bare_loads += (number, ~number)

    def write(self, channels: int, window: Window, *, cut: bool) -> None:
        """Send a window to the system's memory, as a copy where it is part of a larger result, and count it."""
        if cut:
            self.give(self.take(channels, window.size))
        self.count(channels, window.size)

    def trace(self) -> EventTrace:
        """Return all that was written down."""
        layout = Layout(tuple(self.operations), (), tuple(self.loads), tuple(self.bare_loads))
        return EventTrace(layout, tuple(self.sizes))

    def _size(self, size_bytes: int) -> int:
        self.sizes.append(rounded(size_bytes))
        return len(self.sizes) - 1


@dataclass(frozen=True)
class Map:
    """A feature map in the system's memory."""

    channels: int
    size: Size

    def read(self, card: Card, outer: Size) -> int:
        """Bring a window onto the device and return its block."""
        return card.take(self.channels, outer)

    is_whole = True
    """Whether the map's windows lie on the device alone, and not as a part of something larger."""


@dataclass(frozen=True)
class Doubled:
    """A map that is never held: made of ``source`` by doubling and a convolution, each time when it is read."""

    source: Map

    @property
    def channels(self) -> int:
        """Those of what it is made of."""
        return self.source.channels

    @property
    def size(self) -> Size:
        """Twice that of what it is made of."""
        return self.source.size[0] * 2, self.source.size[1] * 2

    def read(self, card: Card, outer: Size) -> int:
        """Make a window on the device and return its block: the convolution sees whole pixels of the source for it."""
        needed = (min(self.size[0], outer[0] + 2), min(self.size[1], outer[1] + 2))
        low = (min(self.source.size[0], needed[0] // 2 + 1), min(self.source.size[1], needed[1] // 2 + 1))
        small = self.source.read(card, low)
        seen = (low[0] * 2, low[1] * 2)
        doubled = card.take(self.channels, seen)
        card.give(small)
        result = card.convolve(self.channels, seen, self.channels, seen)
        card.give(doubled)
        return result

    is_whole = False


Source = Map | Doubled


def in_step_trace(vae: str, part: str, size: Size, tile: int, item_bytes: int) -> EventTrace:
    """Return what the VAE ``vae`` (a key of :data:`SHAPES`) takes for a picture of ``size`` rows × columns of pixels.

    ``part`` is ``vae_decode`` or ``vae_encode``, ``tile`` the side of a tile in pixels, ``item_bytes`` 4 or 2.
    """
    return shape_trace(SHAPES[vae], part, size, tile, item_bytes)


def shape_trace(shape: VaeShape, part: str, size: Size, tile: int, item_bytes: int) -> EventTrace:
    """Return the same for a VAE of any shape."""
    walk = Walk(shape, Card(item_bytes), Cut(tile, size[1]))
    walk.decode(size) if part == "vae_decode" else walk.encode(size)
    return walk.card.trace()


@dataclass(frozen=True)
class Walk:
    """The walk through the layers."""

    shape: VaeShape
    card: Card
    cut: Cut

    def encode(self, size: Size) -> None:
        """Walk from a picture, which is on the device already, to mean and log variance of its latent."""
        widths, card = self.shape.widths, self.card
        for window in self.cut.windows(size):
            made = card.convolve(COLOURS, window.outer, widths[0], window.outer, copied=True)
            card.write(widths[0], window, cut=window.is_cut)
            card.give(made)
        now = Map(widths[0], size)
        for level, width in enumerate(widths):
            for _ in range(self.shape.blocks):
                now = self._residual(now, width)
            if level < len(widths) - 1:
                now = self._halved(now)
        self._last(self._middle(now), 2 * self.shape.latents)

    def decode(self, size: Size) -> None:
        """Walk from a latent, which is on the device already, to its picture."""
        widths, card = self.shape.widths, self.card
        factor = 2 ** (len(widths) - 1)
        small = (size[0] // factor, size[1] // factor)
        made = card.convolve(self.shape.latents, small, widths[-1], small)
        card.write(widths[-1], Window(small, small), cut=False)
        card.give(made)
        now: Source = self._middle(Map(widths[-1], small))
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(self.shape.blocks + 1):
                now = self._residual(now, width)
            if level and isinstance(now, Map):
                now = self._doubled(now)
        self._last(now, COLOURS)

    def _doubled(self, source: Map) -> Doubled:
        now = Doubled(source)
        for window in self.cut.windows(now.size):
            made = now.read(self.card, window.size)
            self.card.count(now.channels, window.size)
            self.card.give(made)
        return now

    def _halved(self, source: Map) -> Map:
        result = Map(source.channels, (source.size[0] // 2, source.size[1] // 2))
        for window in self.cut.windows(result.size, reach=0):
            seen = (2 * window.size[0] + 1, 2 * window.size[1] + 1)
            there = source.read(self.card, seen)
            made = self.card.convolve(source.channels, seen, source.channels, window.size)
            self.card.give(there)
            self.card.write(source.channels, window, cut=False)
            self.card.give(made)
        return result

    def _residual(self, source: Source, width: int) -> Map:
        result = Map(width, source.size)
        for window in self.cut.windows(source.size):
            if source.channels != width or not source.is_whole:
                self._shortcut(source, width, window)
            self._half(source, width, window)
        for window in self.cut.windows(source.size):
            self._half(result, width, window, added=True)
        return result

    def _shortcut(self, source: Source, width: int, window: Window) -> None:
        card = self.card
        straight = source.read(card, window.outer)
        if source.channels != width:
            made = card.convolve(source.channels, window.outer, width, window.outer, 1, copied=not source.is_whole)
            card.give(straight)
            straight = made
        card.write(width, window, cut=window.is_cut or not source.is_whole)
        card.give(straight)

    def _half(self, source: Source, width: int, window: Window, *, added: bool = False) -> None:
        """Walk through normalisation and convolution, and for ``added`` put the result on top of the other branch."""
        card = self.card
        there = source.read(card, window.outer)
        hidden = card.normalise(source.channels, window.outer)
        card.give(there)
        made = card.convolve(source.channels, window.outer, width, window.outer)
        card.give(hidden)
        other = [card.take(width, window.size)] if added else []
        card.write(width, window, cut=window.is_cut and not added)
        card.give(*other, made)

    def _last(self, source: Source, outputs: int) -> None:
        for window in self.cut.windows(source.size):
            there = source.read(self.card, window.outer)
            hidden = self.card.normalise(source.channels, window.outer)
            self.card.give(there)
            made = self.card.convolve(source.channels, window.outer, outputs, window.outer)
            self.card.give(hidden, made)
        self.card.give(self.card.take(outputs, source.size))

    def _middle(self, source: Map) -> Map:
        return self._residual(self._attend(self._residual(source, source.channels)), source.channels)

    def _attend(self, source: Map) -> Map:
        """Walk through attention: keys and values of all positions, then some rows of queries at a time."""
        card, channels, (height, width) = self.card, source.channels, source.size
        rows = min(height, max(1, self.cut.side**2 * SCORES_PER_TILE_PIXEL // (height * width * width)))
        band = (rows, width)
        kept: list[int] = []
        for _ in range(2):
            there = source.read(card, band)
            hidden = card.normalise(channels, band)
            card.give(there)
            parts = [card.convolve(channels, band, channels, band, 1) for _ in ("keys", "values")]
            kept = kept or [card.take(channels, source.size) for _ in parts]
            card.give(hidden, *parts)
        for _ in range(2):
            straight = source.read(card, band)
            hidden = card.normalise(channels, band)
            queries = card.convolve(channels, band, channels, band, 1)
            card.give(hidden)
            mixed = card.take(channels, band)
            made = card.convolve(channels, band, channels, band, 1, copied=True)
            card.write(channels, Window(band, band), cut=False)
            card.give(straight, queries, mixed, made)
        card.give(*kept)
        return source
