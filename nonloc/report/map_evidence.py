"""The parts of the claims that the trainability map decides."""

from __future__ import annotations

from typing import TypeGuard

from nonloc.paper.map_cells import INITS, ONE_EPOCH, TEN_EPOCHS
from nonloc.report.trainability import Cell, TrainabilityMap, inits
from nonloc.report.verdicts import Part

RATE = 0.1  # the paper's


def deeper_parts(found: TrainabilityMap) -> list[Part]:
    """One part for every start and number of blocks at which just one of the two forms trains."""
    starts = inits(cell.init for cell in found.one_epoch)
    parts = []
    pairs = 0
    for start in starts:
        for blocks in (1, 2, 3, 4):
            original, proposed = (found.cell(RATE, start, form, blocks) for form in ("original", "diffusive"))
            if not (_is_whole(original) and _is_whole(proposed)):
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
            if (cell.rate, cell.form, cell.blocks, cell.weight) == (RATE, "original", blocks, "factored")
        ]
        good = [cell.init for cell in cells if cell.all_train and _is_whole(cell)]
        bad = [cell.init for cell in cells if not cell.all_train]
        if cells:
            train, fail = (" · ".join(starts) or "none" for starts in (good, bad))
            numbers = f"all seeds train with {train}; not with {fail}"
            n = min(cell.n for cell in cells)
            is_whole = len(cells) == len(INITS) and all(map(_is_whole, cells))
            parts.append(
                Part(f"{blocks} original", bool(good and bad) or (False if is_whole else None), n, numbers)
            )
        else:
            parts.append(Part(f"{blocks} original", None, 0, "no cell"))
    return parts


def small_weights_parts(found: TrainabilityMap) -> list[Part]:
    """Stable stages that diverged, and what the growth factor of proposed stages was before they did."""
    stable = [line for cell in found.ten_epochs if cell.weight == "stable" for line in cell.runs]
    gone = [
        line
        for cell in found.ten_epochs
        if cell.weight != "stable" and cell.form == "diffusive"
        for line in cell.diverged
    ]
    growths = [growth for line in gone if (growth := largest_growth(line)) is not None]
    broken = sum(line["ending"] == "diverged" for line in stable)
    planned = sum(cell.form == "stable" for cell, _ in TEN_EPOCHS.runs())
    # That something never happens is known when all has been tried, and refuted by once.
    never = False if broken else (True if len(stable) >= planned else None)
    numbers = f"{broken} of {len(stable)} runs diverged, {planned} planned"
    parts = [Part("stable stages", never, len(stable), numbers)]
    if growths:
        above = sum(growth > 1 for growth in growths)
        parts.append(
            Part(
                "proposed stages that diverged",
                above == len(growths),
                len(growths),
                f"growth factor above 1 before the end in {above} of {len(growths)}, largest {max(growths):.3g}",
            )
        )
    return parts


def _is_whole(cell: Cell | None) -> TypeGuard[Cell]:
    """Whether all seeds of one epoch are recorded."""
    return cell is not None and cell.n >= ONE_EPOCH.seeds


def largest_growth(line: dict[str, object]) -> float | None:
    """The largest growth factor of any stage in the steps before the end of a run."""
    before = line.get("before") or []
    assert isinstance(before, list)
    growths = [stage.get("growth") for moment in before for stage in moment.get("stages", [])]
    return max((growth for growth in growths if growth is not None), default=None)


def told(cell: Cell) -> str:
    """Such as "1 of 2 trains, diverged at step 130"."""
    text = f"{len(cell.trained)} of {cell.n} train"
    return f"{text}, diverged at step {cell.first_step}" if cell.diverged else text
