"""Which tiles suit the kernels of the fused stage: every candidate of every kernel, timed alone. CUDA.

    python docs/experiments/stage_tiles.py --output tiles.json
    python docs/experiments/stage_tiles.py --kernels query --blocks 1

For each kernel the candidates are sorted by their median over replays of a graph of ten launches. The tables of
nonloc/ops/fused.py hold the winners.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch

from benchmarks.stage_kernels import launch, record, time_launches
from nonloc.ops.fused.launch import Tile

FORWARD = [
    Tile(block, step, warps, stages, registers)
    for block, step, warps in [
        (64, 64, 4),
        (64, 128, 4),
        (128, 32, 4),
        (128, 64, 4),
        (128, 64, 8),
        (256, 64, 8),
    ]
    for stages in (2, 3, 4)
    for registers in (None, 80, 96, 128)
]
GRADIENT = [
    Tile(block, step, warps, stages, registers)
    for block, step, warps in [
        (64, 32, 4),
        (64, 64, 4),
        (128, 32, 4),
        (128, 32, 8),
        (128, 64, 8),
        (128, 128, 8),
    ]
    for stages in (2, 3)
    for registers in (None, 96, 128)
]
CANDIDATES = {"first_mean": FORWARD, "next": FORWARD, "adjoint": FORWARD, "key": GRADIENT, "query": GRADIENT}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=4, help="sub-blocks of the stage")
    parser.add_argument("--kernels", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--output", type=Path, default=None, help="keep all times as JSON")
    options = parser.parse_args()
    calls = record(options.batch, options.positions, 64, 32, options.blocks, torch.device("cuda"))
    found: dict[str, list[tuple[float, Tile]]] = {}
    for call in {call.name: call for call in calls}.values():
        times = found[call.name] = []
        for tile in CANDIDATES[call.name] if call.name in options.kernels else []:
            call.launcher.tiles = call.launcher.tiles | {call.name: tile}
            try:
                times.append((statistics.median(time_launches(lambda call=call: launch(call), 11)), tile))
            except Exception as problem:  # too much shared memory, for one
                print(f"{call.name} {tuple(tile)}: {problem}", flush=True)
        times.sort(key=lambda entry: entry[0])
        best = ", ".join(f"{time:.1f} µs {tuple(tile)}" for time, tile in times[:4])
        print(f"{call.name}: {best}", flush=True)
    if options.output is not None:
        rows = {name: [[time, *tile] for time, tile in times] for name, times in found.items()}
        content = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "microseconds": rows}
        options.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
