"""NonlocalModule: all that original and diffusive, block and stage have in common."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from nonloc.nn.affinity import AffinityLike, AnyAffinity, PairwiseAffinity, checked, make_affinity
from nonloc.nn.layout import check_shape, flat_mask, from_positions, pool_positions, to_positions
from nonloc.nn.options import INITS, LAYOUTS, WEIGHTS, check_choice, check_deviation, check_flag, check_size
from nonloc.nn.stable_weight import StableWeightMap, check_stable, known_limit
from nonloc.nn.weight import WeightMap
from nonloc.ops import BACKENDS, Affinity, propagate


class NonlocalModule(nn.Module, ABC):
    """Abstract: N sub-blocks, each with its own W, and one affinity for all or one for each.

    channels          C, of the input and the output alike
    num_blocks        N
    num_affinities    1: ω is computed once, from the module's input; N: from the current state, each with its
                      own embedding
    hidden            r, the rank of W = W_Z W_g or of the stable W; C // 2 when None
    weight            "factored" (W = W_Z W_g) or "full" (one W [C, C]); diffusive forms also "stable": W of rank r,
                      symmetric and so small for its kernel that no input can grow, see `StableWeightMap`. It needs
                      normalize "row" or "sinkhorn" and a kernel that is nowhere negative, and takes neither bias,
                      batch_norm nor init="zero"
    bias              give every map a bias. The diffusive forms have none in W_g, where z_j − z_i cancels it.
    affinity          "gaussian", "embedded_gaussian", "dot", "concat", "heat" or "delta"; a module x [B, M, C] ->
                      Affinity or SparseAffinity (copied for the further sub-blocks that need their own); or a
                      factory channels -> module
    embed             width of θ and φ; C // 2 when None
    shared_embedding  φ = θ, which makes Ω symmetric; None is the affinity's default: separate, but for "heat"
    normalize         "row", "count", "none", "symmetric" or "sinkhorn"; None is the affinity's default: "count" for
                      "dot" and "concat", "row" for the others
    scaled            divide the logits by √d, which the paper and Wang et al. do not, so that it is False; in a model
                      of your own take True: no bound on W keeps logits from running away (`nonloc.logit_spreads`)
    init, init_std    "normal": W_Z, W_g, θ, φ normal with deviation init_std; "zero": the identity at first,
                      with W_Z = 0 (γ = 0 with batch_norm) and PyTorch's default elsewhere; "kaiming": He's
                      normal by fan-out; "torch": PyTorch's default; "fan_in": normal, deviation 1/√fan_in.
                      An affinity that is not given by name keeps the initialisation it has. From "zero" only W_Z
                      (γ) has a gradient in the first step; the others follow as soon as it is not 0.
    batch_norm        batch normalisation over the channels, after W_Z
    layout            "channels_first" ([B, C, L], [B, C, H, W], [B, C, T, H, W]) or "positions" ([B, M, C],
                      [B, H, W, C], [B, T, H, W, C]); None is "channels_first"
    backend           "auto", or one of "reference", "factored" and "fused"
    subsample         original forms only: max-pool the keys (what φ and W_g see) by this stride in height and
                      width (in length for [B, C, L]); what receives is not pooled, so that the output keeps its size
    """

    form: ClassVar[str]
    uses_differences: ClassVar[bool]

    def __init__(
        self,
        channels: int,
        num_blocks: int,
        num_affinities: int,
        *,
        hidden: int | None = None,
        weight: str = "factored",
        bias: bool = False,
        affinity: AffinityLike = "embedded_gaussian",
        embed: int | None = None,
        shared_embedding: bool | None = None,
        normalize: str | None = None,
        scaled: bool = False,
        init: str = "normal",
        init_std: float = 0.01,
        batch_norm: bool = False,
        layout: str | None = None,
        backend: str = "auto",
        subsample: int | None = None,
    ) -> None:
        super().__init__()
        channels, num_blocks = check_size("channels", channels), check_size("num_blocks", num_blocks)
        check_choice("weight", weight, WEIGHTS)
        check_choice("init", init, INITS)
        check_deviation("init_std", init_std)
        for name, flag in (("bias", bias), ("scaled", scaled), ("batch_norm", batch_norm)):
            check_flag(name, flag)
        check_choice("layout", "channels_first" if layout is None else layout, LAYOUTS)
        check_choice("backend", backend, ("auto", *BACKENDS))
        self.channels = channels
        self.num_blocks = num_blocks
        self.weight = weight
        self.init = init
        self.init_std = float(init_std)
        self.layout = layout or "channels_first"
        # A layout that nobody chose is one that `insert` may doubt.
        self.is_layout_given = layout is not None
        self.backend = backend
        self.subsample = self._check_subsample(subsample)
        if weight == "stable":
            check_stable(uses_differences=self.uses_differences, bias=bias, batch_norm=batch_norm, init=init)

        def one_map() -> WeightMap | StableWeightMap:
            if weight == "stable":
                return StableWeightMap(channels, hidden=hidden)
            inner_bias = bias and not self.uses_differences
            return WeightMap(
                channels,
                hidden=hidden,
                weight=weight,
                inner_bias=inner_bias,
                outer_bias=bias,
                batch_norm=batch_norm,
            )

        def one_embedding(n: int) -> nn.Module:
            if isinstance(affinity, nn.Module) and n > 0:
                return copy.deepcopy(affinity)
            keywords = {"embed": embed, "shared": shared_embedding, "normalize": normalize, "scaled": scaled}
            if isinstance(affinity, str):
                keywords["bias"] = bias
            return make_affinity(affinity, channels, **keywords)

        self.maps = nn.ModuleList(one_map() for _ in range(num_blocks))
        self.embeddings = nn.ModuleList(one_embedding(n) for n in range(num_affinities))
        if weight == "stable":
            limit = known_limit(self.embeddings, channels)
            for one in self.maps:
                cast(StableWeightMap, one).limit = limit
        self._draws_embeddings = isinstance(affinity, str)
        self.reset_parameters()

    @abstractmethod
    def _operate(self, affinity: AnyAffinity, z: Tensor) -> Tensor:
        """What the kernel does to W_g z [B, M or M', r]."""

    def _final_state(self, z: Tensor, mask: Tensor | None, shape: torch.Size) -> Tensor:
        maps = self._weight_maps()
        if self.subsample is not None or not all(weight.is_linear for weight in maps):
            for _, state in self._evolve(z, mask, shape):
                z = state
            return z
        # Everything is W and kernels: sub-blocks that share a kernel are one operation, which prepares it once.
        factors = [weight.factors() for weight in maps]
        parts = [factors] if self.shares_affinity else [[one] for one in factors]
        for n, weights in enumerate(parts):
            affinity = self._affinity_at(n, z, None, mask)
            z = propagate(affinity, z, weights, differences=self.uses_differences, backend=self.backend)
        return z

    @property
    def shares_affinity(self) -> bool:
        """Whether one affinity, computed from the module's input, serves all sub-blocks."""
        return len(self.embeddings) == 1

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Z^N from Z^0 = x, in x's layout.

        mask  True where a position is valid: [B, *spatial], the shape of x without its channels. The other
              positions neither give nor receive; they come back as they are.
        """
        start, valid = self._enter(x, mask)
        result = from_positions(self._final_state(start, valid, x.shape), self.layout, x.shape)
        return self._keep_padding(x, result, mask)

    # For a type checker not `AnyAffinity`: who gave no graph should not have to say so before reading `.left`.
    def affinity(self, x: Tensor, mask: Tensor | None = None) -> Affinity | Any:
        """The affinity that the first sub-block uses (a SparseAffinity where its module returns one);
        `nonloc.kernel_matrix` makes it a map [B, M, M]."""
        start, valid = self._enter(x, mask)
        return self._affinity_at(0, start, self._keys(start, x.shape), valid)

    def affinities(self, x: Tensor, mask: Tensor | None = None) -> list[Affinity | Any]:
        """The affinity of every sub-block; where they share one, the same object N times."""
        if self.shares_affinity:
            return [self.affinity(x, mask)] * self.num_blocks
        start, valid = self._enter(x, mask)
        return [affinity for affinity, _ in self._evolve(start, valid, x.shape)]

    def states(self, x: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """Z^0 = x, Z^1, …, Z^N, each in x's layout."""
        start, valid = self._enter(x, mask)
        states = [from_positions(z, self.layout, x.shape) for _, z in self._evolve(start, valid, x.shape)]
        return [x, *(self._keep_padding(x, state, mask) for state in states)]

    def check_shape(self, shape: torch.Size) -> None:
        """ValueError, saying why, unless the module takes an input of this shape."""
        check_shape(shape, self.layout, self.channels, self.subsample)

    def weights(self) -> list[Tensor]:
        """W [C, C] of every sub-block: W_Z W_g or the full W, with batch normalisation folded in by its
        running statistics, diag(γ / √(σ² + ε)) W. Differentiable with respect to the parameters."""
        return [weight.matrix() for weight in self._weight_maps()]

    def reset_parameters(self) -> None:
        """Draw all maps again as `init` says, as after materialising a module from the meta device."""
        for weight in self._weight_maps():
            weight.reset(self.init, self.init_std)
        if self._draws_embeddings:
            for embedding in self.embeddings:
                cast(PairwiseAffinity, embedding).reset(self.init, self.init_std)

    def extra_repr(self) -> str:
        weight = (
            self.weight if self.weight == "full" else f"{self.weight}, hidden={self._weight_maps()[0].rank}"
        )
        parts = [f"channels={self.channels}", f"num_blocks={self.num_blocks}", f"weight={weight}"]
        if self.num_blocks > 1:
            parts.append("one affinity for all" if self.shares_affinity else "an affinity for each")
        parts.append(f"init={self.init}" + (f"({self.init_std:g})" if self.init == "normal" else ""))
        if self.subsample:
            parts.append(f"subsample={self.subsample}")
        return ", ".join([*parts, f"layout={self.layout}", f"backend={self.backend}"])

    def _evolve(
        self, z: Tensor, mask: Tensor | None, shape: torch.Size
    ) -> Iterator[tuple[AnyAffinity, Tensor]]:
        """(the affinity, the state after) of each sub-block in turn, all as [B, M, C]."""
        affinity: AnyAffinity | None = None
        for n, weight in enumerate(self._weight_maps()):
            keys = self._keys(z, shape)
            if affinity is None or not self.shares_affinity:
                affinity = self._affinity_at(n, z, keys, mask)
            change = self._operate(affinity, weight.inner(z if keys is None else keys))
            z = z + weight.outer(change, mask)
            yield affinity, z

    def _affinity_at(self, n: int, z: Tensor, keys: Tensor | None, mask: Tensor | None) -> AnyAffinity:
        # A module that knows nothing of sub-sampling is called with what it knows.
        affinity = self.embeddings[n](z) if keys is None else self.embeddings[n](z, keys)
        return checked(affinity, mask, is_subsampled=keys is not None)

    def _keys(self, z: Tensor, shape: torch.Size) -> Tensor | None:
        return None if self.subsample is None else pool_positions(z, shape, self.subsample)

    def _enter(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        z = to_positions(x, self.layout, self.channels)
        valid = flat_mask(mask, x, self.layout)
        if valid is None:
            return z, None
        if self.subsample is not None:
            raise ValueError(
                "mask and subsample do not go together: a pooled key may be half padding; drop one"
            )
        # Zeros, so that a NaN in the padding cannot reach a gradient as 0 · NaN.
        return torch.where(valid.unsqueeze(-1), z, 0), valid

    def _keep_padding(self, x: Tensor, result: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return result
        return torch.where(mask.unsqueeze(-1 if self.layout == "positions" else 1), result, x)

    def _weight_maps(self) -> list[WeightMap | StableWeightMap]:
        return [cast(WeightMap | StableWeightMap, weight) for weight in self.maps]

    def _check_subsample(self, subsample: int | None) -> int | None:
        if subsample is None:
            return None
        if self.uses_differences:
            raise ValueError(
                f"subsample={subsample!r}: the diffusive form needs z_j − z_i at every position, so its keys "
                "cannot be sub-sampled; drop subsample, or use the original form"
            )
        subsample = check_size("subsample", subsample, minimum=2)
        if self.layout != "channels_first":
            raise ValueError(
                f"subsample={subsample} pools [B, C, *spatial], which layout={self.layout!r} does not "
                'take; use layout="channels_first"'
            )
        return subsample
