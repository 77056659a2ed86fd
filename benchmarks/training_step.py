"""The library's training step against a plain PyTorch loop, in one run: the same losses first, then the time."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.side_by_side import (
    STEPS_PER_EPOCH,
    WARM_UP_STEPS,
    LibrarySteps,
    PlainLoop,
    Steps,
    milliseconds_in_turns,
    random_images,
    seconds_of,
)
from benchmarks.table import markdown
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.training.precision import precision_of
from nonloc_paper.training.recipe import Recipe

NETWORKS = ("preresnet20/baseline", "preresnet20/diffusive-5@2")
SIDE_BY_SIDE = (2, 4, 8)
# Float32 steps whose losses are compared before anything is timed, and how far they may differ, relatively.
CHECKED_STEPS = 5
LIMIT = 1e-3


@dataclass(frozen=True)
class Timing:
    """Milliseconds per step and run; None, all of them, where the losses were not those of the plain loop.

    way         how the step is done
    runs        how many are under way at the same time
    memory      bytes of the device that torch reserved for it, the images apart; None on the CPU
    gain        how many times faster than the plain loop of the same run
    difference  the largest relative difference of a loss from the plain loop's, in float32
    """

    network: str
    way: str
    runs: int
    batch_size: int
    precision: str
    milliseconds: float | None
    range: tuple[float, float] | None
    memory: int | None
    gain: float | None
    difference: float
    passed: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def all_timings(device: torch.device, repeats: int) -> Iterator[Timing]:
    """Both networks: the paper's batch on CUDA, a small one on the CPU, where the stage keeps its matrix."""
    for network in NETWORKS:
        batch_size = 128 if device.type == "cuda" else 16
        yield from timings(network, device, batch_size=batch_size, repeats=repeats)


def timings(
    network: str,
    device: torch.device,
    *,
    batch_size: int = 128,
    side_by_side: Sequence[int] = SIDE_BY_SIDE,
    repeats: int = 7,
    steps: int | None = None,
) -> list[Timing]:
    """All ways to train `network`, timed in turns; one row without times if the losses disagree.

    side_by_side  how many runs at a time, besides one; on CUDA only
    steps         in each of the `repeats`; None is 50 on CUDA and 2 on the CPU
    """
    on_cuda = device.type == "cuda"
    recipe = Recipe(network, batch_size=batch_size)
    dataset = random_images(batch_size * STEPS_PER_EPOCH, device)
    name = "captured" if on_cuda else "the library's step"
    with tempfile.TemporaryDirectory() as folder:
        difference = _disagreement(recipe, dataset, device, Path(folder))
        # NaN does not pass either.
        if not difference <= LIMIT:
            return [
                Timing(network, name, 1, batch_size, "float32", None, None, None, None, difference, False)
            ]
        if on_cuda:
            recipe = recipe.with_(precision="bfloat16", channels_last=True)
        ways = _prepare(recipe, dataset, device, Path(folder), name, side_by_side if on_cuda else ())
        try:
            steps = steps or (50 if on_cuda else 2)
            times = milliseconds_in_turns([way.steps for way in ways], repeats, steps, device)
        finally:
            for way in ways:
                way.steps.close()
    each = [[time / way.runs for time in found] for way, found in zip(ways, times, strict=True)]
    plain = statistics.median(each[0])
    return [
        Timing(
            network,
            way.name,
            way.runs,
            batch_size,
            recipe.precision,
            statistics.median(found),
            (min(found), max(found)),
            way.memory,
            plain / statistics.median(found),
            difference,
            True,
        )
        for way, found in zip(ways, each, strict=True)
    ]


@dataclass(frozen=True)
class _Way:
    name: str
    runs: int
    steps: Steps
    memory: int | None


def _prepare(
    recipe: Recipe,
    dataset: Dataset,
    device: torch.device,
    folder: Path,
    name: str,
    side_by_side: Sequence[int],
) -> list[_Way]:
    """The plain loop, then the library's step alone and with others; each has done a few steps."""
    before = _reserved(device)
    plain = PlainLoop(recipe, dataset, device)
    seconds_of(plain, WARM_UP_STEPS, device)
    ways = [_Way("plain loop", 1, plain, _growth(before, device))]
    for runs in (1, *side_by_side):
        before = _reserved(device)
        steps = LibrarySteps(recipe, dataset, device, folder / str(runs), runs)
        seconds_of(steps, WARM_UP_STEPS, device)
        title = name if runs == 1 else f"{name}, {runs} side by side"
        ways.append(_Way(title, runs, steps, _growth(before, device)))
    return ways


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The timings, or that the losses disagree and by how much."""
    cells = []
    for row in rows:
        times = ["", "", "no: no time"]
        if row["passed"]:
            low, high = row["range"]
            shown = f"{row['milliseconds']:.3f} ({low:.3f}–{high:.3f})"
            memory = "–" if row["memory"] is None else f"{row['memory'] / 2**20:,.0f} MiB"
            times = [shown, memory, f"{row['gain']:.2f}×"]
        cells.append([row["network"], row["way"], *times, f"{row['difference']:.0e}"])
    headers = ["network", "way", "ms a step and run", "memory", "against the plain loop", "losses differ by"]
    return markdown(headers, cells)


def _disagreement(recipe: Recipe, dataset: Dataset, device: torch.device, folder: Path) -> float:
    plain, library = (
        PlainLoop(recipe, dataset, device),
        LibrarySteps(recipe, dataset, device, folder / "check"),
    )
    for _ in range(CHECKED_STEPS):
        with precision_of(recipe, device):
            plain.step()
        library.step()
    found = torch.tensor(library.losses(), dtype=torch.float64)
    library.close()
    wanted = torch.stack(plain.losses).cpu().double()
    if len(found) < len(wanted):  # they end with the first that is not finite
        return float("inf")
    return float(((found - wanted) / wanted).abs().max())


def _reserved(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def _growth(before: int | None, device: torch.device) -> int | None:
    after = _reserved(device)
    return None if after is None or before is None else after - before
