"""Sentences made from the numbers: what was measured, whichever way it came out."""

from __future__ import annotations

from statistics import mean
from typing import Any

from nonloc_paper.report.records import Collection, RowRecord, of_stage, score_name
from nonloc_paper.report.signs import share_band
from nonloc_paper.report.tables import TITLES, UNITS, number


def findings(collection: Collection) -> list[str]:
    """What the scores say: the pairs of the suite compared, what diverged, what is missing."""
    rows = {row.label: row for row in collection.rows}
    pairs = collection.suite.pairs if collection.suite is not None else ()
    found = [compare(rows[one], rows[other]) for one, other in pairs if one in rows and other in rows]
    if collection.input_psnr is not None:
        found.append(f"The noisy test images themselves have {collection.input_psnr:.2f} dB.")
        for row in collection.rows:
            if row.median is not None and abs(row.median - collection.input_psnr) < 1:
                gain = row.median - collection.input_psnr
                side = "above" if gain >= 0 else "below"
                found.append(f"“{row.label}” ends {abs(gain):.2f} dB {side} its own noisy input.")
    found += [text for row in collection.rows if (text := diverged(row))]
    left = missing(collection)
    return [*found, left] if left else found


def compare(one: RowRecord, other: RowRecord) -> str:
    """Which of two rows is ahead in the median, by how much, and whether their ranges overlap."""
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
    values = f"{number(one.median)} against {number(other.median)} {unit} {TITLES[score]}, {seeds}"
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
    """How many runs of a row diverged, and when first; empty if none did."""
    if not row.diverged:
        return ""
    first = min(run.result["outcome"]["step"] for run in row.diverged if run.result is not None)
    return (
        f"“{row.label}”: {len(row.diverged)} of {len(row.started)} runs diverged, the first at step {first}."
    )


def missing(collection: Collection) -> str:
    """How many runs there are not, or not to their end; empty if there are all."""
    absent = sum(run is None for row in collection.rows for run in row.runs)
    unfinished = sum(run.ending == "unfinished" for run in collection.runs)
    parts = [f"{absent} not begun" if absent else "", f"{unfinished} not finished" if unfinished else ""]
    told = " and ".join(part for part in parts if part)
    return f"Not all runs are there: {told}." if told else ""


# What a spectrum beyond chance means for a step Z ← Z + …, by form and by the side of the band.
MEANINGS = {
    ("original", "above"): "more negative than chance: damping",
    ("original", "below"): "more positive than chance: amplification",
    ("diffusive", "above"): "more negative than chance: backward diffusion, which sharpens differences",
    ("diffusive", "below"): "more positive than chance: diffusion, which smooths differences",
}


def spectrum_findings(row: RowRecord) -> list[str]:
    """For the observed run of a row: how much of sym(W)'s energy is negative, block by block, against the band."""
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
        told = ", ".join(f"{100 * share:.0f}" for share in shares)
        found.append(f"{name}: the negative share of the energy is {told} %{_chance(stage, shares)}")
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
    told = []
    for side in ("below", "above", "inside"):
        count = sides.count(side)
        if count:
            who = (
                ("All blocks are" if len(sides) > 1 else "It is")
                if count == len(sides)
                else f"{count} of {len(sides)} are"
            )
            told.append(f"{who} {MEANINGS.get((form, side), 'within chance')}.")
    return " ".join(told)


def affinity_findings(row: RowRecord) -> list[str]:
    """How much of the kernel's weight goes to other positions with the same clean pixel, against chance."""
    if row.example is None:
        return []
    return [
        f"“{row.label}”{of_stage(row.recipe, seen['stage'])}: {100 * seen['same_share']:.0f} % of the weight goes to "
        f"other positions whose clean pixel is the same; a uniform kernel would give {100 * seen['same_chance']:.0f} %."
        for seen in row.example.observations.get("affinity", [])
        if seen["same_share"] is not None
    ]


def feature_findings(row: RowRecord) -> list[str]:
    """What the stages did to the features from their beginning to their end."""
    if row.example is None:
        return []
    found = []
    for trace in row.example.observations.get("features", []):
        first, last = trace["blocks"][0]["before"], trace["blocks"][-1]["after"]
        told = [
            f"{name} × {_factor(last[name] / first[name])}"
            for name in ("norm", "variance", "energy")
            if first[name] and last[name] is not None
        ]
        blocks = f"{trace['num_blocks']} block{'s' if trace['num_blocks'] > 1 else ''}"
        name = f"“{row.label}”{of_stage(row.recipe, trace['name'])}"
        found.append(f"{name}, over {blocks}: {', '.join(told)}." if told else f"{name}: not finite.")
    return found


def _factor(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def time_sentence(collection: Collection) -> str:
    """How long the training took, and where."""
    seconds = [run.result["seconds"] for run in collection.runs if run.result is not None]
    if not seconds:
        return "No run is finished yet."
    text = f"{len(seconds)} finished runs took {sum(seconds):.0f} s of training, {mean(seconds):.0f} s on average"
    whole = collection.plan.get("seconds")
    return f"{text}; the whole command {whole:.0f} s." if whole else f"{text}."


def machines(collection: Collection) -> list[str]:
    """Every machine and set of versions that made a result here, once each."""
    told = []
    for run in collection.runs:
        if run.result is not None:
            where, versions = run.result["machine"], run.result["versions"]
            told.append(
                f"{where['cpu']}, {where['cores']} cores, device {where['device']}, {where['platform']}; "
                + ", ".join(f"{name} {version}" for name, version in versions.items())
            )
    return sorted(set(told))
