"""Tables of trained stages: what they do to the features that reach them, and what they could do to others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nonloc_paper.report.records import RowRecord, RunRecord
from nonloc_paper.report.rules import norm_ratio
from nonloc_paper.report.signs import negative_share, weights_at
from nonloc_paper.report.table1_runs import NAMES, Table1Runs, setting, start_of
from nonloc_paper.report.tables import Table, join_words, with_minus

ABOUT_FACTORS = [
    "Every run that came to its end, from the beginning of a stage to its end; stages of a network are separated by ·.",
    "linear and rest: the variance changes by (2 ⟨Z, ΔZ⟩ + ⟨ΔZ, ΔZ⟩) / ⟨Z, Z⟩, centred, with ΔZ what a sub-block adds. "
    "The two parts, over all sub-blocks; the second can only add.",
    "W symmetric: the share of Σ w_ij² in (W + Wᵀ)/2. The rest turns features into each other; no spectrum shows it.",
    "W along the features: ⟨g, ΔZ⟩ / ⟨g, g⟩ of each sub-block, with g what the kernel brings. It is the mean "
    "eigenvalue of sym(W), weighted by the features.",
    "kernel spread: e to the entropy of the kernel's rows, over the number of positions; 1 for a uniform kernel.",
    "rows apart: mean distance of the rows from their mean, in total variation; 0 if all positions have the same row.",
    "logits apart: the largest difference of two logits in a row, over 32 test images.",
]
GROWTH = "Whether trained stages can make a signal grow"
ABOUT_GROWTH = (
    "`nonloc stability` on trained networks, with the kernels of the first test images. The norm is the kernel's own, "
    "or the plain one where sub-blocks have no common one. Unstable: a signal that grows is known; growth is that of "
    "the worst one found, of the stage and of a sub-block alone. A symmetric W ≥ 0 below the limit would be stable."
)
ABOUT_LOST = (
    "The newest checkpoint before the divergence, stage by stage; columns as in figures.md. A kernel whose rows have "
    "one entry each has the spread 0.00098 after residual block 2, 0.0039 after 4, 0.016 after 6. Runs without numbers "
    "diverged before anything was saved."
)


def factors_table(rows: Sequence[RowRecord]) -> Table:
    """Return what the stages do to norm, variance and energy from their beginning to their end, run by run."""
    lines = []
    for row in rows:
        runs = [run for run in row.started if norm_ratio(run) is not None]
        if runs:
            cells = [
                (
                    _factor(run, "norm"),
                    _factor(run, "variance"),
                    _parts(run),
                    _factor(run, "energy"),
                    _symmetric_share(run),
                    _along(run),
                    *(_of_kernels(run, name) for name in ("spread", "apart", "logit_spread")),
                )
                for run in runs
            ]
            columns = zip(*cells, strict=True)
            lines.append((_name(row), str(len(runs)), *(", ".join(column) for column in columns)))
    headers = (
        "norm ×",
        "variance ×",
        "linear and rest",
        "Dirichlet energy ×",
        "W symmetric",
        "W along the features",
        "kernel spread",
        "rows apart",
        "logits apart",
    )
    return Table(("network", "n", *headers), (("", tuple(lines)),))


def _name(row: RowRecord) -> str:
    start = start_of(row.recipe)
    return row.label if f"deviation {start}" in row.label else f"{row.label}, start {start}"


def _factor(run: RunRecord, name: str) -> str:
    """Of every stage of the network, such as "1.06" or "0.9 · 1.1 · 1.2"."""
    found = []
    for stage in run.observations["features"]:
        # Block by block: the energies before and after one are of its own kernel, which the next need not have.
        pairs = [(block["before"][name], block["after"][name]) for block in stage["blocks"]]
        is_known = all(before and after is not None for before, after in pairs)
        found.append(f"{math.prod(after / before for before, after in pairs):.3g}" if is_known else "–")
    return " · ".join(found)


def _symmetric_share(run: RunRecord) -> str:
    """How much of the energy Σ w_ij² of all W is in their symmetric parts, which is what the spectra show."""
    weights = weights_at(run)
    if not weights or any("norm" not in weight for weight in weights):
        return "–"
    symmetric = sum(weight["positive_energy"] + weight["negative_energy"] for weight in weights)
    energy = sum(weight["norm"] ** 2 for weight in weights)
    return f"{symmetric / energy:.2f}" if energy else "–"


def _along(run: RunRecord) -> str:
    """The quotients of the sub-blocks in their order, stage by stage, such as "0.06 −0.004 −0.02"."""
    found = []
    for stage in run.observations["features"]:
        quotients = [block.get("quotient") for block in stage["blocks"]]
        found.append(" ".join("–" if value is None else _signed(value) for value in quotients))
    return " · ".join(found)


def _signed(value: float) -> str:
    """To two decimals; to three where two would show a sign and nothing else, and no sign where three would."""
    for digits in (2, 3):
        if round(value, digits):
            return with_minus(f"{value:.{digits}f}")
    return "0.00"


def action_table(runs: Table1Runs) -> Table | None:
    """Return for each form what W does to features, of Table 1's blocks in one place; None without such runs."""
    lines = []
    for form, name in NAMES.items():
        found = [
            (row, run)
            for row in runs.recorded
            if (what := setting(row.recipe)) == runs.wanted(form=form, blocks=what.blocks)
            for run in row.started
            if _quotients(run) and negative_share(weights_at(run)) is not None
        ]
        if not found:
            continue
        blocks = join_words(map(str, sorted({setting(row.recipe).blocks for row, _ in found})))
        shares = [100 * (negative_share(weights_at(run)) or 0) for _, run in found]
        first = [_quotients(run)[0] < 0 for _, run in found]
        later = [value < 0 for _, run in found for value in _quotients(run)[1:]]
        changes = [one for _, run in found if (one := _changes(run.observations["features"][0])) is not None]
        ranges = [f"{_percent(min(part))} to {_percent(max(part))}" for part in zip(*changes, strict=True)]
        lines.append(
            (
                f"{name}, {blocks} blocks",
                f"{min(shares):.0f} to {max(shares):.0f} %",
                f"{sum(first)} of {len(first)}",
                f"{sum(later)} of {len(later)}",
                *(ranges or ("–", "–")),
            )
        )
    header = (
        "stages",
        "negative energy of sym(W)",
        "W along the features < 0, first sub-block",
        "later ones",
        "variance, linear",
        "rest",
    )
    return Table(header, (("", tuple(lines)),)) if lines else None


def _quotients(run: RunRecord) -> list[float]:
    """Of a run that came to its end, of the sub-blocks of its stages; empty where one is not recorded."""
    if not run.has_finished:
        return []
    blocks = [block for stage in run.observations.get("features", []) for block in stage["blocks"]]
    values = [block.get("quotient") for block in blocks]
    return [] if None in values else values


def _changes(stage: dict[str, Any]) -> tuple[float, float] | None:
    """Of the variance from the beginning of a stage to its end, relative: the linear part and the rest."""
    start, end = stage["blocks"][0]["before"]["variance"], stage["blocks"][-1]["after"]["variance"]
    parts = [(block.get("linear"), block["before"]["variance"]) for block in stage["blocks"]]
    if not start or end is None or any(None in part for part in parts):
        return None
    linear = sum(part * variance for part, variance in parts) / start
    return linear, end / start - 1 - linear


def _parts(run: RunRecord) -> str:
    """Such as "+3 % +14 %", stage by stage."""
    found = [_changes(stage) for stage in run.observations["features"]]
    return " · ".join("–" if one is None else " ".join(map(_percent, one)) for one in found)


def _percent(value: float) -> str:
    """Whole ones; below one a decimal more."""
    return with_minus(f"{100 * value:+.0f} %" if abs(value) >= 0.01 else f"{100 * value:+.1f} %")


def _of_kernels(run: RunRecord, name: str) -> str:
    """One number of every stage's kernel, as `nonloc_paper.training.observe` has it."""
    found = [stage.get(name) for stage in run.observations.get("affinity") or [{}]]
    return " · ".join("–" if value is None else _short(value) for value in found)


def _short(value: float) -> str:
    """Two decimals; two digits below 0.1; none from 100 on."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def lost_table(rows: Sequence[RowRecord]) -> Table | None:
    """Return a line for each run that diverged, with its last saved kernels; None if none was observed."""
    names = {"spread": "kernel spread", "apart": "rows apart", "logit_spread": "logits apart"}
    lost = [(row, run) for row in rows for run in row.diverged]
    seen = [stage for _, run in lost for stage in run.observations.get("affinity", [])]
    known = [name for name in names if any(stage.get(name) is not None for stage in seen)]
    lines = []
    for row, run in lost:
        assert run.result is not None
        ended, looked = run.result["outcome"]["step"], run.observations.get("step")
        steps = (str(ended), "–" if looked is None else str(looked))
        lines.append((_name(row), str(run.recipe.seed), *steps, *(_of_kernels(run, name) for name in known)))
    headers = ("network", "seed", "diverged at step", "seen after step", *(names[name] for name in known))
    return Table(headers, (("", tuple(lines)),)) if seen else None


def growth_table(rows: Sequence[RowRecord]) -> Table | None:
    """Return a line for each recorded certificate."""
    lines = []
    for row in rows:
        for run in row.started:
            certified = run.stability.get("stages", [])
            for stage in certified:
                where = f", {stage['name']}" if len(certified) > 1 else ""
                blocks = stage["blocks"]
                limits = [block["limit"] for block in blocks if block["limit"] is not None]
                lines.append(
                    (
                        f"{_name(row)}{where}",
                        str(run.recipe.seed),
                        stage["verdict"],
                        _grown([stage]),
                        _grown(blocks),
                        f"{max(block['largest'] for block in blocks):.2f}",
                        _lowest(blocks),
                        f"{min(limits):.2f}" if limits else "–",
                    )
                )
    headers = (
        "network",
        "seed",
        "verdict",
        "growth",
        "of a sub-block",
        "largest of W",
        "lowest of sym(W)",
        "limit",
    )
    return Table(headers, (("", tuple(lines)),)) if lines else None


def _lowest(blocks: Sequence[dict[str, Any]]) -> str:
    """The lowest eigenvalue of sym(W): below 0 a signal can grow although W is below the limit."""
    known = [block["lowest"] for block in blocks if "lowest" in block]
    return _signed(min(known)) if known else "–"


def _grown(found: Sequence[dict[str, Any]]) -> str:
    """The largest growth factor; one that was not finite was recorded as null."""
    known = [one["growth"] for one in found]
    return "not finite" if None in known else f"{max(known):.3f}"
