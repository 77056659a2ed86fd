"""Verdicts: from the parts of a claim, each held by the numbers or not, to one word. No torch, no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
DEPENDS = "depends on"
UNDECIDED = "undecided"

DELTA = 0.2  # points of error: two networks that differ by less are level


@dataclass(frozen=True)
class Part:
    """One comparison that a claim rests on.

    holds    True or False as the rule decides, None where the numbers leave it open
    n        how many pairs of runs, or runs, it was decided on; 0 where there are none
    numbers  what was measured, for readers
    varies   what the answer changes with inside the part, such as "the seed"; "" for nothing
    moot     why there is nothing to decide, or only one way that it can be; "" where it is open both ways
    left     how many of the pairs or runs that were planned are missing; None where that is not known
    """

    name: str
    holds: bool | None
    n: int
    numbers: str
    varies: str = ""
    moot: str = ""
    left: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What the runs say about a claim.

    word   one of REPRODUCED, NOT_REPRODUCED, DEPENDS, UNDECIDED
    on     what it depends on
    n      the smallest number of runs or pairs that a part of it rests on
    parts  (condition, part) for all that was measured, the default protocol first
    beside what was measured to read them by, and decided nothing
    """

    word: str
    n: int
    parts: tuple[tuple[str, Part], ...]
    on: str = ""
    beside: tuple[Part, ...] = ()

    @property
    def text(self) -> str:
        if self.word == DEPENDS:
            return f"{DEPENDS} {self.on}"
        return f"{UNDECIDED} at n = {self.n}" if self.word == UNDECIDED else self.word

    @property
    def failed(self) -> list[str]:
        """The names of the parts that do not hold at the default protocol."""
        return [part.name for part in self._here if part.holds is False]

    @property
    def left_open(self) -> str:
        """Why it is undecided, and what is decided nevertheless; "" for any other verdict."""
        if self.word != UNDECIDED:
            return ""
        told = [part.moot for part in self._here if part.moot and part.holds is None]
        absent = [part.name for part in self._here if not part.n]
        if self.failed:
            told.append(
                f"it fails for {'; '.join(self.failed)}, so it cannot come out as reproduced any more"
            )
        if absent:
            told.append(f"not measured yet: {'; '.join(absent)}")
        told += self._planned
        return ". ".join(text[0].upper() + text[1:] for text in told) or "More measurements would tell"

    @property
    def _planned(self) -> list[str]:
        """Of the parts that the numbers leave open: which wait for planned runs, and which have all of them."""
        waiting = [part for part in self._here if part.holds is None and part.n]
        missing = [part.name for part in waiting if part.left]
        whole = [part.name for part in waiting if part.left == 0]
        told = [f"planned runs are missing for {'; '.join(missing)}"] if missing else []
        if whole:
            these = "" if len(whole) == len(self._here) else f" for {'; '.join(whole)}"
            told.append(f"all planned runs are recorded{these}, and leave it open")
        return told

    @property
    def _here(self) -> list[Part]:
        return [part for condition, part in self.parts if condition == self.parts[0][0]]


def settle(
    parts: Sequence[Part],
    elsewhere: Mapping[tuple[str, str], Sequence[Part]] | None = None,
    *,
    varies: str = "the number of blocks",
    protocol: str = "default protocol",
) -> Verdict:
    """The verdict on a claim from its parts at the default protocol and, beside it, under other conditions.

    parts      all of them have to hold for "reproduced", none for "not reproduced"
    elsewhere  by (what was changed, to what), such as ("the initialisation", "deviation 0.07"): opposite if all
               parts that are decided there go the other way; those that were not measured are not told
    varies     what the claim depends on if some parts hold and others do not
    """
    told = [(protocol, part) for part in parts]
    others = {}
    for (kind, value), found in (elsewhere or {}).items():
        told += [(value, part) for part in found if part.n]
        others[kind, value] = state([part for part in found if part.holds is not None])
    here = state(parts)
    n = min((part.n for part in parts), default=0)
    everything = tuple(told)
    if here == "mixed":
        return Verdict(DEPENDS, n, everything, varies)
    changed = [part.varies for part in parts if part.varies]
    if here == "open":
        return Verdict(DEPENDS, n, everything, changed[0]) if changed else Verdict(UNDECIDED, n, everything)
    opposite = [kind for (kind, _), found in others.items() if {found, here} == {"yes", "no"}]
    if opposite:
        return Verdict(DEPENDS, n, everything, opposite[0])
    return Verdict(REPRODUCED if here == "yes" else NOT_REPRODUCED, n, everything)


def state(parts: Sequence[Part]) -> str:
    """ "yes" if all hold, "no" if none does, "mixed" if some do and some do not, "open" while that is not known."""
    answers = {part.holds for part in parts}
    if {True, False} <= answers:
        return "mixed"
    if not answers or None in answers:
        return "open"
    return "yes" if True in answers else "no"
