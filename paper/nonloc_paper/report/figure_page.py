"""The page of Figures 1 to 4: every panel, the features through the stages, and the certificates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nonloc_paper.report import figures
from nonloc_paper.report.document import Content, Data, Picture, Section
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
    growth_summary,
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


Networks = list[tuple[str, RunRecord, list[Weight]]]  # (label, run, its W)


def figure_sections(runs: Table1Runs) -> list[Section]:
    """Return one section a figure; a figure without a run is named."""
    spectra = {name: _spectra(runs, name) for name in ("figure1", "figure3", "figure4")}
    during, epochs = _epochs(runs)
    networks = {**{name: shown for name, (_, shown) in spectra.items()}, "figure2": epochs}
    energies = Data("figures-spectra", "Trace and energies of every W in the figures", energy_table(networks))
    return [
        Section("How to read them", (READING, energies)),
        Section(SUITES["figure1"].title, tuple(spectra["figure1"][0])),
        Section(SUITES["figure2"].title, tuple(during)),
        Section(SUITES["figure3"].title, (*_curves(runs), *spectra["figure3"][0])),
        Section(SUITES["figure4"].title, tuple(spectra["figure4"][0])),
        Section("Damping, seen directly: the features through the sub-blocks", tuple(_features(runs))),
        Section(GROWTH, tuple(_growth(runs))),
    ]


def find_row(runs: Table1Runs, row: Row) -> RowRecord | None:
    """Return the recorded row that a row of a figure asks for, under the figure's label; None without a run."""
    wanted = setting(row.recipe)
    known = next((one for one in runs.recorded if setting(one.recipe) == wanted), None)
    # Without its group, which would be drawn by dashes: a figure has one group.
    return None if known is None else replace(known, label=row.label, group="")


def energy_table(networks: Mapping[str, Networks]) -> Table:
    """Return trace, energies and the negative share of every W of the figures, by figure."""
    lines = []
    for name in sorted(networks):
        for label, run, weights in networks[name]:
            for number, weight in enumerate(weights, start=1):
                share = negative_share([weight])
                low, high = (f"{100 * end:.0f}" for end in share_band([weight]))
                energies = (f"{weight[key]:.3g}" for key in ("positive_energy", "negative_energy"))
                trace = with_minus(f"{weight['trace']:.3g}")
                shown = "–" if share is None else f"{100 * share:.0f}"
                where = (label, str(run.recipe.seed), str(number))
                lines.append((name.removeprefix("figure"), *where, trace, *energies, shown, low, high))
    where = ("figure", "network", "seed", "block")
    chance = ("negative share (%)", "chance from (%)", "chance to (%)")
    return Table((*where, "trace", "positive energy", "negative energy", *chance), lines)


def _spectra(runs: Table1Runs, name: str) -> tuple[list[Content], Networks]:
    suite = SUITES[name]
    shown: Networks = []
    wanted = {panel.row for panel in suite.panels if panel.kind == "spectrum"}
    rows = [row for row in suite.rows if row.label in wanted]
    for row in rows:
        run = _run(runs, row)
        if run is not None and (weights := weights_at(run)):
            shown.append((row.label, run, weights))
    figure = figures.spectra([(label, {"stages": [{"weights": weights}]}) for label, _, weights in shown])
    there = {label for label, *_ in shown}
    absent = _absent([row.label for row in rows if row.label not in there])
    return [Picture(f"{name}b" if name == "figure3" else name, figure, suite.title), absent], shown


def _epochs(runs: Table1Runs) -> tuple[list[Content], Networks]:
    suite = SUITES["figure2"]
    run = _run(runs, suite.rows[0])
    chosen = [panel.epoch for panel in suite.panels if panel.epoch is not None]
    figure = None if run is None else figures.epochs(run, chosen)
    if run is None or figure is None:
        return [_absent([suite.rows[0].label])], []
    weights = [(f"epoch {epoch}", run, weights_at(run, epoch)[:1]) for epoch in chosen]
    return [Picture("figure2", figure, suite.title)], weights


def _curves(runs: Table1Runs) -> list[Content]:
    known = {row.label: find_row(runs, row) for row in SUITES["figure3"].rows}
    rows = [row for row in known.values() if row is not None]
    absent = _absent([label for label, row in known.items() if row is None])
    return [Picture("figure3a", figures.curves(rows) if rows else None, figures.CURVES_CAPTION), absent]


def _features(runs: Table1Runs) -> list[Content]:
    rows = []
    for row in runs.rows:
        what, run = setting(row.recipe), median_run(row)
        # Blocks in one place, at the default start.
        is_of_table = what.form and what == runs.wanted(form=what.form, blocks=what.blocks, rate=what.rate)
        if is_of_table and run is not None:
            rows.append(replace(row, runs=(run,), group=""))
    figure = figures.features(rows)
    if figure is None:
        return ["No run of Table 1 has recorded its features yet."]
    action = action_table(runs)
    return [
        Picture("features", figure, figures.FEATURES_CAPTION),
        f"Start {runs.start}, blocks in one place, each form with its own affinity:" if action else "",
        action,
        Data("figures-features", "Every run, every quantity", factors_table(runs.rows)),
        ABOUT_FACTORS,
    ]


def _growth(runs: Table1Runs) -> list[Content]:
    every = Data("figures-growth", "Every certificate", growth_table(runs.rows))
    if not every:
        return ["No run has been certified yet: `nonloc stability RUN --keep`."]
    return [ABOUT_GROWTH, growth_summary(runs.rows), every]


def _run(runs: Table1Runs, row: Row) -> RunRecord | None:
    known = find_row(runs, row)
    return None if known is None else median_run(known)


def _absent(labels: Sequence[str]) -> str:
    return f"Not recorded yet: {', '.join(labels)}." if labels else ""
