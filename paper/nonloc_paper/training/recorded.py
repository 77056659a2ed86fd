"""Recorded networks in one line: `models()` lists them, `load(name)` brings one with all that it needs.

from nonloc_paper import load
one = load("cifar10/proposed-5-own")
scores = one.model(one.preprocess(images))  # uint8 [N, 3, 32, 32]
names = [one.classes[i] for i in scores.argmax(1)]
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from nonloc._checks import shown
from nonloc_paper.data.download import SOURCES
from nonloc_paper.networks.build import build
from nonloc_paper.paths import results_folder
from nonloc_paper.runs import Run, find_runs
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.tasks import Preprocess
from nonloc_paper.training.trained import network_of, newest_checkpoint

# Of each data set, the mean of every pixel and the deviation from it, over the training images.
STATISTICS = Path(__file__).parents[1] / "data" / "pixel_statistics.safetensors"
# Where short names look: the backbone that matches the paper's baseline comes first.
SUITES = {"cifar10": ("table1-n3", "table1"), "cifar100": ("table2-n9", "table2")}


@dataclass(frozen=True)
class Recorded:
    """A recorded network.

    model       plain torch, in eval mode
    preprocess  from uint8 images to the model's input
    classes     the names of its outputs
    error       on the test images when it was recorded, in %
    recipe      how it was trained, with its seed
    """

    name: str
    model: nn.Module
    preprocess: Preprocess
    classes: tuple[str, ...]
    error: float
    recipe: Recipe


def models(records: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the names of the recorded networks that have weights: <suite>/<row>, as their folders say.

    records  the folder of kept records; None: the checkout's, or NONLOC_RESULTS

    >>> from nonloc_paper import models
    >>> "table1-n3/5-block-proposed-own-affinities" in models()
    True
    """
    return sorted(_runs(records))


def load(
    name: str, device: torch.device | str = "cpu", *, records: str | os.PathLike[str] | None = None
) -> Recorded:
    """Return a recorded network by its name; `models(records)` lists them.

    Short names are "cifar10/baseline", "cifar10/original-4", "cifar10/proposed-5" and, with own affinities,
    "cifar10/proposed-5-own": of the backbone that matches the paper's baseline, if its weights are recorded. Those of
    "cifar10/baseline" are not: it is shallower, and compares with the networks of table1.

    >>> from nonloc_paper import load
    >>> one = load("cifar10/proposed-5")
    >>> one.name, one.classes[:3], one.recipe.network
    ('table1-n3/5-block-proposed', ('airplane', 'automobile', 'bird'), 'preresnet29/diffusive-5@2')
    >>> one.model(one.preprocess(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))).shape
    torch.Size([1, 10])
    """
    runs = _runs(records)
    full = _full_name(name, runs)
    if full is None:
        raise ValueError(f"{shown(name)} is no recorded network; choose one of {', '.join(sorted(runs))}")
    run = runs[full]
    recipe, checkpoint = Recipe.of(run), newest_checkpoint(run)
    plain = build(recipe.network, num_classes=checkpoint.num_classes, **asdict(recipe.stage))
    model = network_of(checkpoint, recipe, device, plain)
    statistics = load_file(STATISTICS)
    mean, deviation = (statistics[f"{recipe.data}.{part}"] for part in ("mean", "deviation"))
    scale = float(deviation) if recipe.pixel_scale == "std" else recipe.pixel_scale
    preprocess = Preprocess(mean, scale)
    error = run.read_result()["metrics"]["error"]
    return Recorded(full, model, preprocess.to(device), SOURCES[recipe.data].classes, error, recipe)


def _full_name(name: str, runs: Collection[str]) -> str | None:
    """The name itself, or what a short name stands for; None if there is no such network."""
    known = [name]
    if parts := re.fullmatch(r"(\w+)/(\w+)(?:-(\d+)(-own)?)?", str(name)):
        data, form, blocks, own = parts.groups()
        row = f"{blocks}-block-{form}" if blocks else form
        row += "-own-affinities" if own else ""
        known += [f"{suite}/{row}" for suite in SUITES.get(data, ())]
    return next((one for one in known if one in runs), None)


def _runs(records: str | os.PathLike[str] | None) -> dict[str, Run]:
    """The recorded runs that have weights, by name: of a row one seed, the first where there are several."""
    root = results_folder() if records is None else Path(records)
    if not root.is_dir():
        raise ValueError(
            f"{root} is not there: recorded networks are in a checkout of the repository; name its paper/results in "
            "NONLOC_RESULTS"
        )
    found: dict[str, Run] = {}
    for run in find_runs(root):
        if run.has_weights and run.read_recipe()["data"] in SOURCES:
            found.setdefault(run.path.parent.relative_to(root).as_posix(), run)
    return found
