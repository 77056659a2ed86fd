"""Trained stages: what they do to features, and what they could do to others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from nonloc_paper.report import figures
from nonloc_paper.report.document import Content, Data, Picture, Section
from nonloc_paper.report.matching import BACKBONES, N2
from nonloc_paper.report.records import RowRecord, RunRecord
from nonloc_paper.report.rules import norm_ratio
from nonloc_paper.report.signs import TOP, Weight, count_negative, negative_share, share_band, weights_at
from nonloc_paper.report.table1_runs import (
    KINDS,
    START,
    Table1Runs,
    group_size,
    median_run,
    setting,
    start_of,
    wanted_setting,
)
from nonloc_paper.report.tables import Table, format_number, join_words, with_minus
from nonloc_paper.suites.tables import NAMES

ABOUT_FACTORS = [
    "The runs of Table 1's suites that came to their end, from the beginning of a stage to its end.",
    "linear and rest: the variance changes by (2 ⟨Z, ΔZ⟩ + ⟨ΔZ, ΔZ⟩) / ⟨Z, Z⟩, centred, with ΔZ what a sub-block adds. "
    "The two parts, over all sub-blocks; the second can only add.",
    "W symmetric: the share of Σ w_ij² in (W + Wᵀ)/2, over all W of the network. The rest turns features into each "
    "other; no spectrum shows it.",
    "W along the features: ⟨g, ΔZ⟩ / ⟨g, g⟩ of each sub-block in turn, with g what the kernel brings.",
    "kernel spread: e to the entropy of the kernel's rows, over the number of positions; 1 for a uniform kernel.",
    "rows apart: mean distance of the rows from their mean, in total variation; 0 if all positions have the same row.",
    "logits apart: the largest difference of two logits in a row, over 32 test images.",
]
GROWTH = "Whether trained stages can make a signal grow"
ABOUT_GROWTH = (
    "`nonloc stability` on trained networks, with the kernels of the first test images, the worst of which counts. The "
    "norm is the kernel's own, or the plain one where sub-blocks have no common one. Unstable: a "
    "signal that grows is known; growth is that of the worst one found, of the stage and of a sub-block alone. A "
    "symmetric W ≥ 0 below the limit would be stable."
)
ABOUT_LOST = (
    "The newest checkpoint before the divergence, stage by stage; columns as in [figures.md](figures.md). A kernel "
    "whose rows have one entry each has the spread 0.00098 after residual block 2, 0.0039 after 4, 0.016 after 6. Runs "
    "without numbers diverged before anything was saved."
)
KERNEL = {"spread": "kernel spread", "apart": "rows apart", "logit_spread": "logits apart"}

Networks = list[tuple[str, RunRecord, list[Weight]]]  # label, run, its W


def stage_sections(runs: Table1Runs) -> list[Section]:
    """Return the features through the sub-blocks, and the certificates."""
    return [
        Section("Damping, seen directly: the features through the sub-blocks", tuple(_features(runs))),
        Section(GROWTH, tuple(_growth(runs))),
    ]


def _features(runs: Table1Runs) -> list[Content]:
    rows = []
    for row in runs.rows:
        what, run = setting(row.recipe), median_run(row)
        # Blocks in one place, at the default start.
        is_of_table = what.form and what == wanted_setting(form=what.form, blocks=what.blocks, rate=what.rate)
        if is_of_table and run is not None:
            rows.append(replace(row, runs=(run,), group=""))
    figure = figures.features(rows)
    if figure is None:
        return ["No run of Table 1 has recorded its features yet."]
    action = action_table(runs)
    drawn = f"{group_size(N2)}, proposed blocks with one affinity; of each row the median run."
    return [
        Picture("features", figure, f"{drawn} {figures.FEATURES_CAPTION}"),
        f"Start {START}, blocks in one place:" if action else "",
        action,
        Data("figures-features", "Run by run, every quantity", factors_table(runs.rows)),
        ABOUT_FACTORS,
    ]


def _growth(runs: Table1Runs) -> list[Content]:
    every = Data("figures-growth", "Certificate by certificate", growth_table(runs.rows))
    if not every:
        return ["No run has been certified yet: `nonloc stability RUN --keep`."]
    sizes = sorted({group_size(setting(row.recipe).backbone) for row, *_ in _certified(runs.rows)})
    return [f"{ABOUT_GROWTH} Networks with {join_words(sizes)}.", growth_summary(runs.rows), every]


def energy_table(networks: Networks) -> Table:
    """Return trace, energies and the negative share of every W, and between which shares random weights lie."""
    lines = []
    for label, run, weights in networks:
        for number, weight in enumerate(weights, start=1):
            share, chance = negative_share([weight]), ("–", "–")
            if "band" in weight:
                low, high = share_band([weight])
                chance = (f"{100 * low:.0f}", f"{100 * high:.0f}")
            energies = (
                with_minus(f"{weight[key]:.3g}") for key in ("trace", "positive_energy", "negative_energy")
            )
            shown = "–" if share is None else f"{100 * share:.0f}"
            counted = str(count_negative([weight]))
            lines.append((label, str(run.recipe.seed), str(number), *energies, shown, *chance, counted))
    shares = ("negative share (%)", "chance from (%)", "chance to (%)", f"negative of the {TOP} largest")
    header = ("network", "seed", "block", "trace", "positive energy", "negative energy", *shares)
    return Table(header, lines, key=shares[0])


def factors_table(rows: Sequence[RowRecord]) -> Table:
    """Return a line for each stage of each run: what it does to norm, variance and energy, and its W and kernel."""
    lines = []
    for row in rows:
        for run in (run for run in row.started if norm_ratio(run) is not None):
            kernels = {kernel["stage"]: kernel for kernel in run.observations.get("affinity", [])}
            for stage in run.observations["features"]:
                parts = _changes(stage)
                quotients = [block.get("quotient") for block in stage["blocks"]]
                lines.append(
                    (
                        _name(row),
                        str(run.recipe.seed),
                        stage["name"],
                        *(_factor(stage, name) for name in ("norm", "variance")),
                        *(("–", "–") if parts is None else (_percent(part, "") for part in parts)),
                        _factor(stage, "energy"),
                        _symmetric_share(run),
                        " ".join("–" if value is None else _signed(value) for value in quotients),
                        *(_kernel_number(kernels.get(stage["name"], {}), name) for name in KERNEL),
                    )
                )
    changes = ("norm ×", "variance ×", "linear (%)", "rest (%)", "Dirichlet energy ×")
    header = ("network", "seed", "stage", *changes, "W symmetric", "W along the features", *KERNEL.values())
    return Table(header, lines, key="variance ×")


def _name(row: RowRecord) -> str:
    start, backbone = start_of(row.recipe), setting(row.recipe).backbone
    # A restorer has one size.
    size = f", {group_size(backbone)}" if backbone.startswith("preresnet") else ""
    return f"{row.label}{size}" + ("" if f"deviation {start}" in row.label else f", start {start}")


def _factor(stage: dict[str, Any], name: str) -> str:
    # Block by block: the energies before and after one are of its own kernel, which the next need not have.
    pairs = [(block["before"][name], block["after"][name]) for block in stage["blocks"]]
    is_known = all(before and after is not None for before, after in pairs)
    return f"{math.prod(after / before for before, after in pairs):.3g}" if is_known else "–"


def _symmetric_share(run: RunRecord) -> str:
    """How much of the energy Σ w_ij² of all W is in their symmetric parts, which is what the spectra show."""
    weights = weights_at(run)
    if not weights:
        return "–"
    symmetric = sum(weight["positive_energy"] + weight["negative_energy"] for weight in weights)
    energy = sum(weight["norm"] ** 2 for weight in weights)
    return f"{symmetric / energy:.2f}" if energy else "–"


def _signed(value: float) -> str:
    """To two decimals; to three where two would show a sign and nothing else, and no sign where three would."""
    for digits in (2, 3):
        if round(value, digits):
            return with_minus(f"{value:.{digits}f}")
    return "0.00"


def action_table(runs: Table1Runs) -> Table:
    """Return for each backbone and kind of stage what W does to features, of Table 1's blocks in one place."""
    lines = []
    for backbone, (name, kind) in itertools.product(BACKBONES, KINDS.items()):
        known = [
            (row, run)
            for row in runs.recorded
            if (what := setting(row.recipe)) == wanted_setting(kind, blocks=what.blocks, backbone=backbone)
            for run in row.started
            if _quotients(run) and negative_share(weights_at(run)) is not None
        ]
        if not known:
            continue
        blocks = join_words(map(str, sorted({setting(row.recipe).blocks for row, _ in known})))
        shares = [100 * (negative_share(weights_at(run)) or 0) for _, run in known]
        first = [_quotients(run)[0] < 0 for _, run in known]
        later = [value < 0 for _, run in known for value in _quotients(run)[1:]]
        changes = [one for _, run in known if (one := _changes(run.observations["features"][0])) is not None]
        ranges = [f"{_percent(min(part))} to {_percent(max(part))}" for part in zip(*changes, strict=True)]
        share = f"{min(shares):.0f} to {max(shares):.0f} %"
        counts = (f"{sum(some)} of {len(some)}" for some in (first, later))
        line = (f"{name}, {blocks} blocks", share, *counts, *(ranges or ("–", "–")))
        lines.append((group_size(backbone), line))
    along = ("W along the features < 0, first sub-block", "later ones")
    return Table.grouped(("stages", "negative energy of sym(W)", *along, "variance, linear", "rest"), lines)


def _quotients(run: RunRecord) -> list[float]:
    """Of a run that came to its end, of the sub-blocks of its stages; empty where one is not recorded."""
    if not run.has_finished:
        return []
    blocks = [block for stage in run.observations.get("features", []) for block in stage["blocks"]]
    values = [block.get("quotient") for block in blocks]
    return [] if None in values else values


def variance_change(stage: dict[str, Any]) -> float | None:
    """Return by how much the variance changes from the beginning of an observed stage to its end, relative."""
    start, end = stage["blocks"][0]["before"]["variance"], stage["blocks"][-1]["after"]["variance"]
    return end / start - 1 if start and end is not None else None


def _changes(stage: dict[str, Any]) -> tuple[float, float] | None:
    """The linear part of the change of the variance, and the rest."""
    whole = variance_change(stage)
    parts = [(block.get("linear"), block["before"]["variance"]) for block in stage["blocks"]]
    if whole is None or any(None in part for part in parts):
        return None
    linear = sum(part * variance for part, variance in parts) / stage["blocks"][0]["before"]["variance"]
    return linear, whole - linear


def _percent(value: float, unit: str = " %") -> str:
    """Whole ones; below one a decimal more."""
    return with_minus(f"{100 * value:+.{0 if abs(value) >= 0.01 else 1}f}{unit}")


def _kernel_number(kernel: dict[str, Any], name: str) -> str:
    """Two decimals; two digits below 0.1; none from 100 on."""
    value = kernel.get(name)
    if value is None:
        return "–"
    return f"{value:{'.0f' if value >= 100 else '.2f' if value >= 0.1 else '.2g'}}"


def lost_table(rows: Sequence[RowRecord]) -> Table:
    """Return a line for each stage of each run that diverged, with its last saved kernel; empty if none was saved."""
    lines = []
    for row in rows:
        for run in row.diverged:
            seen = run.observations.get("step")
            for kernel in run.observations.get("affinity") or [{}]:
                where = (str(run.diverged_at), format_number(seen, "d"), kernel.get("stage", "–"))
                numbers = (_kernel_number(kernel, name) for name in KERNEL)
                lines.append((_name(row), str(run.recipe.seed), *where, *numbers))
    header = ("network", "seed", "diverged at step", "seen after step", "stage", *KERNEL.values())
    return Table(
        header, lines if any(set(line[5:]) != {"–"} for line in lines) else [], key="diverged at step"
    )


def _certified(rows: Sequence[RowRecord]) -> Iterator[tuple[RowRecord, RunRecord, dict[str, Any]]]:
    """Every stage with a recorded certificate."""
    return (
        (row, run, stage) for row in rows for run in row.started for stage in run.stability.get("stages", [])
    )


def growth_table(rows: Sequence[RowRecord]) -> Table:
    """Return a line for each recorded certificate."""
    lines = []
    for row, run, stage in _certified(rows):
        blocks = stage["blocks"]
        limits = [block["limit"] for block in blocks if block["limit"] is not None]
        lines.append(
            (
                _name(row),
                str(run.recipe.seed),
                stage["name"],
                str(run.stability["images"]),
                stage["verdict"],
                _grown([stage]),
                _grown(blocks),
                f"{max(block['largest'] for block in blocks):.2f}",
                _signed(_lowest(stage)),
                format_number(min(limits, default=None), ".2f"),
            )
        )
    numbers = ("growth", "of a sub-block", "largest of W", "lowest of sym(W)", "limit")
    return Table(("network", "seed", "stage", "images", "verdict", *numbers), lines, key="verdict")


def growth_summary(rows: Sequence[RowRecord]) -> Table:
    """Return by kind of stage: how many are certified unstable, how much signals grow, how negative sym(W) is."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row, _, stage in _certified(rows):
        form = NAMES[row.recipe.form or "original"]
        kinds.setdefault("stable" if row.recipe.stage.weight == "stable" else form, []).append(stage)

    def span(values: Sequence[float | None], form: Callable[[float], str]) -> str:
        known = [value for value in values if value is not None]
        return f"{form(min(known))} to {form(max(known))}" if known else "–"

    lines = [
        (
            kind,
            f"{sum(stage['verdict'] == 'unstable' for stage in stages)} of {len(stages)}",
            span([stage["growth"] for stage in stages], "{:.3f}".format),
            span([_lowest(stage) for stage in stages], _signed),
        )
        for kind, stages in kinds.items()
    ]
    return Table(("trained stages", "unstable", "growth", "lowest of sym(W)"), lines, key="unstable")


def _lowest(stage: dict[str, Any]) -> float:
    """The lowest eigenvalue of sym(W): below 0 a signal can grow although W is below the limit."""
    return min(block["lowest"] for block in stage["blocks"])


def _grown(parts: Sequence[dict[str, Any]]) -> str:
    """The largest growth factor; one that was not finite was recorded as null."""
    known = [part["growth"] for part in parts]
    return "not finite" if None in known else f"{max(known):.3f}"
