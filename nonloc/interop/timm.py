"""timm: the weights of NonLocalAttn. Our blocks need nothing to be an `attn_layer=`: pass the class itself."""

from __future__ import annotations

from typing import Any

from torch import nn

from nonloc.interop.blocks import LinearMap, batch_norm, check_has, linear_map, make_block
from nonloc.nn.stage import OriginalBlock


def from_nonlocal_attn(module: nn.Module) -> OriginalBlock:
    """Return an OriginalBlock with the weights and the output of a timm NonLocalAttn.

    Its logits are divided by √C, where `scaled=True` of ours divides by √d. The block is in the module's mode,
    training or evaluation, on its device and in its dtype.

    >>> from timm.layers import NonLocalAttn
    >>> from nonloc.interop.timm import from_nonlocal_attn
    >>> theirs, x = NonLocalAttn(16).eval(), torch.ones(1, 16, 3, 3)
    >>> torch.allclose(from_nonlocal_attn(theirs)(x), theirs(x), atol=1e-5)
    True
    """
    check_has(module, ("scale", "t", "p", "g", "z", "norm"), "timm's NonLocalAttn")
    theirs: Any = module

    def part(name: str) -> LinearMap:
        name = {"w_z": "z", "theta": "t", "phi": "p"}.get(name, name)
        return linear_map(name, getattr(theirs, name))

    norm = batch_norm("norm", theirs.norm)
    return make_block(part, "embedded_gaussian", norm=norm, scale=theirs.scale).train(module.training)
