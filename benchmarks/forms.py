"""What a training step costs with original and with proposed blocks: both forms in turns, in one run."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
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
from nonloc_paper.training.recipe import Recipe

FORMS = ("original", "diffusive")
BLOCKS = (2, 3, 4)
PLAIN = "plain loop"


@dataclass(frozen=True)
class Cost:
    """Milliseconds a step of one network alone on the device, one number a round.

    way  how the step is done; the plain loop computes each form by its equations, with the matrix
    """

    form: str
    blocks: int
    way: str
    batch_size: int
    precision: str
    milliseconds: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def costs(
    device: torch.device,
    *,
    rounds: int = 7,
    steps: int | None = None,
    batch_size: int | None = None,
    network: str = "preresnet20/{}-{}@2",
) -> list[Cost]:
    """Both forms with 2, 3 and 4 blocks, by the plain loop and by the library, each once in every round.

    steps, batch_size  None: 50 of 128 images on CUDA, 2 of 16 on the CPU
    network            with the form and the number of blocks left out
    """
    on_cuda = device.type == "cuda"
    batch_size = batch_size or (128 if on_cuda else 16)
    steps = steps or (50 if on_cuda else 2)
    # A start with which both forms train: what is timed are steps, not numbers on their way out.
    base = Recipe(batch_size=batch_size, channels_last=on_cuda).with_(
        precision="bfloat16" if on_cuda else "float32", stage={"init": "normal", "init_std": 0.01}
    )
    dataset = random_images(batch_size * STEPS_PER_EPOCH, device)
    ways: dict[tuple[str, int, str], Steps] = {}
    with ExitStack() as open_ways:
        folder = open_ways.enter_context(tempfile.TemporaryDirectory())
        for blocks in BLOCKS:
            for form in FORMS:
                recipe = base.with_(network=network.format(form, blocks))
                ways[form, blocks, PLAIN] = PlainLoop(recipe, dataset, device)
                own = LibrarySteps(recipe, dataset, device, Path(folder, f"{form}-{blocks}"))
                ways[form, blocks, "captured" if on_cuda else "the library's step"] = own
        for way in ways.values():
            open_ways.callback(way.close)
            seconds_of(way, WARM_UP_STEPS, device)
        times = milliseconds_in_turns(list(ways.values()), rounds, steps, device)
    return [
        Cost(*key, batch_size, base.precision, tuple(found)) for key, found in zip(ways, times, strict=True)
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each way and number of blocks: both forms, and their ratio."""
    found = {(row["way"], row["blocks"], row["form"]): row["milliseconds"] for row in rows}
    cells = []
    for way, blocks in dict.fromkeys((row["way"], row["blocks"]) for row in sorted(rows, key=_order)):
        original, proposed = (found[way, blocks, form] for form in FORMS)
        ratio = statistics.median(proposed) / statistics.median(original)
        cells.append([way, str(blocks), _shown(original), _shown(proposed), f"{ratio:.2f}"])
    headers = ["way", "blocks", "original: ms a step", "proposed: ms a step", "proposed / original"]
    return markdown(headers, cells)


def _order(row: dict[str, Any]) -> tuple[bool, int]:
    return row["way"] != PLAIN, row["blocks"]


def _shown(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.3f} ({min(times):.3f}–{max(times):.3f})"
