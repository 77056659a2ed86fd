"""nonloc explore: a folder with a page to touch, from kept records."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from nonloc.cli.output import Output, add_output_arguments
from nonloc.outcomes import EXIT_DONE
from nonloc_paper.commands.parser import CommandParser, add_optional
from nonloc_paper.paths import results_folder
from nonloc_paper.suites.rows import PLAN

DEMO = "demo"
PARSER = CommandParser
SUMMARY = "write a page to touch: affinities, live diffusion, training, the map, the tables"
DESCRIPTION = """\
Write a folder with a page that works from disk and from any web server, and asks the network for nothing. Open its
index.html. Data comes from the records; networks are only run on a few drawn pictures. Where `make demo` has left a
folder demo/, its networks are shown, too, and first.

  nonloc explore                        paper/results/ and demo/ -> explorer/
  nonloc explore docs/explorer
  nonloc explore --demo elsewhere       with the networks of a demo elsewhere

Exit codes: 0 written; 2 no records there, or the folder is something else; 4 a record is corrupt."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("out", nargs="?", default="explorer", help="the folder to write")
    parser.add_argument(
        "--records", default=str(results_folder()), metavar="FOLDER", help="the folder of kept records"
    )
    add_optional(
        parser, "--demo", "the folder of a finished demo; null is demo/, if it is there", metavar="FOLDER"
    )
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)

    from nonloc_paper.explorer.build import write_explorer

    demo = options.demo or (DEMO if Path(DEMO, PLAN).is_file() else None)
    files = write_explorer(options.out, options.records, demo=demo)
    size = sum(path.stat().st_size for path in files)
    page = str(Path(options.out) / "index.html")
    output.result(
        f"{page}: {len(files)} files, {size / 1e6:.1f} MB",
        {"page": page, "files": [str(path) for path in files], "bytes": size},
    )
    return EXIT_DONE
