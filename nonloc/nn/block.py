"""Blocks: one sub-block each."""

from __future__ import annotations

from typing import Any

from nonloc.nn.forms import Diffusive, Original


class OriginalBlock(Original):
    """Z = X + W_Z Σ_j ω(X_i, X_j) W_g X_j / 𝒞_i: the nonlocal block of Wang et al.

    Keywords as in `NonlocalModule`: hidden, weight, bias, affinity, embed, shared_embedding, normalize,
    scaled, init, init_std, batch_norm, layout, backend, subsample.
    """

    def __init__(self, channels: int, **keywords: Any) -> None:
        super().__init__(channels, 1, 1, **keywords)


class DiffusiveBlock(Diffusive):
    """Z = X + W_Z Σ_j ω(X_i, X_j) (W_g X_j − W_g X_i) / 𝒞_i: one sub-block of the paper's stage.

    Keywords as in `NonlocalModule`: hidden, weight, bias, affinity, embed, shared_embedding, normalize,
    scaled, init, init_std, batch_norm, layout, backend.
    """

    def __init__(self, channels: int, **keywords: Any) -> None:
        super().__init__(channels, 1, 1, **keywords)
