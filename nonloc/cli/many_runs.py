"""The options of commands that train many runs."""

from __future__ import annotations

from jsonargparse import ArgumentParser


def add_many_runs_arguments(parser: ArgumentParser) -> None:
    """How long, how many at once, what to change in all recipes, where, and on which data."""
    parser.add_argument(
        "--budget", type=str | None, default=None, help="stop, saved, after so long: 90s, 25m, 2h"
    )
    parser.add_argument(
        "--side_by_side",
        type=int | None,
        default=None,
        metavar="K",
        help="runs under way at once; null is 1 on the CPU and a measured number on CUDA",
    )
    parser.add_argument(
        "--set",
        type=str,
        nargs="+",
        action="extend",
        default=[],
        metavar="FIELD=VALUE",
        help="change fields of all recipes",
    )
    parser.add_argument(
        "--device", type=str | None, default=None, help="cpu or cuda; null is cuda where there is one"
    )
    parser.add_argument(
        "--data_dir", type=str | None, default=None, metavar="DIR", help="where the data sets are"
    )
