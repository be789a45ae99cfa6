"""Traces what is loaded: the loaded model's own classes on ``meta``, in the background, into profiles.

The host says which modules it has loaded and how each is called (``traced_*.py``); their
skeletons are run at a few sizes, fitted, checked at a size that the fit has not seen, and cached.
No weight is read and the GPU is not used. Everything that decides what a trace sees (dispatch
modes, the way of attention, gradients) belongs to the tracing thread or to the skeleton, so that
a generation in another thread is not touched.
"""

from __future__ import annotations

import hashlib
import inspect
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lib_vram.host import attending
from lib_vram.host.skeleton import Bound, skeleton
from lib_vram.physics import profile as shipped
from lib_vram.physics.allocator import MIN_BLOCK
from lib_vram.physics.cache import MEASURED, ProfileCache, key_of
from lib_vram.physics.component import Part
from lib_vram.physics.families import SHAPES
from lib_vram.physics.fitting import DoesNotFit, check_events, fit
from lib_vram.physics.lengthen import lengthened, more_turns
from lib_vram.physics.profile import Profile
from lib_vram.physics.program import Setting
from lib_vram.physics.raw import RawTrace
from lib_vram.physics.trace import trace

DTYPES = {"fp16": torch.float16, "fp32": torch.float32}
"""Half precision of either kind takes the same memory, and is traced as fp16."""

SETTINGS = (Setting(2, 104, 72), Setting(4, 58, 86), Setting(6, 36, 42), Setting(3, 46, 98))
"""Batch and latent rows and columns: three for a fit, and one more to help it out. Even sides, as patches ask for."""

CHECKED = Setting(1, 94, 26)
"""Where a fit is checked: a batch of one may take other steps than a larger one."""

FEWEST = 3
KEPT_BLOCKS = 4
WORTH_CUTTING = 12
"""Of equal blocks in a row, this many are traced where so many more are left out."""

ONE = "_one"
"""Ending of the name of a profile for a batch of one alone."""

TRACER = "2"
"""Raised when the tracer sees more than it did, so that what an older one made is made anew."""

CALLS_BETWEEN_BREAKS = 16
"""Of torch's functions: some milliseconds of work."""

Run = Callable[[nn.Module, Setting, torch.dtype], object]
Break = Callable[[], None]


class GivenUp(Exception):
    """A part cannot be traced; the message says why, in one line."""


@dataclass(frozen=True)
class LoadedPart:
    """One part of the loaded model. ``module`` is the live one, and only looked at."""

    part: Part
    module: nn.Module
    run: Run
    """Runs a skeleton at a size; it makes its inputs on ``meta`` itself."""
    dtypes: tuple[str, ...] = ("fp16",)
    settings: tuple[Setting, ...] = SETTINGS
    checked: Setting = CHECKED
    autocast: bool = False
    """Whether the host runs the part under autocast."""
    methods: Bound = field(default_factory=dict)
    """Forwards of classes that compute attention themselves."""


@dataclass(frozen=True)
class LoadedModel:
    """The loaded model's parts; ``style`` is whose form of the code it is, ``host`` the host and its version."""

    family: str
    style: str
    host: str
    parts: tuple[LoadedPart, ...]

    def wanted(self) -> Iterable[tuple[str, LoadedPart, str]]:
        """Return the name, part and type of every profile that could be made."""
        shape = SHAPES.get(self.family)
        for part in self.parts:
            stored = shape.vae if shape is not None and part.part.startswith("vae") else self.family
            for dtype in part.dtypes:
                yield f"{stored}-{part.part}-{dtype}-{self.style}", part, dtype

    def missing(self) -> list[tuple[str, LoadedPart, str]]:
        """Return those of :meth:`wanted` for which no profile is shipped."""
        return [item for item in self.wanted() if shipped.load(item[0]) is None]


def no_break() -> None:
    """Go on without a break."""


def measure(model: LoadedModel, name: str, part: LoadedPart, dtype: str, cache: ProfileCache,
            rest: Break = no_break) -> tuple[Profile, ...]:  # fmt: skip
    """Put the profiles of a loaded part into use, from ``cache`` or by tracing it; ``rest`` is called every few ms.

    Raises:
        GivenUp: it cannot be traced.
    """
    key = architecture_key(model, part, dtype)
    known = [profile for profile in (cache.get(name, key), cache.get(name + ONE, key)) if profile is not None]
    if known:
        return tuple(known)
    made = trace_part(name, part, dtype, rest)
    for profile in made:
        cache.put(profile.name.removeprefix(MEASURED), key, profile)
    return made


def trace_part(name: str, part: LoadedPart, dtype: str, rest: Break = no_break) -> tuple[Profile, ...]:
    """Return the profile of a loaded part, traced now; two where a batch of one takes other steps than a larger one.

    Attention is left open where the part's tokens are those of the latent, with or without a text beside them, and
    fused where they are not.

    Raises:
        GivenUp: it cannot be traced.
    """
    tracer = _Tracer(part, dtype, rest)
    try:
        bound = attending.marked() if tracer.can_be_marked() else attending.fixed()
        try:
            return tracer.profiles(MEASURED + name, bound)
        except DoesNotFit as fault:
            if "attention" not in str(fault):
                raise
        tracer.leaves_open = False
        return tracer.profiles(MEASURED + name, attending.fixed())
    except DoesNotFit as fault:
        raise GivenUp(str(fault)) from fault


class _Tracer:
    """Traces one part in one type."""

    def __init__(self, part: LoadedPart, dtype: str, rest: Break) -> None:
        self._part, self._rest = part, rest
        self._dtype = DTYPES[dtype]
        self._parameters = count(part.module)
        self.leaves_open = True
        """Whether torch's fused attention is noted as attention."""

    def can_be_marked(self) -> bool:
        """Whether attention is over levels of the latent, as in every UNet: then a profile can leave its way open."""
        made = self._skeleton(attending.marked())
        stacks = equal_stacks(made)
        if not stacks:
            return True
        for stack in stacks:
            del stack[KEPT_BLOCKS:]
        levels = self._part.settings[0].areas
        marks = [values for kind, values in self._run(made, self._part.settings[0]).events if kind == "attention"]
        return all(values[2] in levels for values in marks)

    def profiles(self, name: str, bound: Bound) -> tuple[Profile, ...]:
        """Return one profile, or one for several pictures and one for a single one.

        Raises:
            DoesNotFit: the traces are not those of a profile.
        """
        made = self._skeleton(bound)
        stacks = equal_stacks(made)
        if stacks:
            lengths = [len(stack) for stack in stacks]
            try:
                cut = [self._cut(name, bound, [KEPT_BLOCKS + turn * (place + 1) for place in range(len(stacks))])
                       for turn in range(2)]  # fmt: skip
            except GivenUp:
                cut = []  # it wants all of its blocks
            deep = _deepened(cut, lengths)
            if deep is not None:
                return deep
        return self._shallow(name, made)

    def _skeleton(self, bound: Bound) -> nn.Module:
        part = self._part
        return skeleton(part.module, self._dtype, bound, part.methods, autocast=part.autocast)

    def _cut(self, name: str, bound: Bound, lengths: list[int]) -> tuple[Profile, ...]:
        made = self._skeleton(bound)
        for stack, length in zip(equal_stacks(made), lengths):
            del stack[length:]
        return self._shallow(name, made)

    def _shallow(self, name: str, made: nn.Module) -> tuple[Profile, ...]:
        part = self._part
        several = self._at(made, part.settings[:FEWEST])
        checked = (part.checked, self._run(made, part.checked))
        if _kinds(checked[1]) == _kinds(several[0][1]):
            return (self._profile(name, made, several, checked),)
        further = part.settings[FEWEST]
        if _kinds(several[0][1]) != _kinds(several[1][1]):  # it loops over the pictures: two at a time are the rule
            several = [several[0], *self._at(made, [replace(item, batch=2) for item in part.settings[1:FEWEST]])]
            further = replace(further, batch=2)
        single = self._at(made, [replace(item, batch=1) for item in part.settings[:FEWEST]])
        several_checked = (further, self._run(made, further))
        return self._profile(name, made, several, several_checked), self._profile(name + ONE, made, single, checked)

    def _at(self, made: nn.Module, settings: Iterable[Setting]) -> list[_At]:
        return [(setting, self._run(made, setting)) for setting in settings]

    def _profile(self, name: str, made: nn.Module, fitted: list[_At], checked: _At) -> Profile:
        """Return the profile of what was traced, checked against a trace that the fit has not seen."""
        try:
            return self._checked(name, fitted, checked)
        except DoesNotFit as fault:
            if "order of events" in str(fault):
                raise
        more = replace(self._part.settings[FEWEST], batch=fitted[0][0].batch)
        return self._checked(name, [*fitted, (more, self._run(made, more))], checked)

    def _checked(self, name: str, fitted: list[_At], checked: _At) -> Profile:
        *fitted, checked = _without_crumbs([*fitted, checked])
        settings, traces = zip(*fitted)
        profile = fit(name, self._parameters, settings, traces)
        check_events(profile, *checked)
        return profile

    def _run(self, made: nn.Module, setting: Setting) -> RawTrace:
        """Return the trace at one size. Whatever the host's code raises means that it cannot be traced."""

        def run() -> object:
            with _Restful(self._rest), _Autocast(self._part.autocast, self._dtype):
                return self._part.run(made, setting, self._dtype)

        try:
            return trace(run, resident=_tensors(made), leave_open=self.leaves_open)
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError,
                ImportError) as fault:  # fmt: skip
            raise GivenUp(f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}") from fault


_At = tuple[Setting, RawTrace]


# deep models: a few of their equal blocks stand for all


def equal_stacks(made: nn.Module) -> list[nn.ModuleList]:
    """Return the lists of many blocks that are all of the same class and shapes."""
    return [
        module for module in made.modules()
        if type(module) is nn.ModuleList
        and len(module) >= KEPT_BLOCKS + WORTH_CUTTING
        and len({*map(_form, module)}) == 1
    ]  # fmt: skip


def _form(block: nn.Module) -> str:
    shapes = [(name, tuple(value.shape)) for name, value in block.named_parameters()]
    return f"{type(block)} {shapes}"


def _deepened(cut: list[tuple[Profile, ...]], lengths: list[int]) -> tuple[Profile, ...] | None:
    """Return the profiles with all of their blocks, ``None`` when the cut models do not tell.

    In the second cut the first stack has one block more than in the first cut, the next one two, and so on, so
    that the growth of a loop says whose it is.
    """
    if len(cut) < 2 or len(cut[0]) != len(cut[1]):
        return None
    deep = []
    for short, longer in zip(*cut):
        grown = more_turns(short, longer)
        if grown is None or sorted({*grown} - {0}) != list(range(1, len(lengths) + 1)):
            return None
        deep.append(lengthened(short, [lengths[turn - 1] - KEPT_BLOCKS if turn else 0 for turn in grown]))
    return tuple(deep)


def _without_crumbs(traced: list[_At]) -> list[_At]:
    """Return the traces with blocks that are one of the allocator's smallest at every size written as just that.

    A table as long as the picture's longer side is no sum of what a size is made of; it is 512 bytes all the same.
    """
    events = zip(*(recorded.events for _, recorded in traced))
    crumbs = [all(kind == "alloc" and values[1] <= MIN_BLOCK for kind, values in group) for group in events]
    return [(setting, _rounded(recorded, crumbs)) for setting, recorded in traced]


def _rounded(recorded: RawTrace, crumbs: list[bool]) -> RawTrace:
    events = [("alloc", (event[1][0], MIN_BLOCK)) if crumb else event for event, crumb in zip(recorded.events, crumbs)]
    return RawTrace(events + recorded.events[len(crumbs) :], recorded.blocks)


def _kinds(recorded: RawTrace) -> list[str]:
    return [kind for kind, _ in recorded.events]


def _tensors(made: nn.Module) -> list[Tensor]:
    """Return the weights, buffers and other tensors that belong to the model."""
    found = [*made.parameters(), *made.buffers()]
    for module in made.modules():
        found += [value for value in vars(module).values() if isinstance(value, Tensor)]
    return found


def count(module: nn.Module) -> int:
    """Return how many weights ``module`` has, whatever way they are stored."""
    return sum(item.numel() for item in skeleton(module, torch.float16, {}).parameters())


# what a profile depends on


def architecture_key(model: LoadedModel, part: LoadedPart, dtype: str) -> str:
    """Return the key of a part: its modules and their shapes, their classes' code, host, torch, type."""
    return key_of([
        model.host, model.style, part.part, dtype, str(part.autocast), str(shipped.FORMAT), TRACER, torch.__version__,
        repr((part.settings, part.checked)), inspect.getsource(part.run),
        *_structure(part.module), *_sources(part.module),
    ])  # fmt: skip


def _structure(module: nn.Module) -> Iterable[str]:
    for name, item in module.named_modules():
        numbers = {key: value for key, value in vars(item).items() if isinstance(value, int | float | str | bool)}
        weights = {key: None if value is None else tuple(value.shape) for key, value in item._parameters.items()}
        yield f"{name} {type(item).__module__}.{type(item).__qualname__} {sorted(numbers.items())} {weights}"


def _sources(module: nn.Module) -> Iterable[str]:
    kinds = {type(item) for item in module.modules()}
    files = {inspect.getmodule(base) for kind in kinds for base in kind.__mro__}
    for file in sorted((item for item in files if item is not None), key=lambda item: item.__name__):
        if file.__name__.partition(".")[0] not in ("torch", "builtins"):
            yield _source(file)


@lru_cache(maxsize=64)
def _source(module: ModuleType) -> str:
    path = getattr(module, "__file__", None)
    if path is None or not Path(path).is_file():
        return module.__name__
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


# modes of the tracing thread


class _Restful(TorchFunctionMode):
    """Lets the tracing thread take a break every few functions."""

    def __init__(self, rest: Break) -> None:
        super().__init__()
        self._rest = rest
        self._calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._calls += 1
        if self._calls % CALLS_BETWEEN_BREAKS == 0:
            self._rest()
        return func(*args, **(kwargs or {}))


class _Autocast(TorchFunctionMode):
    """What CUDA's autocast does to types, on ``meta``: products in half precision, normalisation in fp32."""

    def __init__(self, wanted: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self._wanted = wanted
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        to = None
        if self._wanted:
            to = self._dtype if func in _PRODUCTS else torch.float32 if func in _PRECISE else None
        if to is None:
            return func(*args, **(kwargs or {}))
        named = {name: _cast(value, to) for name, value in (kwargs or {}).items()}
        return func(*(_cast(value, to) for value in args), **named)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


_PRODUCTS = frozenset((
    nn.functional.linear, nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d, torch.matmul, torch.bmm,
    torch.baddbmm, Tensor.__matmul__, nn.functional.scaled_dot_product_attention,
))  # fmt: skip
_PRECISE = frozenset((
    nn.functional.group_norm, nn.functional.layer_norm, nn.functional.softmax, torch.softmax, Tensor.softmax,
))  # fmt: skip


# breaks


class Patience:
    """Breaks of a background trace: it gives way to others, waits while the host is busy, and gives up in time.

    A lowered priority of the thread would do harm: holding Python's lock with it, it would keep the host waiting.
    """

    WORK_SECONDS = 0.005
    PAUSE_SECONDS = 0.003
    BUSY_SECONDS = 0.25
    MOST_SECONDS = 30.0
    """Of computing, for all parts together; those of the largest known model take five."""

    def __init__(self, is_busy: Callable[[], bool], stopped: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._stopped = stopped
        self._worked_until = time.monotonic() + self.WORK_SECONDS
        self._end = time.thread_time() + self.MOST_SECONDS

    def __call__(self) -> None:
        """Take a break when it is time for one.

        Raises:
            GivenUp: it takes too long, or is no longer wanted.
        """
        now = time.monotonic()
        if now < self._worked_until:
            return
        if time.thread_time() > self._end:
            raise GivenUp(f"more than {self.MOST_SECONDS:.0f} s of computing")
        time.sleep(self.PAUSE_SECONDS)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait while the host is busy.

        Raises:
            GivenUp: it is no longer wanted.
        """
        while not self._stopped() and self._is_busy():
            time.sleep(self.BUSY_SECONDS)
        if self._stopped():
            raise GivenUp("stopped")
        self._worked_until = time.monotonic() + self.WORK_SECONDS
