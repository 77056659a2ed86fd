"""write_report: one HTML page of a folder of runs: tables, curves, images, affinity maps, spectra, features."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nonloc import __version__
from nonloc_paper.report import figures, sentences
from nonloc_paper.report.html import figure_html, image_address, inline_svg, list_html, page_html
from nonloc_paper.report.records import Collection, RowRecord, RunRecord, collect, of_stage, score_name
from nonloc_paper.report.table1 import rows_table
from nonloc_paper.report.table1_runs import Table1Runs
from nonloc_paper.report.tables import results_table
from nonloc_paper.report.trained_stages import ABOUT_GROWTH, GROWTH, growth_table
from nonloc_paper.runs import write_atomically

PAPER = "Tao, Sun, Du and Liu, “Nonlocal Neural Networks, Nonlocal Diffusion and Nonlocal Modeling”, 2018"

ABOUT_RESTORATION = (
    "Each image repeats one small motif, so that every pixel has copies far away. Noise was added, and networks were "
    "trained to take it away. A local network sees a neighbourhood. A nonlocal stage in its middle lets every position "
    "look at all others: the original block (Wang et al.) adds a weighted sum of all features, the diffusive stage of "
    "the paper adds weighted differences z_j − z_i, which is a step of a nonlocal diffusion. The score is the PSNR on "
    "test images that share no motif with the training images: higher is better."
)
ABOUT_CLASSIFICATION = (
    "Image classifiers with nonlocal blocks between their residual blocks. The original block (Wang et al.) adds a "
    "weighted sum of the features at all positions, the proposed stage adds weighted differences z_j − z_i, which is a "
    "step of a nonlocal diffusion. The score is the error on the test images after the last epoch: lower is better."
)

PAPER_SPECTRA = (
    "The paper reports, for its classifiers on CIFAR-10, negative eigenvalues of the largest magnitude in original "
    "blocks (damping) and mostly positive ones in proposed blocks (diffusion). In these runs:"
)


def write_report(folder: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of all runs below `folder` to `output`, or to report.html in the folder; returns its path."""
    return write_page(collect(folder), output)


def write_page(
    collection: Collection, output: str | os.PathLike[str] | None = None, recorded: Table1Runs | None = None
) -> Path:
    """Write the page of a collection, as `write_report` does.

    recorded  runs on CIFAR-10 whose table the page shows, too
    """
    path = Path(output) if output is not None else collection.folder / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page(collection, recorded).encode())
    return path


def page(collection: Collection, recorded: Table1Runs | None = None) -> str:
    """The HTML of a report."""
    title = (
        collection.suite.title
        if collection.suite is not None
        else f"Runs in {collection.folder.resolve().name}"
    )
    tasks = sorted({score_name(row.recipe) for row in collection.rows})
    parts = [f"<h1>{escape(title)}</h1>", _about(collection, tasks)]
    for score in tasks:
        rows = [row for row in collection.rows if score_name(row.recipe) == score]
        table = results_table(collection, score)
        parts.append(f"<h2>Results</h2>{table.as_html()}{_table_note(score)}")
        parts.append(list_html(sentences.findings(collection)) if score == tasks[0] else "")
        if any(row.started for row in rows):
            parts.append(
                "<h2>Training</h2>"
                + figure_html(inline_svg(figures.curves(rows), f"curves-{score}"), figures.CURVES_CAPTION)
            )
        if score == "psnr":
            parts.append(_restored(rows))
        parts += [_affinities(rows), _spectra(collection, rows, score), _features(rows, score), _growth(rows)]
    parts += [_recorded(recorded) if recorded is not None else "", _colophon(collection)]
    return page_html(title, "".join(parts))


def _about(collection: Collection, tasks: list[str]) -> str:
    text = [ABOUT_RESTORATION] if "psnr" in tasks else []
    text += [ABOUT_CLASSIFICATION] if "error" in tasks else []
    notes = collection.suite.notes if collection.suite is not None else ()
    changes = collection.plan.get("changes")
    more = (
        [f"Changed for these runs: {', '.join(f'{key} = {value}' for key, value in changes.items())}."]
        if changes
        else []
    )
    more += [f"{row.label}: {row.note}" for row in collection.rows if row.note]
    return (
        f'<p class="soft">A report of nonloc {escape(__version__)} on {escape(PAPER)}.</p>'
        + "".join(f"<p>{escape(part)}</p>" for part in text)
        + list_html([*notes, *more])
    )


def _table_note(score: str) -> str:
    better = "higher is better" if score == "psnr" else "lower is better"
    text = (
        f"n: how many seeds ran to their end, which the median and the range are over; {better}. Runs that diverged or "
        "are missing are named, never left out. Seconds are the median run's, on the machine below."
    )
    return f'<p class="soft">{text}</p><h2>What was measured</h2>'


def _restored(rows: list[RowRecord]) -> str:
    table = image_table(rows)
    if not table:
        return ""
    caption = (
        "Test images: clean, as the networks saw them, and as the first seed's network of each row restored them, with "
        "the PSNR of each image in dB. The noise of an image is the same for all networks."
    )
    return "<h2>Restored images</h2>" + figure_html(table, caption)


def _affinities(rows: list[RowRecord]) -> str:
    shown = affinity_figures(rows)
    if not shown:
        return ""
    found = [text for row in rows for text in sentences.affinity_findings(row)]
    body = "".join(inline_svg(figure, f"affinity-{number}") for number, figure in enumerate(shown))
    return "<h2>Affinity maps</h2>" + figure_html(body, figures.AFFINITY_CAPTION) + list_html(found)


def _spectra(collection: Collection, rows: list[RowRecord], score: str) -> str:
    examples = [(row.label, row.example.spectrum) for row in rows if row.example is not None]
    figure = figures.spectra(examples)
    if figure is None:
        return ""
    captions = dict.fromkeys(spectrum["caption"] for _, spectrum in examples if spectrum.get("stages"))
    found = [text for row in rows for text in sentences.spectrum_findings(row)]
    parts = [
        "<h2>Spectra of the learned weights</h2>",
        f"<p>{escape(PAPER_SPECTRA)}</p>",
        figure_html(inline_svg(figure, f"spectra-{score}"), " ".join(captions)),
        list_html(found),
    ]
    panels = collection.suite.panels if collection.suite is not None else ()
    for row in rows:
        chosen = [panel.epoch for panel in panels if panel.row == row.label and panel.epoch is not None]
        early = figures.epochs(row.example, chosen) if row.example is not None and chosen else None
        if early is not None:
            text = f"{row.label}: the same spectrum while training. No band is drawn: it was recorded without it."
            parts.append(figure_html(inline_svg(early, f"epochs-{row.label}"), text))
    return "".join(parts)


def _features(rows: list[RowRecord], score: str) -> str:
    figure = figures.features(rows)
    if figure is None:
        return ""
    found = [text for row in rows for text in sentences.feature_findings(row)]
    return (
        "<h2>The features through the stage</h2>"
        + figure_html(inline_svg(figure, f"features-{score}"), figures.FEATURES_CAPTION)
        + list_html(found)
    )


def _growth(rows: list[RowRecord]) -> str:
    found = growth_table(rows)
    if found is None:
        return ""
    return f"<h2>{GROWTH}</h2><p>{escape(ABOUT_GROWTH)}</p>{found.as_html()}"


def _recorded(runs: Table1Runs) -> str:
    if not runs.recorded:
        return ""
    text = (
        "Recorded, not trained now: the paper's networks on CIFAR-10, 164 epochs on a GPU. The records are in "
        "paper/results/, and paper/pages/ has what they say."
    )
    return f"<h2>The recorded runs on CIFAR-10</h2><p>{text}</p>{rows_table(runs.recorded).as_html()}"


def _colophon(collection: Collection) -> str:
    command = collection.plan.get("command")
    again = f"<p>This command makes it again:</p><pre>{escape(command)}</pre>" if command else ""
    facts = [sentences.time_sentence(collection), *sentences.machines(collection)]
    return f"<h2>How it was made</h2>{list_html(facts)}{again}"


def image_table(rows: Sequence[RowRecord]) -> str:
    """Return an HTML table, a line for each test image: clean, noisy, and restored by each row's network."""
    runs = [
        (row.label, row.example) for row in rows if row.example is not None and "noisy" in row.example.tensors
    ]
    if not runs:
        return ""
    first = runs[0][1]
    images, noisy = first.tensors["images"], first.tensors["noisy"]
    head = "".join(
        f'<th scope="col">{escape(label)}</th>' for label in ("clean", "noisy", *(label for label, _ in runs))
    )
    lines = []
    for number, image in enumerate(images):
        cells = [
            _cell(image, "clean", ""),
            _cell(to_pixels(noisy[number]), "noisy", _psnr(first, "noisy", number)),
        ]
        for label, run in runs:
            if "restored" in run.tensors:
                pixels = to_pixels(run.tensors["restored"][number])
                cells.append(_cell(pixels, f"restored by {label}", _psnr(run, "restored", number)))
            else:
                cells.append("<td>not finite</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table class="images"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def affinity_figures(rows: Sequence[RowRecord], count: int = 2) -> list[Figure]:
    """Draw for each of the first `count` images where each row's network looks from the marked position."""
    runs = [(row.label, row.example) for row in rows if row.example is not None]
    maps = [entry for label, run in runs for entry in _maps(label, run)]
    if not maps:
        return []
    source = maps[0][1]
    images = source.tensors["images"]
    made = []
    for number, image in enumerate(images[:count]):
        noisy = to_pixels(source.tensors["noisy"][number]) if "noisy" in source.tensors else None
        shown = [(label, position, values[number]) for label, _, position, values in maps]
        made.append(figures.affinity(image, noisy, shown))
    return made


def to_pixels(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return float [3, H, W] in [−1, 1] as uint8; values outside are clipped."""
    return np.clip(np.rint((values + 1) * 127.5), 0, 255).astype(np.uint8)


def _maps(label: str, run: RunRecord) -> list[tuple[str, RunRecord, list[int], NDArray[Any]]]:
    """(label, run, position, [K, h, w]) of every stage of a run whose map is finite."""
    found = []
    for stage in run.observations.get("affinity", []):
        values = run.tensors.get(f"affinity.{stage['stage']}")
        if values is not None:
            name = of_stage(run.recipe, stage["stage"])
            found.append((f"{label}{name}", run, stage["position"], values))
    return found


def _cell(pixels: NDArray[Any], text: str, below: str) -> str:
    return f'<td><img src="{image_address(pixels)}" alt="{escape(text, quote=True)}">{escape(below) or "&nbsp;"}</td>'


def _psnr(run: RunRecord, which: str, number: int) -> str:
    value = run.observations["psnr"][which][number]
    return "" if value is None else f"{value:.1f}"
