"""What the runs of a folder say: a summary for terminals and programs, and sentences for the page."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean
from typing import Any

from nonloc_paper.report.contrasts import difference
from nonloc_paper.report.records import Collection, RowRecord, RunRecord, of_stage, score_name
from nonloc_paper.report.tables import results_table
from nonloc_paper.report.verdicts import interval


def findings(collection: Collection) -> list[str]:
    """Return what the scores say: the pairs of the suite compared, what is missing."""
    rows = {row.label: row for row in collection.rows}
    pairs = [pair for pair in collection.suite.pairs if set(pair) <= rows.keys()]
    sentences = [compare(rows[one], rows[other]) for one, other in pairs]
    if collection.input_psnr is not None:
        sentences.append(f"The noisy test images themselves have {collection.input_psnr:.2f} dB.")
    left = missing(collection)
    return [*sentences, left] if left else sentences


def compare(one: RowRecord, other: RowRecord) -> str:
    """Return which of two rows is ahead in the mean over the seeds that both ended with, and how sure that is."""
    found = interval(list(difference(one, other).every.values()))
    if found is None:
        return f"“{one.label}” cannot be compared with “{other.label}”: no seed of both ended with a score."
    score = score_name(one.recipe)
    better, unit = (found.mean, "dB") if score == "psnr" else (-found.mean, "points of error")
    word = "level with" if abs(better) < 0.005 else "ahead of" if better > 0 else "behind"
    text = f"“{one.label}” is {word} “{other.label}”: {found.format()} ({unit}, paired by seed)"
    return f"{text}; one seed cannot tell a difference from chance." if found.n == 1 else f"{text}."


def missing(collection: Collection) -> str:
    """Return how many runs are missing or unfinished; empty if none is."""
    absent = sum(run is None for row in collection.rows for run in row.runs)
    unfinished = sum(run.result is None for run in collection.runs)
    parts = [f"{absent} not begun" if absent else "", f"{unfinished} not finished" if unfinished else ""]
    text = " and ".join(part for part in parts if part)
    return f"Not all runs are there: {text}." if text else ""


def affinity_findings(row: RowRecord) -> list[str]:
    """Return how much of the kernel's weight goes to other positions with the same clean pixel, against chance."""
    if row.example is None:
        return []
    return [
        f"“{row.label}”{of_stage(row.recipe, seen['stage'])}: {100 * seen['same_share']:.0f} % of the weight goes to "
        f"other positions whose clean pixel is the same; a uniform kernel would give {100 * seen['same_chance']:.0f} %."
        for seen in row.example.observations.get("affinity", [])
        if seen["same_share"] is not None
    ]


def count_ended(runs: Iterable[RunRecord]) -> tuple[str, list[float]]:
    """Return such as "3 runs that ended, 1 of them by diverging", and the seconds that each of them took."""
    ended = [(run, run.result["seconds"]) for run in runs if run.result is not None]
    gone = sum(run.ending == "diverged" for run, _ in ended)
    text = f"{len(ended)} run{'s' * (len(ended) != 1)} that ended"
    return f"{text}, {gone} of them by diverging" if gone else text, [seconds for _, seconds in ended]


def time_sentence(collection: Collection) -> str:
    """Return how long the training took."""
    text, seconds = count_ended(collection.runs)
    if not seconds:
        return "No run is finished yet."
    text += f": {sum(seconds):.0f} s of training, {mean(seconds):.0f} s on average"
    whole = collection.plan.get("seconds")
    return f"{text}; the whole command {whole:.0f} s." if whole else f"{text}."


def machines(collection: Collection) -> list[str]:
    """Return every machine and set of versions that made a result here, once each."""
    return sorted(
        f"{where['cpu']}, {where['cores']} cores, device {where['device']}, {where['platform']}; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        for where, versions in _conditions(collection)
    )


def _conditions(collection: Collection) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The machine and the versions of every finished run, each pair once."""
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for run in collection.runs:
        if run.result is not None and (pair := (run.result["machine"], run.result["versions"])) not in pairs:
            pairs.append(pair)
    return pairs


def summary_text(collection: Collection) -> str:
    """Return the tables as text, one for each kind of score."""
    scores = sorted({score_name(row.recipe) for row in collection.rows})
    return "\n\n".join(results_table(collection, score).as_text() for score in scores)


def summary(collection: Collection) -> dict[str, Any]:
    """Return the same as plain values: every row with its runs, scores and endings."""
    return {
        "suite": collection.plan.get("name"),
        "command": collection.plan.get("command"),
        "input_psnr": collection.input_psnr,
        "rows": [_row(row) for row in collection.rows],
        "conditions": [
            {"machine": machine, "versions": versions} for machine, versions in _conditions(collection)
        ],
    }


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
