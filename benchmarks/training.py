"""The training step of nonloc_paper against a plain PyTorch loop, in one run: the same losses first, then the time."""

from __future__ import annotations

import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.shared import format_range, format_size, markdown, median_and_range, time_calls, time_in_turns
from nonloc_paper.data.dataset import Dataset, Split
from nonloc_paper.networks.build import build
from nonloc_paper.runs import Run
from nonloc_paper.training.graph_group import GraphGroup
from nonloc_paper.training.plan import epoch_order, initialization, step_generator
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.session import Session
from nonloc_paper.training.step import on_stream, precision_of
from nonloc_paper.training.tasks import TASKS

# Those of the paper's tables, and how their stages are made.
NETWORKS: dict[str, dict[str, Any]] = {
    "preresnet29/baseline": {},
    "preresnet29/diffusive-5@2": {"share_affinity": False},
    "preresnet83/baseline": {},
}
SIDE_BY_SIDE = (2, 4, 8)
# Float32 steps whose losses are compared before anything is timed, and how far they may differ, relatively. The second
# loss shows the update. More steps compare nothing: with 83 layers, weights changed by a rounding (6e-8) change the
# plain loop's own second loss by 2e-4 and its fifth by 4e-3 (one trial on a CPU, batch 32).
CHECKED_STEPS = 2
LIMIT = 1e-3
STEPS_PER_EPOCH = 100
WARM_UP_STEPS = 3


class PlainLoop:
    """The step as one writes it in PyTorch, nothing fused or captured; a nonlocal stage by its equations."""

    def __init__(self, recipe: Recipe, dataset: Dataset, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.task = TASKS[recipe.task](recipe, dataset, device)
        self.task.draws_by_seed = False
        is_baseline = recipe.network.endswith("/baseline")
        options = replace(recipe.stage, backend=None if is_baseline else "reference")
        with initialization(recipe.seed):
            model = build(recipe.network, dataset.num_classes, **asdict(options))
        layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        self.model = model.to(device).to(memory_format=layout).train()  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        self.steps_per_epoch = -(-len(self.task.train) // recipe.batch_size)
        self.done = 0
        self.losses: list[Tensor] = []

    def step(self) -> None:
        recipe, (epoch, number) = self.recipe, divmod(self.done, self.steps_per_epoch)
        if number == 0:
            self.order = epoch_order(recipe.seed, epoch, len(self.task.train)).to(self.device)
        indices = self.order[number * recipe.batch_size : (number + 1) * recipe.batch_size]
        generator = step_generator(recipe.seed, epoch, number, self.device)
        inputs, targets = self.task.train_batch(indices, generator)
        if recipe.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
            outputs = self.model(inputs)
        loss = self.task.loss(outputs.float(), targets)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())
        self.done += 1


class LibrarySteps:
    """A session as `fit` has it, or several in one graph group as `fit_many` has them, always in their first epoch."""

    def __init__(
        self, recipe: Recipe, dataset: Dataset, device: torch.device, folder: Path, runs: int = 1
    ) -> None:
        self.group = GraphGroup(device) if device.type == "cuda" else None
        self.stream = None if self.group is None else self.group.stream
        with on_stream(self.stream):
            self.sessions = [
                Session(
                    recipe.with_(seed=recipe.seed + number),
                    Run(folder / str(number)),
                    dataset,
                    device,
                    group=self.group,
                )
                for number in range(runs)
            ]

    def step(self) -> None:
        """Take one step of each run."""
        with on_stream(self.stream), warnings.catch_warnings():
            # A step that falls back to the plain loop must not be timed as a captured one.
            warnings.filterwarnings("error", message=".*cannot be captured", category=RuntimeWarning)
            for session in self.sessions:
                if session.step_in_epoch == session.steps_per_epoch:
                    session.step_in_epoch = 0
                session.take_step()
            if self.group is not None:
                self.group.step()

    def close(self) -> None:
        with on_stream(self.stream):
            for session in self.sessions:
                session.close()

    def losses(self) -> list[float]:
        """Return the losses of the first run."""
        session = self.sessions[0]
        with on_stream(self.stream):
            session.losses.send(session.step_in_epoch)
            for event in session.losses.pending():
                event.synchronize()
            return session.losses.read()


Steps = PlainLoop | LibrarySteps


def random_images(count: int, device: torch.device) -> Dataset:
    """Random images and labels in CIFAR-10's shape: what a step costs does not depend on what is in them."""
    generator = torch.Generator().manual_seed(0)

    def split(size: int) -> Split:
        images = torch.randint(0, 256, (size, 3, 32, 32), dtype=torch.uint8, generator=generator)
        return Split(images, torch.randint(0, 10, (size,), generator=generator))

    return Dataset("cifar10", split(count), split(10), tuple("0123456789")).to(device)


def measure(options: Namespace, talk: Callable[[str], None]) -> list[dict[str, Any]]:
    """All networks: the paper's batch on CUDA, a small one on the CPU, where the stage has its matrix."""
    batch_size = 128 if options.device.type == "cuda" else 16
    return [
        row
        for network in NETWORKS
        for row in measure_network(network, options.device, batch_size=batch_size, repeats=options.repeats)
    ]


def measure_network(
    network: str,
    device: torch.device,
    *,
    batch_size: int = 128,
    side_by_side: Sequence[int] = SIDE_BY_SIDE,
    repeats: int,
    steps: int | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each way to train, timed in turns; one row without times if the losses disagree.

    side_by_side  how many runs at a time, after one alone; on CUDA only
    steps         in each of the `repeats`; None is 50 on CUDA and 2 on the CPU

    Of a row: milliseconds and range are of one step of one run; memory is what torch reserved on the device without
    the images; gain is against the plain loop; difference is the largest relative one of a loss, in float32.
    """
    on_cuda = device.type == "cuda"
    recipe = Recipe(network, batch_size=batch_size).with_(stage=NETWORKS.get(network, {}))
    dataset = random_images(batch_size * STEPS_PER_EPOCH, device)
    name = "captured" if on_cuda else "the library's step"
    row: dict[str, Any] = {"network": network, "way": name, "runs": 1, "batch_size": batch_size}
    row |= {"precision": "float32", "milliseconds": None, "range": None, "memory": None, "gain": None}
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        difference = _difference(recipe, dataset, device, folder)
        # NaN does not pass either.
        row |= {"difference": difference, "passed": difference <= LIMIT}
        if not row["passed"]:
            return [row]
        if on_cuda:
            recipe = recipe.with_(precision="bfloat16", channels_last=True)
        rows: list[dict[str, Any]] = []
        ways: list[Steps] = []
        for runs in (0, 1, *(side_by_side if on_cuda else ())):
            before = _reserved(device)
            if runs:
                ways.append(own := LibrarySteps(recipe, dataset, device, folder / str(runs), runs))
                opened.callback(own.close)
            else:
                ways.append(PlainLoop(recipe, dataset, device))
            time_calls(ways[-1].step, WARM_UP_STEPS, device)
            way = "plain loop" if not runs else name if runs == 1 else f"{name}, {runs} side by side"
            memory = _reserved(device) - before if on_cuda else None
            rows.append(row | {"way": way, "runs": max(1, runs), "memory": memory})
        counts = [steps or (50 if on_cuda else 2)] * len(ways)
        times = time_in_turns([one.step for one in ways], counts, repeats, device)
    for row, mine in zip(rows, times, strict=True):
        row["precision"] = recipe.precision
        row["milliseconds"], row["range"] = median_and_range([one / row["runs"] for one in mine])
        row["gain"] = rows[0]["milliseconds"] / row["milliseconds"]
    return rows


def _difference(recipe: Recipe, dataset: Dataset, device: torch.device, folder: Path) -> float:
    """Return the largest relative difference of a loss between the two ways, in float32."""
    plain = PlainLoop(recipe, dataset, device)
    library = LibrarySteps(recipe, dataset, device, folder / "check")
    for _ in range(CHECKED_STEPS):
        with precision_of(recipe, device):
            plain.step()
        library.step()
    losses = torch.tensor(library.losses(), dtype=torch.float64)
    library.close()
    wanted = torch.stack(plain.losses).cpu().double()
    if len(losses) < len(wanted):  # they end with the first that is not finite
        return float("inf")
    return float(((losses - wanted) / wanted).abs().max())


def title(network: str) -> str:
    return network if NETWORKS.get(network, {}).get("share_affinity", True) else f"{network}, own affinities"


def _reserved(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The timings, or that the losses disagree and by how much."""
    cells = []
    for row in rows:
        times = ["", "", "no: no time"]
        if row["passed"]:
            shown = format_range(row["milliseconds"], row["range"])
            times = [shown, format_size(row["memory"]), f"{row['gain']:.2f}×"]
        cells.append([title(row["network"]), row["way"], *times, f"{row['difference']:.0e}"])
    headers = ["network", "way", "ms a step and run", "memory", "against the plain loop", "losses differ by"]
    return markdown(headers, cells)
