"""A loaded module's skeleton: the same classes with the same settings, its weights on the device ``meta``.

The loaded modules are only looked at: every parameter becomes a shape and a type, so no weight is
read and no memory is used. Plain layers compute as torch's own do whatever way the weights are
stored (fp8, GGUF, NF4): quantised storage changes nothing of what a layer takes and gives back.
Attention is replaced in private copies of the host's functions; the host's own modules are not
touched, since a generation may use them at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Bound = Mapping[str, Callable[..., Any]]
"""What a global name of the host's modules stands for in a skeleton."""

_LEFT_OUT = frozenset(("network_layer_name", "forge_online_loras", "scale_weight"))
"""Attributes by which the hosts add a LoRA to a layer; a skeleton is the model alone."""


def skeleton(
    module: nn.Module, dtype: torch.dtype, bound: Bound, methods: Bound | None = None, *, autocast: bool = False
) -> nn.Module:
    """Return the skeleton of ``module`` with weights of ``dtype``.

    ``bound`` replaces global functions, by their names in the host's modules; ``methods``
    replaces the ``forward`` of a class, by the class's name. Under ``autocast`` no layer casts its weights itself.
    """
    plain = _PLAIN if autocast else _CASTING
    live = next((weight.dtype for weight in module.parameters() if weight.is_floating_point()), dtype)
    return _Copier(dtype, live, bound, methods or {}, plain).copy(module)


class _Copier:
    def __init__(self, dtype: torch.dtype, live: torch.dtype, bound: Bound, methods: Bound, plain: Bound) -> None:
        self._dtype = dtype
        self._live = live
        self._methods = methods
        self._plain = plain
        self._names = _Namespaces(bound)
        self._made: dict[int, nn.Module] = {}
        self._weights: dict[int, nn.Parameter] = {}

    def copy(self, module: nn.Module) -> nn.Module:
        known = self._made.get(id(module))
        if known is not None:
            return known
        made: nn.Module = type(module).__new__(type(module))
        self._made[id(module)] = made
        inside = vars(module)
        copied = {name: self._value(value) for name, value in inside.items() if not name.startswith("_")}
        copied = {name: value for name, value in copied.items() if name not in _LEFT_OUT}
        kept = {name: value for name, value in inside.items() if name.startswith("_") and name not in _HOLDERS}
        made.__dict__.update(kept | copied | {name: type(inside[name])() for name in _HOLDERS if name in inside})
        self._fill(module, made)
        self._rebind(made)
        return made

    def _fill(self, module: nn.Module, made: nn.Module) -> None:
        shapes = _declared_shapes(module)
        for name, weight in module._parameters.items():
            left_out = name == "dummy" or (weight is None and name not in shapes)
            made._parameters[name] = None if left_out else self._weight(weight, shapes.get(name))
        for name, buffer in module._buffers.items():
            as_weights = buffer is not None and buffer.dtype == self._live
            made._buffers[name] = self._value(buffer.to("meta", self._dtype) if as_weights else buffer)
        for name, child in module._modules.items():
            made._modules[name] = None if child is None else self.copy(child)

    def _weight(self, weight: Tensor | None, shape: tuple[int, ...] | None) -> nn.Parameter:
        known = self._weights.get(id(weight)) if weight is not None else None
        if known is None:
            shape = tuple(weight.shape) if shape is None and weight is not None else shape or ()
            known = nn.Parameter(torch.empty(shape, dtype=self._dtype, device="meta"), requires_grad=False)
            if weight is not None:
                self._weights[id(weight)] = known
        return known

    def _value(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            return self.copy(value)
        if isinstance(value, Tensor):
            dtype = self._dtype if value.dtype.is_floating_point and value.dtype.itemsize < 4 else value.dtype
            return torch.empty(tuple(value.shape), dtype=dtype, device="meta")
        if type(value) in (list, tuple):
            return type(value)(self._value(item) for item in value)
        return self._names.function(value) if isinstance(value, FunctionType) else value

    def _rebind(self, made: nn.Module) -> None:
        """Give ``made`` its own ``forward`` and helpers where those of its class will not do."""
        name = type(made).__name__
        forward = self._methods.get(name)
        if forward is None and _is_plain(made):
            forward = self._plain.get(name)
        private = self._names.methods(type(made))
        if isinstance(vars(made).get("forward"), MethodType):
            del made.__dict__["forward"]  # somebody's wrapper around the live one's
        for attribute, function in private.items():
            made.__dict__[attribute] = function if function in self._names.static else MethodType(function, made)
        if forward is not None:
            made.__dict__["forward"] = MethodType(forward, made)


_HOLDERS = (
    "_parameters", "_buffers", "_modules", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks",
    "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_load_state_dict_pre_hooks",
)  # fmt: skip


class _Namespaces:
    """Private copies of the host's functions, in which some global names stand for something else."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._spaces: dict[int, dict[str, Any]] = {}
        self._methods: dict[type, dict[str, FunctionType]] = {}
        self.static: set[FunctionType] = set()
        """Those of the copied methods that take no module."""

    def function(self, function: FunctionType) -> Any:
        """Return ``function`` as it is in a skeleton: itself when it uses none of the names."""
        replaced = self._bound.get(_own_name(function))
        if replaced is not None:
            return replaced
        return self._copy(function) if self._concerns(function) else function

    def methods(self, kind: type) -> dict[str, FunctionType]:
        """Return the methods of a module's class that must be private, those of its bases among them."""
        if kind not in self._methods:
            found: dict[str, FunctionType] = {}
            for base in reversed(kind.__mro__):
                if base.__module__.partition(".")[0] in ("torch", "builtins"):
                    continue
                for name, value in vars(base).items():
                    plain = value.__func__ if isinstance(value, staticmethod) else value
                    if isinstance(plain, FunctionType) and not name.startswith("__"):
                        found.pop(name, None)
                        inner = _without_mode(plain)
                        if self._concerns(inner):
                            found[name] = self._copy(inner)
                            self.static.update({found[name]} if plain is not value else ())
            self._methods[kind] = found
        return self._methods[kind]

    def _concerns(self, function: FunctionType) -> bool:
        return any(name in function.__globals__ for name in self._bound)

    def _copy(self, function: FunctionType) -> FunctionType:
        space = self._space(function.__globals__)
        made = FunctionType(function.__code__, space, function.__name__, function.__defaults__, function.__closure__)
        made.__kwdefaults__ = function.__kwdefaults__
        return made

    def _space(self, names: dict[str, Any]) -> dict[str, Any]:
        space = self._spaces.get(id(names))
        if space is None:
            space = self._spaces[id(names)] = dict(names)
            for name, value in names.items():
                if name in self._bound:
                    space[name] = self._bound[name]
                elif isinstance(value, FunctionType) and self._concerns(value):
                    space[name] = self._copy(value)
        return space


def _without_mode(function: FunctionType) -> FunctionType:
    """Return the function inside a decorator of torch's, such as ``no_grad``, which a trace does not need."""
    inner = getattr(function, "__wrapped__", None)
    decorated = function.__globals__.get("__name__", "").startswith("torch.")
    return inner if decorated and isinstance(inner, FunctionType) else function


def _own_name(function: FunctionType) -> str:
    """Return the name under which the hosts' modules know a way of attention, for one kept in an attribute."""
    if function.__name__.endswith(("_attention_vae", "attention_single_head_spatial")):
        return "attention_function_vae"
    return "attention_function" if function.__name__ in _WAYS else function.__name__


_WAYS = frozenset(f"attention_{way}" for way in ("pytorch", "xformers", "split", "sub_quad", "basic", "sage", "flash"))


# plain layers: what torch's own do, whatever a host has made of them


def _is_plain(made: nn.Module) -> bool:
    """Whether a layer with a plain layer's name has what that has."""
    return "weight" in made._parameters and getattr(made, "padding_mode", "zeros") == "zeros"


def _declared_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a layer's own numbers give its weights, which quantised storage hides."""
    if type(module).__name__ != "Linear" or not hasattr(module, "out_features"):
        return {}
    shapes = {"weight": (module.out_features, module.in_features)}
    if module._parameters.get("bias") is not None:
        shapes["bias"] = (module.out_features,)
    return shapes


def _linear(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(x, weight, bias)


def _conv1d(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.conv1d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def _conv2d(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def _conv3d(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.conv3d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def _group_norm(layer: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return functional.group_norm(x, layer.num_groups, weight, bias, layer.eps)


def _layer_norm(layer: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return functional.layer_norm(x, layer.normalized_shape, weight, bias, layer.eps)


def _in_type_of(weight: Tensor | None, x: Tensor) -> Tensor | None:
    return weight.to(x.dtype) if weight is not None and weight.dtype != x.dtype else weight


def _as_they_are(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def forward(layer: Any, x: Tensor) -> Tensor:
        return function(layer, x, layer.weight, layer.bias)

    return forward


def _cast_to_input(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the layer's forward with weights in the type of its input, as the hosts' own layers cast them."""

    def forward(layer: Any, x: Tensor) -> Tensor:
        return function(layer, x, _in_type_of(layer.weight, x), _in_type_of(layer.bias, x))

    return forward


_LAYERS: Bound = {
    "Linear": _linear,
    "Conv1d": _conv1d,
    "Conv2d": _conv2d,
    "Conv3d": _conv3d,
    "GroupNorm": _group_norm,
    "LayerNorm": _layer_norm,
}
_PLAIN: Bound = {name: _as_they_are(function) for name, function in _LAYERS.items()}
_CASTING: Bound = {name: _cast_to_input(function) for name, function in _LAYERS.items()}
