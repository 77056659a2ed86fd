"""estimate: bytes and multiply-adds of a stage, by formulas, before any work is done.

The formulas count the large terms: matrices M × M for "reference", blocks of rows or padded features for "factored",
states [B, M, C] for all. Tests hold them to measured memory.

    S, H   numbers of a state [B, M, C], and of what the kernel works on, [B, M, r]
    K      entries of the kernel, B · M · M'
    F      numbers of left and right, where a stage makes them
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor, nn

from nonloc._checks import check_choice, check_whole, is_whole, shown
from nonloc._torch_compat import FakeTensorMode
from nonloc.ops.affinity import KINDS, SYMMETRIC, Affinity, check_dtype
from nonloc.ops.functional import choose_backend, compute_dtype
from nonloc.ops.fused import BACKENDS as GPU_BACKENDS
from nonloc.ops.fused import lacks, padded_channels, padded_width
from nonloc.ops.fused.launch import WIDEST_PRODUCT, without_launches
from nonloc.ops.fused.passes import SLOTS
from nonloc.ops.fused.stored import new_kernel
from nonloc.ops.row_blocks import BLOCK_ENTRIES

TYPICAL_SINKHORN_STEPS = 25
# Names of affinity modules that differ from the kind of their kernel.
KIND_OF = {"embedded_gaussian": "gaussian"}
MOST_NUMBERS = 2**62  # of one tensor

# Matrices M × M of "reference": the most at one time without gradients; those that backward needs; those that it makes.
# fmt: off
_LOGITS = {"row": (2, 1, 2), "count": (3, 2, 2), "none": (3, 2, 1), "symmetric": (3, 3, 1), "sinkhorn": (4, 10, 2)}
MATRICES = {
    "gaussian": _LOGITS,
    "heat": _LOGITS | {"row": (3, 1, 2)},
    "dot": {"row": (2, 2, 2), "count": (2, 1, 1), "none": (2, 1, 1), "symmetric": (3, 3, 2), "sinkhorn": (3, 10, 2)},
    "concat": {"row": (2, 3, 2), "count": (2, 2, 1), "none": (2, 2, 1), "symmetric": (3, 4, 2), "sinkhorn": (3, 11, 2)},
    "delta": {"row": (2, 1, 1), "count": (2, 1, 1), "none": (2, 1, 1), "symmetric": (3, 1, 2), "sinkhorn": (3, 1, 1)},
}
# fmt: on


@dataclass(frozen=True)
class Cost:
    """The cost of one stage with one backend, above its inputs.

    forward_bytes, forward_macs    a forward pass without gradients: peak memory, multiply-adds
    backward_bytes, backward_macs  forward and backward together, with gradients for everything: the peak of both,
                                   and the multiply-adds in addition to forward_macs

    >>> from nonloc import estimate
    >>> cost = estimate("dot", batch=1, positions=100, channels=8)["reference"]
    >>> cost.backward_macs // cost.forward_macs
    2
    """

    forward_bytes: int
    backward_bytes: int
    forward_macs: int
    backward_macs: int


class Costs(dict[str, Cost]):
    """The cost with each backend that can serve, {backend: Cost}, and which of them backend="auto" takes.

    auto          on the CPU
    auto_on_cuda  on a GPU that the fused kernels run on
    """

    def __init__(self, costs: Mapping[str, Cost], auto: str, auto_on_cuda: str) -> None:
        super().__init__(costs)
        self.auto = auto
        self.auto_on_cuda = auto_on_cuda


@overload
def estimate(kind: nn.Module, *, shape: Sequence[int], dtype: torch.dtype | None = None) -> Costs: ...


@overload
def estimate(
    kind: str,
    normalize: str | None = None,
    *,
    batch: int,
    positions: int,
    channels: int,
    embed: int | None = None,
    num_blocks: int | None = None,
    dtype: torch.dtype | None = None,
) -> Costs: ...


def estimate(
    kind: str | nn.Module,
    normalize: str | None = None,
    *,
    shape: Sequence[int] | None = None,
    batch: int | None = None,
    positions: int | None = None,
    channels: int | None = None,
    embed: int | None = None,
    num_blocks: int | None = None,
    dtype: torch.dtype | None = None,
) -> Costs:
    """What a stage costs with each backend that can serve it: `estimate(stage, shape=(16, 64, 32, 32))`.

    Returns a dict of `Cost` by backend, each with `forward_bytes` (the peak without gradients) and `backward_bytes`
    (that of forward and backward together), and `auto` and `auto_on_cuda`, the backends that "auto" would take.

    kind   a nonlocal module: the cost of running it, with its embeddings, its W and its affinities, and without a
           mask. Nothing of it is changed or moved; one on the "meta" device will do
    shape  of its input; `dtype` is that of its parameters when left out

    Where there is no module, a name stands for `propagate` alone: the diffusive form with `num_blocks` (1) full
    matrices W and one affinity, whose features are there already.

    kind       of the kernel, or the name of an affinity: "embedded_gaussian" is "gaussian"
    normalize  as in `Affinity` ("row")
    embed      d, the width of left and right (channels // 2 when left out; always 1 for "concat")

    The bytes are those of tensors: on the CPU, with torch's present number of threads; of "fused", on a GPU.
    They are an estimate: of 2,391 passes of random stages with more than 2 MiB (both exact backends, one thread) 90 %
    were within 15 % of a tally of all tensors that torch made, and all within 0.74 and 1.73 times it. Below 2 MiB,
    small tensors weigh more. Not counted: how "symmetric" and "sinkhorn" look for negative entries of "dot" where
    features are not all ≥ 0, some tens of MiB.
    By default glibc keeps freed memory: a process may then grow to 1 to 3 times the estimate.
    MALLOC_MMAP_THRESHOLD_=131072 in the environment makes it return what is free.
    Multiply-adds are those of matrix products; "sinkhorn" is counted with 25 steps.

    >>> from nonloc import estimate
    >>> costs = estimate("gaussian", batch=1, positions=65_536, channels=64)
    >>> costs.auto, costs["reference"].forward_bytes > 100 * costs["factored"].forward_bytes
    ('factored', True)
    """
    sizes = {"batch": batch, "positions": positions, "channels": channels}
    if isinstance(kind, nn.Module):
        own = sizes | {"num_blocks": num_blocks, "normalize": normalize, "embed": embed}
        _refuse(
            own,
            "goes with a kernel by name; give a stage shape=(B, C, *spatial), by this name, and dtype= alone",
        )
        return _of_stage(kind, shape, dtype)
    _refuse({"shape": shape}, "goes with a stage; give batch=, positions= and channels= for a kernel by name")
    check_choice("kind", kind, (*KINDS, *KIND_OF))
    b, m, c = (check_whole(name, value) for name, value in sizes.items())
    n = check_whole("num_blocks", 1 if num_blocks is None else num_blocks)
    d = max(1, c // 2) if embed is None else check_whole("embed", embed)
    kind, normalize, dtype = KIND_OF.get(kind, kind), normalize or "row", _checked_dtype(dtype)
    if b * m * max(c, d) > MOST_NUMBERS:
        raise ValueError(f"batch={b}, positions={m}, channels={c} and embed={d} are more than a tensor has")
    with FakeTensorMode():
        features = torch.empty(b, m, 1 if kind == "concat" else d, dtype=dtype)
        affinity = Affinity(features, features, kind, normalize)
    return _costs(affinity, _Sizes(channels=c, hidden=c, blocks=n, kernels=1, at_once=n, dtype=dtype))


def _of_stage(stage: Any, shape: Sequence[int] | None, dtype: torch.dtype | None) -> Costs:
    from torch.utils.flop_counter import FlopCounterMode  # it imports Triton

    lacking = [name for name in ("affinity", "backend", "layout") if not hasattr(stage, name)]
    if lacking:
        raise ValueError(
            f"{type(stage).__name__} is no nonlocal module (it has no {', '.join(lacking)}); the stages of a network "
            "and what reaches them are those of nonloc.nn.stage_inputs(network, images)"
        )
    is_shape = isinstance(shape, Sequence) and all(is_whole(size) and size >= 1 for size in shape)
    if shape is None or not is_shape or math.prod(shape) > MOST_NUMBERS:
        raise ValueError(
            f"shape must be that of an input of the stage, whole numbers ≥ 1, got {shown(shape)}"
        )
    own = next((p.dtype for p in stage.parameters() if p.dtype.is_floating_point), None)
    dtype = _checked_dtype(dtype or own)
    affinity: Any = None
    reason: Exception | None = None
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"), torch.no_grad():
            empty = _without_contents(stage, dtype)
            with FlopCounterMode(display=False) as counter:
                affinity = empty.affinity(torch.empty(*shape, dtype=dtype))
            # Without factors, as with a bias or sub-sampling, sub-blocks apply the kernel one by one.
            is_one_operation = stage.subsample is None and all(
                one.factors() is not None for one in empty.maps
            )
    except RuntimeError as error:  # torch's, for what shapes without contents do not tell
        reason = error
    if not isinstance(affinity, Affinity):
        raise ValueError(
            f"the affinity of this {type(stage).__name__} is a graph, or looks at numbers: shapes alone do not tell "
            "what it costs. Run it once and measure"
        ) from reason
    embedding = counter.get_total_flops() // 2
    sizes = _Sizes(
        channels=stage.channels,
        hidden=empty.maps[0].rank,
        blocks=stage.num_blocks,
        kernels=1 if stage.shares_affinity else stage.num_blocks,
        at_once=stage.num_blocks if stage.shares_affinity and is_one_operation else 1,
        dtype=dtype,
        uses_differences=stage.uses_differences,
        is_pair=stage.weight != "full",
        has_norm=getattr(empty.maps[0], "norm", None) is not None,
        is_transposed=stage.layout != "positions" and shape[0] > 1,
        pools_after=stage.pool_after,
        embedding=embedding,
        sides=0 if not embedding else 1 if affinity.right is affinity.left else 2,
    )
    return _costs(affinity, sizes)


def _checked_dtype(dtype: torch.dtype | None) -> torch.dtype:
    dtype = torch.float32 if dtype is None else dtype
    check_dtype(dtype)
    return dtype


def _without_contents(module: nn.Module, dtype: torch.dtype) -> Any:
    """A copy whose parameters and buffers are new tensors of the mode it is made in, the floating ones in `dtype`."""
    known: dict[int, Tensor] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.layout != torch.strided:  # a graph, which nothing is made of here
            known[id(tensor)] = tensor
            continue
        empty = torch.empty(tensor.shape, dtype=dtype if tensor.dtype.is_floating_point else tensor.dtype)
        is_parameter = isinstance(tensor, nn.Parameter)
        known[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    # deepcopy takes what is known as copied already, so that no contents are.
    return copy.deepcopy(module, known)


def _refuse(values: Mapping[str, object], reason: str) -> None:
    for name, value in values.items():
        if value is not None:
            raise ValueError(f"{name}={shown(value)} {reason}")


@dataclass(frozen=True)
class _Sizes:
    """What a cost depends on, besides the affinity.

    hidden, is_pair  r, and whether W is a pair of matrices
    kernels          how many kernels are prepared: 1, or one for each sub-block
    at_once          how many sub-blocks one operation takes
    is_transposed    whether states are views of another layout, which products copy
    pools_after      whether W_g is applied before the keys are pooled
    embedding        multiply-adds of the maps to left and right
    sides            how many of left and right the stage makes
    """

    channels: int
    hidden: int
    blocks: int
    kernels: int
    at_once: int
    dtype: torch.dtype
    uses_differences: bool = True
    is_pair: bool = False
    has_norm: bool = False
    is_transposed: bool = False
    pools_after: bool = False
    embedding: int = 0
    sides: int = 0


def _costs(affinity: Affinity, s: _Sizes) -> Costs:
    def on(device: str) -> tuple[Affinity, Tensor]:
        left, right = (
            torch.empty(x.shape, dtype=x.dtype, device=device) for x in (affinity.left, affinity.right)
        )
        measure = None if affinity.measure is None else right.new_empty(right.shape[1])
        z = left.new_empty(*left.shape[:2], s.channels)
        return Affinity(left, right, affinity.kind, affinity.normalize, measure=measure), z

    with FakeTensorMode(), without_launches():
        serving = [name for name in GPU_BACKENDS if lacks(*on("cpu"), name) is None]
        auto, auto_on_cuda = (
            choose_backend(*on(device), hidden=s.hidden, blocks=s.at_once) for device in ("cpu", "cuda")
        )
    costs = {"reference": _reference(affinity, s), "factored": _factored(affinity, s)}
    formulas = {"fused": _fused, "stored": _stored, "attention": _attention}
    costs |= {name: formulas[name](affinity, s) for name in serving}
    return Costs(costs, auto, auto_on_cuda)


class _Terms:
    """The sizes that the formulas share, in numbers, and the multiply-adds outside the kernel."""

    def __init__(self, affinity: Affinity, s: _Sizes) -> None:
        (b, m, self.d), givers = affinity.left.shape, affinity.right.shape[1]
        self.kernel = b * m * givers
        self.state, self.hidden = b * m * s.channels, b * m * s.hidden
        self.inner = self.hidden if s.is_pair else 0  # W_g z
        self.features = b * self.d * (m * min(s.sides, 1) + givers * max(s.sides - 1, 0))
        outer = s.blocks * s.channels * s.hidden
        self.weights = outer * (1 + s.is_pair)
        self.per_kernel = s.blocks // s.kernels
        self.embeddings = s.kernels * s.embedding
        self.maps = b * outer * (m + s.is_pair * (m if s.pools_after else givers)) + self.embeddings
        self.bytes = compute_dtype(affinity).itemsize

    def forward(self, s: _Sizes, wide: float) -> float:
        """The most numbers at one time, the kernel's own aside; `wide` tensors [B, M, r] while it is applied."""
        repeats = self.per_kernel > 1
        applied = max((wide + repeats) * self.hidden, self.hidden + 2 * self.state)
        return applied + self.inner + (s.blocks > 1) * self.state + self.features

    def saved(self, s: _Sizes, wide: float, copies: float) -> float:
        """What one sub-block stores for backward."""
        states = 1 + s.has_norm + max(copies, s.kernels > 1 and s.sides > 0) * s.is_transposed
        return states * self.state + self.inner + wide * self.hidden + 0.5 * self.weights / s.blocks

    def working(self, s: _Sizes) -> float:
        """What backward holds at its start: the output, gradients of the state."""
        return (2.5 + s.is_transposed) * self.state + (0.5 + s.uses_differences) * self.hidden


def _reference(affinity: Affinity, s: _Sizes) -> Cost:
    t = _Terms(affinity, s)
    b, m, d = affinity.left.shape
    most, stored, made = MATRICES[affinity.kind][affinity.normalize]
    build = most * t.kernel + 2 * t.features
    is_scaled = affinity.normalize == "sinkhorn"
    steps = s.kernels * TYPICAL_SINKHORN_STEPS * t.kernel * is_scaled
    forward = max(build, t.kernel + t.forward(s, 3))
    saved = t.saved(s, 0, 0)
    # Gradients of the kernel from up to three sub-blocks wait to be added.
    is_softmax = affinity.has_logits and affinity.normalize == "row"
    is_learned = affinity.kind != "delta"
    waiting = min(3, t.per_kernel + is_softmax) * is_learned
    last = max(made * t.kernel + (s.kernels - 1) * saved, waiting * t.kernel + s.blocks * saved)
    backward = stored * s.kernels * t.kernel + last + t.working(s) + 2.5 * s.kernels * t.features
    logits = 0 if affinity.kind in ("concat", "delta") else s.kernels * t.kernel * d
    macs = logits + s.blocks * t.kernel * s.hidden + t.maps
    unused = 0 if is_learned else s.blocks * t.kernel * s.hidden
    newton = s.kernels * 2 * b * m**3 // 3 * (is_scaled and is_learned)  # two steps carry the derivatives
    return _cost(t.bytes, forward, backward, macs + steps, 2 * macs - unused + newton)


def _factored(affinity: Affinity, s: _Sizes) -> Cost:
    t = _Terms(affinity, s)
    b, m, d = affinity.left.shape
    steps = TYPICAL_SINKHORN_STEPS if affinity.normalize == "sinkhorn" else 0
    macs: float
    more: float
    if affinity.has_logits and affinity.normalize == "row":
        depth = d + (affinity.kind == "heat")
        width = max(depth, s.hidden)
        wide = width / s.hidden  # attention takes query, key and values of one width: others are copied
        rows, columns = 256 if m >= 768 else 64 if m >= 192 else 32, min(512, affinity.right.shape[1])
        buffers = rows * columns * torch.get_num_threads()
        # Features of heat are centred, and copied with a column in each sub-block.
        is_heat = affinity.kind == "heat"
        applied = 2.5 + (is_heat or depth < width) + 1.5 * (s.hidden < width)
        copied = 2 + 1.8 * (is_heat or depth < width) + 0.7 * (s.hidden < width)
        forward = t.forward(s, applied * wide) + buffers + 2 * is_heat * max(t.features, b * m * d)
        backward = s.blocks * t.saved(s, copied * wide, 0.5) + 2 * wide * t.hidden + 2 * buffers
        macs, more = 2 * s.blocks * t.kernel * width, 5 * s.blocks * t.kernel * width
    elif affinity.has_logits:
        block = t.kernel // m * min(m, max(1, BLOCK_ENTRIES * m // t.kernel))
        applied = block + t.forward(s, 0) - 2 * t.state + (1 + (t.per_kernel > 1)) * t.hidden
        own = b * m * d * (1 + (affinity.kind == "heat"))  # scaled, or also centred, features
        forward = max(t.forward(s, 3), applied) + own + t.features
        is_scaled = affinity.normalize in ("symmetric", "sinkhorn")
        backward = s.blocks * t.saved(s, 1, 1) + 2 * block + (s.kernels + 0.5) * own + 3 * b * m * d
        macs = s.blocks * t.kernel * (d + s.hidden) + s.kernels * t.kernel * (d + 1 + d * is_scaled)
        # Backward computes logits again, but no products with z.
        more = s.blocks * t.kernel * (3 * d + 2 * s.hidden) + s.kernels * t.kernel * 3 * d * is_scaled
        more += s.kernels * t.kernel * (s.uses_differences * (3 * d + 1) + steps * (d + 1))
        macs += s.kernels * steps * t.kernel * d
    else:
        scaling = 0.5 * s.uses_differences + (affinity.normalize not in ("none", "count"))
        # Tensors [B, M, r] while K is applied, and stored for backward; copies of a transposed state.
        by_kind = {"dot": (3, 1 + scaling, 1), "concat": (6, 6 + scaling / 2, 0.5), "delta": (2, 0, 0)}
        applied, wide, copies = by_kind[affinity.kind]
        # The features of an affinity are there while the next one's are made.
        forward = max(t.forward(s, applied), (s.kernels > 1) * 2 * (t.features + t.state))
        saved = t.saved(s, wide, copies)
        backward = s.blocks * saved + 0.5 * s.kernels * t.features
        if affinity.kind == "dot":
            # Gradients of both sides by one product wait to be added to those by the products behind it.
            has_one = s.kernels == s.blocks  # product with the state
            is_alone = has_one and affinity.normalize in ("none", "count") and not s.uses_differences
            sides = 2 if is_alone else 3 if s.sides == 1 or affinity.normalize in SYMMETRIC else 4
            gradients = sides * b * (m + affinity.right.shape[1]) * d / 2
            if s.sides == 2 and has_one and not is_alone:
                gradients -= t.features  # which go before the gradients of the row sums are added
            backward = max(backward, (s.blocks - 1) * saved + gradients - t.working(s) / 2)
        product = (b * (m + affinity.right.shape[1]) * d) if affinity.kind == "dot" else b * m * wide
        macs = product * (s.blocks * s.hidden + s.kernels)
        more = 2 * macs + s.kernels * steps * product
        macs += s.kernels * steps * product
    backward += t.working(s) + s.kernels * t.features
    return _cost(t.bytes, forward, backward, macs + t.maps, more + 2 * t.maps)


def _fused(affinity: Affinity, s: _Sizes) -> Cost:
    """Widths are padded. Sums of the weights' gradients are float32, in SLOTS places."""
    t = _Terms(affinity, s)
    b, m, _ = affinity.left.shape
    d, r, c = padded_width(t.d), padded_width(s.hidden), padded_channels(s.channels)
    state, hidden, feature, weights = b * m * c, b * m * r, b * m * d, c * r
    features = t.features + 2 * feature * (affinity.kind == "heat" or d > t.d)  # centred or padded
    # A stage copies its input into rows of positions.
    forward = min(t.per_kernel, 2) * (state + hidden) + state * (s.sides > 0) + features
    forward += 2 * t.per_kernel * weights
    stored = s.blocks * (state + 2 * hidden + 3 * weights) + s.kernels * (features + feature)
    sums = t.per_kernel * 2 * SLOTS * weights * 4 // s.dtype.itemsize
    backward = stored + (t.per_kernel + 1) * hidden + sums + 4 * state + 2 * feature
    maps = b * m * 2 * s.blocks * weights
    passes = -(-t.per_kernel * r // WIDEST_PRODUCT)  # over the sub-blocks, in the affinity's gradient
    macs = t.kernel * (s.blocks * (d + r) + s.kernels * d * (affinity.kind == "heat"))
    again = (s.blocks - s.kernels) * (d + r) + 2 * s.blocks * r + s.kernels * (d + r + 4 * d * passes)
    maps += t.embeddings
    return _cost(s.dtype.itemsize, forward, backward, macs + maps, t.kernel * again + 2 * maps)


def _stored(affinity: Affinity, s: _Sizes) -> Cost:
    """K of some samples in the features' dtype, and its logits, or their gradient, in float32."""
    t = _Terms(affinity, s)
    b, m, d = affinity.left.shape
    room = new_kernel(affinity.left.new_empty(affinity.left.shape, device="meta", dtype=s.dtype))
    wide = room.numel() // room.shape[-1] * m * 4 // s.dtype.itemsize
    features = t.features + 2 * b * m * t.d * (affinity.kind == "heat")
    forward = room.numel() + max(wide, 2 * t.hidden + t.state) + 2 * t.state + features
    is_kept = room.shape[0] == b
    stored = s.blocks * (t.state + 2 * t.hidden) + s.kernels * (features + is_kept * room.numel())
    backward = stored + (2 - is_kept) * room.numel() + wide + t.per_kernel * t.hidden + 2 * t.state
    backward += 2 * t.features + 2 * t.weights
    macs = t.kernel * (s.kernels * d + s.blocks * s.hidden)
    more = t.kernel * (2 * s.blocks * s.hidden + s.kernels * d * (3 - is_kept))
    return _cost(s.dtype.itemsize, forward, backward, macs + t.maps, more + 2 * t.maps)


def _attention(affinity: Affinity, s: _Sizes) -> Cost:
    """As attention by hand, everything in the features' dtype."""
    t = _Terms(affinity, s)
    d = affinity.left.shape[-1]
    forward = 3 * t.state + 3 * t.hidden + t.features
    backward = s.blocks * (t.state + 3 * t.hidden) + t.weights + s.kernels * t.features + t.working(s)
    macs = s.blocks * t.kernel * (d + s.hidden)
    return _cost(s.dtype.itemsize, forward, backward, macs + t.maps, 2.5 * macs + 2 * t.maps)


def _cost(itemsize: int, forward: float, backward: float, macs: float, more: float) -> Cost:
    forward_bytes = round(itemsize * forward)
    return Cost(forward_bytes, max(forward_bytes, round(itemsize * backward)), round(macs), round(more))
