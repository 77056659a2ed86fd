"""write_page: one HTML page of a folder of runs: tables, curves, images, affinity maps, spectra, features."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from nonloc import __version__
from nonloc_paper.report import figures, sentences
from nonloc_paper.report.document import (
    Content,
    Details,
    Html,
    Picture,
    Section,
    figure_html,
    inline_svg,
    sections_page,
)
from nonloc_paper.report.records import Collection, RowRecord, of_stage, score_name
from nonloc_paper.report.signs import weights_at
from nonloc_paper.report.surprise import surprise
from nonloc_paper.report.table1 import rows_table
from nonloc_paper.report.table1_runs import Table1Runs
from nonloc_paper.report.tables import results_table
from nonloc_paper.report.trained_stages import ABOUT_GROWTH, GROWTH, energy_table, factors_table, growth_table
from nonloc_paper.runs import write_atomically

IMAGES_WITH_MAPS = 2
PAPER = "Tao, Sun, Du and Liu, “Nonlocal Neural Networks, Nonlocal Diffusion and Nonlocal Modeling”, 2018"

ABOUT = {
    "psnr": "Each image repeats one small motif, so that every pixel has copies far away. Noise was added, and "
    "networks were trained to take it away. A local network sees a neighbourhood. A nonlocal stage in its middle lets "
    "every position look at all others: the original block (Wang et al.) adds a weighted sum of all features, the "
    "diffusive stage of the paper adds weighted differences z_j − z_i, which is a step of a nonlocal diffusion. The "
    "score is the PSNR on test images that share no motif with the training images: higher is better.",
    "error": "Image classifiers with nonlocal blocks between their residual blocks. The original block (Wang et al.) "
    "adds a weighted sum of the features at all positions, the proposed stage adds weighted differences z_j − z_i, "
    "which is a step of a nonlocal diffusion. The score is the error on the test images after the last epoch: lower is "
    "better.",
}
ABOUT_TABLE = (
    "Seeds: those that ran to their end, which the median and the range are over. Runs that diverged or are missing "
    "are named, never left out. Seconds are the median run's, on the machine below."
)
RESTORED_CAPTION = (
    "Test images: clean, as the networks saw them, and as the first seed's network of each row restored them, with "
    "the PSNR of each image in dB. The noise of an image is the same for all networks."
)
PAPER_SPECTRA = (
    "The paper reports, for its classifiers on CIFAR-10, negative eigenvalues of the largest magnitude in original "
    "blocks (damping) and mostly positive ones in proposed blocks (diffusion). Here are the first seed's networks; a "
    "negative share outside what chance gives was learned. Each panel says how much of the energy Σλ² and how many of "
    "the eigenvalues shown are negative. Panels of a figure have one scale."
)
RECORDED = (
    "Recorded, not trained now: the paper's networks on CIFAR-10, 164 epochs on a GPU. The records are in "
    "paper/results/, and paper/pages/ has what they say."
)


def write_page(
    collection: Collection, output: str | os.PathLike[str] | None = None, recorded: Table1Runs | None = None
) -> Path:
    """Write the page of some runs; return its path.

    output    None: report.html in their folder
    recorded  runs on CIFAR-10 whose table the page shows, too
    """
    path = Path(output) if output is not None else collection.folder / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, sections_page(_sections(collection, recorded), collection.suite.title).encode())
    return path


def _sections(collection: Collection, recorded: Table1Runs | None) -> list[Section]:
    tasks = sorted({score_name(row.recipe) for row in collection.rows})
    notes = list(collection.suite.notes)
    if changes := collection.plan.get("changes"):
        notes.append(
            f"Changed for these runs: {', '.join(f'{key} = {value}' for key, value in changes.items())}."
        )
    notes += [f"{row.label}: {row.note}" for row in collection.rows if row.note]
    about = Html(f'<p class="soft">A report of nonloc {escape(__version__)} on {escape(PAPER)}.</p>')
    folded = (Details("Notes on these runs", (notes,)),) if notes else ()
    sections = [Section("", (about, *(text for task, text in ABOUT.items() if task in tasks), *folded))]
    sections.append(Section("The result", tuple(surprise(collection))))
    for score in tasks:
        rows = [row for row in collection.rows if score_name(row.recipe) == score]
        curves = figures.curves(rows) if any(row.started for row in rows) else None
        measured = sentences.findings(collection) if score == tasks[0] else []
        images, maps, growth = image_table(rows), affinity_figures(rows), growth_table(rows)
        shown = "".join(inline_svg(figure, f"affinity-{number}") for number, figure in enumerate(maps))
        looks = [text for row in rows for text in sentences.affinity_findings(row)]
        factors = Details("The numbers of every run", (factors_table(rows),))
        features = Picture(f"features-{score}", figures.features(rows), figures.FEATURES_CAPTION)
        sections += [
            Section(
                "Results", (results_table(collection, score), Html(f'<p class="soft">{ABOUT_TABLE}</p>'))
            ),
            Section("What was measured", (measured,)),
            Section("Training", (Picture(f"curves-{score}", curves, figures.CURVES_CAPTION),)),
            Section("Restored images", (Html(figure_html(images, RESTORED_CAPTION)),) if images else ()),
            Section(
                "Affinity maps", (Html(figure_html(shown, figures.AFFINITY_CAPTION)), looks) if shown else ()
            ),
            Section("Spectra of the learned weights", tuple(_spectra(collection, rows, score))),
            Section("The features through the stage", (features, factors) if features else ()),
            Section(GROWTH, (ABOUT_GROWTH, growth) if growth else ()),
        ]
    if recorded is not None and recorded.recorded:
        table = Details("Their table", (rows_table(recorded.recorded),))
        sections.append(Section("The recorded runs on CIFAR-10", (RECORDED, table)))
    facts: list[Content] = [[sentences.time_sentence(collection), *sentences.machines(collection)]]
    if command := collection.plan.get("command"):
        facts += ["This command makes it again:", Html(f"<pre>{escape(command)}</pre>")]
    return [*sections, Section("How it was made", tuple(facts))]


def _spectra(collection: Collection, rows: list[RowRecord], score: str) -> list[Content]:
    looked = [(row.label, next((run for run in row.started if weights_at(run)), None)) for row in rows]
    networks = [(label, run, weights_at(run)) for label, run in looked if run is not None]
    captions = dict.fromkeys(run.spectrum["caption"] for _, run, weights in networks if weights)
    if not captions:
        return []
    contents: list[Content] = [PAPER_SPECTRA, " ".join(captions)]
    for label, run, _ in networks:
        figure = figures.stage_spectra(run.spectrum.get("stages", []))
        early = [
            (f"epoch {epoch}", first)
            for epoch in collection.suite.epochs
            if (first := weights_at(run, epoch)[:1])
        ]
        text = f"{label}: the same spectrum while training. No band is drawn: it was recorded without it."
        contents += [
            Picture(f"spectra-{score}-{label}", figure, f"{label}."),
            Picture(f"epochs-{label}", figures.spectra([("", early)]), text),
        ]
    return [*contents, Details("The energies of every W", (energy_table(networks),))]


def image_table(rows: Sequence[RowRecord]) -> str:
    """Return an HTML table, a line for each test image: clean, noisy, and restored by each row's network."""
    runs = [
        (row.label, row.example) for row in rows if row.example is not None and "noisy" in row.example.tensors
    ]
    if not runs:
        return ""
    first = runs[0][1]
    labels = ("clean", "noisy", *(label for label, _ in runs))
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in labels)
    body = ""
    for number, image in enumerate(first.tensors["images"]):
        body += f"<tr>{_cell(image, 'clean', None)}"
        for label, run, name in (("noisy", first, "noisy"), *((*one, "restored") for one in runs)):
            if name in run.tensors:
                psnr = run.observations["psnr"][name][number]
                body += _cell(to_pixels(run.tensors[name][number]), label, psnr)
            else:
                body += f'<td data-label="{escape(label)}">not finite</td>'
        body += "</tr>"
    return f'<table class="images"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def affinity_figures(rows: Sequence[RowRecord]) -> list[Figure]:
    """Draw for each of the first images where each row's network looks from the marked position."""
    maps = []
    for label, run in ((row.label, row.example) for row in rows if row.example is not None):
        for stage in run.observations.get("affinity", []):
            values = run.tensors.get(f"affinity.{stage['stage']}")
            # A map that is not finite was not saved.
            if values is not None:
                maps.append(
                    (f"{label}{of_stage(run.recipe, stage['stage'])}", run, stage["position"], values)
                )
    if not maps:
        return []
    tensors = maps[0][1].tensors
    return [
        figures.affinity(
            image,
            to_pixels(tensors["noisy"][number]) if "noisy" in tensors else None,
            [(label, position, values[number]) for label, _, position, values in maps],
        )
        for number, image in enumerate(tensors["images"][:IMAGES_WITH_MAPS])
    ]


def to_pixels(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return float [3, H, W] in [−1, 1] as uint8; values outside are clipped."""
    return np.clip(np.rint((values + 1) * 127.5), 0, 255).astype(np.uint8)


def image_address(pixels: NDArray[Any], scale: int = 8) -> str:
    """Return the data: address of an image uint8 [3, H, W], each pixel enlarged to a square."""
    whole = pixels.transpose(1, 2, 0).repeat(scale, 0).repeat(scale, 1)
    buffer = io.BytesIO()
    Image.fromarray(whole).save(buffer, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _cell(pixels: NDArray[Any], label: str, psnr: float | None) -> str:
    below, name = "&nbsp;" if psnr is None else f"{psnr:.1f}", escape(label)
    return f'<td data-label="{name}"><img src="{image_address(pixels)}" alt="{name}">{below}</td>'
