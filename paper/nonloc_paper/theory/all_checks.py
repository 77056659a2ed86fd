"""check_all: check every statement of the paper for each normalisation; counts and summary: the verdicts as text."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from nonloc._checks import check_whole, is_whole
from nonloc.ops import NORMALIZATIONS
from nonloc_paper.theory import discussion, sections, theorems
from nonloc_paper.theory.case import one_sided_case, symmetric_case
from nonloc_paper.theory.check import Check
from nonloc_paper.theory.continuum import continuum_checks

LEAST_POSITIONS = 4
STATEMENTS = (*theorems.TABLE, *sections.TABLE, *discussion.TABLE)
# Normalisations that take an Ω that is not symmetric.
ONE_SIDED = ("row", "count", "none")


def check_all(*, positions: int = 25, seed: int = 0) -> list[Check]:
    """Check every statement for every normalisation, then those about the continuum.

    positions  M of the discrete kernel, a heat kernel on scattered points
    seed       of the points and of the signals
    """
    check_whole("positions", positions, LEAST_POSITIONS)
    if not is_whole(seed) or abs(seed) >= 2**62:
        raise ValueError(f"seed must be a whole number of less than 63 bits, got {seed!r}")
    checks = []
    for normalize in NORMALIZATIONS:
        case = symmetric_case(normalize, positions, seed)
        checks += [statement(case) for statement in STATEMENTS]
        if normalize in ONE_SIDED:
            checks.append(theorems.stationary_mean_of_the_image(one_sided_case(normalize, positions, seed)))
    return checks + continuum_checks()


def all_as_expected(checks: Sequence[Check]) -> bool:
    """False if a statement fails under its hypothesis, if one that should fail as stated does not, or if no kernel
    meets the hypothesis of one."""
    return all(check.is_as_expected for check in checks) and not unmet_everywhere(checks)


def unmet_everywhere(checks: Sequence[Check]) -> list[str]:
    """Return the names of the statements whose hypothesis no kernel here meets: nothing was checked of them.

    A kernel that is wrong meets no hypothesis, and would otherwise pass everywhere.
    """
    said = {_topic(check) for check in checks if check.verdict != "hypothesis not met"}
    return list(dict.fromkeys(check.name for check in checks if _topic(check) not in said))


def _topic(check: Check) -> tuple[str, bool]:
    """The statement: one about the continuum has its name from that about the kernel."""
    return check.name, check.normalize == "continuum"


def counts(checks: Sequence[Check], width: int = 100) -> str:
    """Return how many checks hold, say nothing or fail as they must, in lines of at most `width`; and what is wrong."""
    unmet = sum(check.verdict == "hypothesis not met" for check in checks)
    failed = [check for check in checks if check.is_counterexample]
    wrong = [check for check in checks if not check.is_as_expected]
    names = list(dict.fromkeys(check.name.removesuffix(" as stated") for check in failed))
    held = len(checks) - unmet - len(failed) - len(wrong)
    lines = [
        f"{len(checks)} checks of what the paper says, for every normalisation and for the continuum:",
        f"{held:5d}  hold",
        f"{unmet:5d}  say nothing of this kernel: their hypothesis is not met",
    ]
    if failed:
        lines += [
            f"{len(failed):5d}  fail, as the counterexample must. These statements need more than the paper asks:",
            fill("; ".join(names), width, initial_indent=" " * 7, subsequent_indent=" " * 7),
        ]
    if wrong:
        lines.append(f"{len(wrong):5d}  are NOT AS EXPECTED:")
        lines += [
            f"       {check.name} ({check.normalize}): {check.statement}; {check.detail}" for check in wrong
        ]
    if never := unmet_everywhere(checks):
        lines.append(f"{len(never):5d}  say nothing at all, because no kernel here meets their hypothesis:")
        lines.append(fill("; ".join(never), width, initial_indent=" " * 7, subsequent_indent=" " * 7))
    return "\n".join(lines)


def summary(checks: Sequence[Check]) -> str:
    """Return a table of statements by normalisations, and below it what the statements marked * need."""
    columns = list(dict.fromkeys(check.normalize for check in checks))
    rows = list(dict.fromkeys(check.name for check in checks))
    cells = {(check.name, check.normalize): _mark(check) for check in checks}
    width = max((len(row) for row in rows), default=0)
    lines = []
    for row in ("", *rows):
        texts = [cells.get((row, column), "") if row else column for column in columns]
        padded = (text.ljust(max(len(column), 6)) for text, column in zip(texts, columns, strict=True))
        lines.append("  ".join([row.ljust(width), *padded]).rstrip())
    lines += ["", "–  the hypothesis is not met    *  as the paper states it; what it needs:"]
    failed = [check for check in checks if check.is_counterexample]
    # The numbers of one normalisation are enough to see why.
    for name in dict.fromkeys(check.name for check in failed):
        check = next(check for check in failed if check.name == name)
        lines.append(f"*  {check.name} ({check.normalize}): {check.detail}")
    wrong = [check for check in checks if not check.is_as_expected]
    lines += [f"!! {check.name} ({check.normalize}): {check.statement}; {check.detail}" for check in wrong]
    never = unmet_everywhere(checks)
    lines += [f"!! {name}: no kernel here meets its hypothesis" for name in never]
    held = sum(check.verdict == "holds" and check.is_as_expected for check in checks)
    unmet = sum(check.verdict == "hypothesis not met" for check in checks)
    counts = f"{held} hold, {len(failed)} fail as they must, {unmet} without their hypothesis"
    count = len(wrong) + len(never)
    ending = f"{count} NOT AS EXPECTED" if count else "all as expected"
    return "\n".join([*lines, "", f"{len(checks)} checks: {counts}; {ending}"])


def _mark(check: Check) -> str:
    if check.verdict == "hypothesis not met":
        return "–"
    mark = f"{check.verdict}{'*' * check.is_counterexample}"
    return mark if check.is_as_expected else mark.upper()
