"""PreResNet: the pre-activation residual network of He et al. for CIFAR, with places for nonlocal stages."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from nonloc._checks import check_choice, check_whole
from nonloc_paper.networks.residual import (
    ResidualBlock,
    StageFactory,
    Trunk,
    basic,
    bottleneck,
    initialize_convolutions,
)

STEM = 16

# By variant, for each of the three groups: (width inside the blocks, channels out).
WIDTHS = {
    "bottleneck": ((16, 64), (32, 128), (64, 256)),
    "keras": ((16, 64), (64, 128), (128, 256)),
    "basic": ((16, 16), (32, 32), (64, 64)),
    "public": ((16, 64), (32, 128), (64, 256)),
}


class PreResNet(nn.Module):
    """Classifier [B, 3, H, W] -> logits [B, num_classes]; height and width are halved twice.

    blocks_per_group  n, the residual blocks at each of the three resolutions
    variant           "bottleneck" (He's widths), "keras" (the widths of the Keras example) and "public" (He's widths,
                      another order: see `ResidualBlock`) have three convolutions in a block, "basic" has two
    stages            {residual block, counted from 1 over the whole network: factory channels -> module}
    """

    def __init__(
        self,
        blocks_per_group: int,
        *,
        variant: str = "bottleneck",
        num_classes: int = 10,
        stages: Mapping[int, StageFactory] | None = None,
    ) -> None:
        super().__init__()
        check_whole("blocks_per_group", blocks_per_group)
        check_choice("variant", variant, WIDTHS)
        check_whole("num_classes", num_classes)
        self.stem = nn.Conv2d(3, STEM, 3, padding=1, bias=False)
        blocks: list[ResidualBlock] = []
        channels = STEM
        for group, (width, out) in enumerate(WIDTHS[variant]):
            for n in range(blocks_per_group):
                stride = 2 if group > 0 and n == 0 else 1
                if variant == "basic":
                    blocks.append(basic(channels, out, stride))
                else:
                    blocks.append(bottleneck(channels, width, out, stride, is_public=variant == "public"))
                channels = out
        initialize_convolutions(nn.ModuleList([self.stem, *blocks]))
        self.trunk = Trunk(blocks, stages or {})
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = F.relu(self.norm(self.trunk(self.stem(x))))
        return self.head(features.mean((2, 3)))
