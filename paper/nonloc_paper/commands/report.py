"""nonloc report: one page from a folder of runs, or the whole reproduction from kept records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from nonloc.cli.output import Output, add_output_arguments
from nonloc.outcomes import EXIT_DONE
from nonloc_paper.commands.parser import CommandParser, add_optional
from nonloc_paper.paths import pages_folder, real_path, results_folder

PARSER = CommandParser
PAGE = b"<!doctype html"  # how a page begins
SUMMARY = "write pages from runs or kept records; trains nothing"
DESCRIPTION = """\
Read all run folders below FOLDER and write one self-contained page: table, curves, spectra, images, affinity maps.
Nothing is computed again, so it shows what the runs left: `nonloc reproduce` observes its runs as it goes, other
runs show their curves and what `nonloc spectrum` wrote.

From a folder of kept records (with table1/ or map/ in it, as paper/results/ has) it writes the reproduction of the
paper instead: verdicts, Table 1, Figures 1 to 4 and the trainability map as Markdown with SVG figures and long tables
as CSV, and all of it as one report.html. What is missing is named. A README.md next to the folder of pages gets the
results in short, if it has the marks "made by nonloc report" and "until here" as comments.

  nonloc report                                     paper/results/ -> paper/pages/
  nonloc report paper/results --output elsewhere
  nonloc report demo
  nonloc report demo --beside paper/results             with the recorded results on CIFAR-10 on the same page
  nonloc report runs --output runs.html

Exit codes: 0 written; 2 no runs there; 4 a run folder or a table holds a corrupt file."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        nargs="?",
        default=str(results_folder()),
        help="a folder with run folders in it, however deep, or kept records",
    )
    text = f"the page, null is FOLDER/report.html; of kept records the folder, null is {pages_folder()}"
    add_optional(parser, "--output", text, metavar="PATH")
    text = "kept records whose table of CIFAR-10 results a page of runs shows, too"
    add_optional(parser, "--beside", text, metavar="FOLDER")
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)

    from nonloc_paper.report.reproduction import has_records

    if options.beside is not None and not has_records(options.beside):
        raise ValueError(f"--beside {options.beside} has no kept records; name a folder that has")
    if has_records(options.folder):
        return _reproduction(options, output)

    from nonloc_paper.report.page import write_page
    from nonloc_paper.report.records import collect
    from nonloc_paper.report.sentences import summary, summary_text
    from nonloc_paper.report.table1_runs import read_table1_runs

    _check_page(Path(options.folder) / "report.html" if options.output is None else Path(options.output))
    collection = collect(options.folder)
    path = write_page(
        collection, options.output, None if options.beside is None else read_table1_runs(options.beside)
    )
    output.result(f"{summary_text(collection)}\n\n{path}", {**summary(collection), "report": str(path)})
    return EXIT_DONE


def _check_page(path: Path) -> None:
    """Refuse to replace what is no page: a folder, or a file of a run."""
    if path.is_dir():
        raise ValueError(f"--output {path} is a folder; name the page, such as {path / 'report.html'}")
    if path.is_file():
        with path.open("rb") as file:
            is_page = file.read(len(PAGE)).lower() == PAGE
        if not is_page:
            raise ValueError(f"--output {path} is there and is no page; name a new file")


def _reproduction(options: Namespace, output: Output) -> int:
    from nonloc_paper.report.reproduction import verdict_counts, write_reproduction

    folder = options.output if options.output is not None else str(pages_folder())
    records = real_path(options.folder)
    if records in (real_path(folder), *real_path(folder).parents):
        raise ValueError(f"--output {folder} is in the records {options.folder}; name a folder elsewhere")
    reproduction = write_reproduction(options.folder, folder)
    verdicts: list[dict[str, Any]] = []
    lines = []
    for claim, verdict in reproduction.verdicts:
        lines.append(f"“{claim.quote}”")
        same = {"claim": claim.key, "quote": claim.quote}
        for one in (verdict, *verdict.beside):
            lines.append(f"  {one.text}, {one.where}")
            verdicts.append(same | {"where": one.where, "verdict": one.text, "n": one.n})
    text = "\n".join([*lines, "", *verdict_counts(reproduction.verdicts), folder])
    output.result(text, {"verdicts": verdicts, "files": [str(path) for path in reproduction.files]})
    return EXIT_DONE
