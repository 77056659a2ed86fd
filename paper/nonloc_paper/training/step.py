"""One training step; the precision and the CUDA stream in which it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nonloc._torch_compat import copy_all, cpu_has_bfloat16
from nonloc_paper.training.ranks import ALONE, Ranks
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.tasks import Chance, Task

Stream = torch.cuda.Stream | None
"""A CUDA stream; None on devices without streams."""


class TrainingStep:
    """Forward, backward and update for one batch. Reads nothing back from the device.

    cast_together  in bfloat16, cast the weights of all convolutions with one launch, and their gradients back with
                   one. The numbers are the same: autocast rounds the same values, with one launch for each.
    ranks          the processes that share each batch
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        recipe: Recipe,
        *,
        cast_together: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model = model
        self._ranks = ranks
        self._parallel = DistributedDataParallel(model) if ranks.count > 1 else None
        self.task = task
        self.recipe = recipe
        self.optimizer = make_optimizer(model, recipe)
        # On CUDA the rate is a number in device memory, so that a captured step can use another one.
        on_cuda = task.device.type == "cuda"
        self._rate = torch.zeros((), dtype=torch.float32, device=task.device) if on_cuda else None
        self._rate_now = 0.0
        self._casts: Bfloat16Weights | None = None
        has_convolutions = any(isinstance(module, nn.Conv2d) for module in model.modules())
        if cast_together and recipe.precision == "bfloat16" and has_convolutions:
            self._casts = Bfloat16Weights(model)

    def __call__(self, indices: Tensor, chance: Chance, learning_rate: float) -> Tensor:
        """Train on the images `indices` [B]; return the loss before the update, a tensor [] on the device."""
        self.set_rate(learning_rate)
        return self.compute(indices, chance)

    def set_rate(self, learning_rate: float) -> None:
        """Set the learning rate from the next step on, without waiting for the device."""
        if self._rate is not None and learning_rate != self._rate_now:
            self._rate.fill_(learning_rate)
            self._rate_now = learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate if self._rate is None else self._rate

    def compute(self, indices: Tensor, chance: Chance) -> Tensor:
        """Do the step at the rate that was set. Only launches work on the device, so it can be captured."""
        self.model.train()
        with precision_of(self.recipe, self.task.device):
            inputs, targets = self.task.train_batch(indices, chance)
            if self._parallel is not None:
                return self._compute_part(self._parallel, inputs, targets)
            model = self.model if self._casts is None else self._casts
            loss = self.task.loss(forward(model, inputs, self.recipe), targets)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if self._casts is not None:
                self._casts.collect_gradients()
            self.optimizer.step()
        return loss.detach()

    def _compute_part(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Do the step with this process's part of the batch; return the loss over the whole batch.

        Every process makes the whole batch, so that its augmentation and noise are those of one process.
        """
        part = self._ranks.part(len(inputs))
        loss = self.task.loss(forward(model, inputs[part], self.recipe), targets[part])
        share = loss * ((part.stop - part.start) / len(inputs))
        self.optimizer.zero_grad(set_to_none=True)
        # The wrapper takes the mean of the gradients over the processes, not their sum.
        (share * self._ranks.count).backward()
        self.optimizer.step()
        return self._ranks.add_up(share.detach())


class Bfloat16Weights:
    """Bfloat16 copies of the weights of all convolutions, made again in every step.

    Only convolutions: a module may do anything with another parameter, but autocast always casts the weight of a
    convolution.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._masters = {
            f"{name}.weight": module.weight
            for name, module in model.named_modules()
            if isinstance(module, nn.Conv2d)
        }
        self._copies = {
            name: torch.empty_like(weight, dtype=torch.bfloat16, requires_grad=True)
            for name, weight in self._masters.items()
        }

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the model's outputs with the copies in place of the weights, under the caller's autocast."""
        for copy in self._copies.values():
            # A failed capture may have left a gradient.
            copy.grad = None
        with torch.no_grad():
            copy_all(list(self._copies.values()), list(self._masters.values()))
        return torch.func.functional_call(self._model, self._copies, (inputs,))

    def collect_gradients(self) -> None:
        """Move the gradients of the copies, in float32, to the weights."""
        rounded, gradients = [], []
        for copy, weight in zip(self._copies.values(), self._masters.values(), strict=True):
            if copy.grad is not None:
                rounded.append(copy.grad)
                gradients.append(torch.empty_like(weight))
                weight.grad, copy.grad = gradients[-1], None
        copy_all(gradients, rounded)


def forward(model: Callable[[Tensor], Tensor], inputs: Tensor, recipe: Recipe) -> Tensor:
    """Return the network's outputs in float32, computed in the recipe's precision and memory layout."""
    if recipe.channels_last:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    with autocast_of(recipe, inputs.device):
        outputs = model(inputs)
    return outputs.float()


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Make the recipe's optimizer; on CUDA with fused kernels, which can be captured and read the rate there."""
    on_cuda = any(parameter.is_cuda for parameter in model.parameters())
    if recipe.optimizer == "adam":
        return torch.optim.Adam(
            model.parameters(),
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            fused=on_cuda or None,
            capturable=on_cuda,
        )
    return torch.optim.SGD(
        model.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        weight_decay=recipe.weight_decay,
        fused=on_cuda or None,
    )


@contextmanager
def precision_of(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Inside, torch computes in the recipe's precision, not in its own default.

    A float32 recipe computes convolutions in float32 on CUDA too, where torch's default is TF32. A bfloat16 recipe
    avoids oneDNN on a CPU without bfloat16: there torch turns oneDNN off at the first product that fails, for the rest
    of the process, so that a resumed run would compute other sums than one that was not interrupted.
    """
    where: Any
    value: str | bool
    # torch replaces these modules by other objects when it is imported, which its annotations do not say.
    if device.type == "cuda" and recipe.precision == "float32":
        where, name, value = cast(Any, torch.backends.cudnn).conv, "fp32_precision", "ieee"
    elif device.type == "cpu" and recipe.precision == "bfloat16" and not cpu_has_bfloat16():
        where, name, value = cast(Any, torch.backends.mkldnn), "enabled", False
    else:
        yield
        return
    before = getattr(where, name)
    setattr(where, name, value)
    try:
        yield
    finally:
        setattr(where, name, before)


def autocast_of(recipe: Recipe, device: torch.device) -> torch.autocast:
    """Inside, a bfloat16 recipe computes its convolutions and matrix products in bfloat16."""
    return torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")


def slow_precision(recipe: Recipe, device: torch.device) -> str:
    """Return a warning for the user if the CPU has no instructions for the recipe's bfloat16; else ""."""
    if recipe.precision != "bfloat16" or device.type != "cpu" or cpu_has_bfloat16():
        return ""
    return "this CPU has no bfloat16, without which a step may take minutes; precision float32 is many times as fast"


def new_stream(device: torch.device) -> Stream:
    """Return a stream that starts after all work launched so far; None for a device without streams."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def on_stream(stream: Stream) -> AbstractContextManager[Any]:
    """Inside, work is launched on `stream`."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def follow(stream: Stream, leader: Stream) -> None:
    """Make later work on `stream` wait for the work launched on `leader` so far."""
    if stream is not None and leader is not None:
        stream.wait_stream(leader)
