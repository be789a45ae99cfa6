"""The ControlNet of SD 1.5 and SDXL: the UNet's way down, fed with a hint picture."""

from __future__ import annotations

from torch import Tensor, nn

from tools.meta.layers import FORGE, Conv, Style
from tools.meta.unet import Attend, Encoder, UNetShape

HINT_WIDTHS = ((3, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 96, 2), (96, 96, 1), (96, 256, 2))
"""Inputs, outputs and stride of the hint encoder's convolutions."""


class ControlNet(Encoder):
    """One result per skip of the UNet and one for its middle."""

    def __init__(self, shape: UNetShape, attend: Attend, style: Style = FORGE) -> None:
        super().__init__(shape, attend, style)
        layers: list[nn.Module] = []
        for inputs, outputs, stride in HINT_WIDTHS:
            layers += [Conv(inputs, outputs, 3, stride=stride), nn.SiLU()]
        self.hint = nn.Sequential(*layers, Conv(HINT_WIDTHS[-1][1], shape.channels))
        self.results = nn.ModuleList(Conv(width, width, 1) for width in self.skips)
        self.middle_result = Conv(self.skips[-1], self.skips[-1], 1)

    def forward(
        self, x: Tensor, hint: Tensor, steps: Tensor, context: Tensor, pooled: Tensor | None = None
    ) -> list[Tensor]:
        waves = self.waves(steps, x.dtype)
        embedding = self.time_embed(waves)
        guide: Tensor | None = self.hint(hint)
        embedding = self.with_label(embedding, pooled)
        results = []
        h = x
        for stage, result in zip(self.down, self.results):
            h = stage(h, embedding, context)
            if guide is not None:
                h += guide
                guide = None
            results.append(result(h))
        h = self.middle(h, embedding, context)
        results.append(self.middle_result(h))
        return results
