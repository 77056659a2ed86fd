"""The rules of the claims that the trainability map decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nonloc.nn.options import FORMS
from nonloc_paper.map.cells import INITS, ONE_EPOCH, TEN_EPOCHS
from nonloc_paper.report.map.cells import Cell, TrainabilityMap, has_all_seeds, sort_inits
from nonloc_paper.report.verdicts import Part

RATE = 0.1  # the paper's


def just_one_form_trains(trained: TrainabilityMap) -> list[Part]:
    """Return one part for every start and number of blocks at which just one of the two forms trains."""
    parts = []
    pairs = 0
    for start in sort_inits(cell.init for cell in trained.one_epoch):
        for blocks in (1, 2, 3, 4):
            original, proposed = (trained.cell(RATE, start, form, blocks) for form in FORMS)
            if not has_all_seeds(original) or not has_all_seeds(proposed):
                continue
            pairs += 1
            if original.all_train != proposed.all_train:
                numbers = f"original: {_seeds(original)}; proposed: {_seeds(proposed)}"
                n = min(original.n, proposed.n)
                train = (f"{len(cell.trained)} of {cell.n}" for cell in (original, proposed))
                name, number = (
                    f"{blocks} blocks, start {start}",
                    "original {}, proposed {} runs train".format(*train),
                )
                parts.append(Part(name, proposed.all_train, n, numbers, number=number))
    planned = [cell for cell in ONE_EPOCH.cells if cell.rate == RATE and cell.form == "original"]
    if pairs < len(planned):
        left = f"{len(planned) - pairs} of {len(planned)} pairs of cells"
        return [*parts, Part("not recorded yet", None, 0, left)]
    return parts or [Part("original and proposed", False, pairs, f"they train in the same {pairs} cells")]


def start_decides(trained: TrainabilityMap) -> list[Part]:
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


def small_weights(trained: TrainabilityMap) -> list[Part]:
    """Return whether stable stages diverged, and whether proposed stages could make a signal grow before they did."""
    lines: dict[str, list[dict[str, Any]]] = {}
    planned, is_all = {}, {}
    for form in ("stable", "diffusive"):
        lines[form] = [line for cell in trained.ten_epochs if cell.form == form for line in cell.runs]
        planned[form] = {(cell.name, seed) for cell, seed in TEN_EPOCHS.runs() if cell.form == form}
        # An extra seed of one cell does not stand for a missing cell.
        is_all[form] = planned[form] <= {(line["cell"], line["seed"]) for line in lines[form]}
    broken = sum(line["ending"] == "diverged" for line in lines["stable"])
    # That it never happens is known when all has been tried, and refuted by one run.
    never = False if broken else (True if is_all["stable"] else None)
    numbers = f"{broken} of {len(lines['stable'])} runs diverged, {len(planned['stable'])} planned"
    parts = [Part("stable stages", never, len(lines["stable"]), numbers)]
    gone = [line for line in lines["diffusive"] if line["ending"] == "diverged"]
    if gone or not is_all["diffusive"]:
        growths = [growth for line in gone if (growth := largest_growth(line)) is not None]
        # All certificates before the end that decide something said stable.
        calm = sum(
            {stage["verdict"] for stage in _stages(line)} & {"stable", "unstable"} == {"stable"}
            for line in gone
        )
        numbers = (
            f"before the end `certify` knew a signal that grows in {len(growths)} of {len(gone)} runs that diverged"
            f"{f', by up to {max(growths):.3g}' if growths else ''}, and certified the stage stable in {calm}; "
            f"{len(lines['diffusive'])} of {len(planned['diffusive'])} runs recorded"
        )
        every = True if is_all["diffusive"] and len(growths) == len(gone) else None
        parts.append(Part("proposed stages that diverged", False if calm else every, len(gone), numbers))
    return parts


MAP_RULES: dict[str, Callable[[TrainabilityMap], list[Part]]] = {
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
    return [stage for moment in line.get("before") or [] for stage in moment["stages"]]


def _seeds(cell: Cell) -> str:
    """Such as "1 of 2 train, diverged at step 130"."""
    text = f"{len(cell.trained)} of {cell.n} train"
    return f"{text}, diverged at step {cell.first_step}" if cell.diverged else text
