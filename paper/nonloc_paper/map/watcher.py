"""Watcher: keep copies of networks while they train, to measure the steps before a divergence afterwards."""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nonloc._evaluation import evaluating
from nonloc.nn.inspect import stage_inputs
from nonloc.ops import kernel_logit_spreads
from nonloc.outcomes import NonlocError
from nonloc.processes.stability.certify import certify
from nonloc.spectrum import weight_spectrum
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.runs import Run
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.session import Session
from nonloc_paper.training.tasks import TASKS
from nonloc_paper.training.trained import new_network

EVERY = 10  # steps between two copies; the first EVERY steps are all copied, because many runs end at once
LAST = 100  # steps before the end that are measured
AHEAD = 200  # steps that may be queued on a device before the end is noticed
STATES = (LAST + AHEAD) // EVERY + EVERY
LOSSES = 4096  # whole epochs of them
IMAGES = 32  # training images that the stages are measured with


@dataclass
class _History:
    """The last copies of one network, (step, {name: tensor}) before that step, and its losses by step."""

    states: deque[tuple[int, dict[str, Tensor]]] = field(default_factory=lambda: deque(maxlen=STATES))
    losses: deque[tuple[int, Tensor]] = field(default_factory=lambda: deque(maxlen=LOSSES))


class Watcher:
    """Called after every step of many runs, without waiting for the device; keeps the last steps of each run."""

    def __init__(self) -> None:
        self._histories: dict[Run, _History] = {}
        self._images: dict[tuple[Any, ...], Tensor] = {}

    def __call__(self, session: Session) -> None:
        is_new = session.run not in self._histories
        history = self._histories.setdefault(session.run, _History())
        # A run continued after an interruption brings the losses of its epoch with it.
        done = session.step_in_epoch
        for step in range(0 if is_new else done - 1, done):
            history.losses.append((session.step - done + step, session.losses.at(step).clone()))
        # At least one copy, also of a run that is continued shortly before its end.
        if not history.states or session.step < EVERY or session.step % EVERY == 0:
            state = {name: value.detach().clone() for name, value in session.model.state_dict().items()}
            history.states.append((session.step, state))

    def saw_the_end(self, run: Run) -> bool:
        """Return whether the last steps of a run were watched, and their losses are known."""
        return run in self._histories and bool(self._histories[run].losses)

    def losses(self, run: Run) -> dict[int, float]:
        """Return the finite losses of the last steps, by step."""
        history = self._histories[run]
        values = torch.stack([loss for _, loss in history.losses]).tolist()
        steps = [step for step, _ in history.losses]
        return {step: loss for step, loss in zip(steps, values, strict=True) if math.isfinite(loss)}

    def before(
        self, run: Run, recipe: Recipe, data: Dataset, device: torch.device, end: int
    ) -> list[dict[str, Any]]:
        """Return {"step", "loss", "stages"} for every EVERY steps of the last LAST before step `end`.

        "stages" are measured and certified, in the network as it was before that step.
        """
        losses = self.losses(run)
        states = [(step, state) for step, state in self._histories[run].states if end - LAST <= step <= end]
        if not states:
            return []
        model, images = self._network_and_images(recipe, data, device)
        return [
            {"step": step, "loss": losses.get(step), "stages": _measure(model, state, images, certified=True)}
            for step, state in states
        ]

    def after(self, run: Run, recipe: Recipe, data: Dataset, device: torch.device) -> dict[str, Any]:
        """Return {"step", "stages"} of the last copy."""
        step, state = self._histories[run].states[-1]
        model, images = self._network_and_images(recipe, data, device)
        return {"step": step, "stages": _measure(model, state, images, certified=False)}

    def forget(self, run: Run) -> None:
        self._histories.pop(run, None)

    def _network_and_images(
        self, recipe: Recipe, data: Dataset, device: torch.device
    ) -> tuple[nn.Module, Tensor]:
        """Return a network to load the copies into, and the first training images as it sees them, [B, 3, H, W]."""
        what = (recipe.task, recipe.data, recipe.train_images, recipe.pixel_scale, device)
        if what not in self._images:
            task = TASKS[recipe.task](recipe.with_(augment=False, precision="float32"), data, device)
            indices = torch.arange(min(IMAGES, len(task.train)), device=device)
            unused = torch.zeros(1, dtype=torch.int64, device=device)
            self._images[what] = task.train_batch(indices, unused)[0]
        return new_network(recipe, data.num_classes).to(device), self._images[what]


def _measure(
    model: nn.Module, state: dict[str, Tensor], images: Tensor, *, certified: bool
) -> list[dict[str, Any]]:
    """Return {"name", "amplification", "logit_spread", "logit_spreads"} of every stage of the network in this state.

    amplification  the largest ‖stage(x)‖ / ‖x‖ of the batch, with running statistics
    logit_spread   of that image, the largest max_j − min_j of the logits of a row, over the rows of all kernels; None
                   where there are no logits
    logit_spreads  the same of each kernel, which is one for all sub-blocks where they share it

    certified adds "growth" and "verdict" by `certify`, with the kernels of the image, and "weights", of each W
    {"eigenvalue": of sym(W), the one of largest magnitude, "norm": Frobenius}. What is not finite is None.
    """
    model.load_state_dict(state)
    measured = []
    for name, stage, x, _ in stage_inputs(model, images):
        with evaluating(stage):
            after, before = (features.double().flatten(1).norm(dim=1) for features in (stage(x), x))
            ratios = (after / before).nan_to_num(nan=math.inf)
            worst = int(ratios.argmax())
            x = x[worst : worst + 1]
            spreads = kernel_logit_spreads(stage.affinities(x))
            one: dict[str, Any] = {
                "name": name,
                "amplification": float(ratios[worst]),
                "logit_spread": max(spreads) if spreads and all(map(math.isfinite, spreads)) else None,
                "logit_spreads": spreads,
            }
            if certified:
                one |= _certificate(stage, x)
        measured.append(one)
    return measured


def _certificate(stage: Any, x: Tensor) -> dict[str, Any]:
    growth = verdict = None
    # A solver may give up on numbers near overflow; the other measures stay.
    with suppress(ValueError, NonlocError, RuntimeError):
        certificate = certify(stage, x, exact_up_to=0)
        growth, verdict = certificate.growth, certificate.verdict
    weights: list[dict[str, float | None]] = []
    for weight in stage.weights():
        matrix, eigenvalue, norm = weight.detach().double(), None, None
        if bool(matrix.isfinite().all()):
            eigenvalue = float(weight_spectrum(matrix).eigenvalues[0])
            norm = float(torch.linalg.matrix_norm(matrix))
        weights.append({"eigenvalue": eigenvalue, "norm": norm})
    return {"growth": growth, "verdict": verdict, "weights": weights}
