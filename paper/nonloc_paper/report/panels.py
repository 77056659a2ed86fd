"""Figures 1 to 4, every panel, and the damping of features, from the kept runs of Table 1 and beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nonloc_paper.report import figures
from nonloc_paper.report.document import Content, Picture, Section
from nonloc_paper.report.kept import Kept, median_run, setting
from nonloc_paper.report.records import RowRecord, RunRecord
from nonloc_paper.report.signs import caption, weights_at
from nonloc_paper.report.trained_stages import (
    ABOUT_FACTORS,
    ABOUT_GROWTH,
    GROWTH,
    action_sentences,
    factors_table,
    growth_table,
)
from nonloc_paper.suites import SUITES, Row

WHICH = (
    "The run shown is the one whose error is the median of its row, of two in the middle the lower; where none has "
    "come to its end, the first under way."
)
READING = (
    "Eigenvalues of (W + Wᵀ)/2, the 32 of largest magnitude, in their order: blue above 0, orange below. As many are "
    "positive as negative whatever was learned, where W has rank C/2 or less; what training decides is the sign of the "
    "large ones. Shaded: 95 % of random weights of the same rank and norm, where the run has recorded it."
)


def figure_sections(kept: Kept) -> list[Section]:
    """One section a figure; what has no run yet is said, not left out."""
    return [
        Section(SUITES["figure1"].title, tuple(_spectra(kept, "figure1"))),
        Section(SUITES["figure2"].title, tuple(_epochs(kept))),
        Section(SUITES["figure3"].title, (*_curves(kept), *_spectra(kept, "figure3"))),
        Section(SUITES["figure4"].title, tuple(_spectra(kept, "figure4"))),
        Section("Damping, seen directly: the features through the sub-blocks", tuple(_features(kept))),
        Section(GROWTH, tuple(_growth(kept))),
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
        return ["No run of Table 1 has recorded its features yet."]
    caption_text = f"{figures.FEATURES_CAPTION} {WHICH}"
    told = [
        f"Start {kept.start}, blocks in one place, each form with its own affinity. {text}."
        for text in action_sentences(kept)
    ]
    shown: list[Content] = [
        Picture("features", figure, caption_text),
        factors_table(kept.rows),
        ABOUT_FACTORS,
    ]
    return [*shown, told] if told else shown


def _growth(kept: Kept) -> list[Content]:
    found = growth_table(kept.rows)
    return (
        ["No run has been asked yet: `nonloc stability RUN --keep`."]
        if found is None
        else [ABOUT_GROWTH, found]
    )


def _is_of_the_table(kept: Kept, row: RowRecord) -> bool:
    """Whether a row stands for itself in the figure of the features: blocks in one place, at the default start."""
    what = setting(row.recipe)
    return what.form is not None and what == kept.wanted(form=what.form, blocks=what.blocks, rate=what.rate)


def _run(kept: Kept, row: Row) -> RunRecord | None:
    found = find_row(kept, row)
    return None if found is None else median_run(found)


def _absent(labels: Sequence[str]) -> str:
    return f"Not recorded yet: {', '.join(labels)}." if labels else ""
