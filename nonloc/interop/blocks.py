"""The nonlocal block that other libraries have in common, as an OriginalBlock with the same output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nonloc._checks import check_choice
from nonloc._torch_compat import ConvBase
from nonloc.nn.affinity import AffinityLike, Concatenation, EmbeddedGaussian, Pool
from nonloc.nn.stage import OriginalBlock
from nonloc.nn.weight import apply_map, make_map

# By the other libraries' name of a mode.
AFFINITY_OF_MODE = {
    "gaussian": "gaussian",
    "embedded_gaussian": "embedded_gaussian",
    "dot_product": "dot",
    "concatenation": "concat",
}
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class LinearMap(NamedTuple):
    """The weight [outputs, inputs] and the bias [outputs] of a 1 × 1 convolution."""

    weight: Tensor
    bias: Tensor | None


class Norm(NamedTuple):
    """A batch normalisation: its state dict, and the numbers that are not in it."""

    state: Mapping[str, Tensor]
    eps: float = 1e-5
    momentum: float | None = 0.1


class PooledConcatenation(Concatenation):
    """ω = relu(w·[θ(x_i), φ(x_j)]) where φ(x) is pooled in d channels before w makes one number of them.

    Without a pooling in between w and φ are one map, which is what `Concatenation` has.
    """

    def __init__(self, channels: int, embed: int, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__(channels, bias=True, device=device, dtype=dtype)
        self.phi = make_map(channels, embed, True, device=device, dtype=dtype)
        self.project = make_map(embed, 1, False, device=device, dtype=dtype)

    def forward(
        self, x: Tensor, keys: Tensor | None = None, pool: Pool | None = None
    ) -> tuple[Tensor, Tensor]:
        assert self.theta is not None
        assert self.phi is not None
        right = apply_map(self.phi, x if keys is None else keys)
        return apply_map(self.theta, x), apply_map(self.project, right if pool is None else pool(right))


def check_has(module: Any, names: Iterable[str], kind: str) -> None:
    """ValueError unless the module has these attributes, as `kind` has."""
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        raise ValueError(f"module must be {kind}, got {type(module).__name__}, which has no {missing[0]}")


def linear_map(name: str, module: Any) -> LinearMap:
    """Return a 1 × 1 convolution as a map of channels; a ValueError for anything else."""
    if not isinstance(module, ConvBase):
        raise ValueError(f"{name} must be a 1 × 1 convolution, got {type(module).__name__}")
    return as_map(name, module.weight, module.bias)


def as_map(name: str, weight: Tensor, bias: Tensor | None) -> LinearMap:
    """Return the map with the weight [outputs, inputs, 1, …] of a convolution."""
    if weight.dim() < 3 or weight.shape[2:].numel() != 1:
        raise ValueError(f"{name} must be a 1 × 1 convolution, its weight is {list(weight.shape)}")
    return LinearMap(weight.detach().flatten(1), None if bias is None else bias.detach())


def batch_norm(name: str, module: Any) -> Norm:
    """Return a batch normalisation with its statistics; a ValueError for other normalisations."""
    if not isinstance(module, BATCH_NORMS) or not (module.affine and module.track_running_stats):
        raise ValueError(
            f"{name} must be a batch normalisation with weights and running statistics, got {module}; our blocks "
            "have no other"
        )
    return Norm(module.state_dict(), module.eps, module.momentum)


def make_block(
    part: Callable[[str], LinearMap],
    mode: str,
    *,
    norm: Norm | None = None,
    scale: float | None = None,
    subsample: int | None = None,
) -> OriginalBlock:
    """Return an OriginalBlock that computes x + norm(w_z(K g(x))), as their block of this mode does.

    part       its maps: "g" and "w_z"; K is made from "theta" and "phi", but for "gaussian", and of "concatenation"
               from "project"
    mode       one of AFFINITY_OF_MODE
    norm       None: there is none
    scale      of the logits of "embedded_gaussian"; None: 1
    subsample  the stride of the pooling of φ(x) and g(x); None: there is none
    """
    check_choice("mode", mode, AFFINITY_OF_MODE)
    w_z = part("w_z")
    weight = w_z.weight
    channels, hidden = weight.shape
    factory: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
    affinity: AffinityLike = AFFINITY_OF_MODE[mode]
    embed = hidden if mode == "dot_product" else None
    if mode == "embedded_gaussian":
        affinity = EmbeddedGaussian(channels, hidden, bias=True, scale=scale, **factory)
    elif mode == "concatenation" and subsample is not None:
        affinity = PooledConcatenation(channels, hidden, **factory)
    block = OriginalBlock(
        channels,
        hidden=hidden,
        bias=True,
        affinity=affinity,
        embed=embed,
        batch_norm=norm is not None,
        subsample=subsample,
        pool_after=subsample is not None,
        **factory,
    )
    weights: Any = block.maps[0]
    embedding: Any = block.embeddings[0]
    _copy(weights.w_g, part("g"))
    _copy(weights.w_z, w_z)
    if norm is not None:
        # Old state dicts do not count batches.
        state = {"num_batches_tracked": torch.tensor(0), **norm.state}
        weights.norm.load_state_dict(state)
        weights.norm.eps, weights.norm.momentum = norm.eps, norm.momentum
    if mode == "gaussian":
        return block
    theta, phi = part("theta"), part("phi")
    if mode == "concatenation":
        of_theta, of_phi = part("project").weight.split(hidden, dim=1)
        theta = _product(of_theta, theta)
        if subsample is None:
            phi = _product(of_phi, phi)
        else:
            _copy(embedding.project, LinearMap(of_phi, None))
    _copy(embedding.theta, theta)
    _copy(embedding.phi, phi)
    return block


def _product(weight: Tensor, after: LinearMap) -> LinearMap:
    """Return the map x -> weight after(x)."""
    return LinearMap(weight @ after.weight, None if after.bias is None else weight @ after.bias)


def _copy(target: Any, source: LinearMap) -> None:
    with torch.no_grad():
        target.weight.copy_(source.weight)
        if target.bias is not None:
            target.bias.copy_(0 if source.bias is None else source.bias)
