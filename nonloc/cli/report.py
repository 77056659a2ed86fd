"""nonloc report: one page from a folder of runs."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

from nonloc.cli.output import Output, add_output_arguments
from nonloc.outcomes import EXIT_DONE

SUMMARY = "write one HTML page from a folder of runs; trains nothing"
DESCRIPTION = """\
Read all run folders below FOLDER and write one self-contained page: table, curves, spectra, images, affinity maps.
Nothing is computed again, so it shows what the runs left: `nonloc reproduce` observes its runs as it goes, other
runs show their curves and what `nonloc spectrum` wrote.

  nonloc report demo
  nonloc report runs --output runs.html

Exit codes: 0 written; 2 no runs there; 4 a run folder holds a corrupt file."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", help="a folder with run folders in it, however deep")
    parser.add_argument(
        "--output", type=str | None, default=None, metavar="FILE", help="the page; null is FOLDER/report.html"
    )
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)

    from nonloc.report.page import write_page
    from nonloc.report.records import collect
    from nonloc.report.summary import summary, summary_text

    collection = collect(options.folder)
    path = write_page(collection, options.output)
    output.result(f"{summary_text(collection)}\n\n{path}", {**summary(collection), "report": str(path)})
    return EXIT_DONE
