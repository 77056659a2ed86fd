"""Watcher: copies of networks while they train, so that what came before a divergence can be looked at afterwards."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nonloc.data.dataset import Dataset
from nonloc.networks.build import build
from nonloc.nn.features import stage_inputs
from nonloc.nn.probe import evaluating
from nonloc.outcomes import NonlocError
from nonloc.processes.stability import certify
from nonloc.runs import Run
from nonloc.spectrum import weight_spectrum
from nonloc.training.recipe import Recipe
from nonloc.training.session import Session
from nonloc.training.tasks import TASKS

EVERY = 10  # steps between two looks, after the first EVERY, which are all looked at: many runs end at once
LAST = 100  # steps before the end that are looked at
AHEAD = 200  # steps that a device may have been given before the end is noticed
STATES = (LAST + AHEAD) // EVERY + EVERY
LOSSES = 4096  # whole epochs of them
IMAGES = 32  # training images that the stages are looked at with


@dataclass
class _Film:
    """The last copies of one network: (step, {name: tensor}), each before that step; and the losses by step."""

    states: deque[tuple[int, dict[str, Tensor]]] = field(default_factory=lambda: deque(maxlen=STATES))
    losses: deque[tuple[int, Tensor]] = field(default_factory=lambda: deque(maxlen=LOSSES))


class Watcher:
    """Looks on after every step of many runs, without waiting for the device, and remembers the last steps of each."""

    def __init__(self) -> None:
        self._films: dict[Run, _Film] = {}

    def __call__(self, session: Session) -> None:
        is_new = session.run not in self._films
        film = self._films.setdefault(session.run, _Film())
        # A run that goes on after an interruption brings the losses of its epoch with it.
        done = session.step_in_epoch
        for step in range(0 if is_new else done - 1, done):
            film.losses.append((session.step - done + step, session.loss_of(step).clone()))
        if session.step < EVERY or session.step % EVERY == 0:
            state = {name: value.detach().clone() for name, value in session.model.state_dict().items()}
            film.states.append((session.step, state))

    def saw_the_end(self, run: Run) -> bool:
        """Whether it was there for the last steps of a run, and knows their losses."""
        return run in self._films and bool(self._films[run].losses)

    def losses(self, run: Run) -> dict[int, float]:
        """The finite ones of the last steps, by step."""
        film = self._films.get(run)
        if film is None:
            return {}
        values = torch.stack([loss for _, loss in film.losses]).tolist()
        steps = [step for step, _ in film.losses]
        return {step: loss for step, loss in zip(steps, values, strict=True) if math.isfinite(loss)}

    def before(
        self, run: Run, recipe: Recipe, data: Dataset, device: torch.device, end: int
    ) -> list[dict[str, Any]]:
        """Every EVERY steps of the last LAST before step `end`: {"step", "loss", "stages": [{"name", "amplification",
        "growth", "verdict", "weights": [{"eigenvalue", "norm"}]}]}, of the network as it was before that step."""
        film, losses = self._films.get(run, _Film()), self.losses(run)
        wanted = [(step, state) for step, state in film.states if end - LAST <= step <= end]
        if not wanted:
            return []
        model = build(recipe.network, num_classes=data.num_classes, **recipe.stage.to_dict()).to(device)
        inputs = _first_images(recipe, data, device)
        return [
            {"step": step, "loss": losses.get(step), "stages": _look(model, state, inputs)}
            for step, state in wanted
        ]

    def forget(self, run: Run) -> None:
        self._films.pop(run, None)


def _first_images(recipe: Recipe, data: Dataset, device: torch.device) -> Tensor:
    """The first training images as the network is given them, without augmentation, float32 [B, 3, H, W]."""
    task = TASKS[recipe.task](recipe.with_(augment=False, precision="float32"), data, device)
    indices = torch.arange(min(IMAGES, len(task.train)), device=device)
    return task.train_batch(indices, torch.zeros(1, dtype=torch.int64, device=device))[0]


def _look(model: nn.Module, state: dict[str, Tensor], inputs: Tensor) -> list[dict[str, Any]]:
    """What every stage of the network does to the inputs, with running statistics."""
    model.load_state_dict(state)
    return [_measure(name, stage, x) for name, stage, x, _ in stage_inputs(model, inputs)]


def _measure(name: str, stage: Any, x: Tensor) -> dict[str, Any]:
    """amplification: the largest ‖stage(x)‖ / ‖x‖ of the batch; growth: by `certify`, with the kernels of that image;
    eigenvalue: of sym(W), the one of largest magnitude; norm: Frobenius. What is not finite is None."""
    with evaluating(stage):
        sizes = [state.double().flatten(1).norm(dim=1) for state in (stage(x), x)]
        ratios = (sizes[0] / sizes[1]).nan_to_num(nan=math.inf)
        worst = int(ratios.argmax())
        try:
            found = certify(stage, x[worst : worst + 1], exact_up_to=0)
            growth, verdict = found.growth, found.verdict
        except (ValueError, NonlocError, RuntimeError):
            # Numbers on their way out: a solver that gives up on them is no reason to lose the rest.
            growth, verdict = None, None
        weights = [_weight(weight.detach().double()) for weight in stage.weights()]
    return {
        "name": name,
        "amplification": float(ratios[worst]),
        "growth": growth,
        "verdict": verdict,
        "weights": weights,
    }


def _weight(matrix: Tensor) -> dict[str, float | None]:
    if not bool(matrix.isfinite().all()):
        return {"eigenvalue": None, "norm": None}
    return {
        "eigenvalue": float(weight_spectrum(matrix).eigenvalues[0]),
        "norm": float(torch.linalg.matrix_norm(matrix)),
    }
