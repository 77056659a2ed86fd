"""Exact shortcuts with memory linear in M, forward and backward, without new GPU code.

dot       Ω v = scale · L (Rᵀ v): linear in time too
concat    Ω v by suffix sums over the sorted right side: M log M                      (suffix_sums.py)
delta     a diagonal
gaussian, heat   "row" through scaled_dot_product_attention, the rest by blocks of rows   (exponential.py)
"""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc._torch_compat import can_read_values, needs_derivative
from nonloc.ops import exponential
from nonloc.ops.affinity import Affinity
from nonloc.ops.operator import (
    Normalized,
    Omega,
    Operator,
    inverse_or_zero,
    inverse_root_or_zero,
    position_weights,
    valid_positions,
)
from nonloc.ops.sinkhorn import LogApply, Matvec, Scaling, log_positive, no_support, scaled
from nonloc.ops.suffix_sums import relu_sum


def prepare(affinity: Affinity, dtype: torch.dtype) -> Operator:
    """The affinity as a way to apply it; no M × M matrix at any time."""
    if affinity.kind in ("gaussian", "heat"):
        return exponential.prepare(affinity, dtype)
    weights = position_weights(affinity, dtype).unsqueeze(-1)
    left, right = affinity.left.to(dtype), affinity.right.to(dtype)
    if affinity.kind == "delta":
        operator = _diagonal(weights, affinity)
    else:
        operator = normalized(product(affinity, left, right), weights, affinity, dtype)
    return operator if affinity.mask is None else _only_valid(operator, affinity.mask.unsqueeze(-1))


def product(affinity: Affinity, left: Tensor, right: Tensor) -> Omega:
    """v -> Ω v of "dot", scale · L (Rᵀ v), and of "concat", Σ_j relu(l_i + r_j) v_j, with these features."""
    if affinity.kind == "concat":
        return Omega(relu_sum, left, right)
    scale = affinity.scale
    return Omega(lambda left, right: lambda v: scale * (left @ (right.mT @ v)), left, right)


def normalized(omega: Matvec, weights: Tensor, affinity: Normalized, dtype: torch.dtype) -> Operator:
    """K from the product v -> Ω v; weights are [B or 1, M', 1]."""
    receiver, giver, sums = sides(omega, weights, affinity, dtype)
    return Operator(lambda z: receiver * omega(giver * z), sums)


def sides(
    omega: Matvec, weights: Tensor, affinity: Normalized, dtype: torch.dtype
) -> tuple[Tensor | float, Tensor, Tensor]:
    """(a, b, s) with K = diag(a) Ω diag(b) and row sums s, each [B, M, 1] (a may be the number 1)."""
    weights = weights.expand(affinity.batch, -1, -1)
    sums = omega(weights)
    if affinity.normalize == "none":
        return 1.0, weights, sums
    if affinity.normalize == "count":
        share = inverse_or_zero(weights.sum(1, keepdim=True))
        return share, weights, share * sums
    if affinity.normalize == "row":
        shares = inverse_or_zero(sums)
        return shares, weights, (shares != 0).to(sums.dtype)
    if affinity.normalize == "symmetric":
        side = inverse_root_or_zero(sums)
    else:
        valid = affinity.mask
        if valid is None:
            valid = torch.ones(weights.shape[:2], dtype=torch.bool, device=weights.device)
        side = _scaling(_seen_through(omega, sums), weights, valid, dtype).exp().unsqueeze(-1)
    giver = weights * side
    return side, giver, side * omega(giver)


def _seen_through(omega: Matvec, sums: Tensor) -> Omega:
    """The product with the tensors that it depends on; a plain function hides them, and may only if none counts."""
    if isinstance(omega, Omega):
        return omega
    if needs_derivative(sums):
        raise ValueError(
            'the derivative of normalize="sinkhorn" needs to know what Ω is made from; give omega as an Omega'
        )
    return Omega(lambda: omega)


def _scaling(omega: Omega, weights: Tensor, valid: Tensor, dtype: torch.dtype) -> Tensor:
    """x = log u of the Sinkhorn normalisation [B, M], with its derivatives."""
    make, tensors = omega.make, omega.tensors

    def log_apply(weights: Tensor, *tensors: Tensor) -> LogApply:
        omega = make(*tensors)
        return lambda x: log_positive(omega(weights * x.exp().unsqueeze(-1)))

    def between(x: Tensor, weights: Tensor, *tensors: Tensor) -> Matvec:
        omega, side = make(*tensors), (x.exp() * valid).unsqueeze(-1)
        return lambda v: (side * omega(side * v.unsqueeze(-1))).squeeze(-1)

    def mass(weights: Tensor, *tensors: Tensor) -> Tensor:
        return weights.squeeze(-1) * valid

    return scaled(Scaling(log_apply, between, mass, valid, dtype), weights, *tensors)


def _diagonal(weights: Tensor, affinity: Affinity) -> Operator:
    diagonal = weights.expand(affinity.batch, -1, -1)
    if affinity.normalize == "sinkhorn" and can_read_values(diagonal):
        valid = valid_positions(affinity).unsqueeze(-1)
        if bool((valid & (diagonal == 0)).any()):
            raise ValueError(no_support("a position that weighs 0 has no affinity to any other"))
    if affinity.normalize == "count":
        diagonal = diagonal * inverse_or_zero(diagonal.sum(1, keepdim=True))
    elif affinity.normalize != "none":
        diagonal = (diagonal != 0).to(diagonal.dtype)
    return Operator(lambda z: diagonal * z, diagonal)


def _only_valid(operator: Operator, keep: Tensor) -> Operator:
    return Operator(lambda z: operator.apply(z) * keep, operator.sums * keep)
