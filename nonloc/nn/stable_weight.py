"""StableWeightMap: a W with which no diffusive sub-block can make its input grow, whatever is learned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nonloc._evaluation import evaluating
from nonloc._torch_compat import needs_plain_torch, triton_module
from nonloc.nn.weight import initialize_map, make_map, map_matrix
from nonloc.ops import Affinity
from nonloc.ops.bounds import universal_weight_limit

# With the delta kernel nothing moves, and every w is stable; this one keeps W finite.
LARGEST_LIMIT = 2.0
LARGEST_TILE = 2**14  # numbers that one Triton program holds


class StableWeightMap(nn.Module):
    """W = w V (I + VᵀV)⁻¹ Vᵀ with V [C, r]: symmetric, with eigenvalues w σ²/(1 + σ²) in [0, w) for every V.

    w is the kernel's `universal_weight_limit`. With the orthonormal columns of [V; I] = [Q; P] R it is W = w Q Qᵀ.
    That needs no inverse, holds its bound however large V is, and lets the kernel work on r channels: (w Q, Qᵀ). Where
    V is in half precision, Q is smaller by what its rounding, and that of `matrix()`, may add. Where only the products
    are, as under autocast, they round a Q of more digits: W may then be above w by 2⁻⁷ √r or 2⁻¹⁰ √r of it.
    W is quadratic in V: its gradient at V = 0 is 0. `v` is not called, `v.weight` is read: hooks have no effect on it,
    parametrizations have. Only another module or kind of tensor in its place is asked for its matrix (`map_matrix`).

    No input grows in the norm of its kernel, ‖z‖² = Σ_i π_i |z_i|²: π = 𝒞 under "row" with one embedding, the
    stationary law with two, 1 under "sinkhorn". "concat" with two embeddings may have positions of which no other
    takes anything: they weigh 0 under π, and the bound is about the rest.
    """

    def __init__(self, channels: int, *, hidden: int | None, **factory: Any) -> None:
        super().__init__()
        # r: the number of channels that the kernel works on.
        self.rank = hidden or max(1, channels // 2)
        self.v = make_map(self.rank, channels, False, **factory)
        self.limit = 1.0

    def inner(self, z: Tensor) -> Tensor:
        """Qᵀ z: [B, M, C] -> [B, M, r]."""
        return F.linear(z, self._orthonormal().transpose(-2, -1))

    def outer(self, change: Tensor, mask: Tensor | None = None) -> Tensor:
        """w Q change: [B, M, r] -> [B, M, C]."""
        return F.linear(change, self.limit * self._orthonormal())

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return the pair (w Q [C, r], Qᵀ [r, C]), as `propagate` takes it."""
        orthonormal = self._orthonormal()
        return self.limit * orthonormal, orthonormal.transpose(-2, -1)

    def matrix(self) -> Tensor:
        """Return W [C, C], differentiable."""
        outer, inner = self.factors()
        product = outer @ inner
        # A matrix product may round W_ij and W_ji differently.
        return (product + product.mT) / 2

    def reset(self, init: str, std: float) -> None:
        """Draw V again."""
        initialize_map(self.v, init, std)

    def extra_repr(self) -> str:
        return f"limit={self.limit:g}"

    def _orthonormal(self) -> Tensor:
        return bounded_part(map_matrix(self.v, self.rank))


def stable_factors(maps: Sequence[StableWeightMap]) -> list[tuple[Tensor, Tensor]]:
    """Return the factors of every map. Their columns are made at once: alone, each is one slow program on a GPU."""
    matrices = [map_matrix(one.v, one.rank) for one in maps]
    if len({v.shape for v in matrices}) > 1:
        return [one.factors() for one in maps]
    parts = bounded_part(torch.stack(matrices)).unbind()
    return [(one.limit * q, q.mT) for one, q in zip(maps, parts, strict=True)]


def bounded_part(v: Tensor) -> Tensor:
    """Return Q of each V [*, C, r] as V's dtype holds it, where Q Qᵀ has no eigenvalue above 1."""
    # Half precision has no QR.
    tall = v.to(torch.promote_types(v.dtype, torch.float32))
    # A rounding below 1, so that no eigenvalue is above w.
    shrink = 1 - 4 * torch.finfo(tall.dtype).eps
    q = shrink * orthonormal_part(tall)
    if v.dtype == tall.dtype:
        return q
    # With |Q| the norm of all entries and u the unit of rounding, a singular value of Q grows by u |Q| at most, and an
    # eigenvalue of `matrix()` by another 2 u |Q|. Both fit: (1 + u |Q|)² + 2 u |Q| ≤ (1 + 2 u |Q|)².
    half = torch.finfo(v.dtype)
    norm = torch.linalg.vector_norm(q.detach(), dim=(-2, -1), keepdim=True)
    lost = 0.5 * half.eps * (norm + half.smallest_normal * q.shape[-2:].numel() ** 0.5)
    return (q / (1 + 2 * lost)).to(v.dtype)


def check_stable(*, uses_differences: bool, bias: bool, batch_norm: bool, init: str) -> None:
    """Raise a ValueError for options that break the bound of weight="stable", or keep it from learning."""
    if not uses_differences:
        raise ValueError(
            'weight="stable" belongs to the diffusive form: z + W K z grows along every eigenvector of K with a '
            'positive eigenvalue; use that form, or weight="factored"'
        )
    for name, flag in (("bias", bias), ("batch_norm", batch_norm)):
        if flag:
            raise ValueError(f'{name}=True would break the bound of weight="stable"; drop one of the two')
    if init == "zero":
        raise ValueError(
            'init="zero" does not go with weight="stable": W is quadratic in V, so at V = 0 its gradient is 0 too and '
            'nothing would ever be learned; use init="normal" with a small init_std, which starts near the identity'
        )


def known_limit(embeddings: Iterable[nn.Module], channels: int, *, is_one_kernel: bool) -> float:
    """Return the w that is stable for every input of these affinity modules; a ValueError if there is none.

    is_one_kernel  whether all sub-blocks have the same kernel
    """
    affinities = [_affinity_of(embedding, channels) for embedding in embeddings]
    limits = [LARGEST_LIMIT]
    for affinity in affinities:
        limit = universal_weight_limit(affinity)
        if limit is None:
            reason = f"normalize={affinity.normalize!r} has degrees without a bound"
            use = 'normalize="row" or "sinkhorn"'
            if affinity.kind == "dot":
                reason, use = "a dot product may be negative", 'affinity="embedded_gaussian" or "heat"'
            raise ValueError(
                f'weight="stable" knows no weight that is stable for every input here, since {reason}; use {use}'
            )
        limits.append(limit)
    # Each step is non-expansive in the norm of its own kernel; only these kernels have one norm in common.
    if not is_one_kernel and any(a.normalize != "sinkhorn" and a.kind != "delta" for a in affinities):
        raise ValueError(
            'weight="stable" without share_affinity=True needs kernels with one norm in common, which '
            f'normalize={affinities[0].normalize!r} does not give; use share_affinity=True, or normalize="sinkhorn"'
        )
    return min(limits)


def _affinity_of(embedding: nn.Module, channels: int) -> Affinity:
    """Return the affinity of two positions: its kind, normalisation and sides are the same for any input."""
    parameter = next(embedding.parameters(), torch.empty(0))
    two = torch.zeros(1, 2, channels, dtype=parameter.dtype, device=parameter.device)
    use = 'use affinity="heat" or "embedded_gaussian", or weight="factored" and ask `certify` afterwards'
    with evaluating(embedding):
        try:
            affinity = embedding(two)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(
                'weight="stable" asks the affinity module what it makes of two positions, x [1, 2, '
                f"{channels}], and it failed ({error}); {use}"
            ) from error
    if not isinstance(affinity, Affinity):
        raise ValueError(
            'weight="stable" needs an affinity module whose kernel is known for every input, that is one that returns '
            f"an Affinity, and {type(embedding).__name__} returns a {type(affinity).__name__}; {use}"
        )
    return affinity


def orthonormal_part(v: Tensor) -> Tensor:
    """Return Q [*, C, r] with [V; I] = [Q; P] R, for V [*, C, r] in float32 or float64: QQᵀ = V (I + VᵀV)⁻¹ Vᵀ.

    R is upper triangular. The signs of its diagonal, and so those of Q's columns, depend on the implementation.
    A CUDA graph may not be able to hold cuSOLVER, which torch's QR calls. On CUDA a small V therefore goes through a
    Triton kernel: a modified Gram–Schmidt in float64, whose loss of orthogonality, about 1e-16 σ(V), is far below a
    rounding of float32.
    """
    if v.is_cuda and v.dtype == torch.float32 and not needs_plain_torch() and _fits(v):
        return _Columns.apply(v)
    channels, rank = v.shape[-2:]
    identity = torch.eye(rank, dtype=v.dtype, device=v.device).expand(*v.shape[:-2], rank, rank)
    return torch.linalg.qr(torch.cat([v, identity], -2)).Q[..., :channels, :]


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        kernel = _triton_kernel()
        assert kernel is not None
        q, p = kernel.columns(v)
        ctx.save_for_backward(q, p)
        return q

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: Tensor) -> Tensor:
        q, p = ctx.saved_tensors
        with torch.autocast(dq.device.type, enabled=False):
            return gradient(dq.to(q.dtype), q, p)


def gradient(dq: Tensor, q: Tensor, p: Tensor) -> Tensor:
    """Return dV from dQ, for a QR decomposition of [V; I] of which only Q is used, with P = R⁻¹."""
    lower = -(dq.mT @ q).tril()
    return (dq + q @ (lower + lower.tril(-1).mT)) @ p.mT


def _fits(v: Tensor) -> bool:
    channels, rank = v.shape[-2:]
    rows, columns = (1 << (size - 1).bit_length() for size in (channels + rank, rank))
    return v.numel() > 0 and rows * columns <= LARGEST_TILE and _triton_kernel() is not None


def _triton_kernel() -> ModuleType | None:
    return triton_module("nonloc.nn.orthonormal_kernel")
