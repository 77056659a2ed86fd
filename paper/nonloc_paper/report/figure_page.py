"""The page of Figures 1 to 4 of the paper, every seed on one scale, and of trained stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from nonloc.plots import CHANCE, COLORS, INK, style
from nonloc_paper.report.document import Content, Data, Picture, Section
from nonloc_paper.report.figures import NARROW, Panel, mark_divergence, plain_numbers, spectra
from nonloc_paper.report.matching import BACKBONES, N3
from nonloc_paper.report.records import RowRecord, RunRecord, score_name
from nonloc_paper.report.signs import weights_at
from nonloc_paper.report.table1_runs import Table1Runs, group_size, setting
from nonloc_paper.report.tables import join_words
from nonloc_paper.report.trained_stages import Networks, energy_table, stage_sections
from nonloc_paper.suites import SUITES, Row

READING = [
    "A backbone with 3 bottlenecks a group is the one that matches, with 2 the literal reading. Figures 1 to 4 have "
    "the first where it has runs, and else the second.",
    "Spectra: the 32 eigenvalues of (W + Wᵀ)/2 of largest magnitude, in their order, a bar for each seed; blue above "
    "0, orange below. Panels of a figure have one scale.",
    "In each panel: how much of the energy Σλ² and how many of the 32 are negative, from the least seed to the most.",
    "A W of rank C/2 or less has as many positive as negative eigenvalues, whatever was learned. Training decides the "
    "sign of the large ones.",
    "Shaded, and “chance” in the tables: 95 % of random weights of the same rank and norm.",
]
CURVES_CAPTION = (
    "A line for each seed. Above: the loss on the training batches of each epoch. Below: the error on the test images. "
    "A cross marks where a run diverged."
)

Drawn = tuple[list[Content], Networks]  # contents of a section, networks whose spectra are in it


def figure_sections(runs: Table1Runs) -> list[Section]:
    """Return one section a figure; what has no run is named."""
    drawn = {
        f"figure{n}": draw(runs) for n, draw in enumerate((_figure1, _figure2, _figure3, _figure4), start=1)
    }
    networks = [network for _, some in drawn.values() for network in some]
    energies = Data("figures-spectra", "Trace and energies of every W in the figures", energy_table(networks))
    return [
        Section("How to read them", (READING, energies)),
        *(Section(SUITES[name].title, tuple(contents)) for name, (contents, _) in drawn.items()),
        *stage_sections(runs),
    ]


def find_row(runs: Table1Runs, row: Row, **what: Any) -> RowRecord | None:
    """Return the recorded row that a row of a figure asks for: with 3 bottlenecks a group or, without a run, with 2."""
    asked = setting(row.recipe)
    wanted = {"form": asked.form, "blocks": asked.blocks, "rate": asked.rate} | what
    known = runs.find(**wanted, backbone=N3) or runs.find(**wanted)
    return known and replace(known, label=row.label)


def _networks(row: RowRecord | None, epoch: int | None = None) -> Networks:
    """Every run of a row that came to its end, with its W after `epoch`, by default the last."""
    if row is None:
        return []
    label = f"{row.label}, {group_size(setting(row.recipe).backbone)}" + (
        "" if epoch is None else f", epoch {epoch}"
    )
    ended = [(label, run, weights_at(run, epoch)) for run in row.started if run.has_finished]
    return [network for network in ended if network[2]]


def _panels(networks: Networks) -> list[Panel]:
    """A panel for every W of a row, with the W of all seeds."""
    weights = list(zip(*(some for _, _, some in networks), strict=True))
    return [(f"block {number} of {len(weights)}", some) for number, some in enumerate(weights, start=1)]


def _picture(name: str, lines: Sequence[tuple[str, Sequence[Panel]]], networks: Networks) -> Picture:
    """A figure of spectra, and in its caption whose they are."""
    seeds: dict[str, list[str]] = {}
    for label, run, _ in networks:
        seeds.setdefault(label, []).append(str(run.recipe.seed))
    rows = "; ".join(
        f"{label}: seed{'s' * (len(some) > 1)} {join_words(some)}" for label, some in seeds.items()
    )
    return Picture(name, spectra(lines), f"{rows}.", pdf=True)


def _figure1(runs: Table1Runs) -> Drawn:
    rows = {row.label: _networks(find_row(runs, row)) for row in SUITES["figure1"].rows}
    panels = [panel for some in rows.values() for panel in _panels(some)]
    lines = [("", panels[start : start + 3]) for start in range(0, len(panels), 3)]
    networks = [network for some in rows.values() for network in some]
    return [_picture("figure1", lines, networks), _absent(rows)], networks


def _figure2(runs: Table1Runs) -> Drawn:
    suite = SUITES["figure2"]
    row = find_row(runs, suite.rows[0])
    found = {epoch: some for epoch in suite.epochs if (some := _networks(row, epoch))}
    panels = [(f"epoch {epoch}", [weights[0] for _, _, weights in some]) for epoch, some in found.items()]
    networks = [network for some in found.values() for network in some]
    return [_picture("figure2", [("", panels)], networks), _absent({suite.rows[0].label: networks})], networks


def _figure3(runs: Table1Runs) -> Drawn:
    """The curves, and the spectra of the network at the lower rate."""
    rows = {row.label: find_row(runs, row) for row in SUITES["figure3"].rows}
    *_, slow = rows
    networks = _networks(rows[slow])
    picture = Picture("figure3a", curves(curve_rows(runs)), CURVES_CAPTION, pdf=True)
    return [picture, _picture("figure3b", [("", _panels(networks))], networks), _absent(rows)], networks


def curve_rows(runs: Table1Runs) -> dict[str, list[RowRecord]]:
    """Return the rows of Figure 3 by backbone, with baselines at both rates and four blocks at the rate of the others.

    2 bottlenecks a group are left out as soon as 3 have all of them.
    """
    *_, slow = SUITES["figure3"].rows
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("baseline", {"form": None}),
        *((f"{n} original block{'s' * (n > 1)}", {"form": "original", "blocks": n}) for n in (1, 2, 3, 4)),
        (slow.label, {"form": "original", "blocks": 4, "rate": slow.recipe.learning_rate}),
        (f"baseline, rate {slow.recipe.learning_rate:g}", {"form": None, "rate": slow.recipe.learning_rate}),
    ]
    columns = {}
    for backbone in BACKBONES:
        title = group_size(backbone)
        found = [(label, runs.find(**what, backbone=backbone)) for label, what in wanted]
        columns[title] = [replace(row, label=label) for label, row in found if row is not None]
        if len(columns[title]) == len(wanted):
            break
    return columns


def _figure4(runs: Table1Runs) -> Drawn:
    (row,) = SUITES["figure4"].rows
    one = _networks(find_row(runs, row))
    own = _networks(find_row(runs, replace(row, label=f"{row.label}, own affinities"), shared=False))
    lines = [("one affinity", _panels(one)), ("own affinities", _panels(own))]
    return [_picture("figure4", lines, [*one, *own]), _absent({row.label: one})], [*one, *own]


def _absent(found: Mapping[str, object]) -> str:
    labels = [label for label, some in found.items() if not some]
    return f"Not recorded yet: {', '.join(labels)}." if labels else ""


def curves(columns: Mapping[str, Sequence[RowRecord]]) -> Figure | None:
    """Draw loss and error over the epochs, rows of runs by the title of their column; None without a run."""
    columns = {title: [row for row in rows if row.started] for title, rows in columns.items()}
    columns = {title: rows for title, rows in columns.items() if rows}
    if not columns:
        return None
    looks = _looks([row for rows in columns.values() for row in rows])
    with style():
        figure = Figure(figsize=(NARROW, 5.4), layout="constrained")
        grid = figure.subplots(2, len(columns), squeeze=False, sharex=True, sharey="row")
        for (above, below), (title, rows) in zip(grid.T, columns.items(), strict=True):
            for row in rows:
                for run in row.started:
                    _curve(above, run, "train_loss", looks[row.label])
                    _curve(below, run, score_name(run.recipe), looks[row.label])
            above.set_title(title)
            below.set_xlabel("epoch")
            for axes in (above, below):
                axes.set_yscale("log")
                plain_numbers(axes)
        grid[0, 0].set_ylabel("training loss (nats)")
        grid[1, 0].set_ylabel("error on test images (%)")
        grid[0, 0].xaxis.set_major_locator(MaxNLocator(5, integer=True))
        handles = [Line2D([], [], color=colour, label=label) for label, colour in looks.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _looks(rows: Sequence[RowRecord]) -> dict[str, str]:
    """A colour for each label: grey and black for networks without blocks, the others as different as can be."""
    looks: dict[str, str] = {}
    for row in rows:
        colours = [CHANCE, INK] if row.recipe.form is None else COLORS
        drawn = len([colour for colour in looks.values() if colour in colours])
        looks.setdefault(row.label, colours[drawn % len(colours)])
    return looks


def _curve(axes: Axes, run: RunRecord, name: str, colour: str) -> None:
    epochs, values = run.curve(name, over="epoch")
    axes.plot(
        epochs, values, color=colour, linewidth=0.9, alpha=0.8, marker="o" if len(values) == 1 else None
    )
    if run.diverged_at is not None:
        # The steps of an epoch are known once one has passed.
        steps = run.metrics[0]["step"] / run.metrics[0]["epoch"] if run.metrics else run.diverged_at
        mark_divergence(axes, run.diverged_at / steps, values, colour)
