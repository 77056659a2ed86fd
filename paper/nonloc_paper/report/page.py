"""write_report: one HTML file that needs nothing else: no network, no script, readable in light and dark."""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from pathlib import Path

from nonloc import __version__
from nonloc_paper.report import figures, sentences
from nonloc_paper.report.kept import Kept
from nonloc_paper.report.pictures import affinity_figures, image_table
from nonloc_paper.report.records import Collection, RowRecord, collect, score_name
from nonloc_paper.report.style import inline
from nonloc_paper.report.table1 import rows_table
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

CSS = """
:root { color-scheme: light dark; --ink: #202428; --soft: #5b6470; --line: #d9dde2; --paper: #fdfdfc; --tint: #f1f3f5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ea; --soft: #a2abb5; --line: #3a4148; --paper: #16191c; --tint: #20252a; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; }
p, li { max-width: 46rem; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
figure { margin: 1rem 0; }
figcaption { max-width: 46rem; margin-top: .4rem; }
figure svg { max-width: 100%; height: auto; font-family: system-ui, sans-serif; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
.results th, .results td { padding: .35rem .55rem; text-align: right; border-bottom: 1px solid var(--line); }
.results th:first-child, .results td:first-child { text-align: left; padding-left: 0; }
.results thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
.results tbody th { font-weight: 600; white-space: nowrap; }
.results td { white-space: nowrap; }
.prose th, .prose td, .prose tbody th { text-align: left; white-space: normal; vertical-align: top; font-weight: 400; }
.prose th { min-width: 11rem; }
.results .group th { color: var(--soft); font-weight: 400; padding-top: .9rem; }
.images th { width: 6.8rem; padding: 0 .3rem .3rem; text-align: left; vertical-align: bottom; }
.images th { font-weight: 600; font-size: .8rem; line-height: 1.25; }
.images td { padding: .2rem .3rem; text-align: center; font-size: .8rem; color: var(--soft); }
.images img { display: block; width: 6.2rem; height: 6.2rem; image-rendering: pixelated; border-radius: 3px; }
code, pre { font: .88em/1.5 ui-monospace, monospace; background: var(--tint); border-radius: 4px; }
code { padding: .1em .3em; }
pre { padding: .7rem .9rem; overflow-x: auto; }
"""


def write_report(folder: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of all runs below `folder` to `output`, or to report.html in the folder; returns its path."""
    return write_page(collect(folder), output)


def write_page(
    collection: Collection, output: str | os.PathLike[str] | None = None, beside: Kept | None = None
) -> Path:
    """Write the page of a collection, as `write_report` does.

    beside  kept runs on CIFAR-10 whose table the page shows, too
    """
    path = Path(output) if output is not None else collection.folder / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page(collection, beside).encode())
    return path


def page(collection: Collection, beside: Kept | None = None) -> str:
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
        parts.append(_list(sentences.findings(collection)) if score == tasks[0] else "")
        if any(row.started for row in rows):
            parts.append(
                "<h2>Training</h2>"
                + _figure(inline(figures.curves(rows), f"curves-{score}"), figures.CURVES_CAPTION)
            )
        if score == "psnr":
            parts.append(_restored(rows))
        parts += [_affinities(rows), _spectra(collection, rows, score), _features(rows, score), _growth(rows)]
    parts += [_recorded(beside) if beside is not None else "", _colophon(collection)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


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
        + _list([*notes, *more])
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
    return "<h2>Restored images</h2>" + _figure(table, caption)


def _affinities(rows: list[RowRecord]) -> str:
    shown = affinity_figures(rows)
    if not shown:
        return ""
    found = [text for row in rows for text in sentences.affinity_findings(row)]
    body = "".join(inline(figure, f"affinity-{number}") for number, figure in enumerate(shown))
    return "<h2>Affinity maps</h2>" + _figure(body, figures.AFFINITY_CAPTION) + _list(found)


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
        _figure(inline(figure, f"spectra-{score}"), " ".join(captions)),
        _list(found),
    ]
    panels = collection.suite.panels if collection.suite is not None else ()
    for row in rows:
        chosen = [panel.epoch for panel in panels if panel.row == row.label and panel.epoch is not None]
        early = figures.epochs(row.example, chosen) if row.example is not None and chosen else None
        if early is not None:
            text = f"{row.label}: the same spectrum while training. No band is drawn: it was recorded without it."
            parts.append(_figure(inline(early, f"epochs-{row.label}"), text))
    return "".join(parts)


def _features(rows: list[RowRecord], score: str) -> str:
    figure = figures.features(rows)
    if figure is None:
        return ""
    found = [text for row in rows for text in sentences.feature_findings(row)]
    return (
        "<h2>The features through the stage</h2>"
        + _figure(inline(figure, f"features-{score}"), figures.FEATURES_CAPTION)
        + _list(found)
    )


def _growth(rows: list[RowRecord]) -> str:
    found = growth_table(rows)
    if found is None:
        return ""
    return f"<h2>{GROWTH}</h2><p>{escape(ABOUT_GROWTH)}</p>{found.as_html()}"


def _recorded(kept: Kept) -> str:
    if not kept.recorded:
        return ""
    text = (
        "Recorded, not trained now: the paper's networks on CIFAR-10, 164 epochs on a GPU. The records are in "
        "paper/results/, and paper/pages/ has what they say."
    )
    return (
        f"<h2>Beside it: the recorded runs on CIFAR-10</h2><p>{text}</p>{rows_table(kept.recorded).as_html()}"
    )


def _colophon(collection: Collection) -> str:
    command = collection.plan.get("command")
    again = f"<p>This command makes it again:</p><pre>{escape(command)}</pre>" if command else ""
    told = [sentences.time_sentence(collection), *sentences.machines(collection)]
    return f"<h2>How it was made</h2>{_list(told)}{again}"


def _figure(content: str, caption: str) -> str:
    return f'<figure><div class="scroll">{content}</div><figcaption>{escape(caption)}</figcaption></figure>'


def _list(items: Iterable[str]) -> str:
    entries = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{entries}</ul>" if entries else ""
