"""mmcv and mmengine: the weights of NonLocal1d, NonLocal2d and NonLocal3d, and our blocks in a configuration."""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from nonloc.interop.blocks import LinearMap, batch_norm, check_has, linear_map, make_block
from nonloc.nn import stage


def from_nonlocal(module: nn.Module) -> stage.OriginalBlock:
    """Return an OriginalBlock with the weights and the output of an mmcv NonLocal1d, NonLocal2d or NonLocal3d.

    All four modes, `use_scale`, `sub_sample`, and batch normalisation after the last convolution. The block is in
    the module's mode, training or evaluation, on its device and in its dtype.

    >>> from mmcv.cnn.bricks.non_local import NonLocal2d
    >>> from nonloc.interop.mmcv import from_nonlocal
    >>> theirs, x = NonLocal2d(4, zeros_init=False).eval(), torch.ones(1, 4, 3, 3)
    >>> torch.allclose(from_nonlocal(theirs)(x), theirs(x), atol=1e-5)
    True
    """
    names = ("mode", "use_scale", "sub_sample", "inter_channels", "g", "conv_out")
    check_has(module, names, "one of mmcv's NonLocal1d, NonLocal2d and NonLocal3d")
    theirs: Any = module

    def part(name: str) -> LinearMap:
        name = {"w_z": "conv_out", "project": "concat_project"}.get(name, name)
        # With sub_sample the convolution is followed by its pooling.
        one = getattr(theirs, name)
        return linear_map(name, one[0].conv if isinstance(one, nn.Sequential) else one.conv)

    out = theirs.conv_out
    norm = batch_norm("conv_out.norm", out.norm) if out.with_norm else None
    scale = theirs.inter_channels**-0.5 if theirs.use_scale else None
    block = make_block(part, theirs.mode, norm=norm, scale=scale, subsample=2 if theirs.sub_sample else None)
    return block.train(module.training)


class _WithInChannels:
    """A form with mmcv's name for the channels."""

    def __init__(self, in_channels: int, **keywords: Any) -> None:
        super().__init__(in_channels, **keywords)  # type: ignore[call-arg]


# Classes and not functions: mmcv names a plugin's attribute by its class, and pickle finds a class by its module.
class OriginalBlock(_WithInChannels, stage.OriginalBlock):
    """`nonloc.OriginalBlock` for mmcv."""


class DiffusiveBlock(_WithInChannels, stage.DiffusiveBlock):
    """`nonloc.DiffusiveBlock` for mmcv."""


class OriginalStage(_WithInChannels, stage.OriginalStage):
    """`nonloc.OriginalStage` for mmcv."""


class DiffusiveStage(_WithInChannels, stage.DiffusiveStage):
    """`nonloc.DiffusiveStage` for mmcv."""


def register(registry: Any = None) -> None:
    """Let configurations name our blocks: dict(type="DiffusiveStage", in_channels=64, num_blocks=4).

    registry  where to register them; None: mmengine's MODELS, in which mmcv looks for plugins

    >>> from mmengine.registry import MODELS
    >>> from nonloc.interop.mmcv import register
    >>> register()
    >>> MODELS.build({"type": "DiffusiveStage", "in_channels": 64, "num_blocks": 4}).channels
    64
    """
    if registry is None:
        registry = importlib.import_module("mmengine.registry").MODELS
    for kind in (OriginalBlock, DiffusiveBlock, OriginalStage, DiffusiveStage):
        # A second call changes nothing; a name that another library has taken is the registry's error.
        if registry.get(kind.__name__) is not kind:
            registry.register_module(name=kind.__name__, module=kind)
