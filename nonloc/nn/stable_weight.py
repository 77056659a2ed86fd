"""StableWeightMap: a W that cannot make a diffusive sub-block grow, whatever is learned."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nonloc._checks import check_whole
from nonloc.modes import evaluating
from nonloc.nn.orthonormal import orthonormal_part
from nonloc.nn.weight import initialize_map
from nonloc.ops import Affinity
from nonloc.ops.bounds import universal_weight_limit

# Where nothing moves (the delta kernel) every w is stable; this one keeps W finite.
LARGEST_LIMIT = 2.0


class StableWeightMap(nn.Module):
    """W = w V (I + VᵀV)⁻¹ Vᵀ with V [C, r]: symmetric, with eigenvalues w σ²/(1 + σ²) in [0, w) for every V.

    w is what `universal_weight_limit` knows of the kernel. With the orthonormal columns of V stacked upon the identity,
    [V; I] = [Q; P] R, it is W = w Q Qᵀ: that needs no inverse, holds its bound to rounding however large V is, and
    gives the kernel r channels to work on, (w Q, Qᵀ). In half precision that rounding is one of 2⁻⁸ or 2⁻¹¹ in Q.
    W is quadratic in V, so V = 0 is no place to start from.
    V is read as `v.weight`, and `v` is never called: what works by hooks has no effect on it, parametrizations have.

    No input grows in the norm of its kernel, ‖z‖² = Σ_i π_i |z_i|²: π = 𝒞 under "row" with one embedding, the
    stationary law with two, 1 under "sinkhorn". "concat" with two embeddings may have positions that no other listens
    to: they weigh 0 under π, and the bound is about the rest.
    """

    def __init__(self, channels: int, *, hidden: int | None) -> None:
        super().__init__()
        if hidden is not None:
            hidden = check_whole("hidden", hidden)
        # r: the number of channels that the kernel works on.
        self.rank = hidden or max(1, channels // 2)
        self.v = nn.Linear(self.rank, channels, bias=False)
        self.limit = 1.0

    def inner(self, z: Tensor) -> Tensor:
        """Qᵀ z: [B, M, C] -> [B, M, r]."""
        return F.linear(z, self._orthonormal().mT)

    def outer(self, change: Tensor, mask: Tensor | None = None) -> Tensor:
        """w Q change: [B, M, r] -> [B, M, C]."""
        return F.linear(change, self.limit * self._orthonormal())

    def factors(self) -> tuple[Tensor, Tensor]:
        """The pair (w Q [C, r], Qᵀ [r, C]), as `propagate` takes it."""
        orthonormal = self._orthonormal()
        return self.limit * orthonormal, orthonormal.mT

    def matrix(self) -> Tensor:
        """W [C, C], differentiable."""
        outer, inner = self.factors()
        product = outer @ inner
        # A product may round its two halves differently.
        return (product + product.mT) / 2

    def reset(self, init: str, std: float) -> None:
        """Draw V again."""
        initialize_map(self.v, init, std)

    def extra_repr(self) -> str:
        return f"limit={self.limit:g}"

    def _orthonormal(self) -> Tensor:
        """Q [C, r], the upper part of the orthonormal columns of [V; I], in V's dtype."""
        v = self.v.weight
        # Half precision has no QR; its own rounding is then far larger than this one's.
        tall = v.to(torch.promote_types(v.dtype, torch.float32))
        # A rounding below 1, so that no eigenvalue is carried above w.
        shrink = 1 - 4 * torch.finfo(tall.dtype).eps
        return (shrink * orthonormal_part(tall)).to(v.dtype)


def check_stable(*, uses_differences: bool, bias: bool, batch_norm: bool, init: str) -> None:
    """ValueError for what would break the bound of weight="stable", or keep it from learning."""
    if not uses_differences:
        raise ValueError(
            'weight="stable" belongs to the diffusive form: z + W K z grows along every eigenvector of K with a '
            'positive eigenvalue; use DiffusiveStage, or weight="factored"'
        )
    for name, given in (("bias", bias), ("batch_norm", batch_norm)):
        if given:
            raise ValueError(f'{name}=True would break the bound of weight="stable"; drop one of the two')
    if init == "zero":
        raise ValueError(
            'init="zero" does not go with weight="stable": W is quadratic in V, so at V = 0 its gradient is 0 too and '
            'nothing would ever be learned; use init="normal" with a small init_std, which starts near the identity'
        )


def known_limit(embeddings: Iterable[nn.Module], channels: int) -> float:
    """The w that is stable for every input of these affinity modules; ValueError, naming what to use, if none is."""
    found = [_affinity_of(embedding, channels) for embedding in embeddings]
    limits = [universal_weight_limit(affinity) for affinity in found]
    for affinity, limit in zip(found, limits, strict=True):
        if limit is None:
            reason = f"normalize={affinity.normalize!r} has degrees without a bound"
            use = 'normalize="row" or "sinkhorn"'
            if affinity.kind == "dot":
                reason, use = "a dot product may be negative", 'affinity="embedded_gaussian" or "heat"'
            raise ValueError(
                f'weight="stable" knows no weight that is stable for every input here, since {reason}; use {use}'
            )
    # Each step is non-expansive in the norm of its own kernel; only these kernels all have the same.
    if len(found) > 1 and any(a.normalize != "sinkhorn" and a.kind != "delta" for a in found):
        raise ValueError(
            'weight="stable" with share_affinity=False needs kernels with one norm in common, which '
            f'normalize={found[0].normalize!r} does not give; use share_affinity=True, or normalize="sinkhorn"'
        )
    return min(LARGEST_LIMIT, *(limit for limit in limits if limit is not None))


def _affinity_of(embedding: nn.Module, channels: int) -> Affinity:
    """What the module makes of two positions: its kind, normalisation and sides, which are the same for any input."""
    parameter = next(embedding.parameters(), torch.empty(0))
    two = torch.zeros(1, 2, channels, dtype=parameter.dtype, device=parameter.device)
    use = 'use affinity="heat" or "embedded_gaussian", or weight="factored" and ask `certify` afterwards'
    with evaluating(embedding):
        try:
            found = embedding(two)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(
                'weight="stable" asks the affinity module what it makes of two positions, x [1, 2, '
                f"{channels}], and it failed ({error}); {use}"
            ) from error
    if not isinstance(found, Affinity):
        raise ValueError(
            'weight="stable" needs an affinity module whose kernel is known for every input, that is one that returns '
            f"an Affinity, and {type(embedding).__name__} returns a {type(found).__name__}; {use}"
        )
    return found
