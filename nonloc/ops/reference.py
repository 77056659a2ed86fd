"""The equations as written, with the M × M matrix in memory. Every other backend is tested against it.

Any floating dtype, any device, differentiable twice. The largest logit of a row is subtracted before exponentials where
the normalisation cancels it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc.ops.affinity import Affinity, centred, position_weights, valid_positions
from nonloc.ops.arithmetic import inverse_or_zero, inverse_root_or_zero, log_positive
from nonloc.ops.normalize import Operator
from nonloc.ops.sinkhorn import scaled_matrix


def prepare(affinity: Affinity, dtype: torch.dtype) -> Operator:
    """The kernel matrix, once, as something that can be applied to any z."""
    kernel = matrix(affinity, dtype)
    return Operator(lambda z: kernel @ z, kernel.sum(-1, keepdim=True))


def matrix(affinity: Affinity, dtype: torch.dtype) -> Tensor:
    """K [B, M, M'], mask, measure and normalisation included."""
    build = _from_logits if affinity.has_logits else _from_values
    kernel = build(affinity, dtype)
    if affinity.mask is not None:
        kernel = kernel * affinity.mask.unsqueeze(-1)
    return kernel


def logits(affinity: Affinity, dtype: torch.dtype) -> Tensor:
    """log Ω [B, M, M'] of the exponential kernels."""
    if affinity.kind == "gaussian":
        return affinity.scale * (affinity.left.to(dtype) @ affinity.right.to(dtype).transpose(-2, -1))
    # |l − r|² by its expansion, which needs no [B, M, M', d]; centred, so that little cancels.
    left, right = centred(affinity, dtype)
    squares = left.square().sum(-1, keepdim=True) + right.square().sum(-1).unsqueeze(1)
    return -affinity.scale * (squares - 2 * (left @ right.transpose(-2, -1)))


def values(affinity: Affinity, dtype: torch.dtype) -> Tensor:
    """Ω [B, M, M'] of the kernels that are not exponentials."""
    left, right = affinity.left.to(dtype), affinity.right.to(dtype)
    if affinity.kind == "dot":
        return affinity.scale * (left @ right.transpose(-2, -1))
    if affinity.kind == "concat":
        return torch.relu(left + right.transpose(-2, -1))
    identity = torch.eye(affinity.positions, dtype=dtype, device=left.device)
    return identity.expand(affinity.batch, -1, -1)


def _from_logits(affinity: Affinity, dtype: torch.dtype) -> Tensor:
    log_omega = logits(affinity, dtype)
    if affinity.normalize == "row" and affinity.mask is None and affinity.measure is None:
        return torch.softmax(log_omega, -1)
    columns = position_weights(affinity, dtype).unsqueeze(1)
    if affinity.normalize == "none":
        return log_omega.exp() * columns
    if affinity.normalize == "count":
        return log_omega.exp() * columns * inverse_or_zero(columns.sum(-1, keepdim=True))
    # −inf in columns of weight 0, so that they are not the maximum and do not overflow.
    log_omega = log_omega.masked_fill(columns == 0, -torch.inf)
    if affinity.normalize == "row":
        peak = finite_peak(log_omega)
        omega = (log_omega - peak).exp() * columns
        return omega * inverse_or_zero(omega.sum(-1, keepdim=True))
    if affinity.normalize == "symmetric":
        half = 0.5 * log_sum(log_omega, columns, empty=0)
        return (log_omega - half.unsqueeze(-1) - half.unsqueeze(1)).exp() * columns

    def scaled(x: Tensor) -> Tensor:
        return (log_omega + x.unsqueeze(-1) + x.unsqueeze(1)).exp() * columns * valid.unsqueeze(-1)

    def log_apply(x: Tensor) -> Tensor:
        return log_sum(log_omega + x.unsqueeze(1), columns)

    valid, steps = valid_positions(affinity), affinity.sinkhorn_steps
    return scaled_matrix(log_apply, scaled, valid, dtype, steps=steps, saves_exponentials=True)


def _from_values(affinity: Affinity, dtype: torch.dtype) -> Tensor:
    columns = position_weights(affinity, dtype).unsqueeze(1)
    omega = values(affinity, dtype) * columns
    if affinity.normalize == "none":
        return omega
    if affinity.normalize == "count":
        return omega * inverse_or_zero(columns.sum(-1, keepdim=True))
    sums = omega.sum(-1, keepdim=True)
    if affinity.normalize == "row":
        return omega * inverse_or_zero(sums)
    if affinity.normalize == "symmetric":
        root = inverse_root_or_zero(sums)
        return root * omega * root.transpose(-2, -1)

    def scaled(x: Tensor) -> Tensor:
        u = x.exp() * valid
        return u.unsqueeze(-1) * omega * u.unsqueeze(1)

    def log_apply(x: Tensor) -> Tensor:
        return log_positive(omega @ x.exp().unsqueeze(-1))

    valid, steps = valid_positions(affinity), affinity.sinkhorn_steps
    return scaled_matrix(log_apply, scaled, valid, dtype, steps=steps, saves_exponentials=False)


def finite_peak(log_omega: Tensor) -> Tensor:
    """The largest logit of each row, as a constant; 0 for a row that is all −inf."""
    peak = log_omega.detach().amax(-1, keepdim=True)
    return torch.where(peak == -torch.inf, 0, peak)


def log_sum(log_omega: Tensor, columns: Tensor, empty: float = -torch.inf) -> Tensor:
    """log Σ_j Ω_ij μ_j [B, M], and `empty` for a row without a giver."""
    peak = finite_peak(log_omega)
    return log_positive(((log_omega - peak).exp() * columns).sum(-1, keepdim=True), empty) + peak.squeeze(-1)
