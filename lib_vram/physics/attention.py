"""What attention takes and gives back, in each of the ways in which the hosts compute it.

A way's steps lead from query, key and value being there to the result being there. A step is
``(local, bytes)``, with ``FREED`` for giving back; local 0 is the result, and query, key and
value are -1, -2 and -3 for the code that drops them on the way. What is not given back by the
last step goes with the query, when the layer around attention ends. The hosts' own code was
followed line by line: Forge's ``backend/attention.py`` and AUTOMATIC1111's ``sd_hijack_optimizations.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

FREED = -1
RESULT = 0
QUERY, KEY, VALUE = -1, -2, -3
PLENTY = 2**60
"""Free memory that makes no host slice anything."""

FLASH_HEAD_LIMIT = 256
"""Largest head size of torch's flash kernel, which keeps a log-sum-exp; the kernel used above it keeps none."""

KEPT_SLICES = 3
"""Equal slices in a row leave the allocator as three of them do."""

KEPT_PIECES = 64
"""Results of chunks that are replayed one by one; what goes before them in a very large picture is one block."""

MOST_STEPS = 64
"""The hosts' split attention gives up above this many slices: "Not enough memory, use lower resolution"."""

QUERY_CHUNKS = (4096, 2048, 1024, 512, 256)
"""Forge's sizes of a query chunk in sub-quadratic attention, the largest that fits first."""

FORGE_LAST_CHUNK = 512
"""Forge's chunk when none of them fits."""

A1111_CHUNK = 1024
"""AUTOMATIC1111's query chunk, the default of ``--sub-quad-q-chunk-size``."""

HALF_ITEMSIZE = 2
"""The flash kernel takes half precision alone; in fp32 the memory-efficient one runs, which keeps no log-sum-exp."""

TOKENS, PICTURE, MASKED = range(3)
"""What attention looks at: tokens, a whole picture of the VAE, or tokens with a mask, which flash does not take."""

AUTOCAST_ITEMSIZE = 4
"""Autocast computes a softmax in fp32."""

Step = tuple[int, int]
"""Where heads are folded into the batch by ``reshape`` alone, a batch of one is a view and nothing is copied."""


class Call(NamedTuple):
    """One use of attention: its numbers, and what it looks at: ``TOKENS``, a ``PICTURE`` or ``MASKED`` tokens."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int
    itemsize: int
    picture: int

    def query_bytes(self, queries: int | None = None) -> int:
        """Bytes of the query, and of the result; of ``queries`` of its rows when given."""
        rows = self.queries if queries is None else queries
        return self.batch * self.heads * rows * self.head_size * self.itemsize

    @property
    def key_bytes(self) -> int:
        """Bytes of the key, and of the value."""
        return self.batch * self.heads * self.keys * self.head_size * self.itemsize

    def score_bytes(self, queries: int) -> int:
        """Bytes of the score matrix of ``queries`` of the queries."""
        return self.batch * self.heads * queries * self.keys * self.itemsize


def _drop(*locals_: int) -> list[Step]:
    return [(item, FREED) for item in locals_]


def _fused(call: Call, queries: int) -> list[Step]:
    if call.head_size > FLASH_HEAD_LIMIT or call.itemsize > HALF_ITEMSIZE or call.picture == MASKED:
        return [(RESULT, call.query_bytes())]
    return [(RESULT, call.query_bytes()), (9, call.batch * call.heads * call.queries * 4), *_drop(9)]


def _fused_without_log(call: Call, queries: int) -> list[Step]:
    return [(RESULT, call.query_bytes())]


def _fused_picture(call: Call, queries: int) -> list[Step]:
    size = call.query_bytes()
    return [(1, size), (2, size), (3, size), *_fused(call, queries), *_drop(1, 2, 3)]


def _a1111_xformers_picture(call: Call, queries: int) -> list[Step]:
    size = call.query_bytes()
    copies = [(1, size), *_drop(QUERY), (2, size), *_drop(KEY), (3, size), *_drop(VALUE)]
    return [*copies, (RESULT, size)]


def _a1111_sdpa_picture(call: Call, queries: int) -> list[Step]:
    """Three-dimensional tensors take torch's unfused path: query and key scaled, two score matrices."""
    size, scores = call.query_bytes(), call.score_bytes(call.queries)
    copies = [(1, size), *_drop(QUERY), (2, size), *_drop(KEY), (3, size), *_drop(VALUE)]
    return [*copies, (4, size), (5, size), (6, scores), *_drop(5), (7, scores), *_drop(6),
            (RESULT, size), *_drop(4, 7)]  # fmt: skip


def _forge_plain(call: Call, queries: int) -> list[Step]:
    """The whole score matrix twice: as it comes, and scaled; then as probabilities."""
    size, keys, scores = call.query_bytes(), call.key_bytes, call.score_bytes(call.queries)
    return [(1, size), (2, keys), (3, keys), (4, scores), (5, scores), *_drop(4, 1, 2), (6, scores), *_drop(5),
            (7, size), (RESULT, size), *_drop(7, 3, 6)]  # fmt: skip


def _torch_plain(call: Call, queries: int) -> list[Step]:
    """torch's unfused path: query and key scaled, the scores, and their softmax."""
    size, keys, scores = call.query_bytes(), call.key_bytes, call.score_bytes(call.queries)
    return [(1, size), (2, keys), (3, scores), *_drop(2), (4, scores), *_drop(3), (RESULT, size), *_drop(1, 4)]


def _head_slices(call: Call, queries: int) -> list[Step]:
    """diffusers' *attention slicing*: half the heads at a time, into a result that is there from the start."""
    heads = max(1, call.heads // 2)
    scores = call.score_bytes(call.queries) * heads // call.heads
    steps: list[Step] = [(RESULT, call.query_bytes())]
    for _ in range(-(-call.heads // heads)):
        steps += [(1, scores), (2, scores), *_drop(1), (3, call.query_bytes() * heads // call.heads), *_drop(2, 3)]
    return steps


def _a1111_plain(call: Call, queries: int) -> list[Step]:
    """The same, with the scores kept to the end and the probabilities in fp32 under autocast."""
    size, keys, scores = call.query_bytes(), call.key_bytes, call.score_bytes(call.queries)
    copies = [(1, size), (2, keys), (3, keys), *_drop(QUERY, KEY, VALUE)] if call.batch > 1 else []
    cast = [(7, scores)] if call.itemsize < AUTOCAST_ITEMSIZE else []
    return [*copies, (4, scores), (5, scores), *_drop(4), (6, _autocast(call, scores)), *cast, (8, size),
            *_drop(*(7 for _ in cast)), (RESULT, size), *_drop(8)]  # fmt: skip


def _autocast(call: Call, size_bytes: int) -> int:
    return size_bytes * AUTOCAST_ITEMSIZE // call.itemsize


def _slices(call: Call, queries: int) -> list[int]:
    """Return the queries of each slice that is replayed: equal ones are cut to a few, a smaller last one is kept."""
    whole, rest = divmod(call.queries, queries)
    return [queries] * min(KEPT_SLICES, whole) + [rest] * (rest > 0)


def _picture_slices(call: Call, queries: int) -> list[Step]:
    """Slices of a picture's score matrix, into a result that is there from the start."""
    steps: list[Step] = [(RESULT, call.query_bytes())]
    for size in _slices(call, queries):
        scores = call.score_bytes(size)
        steps += [(1, scores), (2, scores), *_drop(1), (3, scores), *_drop(2), (4, call.query_bytes(size)),
                  *_drop(4, 3)]  # fmt: skip
    return steps


def _a1111_plain_picture(call: Call, queries: int) -> list[Step]:
    scores = call.score_bytes(call.queries)
    return [(1, scores), (2, scores), *_drop(1), (3, scores), *_drop(2), (RESULT, call.query_bytes())]


def _forge_split(call: Call, queries: int) -> list[Step]:
    size, keys = call.query_bytes(), call.key_bytes
    steps: list[Step] = [(1, size), (2, keys), (3, keys), (4, size)]
    for part in _slices(call, queries):
        scores = call.score_bytes(part)
        steps += [(5, scores), (6, scores), *_drop(5), (7, scores), *_drop(6), (8, call.query_bytes(part)),
                  *_drop(8, 7)]  # fmt: skip
    return [*steps, *_drop(1, 2, 3), (RESULT, size), *_drop(4)]


def _a1111_split(call: Call, queries: int) -> list[Step]:
    size, keys = call.query_bytes(), call.key_bytes
    steps: list[Step] = [(1, keys), *_drop(KEY)]
    operands = [QUERY, 1, VALUE]
    if call.batch > 1:
        steps += [(2, size), (3, keys), (4, keys), *_drop(*operands)]
        operands = [2, 3, 4]
    steps.append((5, size))
    for part in _slices(call, queries):
        scores = call.score_bytes(part)
        steps += [(6, scores), (7, scores), *_drop(6), (8, call.query_bytes(part)), *_drop(8, 7)]
    return [*steps, *_drop(*operands), (RESULT, size), *_drop(5)]


def _forge_sub_quad(call: Call, queries: int) -> list[Step]:
    """Chunks of the queries against all keys, each kept until they are put together."""
    size, keys = call.query_bytes(), call.key_bytes
    copies = call.batch > 1
    steps: list[Step] = [(1, size), (3, keys), (2, keys)] if copies else []
    pieces: list[int] = []
    done = max(0, call.queries // queries - KEPT_PIECES) * queries
    if done:
        steps.append((8, call.query_bytes(done)))
        pieces.append(8)
    for start in range(done, call.queries, queries):
        part = min(queries, call.queries - start)
        pieces.append(10 + len(pieces))
        scores = call.score_bytes(part)
        steps += [(4, call.itemsize), (5, scores), *_drop(4), (6, scores), *_drop(5),
                  (pieces[-1], call.query_bytes(part)), *_drop(6)]  # fmt: skip
    if len(pieces) > 1:
        steps += [(7, size), *_drop(*pieces)]
        pieces = [7]
    return [*steps, (RESULT, size), *_drop(pieces[0], *((1, 2, 3) if copies else ()))]


def _a1111_sub_quad(call: Call, queries: int) -> list[Step]:
    """The same into a result that is there from the start; over tokens, autocast makes the probabilities fp32."""
    size, keys = call.query_bytes(), call.key_bytes
    steps: list[Step] = []
    if call.picture or call.batch > 1:
        steps += [(1, size), *_drop(QUERY), (2, keys), *_drop(KEY), (3, keys), *_drop(VALUE)]
    half = call.itemsize < AUTOCAST_ITEMSIZE and not call.picture
    many = call.queries > queries
    in_place = call.picture or (many and call.batch == 1)
    joined = RESULT if in_place else 4
    if many:
        steps.append((joined, size))
        for number, part in enumerate(_slices(call, queries)):
            steps += _a1111_chunk_steps(call, part, 20 + number, half=half)
            steps += _drop(19 + number) if number else []
        steps += _drop(20 + number)
    else:
        steps += _a1111_chunk_steps(call, queries, joined, half=half)
    return steps if in_place else [*steps, (RESULT, size), *_drop(joined)]


def _a1111_chunk_steps(call: Call, queries: int, piece: int, *, half: bool) -> list[Step]:
    queries = min(queries, call.queries)
    scores, keys = call.score_bytes(queries), call.key_bytes
    steps: list[Step] = [(5, call.itemsize), (6, scores), *_drop(5), (7, _autocast(call, scores) if half else scores)]
    steps += _drop(6)
    if half:
        steps += [(8, _autocast(call, keys)), (9, scores), (11, keys)]
    return [*steps, (piece, call.query_bytes(queries)), *_drop(*((9, 11, 8) if half else ()), 7)]


def split_steps(call: Call, free_bytes: int, factor: float) -> int:
    """Return into how many slices the hosts' rule cuts the queries: a power of two, by free memory."""
    wanted = call.score_bytes(call.queries) * factor
    if wanted <= free_bytes:
        return 1
    return 2 ** math.ceil(math.log2(wanted / max(free_bytes, 1)))


def _equal_slice(call: Call, free_bytes: int, factor: float) -> int:
    """Return the queries of one slice. The cliff: all of them, when the slices would not come out equal."""
    steps = split_steps(call, free_bytes, factor)
    if steps > MOST_STEPS or call.queries % steps:
        return call.queries
    return call.queries // steps


def _forge_slice(call: Call, free_bytes: int) -> int:
    return _equal_slice(call, free_bytes, 2.5 if call.picture and call.itemsize > 2 else 3.0)


def _a1111_slice(call: Call, free_bytes: int) -> int:
    """AUTOMATIC1111 1.10 takes a smaller last slice over tokens; over a picture the slices must be equal."""
    if call.picture:
        return _equal_slice(call, free_bytes, 2.5)
    steps = split_steps(call, free_bytes, 3.0 if call.itemsize == 2 else 2.5)
    return call.queries if steps > MOST_STEPS else max(1, call.queries // steps)


def _forge_chunk(call: Call, free_bytes: int) -> int:
    if call.picture:
        return _forge_slice(call, free_bytes)
    row = call.score_bytes(1) * 4
    return next((size for size in QUERY_CHUNKS if row * size <= free_bytes), FORGE_LAST_CHUNK)


def _a1111_chunk(call: Call, free_bytes: int) -> int:
    return A1111_CHUNK


SAGE_BLOCK = 128
SAGE_HEADS = {1: (64, 96, 128), 2: tuple(range(1, 129))}
"""Head sizes that SageAttention takes; for others Forge Neo falls back on torch's (``backend/attention.py``)."""


def sage_steps(call: Call, *, eight_bit_values: bool = False) -> list[Step]:
    """Return what SageAttention takes and gives back: query and key as int8 with a scale for each block.

    With ``eight_bit_values`` (its fp8 kernels, Ada and later) the value is laid out anew and made fp8 too.
    """
    itemsize, size, keys = call.itemsize, call.query_bytes(), call.key_bytes
    rows = call.batch * call.heads
    mean = rows * call.head_size * itemsize
    scales = [-(-tokens // SAGE_BLOCK) * rows * 4 * 4 for tokens in (call.queries, call.keys)]
    steps: list[Step] = [(1, mean), (2, size // itemsize), (3, scales[0]), (4, keys // itemsize), (5, scales[1])]
    names = [1, 2, 3, 4, 5]
    if eight_bit_values:
        steps += [(6, keys), (7, keys // itemsize), (6, FREED), (8, rows * call.head_size * 4)]
        names += [7, 8]
    return [*steps, (RESULT, size), *((name, FREED) for name in names)]


def _sage(call: Call, queries: int) -> list[Step]:
    """Where the head is too large for it, torch's attention takes its place."""
    return sage_steps(call, eight_bit_values=True) if call.head_size in SAGE_HEADS[2] else _fused(call, queries)


class Way(NamedTuple):
    """One way of computing attention: over tokens, over a picture, and how many queries go at a time.

    ``part`` looks at free memory; ``None`` takes all queries at once.
    """

    tokens: Callable[[Call, int], list[Step]]
    picture: Callable[[Call, int], list[Step]]
    part: Callable[[Call, int], int] | None = None

    def steps(self, call: Call, queries: int) -> list[Step]:
        """Return the steps of ``call`` with ``queries`` of its queries at a time."""
        return self.picture(call, queries) if call.picture == PICTURE else self.tokens(call, queries)


def _whole_picture(call: Call, queries: int) -> list[Step]:
    return _picture_slices(call, call.queries)


WAYS: dict[str, dict[str, Way]] = {
    "forge": {
        "sdpa": Way(_fused, _fused_picture),
        "xformers": Way(_fused_without_log, _fused_picture),
        "sage": Way(_sage, _fused_picture),
        "math": Way(_forge_plain, _whole_picture),
        "split": Way(_forge_split, _picture_slices, _forge_slice),
        "sub_quad": Way(_forge_sub_quad, _picture_slices, _forge_chunk),
    },
    "a1111": {
        "sdpa": Way(_fused, _a1111_sdpa_picture),
        "xformers": Way(_fused_without_log, _a1111_xformers_picture),
        "sage": Way(_sage, _a1111_sdpa_picture),
        "math": Way(_a1111_plain, _a1111_plain_picture),
        "split": Way(_a1111_split, _picture_slices, _a1111_slice),
        "sub_quad": Way(_a1111_sub_quad, _a1111_sub_quad, _a1111_chunk),
    },
}
WAYS["neo"] = WAYS["forge"]
"""Neo computes attention with Forge's functions."""
WAYS["diffusers"] = {
    "sdpa": Way(_fused, _fused),
    "xformers": Way(_fused_without_log, _fused_without_log),
    "math": Way(_torch_plain, _torch_plain),
    "split": Way(_head_slices, _head_slices),
}
"""diffusers has torch's attention, xformers, and *attention slicing*; sub-quadratic attention it has not."""

SELF_SLICING = frozenset(("split", "sub_quad"))
"""The ways that look at free memory."""
SCORED = frozenset(("math", "split", "sub_quad"))
"""The ways that keep scores."""
