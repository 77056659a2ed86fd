"""Flipped bits and truncations in every file of a run folder: each is noticed, with the file's name, or harmless.

Harmless: the run ends with the same weights, metrics and spectra as the undamaged one, and `eval`, `spectrum` and
`report` then say what they say of that.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tiny import after_step, send_sigterm, tiny_data, tiny_recipe, train

from faults._children import ending
from faults.trial import Trial
from nonloc.outcomes import CorruptDataError
from nonloc_paper.report.records import read_run
from nonloc_paper.runs import Run
from nonloc_paper.suites.recheck import recheck
from nonloc_paper.training.certificates import certify_run
from nonloc_paper.training.observe import observe, observe_spectra

RECIPE = tiny_recipe(spectrum_epochs=(1,))
DATA = tiny_data()
GOALS = {"flips": 10_000, "truncations": 1_000}


def trials(chance: random.Random, folder: Path) -> Iterator[Trial]:
    whole, half = Run(folder / "whole"), Run(folder / "half")
    train(RECIPE, whole)
    observe(whole, DATA)
    certify_run(whole, DATA, keep=True)
    _interrupt(half)
    expected = {name: look(whole) for name, look in LOOKS.items()}
    while True:
        kind = "truncations" if chance.random() < 1 / 11 else "flips"
        source, run = chance.choice((whole, half)), Run(folder / "damaged")
        shutil.copytree(source.path, run.path)
        files = sorted(path for path in run.path.rglob("*") if path.is_file() and path.name != "lock")
        path = chance.choice(files)
        how = _damage(path, kind, chance)
        failure = _outcome(run, whole, expected, path)
        shutil.rmtree(run.path)
        yield Trial(kind, failure and f"{failure}; {source.name}/{path.relative_to(run.path)}, {how}")


def _interrupt(run: Run) -> None:
    import pytest

    with pytest.MonkeyPatch.context() as patched:
        after_step(patched, 12, send_sigterm)
        train(RECIPE, run)


def _damage(path: Path, kind: str, chance: random.Random) -> str:
    content = bytearray(path.read_bytes())
    if kind == "truncations":
        length = chance.randrange(len(content))
        path.write_bytes(content[:length])
        return f"cut to {length} bytes"
    place, bit = chance.randrange(len(content)), chance.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place}"


def _outcome(run: Run, whole: Run, expected: dict[str, Any], path: Path) -> str | None:
    """Resume, then look; return what went wrong."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        try:
            train(RECIPE, run)
            result = run.read_result()
        except Exception as error:
            return _unnamed(error, path, "resume")
        looks: dict[str, Any] = {}
        for name, look in LOOKS.items():
            try:
                looks[name] = look(run)
            except Exception as error:
                return _unnamed(error, path, name)
        if result["weights_sha256"] != whole.read_result()["weights_sha256"] or ending(run) != ending(whole):
            return "the end is another one, and nothing said so"
        for name, look in looks.items():
            # A run that was not looked at before has fewer things to report.
            same = look == (expected[name][: len(look)] if isinstance(look, tuple) else expected[name])
            if not same:
                return f"{name} says something else, and nothing said so"
    return None


def _unnamed(error: Exception, path: Path, where: str) -> str | None:
    """Return what is wrong with an error: its type, or that it does not name the damaged file or its twin."""
    if not isinstance(error, (CorruptDataError, ValueError, OSError)):
        return f"{where}: {type(error).__name__}: {error}"
    named = path.stem if path.parent.name == "checkpoints" else path.name
    return None if named in str(error) else f"{where}: an error that does not name {path.name}: {error}"


def _report(run: Run) -> tuple[object, ...]:
    record = read_run(run)
    tensors = {name: value.tobytes() for name, value in record.tensors.items()}
    seen = (record.score, record.ending, record.curve("test_loss"), record.spectra, record.recipe)
    if not record.observations:
        return seen
    return (*seen, record.observations, record.spectrum, record.stability, tensors)


LOOKS: dict[str, Callable[[Run], object]] = {
    "eval": lambda run: recheck(run, DATA, device="cpu").recomputed,
    "spectrum": observe_spectra,
    "report": _report,
}
