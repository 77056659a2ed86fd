"""Peak memory and time of a stage against M, each size in a process of its own, with the fitted exponent.

The figure is the growth of the process's resident memory (Linux: VmHWM after a reset), so it holds everything:
what torch allocates, what its kernels allocate behind its back, and what the allocator keeps.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.shared import markdown
from nonloc.ops import Affinity, diffuse, propagate

# Freed arrays go back at once, at every size: by glibc, and by mimalloc, which torch has on some processors.
RETURN_FREED = {"MALLOC_MMAP_THRESHOLD_": str(2**17), "MIMALLOC_PURGE_DELAY": "0"}
# What the linear-memory claim is shown on: kernel, normalisation, positions.
LADDERS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("dot", "row", (65_536, 131_072, 262_144, 524_288, 1_048_576)),
    ("concat", "row", (65_536, 131_072, 262_144, 524_288, 1_048_576)),
    ("gaussian", "row", (8_192, 16_384, 32_768, 65_536)),
)


def measure(options: Namespace, talk: Callable[[str], None]) -> list[dict[str, Any]]:
    rows = []
    for kind, normalize, sizes in LADDERS:
        for positions in sizes:
            rows.append(measure_size(kind, normalize, positions))
            talk(f"{kind} at M = {positions:,}: {rows[-1]['peak_bytes'] / 2**20:.1f} MiB")
    return rows


def measure_size(
    kind: str,
    normalize: str,
    positions: int,
    channels: int = 16,
    backend: str = "factored",
    num_blocks: int = 0,
) -> dict[str, Any]:
    """Measure forward and backward of `diffuse`, batch 1, float32, in a process of its own.

    num_blocks  not 0: of a stage of that many sub-blocks instead, d = r = C / 2, with gradients to all W as well
    """
    row = {"kind": kind, "normalize": normalize, "positions": positions}
    row |= {"channels": channels, "backend": backend, "num_blocks": num_blocks}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", json.dumps(row), str(torch.get_num_threads())],
        env=os.environ | RETURN_FREED,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"measuring {row} failed:\n{done.stderr.strip()}")
    return row | json.loads(done.stdout.splitlines()[-1])


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope p of log value against log size, by least squares: value ~ size^p."""
    return statistics.linear_regression(list(map(math.log, sizes)), list(map(math.log, values))).slope


def resident(field: str) -> int:
    """Return a field of /proc/self/status, such as VmRSS, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{field} is not in /proc/self/status; this measurement needs Linux")


def measured(work: Callable[[], Any]) -> tuple[float, int, Any]:
    """Return the seconds of work(), by how many bytes it enlarges the resident memory at most, and its result."""
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, resident("VmHWM") - before, result


def stage_inputs(positions: int, channels: int, num_blocks: int) -> list[torch.Tensor]:
    """left, right [1, M, d], z [1, M, C], W_Z [N, C, r], W_g [N, r, C] with d = r = C / 2."""
    width = channels // 2
    shapes = [(1, positions, width)] * 2 + [(1, positions, channels)]
    shapes += [(num_blocks, channels, width), (num_blocks, width, channels)]
    return [(shape[-1] ** -0.5 * torch.randn(shape)).requires_grad_() for shape in shapes]


def _work(kind: str, normalize: str, positions: int, channels: int, backend: str, num_blocks: int) -> None:
    if num_blocks:
        left, right, z, w_z, w_g = stage_inputs(positions, channels, num_blocks)
        pairs = list(zip(w_z, w_g, strict=True))
        out = propagate(Affinity(left, right, kind, normalize), z, pairs, backend=backend)
    else:
        width = 1 if kind == "concat" else channels
        left, right, z = (torch.randn(1, positions, c, requires_grad=True) for c in (width, width, channels))
        out = diffuse(Affinity(left, right, kind, normalize), z, backend=backend)
    out.square().sum().backward()


def main(job: str, threads: str) -> None:
    row = json.loads(job)
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    _work(**row | {"positions": 64})  # libraries and thread pools, not to be counted
    seconds, peak, _ = measured(lambda: _work(**row))
    print(json.dumps({"peak_bytes": peak, "seconds": seconds}))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """M against peak bytes and seconds, with the exponents of each kernel's memory and time in its last row."""
    cells = []
    for row in rows:
        ladder = [r for r in rows if r["kind"] == row["kind"]]
        powers = ["", ""]
        if row is ladder[-1] and len(ladder) > 1:
            sizes = [r["positions"] for r in ladder]
            powers = [
                f"M^{exponent(sizes, [r[name] for r in ladder]):.2f}" for name in ("peak_bytes", "seconds")
            ]
        kernel, memory = f"{row['kind']}, {row['normalize']}", f"{row['peak_bytes'] / 2**20:.1f} MiB"
        cells.append([kernel, f"{row['positions']:,}", memory, f"{row['seconds']:.2f} s", *powers])
    return markdown(["kernel", "M", "peak memory", "time", "memory grows as", "time grows as"], cells)


if __name__ == "__main__":
    main(*sys.argv[1:])
