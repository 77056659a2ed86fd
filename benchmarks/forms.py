"""What a training step costs with original and with proposed blocks: both forms in turns, in one run."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.shared import format_range, markdown, median_and_range, time_calls, time_in_turns
from benchmarks.training import STEPS_PER_EPOCH, WARM_UP_STEPS, LibrarySteps, PlainLoop, Steps, random_images
from nonloc.nn.options import FORMS
from nonloc_paper.training.recipe import Recipe

BLOCKS = (2, 3, 4)
PLAIN = "plain loop"


def measure(options: Namespace, talk: Callable[[str], None]) -> list[dict[str, Any]]:
    return costs(options.device, rounds=options.repeats)


def costs(
    device: torch.device,
    *,
    rounds: int,
    steps: int | None = None,
    batch_size: int | None = None,
    network: str = "preresnet20/{}-{}@2",
) -> list[dict[str, Any]]:
    """Time both forms with 2, 3 and 4 blocks, by the plain loop and by the library; one number a round.

    The plain loop computes each form by its equations, with the matrix.

    steps, batch_size  None: 50 of 128 images on CUDA, 2 of 16 on the CPU
    network            with {} for the form and for the number of blocks
    """
    on_cuda = device.type == "cuda"
    batch_size = batch_size or (128 if on_cuda else 16)
    # A start with which both forms train, so that no step is timed on numbers that overflow.
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
                open_ways.callback(own.close)
                ways[form, blocks, "captured" if on_cuda else "the library's step"] = own
        for way in ways.values():
            time_calls(way.step, WARM_UP_STEPS, device)
        counts = [steps or (50 if on_cuda else 2)] * len(ways)
        times = time_in_turns([way.step for way in ways.values()], counts, rounds, device)
    return [
        {"form": form, "blocks": blocks, "way": way, "batch_size": batch_size}
        | {"precision": base.precision, "milliseconds": tuple(mine)}
        for (form, blocks, way), mine in zip(ways, times, strict=True)
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each way and number of blocks: both forms, and their ratio."""
    times = {(row["way"], row["blocks"], row["form"]): row["milliseconds"] for row in rows}
    lines = dict.fromkeys((row["way"], row["blocks"]) for row in rows)
    cells = []
    for way, blocks in sorted(lines, key=lambda one: (one[0] != PLAIN, one[1])):
        pair = [median_and_range(times[way, blocks, form]) for form in FORMS]
        (original, _), (proposed, _) = pair
        shown = [format_range(*one) for one in pair]
        cells.append([way, str(blocks), *shown, f"{proposed / original:.2f}"])
    headers = ["way", "blocks", "original: ms a step", "proposed: ms a step", "proposed / original"]
    return markdown(headers, cells)
