"""The commands. A new one is a module with `add_arguments` and `run`, and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jsonargparse import ArgumentParser, Namespace

from nonloc.cli import bench, check, data, eval, map, report, reproduce, simulate, spectrum, stability, train


@dataclass(frozen=True)
class Command:
    """One subcommand.

    summary        one line for `nonloc --help`
    description    for `nonloc <command> --help`: what it does, examples, exit codes
    add_arguments  puts its options into a parser
    run            does it and returns the exit code
    """

    summary: str
    description: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]


COMMANDS: dict[str, Command] = {
    "train": Command(train.SUMMARY, train.DESCRIPTION, train.add_arguments, train.run),
    "spectrum": Command(spectrum.SUMMARY, spectrum.DESCRIPTION, spectrum.add_arguments, spectrum.run),
    "reproduce": Command(reproduce.SUMMARY, reproduce.DESCRIPTION, reproduce.add_arguments, reproduce.run),
    "map": Command(map.SUMMARY, map.DESCRIPTION, map.add_arguments, map.run),
    "eval": Command(eval.SUMMARY, eval.DESCRIPTION, eval.add_arguments, eval.run),
    "report": Command(report.SUMMARY, report.DESCRIPTION, report.add_arguments, report.run),
    "stability": Command(stability.SUMMARY, stability.DESCRIPTION, stability.add_arguments, stability.run),
    "check": Command(check.SUMMARY, check.DESCRIPTION, check.add_arguments, check.run),
    "simulate": Command(simulate.SUMMARY, simulate.DESCRIPTION, simulate.add_arguments, simulate.run),
    "bench": Command(bench.SUMMARY, bench.DESCRIPTION, bench.add_arguments, bench.run),
    "data": Command(data.SUMMARY, data.DESCRIPTION, data.add_arguments, data.run),
}
