"""What the runs of a folder say: a summary for terminals and programs, and sentences for the page."""

from __future__ import annotations

from statistics import mean
from typing import Any

from nonloc_paper.report.records import Collection, RowRecord, RunRecord, of_stage, score_name
from nonloc_paper.report.signs import share_band
from nonloc_paper.report.tables import TITLES, UNITS, format_score, results_table


def findings(collection: Collection) -> list[str]:
    """Return what the scores say: the pairs of the suite compared, what diverged, what is missing."""
    rows = {row.label: row for row in collection.rows}
    pairs = collection.suite.pairs if collection.suite is not None else ()
    sentences = [compare(rows[one], rows[other]) for one, other in pairs if one in rows and other in rows]
    if collection.input_psnr is not None:
        sentences.append(f"The noisy test images themselves have {collection.input_psnr:.2f} dB.")
        for row in collection.rows:
            if row.median is not None and abs(row.median - collection.input_psnr) < 1:
                gain = row.median - collection.input_psnr
                side = "above" if gain >= 0 else "below"
                sentences.append(f"“{row.label}” ends {abs(gain):.2f} dB {side} its own noisy input.")
    sentences += [text for row in collection.rows if (text := diverged(row))]
    left = missing(collection)
    return [*sentences, left] if left else sentences


def compare(one: RowRecord, other: RowRecord) -> str:
    """Return which of two rows is ahead in the median, by how much, and whether their ranges overlap."""
    score = score_name(one.recipe)
    if one.median is None or other.median is None:
        without = " and ".join(f"“{row.label}”" for row in (one, other) if row.median is None)
        return (
            f"“{one.label}” cannot be compared with “{other.label}”: no run of {without} ended with a score."
        )
    better = 1 if score == "psnr" else -1
    difference = better * (one.median - other.median)
    unit, counts = UNITS[score], sorted({len(one.scores), len(other.scores)})
    seeds = (
        f"n = {counts[0]} seed{'s' if counts[0] > 1 else ''} each"
        if len(counts) == 1
        else (f"n = {len(one.scores)} and {len(other.scores)} seeds")
    )
    values = (
        f"{format_score(one.median)} against {format_score(other.median)} {unit} {TITLES[score]}, {seeds}"
    )
    if abs(difference) < 0.005:
        return f"“{one.label}” and “{other.label}” are level in the median ({values})."
    text = (
        f"“{one.label}” is {'ahead of' if difference > 0 else 'behind'} “{other.label}” by "
        f"{abs(difference):.2f} {'points' if unit == '%' else unit} in the median ({values})"
    )
    if counts == [1]:
        return f"{text}; one seed cannot tell a difference from chance."
    overlap = min(one.scores) <= max(other.scores) and min(other.scores) <= max(one.scores)
    return f"{text}; the ranges {'overlap' if overlap else 'do not overlap'}."


def diverged(row: RowRecord) -> str:
    """Return how many runs of a row diverged, and when first; empty if none did."""
    if not row.diverged:
        return ""
    first = min(run.result["outcome"]["step"] for run in row.diverged if run.result is not None)
    return (
        f"“{row.label}”: {len(row.diverged)} of {len(row.started)} runs diverged, the first at step {first}."
    )


def missing(collection: Collection) -> str:
    """Return how many runs are missing or unfinished; empty if none is."""
    absent = sum(run is None for row in collection.rows for run in row.runs)
    unfinished = sum(run.result is None for run in collection.runs)
    parts = [f"{absent} not begun" if absent else "", f"{unfinished} not finished" if unfinished else ""]
    text = " and ".join(part for part in parts if part)
    return f"Not all runs are there: {text}." if text else ""


# What a spectrum beyond chance means for a step Z ← Z + …, by form and by the side of the band.
MEANINGS = {
    ("original", "above"): "more negative than chance: damping",
    ("original", "below"): "more positive than chance: amplification",
    ("diffusive", "above"): "more negative than chance: backward diffusion, which sharpens differences",
    ("diffusive", "below"): "more positive than chance: diffusion, which smooths differences",
}


def spectrum_findings(row: RowRecord) -> list[str]:
    """Return how much of sym(W)'s energy is negative in the observed run of a row, block by block, against the band."""
    if row.example is None:
        return []
    found = []
    recipe = row.example.recipe
    for stage in row.example.spectrum.get("stages", []):
        name = f"“{row.label}”{of_stage(recipe, stage['name'])}"
        if recipe.stage.weight == "stable":
            largest = ", ".join(f"{weight['eigenvalues'][0]:.2g}" for weight in stage["weights"])
            found.append(f"{name}: no eigenvalue can be negative; the largest of each block is {largest}.")
            continue
        shares = [weight["negative_share"] for weight in stage["weights"]]
        if not shares or any(share is None for share in shares):
            continue
        percent = ", ".join(f"{100 * share:.0f}" for share in shares)
        found.append(f"{name}: the negative share of the energy is {percent} %{_chance(stage, shares)}")
    return found


def _chance(stage: dict[str, Any], shares: list[float]) -> str:
    """The end of a sentence: the shares against the band, where one was recorded."""
    if any("band" not in weight for weight in stage["weights"]):
        return "."
    bands = [weight["band"]["negative_share"] for weight in stage["weights"]]
    sides = [
        "below" if share < low else "above" if share > high else "inside"
        for share, (low, high) in zip(shares, bands, strict=True)
    ]
    low, high = share_band(stage["weights"])
    return f"; random weights give {100 * low:.0f} to {100 * high:.0f} %. {_sides(sides, stage['form'])}"


def _sides(sides: list[str], form: str) -> str:
    sentences = []
    for side in ("below", "above", "inside"):
        count = sides.count(side)
        if count:
            subject = f"{count} of {len(sides)} are"
            if count == len(sides):
                subject = "All blocks are" if count > 1 else "It is"
            sentences.append(f"{subject} {MEANINGS.get((form, side), 'within chance')}.")
    return " ".join(sentences)


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


def feature_findings(row: RowRecord) -> list[str]:
    """Return what the stages did to the features from their beginning to their end."""
    if row.example is None:
        return []
    found = []
    for trace in row.example.observations.get("features", []):
        first, last = trace["blocks"][0]["before"], trace["blocks"][-1]["after"]
        factors = [
            f"{name} × {_factor(last[name] / first[name])}"
            for name in ("norm", "variance", "energy")
            if first[name] and last[name] is not None
        ]
        blocks = f"{trace['num_blocks']} block{'s' if trace['num_blocks'] > 1 else ''}"
        name = f"“{row.label}”{of_stage(row.recipe, trace['name'])}"
        found.append(f"{name}, over {blocks}: {', '.join(factors)}." if factors else f"{name}: not finite.")
    return found


def _factor(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def time_sentence(collection: Collection) -> str:
    """Return how long the training took."""
    seconds = [run.result["seconds"] for run in collection.runs if run.result is not None]
    if not seconds:
        return "No run is finished yet."
    text = f"{len(seconds)} finished runs took {sum(seconds):.0f} s of training, {mean(seconds):.0f} s on average"
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
