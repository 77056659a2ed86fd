"""Stages: several sub-blocks in one place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from nonloc.nn.forms import Diffusive, Original
from nonloc.nn.keywords import refuse_unknown, with_keywords
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.options import check_flag


@with_keywords
class OriginalStage(Original):
    """Original blocks in a row, Eq. (3): Z^{n+1} = Z^n + W_Z Σ_j ω(Z_i^n, Z_j^n) W_g Z_j^n / 𝒞_i(Z^n).

    channels          C, of the input and the output alike
    num_blocks        N, the number of blocks
    share_affinity    False: each block computes ω from the current state, with its own embedding, as published.
                      True: one ω, computed from the stage's input: such stages bear larger starts
    """

    def __init__(
        self, channels: int, num_blocks: int, *, share_affinity: bool = False, **keywords: Any
    ) -> None:
        refuse_unknown(OriginalStage, keywords)
        check_flag("share_affinity", share_affinity)
        super().__init__(channels, num_blocks, 1 if share_affinity else num_blocks, **keywords)


@with_keywords
class DiffusiveStage(Diffusive):
    """The paper's stage, Eq. (8): Z^{n+1} = Z^n + W^n Σ_j ω(X_i, X_j) (Z_j^n − Z_i^n) / 𝒞_i(X), with Z^0 = X.

    channels          C, of the input and the output alike
    num_blocks        N, the number of sub-blocks
    share_affinity    True: one ω, computed from the stage's input X, as published.
                      False: each sub-block computes ω from the current state, with its own embedding;
                      the stage that diverged most often in the map (paper/pages/map.md)
    """

    def __init__(
        self, channels: int, num_blocks: int, *, share_affinity: bool = True, **keywords: Any
    ) -> None:
        refuse_unknown(DiffusiveStage, keywords)
        check_flag("share_affinity", share_affinity)
        super().__init__(channels, num_blocks, 1 if share_affinity else num_blocks, **keywords)


def stages(model: nn.Module) -> Iterator[tuple[str, NonlocalModule]]:
    """(name, module) of the outermost nonlocal modules of a model, in its order; the model itself is ""."""
    if isinstance(model, NonlocalModule):
        yield "", model
        return
    found: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, NonlocalModule) and not any(name.startswith(f"{outer}.") for outer in found):
            found.append(name)
            yield name, module
