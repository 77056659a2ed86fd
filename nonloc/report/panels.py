"""Figures 1 to 4, every panel, and the damping of features, from the kept runs of Table 1 and beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nonloc.networks.spec import NetworkSpec
from nonloc.paper import SUITES, Row
from nonloc.report import figures
from nonloc.report.document import Content, Picture, Section
from nonloc.report.evidence import norm_ratio
from nonloc.report.kept import Kept, median_run, setting
from nonloc.report.records import RowRecord, RunRecord
from nonloc.report.signs import caption, weights_at
from nonloc.report.tables import Table

WHICH = "The run shown is the one whose error is the median of its row."
READING = (
    "Eigenvalues of (W + Wᵀ)/2, the 32 of largest magnitude, in their order: blue above 0, orange below. As many are "
    "positive as negative whatever was learned, where W has rank C/2 or less; what training decides is the sign of the "
    "large ones. Shaded: 95 % of random weights of the same rank and norm, where the run has recorded it."
)


ABOUT_FACTORS = (
    "From the beginning of the stage to its end, every run. W symmetric: the share of Σ w_ij² that is in (W + Wᵀ)/2; "
    "the rest turns features into each other, can make them grow, and no spectrum above shows it. Kernel spread: e to "
    "the entropy of the kernel's rows over the number of positions; at 1 every position listens to all alike."
)


ABOUT_GROWTH = (
    "`nonloc stability` on trained networks: the worst case over all signals, with the kernels that the first test "
    "images make, in the kernel's own norm. Unstable: a signal that grows is known. Growth: of the stage, and the "
    "largest of a sub-block alone. A symmetric W ≥ 0 whose largest singular value is below the limit would be stable."
)


def figure_sections(kept: Kept) -> list[Section]:
    """One section a figure; what has no run yet is said, not left out."""
    return [
        Section(SUITES["figure1"].title, tuple(_spectra(kept, "figure1"))),
        Section(SUITES["figure2"].title, tuple(_epochs(kept))),
        Section(SUITES["figure3"].title, (*_curves(kept), *_spectra(kept, "figure3"))),
        Section(SUITES["figure4"].title, tuple(_spectra(kept, "figure4"))),
        Section("Damping, seen directly: the features through the sub-blocks", tuple(_features(kept))),
        Section("Whether trained stages can make a signal grow", tuple(_growth(kept.rows))),
    ]


def find_row(kept: Kept, row: Row) -> RowRecord | None:
    """The kept row that a row of a figure asks for, under the figure's label; None where there is no run."""
    wanted = setting(row.recipe)
    found = next((one for one in kept.rows if one.started and setting(one.recipe) == wanted), None)
    # Without its group, which would be told by dashes: a figure has one group.
    return None if found is None else replace(found, label=row.label, group="")


def _spectra(kept: Kept, name: str) -> list[Content]:
    suite = SUITES[name]
    shown, told, absent = [], [], []
    wanted = {panel.row for panel in suite.panels if panel.kind == "spectrum"}
    for row in suite.rows:
        if row.label not in wanted:
            continue
        run = _run(kept, row)
        weights = [] if run is None else weights_at(run)
        if run is None or not weights:
            absent.append(row.label)
            continue
        shown.append((row.label, {"stages": [{"weights": weights}]}))
        told.append(caption(f"{row.label}, seed {run.recipe.seed}", weights))
    contents: list[Content] = []
    figure = figures.spectra(shown)
    if figure is not None:
        file = f"{name}b" if name == "figure3" else name
        contents.append(Picture(file, figure, f"{READING} {WHICH}"))
    return [*contents, told, _absent(absent)]


def _epochs(kept: Kept) -> list[Content]:
    suite = SUITES["figure2"]
    row = suite.rows[0]
    run = _run(kept, row)
    chosen = [panel.epoch for panel in suite.panels if panel.epoch is not None]
    figure = None if run is None else figures.epochs(run, chosen)
    if run is None or figure is None:
        return [_absent([row.label])]
    told = [
        caption(f"Epoch {epoch}, seed {run.recipe.seed}", weights)
        for epoch in chosen
        if (weights := weights_at(run, epoch)[:1])
    ]
    return [Picture("figure2", figure, f"{READING} {WHICH}"), told]


def _curves(kept: Kept) -> list[Content]:
    suite = SUITES["figure3"]
    found = {row.label: find_row(kept, row) for row in suite.rows}
    rows = [row for row in found.values() if row is not None]
    contents: list[Content] = []
    if rows:
        contents.append(Picture("figure3a", figures.curves(rows), figures.CURVES_CAPTION))
    return [*contents, _absent([label for label, row in found.items() if row is None])]


def _features(kept: Kept) -> list[Content]:
    rows = [
        replace(row, runs=(run,), group="")
        for row in kept.rows
        if _is_of_the_table(kept, row) and (run := median_run(row)) is not None
    ]
    figure = figures.features(rows)
    if figure is None:
        return ["No run has recorded its features yet."]
    caption_text = f"{figures.FEATURES_CAPTION} {WHICH}"
    return [Picture("features", figure, caption_text), _factors(kept.rows), ABOUT_FACTORS]


def _factors(rows: Sequence[RowRecord]) -> Table:
    """What the stages do to norm, variance and energy from their beginning to their end, run by run."""
    lines = []
    for row in rows:
        runs = [run for run in row.started if norm_ratio(run) is not None]
        if runs:
            told = [", ".join(_factor(run, name) for run in runs) for name in ("norm", "variance", "energy")]
            told += [", ".join(share(run) for run in runs) for share in (_symmetric_share, _spread)]
            lines.append((f"{row.label}, start {setting(row.recipe).start}", str(len(runs)), *told))
    headers = ("norm ×", "variance ×", "Dirichlet energy ×", "W symmetric", "kernel spread")
    return Table(("network", "n", *headers), (("", tuple(lines)),))


def _factor(run: RunRecord, name: str) -> str:
    blocks = run.observations["features"][0]["blocks"]
    before, after = blocks[0]["before"][name], blocks[-1]["after"][name]
    return f"{after / before:.3g}" if before and after is not None else "–"


def _symmetric_share(run: RunRecord) -> str:
    """How much of the energy Σ w_ij² of all W is in their symmetric parts, which is what the spectra show."""
    weights = weights_at(run)
    if not weights or any("norm" not in weight for weight in weights):
        return "–"
    symmetric = sum(weight["positive_energy"] + weight["negative_energy"] for weight in weights)
    return f"{symmetric / sum(weight['norm'] ** 2 for weight in weights):.2f}"


def _spread(run: RunRecord) -> str:
    """Of the first stage's kernel; 1 is uniform."""
    found = run.observations.get("affinity") or [{}]
    spread = found[0].get("spread")
    return "–" if spread is None else f"{spread:.2f}"


def _growth(rows: Sequence[RowRecord]) -> list[Content]:
    lines = []
    for row in rows:
        for run in row.started:
            for stage in run.stability.get("stages", []):
                blocks = stage["blocks"]
                limits = [block["limit"] for block in blocks if block["limit"] is not None]
                lines.append(
                    (
                        f"{row.label}, start {setting(row.recipe).start}",
                        str(run.recipe.seed),
                        stage["verdict"],
                        _grown([stage]),
                        _grown(blocks),
                        f"{max(block['largest'] for block in blocks):.2f}",
                        f"{min(limits):.2f}" if limits else "–",
                    )
                )
    if not lines:
        return ["No run has been asked yet: `nonloc stability RUN --keep`."]
    headers = ("network", "seed", "verdict", "growth", "of a sub-block", "largest of W", "limit")
    return [ABOUT_GROWTH, Table(headers, (("", tuple(lines)),))]


def _grown(found: Sequence[dict[str, Any]]) -> str:
    """The largest growth factor; one that is not finite was recorded as none."""
    known = [one["growth"] for one in found]
    return "not finite" if None in known else f"{max(known):.3f}"


def _is_of_the_table(kept: Kept, row: RowRecord) -> bool:
    """Whether a row stands for itself in the figure of the features: blocks in one place, at the default start."""
    what = setting(row.recipe)
    spec = NetworkSpec.parse(row.recipe.network)
    own_habit = what.shared == (what.form == "diffusive")
    return (
        spec.form is not None
        and what == kept.wanted(form=what.form, blocks=what.blocks, rate=what.rate)
        and own_habit
    )


def _run(kept: Kept, row: Row) -> RunRecord | None:
    found = find_row(kept, row)
    return None if found is None else median_run(found)


def _absent(labels: Sequence[str]) -> str:
    return f"Not recorded yet: {', '.join(labels)}." if labels else ""
