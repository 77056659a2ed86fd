"""WeightMap: the W of one sub-block, factored or full; and what all linear maps of a stage have in common."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from nonloc._checks import shown
from nonloc._torch_compat import is_plain, is_untouched


def initialize_map(linear: nn.Linear, init: str, std: float) -> None:
    """Draw one map in place; biases start at 0, except under "torch".

    "normal"   normal with deviation `std`
    "kaiming"  He's normal by fan-out, deviation √(2 / out_features)
    "fan_in"   normal with deviation 1 / √in_features
    "torch"    PyTorch's own: uniform with deviation 1 / √(3 in_features)
    "zero"     as "torch"; the module that owns the map sets W_Z to 0 afterwards
    """
    if init in ("torch", "zero"):
        linear.reset_parameters()
        return
    if init == "kaiming":
        nn.init.kaiming_normal_(linear.weight, mode="fan_out", nonlinearity="relu")
    else:
        nn.init.normal_(linear.weight, std=std if init == "normal" else linear.in_features**-0.5)
    if linear.bias is not None:
        with torch.no_grad():
            linear.bias.zero_()


Device = torch.device | str | int | None


def check_factory(device: Device, dtype: torch.dtype | None) -> dict[str, Any]:
    """Return torch's keywords of a new parameter; a ValueError where there is no such device or dtype."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(
            f"dtype must be a floating dtype of torch, such as torch.float32, got {shown(dtype)}"
        )
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f'device={shown(device)} cannot be used here ({reason}); try "cpu"') from error
    return {"device": device, "dtype": dtype}


def make_map(inputs: int, outputs: int, bias: bool, **factory: Any) -> nn.Linear:
    """Return a map of channels; a ValueError where it does not fit into memory. factory: device and dtype."""
    try:
        return nn.Linear(inputs, outputs, bias=bias, **factory)
    except (RuntimeError, MemoryError, OverflowError) as error:
        raise ValueError(
            f"a map from {inputs:,} to {outputs:,} channels does not fit into memory; use smaller channels, hidden or "
            "embed"
        ) from error


def apply_map(linear: nn.Linear, x: Tensor) -> Tensor:
    """Return linear(x). Where torch refuses the dtype of x, or sharded weights, a ValueError names the fix."""
    if torch.compiler.is_compiling():
        return linear(x)  # a traced program cannot follow exceptions
    # Only torch knows which dtypes autocast, hooks and other kinds of weights accept: it is not checked before.
    try:
        return linear(x)
    except RuntimeError as error:
        if "DTensor" in str(error):
            raise ValueError(
                "the module's parameters are sharded, and gathered only while its model runs; call unshard() first, of "
                "the module that fully_shard was given"
            ) from error
        # Another module in the place of a map need not have a weight.
        has, got = getattr(linear, "weight", x).dtype, x.dtype
        if has == got or "dtype" not in str(error):
            raise
        # Autocast leaves float64 alone.
        autocast = "" if torch.float64 in (has, got) else ", or run both under torch.autocast"
        raise ValueError(
            f"the module has weights in {has} and its input is {got}; use module.to({got}) or x.to({has}){autocast}"
        ) from error


def plain_matrix(linear: nn.Linear | None) -> Tensor | None:
    """Return the weight of a map; None where calling the map is more than multiplying with it."""
    if not is_untouched(linear, nn.Linear, parametrized=True) or linear.bias is not None:
        return None
    weight = linear.weight
    return weight if is_plain(weight) else None


def map_matrix(linear: nn.Linear, inputs: int) -> Tensor:
    """Return the matrix of a map; another module in its place, such as LoRA, is asked what it does to a basis.

    inputs  how many channels the map takes, where it does not say so itself
    """
    if isinstance(linear, nn.Linear) and is_plain(linear.weight):
        return linear.weight
    like = next((one for one in linear.parameters() if one.dtype.is_floating_point), torch.empty(0))
    basis = torch.eye(getattr(linear, "in_features", inputs), dtype=like.dtype, device=like.device)
    return (apply_map(linear, basis) - apply_map(linear, torch.zeros_like(basis[:1]))).transpose(0, 1)


def _norm_of_valid(norm: nn.BatchNorm1d, change: Tensor, mask: Tensor) -> Tensor:
    """Return norm(change[mask]) at its positions and 0 elsewhere, in training, by operations of fixed shapes.

    A single valid position has no variance, and torch refuses it. A compiled program cannot look: there it gets β, and
    leaves the running statistics alone.
    """
    keep, count = mask.unsqueeze(-1), mask.sum()
    wide = change.to(torch.promote_types(change.dtype, torch.float32))
    mean = torch.where(keep, wide, 0).sum((0, 1)) / count.clamp(min=1)
    centred = torch.where(keep, wide - mean, 0)
    squares = centred.square().sum((0, 1))
    if norm.track_running_stats:
        with torch.no_grad():
            batches = cast(Tensor, norm.num_batches_tracked).add_(1)
            rate = 1 / batches.to(wide.dtype) if norm.momentum is None else norm.momentum
            unbiased = squares / (count - 1).clamp(min=1)
            for running, now in ((norm.running_mean, mean), (norm.running_var, unbiased)):
                assert running is not None
                running.copy_(torch.where(count > 1, running + rate * (now - running), running))
    valid = centred * (squares / count.clamp(min=1) + norm.eps).rsqrt()
    if norm.affine:
        valid = valid * norm.weight + norm.bias
    return torch.where(keep, valid, 0).to(change.dtype)


class WeightMap(nn.Module):
    """W = W_Z W_g, or one full W in the place of W_Z; then batch normalisation over the channels, if it is on.

    The kernel works between `inner` (W_g, [B, M, C] -> [B, M, r]) and `outer` (W_Z, [B, M, r] -> [B, M, C]).
    """

    def __init__(
        self,
        channels: int,
        *,
        hidden: int | None = None,
        weight: str = "factored",
        inner_bias: bool = False,
        outer_bias: bool = False,
        batch_norm: bool = False,
        **factory: Any,
    ) -> None:
        super().__init__()
        if hidden is not None and weight == "full":
            raise ValueError(
                f'hidden={hidden} has no meaning with weight="full"; drop it, or use weight="factored"'
            )
        # r: the number of channels that the kernel works on.
        self.rank = channels if weight == "full" else hidden or max(1, channels // 2)
        self.w_g = make_map(channels, self.rank, inner_bias, **factory) if weight == "factored" else None
        self.w_z = make_map(self.rank, channels, outer_bias, **factory)
        self.norm = nn.BatchNorm1d(channels, **factory) if batch_norm else None

    def inner(self, z: Tensor) -> Tensor:
        return z if self.w_g is None else apply_map(self.w_g, z)

    def outer(self, change: Tensor, mask: Tensor | None = None) -> Tensor:
        """W_Z and the normalisation; its batch statistics are those of the valid positions (mask [B, M])."""
        change = apply_map(self.w_z, change)
        if self.norm is None:
            return change
        # A normalisation without running statistics takes those of the batch in evaluation, too.
        takes_batch = self.norm.training or getattr(self.norm, "running_mean", False) is None
        if mask is None or not takes_batch:
            return self.norm(change.flatten(0, 1)).view_as(change)
        # The number of valid positions is no shape that a compiled program knows. Elsewhere selecting them is faster.
        if torch.compiler.is_compiling() and is_untouched(self.norm, nn.BatchNorm1d):
            return _norm_of_valid(self.norm, change, mask)
        valid = self.norm(change[mask])
        return torch.zeros_like(change, dtype=valid.dtype).index_put((mask,), valid)

    def factors(self) -> Tensor | tuple[Tensor, Tensor] | None:
        """Return W, or the pair (W_Z, W_g), as `propagate` takes it.

        None where the map is more than the matrix W: with a bias, a normalisation, hooks, another module in its
        place, or another kind of tensor for its weight. `inner` and `outer` must then be called.
        """
        outer = plain_matrix(self.w_z) if self.norm is None else None
        w_g = self.w_g
        if outer is None or w_g is None:
            return outer
        inner = plain_matrix(w_g)
        return None if inner is None else (outer, inner)

    def matrix(self) -> Tensor:
        """Return W [C, C], differentiable; batch normalisation is folded in with its running statistics."""
        w = map_matrix(self.w_z, self.rank)
        if self.w_g is not None:
            w = w @ map_matrix(self.w_g, len(w))
        norm: nn.Module | None = self.norm
        if norm is None or isinstance(norm, nn.Identity):
            return w
        variance = getattr(norm, "running_var", None)
        if variance is None:
            raise ValueError(
                f"W has no fixed value: its {type(norm).__name__} has no running statistics, so it depends on the "
                "input; use nn.BatchNorm1d with track_running_stats=True, or none"
            )
        scale = (variance + norm.eps).rsqrt()
        return (scale if norm.weight is None else norm.weight * scale).unsqueeze(-1) * w

    def reset(self, init: str, std: float) -> None:
        """Draw the maps again.

        "zero" makes the sub-block the identity: by γ = 0 with a normalisation (W_Z = 0 would leave it nothing to
        normalise), by W_Z = 0 without one.
        """
        if self.w_g is not None:
            initialize_map(self.w_g, init, std)
        initialize_map(self.w_z, init, std)
        if self.norm is not None:
            self.norm.reset_parameters()
        if init == "zero":
            with torch.no_grad():
                for parameter in (self.w_z if self.norm is None else self.norm).parameters():
                    parameter.zero_()
