"""A Control-LoRA: a ControlNet with the UNet's own weights, to each of which a product of two small ones is added."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.meta.controlnet import ControlNet
from tools.meta.layers import Conv, Linear

RANK = 256
"""Of Stability's larger files (774 MB for SDXL). What a layer takes does not depend on it: the product does not."""


class _Added(nn.Module):
    """A layer whose weights are the UNet's with a product added: made for each use, like in all hosts."""

    weight: Tensor
    up: nn.Parameter
    down: nn.Parameter

    def added(self) -> Tensor:
        """Return the weights that are computed with."""
        return self.weight + torch.mm(self.up, self.down).reshape(self.weight.shape).type(self.weight.dtype)


class AddedLinear(Linear, _Added):
    """A linear layer of a Control-LoRA."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.to(self.weight.dtype), self.added(), self.bias)


class AddedConv(Conv, _Added):
    """A convolution of a Control-LoRA."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x.to(self.weight.dtype), self.added(), self.bias, self.stride, self.padding)


def as_control_lora(net: ControlNet) -> int:
    """Turn ``net``, on ``meta``, into a Control-LoRA; return how many of its weights are the UNet's."""
    own = {id(module) for part in (net.hint, net.results, net.middle_result) for module in part.modules()}
    shared = 0
    for module in net.modules():
        if id(module) in own or not isinstance(module, Linear | Conv):
            continue
        shared += module.weight.numel()
        outputs, inputs = module.weight.flatten(1).shape
        rank, like = min(RANK, outputs, inputs), module.weight
        module.__class__ = AddedLinear if isinstance(module, Linear) else AddedConv
        module.up, module.down = (
            nn.Parameter(like.new_empty(*shape), requires_grad=False) for shape in ((outputs, rank), (rank, inputs))
        )
    return shared
