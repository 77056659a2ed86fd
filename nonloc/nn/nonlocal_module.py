"""NonlocalModule: the parameters, the forward pass and the questions that all four forms share."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.fx import Proxy, Tracer

from nonloc._checks import check_choice, check_flag, check_positive, check_whole
from nonloc.nn.affinity import AffinityLike, AnyAffinity, PairwiseAffinity, check_affinity, make_affinity
from nonloc.nn.layout import check_shape, flat_mask, from_positions, pool_positions, to_positions
from nonloc.nn.options import INITS, LAYOUTS, MOST_BLOCKS, SHARES, WEIGHTS, check_sharing
from nonloc.nn.stable_weight import StableWeightMap, check_stable, known_limit, stable_factors
from nonloc.nn.weight import Device, WeightMap, check_factory
from nonloc.ops import (
    BACKENDS,
    Affinity,
    Prepared,
    aggregate,
    choose_backend,
    diffuse,
    prepare,
    prepare_sharded,
    propagate,
)
from nonloc.ops.affinity import SYMMETRIC, zero_masked
from nonloc.ops.functional import compute_dtype
from nonloc.ops.fused.embedded import propagate_embedded

# The part of the docstrings that all forms share; SUBSAMPLE is for the original forms alone.
KEYWORDS = """
    hidden            r, the rank of W = W_Z W_g or of the stable W; C // 2 when None
    weight            "factored" (W = W_Z W_g) or "full" (one W [C, C]); diffusive forms also "stable": W of rank r,
                      symmetric and so small for its kernel that no input can grow, see `StableWeightMap`. It needs
                      normalize "row" or "sinkhorn" and a kernel that is nowhere negative. It takes neither bias,
                      batch_norm nor init="zero"
    bias              give every map a bias. The diffusive forms have none in W_g, where z_j − z_i cancels it.
    affinity          "gaussian", "embedded_gaussian", "dot", "concat", "heat" or "delta"; a module x [B, M, C] ->
                      Affinity or SparseAffinity (copied for the further sub-blocks that need their own); or a
                      factory channels -> module
    embed             width of θ and φ; C // 2 when None
    shared_embedding  φ = θ, which makes Ω symmetric; None is the affinity's default: separate, but for "heat"
    normalize         "row", "count", "none", "symmetric" or "sinkhorn"; None is the affinity's default: "count" for
                      "dot" and "concat", "row" for the others
    scaled            divide the logits by √d. The paper and Wang et al. do not, so it is False. In a model of your
                      own take True: no bound on W keeps logits from growing (`nonloc.logit_spreads`)
    init, init_std    "normal": W_Z, W_g, θ, φ normal with deviation init_std, which the others do not use; "zero":
                      the identity at first, with W_Z = 0 (γ = 0 with batch_norm) and PyTorch's default elsewhere;
                      "kaiming": He's normal by fan-out; "torch": PyTorch's default; "fan_in": normal, deviation
                      1/√fan_in.
                      An affinity that is a module keeps its own initialisation. From "zero" only W_Z (γ) has a
                      gradient in the first step; the others follow as soon as it is not 0.
    batch_norm        batch normalisation over the channels, after W_Z
    layout            "channels_first" ([B, C, L], [B, C, H, W], [B, C, T, H, W]) or "positions" ([B, M, C],
                      [B, H, W, C], [B, T, H, W, C]); None is "channels_first"
    backend           "auto", or one of "reference", "factored", "fused", "stored" and "attention"
    device, dtype     of the parameters, as in torch's own modules; an affinity that is a module moves there
    """
SHARING = """
                      "embedding": one θ and φ, which every sub-block applies to the current state.
                      "input": each sub-block has its own θ and φ, and applies them to the stage's input."""
SUBSAMPLE = """subsample         max-pool the keys (the input of φ and W_g) by this stride in height and width (in
                      length for [B, C, L]). The positions that receive are not pooled: the output keeps its size.
    pool_after        with subsample: pool the outputs of φ and W_g instead, as mmcv and Non-local_pytorch do.
                      The affinity module gets pool=, the function that pools [B, M, d]
    """


class NonlocalModule(nn.Module):
    __doc__ = f"""Abstract: N sub-blocks, each with its own W, and one affinity for all or one for each.

    channels          C, of the input and the output
    num_blocks        N
    share_affinity    True: ω is computed once, from the module's input; False: from the current state, each with its
                      own embedding.{SHARING}{KEYWORDS}{SUBSAMPLE}
    >>> from nonloc.nn import DiffusiveStage, NonlocalModule
    >>> stage = DiffusiveStage(4, num_blocks=2)
    >>> isinstance(stage, NonlocalModule)
    True
    >>> [list(state.shape) for state in stage.states(torch.zeros(1, 4, 3, 3))]
    [[1, 4, 3, 3], [1, 4, 3, 3], [1, 4, 3, 3]]
    """

    form: ClassVar[str]  # one of FORMS
    # Set by `shard`.
    is_sharded: bool = False
    group: Any = None

    def __init__(
        self,
        channels: int,
        num_blocks: int,
        share_affinity: bool | str = True,
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
        pool_after: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        channels = check_whole("channels", channels)
        num_blocks = check_whole("num_blocks", num_blocks, most=MOST_BLOCKS)
        if hidden is not None:
            hidden = check_whole("hidden", hidden)
        check_choice("weight", weight, WEIGHTS)
        check_choice("init", init, INITS)
        check_positive("init_std", init_std)
        check_sharing("share_affinity", share_affinity)
        for name, flag in (("bias", bias), ("scaled", scaled), ("batch_norm", batch_norm)):
            check_flag(name, flag)
        if shared_embedding is not None:
            check_flag("shared_embedding", shared_embedding)
        check_choice("layout", "channels_first" if layout is None else layout, LAYOUTS)
        check_choice("backend", backend, ("auto", *BACKENDS))
        factory = check_factory(device, dtype)
        self.channels = channels
        self.num_blocks = num_blocks
        self.share_affinity = share_affinity
        self.weight = weight
        self.init = init
        self.init_std = float(init_std)
        self.layout = layout or "channels_first"
        # `insert` asks for a layout where a default may be wrong.
        self.is_layout_given = layout is not None
        self.backend = backend
        self.subsample = self._check_subsample(subsample)
        check_flag("pool_after", pool_after)
        if pool_after and subsample is None:
            raise ValueError(
                "pool_after=True needs subsample, the stride of the pooling; give one, such as 2"
            )
        self.pool_after = pool_after
        if weight == "stable":
            check_stable(uses_differences=self.uses_differences, bias=bias, batch_norm=batch_norm, init=init)

        def make_map() -> WeightMap | StableWeightMap:
            if weight == "stable":
                return StableWeightMap(channels, hidden=hidden, **factory)
            inner_bias = bias and not self.uses_differences
            return WeightMap(
                channels, hidden=hidden, weight=weight, inner_bias=inner_bias, outer_bias=bias, batch_norm=batch_norm,
                **factory,
            )  # fmt: skip

        def make_embedding(n: int) -> nn.Module:
            if isinstance(affinity, nn.Module) and n > 0:
                return copy.deepcopy(affinity)
            keywords = {"embed": embed, "shared": shared_embedding, "normalize": normalize, "scaled": scaled}
            if isinstance(affinity, str):
                return make_affinity(affinity, channels, bias=bias, **keywords, **factory)
            embedding = make_affinity(affinity, channels, **keywords)
            return embedding if device is None and dtype is None else embedding.to(device=device, dtype=dtype)

        self.maps = nn.ModuleList(make_map() for _ in range(num_blocks))
        has_one = share_affinity in (True, "embedding")
        self.embeddings = nn.ModuleList(make_embedding(n) for n in range(1 if has_one else num_blocks))
        for one in self.embeddings if self.subsample else ():
            kind, by = getattr(one, "kind", None), getattr(one, "normalize", None)
            if kind == "delta" or by in SYMMETRIC:
                refused, use = f"normalize={by!r}", 'normalize="row"'
                if kind == "delta":
                    refused, use = 'affinity="delta"', 'affinity="embedded_gaussian"'
                raise ValueError(
                    f"subsample={subsample} does not go with {refused}, whose givers and receivers are the same "
                    f"positions; use {use}"
                )
        if weight == "stable":
            limit = known_limit(self.embeddings, channels, is_one_kernel=self.shares_affinity)
            for one in self.maps:
                cast(StableWeightMap, one).limit = limit
        self._draws_embeddings = isinstance(affinity, str)
        self.reset_parameters()

    @property
    def uses_differences(self) -> bool:
        """Whether sub-blocks add W Σ_j K_ij (z_j − z_i), and not W Σ_j K_ij z_j."""
        return self.form == "diffusive"

    @property
    def shares_affinity(self) -> bool:
        """Whether one affinity, computed from the module's input, serves all sub-blocks."""
        return self.share_affinity is True or self.num_blocks == 1

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return Z^N from Z^0 = x, in x's layout.

        mask  True where a position is valid: [B, *spatial], the shape of x without its channels. The other
              positions neither give nor receive; they come back as they are.
        """
        if isinstance(x, Proxy):
            return self._as_leaf(x, mask)
        z, valid = self._enter(x, mask)
        factors = None if self.subsample is not None else self._factors()
        if factors is None:
            for _, state in self._evolve(z, valid, x.shape):
                z = state
            return self._leave(z, x, mask)
        # Sub-blocks that share a kernel are one operation, which prepares it once.
        parts = [factors] if self.shares_affinity else [[one] for one in factors]
        first = z
        for n, weights in enumerate(parts):
            source, embedding = self._source(first, z), self._embedding_at(n)
            moved = None
            if source is z and valid is None:
                moved = self._propagate_embedded(embedding, z, weights)
            if moved is None:
                affinity = self._affinity_of(embedding, source, x.shape, valid)
                kernel = self._prepare(affinity, z) if self.is_sharded else affinity
                backend = "auto" if self.is_sharded else self.backend
                moved = propagate(kernel, z, weights, differences=self.uses_differences, backend=backend)
            z = moved
        return self._leave(z, x, mask)

    def _propagate_embedded(self, embedding: nn.Module, z: Tensor, weights: Sequence[Any]) -> Tensor | None:
        """Return the state after `weights`, with the embedding inside one fast computation; None without one."""
        if self.is_sharded or not isinstance(embedding, PairwiseAffinity):
            return None
        maps, scale, differs = embedding.matrices, embedding.scale, self.uses_differences
        return propagate_embedded(z, maps, weights, scale=scale, differences=differs, backend=self.backend)

    def _as_leaf(self, x: Proxy, mask: Any) -> Any:
        """Return the call of this module in a program that torch.fx traces, which cannot look inside."""
        tracer = x.tracer
        if not isinstance(tracer, Tracer) or tracer.root is self:
            raise ValueError(
                "torch.fx does not look inside a nonlocal module; trace a model that has it as a submodule, such as "
                "nn.Sequential(stage)"
            )
        keywords = {} if mask is None else {"mask": mask}
        return tracer.create_proxy("call_module", tracer.path_of_module(self), (x,), keywords)

    # For a type checker not `AnyAffinity`: without a graph `.left` is there, and needs no test before.
    def affinity(self, x: Tensor, mask: Tensor | None = None) -> Affinity | Any:
        """Return the affinity of the first sub-block (a SparseAffinity where its module returns one).

        `nonloc.kernel_matrix` makes it a map [B, M, M].
        """
        z, valid = self._enter(x, mask)
        return self._affinity_of(self._embedding_at(0), z, x.shape, valid)

    def affinities(self, x: Tensor, mask: Tensor | None = None) -> list[Affinity | Any]:
        """Return the affinity of every sub-block; where they share one, the same object N times."""
        if self.shares_affinity:
            return [self.affinity(x, mask)] * self.num_blocks
        z, valid = self._enter(x, mask)
        return [affinity for affinity, _ in self._evolve(z, valid, x.shape)]

    def states(self, x: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """Return Z^0 = x, Z^1, …, Z^N, each in x's layout."""
        z, valid = self._enter(x, mask)
        return [x, *(self._leave(state, x, mask) for _, state in self._evolve(z, valid, x.shape))]

    def check_shape(self, shape: torch.Size) -> None:
        """Raise a ValueError, saying why, unless the module takes an input of this shape."""
        check_shape(shape, self.layout, self.channels, self.subsample)

    def weights(self) -> list[Tensor]:
        """Return W [C, C] of every sub-block, differentiable with respect to the parameters.

        Batch normalisation is folded in by its running statistics: diag(γ / √(σ² + ε)) W.
        """
        return [weight.matrix() for weight in self._weight_maps()]

    def reset_parameters(self) -> None:
        """Draw all maps again as `init` says, as after materialising a module from the meta device.

        Of a whole model call it for children first, as `model.apply(function)` does. A loop over `model.modules()` has
        the parents first: the linear maps in a stage would then draw themselves again, as torch does.
        """
        for weight in self._weight_maps():
            weight.reset(self.init, self.init_std)
        if self._draws_embeddings:
            for embedding in self.embeddings:
                cast(PairwiseAffinity, embedding).reset(self.init, self.init_std)

    def extra_repr(self) -> str:
        rank = "" if self.weight == "full" else f", hidden={self.maps[0].rank}"
        parts = [f"channels={self.channels}", f"num_blocks={self.num_blocks}", f"weight={self.weight}{rank}"]
        if self.num_blocks > 1:
            whole = "one affinity" if self.shares_affinity else "own affinities"
            shared = self.share_affinity if self.share_affinity in SHARES else None
            parts.append(whole if shared is None else f"{whole}, of one {shared}")
        parts.append(f"init={self.init}" + (f"({self.init_std:g})" if self.init == "normal" else ""))
        if self.subsample:
            parts.append(f"subsample={self.subsample}" + (" after the maps" if self.pool_after else ""))
        return ", ".join([*parts, f"layout={self.layout}", f"backend={self.backend}"])

    def _evolve(
        self, z: Tensor, mask: Tensor | None, shape: torch.Size
    ) -> Iterator[tuple[AnyAffinity, Tensor]]:
        """Yield (the affinity, the state after) of each sub-block in turn, all as [B, M, C]."""
        operation = diffuse if self.uses_differences else aggregate
        kernel: Prepared | None = None
        first = z
        for n, weight in enumerate(self._weight_maps()):
            hidden = self._givers(weight, z, shape)
            if kernel is None:
                source, embedding = self._source(first, z), self._embedding_at(n)
                kernel = self._prepare(self._affinity_of(embedding, source, shape, mask), hidden)
            z = z + weight.outer(operation(kernel, hidden), mask)
            affinity = kernel.affinity
            if not self.shares_affinity:
                kernel = None  # before the next one is made: two would take twice the memory
            yield affinity, z

    def _prepare(self, affinity: AnyAffinity, hidden: Tensor) -> Prepared:
        if self.is_sharded:
            dtype = compute_dtype(affinity, hidden)
            return prepare_sharded(affinity, dtype, group=self.group, backend=self.backend)
        backend = choose_backend(affinity, hidden) if self.backend == "auto" else self.backend
        return prepare(affinity, compute_dtype(affinity, hidden), backend=backend)

    def _source(self, first: Tensor, z: Tensor) -> Tensor:
        """Return what the affinity of a sub-block is computed from: the module's input or the current state."""
        return first if self.share_affinity in (True, "input") else z

    def _embedding_at(self, n: int) -> nn.Module:
        embeddings = self.embeddings
        return embeddings[n % len(embeddings)]  # there is one, or one for each sub-block

    def _affinity_of(
        self, embedding: nn.Module, z: Tensor, shape: torch.Size, mask: Tensor | None
    ) -> AnyAffinity:
        # A module of the user need not know of sub-sampling: it gets keys, or pool, only where there are some.
        if self.subsample is None:
            affinity = embedding(z)
        elif self.pool_after:
            affinity = embedding(z, pool=partial(pool_positions, shape=shape, stride=self.subsample))
        else:
            affinity = embedding(z, pool_positions(z, shape, self.subsample))
        return check_affinity(affinity, mask, is_subsampled=self.subsample is not None)

    def _givers(self, weight: WeightMap | StableWeightMap, z: Tensor, shape: torch.Size) -> Tensor:
        """Return W_g z at the positions that give [B, M or M', r]."""
        if self.subsample is None:
            return weight.inner(z)
        if self.pool_after:
            return pool_positions(weight.inner(z), shape, self.subsample)
        return weight.inner(pool_positions(z, shape, self.subsample))

    def _enter(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return x as [B, M, C], with zeros where the mask is False, and the mask as [B, M]."""
        z = to_positions(x, self.layout, self.channels)
        if mask is None:
            return z, None
        valid = flat_mask(mask, x, self.layout)
        if self.subsample is not None:
            raise ValueError(
                "mask and subsample do not go together: a pooled key may be half padding; drop one"
            )
        # Zeros, so that a NaN in the padding cannot reach a gradient as 0 · NaN.
        return zero_masked(z, valid), valid

    def _leave(self, z: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return z [B, M, C] in x's layout, with x where the mask is False."""
        result = from_positions(z, self.layout, x.shape)
        if mask is None:
            return result
        return torch.where(mask.unsqueeze(-1 if self.layout == "positions" else 1), result, x)

    def _factors(self) -> list[Tensor | tuple[Tensor, Tensor]] | None:
        """Return every W as `propagate` takes it; None where a map must be called, see `WeightMap.factors`."""
        stable = [one for one in self.maps if isinstance(one, StableWeightMap)]
        if len(stable) == len(self.maps):
            return list(stable_factors(stable))
        factors = []
        for weight in self._weight_maps():
            pair = weight.factors()
            if pair is None:
                return None
            factors.append(pair)
        return factors

    def _weight_maps(self) -> Iterable[WeightMap | StableWeightMap]:
        return cast("Iterable[WeightMap | StableWeightMap]", self.maps)

    def _check_subsample(self, subsample: int | None) -> int | None:
        if subsample is None:
            return None
        if self.uses_differences:
            raise ValueError(
                f"subsample={subsample!r}: the diffusive form needs z_j − z_i at every position, so its keys "
                "cannot be sub-sampled; drop subsample, or use the original form"
            )
        subsample = check_whole("subsample", subsample, least=2)
        if self.layout != "channels_first":
            raise ValueError(
                f"subsample={subsample} pools [B, C, *spatial], which layout={self.layout!r} does not "
                'take; use layout="channels_first"'
            )
        return subsample
