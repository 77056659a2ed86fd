"""How far a rounded δ takes the gradient of an affinity from the exact one, where logits are small and where large.

A dense stage on the CPU that rounds to bfloat16 where the fused kernels round. The gradient of the logits is
K (dK − δ), each of whose rows sums to 0; δ comes from stored outputs. Ways to find it:

  ideal     neither δ nor the logits' gradient is rounded
  stored    δ from the rounded outputs, as flash attention takes it, and as the fused stage once did
  exact     the row sum that rounding leaves is taken out, as nonloc/ops/fused/kernels.py does

  python paper/experiments/rounded_delta.py training --data-dir DIR

trains PreResNet-20 with 4 diffusive sub-blocks of weight="stable" after residual block 2 on CIFAR-10 at 16 × 16, all
maps begun with deviation 1/√fan_in, rate 0.1, batch 128, whose logits become large, the exact way; and compares the
gradients of a batch now and then. About 7 minutes on one core.

  python paper/experiments/rounded_delta.py trained RUN [RUN ...] --data-dir DIR

compares them on 16 training images for networks that were trained. Both put what they find into rounded_delta.json
beside this file.
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

from nonloc.nn.layout import from_positions
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.stage import stages
from nonloc_paper.data import load
from nonloc_paper.map.cells import ONE_EPOCH, MapCell
from nonloc_paper.networks.build import build
from nonloc_paper.runs import Run
from nonloc_paper.training.machine import machine, versions
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.step import make_optimizer
from nonloc_paper.training.tasks import TASKS, Task
from nonloc_paper.training.trained import trained_network

WAYS = ("ideal", "stored", "exact")
CELL = MapCell(rate=0.1, init="fan_in", form="stable", blocks=4)
STEPS = 400
EVERY = 40
IMAGES = 16
FILE = Path(__file__).with_suffix(".json")


def rounded(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


class DenseStage(torch.autograd.Function):
    """Sub-blocks with one K, a matrix; the names are those of nonloc/ops/fused/kernels.py."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, z: Tensor, w_z: Tensor, w_g: Tensor, differs: bool, way: str
    ) -> Tensor:
        q, k, z, w_z, w_g = (rounded(x) for x in (q, k, z, w_z, w_g))
        kernel = torch.softmax(q @ k.mT, -1)
        states, givers, changes = [z], [], []
        for outer, inner in zip(w_z, w_g, strict=True):
            givers.append(rounded(states[-1] @ inner.mT))
            changes.append(rounded(rounded(kernel) @ givers[-1] - differs * givers[-1]))
            states.append(rounded(states[-1] + changes[-1] @ outer.mT))
        ctx.differs, ctx.way = differs, way
        ctx.save_for_backward(q, k, kernel, w_z, w_g, *(torch.stack(x) for x in (givers, changes, states)))
        return states[-1]

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        q, k, kernel, w_z, w_g, givers, changes, states = ctx.saved_tensors
        dz = rounded(dz)
        d_wz, d_wg = torch.empty_like(w_z), torch.empty_like(w_g)
        d_kernel, delta = torch.zeros_like(kernel), torch.zeros_like(kernel[..., :1])
        for n in reversed(range(len(w_z))):
            dr = rounded(dz @ w_z[n])
            d_wz[n] = torch.einsum("bmc,bmh->ch", dz, changes[n])
            d_kernel += dr @ givers[n].mT
            delta += (dr * (changes[n] + ctx.differs * givers[n])).sum(-1, keepdim=True)
            dg = rounded(rounded(kernel).mT @ dr - ctx.differs * dr)
            d_wg[n] = torch.einsum("bmh,bmc->hc", dg, states[n])
            dz = rounded(dz + dg @ w_g[n])
        if ctx.way == "ideal":
            ds = kernel * (d_kernel - (kernel * d_kernel).sum(-1, keepdim=True))
            return ds @ k, ds.mT @ q, dz, d_wz, d_wg, None, None
        ds = rounded(kernel * (d_kernel - delta))
        dq = ds @ k
        if ctx.way == "exact":
            left = ds.sum(-1, keepdim=True)
            dq -= left * rounded(rounded(kernel) @ k)
            ds = rounded(kernel * (d_kernel - delta - left))
        return rounded(dq), rounded(ds.mT @ q), dz, d_wz, d_wg, None, None


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
        if any(one.factors() is None for one in stage.maps):
            raise SystemExit(f"{name} has a batch norm or a bias, which this dense stage has not")
        stage.forward = forward_of(stage)  # type: ignore[method-assign]


def spread(logits: Tensor) -> float:
    """The largest max_j − min_j of a row."""
    return float((logits.amax(-1) - logits.amin(-1)).max())


def task_of(recipe: Recipe, data_dir: str) -> Task:
    recipe = recipe.with_(precision="float32", channels_last=False)
    return TASKS[recipe.task](recipe, load("cifar10", data_dir), torch.device("cpu"))


def compared(model: nn.Module, loss: Callable[[], Tensor]) -> dict[str, float]:
    """The largest spread of the logits, and how far the gradients of the stages' θ and φ, and of everything else, are
    from the ideal ones, relative to their size."""
    spreads: list[float] = []
    maps = [p for _, stage in stages(model) for p in stage.embeddings.parameters()]
    others = [p for p in model.parameters() if all(p is not one for one in maps)]
    found: dict[tuple[str, str], Tensor] = {}
    for way in WAYS:
        compute_by(way, model, lambda logits: spreads.append(spread(logits)))
        gradients = torch.autograd.grad(loss(), maps + others)
        for name, part in (("maps", gradients[: len(maps)]), ("others", gradients[len(maps) :])):
            found[way, name] = torch.cat([x.flatten() for x in part])
    return {"spread": max(spreads)} | {
        f"{way}_{name}": float((found[way, name] - found["ideal", name]).norm() / found["ideal", name].norm())
        for way in ("stored", "exact")
        for name in ("maps", "others")
    }


def training(data_dir: str) -> list[dict[str, Any]]:
    """The comparison every EVERY steps, with the loss."""
    recipe = CELL.recipe(ONE_EPOCH.base, 0)
    torch.manual_seed(0)
    model = build(recipe.network, num_classes=10, **recipe.stage.to_dict()).train()
    task = task_of(recipe, data_dir)
    optimizer = make_optimizer(model, recipe)
    chance = torch.Generator().manual_seed(0)
    found = []
    for step in range(STEPS + 1):
        indices = torch.randint(len(task.train), (recipe.batch_size,), generator=chance)
        images, labels = task.train_batch(indices, chance)
        images = F.avg_pool2d(images, 2)

        def loss(images: Tensor = images, labels: Tensor = labels) -> Tensor:
            return task.loss(model(images), labels)

        if step % EVERY == 0:
            found.append({"step": step, "loss": loss().item(), **compared(model, loss)})
            print(json.dumps(found[-1]), flush=True)
        compute_by("exact", model, lambda logits: None)
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return found


def trained(folder: Path, data_dir: str) -> dict[str, Any]:
    recipe = Recipe.from_dict(json.loads((folder / "recipe.json").read_text()))
    model = trained_network(Run(folder)).train()
    task = task_of(recipe, data_dir)
    images, labels = task.train_batch(torch.arange(IMAGES), torch.Generator().manual_seed(0))
    return {"run": "/".join(folder.parts[-3:]), **compared(model, lambda: task.loss(model(images), labels))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("training", "trained"):
        commands.add_parser(name).add_argument("--data-dir", required=True)
    commands.choices["trained"].add_argument("runs", nargs="+", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(FILE.read_text()) if FILE.exists() else {"training": [], "trained": []}
    kept |= {"machine": machine(torch.device("cpu")), "versions": versions()}
    if arguments.command == "training":
        kept["training"] = training(arguments.data_dir)
    else:
        for folder in arguments.runs:
            line = trained(folder, arguments.data_dir)
            print(json.dumps(line), flush=True)
            kept["trained"] = [x for x in kept["trained"] if x["run"] != line["run"]] + [line]
    FILE.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
