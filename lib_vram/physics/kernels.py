"""Which kernel ``scaled_dot_product_attention`` runs, on which GPU, and what changes attention's token count.

The choice follows ``aten/native/transformers/cuda/sdp_utils.cpp`` (PyTorch 2.0 to 2.13). The GPU's
generation is told by its name, since a request knows no more of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from lib_vram.physics.attention import FREED, RESULT, Call, Step

Kernel = Literal["flash", "efficient", "cudnn", "math"]
Capability = tuple[int, int]
Platform = Literal["cuda", "rocm", "mps", "other"]

HOPPER: Capability = (9, 0)
AMPERE: Capability = (8, 0)
"""What is assumed of a GPU that is not known: most that run these WebUIs are Ampere or later."""
FLASH_FROM: Capability = (8, 0)
EFFICIENT_FROM: Capability = (5, 0)
BFLOAT_FROM: Capability = (8, 0)
TENSOR_CORES_FROM: Capability = (7, 0)
LARGEST_FLASH_HEAD = 256
LARGEST_CUDNN_HEAD = 128
CUDNN_PREFERRED: tuple[Capability, ...] = ((9, 0), (10, 0))
"""Where torch prefers cuDNN's kernel (2.5 on, with cuDNN 9): Hopper and data-centre Blackwell."""

CUBLAS_WORKSPACE_BYTES = 8_519_680
"""cuBLAS's workspace, which torch takes once a matmul has run: ``:4096:2:16:8``, 2 × 4096 KiB + 8 × 16 KiB."""
CUBLAS_HOPPER_WORKSPACE_BYTES = 33_554_432
"""On Hopper: 32 MiB (``aten/cuda/CublasHandlePool.cpp``)."""

_BY_NAME: tuple[tuple[str, Capability], ...] = (
    (r"\b(RTX 50\d\d|RTX PRO|GB20\d)", (12, 0)),
    (r"\b(B100|B200|GB200)", (10, 0)),
    (r"\b(H100|H200|H800|H20|GH200)\b", (9, 0)),
    (r"\b(RTX 40\d\d|L4|L40S?|L20)\b|\bAda\b", (8, 9)),
    (r"\b(RTX 30\d\d|RTX A\d{3,4}|A10G?|A16|A2|A40|MX570|RTX 2050)\b", (8, 6)),
    (r"\b(A100|A30|A800)\b", (8, 0)),
    (r"\b(RTX 20\d\d|GTX 16\d\d|T4G?|T1000|T1200|T[456]00|MX450|MX550|TITAN RTX|Quadro RTX)\b", (7, 5)),
    (r"\b(V100|TITAN V|GV100)\b", (7, 0)),
    (r"\b(P100|GP100)\b", (6, 0)),
    (r"\b(GTX 10\d\d|GT 10[13]0|P4|P40|P6|TITAN Xp?|MX[123][1-5]0|Quadro P\d+)\b", (6, 1)),
    (r"\b(GTX 9\d\d|GTX TITAN X|M40|M60|M4|Quadro M\d+)\b", (5, 2)),
    (r"\b(GTX 7[45]0|9[34]0M)", (5, 0)),
    (r"\b(K80|K40|GTX [67]\d\d)", (3, 7)),
)
"""GPUs by what their names say; NVIDIA's list of CUDA GPUs and their compute capability."""

_ROCM = re.compile(r"\b(AMD|Radeon|Instinct|gfx\d+)\b", re.IGNORECASE)
_MPS = re.compile(r"\bApple\b|\bM[1-9]( Pro| Max| Ultra)?$|\bmps\b", re.IGNORECASE)
_OTHER = re.compile(r"\b(Intel|Arc|DirectML|privateuseone)\b", re.IGNORECASE)
_WITH_AOTRITON = re.compile(
    r"\b(MI[23]\d\d|gfx9[045]\w+|gfx1[12]\w+|RX 7[789]\d\d|RX 90\d\d|W7[789]\d\d)", re.IGNORECASE
)


@lru_cache(maxsize=64)
def capability_of(name: str) -> Capability | None:
    """Return the compute capability of the NVIDIA GPU called ``name``, ``None`` when the name tells nothing."""
    return next((capability for pattern, capability in _BY_NAME if re.search(pattern, name)), None)


@lru_cache(maxsize=64)
def platform_of(name: str) -> Platform:
    """Return what computes on the device called ``name``; a name that tells nothing is taken for CUDA."""
    for pattern, platform in ((_ROCM, "rocm"), (_MPS, "mps"), (_OTHER, "other")):
        if pattern.search(name):
            return platform  # type: ignore[return-value]
    return "cuda"


def cublas_workspace_bytes(name: str) -> int:
    """Return the workspace that stays once cuBLAS has run on the device called ``name``."""
    return CUBLAS_HOPPER_WORKSPACE_BYTES if capability_of(name) == HOPPER else CUBLAS_WORKSPACE_BYTES


def has_fused_attention(name: str) -> bool:
    """Return whether torch has a kernel for the device called ``name`` that keeps no score matrix.

    On AMD those are AOTriton's, for MI200 on and RDNA 3 on; Apple's and DirectML's write the whole matrix.
    """
    platform = platform_of(name)
    if platform == "rocm":
        return bool(_WITH_AOTRITON.search(name))
    return platform == "cuda" and (capability_of(name) or AMPERE) >= EFFICIENT_FROM


def sdpa_kernel(
    dtype: str, head_size: int, dims: int = 4, has_mask: bool = False, capability: Capability | None = None
) -> Kernel:
    """Return the kernel that torch's attention runs for tensors of ``dims`` dimensions on an NVIDIA GPU.

    ``capability`` is the GPU's compute capability, ``None`` for Ampere or later.
    """
    gpu = AMPERE if capability is None else capability
    half = dtype != "fp32"
    if dims != 4 or gpu < EFFICIENT_FROM or (dtype == "bf16" and gpu < BFLOAT_FROM):
        return "math"
    if half and gpu in CUDNN_PREFERRED and head_size <= LARGEST_CUDNN_HEAD and head_size % 8 == 0:
        return "cudnn"
    if half and not has_mask and gpu >= FLASH_FROM and head_size <= LARGEST_FLASH_HEAD:
        return "flash"
    return "efficient" if head_size % _alignment(dtype, gpu) == 0 else "math"


def _alignment(dtype: str, gpu: Capability) -> int:
    """Return what the memory-efficient kernel wants head sizes to be a multiple of (``minimum_gemm_alignment``)."""
    if gpu < TENSOR_CORES_FROM:
        return 1
    if dtype == "fp32":
        return 4 if gpu >= AMPERE else 1
    return 8


def sdpa_steps(call: Call, kernel: Kernel, mask_bytes: int = 0) -> list[Step]:
    """Return what attention takes and gives back with ``kernel``.

    ``mask_bytes`` is the mask as numbers; the memory-efficient kernel takes a copy of it when its rows
    are no multiple of 16.
    """
    size, scores = call.query_bytes(), call.score_bytes(call.queries)
    if kernel == "math":
        return [(1, size), (2, call.key_bytes), (3, scores), (2, FREED), (4, scores), (3, FREED),
                (RESULT, size), (1, FREED), (4, FREED)]  # fmt: skip
    copy = [(8, mask_bytes * _padded(call.keys) // call.keys)] if mask_bytes and call.keys % 16 else []
    log = [(9, call.batch * call.heads * call.queries * 4)] if kernel in ("flash", "cudnn") else []
    return [*copy, (RESULT, size), *log, *((name, FREED) for name, _ in (*log, *copy))]


def _padded(keys: int) -> int:
    return -(-keys // 16) * 16


def merged_tokens(tokens: int, ratio: float) -> int:
    """Return how many of a picture's ``tokens`` token merging leaves.

    ToMe keeps one of each 2 × 2 patch, so that no more than three quarters can go (``tomesd.merge``).
    The hosts merge where the tokens are most: at the first level of the latent, in self-attention.
    """
    return tokens - min(int(tokens * ratio), tokens - tokens // 4)


def with_merged_tokens(call: Call, ratio: float) -> Call:
    """Return self-attention ``call`` over the tokens that merging leaves."""
    left = merged_tokens(call.queries, ratio)
    return call._replace(queries=left, keys=left)


def hypertiles(side: int, tile: int, choices: int = 1) -> int:
    """Return into how many tiles HyperTile parts ``side``: the most that divide it and are ``tile`` long at least.

    Of ``choices`` such numbers (its *swap size*) it takes one at random at every step; the fewest count here, since
    they need the most.
    """
    least = min(max(tile, 1), side)
    counts = [side // length for length in range(least, side + 1) if side % length == 0]
    return counts[: max(1, choices)][-1]


def with_hypertile(call: Call, rows: int, columns: int, tile: int, choices: int = 1) -> Call:
    """Return self-attention ``call`` over ``rows`` × ``columns`` tokens, in tiles of ``tile`` tokens at least.

    The tiles go into the batch, so that nothing but the score matrices gets smaller.
    """
    tiles = hypertiles(rows, tile, choices) * hypertiles(columns, tile, choices)
    return call._replace(batch=call.batch * tiles, queries=call.queries // tiles, keys=call.keys // tiles)


LEAST_TILE = 128
"""Pixels: HyperTile's tiles are never smaller."""
LATENT_PIXELS = 8
LEVELS = 4
"""Halvings of the latent at which UNets have attention, the latent itself among them."""


@dataclass(frozen=True)
class Shortened:
    """Self-attention over fewer tokens: merged by ``merge_ratio``, or in HyperTile's tiles of ``tile_size`` pixels.

    ``tile_size`` 0 is without HyperTile, which reaches the levels up to ``depth``. What both change is the score
    matrix, so that attention that keeps none needs what it always does.
    """

    merge_ratio: float = 0.0
    tile_size: int = 0
    choices: int = 1
    depth: int = 3
    first_level: int = 0
    """The level of the latent that HyperTile calls depth 0: of SDXL, which has no attention at the first one, 1."""

    def call(self, call: Call, rows: int, columns: int) -> Call:
        """Return ``call`` of a part whose latent has ``rows`` × ``columns``; itself where it is no self-attention."""
        level = next((level for level in range(LEVELS) if call.queries == _area(rows, columns, level)), None)
        if level is None or call.queries != call.keys:
            return call
        depth = level - self.first_level
        if self.tile_size and 0 <= depth <= self.depth:
            tile = max(LEAST_TILE, self.tile_size) // LATENT_PIXELS * 2**depth
            return with_hypertile(call, _halved(rows, level), _halved(columns, level), tile, self.choices)
        return with_merged_tokens(call, self.merge_ratio) if level == 0 and self.merge_ratio else call


def _halved(side: int, level: int) -> int:
    return -(-side // 2**level)


def _area(rows: int, columns: int, level: int) -> int:
    return _halved(rows, level) * _halved(columns, level)
