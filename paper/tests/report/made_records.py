"""Table1Runs records made by hand: runs and maps with known answers, in memory or as folders, without any training."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from made import MACHINE, make_result, metrics_line

from nonloc_paper.map.cells import PARTS
from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.report.map.cells import TrainabilityMap, group_cells
from nonloc_paper.report.records import RunRecord
from nonloc_paper.report.table1_runs import Table1Runs, arrange
from nonloc_paper.suites import SUITES
from nonloc_paper.training.recipe import Recipe

CHANNELS = 8
STEPS = 391  # an epoch
CHANCE = [0.3, 0.7]


def weight(share: float) -> dict[str, Any]:
    """A spectrum of energy 1 with this negative share; chance is 30 to 70 %."""
    values = sorted([(1 - share) ** 0.5, -(share**0.5)], key=abs, reverse=True) + [0.0] * (CHANNELS - 2)
    energies = {"positive_energy": 1 - share, "negative_energy": share, "negative_share": share}
    band = {"low": [-0.5] * CHANNELS, "high": [0.5] * CHANNELS, "trace": [-1, 1], "negative_share": CHANCE}
    sizes = {"norm": 1.0, "rank": CHANNELS // 2, "band": band | {"quantile": 0.95}}
    return {"eigenvalues": values, "trace": sum(values)} | energies | sizes


def during(stage: dict[str, Any]) -> dict[str, Any]:
    """What spectra.jsonl holds of a stage of spectrum.json."""
    kept = ("eigenvalues", "trace", "positive_energy", "negative_energy", "negative_share")
    weights = [{name: one[name] for name in kept} for one in stage["weights"]]
    return {"name": stage["name"], "weights": weights}


def record(
    recipe: Recipe,
    error: float | None,
    *,
    share: float | None = None,
    loss: float = 0.1,
    seconds: float = 100.0,
    norm: float = 0.5,
    quotient: float = -0.1,
    path: Path = Path("made"),
) -> RunRecord:
    """A run: with `error` at the end, or diverged where it is None.

    share  the negative share of every W; where it is None, the original form damps and the diffusive one diffuses
    loss   the last training loss
    norm   what the stage multiplies the features' norm by
    quotient  of W along the features, with the other sign in odd sub-blocks
    """
    spec = NetworkSpec.parse(recipe.network)
    epochs = (*(epoch for epoch in recipe.spectrum_epochs if epoch < recipe.epochs), recipe.epochs)
    step, last = (1234, 1234 // STEPS) if error is None else (STEPS * recipe.epochs, recipe.epochs)
    metrics = []
    for epoch in range(1, last + 1):
        late = sum(epoch <= other for other in epochs)
        line = metrics_line(epoch, STEPS * epoch, loss * late, error=(error or 50.0) + late - 1)
        metrics.append(line | {"seconds": seconds * epoch / recipe.epochs})
    lost = step if error is None else None
    result = make_result(metrics[-1], recipe.epochs, lost, steps=STEPS, parameters=219482, seconds=seconds)
    if spec.form is None or error is None:
        return RunRecord(path, recipe, metrics, [], result, {}, {})
    share = (0.95 if spec.form == "original" else 0.05) if share is None else share
    stages = [
        {"name": f"trunk.stages.{place}", "form": spec.form, "weights": [weight(share)] * spec.num_blocks}
        for place in spec.places
    ]
    sizes = [norm ** (n / spec.num_blocks) for n in range(spec.num_blocks + 1)]
    states = [{"norm": size, "mean": 0.0, "variance": size, "energy": size} for size in sizes]
    # What a sub-block adds is a multiple of the features.
    linear = 2 * (norm ** (0.5 / spec.num_blocks) - 1)
    blocks = [
        {"block": n, "before": before, "after": after, "quotient": quotient * (-1) ** n, "linear": linear}
        for n, (before, after) in enumerate(pairwise(states), start=1)
    ]
    trace = {"form": spec.form, "channels": CHANNELS, "num_blocks": spec.num_blocks, "blocks": blocks}
    where = {"format": 2, "step": step, "epoch": recipe.epochs}
    seen = {"task": recipe.task, "batch_size": 32, "affinity": []}
    return RunRecord(
        path,
        recipe,
        metrics,
        [{"epoch": epoch, "stages": [during(stage) for stage in stages]} for epoch in (0, *epochs)],
        result,
        where | seen | {"features": [{"name": stage["name"], **trace} for stage in stages]},
        where | {"caption": "", "stages": stages},
    )


def certified(place: int, *, blocks: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """What stability.json holds of the stage after a residual block."""
    same = {"positions": 64, "repeated": None, "norm": "‖z‖", "reason": "", "logit_spread": None}
    return {"name": f"trunk.stages.{place}", "num_blocks": len(blocks), **same, "blocks": blocks, **more}


def stability(stages: list[dict[str, Any]]) -> dict[str, Any]:
    """What stability.json holds."""
    return {"images": 1, "stages": stages, "machine": MACHINE, "versions": {"python": "3"}}


def records(name: str, errors: dict[str, list[float | None]], **more: Any) -> list[RunRecord]:
    """Runs of a suite by the label of their row: the error of each seed, None for one that diverged."""
    labels = {row.label: row for row in SUITES[name].rows}
    assert errors.keys() <= labels.keys()
    return [
        record(row.recipe.with_(seed=seed), error, path=Path(name) / row.slug / str(seed), **more)
        for label, row in labels.items()
        for seed, error in enumerate(errors.get(label, []))
    ]


def arranged(*lists: list[RunRecord], **more: Any) -> Table1Runs:
    return replace(arrange([one for some in lists for one in some]), **more)


def write(results: Path, runs: list[RunRecord]) -> None:
    """The runs as folders below `results`."""
    for run in runs:
        folder = results / run.path
        folder.mkdir(parents=True)
        for name, value in (
            ("recipe.json", run.recipe.to_dict()),
            ("result.json", run.result),
            ("spectrum.json", run.spectrum),
            ("observations.json", run.observations),
        ):
            if value:
                (folder / name).write_text(json.dumps(value))
        for name, lines in (("metrics.jsonl", run.metrics), ("spectra.jsonl", run.spectra)):
            (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def map_line(cell: Any, seed: int, diverged: int | None = None, loss: float = 1.2) -> dict[str, Any]:
    """A line of the map: trained with this loss, or diverged at a step."""
    line = cell.to_dict() | {"seed": seed, "seconds": 6.0, "device": "cpu", "before_error": None}
    line |= {"step": diverged, "first_loss": 2.31, "last_loss": loss, "mean_loss": loss, "side_by_side": 1}
    stage: dict[str, Any] = {"name": "trunk.stages.2", "amplification": 1.1, "logit_spread": 7.0}
    if diverged:
        stage |= {"amplification": 3.0, "logit_spread": 50.0, "growth": 2.5, "verdict": "unstable"}
        stage["weights"] = [{"eigenvalue": -1.5, "norm": 2.0}]
        moments = [{"step": diverged - back, "loss": 2.0, "stages": [stage]} for back in (30, 20)]
        line |= {"ending": "diverged", "error": None, "test_loss": None, "epochs": [], "before": moments}
        return line | {"after": None}
    epoch = {"epoch": 1, "train_loss": loss, "test_loss": loss, "error": 40.0}
    line |= {"ending": "converged", "error": 40.0, "test_loss": loss, "epochs": [epoch], "before": []}
    return line | {"after": {"step": 390, "stages": [stage]}}


def map_lines(part: str, breaks: Any) -> list[dict[str, Any]]:
    """A part of the map in which the cells that `breaks` says yes to diverge."""
    return [
        map_line(cell, seed, 100 + cell.blocks if breaks(cell, seed) else None)
        for cell, seed in PARTS[part].runs()
    ]


def map_of(**parts: Any) -> TrainabilityMap:
    """The map with these parts: each by its lines, or by which of its (cell, seed) diverge."""
    lines = {part: map_lines(part, some) if callable(some) else some for part, some in parts.items()}
    return TrainabilityMap({part: group_cells(some) for part, some in lines.items()})


def never(cell: Any, seed: int) -> bool:
    return False


def write_map(results: Path, part: str, lines: list[dict[str, Any]]) -> None:
    """By the recipes of the part, where its lines say nothing else."""
    (results / "map").mkdir(parents=True, exist_ok=True)
    cells = {cell.name: cell for cell in PARTS[part].cells}
    own = [
        {"recipe_sha256": cells[line["cell"]].recipe(PARTS[part].base, line["seed"]).sha256, **line}
        for line in lines
    ]
    (results / "map" / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in own))


def deep_originals(cell: Any, seed: int) -> bool:
    """At rate 0.1 original stages of 3 and 4 blocks break from 0.07 on, and so does seed 1 of 2 blocks at 0.1."""
    large = cell.init in ("normal 0.07", "normal 0.1", "torch")
    if cell.form != "original" or not large or cell.rate < 0.1:
        return False
    return cell.blocks >= 3 or (cell.init == "normal 0.1" and cell.blocks == 2 and seed == 1)
