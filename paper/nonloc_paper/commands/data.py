"""nonloc data: put a data set on this machine, or check the one that is there."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

from nonloc.cli.output import Output, add_output_arguments
from nonloc.outcomes import EXIT_DONE
from nonloc_paper.commands.parser import CommandParser, add_data_dir
from nonloc_paper.data import NAMES
from nonloc_paper.data.download import SOURCES

PARSER = CommandParser
SUMMARY = "download a data set, or check the one that is there"
DESCRIPTION = f"""\
Make sure that a data set is on this machine and sound. What is missing is downloaded from its official place;
an archive that lies in the folder already is used without a network. Every file is checked by size and SHA-1.

  nonloc data cifar10                     into NONLOC_DATA, or else the user's cache
  nonloc data cifar100 --data-dir data
  nonloc data motifs                      made on the spot, nothing to download

Data sets: {", ".join(NAMES)}. Exit codes: 0 there and sound; 1 cannot be had; 2 wrong usage; 4 a file is corrupt."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", help=f"one of {', '.join(NAMES)}")
    add_data_dir(parser)
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)
    is_made = options.name not in SOURCES

    from nonloc_paper.data import download, load

    folder = None
    if not is_made:
        folder = download(options.name, options.data_dir, progress=not output.is_quiet)
        output.talk(f"{folder}: all files are there, of the right size and SHA-1")
    dataset = load(options.name, options.data_dir)
    shape = list(dataset.train.images.shape[1:])
    classes = f"{dataset.num_classes} classes" if dataset.num_classes else "no labels"
    output.result(
        f"{options.name}: {len(dataset.train):,} training and {len(dataset.test):,} test images, "
        f"{shape[0]} × {shape[1]} × {shape[2]}, {classes}",
        {
            "name": options.name,
            "folder": None if folder is None else str(folder),
            "train": len(dataset.train),
            "test": len(dataset.test),
            "shape": shape,
            "classes": dataset.num_classes,
            "checks": ["made on the spot"] if is_made else ["size", "SHA-1"],
        },
    )
    return EXIT_DONE
