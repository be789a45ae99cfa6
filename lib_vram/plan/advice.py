"""Restart advice: the flags that would help where only another start can, each with its computed effect.

=======================  ========  ==============================  ======================================
change                   costs     hosts                           what it does
=======================  ========  ==============================  ======================================
half precision           nothing   all                             a flag for fp32 weights is taken away
half precision VAE       nothing   all                             a flag for an fp32 VAE is taken away
attention                nothing   A1111, and where a flag has     no score matrices
                                   chosen another
models may leave         time      Forge and its relatives         a flag that keeps them is taken away
``--medvram``, …         time      A1111                           one part of the model at a time
``--lowvram``            time      A1111                           one block of the denoiser at a time
``--novram``, …          time      Neo, reForge                    all weights are swapped
fp8 weights              detail    reForge, Classic                half the denoiser; the others have a
                                                                   setting for it that needs no restart
allocator                nothing   all                             fewer gaps between blocks
quicker                  nothing   all                             a flag that moves weights is taken away
                                                                   where all fits without
=======================  ========  ==============================  ======================================

Only what :func:`~lib_vram.estimate.estimator.estimate` says helps is advised. Flags were read in the hosts' own
``modules/cmd_args.py``, ``backend/args.py`` and ``ldm_patched/modules/args_parser.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any, Literal

from lib_vram.errors import BadInput
from lib_vram.estimate.estimator import could_fit, estimate, measure
from lib_vram.estimate.flags import FULL_PRECISION, FULL_PRECISION_VAE, has_flag, offload_mode, set_conf, vae_dtype
from lib_vram.estimate.physics import COMPUTED, Physics
from lib_vram.estimate.result import Estimate, Verdict
from lib_vram.estimate.weights import ARCHITECTURES
from lib_vram.message import Message, render, say
from lib_vram.physics.alloc_conf import AllocatorConf
from lib_vram.plan import ram
from lib_vram.plan.launch_lines import NOT_ON_WINDOWS, Lines, changed_arguments, changed_conf, lines_for
from lib_vram.plan.result import COSTS, Cost
from lib_vram.plan.table import Correct, as_computed
from lib_vram.request import Attention, HostName, Request
from lib_vram.units import MIB

Kind = Literal["precision", "vae", "attention", "stays", "offload", "storage", "allocator", "quicker"]

RANKS: dict[Verdict, int] = {"fits": 0, "tight": 1, "wont_fit": 2, "unknown": 3}
WORTH_BYTES = 128 * MIB
WORTH_SHARE = 0.02
WORTH_OF_MISSING = 0.125
"""A change that leaves the verdict as it is and saves less than so much, than so much of the whole, or than so much of
what is missing, is not worth a restart."""

OFFLOAD_FLAGS = ("--medvram", "--medvram-sdxl", "--lowvram")
SWAP_FLAGS: dict[HostName, str] = {"neo": "--novram", "reforge": "--always-no-vram"}
"""Under these all weights are swapped. Forge and Classic have a switch on the page for it (*Never OOM: UNet*)."""
SLOW_FLAGS = ("--lowvram", *SWAP_FLAGS.values())
_KEEPS_ALL = ("--always-high-vram", "--always-gpu")
STAY_FLAGS: dict[HostName, tuple[str, ...]] = {
    "neo": ("--highvram", "--gpu-only"), "reforge": _KEEPS_ALL, "classic": _KEEPS_ALL, "forge": _KEEPS_ALL,
}  # fmt: skip
_MOVES = ("--always-no-vram", "--always-low-vram", "--always-offload-from-vram")
MOVE_FLAGS: dict[HostName, tuple[str, ...]] = {
    "a1111": OFFLOAD_FLAGS, "forge": _MOVES, "classic": _MOVES,
    "reforge": ("--always-no-vram", "--always-low-vram", "--disable-smart-memory"),
    "neo": ("--novram", "--lowvram", "--disable-smart-memory"),
}  # fmt: skip
"""Flags that save memory by moving weights, or by encoding text on the CPU."""
FP8_FLAGS: dict[HostName, str] = {"reforge": "--unet-in-fp8-e4m3fn", "classic": "--unet-in-fp8-e4m3fn"}
OTHER_TYPES = ("--unet-in-bf16", "--unet-in-fp16", "--fp32-unet", "--unet-in-fp8-e5m2")
SCORE_MATRICES = ("math", "split", "sub_quad")
"""Kinds of attention that keep the whole score matrix or pieces of it."""
ATTENTION_FLAGS: dict[HostName, tuple[str, ...]] = {
    "a1111": (
        "--opt-split-attention", "--opt-sub-quad-attention", "--opt-split-attention-invokeai",
        "--opt-split-attention-v1", "--disable-opt-split-attention",
    ),
    "forge": ("--attention-split", "--attention-quad"), "reforge": ("--attention-split", "--attention-quad"),
    "classic": ("--attention-split", "--attention-quad"),
}  # fmt: skip
ALLOCATOR_OPTIONS = ("expandable_segments:True", "max_split_size_mb:512", "max_split_size_mb:128")


@dataclass(frozen=True)
class Change:
    """One change of the start. ``request`` is what then runs; ``conf`` the allocator's whole setting, if it changes."""

    kind: Kind
    costs: Cost
    request: Request
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    conf: str | None = None
    in_the_way: tuple[str, ...] = ()
    """Flags that decide the same and would win (A1111 takes Doggettx before SDPA when both are asked for)."""

    @property
    def id(self) -> str:
        """What it is called in the catalogue: ``offload_medvram``."""
        names = {
            "precision": "half", "vae": "half_vae", "stays": "may_leave", "storage": "fp8", "allocator": "allocator",
            "quicker": "quicker",
        }  # fmt: skip
        if self.kind == "vae" and self.request.model.family == "sdxl":
            return "half_vae_sdxl"
        flag = self.add[0].lstrip("-").replace("-", "_") if self.add else "host"
        return names.get(self.kind) or f"{self.kind}_{flag}"


@dataclass(frozen=True)
class Advice:
    """One or two changes that help together, with what they change. ``ram`` warns of the computer's RAM."""

    changes: tuple[Change, ...]
    before: Estimate
    after: Estimate
    lines: Lines
    ram: Message | None = None

    @property
    def request(self) -> Request:
        """The request as it runs after all changes."""
        return self.changes[-1].request

    @property
    def costs(self) -> Cost:
        """The worst that any of the changes costs."""
        return max((change.costs for change in self.changes), key=COSTS.index)

    @property
    def slow(self) -> bool:
        """Whether a picture takes several times as long."""
        return any(flag in SLOW_FLAGS for change in self.changes for flag in change.add)

    @property
    def texts(self) -> tuple[Message, ...]:
        """What each change does, one sentence each."""
        return tuple(say(f"advice.change_{change.id}") for change in self.changes)

    @property
    def name(self) -> str:
        """The flags as they are written: ``--medvram-sdxl, without --no-half-vae`` in signs: ``+ --x, − --y``."""
        parts = []
        for change in self.changes:
            parts += [f"+ {flag}" for flag in change.add] + [f"− {flag}" for flag in change.remove]
            parts += [change.conf] if change.conf is not None else []
        return ", ".join(parts)

    def to_dict(self, language: str = "en") -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "add": [flag for change in self.changes for flag in change.add],
            "remove": [flag for change in self.changes for flag in change.remove],
            "alloc_conf": next((change.conf for change in self.changes if change.conf is not None), None),
            "costs": self.costs,
            "verdict_before": self.before.verdict,
            "verdict_after": self.after.verdict,
            "needs_bytes_before": needs_bytes(self.before),
            "needs_bytes_after": needs_bytes(self.after),
            "peak_bytes_before": self.before.peak_bytes,
            "peak_bytes_after": self.after.peak_bytes,
            "bat": list(self.lines.bat),
            "sh": list(self.lines.sh),
            "text": " ".join(render(text, language) for text in self.texts),
            "ram": render(self.ram, language) if self.ram else "",
        }


def needs_bytes(result: Estimate) -> int:
    """Return the smallest free memory with which ``result``'s binding phase runs."""
    return result.binding.needs_bytes if result.binding else 0


def advise(
    request: Request,
    arguments: Sequence[str] | None = None,
    physics: Physics = COMPUTED,
    *,
    windows: bool = False,
    variable: str = "PYTORCH_CUDA_ALLOC_CONF",
    correct: Correct = as_computed,
) -> tuple[Advice, ...]:
    """Return what would help ``request`` at another start, the most useful first.

    Where it fits as it is, that is at most one flag that it could do without to be quicker.

    ``arguments`` are all that the WebUI was started with, for the lines; ``request.host_args`` where ``None``.
    Nothing is advised for which this machine has not enough RAM, and what would make it swap is marked. When no
    single change makes the request run without being slow, pairs are tried. ``variable`` is the name of the
    allocator's setting. ``correct`` is what this machine's runs make of each estimate, also under another start.
    """
    before = correct(estimate(request, physics), request)
    if before.verdict == "unknown" or measure(request, physics)[1]:
        return ()
    given = request.host_args if arguments is None else tuple(arguments)
    start = _Start(request, before, given, variable, physics, correct)
    if before.verdict == "fits":
        return tuple(start.advice((change,)) for change in _unneeded(request) if start.still_fits(change))[:1]
    singles = [change for change in changes_for(request) if start.can_help(change, windows=windows)]
    helping = _without_weaker([start.advice((change,)) for change in singles if start.is_helped_by(change)])
    enough = [item for item in helping if item.after.verdict != "wont_fit"]
    if before.verdict == "wont_fit" and all(item.slow for item in enough):
        pairs = (start.advice(pair) for pair in _pairs(request, physics) if start.is_helped_by(pair[-1]))
        better = (item for item in pairs if item.after.verdict != "wont_fit" and not (item.slow and enough))
        helping += list(islice(better, 1))
    helping.sort(key=lambda item: (RANKS[item.after.verdict], COSTS.index(item.costs), item.slow))
    return tuple(item for item in helping if not (item.slow and _is_quicker(helping[0], item)))


def _is_quicker(best: Advice, item: Advice) -> bool:
    """Whether ``best`` makes the request run, as well as ``item`` does, and is not as slow."""
    return not best.slow and best.after.verdict != "wont_fit" and best.costs != "detail"


def changes_for(request: Request) -> tuple[Change, ...]:
    """Return every change that ``request.host`` has and that is not made yet, the least harmful first."""
    makers = (_half, _half_vae, _attention, _may_leave, _allocator, _offload, _swap, _fp8)
    return tuple(change for maker in makers for change in maker(request))


@dataclass(frozen=True)
class _Start:
    """How the WebUI was started, and what the request needs under it."""

    request: Request
    before: Estimate
    arguments: tuple[str, ...]
    variable: str
    physics: Physics
    correct: Correct = as_computed

    def estimated(self, request: Request) -> Estimate:
        """Return the estimate of ``request`` as this machine's runs correct it."""
        return self.correct(estimate(request, self.physics), request)

    def can_help(self, change: Change, *, windows: bool) -> bool:
        """Whether ``change`` is to be computed: no setting of the allocator makes room for more than there is."""
        if change.conf is None:
            return True
        fits_in_all = all(phase.peak_bytes <= self.before.available_bytes for phase in self.before.phases)
        return fits_in_all and not (windows and NOT_ON_WINDOWS in change.conf)

    def is_helped_by(self, change: Change) -> bool:
        """Whether ``change`` is worth a restart, and this machine has the RAM for it."""
        after = self.estimated(change.request)
        if ram.never_enough(change.request, self.physics):
            return False
        if RANKS[after.verdict] != RANKS[self.before.verdict]:
            return RANKS[after.verdict] < RANKS[self.before.verdict]
        saved_bytes = needs_bytes(self.before) - needs_bytes(after)
        least_bytes = (
            WORTH_BYTES,
            WORTH_SHARE * needs_bytes(self.before),
            WORTH_OF_MISSING * self.before.missing_bytes,
        )
        return saved_bytes >= max(least_bytes)

    def still_fits(self, change: Change) -> bool:
        """Whether ``change`` leaves all as well as it is."""
        return self.estimated(change.request).verdict == "fits"

    def advice(self, changes: tuple[Change, ...]) -> Advice:
        """Return ``changes`` with their effect and their lines."""
        request = changes[-1].request
        add = [flag for change in changes for flag in change.add]
        remove = [flag for change in changes for flag in (*change.remove, *change.in_the_way)]
        conf = next((change.conf for change in changes if change.conf is not None), None)
        lines = lines_for(
            changed_arguments(self.arguments, add, remove), conf, variable=self.variable, flags=bool(add or remove)
        )
        note, now = ram.ram_note(request, self.physics), ram.ram_note(self.request, self.physics)
        note = None if note and now and note.key == now.key else note
        return Advice(changes, self.before, self.estimated(request), lines, note)


def _without_weaker(found: list[Advice]) -> list[Advice]:
    """Return ``found`` with one size of split blocks: the largest, or one with which the verdict is better."""
    sizes = [item for item in found if "max_split_size_mb" in (item.changes[0].conf or "")]
    best = min(sizes, key=lambda item: RANKS[item.after.verdict], default=None)
    return [item for item in found if item not in sizes or item is best]


def _pairs(request: Request, physics: Physics) -> Iterator[tuple[Change, Change]]:
    """Yield two changes of different kinds, the second made on top of the first, least harmful first.

    Those that cannot be enough are left out by their floors, and the allocator, which never decides it alone.
    """
    candidates = [change for change in changes_for(request) if change.conf is None]
    for first, second in combinations(candidates, 2):
        if first.kind == second.kind:
            continue
        then = next((change for change in changes_for(first.request) if _is_same(change, second)), None)
        if then is not None and could_fit(then.request, physics):
            yield first, then


def _is_same(one: Change, other: Change) -> bool:
    return (one.kind, one.add, one.conf) == (other.kind, other.add, other.conf)


def _present(request: Request, flags: Sequence[str]) -> tuple[str, ...]:
    return tuple(flag for flag in flags if has_flag(request, flag))


def _restarted(request: Request, add: Sequence[str] = (), remove: Sequence[str] = ()) -> Request:
    return request.replace(host_args=changed_arguments(request.host_args, add, remove))


def _half(request: Request) -> Iterator[Change]:
    flags = _present(request, FULL_PRECISION.get(request.host, ()))
    if not flags:
        return
    if request.host == "a1111":
        flags = (*flags, *_present_with_value(request, "--precision", "full"))
    stays_full = bool(_present(request, [flag for flag in FULL_PRECISION_VAE[request.host] if flag not in flags]))
    vae = request.vae if stays_full else replace(request.vae, dtype="fp16")
    model = replace(request.model, weights_dtype="fp16") if request.model.weights_dtype == "fp32" else request.model
    yield Change("precision", "nothing", _restarted(request, (), flags).replace(model=model, vae=vae), (), flags)


def _present_with_value(request: Request, flag: str, value: str) -> tuple[str, ...]:
    return (flag,) if has_flag(request, flag, value) or has_flag(request, flag) else ()


def _half_vae(request: Request) -> Iterator[Change]:
    whole = FULL_PRECISION.get(request.host, ())
    flags = _present(request, [flag for flag in FULL_PRECISION_VAE.get(request.host, ()) if flag not in whole])
    if flags and not _present(request, whole) and vae_dtype(request) == "fp32":
        vae = replace(request.vae, dtype="fp16")
        yield Change("vae", "nothing", _restarted(request, (), flags).replace(vae=vae), (), flags)


def _attention(request: Request) -> Iterator[Change]:
    flags = _present(request, ATTENTION_FLAGS.get(request.host, ()))
    if request.host == "a1111":
        wanted: tuple[tuple[str, Attention], ...] = (("--opt-sdp-attention", "sdpa"), ("--xformers", "xformers"))
        if request.attention not in SCORE_MATRICES:
            wanted = wanted[1:] if request.attention == "sdpa" else ()
        for flag, attention in wanted:
            changed = _restarted(request, (flag,), flags).replace(attention=attention)
            yield Change("attention", "nothing", changed, (flag,), flags, in_the_way=ATTENTION_FLAGS["a1111"])
    elif flags and request.attention in SCORE_MATRICES:
        yield Change("attention", "nothing", _restarted(request, (), flags).replace(attention="sdpa"), (), flags)


def _may_leave(request: Request) -> Iterator[Change]:
    flags = _present(request, STAY_FLAGS.get(request.host, ()))
    if flags:
        yield Change("stays", "time", _restarted(request, (), flags), (), flags)


def _offload(request: Request) -> Iterator[Change]:
    if request.host != "a1111":
        return
    order = ("normal", "medvram", "lowvram")
    for mode in order[order.index(offload_mode(request)) + 1 :]:
        if mode == "lowvram" and not ARCHITECTURES[request.model.family].block:
            continue
        is_sdxl = request.model.family in ("sdxl", "sdxl_refiner")
        flag = "--medvram-sdxl" if mode == "medvram" and is_sdxl else f"--{mode}"
        others = _present(request, [item for item in OFFLOAD_FLAGS if item != flag])
        yield Change("offload", "time", _restarted(request, (flag,), others), (flag,), others)


def _swap(request: Request) -> Iterator[Change]:
    flag = SWAP_FLAGS.get(request.host)
    if flag is not None and not has_flag(request, flag):
        stays = _present(request, STAY_FLAGS.get(request.host, ()))
        yield Change("offload", "time", _restarted(request, (flag,), stays), (flag,), stays)


def _fp8(request: Request) -> Iterator[Change]:
    flag = FP8_FLAGS.get(request.host)
    if flag is None or has_flag(request, flag) or request.model.weights_dtype == "fp8":
        return
    others = _present(request, (*OTHER_TYPES, *FULL_PRECISION.get(request.host, ())))
    model = replace(request.model, weights_dtype="fp8")
    yield Change("storage", "detail", _restarted(request, (flag,), others).replace(model=model), (flag,), others)


def _unneeded(request: Request) -> Iterator[Change]:
    """Yield what would be quicker: no flag, or a milder one, in place of one that saves memory by moving weights."""
    flags = _present(request, MOVE_FLAGS.get(request.host, ()))
    if not flags:
        return
    yield Change("quicker", "nothing", _restarted(request, (), flags), (), flags)
    if request.host == "a1111" and "--lowvram" in flags:
        flag = "--medvram-sdxl" if request.model.family in ("sdxl", "sdxl_refiner") else "--medvram"
        others = tuple(item for item in flags if item != flag)
        yield Change("quicker", "nothing", _restarted(request, (flag,), others), (flag,), others)


def _allocator(request: Request) -> Iterator[Change]:
    try:
        now = AllocatorConf.parse(set_conf(request))
    except BadInput:  # whatever it is, the estimate has said so
        return
    if now.stream_ordered:  # the driver's own pool: none of these options reaches it
        return
    for option in ALLOCATOR_OPTIONS:
        conf = changed_conf(request.alloc_conf, option)
        if AllocatorConf.parse(conf) != now:
            yield Change("allocator", "nothing", request.replace(alloc_conf=conf), conf=conf)
