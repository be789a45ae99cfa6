"""What attention takes and gives back, in each of the ways in which the hosts compute it.

Each function returns the steps between query, key and value being there and the result being
there. The result is local block 0; a step is ``(local, bytes)``, with ``FREED`` for giving back.
The hosts' own code was followed line by line: Forge's ``backend/attention.py`` and
AUTOMATIC1111's ``modules/sd_hijack_optimizations.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

FREED = -1
RESULT = 0
PLENTY = 2**60
"""Free memory that makes no host slice anything."""

FLASH_HEAD_LIMIT = 256
"""Largest head size of the fused flash kernel, which keeps a log-sum-exp; above it another kernel keeps none."""

KEPT_SLICES = 3
"""Equal slices in a row leave the allocator as three of them do."""

QUERY_CHUNKS = (4096, 2048, 1024, 512, 256)
"""Forge's sizes of a query chunk in sub-quadratic attention, the largest that fits first."""

Step = tuple[int, int]


class Call(NamedTuple):
    """One use of attention: its numbers, and whether it runs over a picture (the VAE) or over tokens."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int
    itemsize: int
    picture: int

    @property
    def query_bytes(self) -> int:
        """Bytes of the query, and of the result."""
        return self.batch * self.heads * self.queries * self.head_size * self.itemsize

    @property
    def key_bytes(self) -> int:
        """Bytes of the key, and of the value."""
        return self.batch * self.heads * self.keys * self.head_size * self.itemsize

    def score_bytes(self, queries: int) -> int:
        """Bytes of the score matrix of ``queries`` of the queries."""
        return self.batch * self.heads * queries * self.keys * self.itemsize


def sdpa(call: Call, free_bytes: int) -> list[Step]:
    """Torch's fused attention; a picture is first copied into the layout it wants."""
    log_sum = []
    if call.head_size <= FLASH_HEAD_LIMIT:
        log_sum = [(9, call.batch * call.heads * call.queries * 4), (9, FREED)]
    if not call.picture:
        return [(RESULT, call.query_bytes), *log_sum]
    return _copied_picture(call, log_sum)


def xformers(call: Call, free_bytes: int) -> list[Step]:
    """xformers' fused attention, which keeps no log-sum-exp outside training."""
    return _copied_picture(call, []) if call.picture else [(RESULT, call.query_bytes)]


def _copied_picture(call: Call, extra: list[Step]) -> list[Step]:
    size = call.query_bytes
    return [(1, size), (2, size), (3, size), (RESULT, size), *extra, (1, FREED), (2, FREED), (3, FREED)]


def plain(call: Call, free_bytes: int) -> list[Step]:
    """Attention written out: the whole score matrix twice, scaled and then as probabilities."""
    if call.picture:
        return split_picture(call, PLENTY)
    scores = call.score_bytes(call.queries)
    return [
        (1, call.query_bytes), (2, call.key_bytes), (3, call.key_bytes),
        (4, scores), (5, scores), (4, FREED), (1, FREED), (2, FREED),
        (6, scores), (5, FREED), (7, call.query_bytes), (RESULT, call.query_bytes), (7, FREED),
        (3, FREED), (6, FREED),
    ]  # fmt: skip


def split_steps(call: Call, free_bytes: int, factor: float) -> int:
    """Return into how many slices the hosts' rule cuts the queries: a power of two, by free memory."""
    wanted = call.score_bytes(call.queries) * factor
    if wanted <= free_bytes:
        return 1
    return 2 ** math.ceil(math.log2(wanted / max(free_bytes, 1)))


def slice_of(call: Call, steps: int) -> int:
    """Return the queries in one slice. The cliff: all of them, when the slices would not be equal."""
    return call.queries // steps if call.queries % steps == 0 else call.queries


def split(call: Call, free_bytes: int) -> list[Step]:
    """Forge's split attention: slices of the queries, as many as free memory asks for, if they come out equal."""
    if call.picture:
        return split_picture(call, free_bytes)
    size = slice_of(call, split_steps(call, free_bytes, 3.0))
    scores, result = call.score_bytes(size), call.batch * call.heads * size * call.head_size * call.itemsize
    piece = [(5, scores), (6, scores), (5, FREED), (7, scores), (6, FREED), (8, result), (8, FREED), (7, FREED)]
    return [
        (1, call.query_bytes), (2, call.key_bytes), (3, call.key_bytes), (4, call.query_bytes),
        *piece * min(KEPT_SLICES, call.queries // size), (1, FREED), (2, FREED), (3, FREED),
        (RESULT, call.query_bytes), (4, FREED),
    ]  # fmt: skip


def split_picture(call: Call, free_bytes: int) -> list[Step]:
    """The same over a picture, into a result that is there from the start."""
    size = slice_of(call, split_steps(call, free_bytes, 3.0 if call.itemsize == 2 else 2.5))
    scores, result = call.score_bytes(size), call.batch * call.heads * size * call.head_size * call.itemsize
    piece = [(1, scores), (2, scores), (1, FREED), (3, scores), (2, FREED), (4, result), (4, FREED), (3, FREED)]
    return [(RESULT, call.query_bytes), *piece * min(KEPT_SLICES, call.queries // size)]


def sub_quad(call: Call, free_bytes: int) -> list[Step]:
    """Forge's sub-quadratic attention: chunks of the queries against all keys, put together at the end."""
    if call.picture:
        return split_picture(call, free_bytes)
    chunk = query_chunk(call, free_bytes)
    steps: list[Step] = [(1, call.query_bytes), (3, call.key_bytes), (2, call.key_bytes)]
    pieces = []
    for start in range(0, call.queries, chunk):
        size = min(chunk, call.queries - start)
        piece = 10 + len(pieces)
        pieces.append(piece)
        result = call.batch * call.heads * size * call.head_size * call.itemsize
        scores = call.score_bytes(size)
        steps += [(4, call.itemsize), (5, scores), (4, FREED), (6, scores), (5, FREED), (piece, result), (6, FREED)]
    if len(pieces) > 1:
        steps += [(7, call.query_bytes), *((piece, FREED) for piece in pieces)]
        pieces = [7]
    return [*steps, (RESULT, call.query_bytes), (pieces[0], FREED), (1, FREED), (2, FREED), (3, FREED)]


def query_chunk(call: Call, free_bytes: int) -> int:
    """Return how many queries one chunk has: the largest of Forge's sizes whose scores fit four times over."""
    row = call.batch * call.heads * call.itemsize * call.keys * 4
    return next((size for size in QUERY_CHUNKS if row * size <= free_bytes), 512)


KINDS: dict[str, Callable[[Call, int], list[Step]]] = {
    "sdpa": sdpa,
    "xformers": xformers,
    "math": plain,
    "split": split,
    "sub_quad": sub_quad,
}
SELF_SLICING = frozenset(("split", "sub_quad"))
"""The kinds that look at free memory."""
