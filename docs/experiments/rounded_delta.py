"""What a rounded δ does to the gradient of an affinity, and with it to training.

A dense stage on the CPU that rounds to bfloat16 where the fused kernels round. The gradient of the logits is
K (dK − δ), each of whose rows sums to 0; δ comes from stored outputs. Ways to find it:

  float32   nothing is rounded, forward or backward
  ideal     forward as below; δ and the logits' gradient are not rounded
  stored    δ from the rounded outputs, as flash attention takes it, and as the fused stage once did
  exact     the row sum that rounding leaves is taken out, as nonloc/ops/fused_kernels.py does

  python docs/experiments/rounded_delta.py train WAY --data-dir DIR

trains PreResNet-20 with 4 diffusive sub-blocks of weight="stable" after residual block 2 on CIFAR-10 at 16 × 16, all
maps begun with deviation 1/√fan_in, rate 0.1, batch 128: a start with large logits. About 7 minutes on one core.

  python docs/experiments/rounded_delta.py gradients RUN [RUN ...] --data-dir DIR

compares the gradients of θ and φ of trained networks, 16 training images, with the ideal ones. Both put what they find
into rounded_delta.json beside this file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nonloc.data.load import load
from nonloc.networks.build import build
from nonloc.nn.layout import from_positions
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.stage import stages
from nonloc.paper.map_cells import ONE_EPOCH, Cell
from nonloc.runs import Run
from nonloc.training.recipe import Recipe
from nonloc.training.step import make_optimizer
from nonloc.training.tasks import TASKS, Task
from nonloc.training.trained import trained_network

WAYS = ("float32", "ideal", "stored", "exact")
CELL = Cell(rate=0.1, init="fan_in", form="stable", blocks=4)
STEPS = 400
EVERY = 20
IMAGES = 16
FILE = Path(__file__).with_suffix(".json")


def rounded(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


class DenseStage(torch.autograd.Function):
    """Sub-blocks with one K, a matrix; the names are those of nonloc/ops/fused_kernels.py."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, z: Tensor, w_z: Tensor, w_g: Tensor, differs: bool, way: str
    ) -> Tensor:
        cut: Callable[[Tensor], Tensor] = rounded if way != "float32" else lambda x: x
        q, k, z, w_z, w_g = (cut(x) for x in (q, k, z, w_z, w_g))
        kernel = torch.softmax(q @ k.mT, -1)
        states, givers, changes = [z], [], []
        for outer, inner in zip(w_z, w_g, strict=True):
            givers.append(cut(states[-1] @ inner.mT))
            changes.append(cut(cut(kernel) @ givers[-1] - differs * givers[-1]))
            states.append(cut(states[-1] + changes[-1] @ outer.mT))
        ctx.differs, ctx.way, ctx.cut = differs, way, cut
        ctx.save_for_backward(q, k, kernel, w_z, w_g, *(torch.stack(x) for x in (givers, changes, states)))
        return states[-1]

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        q, k, kernel, w_z, w_g, givers, changes, states = ctx.saved_tensors
        cut, dz = ctx.cut, ctx.cut(dz)
        d_wz, d_wg = torch.empty_like(w_z), torch.empty_like(w_g)
        d_kernel, delta = torch.zeros_like(kernel), torch.zeros_like(kernel[..., :1])
        for n in reversed(range(len(w_z))):
            dr = cut(dz @ w_z[n])
            d_wz[n] = torch.einsum("bmc,bmh->ch", dz, changes[n])
            d_kernel += dr @ givers[n].mT
            delta += (dr * (changes[n] + ctx.differs * givers[n])).sum(-1, keepdim=True)
            dg = cut(cut(kernel).mT @ dr - ctx.differs * dr)
            d_wg[n] = torch.einsum("bmh,bmc->hc", dg, states[n])
            dz = cut(dz + dg @ w_g[n])
        if ctx.way == "ideal":
            delta, cut = (kernel * d_kernel).sum(-1, keepdim=True), lambda x: x
        ds = cut(kernel * (d_kernel - delta))
        dq = ds @ k
        if ctx.way == "exact":
            left = ds.sum(-1, keepdim=True) / cut(kernel).sum(-1, keepdim=True)
            dq -= left * (cut(kernel) @ k)
            ds = cut(kernel * (d_kernel - delta - left))
        return cut(dq), cut(ds.mT @ q), dz, d_wz, d_wg, None, None


def compute_by(way: str, model: nn.Module, look: Callable[[Tensor], None]) -> None:
    """Let all stages of a model be computed this way; `look` is shown the logits of each kernel."""

    def forward_of(stage: NonlocalModule) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            z = x.flatten(2).mT
            factors = [one.factors() for one in stage.maps]
            parts = [factors] if stage.shares_affinity else [[one] for one in factors]
            for embedding, part in zip(stage.embeddings, parts, strict=True):
                affinity = embedding(z)
                left = affinity.scale * affinity.left
                look((left[:IMAGES] @ affinity.right[:IMAGES].mT).detach())
                outer, inner = (torch.stack(each) for each in zip(*part, strict=True))
                z = DenseStage.apply(left, affinity.right, z, outer, inner, stage.uses_differences, way)
            return from_positions(z, stage.layout, x.shape)

        return forward

    for name, stage in stages(model):
        if not all(one.is_linear for one in stage.maps):
            raise SystemExit(f"{name} has a batch norm or a bias, which this dense stage has not")
        stage.forward = forward_of(stage)  # type: ignore[method-assign]


def spread(logits: Tensor) -> float:
    """The largest max_j − min_j of a row."""
    return float((logits.amax(-1) - logits.amin(-1)).max())


def task_of(recipe: Recipe, data_dir: str) -> Task:
    recipe = recipe.with_(precision="float32", channels_last=False)
    return TASKS[recipe.task](recipe, load("cifar10", data_dir), torch.device("cpu"))


def train(way: str, data_dir: str, seed: int) -> list[dict[str, Any]]:
    """Every EVERY steps: the loss, the spread of the logits, the mean entropy of the rows of K."""
    recipe = CELL.recipe(ONE_EPOCH.base, seed)
    torch.manual_seed(seed)
    model = build(recipe.network, num_classes=10, **recipe.stage.to_dict()).train()
    seen: dict[str, float] = {}

    def look(logits: Tensor) -> None:
        log_kernel = logits.log_softmax(-1)
        seen["spread"] = spread(logits)
        seen["entropy"] = float(-(log_kernel.exp() * log_kernel).sum(-1).mean())

    compute_by(way, model, look)
    task = task_of(recipe, data_dir)
    optimizer = make_optimizer(model, recipe)
    chance = torch.Generator().manual_seed(seed)
    found = []
    for step in range(STEPS + 1):
        indices = torch.randint(len(task.train), (recipe.batch_size,), generator=chance)
        images, labels = task.train_batch(indices, chance)
        loss = task.loss(model(F.avg_pool2d(images, 2)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0 or not loss.isfinite():
            found.append({"way": way, "seed": seed, "step": step, "loss": loss.item(), **seen})
            print(json.dumps(found[-1]), flush=True)
        if not loss.isfinite():
            break
    return found


def gradients(folder: Path, data_dir: str) -> dict[str, Any]:
    """How far the gradients of θ and φ are from the ideal ones, relative to their size, in the norm of all together."""
    recipe = Recipe.from_dict(json.loads((folder / "recipe.json").read_text()))
    model = trained_network(Run(folder)).train()
    task = task_of(recipe, data_dir)
    images, labels = task.train_batch(torch.arange(IMAGES), torch.Generator().manual_seed(0))
    spreads: list[float] = []
    found = {}
    maps = [p for _, stage in stages(model) for p in stage.embeddings.parameters()]
    for way in ("ideal", "stored", "exact"):
        compute_by(way, model, lambda logits: spreads.append(spread(logits)))
        found[way] = torch.autograd.grad(task.loss(model(images), labels), maps)
    size = torch.cat([x.flatten() for x in found["ideal"]]).norm()
    errors = {
        way: float(
            torch.cat([(a - b).flatten() for a, b in zip(found[way], found["ideal"], strict=True)]).norm()
            / size
        )
        for way in ("stored", "exact")
    }
    return {"run": "/".join(folder.parts[-3:]), "spread": max(spreads), **errors}


def keep(part: str, lines: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    """Put lines into the file, in the place of those with the same names."""
    kept = json.loads(FILE.read_text()) if FILE.exists() else {"training": [], "gradients": []}
    new = {tuple(line[name] for name in names) for line in lines}
    kept[part] = [x for x in kept[part] if tuple(x[name] for name in names) not in new] + lines
    FILE.write_text(json.dumps(kept, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "gradients"):
        command = commands.add_parser(name)
        command.add_argument("--data-dir", required=True)
        if name == "train":
            command.add_argument("way", choices=WAYS)
            command.add_argument("--seed", type=int, default=0)
        else:
            command.add_argument("runs", nargs="+", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "train":
        keep("training", train(arguments.way, arguments.data_dir, arguments.seed), ("way", "seed"))
        return
    for folder in arguments.runs:
        line = gradients(folder, arguments.data_dir)
        print(json.dumps(line), flush=True)
        keep("gradients", [line], ("run",))


if __name__ == "__main__":
    main()
