"""The panel "Click a pixel": the embeddings θx and φx of networks on the drawn pictures, in 8 bits.

The page makes a row of the kernel from them: softmax_j(θx_i · φx_j). A constant that is added to a row of logits
changes nothing, so φx is centred first; that leaves the 8 bits for what matters.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nonloc.nn import stages
from nonloc.nn.inspect import stage_inputs
from nonloc.ops import Affinity
from nonloc_paper.explorer.pictures import Picture, halved, pictures
from nonloc_paper.explorer.rounding import rounded
from nonloc_paper.paths import recorded_demo
from nonloc_paper.runs import Run, find_runs
from nonloc_paper.suites.demo import DEMO
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.recorded import load, models
from nonloc_paper.training.trained import trained_network

# Few, because an affinity takes 90 kB a picture: both forms, one affinity or several, one place or three.
NETWORKS = (
    "table1-n3/4-block-proposed-own-affinities",
    "table1/4-block-proposed",
    "table1/4-block-original",
    "table1/3-blocks-in-different-places-original",
)
LARGEST = 127  # of 8 bits with a sign


@dataclass(frozen=True)
class _Network:
    name: str
    model: nn.Module
    inputs: Tensor  # the pictures, as the model takes them
    note: str
    classes: tuple[str, ...]  # of its outputs; none for a network that restores


def data(records: Path, demo: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return the pictures, and of each network what it makes of them.

    demo  the folder of a finished demo, whose networks come first
    """
    drawn = {name: halved(picture) for name, picture in pictures().items()}
    images = torch.from_numpy(np.stack(list(drawn.values())))
    networks = [*(_demo(demo, images) if demo is not None else ()), *_recorded(records, images)]
    if recorded_demo().is_dir():
        networks += _demo(recorded_demo(), images, "recorded demo")
    return {
        "pictures": encode_pictures(drawn),
        "networks": [{"name": one.name, "note": one.note, "pictures": _looks(one)} for one in networks],
    }


def _recorded(records: Path, images: Tensor) -> Iterator[_Network]:
    there = models(records)
    for name in NETWORKS:
        if name in there:
            one = load(name, records=records)
            note = f"{one.recipe.network} on CIFAR-10, {one.error:.2f} % error; {name}"
            yield _Network(describe(one.model), one.model, one.preprocess(images), note, one.classes)


def _demo(folder: str | os.PathLike[str], images: Tensor, title: str = "demo") -> Iterator[_Network]:
    """The first seed of every row that has weights and a stage, in the order of the demo."""
    labels = {row.recipe: row.label for row in DEMO.rows}
    runs: dict[Recipe, Run] = {}
    for run in find_runs(folder):
        recipe = Recipe.of(run)
        if recipe.data == "motifs" and run.has_weights and recipe.form:
            runs.setdefault(recipe.with_(seed=0), run)
    for recipe in (one for one in dict.fromkeys([*labels, *runs]) if one in runs):
        model = trained_network(runs[recipe])
        label = labels.get(recipe) or describe(model)
        note = f"the demo, trained on 12 × 12 pixels with noise; {describe(model)}"
        yield _Network(f"{title}: {label}", model, images.float() / 127.5 - 1, note, ())
    if not runs:
        raise ValueError(f"{folder} has no trained network of the demo; run `make demo` first")


def describe(model: nn.Module) -> str:
    """Return the nonlocal blocks of a model in words, such as "4 diffusive blocks, one affinity"."""
    found = [stage for _, stage in stages(model)]
    count = sum(stage.num_blocks for stage in found)
    text = f"{count} {found[0].form} block{'s' if count > 1 else ''}"
    if len(found) > 1:
        return f"{text} in {len(found)} places"
    return (
        text if count == 1 else f"{text}, {'one affinity' if found[0].shares_affinity else 'own affinities'}"
    )


@torch.no_grad()
def _looks(network: _Network) -> list[dict[str, Any]]:
    """For each picture: the class that the network sees, and every affinity once."""
    chances = network.model(network.inputs).softmax(-1) if network.classes else None
    found = []
    for place, one in enumerate(network.inputs.split(1)):
        says = None
        if chances is not None:
            best = int(chances[place].argmax())
            says = {"class": network.classes[best], "percent": round(100 * float(chances[place][best]))}
        maps = []
        inputs = stage_inputs(network.model, one)
        for name, stage, x, _ in inputs:
            affinities = stage.affinities(x)[: 1 if stage.shares_affinity else None]
            for number, affinity in enumerate(affinities, start=1):
                text = (
                    f"block {number}"
                    if len(affinities) == stage.num_blocks
                    else f"blocks 1 to {stage.num_blocks}"
                )
                if len(inputs) > 1:
                    text = f"after residual block {name.rpartition('.')[2]}"
                maps.append({"text": text, "side": x.shape[-1], **embeddings(affinity)})
        found.append({"says": says, "maps": maps})
    return found


def embeddings(affinity: Affinity) -> dict[str, Any]:
    """Return both sides of an affinity of one sample in 8 bits, with the step of each channel.

    The scale of the logits is in the left side. Only row-normalised gaussian kernels: a ValueError for others.
    """
    if affinity.kind != "gaussian" or affinity.normalize != "row":
        raise ValueError(
            f"a {affinity.kind} kernel with normalize={affinity.normalize!r} cannot be shown; the page makes rows of "
            "gaussian ones with normalize='row'"
        )
    left, right = (side[0].detach().double() for side in (affinity.scale * affinity.left, affinity.right))
    left_steps, left_levels = _levels(left.numpy())
    right_steps, right_levels = _levels((right - right.mean(0)).numpy())
    return {
        "channels": left.shape[1],
        "left": encode(left_levels),
        "right": encode(right_levels),
        "steps": [rounded(step) for step in left_steps * right_steps],
    }


def _levels(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """values [M, d] ≈ steps [d] · levels [M, d]."""
    steps = np.abs(values).max(0) / LARGEST
    return steps, np.rint(values / np.where(steps > 0, steps, 1)).astype(np.int8)


def encode_pictures(drawn: Mapping[str, Picture]) -> list[dict[str, Any]]:
    """Return the pictures as the page takes them."""
    return [
        {"name": name, "side": one.shape[-1], "pixels": encode(one.transpose(1, 2, 0))}
        for name, one in drawn.items()
    ]


def encode(values: NDArray[Any]) -> str:
    """Return bytes as base64."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
