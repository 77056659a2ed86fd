"""WeightMap: the W of one sub-block, factored or full, with its normalisation."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from nonloc.nn.initialization import initialize_map
from nonloc.nn.mapped import mapped
from nonloc.nn.options import check_choice, check_size
from nonloc.nn.untouched import is_untouched


class WeightMap(nn.Module):
    """W = W_Z W_g, or one full W in the place of W_Z; then batch normalisation over the channels, if asked.

    The kernel works between `inner` (W_g, [B, M, C] -> [B, M, r]) and `outer` (W_Z, [B, M, r] -> [B, M, C]).
    """

    def __init__(
        self,
        channels: int,
        *,
        hidden: int | None,
        weight: str,
        inner_bias: bool,
        outer_bias: bool,
        batch_norm: bool,
    ) -> None:
        super().__init__()
        check_choice("weight", weight, ("factored", "full"))
        if hidden is not None:
            hidden = check_size("hidden", hidden)
            if weight == "full":
                raise ValueError(
                    f'hidden={hidden} has no meaning with weight="full"; drop it, or use weight="factored"'
                )
        # r: the number of channels that the kernel works on.
        self.rank = channels if weight == "full" else hidden or max(1, channels // 2)
        self.w_g = nn.Linear(channels, self.rank, bias=inner_bias) if weight == "factored" else None
        self.w_z = nn.Linear(self.rank, channels, bias=outer_bias)
        self.norm = nn.BatchNorm1d(channels) if batch_norm else None

    @property
    def is_linear(self) -> bool:
        """Whether the map is the matrix W and nothing more: no bias, no batch normalisation, nobody in between."""
        linears = [linear for linear in (self.w_g, self.w_z) if linear is not None]
        return self.norm is None and all(
            is_untouched(linear, nn.Linear, parametrized=True) and linear.bias is None for linear in linears
        )

    def inner(self, z: Tensor) -> Tensor:
        return z if self.w_g is None else mapped(self.w_g, z)

    def outer(self, change: Tensor, mask: Tensor | None = None) -> Tensor:
        """W_Z and the normalisation; its batch statistics are those of the valid positions (mask [B, M])."""
        change = mapped(self.w_z, change)
        if self.norm is None:
            return change
        if mask is None or not self.norm.training:
            return self.norm(change.flatten(0, 1)).view_as(change)
        valid = self.norm(change[mask])
        return torch.zeros_like(change, dtype=valid.dtype).index_put((mask,), valid)

    def factors(self) -> Tensor | tuple[Tensor, Tensor]:
        """W, or the pair (W_Z, W_g), as `propagate` takes it."""
        return self.w_z.weight if self.w_g is None else (self.w_z.weight, self.w_g.weight)

    def matrix(self) -> Tensor:
        """W [C, C], differentiable; batch normalisation folded in with its running statistics."""
        w = self.w_z.weight if self.w_g is None else self.w_z.weight @ self.w_g.weight
        if self.norm is None:
            return w
        variance = cast(Tensor, self.norm.running_var)
        return (self.norm.weight * (variance + self.norm.eps).rsqrt()).unsqueeze(-1) * w

    def reset(self, init: str, std: float) -> None:
        """Draw the maps again. "zero" makes the sub-block the identity: by γ = 0 where there is a
        normalisation (W_Z = 0 would leave it nothing to normalise), by W_Z = 0 where there is none."""
        if self.w_g is not None:
            initialize_map(self.w_g, init, std)
        initialize_map(self.w_z, init, std)
        if self.norm is not None:
            self.norm.reset_parameters()
        if init == "zero":
            with torch.no_grad():
                for parameter in (self.w_z if self.norm is None else self.norm).parameters():
                    parameter.zero_()
