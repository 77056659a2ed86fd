"""The paper's equations as loops over positions, written without nonloc's operator: what the modules must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def embedded_gaussian(x: Tensor, theta: Tensor, phi: Tensor) -> Tensor:
    """ω(X_i, X_j) = exp(θ(X_i)·φ(X_j)) [B, M, M]."""
    return torch.exp((x @ theta.T) @ (x @ phi.T).mT)


def original_step(z: Tensor, omega: Tensor, w_z: Tensor, w_g: Tensor) -> Tensor:
    """Z_i + W_Z / 𝒞_i Σ_j ω_ij W_g Z_j, Eq. (1) and (3)."""
    out = torch.empty_like(z)
    for b in range(z.shape[0]):
        for i in range(z.shape[1]):
            total = sum(omega[b, i, j] * (w_g @ z[b, j]) for j in range(z.shape[1]))
            out[b, i] = z[b, i] + w_z @ total / omega[b, i].sum()
    return out


def diffusive_step(z: Tensor, omega: Tensor, w: Tensor) -> Tensor:
    """Z_i + W / 𝒞_i Σ_j ω_ij (Z_j − Z_i), Eq. (8)."""
    out = torch.empty_like(z)
    for b in range(z.shape[0]):
        for i in range(z.shape[1]):
            total = sum(omega[b, i, j] * (z[b, j] - z[b, i]) for j in range(z.shape[1]))
            out[b, i] = z[b, i] + w @ total / omega[b, i].sum()
    return out
