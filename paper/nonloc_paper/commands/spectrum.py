"""nonloc spectrum: what the nonlocal stages of a run have learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from nonloc.cli.output import Output, add_output_arguments
from nonloc.outcomes import EXIT_DONE
from nonloc_paper.commands.parser import CommandParser, add_data_dir, add_optional
from nonloc_paper.paths import real_path
from nonloc_paper.runs import Run, write_atomically

PARSER = CommandParser
SUMMARY = "the spectra of the weights that a run has learned, as numbers and as a figure"
DESCRIPTION = """\
Take W of every nonlocal sub-block from the newest checkpoint of RUN and find the eigenvalues of (W + Wᵀ)/2. Writes
spectrum.json, spectrum.svg and spectrum.png, with the band that random weights of the same norm and rank give: for a
factored W the signs alone say nothing. With --output nothing in RUN is touched; without it, what RUN has recorded of
this step stays as it is. With --features, or if the run has been observed before (`nonloc reproduce`
does), features.svg and features.png show what the sub-blocks do to the norm, variance and Dirichlet energy of the
features that the first test images have there, and "along features" is the mean eigenvalue where they are: the
spectrum counts all directions alike, whether features have anything there or not.

  nonloc spectrum runs/four
  nonloc spectrum runs/four --features --data-dir data
  nonloc spectrum paper/results/table1/5-block-proposed/4 --output elsewhere
  nonloc spectrum demo/runs/motifs-restorer16-diffusive-4@2-seed0-818* --json

Exit codes: 0 written; 2 not a run folder, no weights there, or a network without nonlocal blocks; 4 damaged files."""

ALONG = (
    "Along features: ⟨g, ΔZ⟩ / ⟨g, g⟩ on the first test images, with ΔZ what a sub-block adds and g what the "
    "kernel brings. Without bias and batch norm it is the mean eigenvalue of sym(W), weighted by what the "
    "features have in each direction; the spectrum weighs all directions alike."
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="a run folder")
    add_optional(parser, "--output", "where all files go; null is the run folder", metavar="DIR")
    parser.add_argument(
        "--features", action="store_true", help="also look at features, on the first test images"
    )
    add_data_dir(parser, note=" (--features)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (--features)")
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)
    folder = Run.open(options.run)

    from nonloc.plots import png, svg
    from nonloc_paper.networks.spec import NetworkSpec
    from nonloc_paper.report import figures
    from nonloc_paper.report.records import RowRecord, read_run
    from nonloc_paper.training.machine import device_or_best
    from nonloc_paper.training.observe import FORMAT, observe, observe_spectra

    device = device_or_best(options.device)
    record = read_run(folder)
    network, seen = record.recipe.network, record.observations
    if NetworkSpec.parse(network).form is None:
        raise ValueError(f"{network} has no nonlocal blocks, so there are no weights to look at")
    place = Path(options.output) if options.output is not None else folder.path
    if real_path(place) != real_path(folder.path) and (place / folder.recipe_path.name).exists():
        raise ValueError(f"--output {place} is another run; name a folder that is none")
    if options.features and options.output is None and seen.get("format", FORMAT) != FORMAT:
        raise ValueError(
            f"{folder.path} was looked at by an older version, and that stays as it is; name a folder with --output"
        )
    place.mkdir(parents=True, exist_ok=True)
    spectrum = observe_spectra(folder, place)
    if options.features and spectrum["stages"]:
        seen = observe(folder, data_dir=options.data_dir, device=device, folder=place)
    record = replace(record, observations=seen)
    figure = figures.stage_spectra(spectrum["stages"])
    if figure is None:
        raise ValueError(f"{folder.path} has no weights that are finite, so there are none to look at")
    figure.suptitle(network, fontsize=10)
    pictures = {"spectrum": figure}
    # Features that were looked at before the run went on are those of another network.
    looked_at = record.observations.get("step") == spectrum["step"]
    trace = figures.features([RowRecord(network, record.recipe, (record,))]) if looked_at else None
    if trace is not None:
        pictures["features"] = trace
    elif not options.features:
        output.talk("features were not looked at; --features does, on the first test images")
    written = []
    for name, picture in pictures.items():
        for path, content in ((place / f"{name}.svg", svg(picture)), (place / f"{name}.png", png(picture))):
            write_atomically(path, content)
            written.append(str(path))
    output.result(
        _text(spectrum, record.observations if looked_at else {}, written),
        {"run": str(folder.path), **spectrum, "figures": written},
    )
    return EXIT_DONE


def _text(spectrum: dict[str, Any], observations: dict[str, Any], written: list[str]) -> str:
    lines = [f"after {spectrum['epoch']} epochs, step {spectrum['step']}"]
    traces = {one["name"]: one["blocks"] for one in observations.get("features", [])}
    explained: list[str] = []
    for stage in spectrum["stages"]:
        lines.append(f"{stage['name']} ({stage['form']})")
        quotients = [block.get("quotient") for block in traces.get(stage["name"], [])]
        more = "  along features" if any(value is not None for value in quotients) else ""
        explained = [ALONG] if more else explained
        lines.append(f"  block  largest   trace  random 95 %      negative share  random 95 %{more}")
        for number, weight in enumerate(stage["weights"], start=1):
            share = weight["negative_share"]
            trace_band = share_band = "–"
            if "band" in weight:
                (low, high), (least, most) = weight["band"]["trace"], weight["band"]["negative_share"]
                trace_band = f"{low:6.3f} … {high:5.3f}"
                share_band = f"{100 * least:.0f} … {100 * most:.0f} %"
            along = quotients[number - 1] if more else None
            lines.append(
                f"  {number:5d}  {weight['eigenvalues'][0]:7.3f} {weight['trace']:7.3f}  {trace_band:14}  "
                f"{'–' if share is None else f'{100 * share:.0f} %':>14}  {share_band:9}"
                f"{'' if along is None else f'{along:17.3f}'}"
            )
    return "\n".join([*lines, "", spectrum["caption"], *explained, "", *written])
