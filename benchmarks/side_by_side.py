"""What the training step is measured on: a plain PyTorch loop and the library's own step, on the same batches."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from nonloc_paper.data.dataset import Dataset, Split
from nonloc_paper.networks.build import build
from nonloc_paper.runs import Run
from nonloc_paper.training.convoy import Convoy
from nonloc_paper.training.randomness import epoch_order, initialization, step_generator
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.session import Session
from nonloc_paper.training.streams import on_stream
from nonloc_paper.training.tasks import TASKS, Classification

STEPS_PER_EPOCH = 100
WARM_UP_STEPS = 3


class Steps(Protocol):
    """Something that trains, one step at a time."""

    def step(self) -> None: ...

    def close(self) -> None: ...


class PlainLoop:
    """The step as one writes it in PyTorch, nothing fused or captured; a nonlocal stage by its equations."""

    def __init__(self, recipe: Recipe, dataset: Dataset, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.task = TASKS[recipe.task](recipe, dataset, device)
        if isinstance(self.task, Classification):
            self.task.fused = False
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

    def close(self) -> None:
        """There is nothing to wait for."""


class LibrarySteps:
    """A session as `fit` has it, or several in one convoy as `fit_many` has them, always in their first epoch."""

    def __init__(
        self, recipe: Recipe, dataset: Dataset, device: torch.device, folder: Path, runs: int = 1
    ) -> None:
        self.convoy = Convoy(device) if device.type == "cuda" else None
        self.stream = None if self.convoy is None else self.convoy.stream
        with on_stream(self.stream):
            self.sessions = [
                Session(
                    recipe.with_(seed=recipe.seed + number),
                    Run(folder / str(number)),
                    dataset,
                    device,
                    convoy=self.convoy,
                )
                for number in range(runs)
            ]

    def step(self) -> None:
        """One step of each."""
        with on_stream(self.stream), warnings.catch_warnings():
            # A step that falls back to the plain loop must not be timed as a captured one.
            warnings.filterwarnings("error", message=".*cannot be captured", category=RuntimeWarning)
            for session in self.sessions:
                if session.step_in_epoch == session.steps_per_epoch:
                    session.step_in_epoch = 0
                session.take_step()
            if self.convoy is not None:
                self.convoy.depart()

    def close(self) -> None:
        with on_stream(self.stream):
            for session in self.sessions:
                session.close()

    def losses(self) -> list[float]:
        """Of the first of them."""
        session = self.sessions[0]
        with on_stream(self.stream):
            session.send_losses()
            for event in session.arrivals():
                event.synchronize()
            return session.read_losses()


def seconds_of(way: Steps, steps: int, device: torch.device) -> float:
    """Of `steps` steps of all its runs, until the device is done."""
    _finish(device)
    start = time.perf_counter()
    for _ in range(steps):
        way.step()
    _finish(device)
    return time.perf_counter() - start


def milliseconds_in_turns(
    ways: Sequence[Steps], rounds: int, steps: int, device: torch.device
) -> list[list[float]]:
    """Of a step of each way, with all its runs: one number a round, in which every way has its turn."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, found in zip(ways, times, strict=True):
            found.append(1e3 * seconds_of(way, steps, device) / steps)
    return times


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_images(count: int, device: torch.device) -> Dataset:
    """Random images and labels in CIFAR-10's shape: what a step costs does not depend on what is in them."""
    generator = torch.Generator().manual_seed(0)

    def split(size: int) -> Split:
        images = torch.randint(0, 256, (size, 3, 32, 32), dtype=torch.uint8, generator=generator)
        return Split(images, torch.randint(0, 10, (size,), generator=generator))

    return Dataset("cifar10", split(count), split(10), tuple("0123456789")).to(device)
