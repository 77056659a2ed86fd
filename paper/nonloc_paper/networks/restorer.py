"""Restorer: a small network that removes noise from images, with places for nonlocal stages."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from nonloc._checks import check_whole
from nonloc_paper.networks.residual import StageFactory, Trunk, bottleneck, initialize_convolutions
from nonloc_paper.networks.spec import RESTORER_BLOCKS


class Restorer(nn.Module):
    """Denoiser [B, 3, H, W] -> [B, 3, H, W]: the input plus a correction.

    conv3×3 to `channels`, four bottleneck residual blocks of half that width, BN-ReLU-conv3×3 to colours.

    stages  {residual block, from 1 to 4: factory channels -> module}; 2 is in the middle

    The last convolution starts at 0, so that an untrained restorer returns its input.
    """

    def __init__(self, channels: int = 16, *, stages: Mapping[int, StageFactory] | None = None) -> None:
        super().__init__()
        check_whole("channels", channels, least=2)
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        blocks = [bottleneck(channels, channels // 2, channels) for _ in range(RESTORER_BLOCKS)]
        initialize_convolutions(nn.ModuleList([self.stem, *blocks]))
        self.trunk = Trunk(blocks, stages or {})
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Conv2d(channels, 3, 3, padding=1)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.head(F.relu(self.norm(self.trunk(self.stem(x)))))
