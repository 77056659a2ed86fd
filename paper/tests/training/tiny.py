"""The smallest things that train, and what the tests of training ask of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nonloc.outcomes import Outcome
from nonloc_paper.data.dataset import Dataset, Split
from nonloc_paper.runs import Run, read_json
from nonloc_paper.training.checkpoint import UNVERIFIED
from nonloc_paper.training.fit import fit
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.scheduler import Endings, fit_many
from nonloc_paper.training.session import Session


def tiny_data(*, labels: bool = True, train: int = 40, test: int = 24, size: int = 8) -> Dataset:
    """Noise around one mean image per class, so that there is something to learn; named "tiny"."""
    generator = torch.Generator().manual_seed(5)
    means = torch.randint(60, 196, (3, 3, size, size), generator=generator)

    def split(count: int) -> Split:
        classes = torch.arange(count) % 3
        noise = torch.randint(-60, 60, (count, 3, size, size), generator=generator)
        return Split((means[classes] + noise).to(torch.uint8), classes if labels else None)

    return Dataset("tiny", split(train), split(test), ("a", "b", "c") if labels else None)


def tiny_recipe(**changes: Any) -> Recipe:
    """Three epochs of five steps, the last batch smaller, with augmentation and a change of rate."""
    recipe = Recipe(
        network="preresnet8-basic/diffusive-1@1",
        data="tiny",
        epochs=3,
        batch_size=9,
        learning_rate=0.05,
        milestones=(2,),
    )
    return recipe.with_(**changes)


def train(recipe: Recipe, run: Any, **options: Any) -> Outcome:
    """`fit` on tiny data, on the CPU."""
    data = tiny_data(labels=recipe.task == "classification")
    return fit(recipe, run, **({"data": data, "device": "cpu", "progress": False} | options))


def after_step(
    monkeypatch: Any, step: int, act: Callable[[Session], object], seed: int | None = None
) -> None:
    """Call `act` after step `step`, counted from 1, of the runs with `seed`; None is all runs."""
    take_step = Session.take_step

    def take_step_and_act(self: Session) -> None:
        take_step(self)
        if self.step == step and seed in (None, self.recipe.seed):
            act(self)

    monkeypatch.setattr(Session, "take_step", take_step_and_act)


def before_method(monkeypatch: Any, owner: type, name: str, act: Callable[..., object]) -> None:
    """Call `act`, with the same arguments, before each call of the method `owner.name`."""
    method = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *arguments: (act(*arguments), method(*arguments))[1])


def spoil(session: Session, value: float) -> None:
    """Give one parameter entries that are not finite."""
    with torch.no_grad():
        next(session.model.parameters())[0] = value


def timeless_metrics(run: Run) -> list[dict[str, Any]]:
    """The metrics without the one number that may differ between two runs of the same recipe."""
    return [{key: value for key, value in line.items() if key != "seconds"} for line in run.read_metrics()]


def assert_same_run(run: Run, expected: Run) -> None:
    """To the last bit: weights, metrics and spectra."""
    assert run.read_result()["weights_sha256"] == expected.read_result()["weights_sha256"]
    assert timeless_metrics(run) == timeless_metrics(expected)
    assert run.read_spectra() == expected.read_spectra()


def train_each(recipes: Sequence[Recipe], folder: Path) -> list[Run]:
    """Train each recipe alone, by `fit`, and return the runs."""
    runs = [Run(folder / str(number)) for number in range(len(recipes))]
    for recipe, run in zip(recipes, runs, strict=True):
        train(recipe, run)
    return runs


def train_together(
    recipes: Sequence[Recipe], folder: Path, side_by_side: int | None, **options: Any
) -> tuple[list[Run], Endings]:
    """Train the recipes by `fit_many` on tiny data; return the runs and how they ended."""
    runs = [Run(folder / str(number)) for number in range(len(recipes))]
    data = {"tiny": tiny_data(labels=recipes[0].task == "classification")}
    options = {"data": data, "device": "cpu", "progress": False} | options
    return runs, fit_many(recipes, runs, side_by_side=side_by_side, **options)


def outcomes(endings: Endings) -> list[str | None]:
    """How each run ended; None where it has no outcome."""
    return [ending.outcome and ending.outcome.ending for ending in endings.all]


def send_sigterm(session: Session) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def saved_steps(run: Run) -> list[int]:
    """The steps of the checkpoints, in order."""
    return sorted(int(path.stem) for path in run.checkpoints_path.glob("*.json"))


def make_older(run: Run, number: int, *missing: str, **changes: Any) -> None:
    """Give a checkpoint the manifest of an older version, without a checksum and hashes of the records."""
    path = run.checkpoints_path / f"{number:08d}.json"
    manifest = read_json(path) | {"format": UNVERIFIED} | changes
    path.write_text(json.dumps({key: manifest[key] for key in manifest if key not in ("records", *missing)}))


@contextmanager
def unusual_defaults() -> Iterator[None]:
    """Inside, torch's default is float64 on the meta device, on which nothing can be computed."""
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
