"""estimate: bytes and multiply-adds of a stage, before any work is done.

The code itself runs on tensors that have shapes and no contents, while every allocation and every product is counted.
Tests hold the bytes to measured memory. The fused kernels are not run: their launches are counted.
For large M, blocks of rows are extrapolated: once a block has its full size, peaks are linear and multiply-adds
quadratic in M.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nonloc._checks import check_whole, is_whole
from nonloc._torch_compat import FakeTensorMode, TorchDispatchMode, tree_leaves
from nonloc.ops.affinity import Affinity
from nonloc.ops.exponential import BLOCK_ENTRIES
from nonloc.ops.functional import BACKENDS, choose_backend, propagate
from nonloc.ops.fused import lacks
from nonloc.ops.fused.launch import without_launches
from nonloc.ops.sinkhorn import fixed_steps

TYPICAL_SINKHORN_STEPS = 40
LARGEST_TRACED = 4096  # positions of a batch of 1 in blocks of rows; more are extrapolated
# Names of affinity modules that differ from the kind of their kernel.
KIND_OF = {"embedded_gaussian": "gaussian"}

Shape = tuple[int, ...]
# (backend, positions, with_gradient) -> the forward pass; its inputs are not counted
Work = Callable[[str, int, bool], Callable[[], Tensor]]


@dataclass(frozen=True)
class Cost:
    """The cost of one stage with one backend, above its inputs.

    forward_bytes, forward_macs    a forward pass without gradients: peak memory, multiply-adds
    backward_bytes, backward_macs  forward and backward together, with gradients for everything: the peak of both,
                                   and the multiply-adds in addition to forward_macs
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

    kind   a nonlocal module: the cost of running it, in its layout and its mode, with its embeddings, its W and its
           affinities, and without a mask. Nothing of it is changed or moved; one on the "meta" device will do
    shape  of its input; `dtype` is that of its parameters when left out

    Where there is no module, a name stands for `propagate` alone: the diffusive form with `num_blocks` (1) full
    matrices W and one affinity, whose features are there already.

    kind       of the kernel, or the name of an affinity: "embedded_gaussian" is "gaussian"
    normalize  as in `Affinity` ("row")
    embed      d, the width of left and right (channels // 2 when left out; always 1 for "concat")

    The bytes are those of tensors: on the CPU, with torch's present number of threads; of "fused", on a GPU. In 80
    fresh processes of 5 to 400 MiB they were 0.87 to 1.01 times the resident memory. That needs an allocator that
    returns freed memory: glibc with MALLOC_MMAP_THRESHOLD_=131072 in the environment, or mimalloc with
    MIMALLOC_PURGE_DELAY=0. By default glibc keeps freed pieces: 1 to 3 times the estimate, and up to 5 times where
    blocks of rows are made and freed.
    """
    sizes = {"batch": batch, "positions": positions, "channels": channels, "num_blocks": num_blocks}
    if isinstance(kind, nn.Module):
        given = sizes | {"normalize": normalize, "embed": embed}
        _refuse(
            given, "goes with a kernel by name; a stage says the rest itself, give shape= and dtype= alone"
        )
        return _of_stage(kind, shape, dtype)
    _refuse({"shape": shape}, "goes with a stage; give batch=, positions= and channels= for a kernel by name")
    if num_blocks is None:
        sizes["num_blocks"] = 1
    for name, value in (sizes | ({} if embed is None else {"embed": embed})).items():
        check_whole(name, value)
    chosen = {name: value for name, value in sizes.items() if value is not None}
    return _of_operator(kind, normalize or "row", embed, dtype or torch.float32, **chosen)


def _of_operator(
    kind: str,
    normalize: str,
    embed: int | None,
    dtype: torch.dtype,
    *,
    batch: int,
    positions: int,
    channels: int,
    num_blocks: int,
) -> Costs:
    kind = KIND_OF.get(kind, kind)
    width = 1 if kind == "concat" else embed or max(1, channels // 2)

    def made(backend: str, positions: int, with_gradient: bool) -> Callable[[], Tensor]:
        def empty(*size: int) -> Tensor:
            return torch.empty(*size, dtype=dtype, requires_grad=with_gradient)

        left = empty(batch, positions, width)
        right = left if normalize in ("symmetric", "sinkhorn") else empty(batch, positions, width)
        z, weights = empty(batch, positions, channels), empty(num_blocks, channels, channels)
        affinity = Affinity(left, right, kind, normalize)
        return lambda: propagate(affinity, z, weights, backend=backend)

    sides = torch.Size((batch, positions, width))
    return _with_each_backend(_Kernel(kind, normalize, sides, sides, channels, dtype), made)


def _of_stage(stage: nn.Module, shape: Sequence[int] | None, dtype: torch.dtype | None) -> Costs:
    lacking = [name for name in ("affinity", "backend", "layout") if not hasattr(stage, name)]
    if lacking:
        raise ValueError(
            f"{type(stage).__name__} is no nonlocal module (it has no {', '.join(lacking)}); the stages of a network "
            "and what reaches them are those of nonloc.nn.stage_inputs(network, images)"
        )
    if shape is None or not all(is_whole(size) and size >= 1 for size in shape):
        got = shape if shape is None else list(shape)
        raise ValueError(f"shape must be that of an input of the stage, whole numbers ≥ 1, got {got}")
    has_channels_last = stage.layout == "positions"
    own = dtype or next((p.dtype for p in stage.parameters() if p.dtype.is_floating_point), torch.float32)
    stride = getattr(stage, "subsample", None) or 1

    def made(backend: str, positions: int, with_gradient: bool) -> Callable[[], Tensor]:
        copied = _without_contents(stage, own)
        copied.backend = backend
        size = _with_positions(shape, positions, has_channels_last, stride)
        x = torch.empty(size, dtype=own, requires_grad=with_gradient)
        return lambda: copied(x)

    affinity = _first_affinity(stage, shape, own)
    sides = affinity.left.shape, affinity.right.shape
    channels = shape[-1 if has_channels_last else 1]
    has_measure = affinity.measure is not None
    kernel = _Kernel(affinity.kind, affinity.normalize, *sides, channels, affinity.left.dtype, has_measure)
    return _with_each_backend(kernel, made, stride)


def _first_affinity(stage: nn.Module, shape: Sequence[int], dtype: torch.dtype) -> Affinity:
    reason: Exception | None = None
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"), torch.no_grad():
            affinity = _without_contents(stage, dtype).affinity(torch.empty(*shape, dtype=dtype))
        if isinstance(affinity, Affinity):
            return affinity
    except RuntimeError as error:  # torch's, for what shapes without contents do not tell
        reason = error
    raise ValueError(
        f"the affinity of this {type(stage).__name__} is a graph, or looks at numbers: shapes alone do not tell what "
        "it costs. Run it once and measure"
    ) from reason


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


def _with_positions(
    shape: Sequence[int], positions: int, has_channels_last: bool, stride: int
) -> Sequence[int]:
    """The input's shape with another number of positions, a multiple of stride²: height and width must be pooled."""
    spatial = shape[1:-1] if has_channels_last else shape[2:]
    if math.prod(spatial) == positions:
        return shape
    if has_channels_last:
        return shape[0], positions, shape[-1]
    batch, channels = shape[:2]
    if len(spatial) == 1:
        return batch, channels, positions
    return batch, channels, *[1] * (len(spatial) - 2), stride, positions // stride


@dataclass(frozen=True)
class _Kernel:
    """What the choice of a backend depends on: an affinity's kind and shapes, and the channels of the state."""

    kind: str
    normalize: str
    left: torch.Size
    right: torch.Size
    channels: int
    dtype: torch.dtype
    has_measure: bool = False

    def on(self, device: str) -> tuple[Affinity, Tensor]:
        """The affinity and z, without contents."""
        left, right, z = (
            torch.empty(*shape, dtype=self.dtype, device=device)
            for shape in (self.left, self.right, (*self.left[:2], self.channels))
        )
        measure = right.new_empty(right.shape[1]) if self.has_measure else None
        return Affinity(left, right, self.kind, self.normalize, measure=measure), z


def _with_each_backend(kernel: _Kernel, made: Work, stride: int = 1) -> Costs:
    with FakeTensorMode(), without_launches():
        serves_fused = lacks(*kernel.on("cpu")) is None
        auto, auto_on_cuda = (choose_backend(*kernel.on(device)) for device in ("cpu", "cuda"))
    costs = {
        backend: _at(kernel, stride, partial(_trace, made, backend), backend)
        for backend in BACKENDS
        if backend != "fused" or serves_fused
    }
    return Costs(costs, auto, auto_on_cuda)


def _at(kernel: _Kernel, stride: int, traced: Callable[[int, int], Cost], backend: str) -> Cost:
    """The cost at any M, from at most three small ones where there are blocks of rows."""

    def cost(m: int) -> Cost:
        few = traced(m, 2)
        if kernel.normalize != "sinkhorn":
            return few
        # Memory does not grow with the number of iterations; work does, linearly.
        more = traced(m, 3)
        rest = TYPICAL_SINKHORN_STEPS - 2
        return replace(
            few,
            forward_macs=few.forward_macs + rest * (more.forward_macs - few.forward_macs),
            backward_macs=few.backward_macs + rest * (more.backward_macs - few.backward_macs),
        )

    batch, positions = kernel.left[:2]
    has_blocks = kernel.kind in ("gaussian", "heat") and kernel.normalize != "row" and backend == "factored"
    # Above this M a block of rows has its full size, and more rows mean only more blocks.
    full_block = max(64, stride * (math.isqrt(BLOCK_ENTRIES // batch) + 1))
    nodes = [-(-full_block * k // (2 * stride**2)) * stride**2 for k in (2, 3, 4)]
    if not has_blocks or positions <= max(nodes[-1], LARGEST_TRACED if batch == 1 else 0):
        return cost(positions)
    samples = [cost(m) for m in nodes]

    def extrapolated(name: str, quadratic: bool) -> int:
        chosen = slice(None) if quadratic else slice(None, None, 2)  # a line needs no third point
        return _polynomial(nodes[chosen], [getattr(s, name) for s in samples][chosen], positions)

    return Cost(
        extrapolated("forward_bytes", quadratic=False),
        extrapolated("backward_bytes", quadratic=False),
        extrapolated("forward_macs", quadratic=True),
        extrapolated("backward_macs", quadratic=True),
    )


def _polynomial(nodes: list[int], values: list[int], at: int) -> int:
    """The polynomial through the points (Lagrange), never below the largest of them."""
    total = 0.0
    for i, (node, value) in enumerate(zip(nodes, values, strict=True)):
        others = [n for j, n in enumerate(nodes) if j != i]
        total += value * math.prod((at - n) / (node - n) for n in others)
    return max(round(total), *values)


def _trace(made: Work, backend: str, positions: int, steps: int) -> Cost:
    def run(with_gradient: bool) -> tuple[int, int]:
        with (
            FakeTensorMode(allow_non_fake_inputs=True),
            torch.device("cpu"),
            fixed_steps(steps),
            without_launches() as launches,
            torch.set_grad_enabled(with_gradient),
        ):
            forward_pass = made(backend, positions, with_gradient)
            with Allocations() as memory, Products() as products:
                out = forward_pass()
                if with_gradient:
                    out.backward(torch.ones_like(out))
        return memory.peak, products.macs + sum(launch.macs for launch in launches)

    forward_bytes, forward_macs = run(with_gradient=False)
    backward_bytes, all_macs = run(with_gradient=True)
    return Cost(forward_bytes, backward_bytes, forward_macs, all_macs - forward_macs)


def _refuse(given: Mapping[str, object], reason: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}={value!r} {reason}")


class Allocations(TorchDispatchMode):
    """Count the bytes of storages that are made inside; `peak` is their largest sum at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for storage in _storages((args, kwargs)):
            self._seen.add(storage)
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage not in self._seen:
                self._seen.add(storage)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.peak = max(self.peak, self.now + _attention_workspace(func.name(), args))
        return result

    def _free(self, size: int) -> None:
        self.now -= size


def _attention_workspace(name: str, args: Any) -> int:
    """The buffers of the CPU's attention, which torch does not report: rows × columns of float32 or wider, a thread."""
    if "flash_attention_for_cpu" not in name:
        return 0
    is_backward = name.endswith("_backward")
    query, key = args[1:3] if is_backward else args[:2]
    length, width = query.shape[-2:]
    rows = 256 if length >= 768 else 64 if length >= 192 else 32
    columns = min(512, key.shape[-2])
    entries = rows * (2 * columns if is_backward else columns + width + 2)
    return entries * max(4, query.dtype.itemsize) * torch.get_num_threads()


def _storages(tree: Any) -> list[Any]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class Products(FlopCounterMode):
    """Count multiply-adds: matrix products, attention, element-wise products and running sums."""

    def __init__(self) -> None:
        aten = torch.ops.aten
        super().__init__(
            display=False,
            custom_mapping={
                aten.mul: _element_wise,
                aten.cumsum: _element_wise,
                aten._scaled_dot_product_flash_attention_for_cpu: _attention,
                aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
            },
        )

    @property
    def macs(self) -> int:
        return self.get_total_flops() // 2


def _element_wise(*args: Any, out_shape: Shape, **kwargs: Any) -> int:
    return 2 * math.prod(out_shape)


def _attention(query: Shape, key: Shape, *args: Any, **kwargs: Any) -> int:
    return 2 * 2 * math.prod(query) * key[-2]


def _attention_backward(grad: Shape, query: Shape, key: Shape, *args: Any, **kwargs: Any) -> int:
    return 5 * 2 * math.prod(query) * key[-2]
