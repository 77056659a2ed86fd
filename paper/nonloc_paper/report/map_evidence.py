"""The parts of the claims that the trainability map decides."""

from __future__ import annotations

from typing import Any

from nonloc.nn.options import FORMS
from nonloc_paper.map.cells import INITS, ONE_EPOCH, TEN_EPOCHS
from nonloc_paper.report.trainability import Cell, TrainabilityMap, has_all_seeds, inits
from nonloc_paper.report.verdicts import Part

RATE = 0.1  # the paper's


def deeper_parts(found: TrainabilityMap) -> list[Part]:
    """One part for every start and number of blocks at which just one of the two forms trains."""
    starts = inits(cell.init for cell in found.one_epoch)
    parts = []
    pairs = 0
    for start in starts:
        for blocks in (1, 2, 3, 4):
            original, proposed = (found.cell(RATE, start, form, blocks) for form in FORMS)
            if not has_all_seeds(original) or not has_all_seeds(proposed):
                continue
            pairs += 1
            if original.all_train != proposed.all_train:
                parts.append(
                    Part(
                        f"{blocks} blocks, start {start}",
                        proposed.all_train,
                        min(original.n, proposed.n),
                        f"original: {told(original)}; proposed: {told(proposed)}",
                    )
                )
    planned = [cell for cell in ONE_EPOCH.cells if cell.rate == RATE and cell.form == "original"]
    if pairs < len(planned):
        left = f"{len(planned) - pairs} of {len(planned)} pairs of cells"
        return [*parts, Part("not recorded yet", None, 0, left)]
    return parts or [Part("original and proposed", False, pairs, f"they train in the same {pairs} cells")]


def initialisation_parts(found: TrainabilityMap) -> list[Part]:
    """For 2, 3 and 4 original blocks: whether it is the start that decides."""
    parts = []
    for blocks in (2, 3, 4):
        cells = [
            cell
            for cell in found.one_epoch
            if (cell.rate, cell.form, cell.blocks) == (RATE, "original", blocks)
        ]
        good = [cell.init for cell in cells if cell.all_train and has_all_seeds(cell)]
        bad = [cell.init for cell in cells if not cell.all_train]
        if cells:
            train, fail = (" · ".join(starts) or "none" for starts in (good, bad))
            numbers = f"all seeds train with {train}; not with {fail}"
            n = min(cell.n for cell in cells)
            is_all = len(cells) == len(INITS) and all(map(has_all_seeds, cells))
            parts.append(
                Part(f"{blocks} original", bool(good and bad) or (False if is_all else None), n, numbers)
            )
        else:
            parts.append(Part(f"{blocks} original", None, 0, "no cell"))
    return parts


def small_weights_parts(found: TrainabilityMap) -> list[Part]:
    """Stable stages that diverged, and whether proposed stages could make a signal grow before they did."""
    stable, proposed = (
        [line for cell in found.ten_epochs if cell.form == form for line in cell.runs]
        for form in ("stable", "diffusive")
    )
    planned = {
        form: {(cell.name, seed) for cell, seed in TEN_EPOCHS.runs() if cell.form == form}
        for form in ("stable", "diffusive")
    }
    # A seed more of one cell does not stand for a cell that is missing.
    is_all = {
        form: planned[form] <= {(line["cell"], line["seed"]) for line in lines}
        for form, lines in (("stable", stable), ("diffusive", proposed))
    }
    broken = sum(line["ending"] == "diverged" for line in stable)
    # That something never happens is known when all has been tried, and refuted by once.
    never = False if broken else (True if is_all["stable"] else None)
    numbers = f"{broken} of {len(stable)} runs diverged, {len(planned['stable'])} planned"
    parts = [Part("stable stages", never, len(stable), numbers)]
    gone = [line for line in proposed if line["ending"] == "diverged"]
    if gone or not is_all["diffusive"]:
        growths = [growth for line in gone if (growth := largest_growth(line)) is not None]
        calm = sum(_was_stable(line) for line in gone)
        numbers = (
            f"before the end `certify` knew a signal that grows in {len(growths)} of {len(gone)} runs that diverged"
            f"{f', by up to {max(growths):.3g}' if growths else ''}, and certified the stage stable in {calm}; "
            f"{len(proposed)} of {len(planned['diffusive'])} runs recorded"
        )
        every = True if is_all["diffusive"] and len(growths) == len(gone) else None
        parts.append(Part("proposed stages that diverged", False if calm else every, len(gone), numbers))
    return parts


def largest_growth(line: dict[str, Any]) -> float | None:
    """The largest growth of a signal that was found in the steps before the end of a run.

    Of certificates that decide nothing the growth is a bound, and no evidence.
    """
    growths = [stage["growth"] for stage in _stages(line) if stage["verdict"] == "unstable"]
    return max((growth for growth in growths if growth is not None), default=None)


def _was_stable(line: dict[str, Any]) -> bool:
    """Whether all certificates before the end of a run that decide something said stable."""
    decided = {stage["verdict"] for stage in _stages(line)} & {"stable", "unstable"}
    return decided == {"stable"}


def _stages(line: dict[str, Any]) -> list[dict[str, Any]]:
    return [stage for moment in line.get("before") or [] for stage in moment["stages"]]


def told(cell: Cell) -> str:
    """Such as "1 of 2 trains, diverged at step 130"."""
    text = f"{len(cell.trained)} of {cell.n} train"
    return f"{text}, diverged at step {cell.first_step}" if cell.diverged else text
