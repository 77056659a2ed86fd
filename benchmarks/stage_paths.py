"""The stage as one would write it with public PyTorch, beside the fused one, and in float64: what is compared.

Each way takes q, k [B, M, d], x [B, M, C], W_Z [N, C, r] and W_g [N, r, C], and gives Z^N [B, M, C]; K = softmax(q kᵀ).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from nonloc.ops import Affinity, propagate

Stage = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

# Entries of K in float64 that exist at one time: 1 GiB.
EXACT_ENTRIES = 2**27


@dataclass(frozen=True)
class Way:
    """make gives the stage; compiles: its first call takes many seconds; has_matrix: it keeps K [B, M, M]."""

    make: Callable[[], Stage]
    compiles: bool = False
    has_matrix: bool = False


def fused(q: Tensor, k: Tensor, x: Tensor, w_z: Tensor, w_g: Tensor) -> Tensor:
    pairs = list(zip(w_z.unbind(), w_g.unbind(), strict=True))
    return propagate(Affinity(q, k, "gaussian"), x, pairs, backend="fused")


def naive(q: Tensor, k: Tensor, x: Tensor, w_z: Tensor, w_g: Tensor) -> Tensor:
    kernel = torch.softmax(q @ k.mT, -1)
    return _sub_blocks(lambda g: kernel @ g, x, w_z, w_g)


def exact(q: Tensor, k: Tensor, x: Tensor, w_z: Tensor, w_g: Tensor) -> Tensor:
    """In float64 whatever comes in, a few rows of K at a time, computed again for their gradient."""
    q, k, x, w_z, w_g = (tensor.double() for tensor in (q, k, x, w_z, w_g))
    rows = max(1, EXACT_ENTRIES // (k.shape[0] * k.shape[1]))

    def some_rows(part: Tensor, g: Tensor) -> Tensor:
        return torch.softmax(part @ k.mT, -1) @ g

    def apply(g: Tensor) -> Tensor:
        return torch.cat(
            [checkpoint(some_rows, part, g, use_reentrant=False) for part in q.split(rows, 1)], 1
        )

    return _sub_blocks(apply, x, w_z, w_g)


def _by_sdpa(backend: SDPBackend) -> Stage:
    def stage(q: Tensor, k: Tensor, x: Tensor, w_z: Tensor, w_g: Tensor) -> Tensor:
        query, key = q.unsqueeze(1), k.unsqueeze(1)

        def apply(g: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(query, key, g.unsqueeze(1), scale=1.0).squeeze(1)

        return _sub_blocks(apply, x, w_z, w_g)

    return stage


# Once for all shapes: each has its own program then, and none is compiled twice.
@cache
def _compiled_naive() -> Stage:
    return torch.compile(naive, dynamic=False)


@cache
def _by_flex() -> Stage:
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)

    def stage(q: Tensor, k: Tensor, x: Tensor, w_z: Tensor, w_g: Tensor) -> Tensor:
        query, key = q.unsqueeze(1), k.unsqueeze(1)
        return _sub_blocks(lambda g: compiled(query, key, g.unsqueeze(1), scale=1.0).squeeze(1), x, w_z, w_g)

    return stage


def _sub_blocks(apply: Callable[[Tensor], Tensor], x: Tensor, w_z: Tensor, w_g: Tensor) -> Tensor:
    for outer, inner in zip(w_z.unbind(), w_g.unbind(), strict=True):
        g = linear(x, inner)
        x = x + linear(apply(g) - g, outer)
    return x


# What compiles comes last, so that it can be left out when time is short.
WAYS = {
    "fused": Way(lambda: fused),
    "naive": Way(lambda: naive, has_matrix=True),
    "SDPA flash": Way(lambda: _by_sdpa(SDPBackend.FLASH_ATTENTION)),
    "SDPA cuDNN": Way(lambda: _by_sdpa(SDPBackend.CUDNN_ATTENTION)),
    "FlexAttention": Way(_by_flex, compiles=True),
    "naive, compiled": Way(_compiled_naive, compiles=True, has_matrix=True),
}
