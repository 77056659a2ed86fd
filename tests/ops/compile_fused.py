"""Compiles the kernels of one fused stage for an H100 or H200, which needs no GPU, and prints what each takes as JSON.

python tests/ops/compile_fused.py bfloat16 32 64 4: the dtype, d = r, C and N of a stage on 1,024 positions. Triton must
not interpret in this process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from compiled import compile_launch
from nonloc.ops import Affinity, propagate
from nonloc.ops.fused import kernels
from nonloc.ops.fused.launch import Launcher, Settings, without_launches
from nonloc.ops.fused.operators import embedded_stage


def launches(dtype: torch.dtype, width: int, channels: int, blocks: int) -> dict[str, tuple[Any, ...]]:
    """{tile: (kernel, tensors, constants, tile)} of forward and backward; nothing is computed."""
    seen: dict[str, tuple[Any, ...]] = {}

    def note(self: Launcher, name: str, kernel: str, *tensors: Any, **constants: Any) -> None:
        tile = self.tiles[name]
        constants |= {
            "BLOCK": tile.block,
            "EVEN": self.positions % tile.block == 0,
            "PRECISION": self.precision,
        }
        if tile.step:
            constants["STEP"] = tile.step
        seen[name] = (kernel, tensors, constants, tile)

    Launcher.launch = note  # type: ignore[method-assign]

    def empty(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype, requires_grad=True)

    left, right, z = empty(1, 1024, width), empty(1, 1024, width), empty(1, 1024, channels)
    pairs = [(empty(channels, width), empty(width, channels)) for _ in range(blocks)]
    theta, phi = empty(width, channels), empty(width, channels)
    w_z, w_g = (torch.stack(list(one)) for one in zip(*pairs, strict=True))
    settings = Settings(1.0, True, False, dtype=dtype)
    with without_launches():
        propagate(Affinity(left, right, "gaussian"), z, pairs, backend="fused").sum().backward()
        # Its "finish" does more.
        embedded_stage(z, theta, phi, w_z, w_g, settings=settings).sum().backward()
    return seen


def compiled(kernel: str, tensors: tuple[Any, ...], constants: dict[str, Any], tile: Any) -> dict[str, int]:
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    if tile.registers is not None:
        options["maxnreg"] = tile.registers
    return compile_launch(getattr(kernels, kernel), tensors, constants, options)


def main() -> None:
    dtype, *sizes = sys.argv[1:]
    seen = launches(getattr(torch, dtype), *map(int, sizes))
    print(json.dumps({name: compiled(*one) for name, one in seen.items()}))


if __name__ == "__main__":
    main()
