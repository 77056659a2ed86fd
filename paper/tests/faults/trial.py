"""Trial: one thing that was broken on purpose, and what came of it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Trial:
    """One trial.

    kind     which sort, a key of the file's GOALS
    failure  what went wrong, in one line that is enough to repeat it; None if all was as promised
    """

    kind: str
    failure: str | None = None
