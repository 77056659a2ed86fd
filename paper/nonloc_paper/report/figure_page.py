"""The page of Figures 1 to 4: every panel, the features through the stages, and the certificates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nonloc_paper.report import figures
from nonloc_paper.report.document import Content, Details, Picture, Section
from nonloc_paper.report.records import RowRecord, RunRecord
from nonloc_paper.report.signs import Weight, negative_share, share_band, weights_at
from nonloc_paper.report.table1_runs import Table1Runs, median_run, setting
from nonloc_paper.report.tables import Table, with_minus
from nonloc_paper.report.trained_stages import (
    ABOUT_FACTORS,
    ABOUT_GROWTH,
    GROWTH,
    action_table,
    factors_table,
    growth_table,
)
from nonloc_paper.suites import SUITES, Row

READING = [
    "Each figure shows the run with the median error of its row, of two in the middle the lower.",
    "Spectra: the 32 eigenvalues of (W + Wᵀ)/2 of largest magnitude, in their order; blue above 0, orange below.",
    "A W of rank C/2 or less has as many positive as negative eigenvalues, whatever was learned. Training decides the "
    "sign of the large ones.",
    "Shaded, and “chance” in the tables: 95 % of random weights of the same rank and norm.",
]


def figure_sections(runs: Table1Runs) -> list[Section]:
    """Return one section a figure; a figure without a run is named."""
    return [
        Section("How to read them", (READING,)),
        Section(SUITES["figure1"].title, tuple(_spectra(runs, "figure1"))),
        Section(SUITES["figure2"].title, tuple(_epochs(runs))),
        Section(SUITES["figure3"].title, (*_curves(runs), *_spectra(runs, "figure3"))),
        Section(SUITES["figure4"].title, tuple(_spectra(runs, "figure4"))),
        Section("Damping, seen directly: the features through the sub-blocks", tuple(_features(runs))),
        Section(GROWTH, tuple(_growth(runs))),
    ]


def find_row(runs: Table1Runs, row: Row) -> RowRecord | None:
    """Return the recorded row that a row of a figure asks for, under the figure's label; None without a run."""
    wanted = setting(row.recipe)
    found = next((one for one in runs.recorded if setting(one.recipe) == wanted), None)
    # Without its group, which would be drawn by dashes: a figure has one group.
    return None if found is None else replace(found, label=row.label, group="")


def energy_table(networks: Sequence[tuple[str, list[Weight]]]) -> Table:
    """Return trace, energies and the negative share of every W of some networks, by label."""
    lines = []
    for label, weights in networks:
        for number, weight in enumerate(weights, start=1):
            share = negative_share([weight])
            low, high = share_band([weight])
            lines.append(
                (
                    f"{label}, block {number}",
                    with_minus(f"{weight['trace']:.3g}"),
                    f"{weight['positive_energy']:.3g}",
                    f"{weight['negative_energy']:.3g}",
                    "no energy" if share is None else f"{100 * share:.0f} %",
                    f"{100 * low:.0f} to {100 * high:.0f} %",
                )
            )
    header = ("W", "trace", "positive energy", "negative energy", "negative share", "chance")
    return Table(header, (("", tuple(lines)),))


def _spectra(runs: Table1Runs, name: str) -> list[Content]:
    suite = SUITES[name]
    shown, networks, absent = [], [], []
    wanted = {panel.row for panel in suite.panels if panel.kind == "spectrum"}
    for row in (row for row in suite.rows if row.label in wanted):
        run = _run(runs, row)
        weights = [] if run is None else weights_at(run)
        if run is None or not weights:
            absent.append(row.label)
            continue
        shown.append((row.label, {"stages": [{"weights": weights}]}))
        networks.append((f"{row.label}, seed {run.recipe.seed}", weights))
    figure = figures.spectra(shown)
    if figure is None:
        return [_absent(absent)]
    file = f"{name}b" if name == "figure3" else name
    return [Picture(file, figure, suite.title), _energies(networks), _absent(absent)]


def _epochs(runs: Table1Runs) -> list[Content]:
    suite = SUITES["figure2"]
    row = suite.rows[0]
    run = _run(runs, row)
    chosen = [panel.epoch for panel in suite.panels if panel.epoch is not None]
    figure = None if run is None else figures.epochs(run, chosen)
    if run is None or figure is None:
        return [_absent([row.label])]
    networks = [
        (f"epoch {epoch}, seed {run.recipe.seed}", weights)
        for epoch in chosen
        if (weights := weights_at(run, epoch)[:1])
    ]
    return [Picture("figure2", figure, suite.title), _energies(networks)]


def _energies(networks: Sequence[tuple[str, list[Weight]]]) -> Details:
    return Details("Trace and energies of every W", (energy_table(networks),))


def _curves(runs: Table1Runs) -> list[Content]:
    found = {row.label: find_row(runs, row) for row in SUITES["figure3"].rows}
    rows = [row for row in found.values() if row is not None]
    shown: list[Content] = [Picture("figure3a", figures.curves(rows), figures.CURVES_CAPTION)] if rows else []
    return [*shown, _absent([label for label, row in found.items() if row is None])]


def _features(runs: Table1Runs) -> list[Content]:
    rows = [
        replace(row, runs=(run,), group="")
        for row in runs.rows
        if _is_of_the_table(runs, row) and (run := median_run(row)) is not None
    ]
    figure = figures.features(rows)
    if figure is None:
        return ["No run of Table 1 has recorded its features yet."]
    action = action_table(runs)
    summary = f"Start {runs.start}, blocks in one place, each form with its own affinity:"
    return [
        Picture("features", figure, figures.FEATURES_CAPTION),
        *((summary, action) if action is not None else ()),
        Details("Every run, every quantity", (factors_table(runs.rows), ABOUT_FACTORS)),
    ]


def _growth(runs: Table1Runs) -> list[Content]:
    found = growth_table(runs.rows)
    if found is None:
        return ["No run has been certified yet: `nonloc stability RUN --keep`."]
    return [ABOUT_GROWTH, found]


def _is_of_the_table(runs: Table1Runs, row: RowRecord) -> bool:
    """Whether a row stands for itself in the figure of the features: blocks in one place, at the default start."""
    what = setting(row.recipe)
    return what.form is not None and what == runs.wanted(form=what.form, blocks=what.blocks, rate=what.rate)


def _run(runs: Table1Runs, row: Row) -> RunRecord | None:
    found = find_row(runs, row)
    return None if found is None else median_run(found)


def _absent(labels: Sequence[str]) -> str:
    return f"Not recorded yet: {', '.join(labels)}." if labels else ""
