"""The results of a folder of runs in short: for a terminal, and for programs."""

from __future__ import annotations

from typing import Any

from nonloc_paper.report.records import Collection, RowRecord, RunRecord, score_name
from nonloc_paper.report.tables import results_table


def summary_text(collection: Collection) -> str:
    """The tables as text, one for each kind of score."""
    scores = sorted({score_name(row.recipe) for row in collection.rows})
    return "\n\n".join(results_table(collection, score).as_text() for score in scores)


def summary(collection: Collection) -> dict[str, Any]:
    """The same as plain values: every row with its runs, scores and endings."""
    return {
        "suite": collection.plan.get("name"),
        "command": collection.plan.get("command"),
        "input_psnr": collection.input_psnr,
        "rows": [_row(row) for row in collection.rows],
        "conditions": _conditions(collection),
    }


def _conditions(collection: Collection) -> list[dict[str, Any]]:
    """The machines and versions that the finished runs were made with, each once."""
    found: list[dict[str, Any]] = []
    for run in collection.runs:
        if run.result is not None:
            made_with = {"machine": run.result["machine"], "versions": run.result["versions"]}
            if made_with not in found:
                found.append(made_with)
    return found


def _row(row: RowRecord) -> dict[str, Any]:
    scores = row.scores
    return {
        "label": row.label,
        "network": row.recipe.network,
        "score": score_name(row.recipe),
        "n": len(scores),
        "median": row.median,
        "lowest": min(scores, default=None),
        "highest": max(scores, default=None),
        "published": row.published,
        "parameters": row.parameters,
        "seconds": row.seconds,
        "runs": [_run(run) for run in row.runs],
    }


def _run(run: RunRecord | None) -> dict[str, Any]:
    if run is None:
        return {"ending": "missing"}
    return {"path": str(run.path), "seed": run.recipe.seed, "ending": run.ending, "score": run.score}
