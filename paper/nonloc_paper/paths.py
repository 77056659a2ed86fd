"""Where records and pages are: in the checkout, or where NONLOC_RESULTS says. No torch."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "NONLOC_RESULTS"
HOME = Path(__file__).parents[1]  # of a checkout: paper/


def results_folder() -> Path:
    """Return the folder of the kept records: NONLOC_RESULTS, else the checkout's, else ./results."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    return _in_checkout("results")


def pages_folder() -> Path:
    """Return the folder that `nonloc report` writes pages to: the checkout's, else ./pages."""
    return _in_checkout("pages")


def recorded_demo() -> Path:
    """Return the folder of the checkout with a trained network of the demo."""
    return _in_checkout("experiments") / "demo"


def _in_checkout(name: str) -> Path:
    """A folder of the checkout, as short as the working directory allows."""
    if not (HOME / "pyproject.toml").is_file():
        return Path(name)
    whole = HOME / name
    return whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path without links; a loop of links stays as it is, where Path.resolve may raise."""
    return Path(os.path.realpath(path))
