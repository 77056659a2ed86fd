"""Blocks: one sub-block each."""

from __future__ import annotations

from typing import Any

from nonloc.nn.forms import Diffusive, Original
from nonloc.nn.keywords import refuse_unknown, with_keywords


@with_keywords
class OriginalBlock(Original):
    """Z = X + W_Z Σ_j ω(X_i, X_j) W_g X_j / 𝒞_i: the nonlocal block of Wang et al.

    channels          C, of the input and the output alike
    """

    def __init__(self, channels: int, **keywords: Any) -> None:
        refuse_unknown(OriginalBlock, keywords)
        super().__init__(channels, 1, 1, **keywords)


@with_keywords
class DiffusiveBlock(Diffusive):
    """Z = X + W_Z Σ_j ω(X_i, X_j) (W_g X_j − W_g X_i) / 𝒞_i: one sub-block of the paper's stage.

    channels          C, of the input and the output alike
    """

    def __init__(self, channels: int, **keywords: Any) -> None:
        refuse_unknown(DiffusiveBlock, keywords)
        super().__init__(channels, 1, 1, **keywords)
