"""estimate: will it fit? Bytes and multiply-adds of a stage before any work is done.

The numbers come from the code itself, run on tensors that have shapes but no contents while every allocation and
every product is written down. So they cannot drift away from the code, and a test holds them to measured memory.
The fused kernels are not run: their launches are written down instead, and tests hold what is counted for each to
what the interpreted kernels do, and the memory to a GPU's.
Large M is extrapolated: peaks and counts are quadratic polynomials in M once blocks of rows have their full size.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from nonloc.ops.affinity import Affinity
from nonloc.ops.exponential import BLOCK_ENTRIES
from nonloc.ops.functional import BACKENDS, propagate
from nonloc.ops.fused import lacks
from nonloc.ops.fused_launch import Launch, without_launches
from nonloc.ops.sinkhorn import fixed_steps

TYPICAL_SINKHORN_STEPS = 40
LARGEST_TRACED = 4096  # positions; more are extrapolated


@dataclass(frozen=True)
class Cost:
    """What one backend needs for one stage, above the inputs.

    forward_bytes, forward_macs    a forward pass without gradients: peak memory, multiply-adds
    backward_bytes, backward_macs  forward and backward together, with gradients for everything: the peak of both,
                                   and the multiply-adds of the backward pass alone
    """

    forward_bytes: int
    backward_bytes: int
    forward_macs: int
    backward_macs: int


def estimate(
    kind: str,
    normalize: str = "row",
    *,
    batch: int,
    positions: int,
    channels: int,
    embed: int | None = None,
    num_blocks: int = 1,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Cost]:
    """The cost of `propagate` with `num_blocks` full matrices W, for each backend that can do it, on the CPU; of
    "fused", which serves gaussian and heat with "row", on a GPU.

    `embed` is d, the width of left and right (channels // 2 when left out; always 1 for "concat").
    """
    sizes = {"batch": batch, "positions": positions, "channels": channels, "num_blocks": num_blocks}
    for name, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number ≥ 1, got {value!r}")
    width = 1 if kind == "concat" else embed if embed is not None else max(1, channels // 2)
    if width < 1:
        raise ValueError(f"embed must be ≥ 1, got {embed}")

    shape = (batch, channels, width, num_blocks)
    backends = [b for b in BACKENDS if b != "fused" or _fused_serves(kind, normalize, shape, dtype)]
    return {
        backend: _at(
            positions,
            batch,
            normalize,
            partial(_trace, kind, normalize, backend, shape, dtype),
            has_matrix=backend == "reference",
        )
        for backend in backends
    }


def _fused_serves(kind: str, normalize: str, shape: tuple[int, int, int, int], dtype: torch.dtype) -> bool:
    batch, channels, width, _ = shape
    features = torch.empty(batch, 1, width, dtype=dtype, device="meta")
    z = torch.empty(batch, 1, channels, dtype=dtype, device="meta")
    with without_launches():
        return lacks(Affinity(features, features, kind, normalize), z) is None


def _at(
    positions: int, batch: int, normalize: str, traced: Callable[[int, int], Cost], has_matrix: bool
) -> Cost:
    """The cost at any M, from at most three small ones."""

    def cost(m: int) -> Cost:
        few = traced(m, 2)
        if normalize != "sinkhorn":
            return few
        # Memory does not grow with the number of iterations; work does, linearly.
        more = traced(m, 3)
        rest = TYPICAL_SINKHORN_STEPS - 2
        return Cost(
            few.forward_bytes,
            few.backward_bytes,
            few.forward_macs + rest * (more.forward_macs - few.forward_macs),
            few.backward_macs + rest * (more.backward_macs - few.backward_macs),
        )

    # Above this M a block of rows has its full size, and more rows mean only more blocks.
    full_block = math.isqrt(BLOCK_ENTRIES // batch) + 1
    nodes = [max(64, full_block) * k // 2 for k in (2, 3, 4)]
    if positions <= max(nodes[-1], LARGEST_TRACED if batch == 1 else 0):
        return cost(positions)
    samples = [cost(m) for m in nodes]

    def extrapolated(name: str, quadratic: bool) -> int:
        chosen = slice(None) if quadratic else slice(None, None, 2)  # a line needs no third point
        return _polynomial(nodes[chosen], [getattr(s, name) for s in samples][chosen], positions)

    return Cost(
        extrapolated("forward_bytes", has_matrix),
        extrapolated("backward_bytes", has_matrix),
        extrapolated("forward_macs", True),
        extrapolated("backward_macs", True),
    )


def _polynomial(nodes: list[int], values: list[int], at: int) -> int:
    """The polynomial through the points (Lagrange), never below the largest of them."""
    total = 0.0
    for i, (node, value) in enumerate(zip(nodes, values, strict=True)):
        others = [n for j, n in enumerate(nodes) if j != i]
        total += value * math.prod((at - n) / (node - n) for n in others)
    return max(round(total), *values)


def _trace(
    kind: str,
    normalize: str,
    backend: str,
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    positions: int,
    steps: int,
) -> Cost:
    batch, channels, width, num_blocks = shape

    def run(with_gradient: bool) -> tuple[int, int, int]:
        with FakeTensorMode(), fixed_steps(steps), without_launches() as launches:

            def empty(*size: int) -> Tensor:
                return torch.empty(*size, dtype=dtype, requires_grad=with_gradient)

            left = empty(batch, positions, width)
            right = left if normalize in ("symmetric", "sinkhorn") else empty(batch, positions, width)
            z, weights = empty(batch, positions, channels), empty(num_blocks, channels, channels)
            affinity = Affinity(left, right, kind, normalize)
            with _Allocations() as memory, _Products() as forward:
                out = propagate(affinity, z, weights, backend=backend)
            launched = [_launched_macs(launch) for launch in launches]
            with memory, _Products() as backward:
                if with_gradient:
                    out.backward(torch.ones_like(out))
        in_backward = sum(_launched_macs(launch) for launch in launches) - sum(launched)
        return memory.peak, forward.macs + sum(launched), backward.macs + in_backward

    forward_bytes, forward_macs, _ = run(with_gradient=False)
    backward_bytes, _, backward_macs = run(with_gradient=True)
    return Cost(forward_bytes, backward_bytes, forward_macs, backward_macs)


class _Allocations(TorchDispatchMode):
    """Watches storages come and go. `peak` counts what was made inside, not what was brought in."""

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
    """The tiles of the CPU's attention, which no dispatcher sees: rows × columns of float32 or wider, a thread."""
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


def _launched_macs(launch: Launch) -> int:
    """Multiply-adds of the matrix products in one launch of a fused kernel, widths as they were widened."""
    sizes = launch.constants
    m = launch.positions
    depth, hidden = sizes.get("D", 0), sizes["H"]
    map_macs = m * hidden * sizes.get("C", 0)
    if launch.kernel == "begin_kernel":
        macs = map_macs * sizes["PROJECTS"]
    elif launch.kernel == "forward_kernel":
        macs = m * m * (depth + hidden) + map_macs * (sizes["UPDATES"] + sizes["HAS_NEXT"])
        if sizes["FIRST"]:
            # The bound of each row: from a few columns, or from all of them where there is a bias.
            macs += m * depth * (m if sizes["HAS_BIAS"] else sizes["STEP"])
    elif launch.kernel == "turn_kernel":
        macs = map_macs * sizes["UPDATES"]
    elif launch.kernel == "adjoint_kernel":
        maps = 1 + sizes["HAS_PREVIOUS"] + 2 * (sizes["SLOTS"] > 0)
        macs = m * m * (depth + hidden) + map_macs * sizes["UPDATES"] * maps
    elif launch.kernel == "finish_kernel":
        macs = map_macs * (1 + 2 * (sizes["SLOTS"] > 0))
    else:
        macs = m * m * (2 * depth + sizes["WIDE"] + sizes["REST"] + hidden * sizes.get("TRANSPOSES", False))
    return launch.batch * macs


class _Products(FlopCounterMode):
    """Counts multiply-adds: matrix products, attention, and the element-wise products and running sums."""

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


Shape = tuple[int, ...]


def _element_wise(*args: Any, out_shape: Shape, **kwargs: Any) -> int:
    return 2 * math.prod(out_shape)


def _attention(query: Shape, key: Shape, *args: Any, **kwargs: Any) -> int:
    return 2 * 2 * math.prod(query) * key[-2]


def _attention_backward(grad: Shape, query: Shape, key: Shape, *args: Any, **kwargs: Any) -> int:
    return 5 * 2 * math.prod(query) * key[-2]
