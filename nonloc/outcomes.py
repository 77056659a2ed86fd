"""How things end: outcomes as values with a human sentence, our exceptions, and the exit codes.

In this paper non-convergence is a result, so a diverged run is an `Outcome`, not a crash.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

ENDINGS = {
    "finished": "ran to its end",
    "diverged": "diverged: its values did not stay finite, or were on their way out",
    "interrupted": "was interrupted after saving; the same command continues it",
}

RECORDED = {"finished": "converged"}  # the spelling in files, which is older than the one in Python

# The process exit codes of every command. 128 + signal number is the shell's own convention.
EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DIVERGED = 3
EXIT_CORRUPT = 4
EXIT_LOCKED = 5
EXIT_SIGINT = 130
EXIT_SIGPIPE = 141


@dataclass(frozen=True)
class Outcome:
    """How a run or a simulation ended: "finished", "diverged" or "interrupted".

    Files say "converged" for "finished"; both spellings are accepted. `epoch` and `step` say where it ended: for a
    diverged run, the first step (counted from 0 over the whole run) whose loss was not finite. `metrics` holds the last
    numbers that were measured.

    >>> from nonloc import Outcome
    >>> Outcome("diverged", epoch=2, step=700).sentence
    'The run diverged: its values did not stay finite, or were on their way out (epoch 2, step 700).'
    """

    ending: str
    epoch: int = 0
    step: int = 0
    message: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ending == RECORDED["finished"]:
            object.__setattr__(self, "ending", "finished")
        if self.ending not in ENDINGS:
            raise ValueError(f"ending={self.ending!r} is not one of {', '.join(ENDINGS)}")

    @property
    def sentence(self) -> str:
        text = f"The run {ENDINGS[self.ending]} (epoch {self.epoch}, step {self.step})."
        return f"{text} {self.message}" if self.message else text

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a file."""
        return asdict(self) | {"ending": recorded_ending(self.ending)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Outcome:
        """The inverse of `to_dict`; what a later version may have added is left out."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


def recorded_ending(ending: str) -> str:
    """Return the spelling of an ending that files use."""
    return RECORDED.get(ending, ending)


class NonlocError(Exception):
    """Base of what nonloc raises for reasons other than a wrong argument (that is a ValueError)."""

    exit_code = EXIT_FAILED


class DivergedError(NonlocError):
    """A run or simulation stopped being finite, and the caller asked for `throw=True`."""

    exit_code = EXIT_DIVERGED

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.sentence)
        self.outcome = outcome


class CorruptDataError(NonlocError):
    """A file is there but is not what it should be; the message names the file and the fix."""

    exit_code = EXIT_CORRUPT


class MissingDataError(NonlocError):
    """A data set is not on this machine; the message says what to download and where to put it."""


class LockedRunError(NonlocError):
    """Another process is working in the run folder."""

    exit_code = EXIT_LOCKED
