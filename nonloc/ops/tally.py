"""What a piece of code asks for: its allocations and its multiply-adds, written down while it runs.

It may run on tensors that have shapes and no contents. The fused kernels are then not run: `without_launches` writes
their launches down, and `launched_macs` says what is in each.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from nonloc.ops.fused.launch import Launch


class Allocations(TorchDispatchMode):
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


def launched_macs(launch: Launch) -> int:
    """Multiply-adds of the matrix products in one launch of a fused kernel, widths as they were widened."""
    sizes = launch.constants
    m = launch.positions
    depth, hidden = sizes.get("D", 0), sizes["H"]
    map_macs = m * hidden * sizes.get("C", 0)
    if launch.kernel == "begin_kernel":
        macs = map_macs * sizes["PROJECTS"]
    elif launch.kernel == "forward_kernel":
        mean = depth * sizes["MEANS"]
        macs = m * m * (depth + hidden + mean) + map_macs * (sizes["UPDATES"] + sizes["HAS_NEXT"])
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
        more = hidden * sizes["TRANSPOSES"] if launch.kernel == "key_kernel" else 16 * sizes["ONES"]
        macs = m * m * (2 * depth + sizes["WIDE"] + sizes["REST"] + more)
    return launch.batch * macs


class Products(FlopCounterMode):
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
