"""How long a run will take, judged by runs that differ from it in the seed alone."""

from __future__ import annotations

from collections.abc import Iterable

from nonloc_paper.runs import NUMBER, RESTORE, Run, check_holds, check_lines_hold
from nonloc_paper.training.recipe import Recipe


def seconds_to_go(
    recipe: Recipe, run: Run, others: Iterable[tuple[Recipe, Run]], device: str
) -> float | None:
    """Seconds until `run` is finished; None if nothing tells.

    others  recipes and their runs; what counts is those that ran to their end on a device of the same name
    device  as result.json has it in machine.device
    """
    if run.is_finished:
        return 0.0
    lines = run.read_metrics() if run.exists else []
    check_lines_hold(lines, {"seconds": NUMBER}, run.metrics_path)
    share = 1 - lines[-1]["epoch"] / recipe.epochs if lines else 1.0
    known = [
        found
        for other, its_run in others
        if other.with_(seed=recipe.seed) == recipe and (found := _seconds(its_run, device)) is not None
    ]
    if known:
        return share * sum(known) / len(known)
    return lines[-1]["seconds"] * share / (1 - share) if lines else None


def _seconds(run: Run, device: str) -> float | None:
    """What a run took that came to a good end on `device`, and was never anywhere else."""
    if not run.is_finished:
        return None
    result = run.read_result()
    check_holds(result, {"machine": {"device": str}, "seconds": NUMBER}, run.result_path, RESTORE)
    has_trained = result["outcome"]["ending"] == "converged" and result["machine"]["device"] == device
    has_trained = has_trained and not result.get("earlier")
    return float(result["seconds"]) if has_trained else None
