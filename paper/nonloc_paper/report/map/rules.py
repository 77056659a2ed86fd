"""The rules of the claims that the trainability map decides."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from nonloc.nn.options import FORMS
from nonloc_paper.map.cells import INITS, ONE_EPOCH
from nonloc_paper.report.map.cells import Cell, TrainabilityMap, has_all_seeds, sort_inits
from nonloc_paper.report.table1_runs import Table1Runs
from nonloc_paper.report.verdicts import Part

RATE = 0.1  # the paper's


def just_one_form_trains(trained: TrainabilityMap, runs: Table1Runs) -> list[Part]:
    """Return one part for every start and number of blocks at which just one of the two forms trains."""
    parts = []
    pairs = 0
    for start, blocks in product(sort_inits(cell.init for cell in trained.one_epoch), (1, 2, 3, 4)):
        original, proposed = (trained.cell(RATE, start, form, blocks) for form in FORMS)
        if not has_all_seeds(original) or not has_all_seeds(proposed):
            continue
        pairs += 1
        if original.all_train != proposed.all_train:
            name, n = f"{blocks} blocks, start {start}", min(original.n, proposed.n)
            numbers = f"original: {_seeds(original)}; proposed: {_seeds(proposed)}"
            train = (f"{len(cell.trained)} of {cell.n}" for cell in (original, proposed))
            number = "original {}, proposed {} runs train".format(*train)
            parts.append(Part(name, proposed.all_train, n, numbers, number=number))
    planned = [cell for cell in ONE_EPOCH.cells if cell.rate == RATE and cell.form == "original"]
    if pairs < len(planned):
        left = f"{len(planned) - pairs} of {len(planned)} pairs of cells"
        return [*parts, Part("not recorded yet", None, 0, left)]
    return parts or [Part("original and proposed", False, pairs, f"they train in the same {pairs} cells")]


def start_decides(trained: TrainabilityMap, runs: Table1Runs) -> list[Part]:
    """Return, for 2, 3 and 4 original blocks, whether it is the start that decides."""
    parts = []
    for blocks in (2, 3, 4):
        wanted = (RATE, "original", blocks)
        cells = [cell for cell in trained.one_epoch if (cell.rate, cell.form, cell.blocks) == wanted]
        good = [cell.init for cell in cells if cell.all_train and has_all_seeds(cell)]
        bad = [cell.init for cell in cells if not cell.all_train]
        train, fail = (" · ".join(starts) or "none" for starts in (good, bad))
        numbers = f"all seeds train with {train}; not with {fail}" if cells else "no cell"
        is_all = len(cells) == len(INITS) and all(map(has_all_seeds, cells))
        holds = bool(good and bad) or (False if is_all else None)
        n, number = min((cell.n for cell in cells), default=0), f"{len(good)} of {len(cells)} starts train"
        parts.append(Part(f"{blocks} original", holds, n, numbers, number=number))
    return parts


def small_weights(trained: TrainabilityMap, runs: Table1Runs) -> list[Part]:
    """Return whether `certify` found a signal that grows in stages whose W is held inside the limit."""
    rows = [row for row in runs.recorded if row.recipe.stage.weight == "stable"]
    ended = [run.stability.get("stages", []) for row in rows for run in row.started]
    before = [_stages(line) for cell in trained.ten_epochs if cell.form == "stable" for line in cell.diverged]
    parts = []
    for name, certified in (("after training", ended), ("in the steps before a divergence", before)):
        known = [{stage["verdict"] for stage in stages} for stages in certified if stages]
        grow = sum("unstable" in words for words in known)
        calm = sum(words == {"stable"} for words in known)
        holds = False if grow else True if known and calm == len(known) else None
        numbers = f"a signal grows in {grow} of {len(known)} runs, none can in {calm}"
        parts.append(Part(name, holds, len(known), numbers))
    # Without a divergence there are no such steps.
    return [part for part in parts if part.n] or parts[:1]


MAP_RULES: dict[str, Callable[[TrainabilityMap, Table1Runs], list[Part]]] = {
    "just one form trains": just_one_form_trains,
    "the start decides": start_decides,
    "small weights": small_weights,
}


def largest_growth(line: dict[str, Any]) -> float | None:
    """Return the largest growth of a signal in the steps before the end of a run.

    Of certificates that decide nothing the growth is a bound, and no evidence.
    """
    growths = [stage["growth"] for stage in _stages(line) if stage["verdict"] == "unstable"]
    return max((growth for growth in growths if growth is not None), default=None)


def _stages(line: dict[str, Any]) -> list[dict[str, Any]]:
    return [stage for moment in line["before"] for stage in moment["stages"]]


def _seeds(cell: Cell) -> str:
    """Such as "1 of 2 train, diverged at step 130"."""
    text = f"{len(cell.trained)} of {cell.n} train"
    return f"{text}, diverged at step {cell.first_step}" if cell.diverged else text
