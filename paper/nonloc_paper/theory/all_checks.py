"""check_all: every statement of the paper as a check, for each normalisation, with its hypothesis looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nonloc._checks import check_whole, is_whole
from nonloc.ops import NORMALIZATIONS, Affinity
from nonloc_paper.theory import (
    continuum,
    continuum_modelling,
    flow,
    markov,
    operator,
    original,
    reaction,
    reversal,
    steps,
)
from nonloc_paper.theory.case import Case, random_signal, scattered_points
from nonloc_paper.theory.check import Check

__all__ = ["Check", "all_as_expected", "check_all", "summary"]

LEAST_POSITIONS = 4
CHANNELS = 3
# Positions are about 1 apart: neighbours see each other, and the kernel is clearly positive definite.
SCALE = 0.5
# What is asked of a symmetric kernel, in the order of the paper.
STATEMENTS = (
    operator.constants_do_not_move,
    operator.mean_of_the_image,
    operator.weighted_mean_of_the_image,
    operator.form_is_positive,
    operator.weighted_form_is_the_energy,
    flow.mean_is_preserved,
    flow.weighted_mean_is_preserved,
    flow.flow_tends_to_the_mean,
    flow.flow_tends_to_the_weighted_mean,
    flow.variance_decreases,
    flow.weighted_variance_decreases,
    flow.poincare_inequality,
    flow.decay_is_exponential,
    steps.symmetric_part_decides_as_stated,
    steps.symmetric_part_decides_the_flow,
    operator.symmetric_with_rows_of_one,
    steps.stage_is_a_diffusion,
    reversal.reversal_is_stable_in_finite_time,
    markov.columns_sum_to_one,
    markov.two_forms_are_one,
    markov.probability_is_conserved,
    steps.steps_up_to_the_limit_are_stable,
    steps.small_weights_are_stable_as_stated,
    original.only_steady_state_is_zero_as_stated,
    original.only_steady_state_is_zero,
    original.original_flow_is_damped,
    original.original_flow_grows,
    original.growth_is_infinite_in_finite_time,
    reaction.diffusion_regularizes,
    reaction.diffusion_regularizes_as_stated,
)
# Normalisations that take an Ω that is not symmetric.
ONE_SIDED = ("row", "count", "none")
MARKS = {"holds": "holds", "fails": "FAILS", "hypothesis not met": "–"}
EXPECTED_FAILURE = "fails*"


def check_all(
    *, positions: int = 25, seed: int = 0, normalizations: Sequence[str] = NORMALIZATIONS
) -> list[Check]:
    """Every statement for every normalisation asked for, then those about the continuum.

    positions       M of the discrete kernel, a heat kernel on scattered points
    seed            of the points and of the signals
    normalizations  of "row", "count", "none", "symmetric" and "sinkhorn"
    """
    check_whole("positions", positions, LEAST_POSITIONS)
    if not is_whole(seed) or abs(seed) >= 2**62:
        raise ValueError(f"seed must be a whole number of less than 63 bits, got {seed!r}")
    if isinstance(normalizations, str):
        normalizations = (normalizations,)
    for normalize in normalizations:
        if normalize not in NORMALIZATIONS:
            raise ValueError(
                f"normalizations has {normalize!r}, which is unknown; choose from {', '.join(NORMALIZATIONS)}"
            )
    checks = []
    for normalize in normalizations:
        case = symmetric_case(normalize, positions, seed)
        checks += [statement(case) for statement in STATEMENTS]
        if normalize in ONE_SIDED:
            checks.append(operator.stationary_mean_of_the_image(one_sided_case(normalize, positions, seed)))
    return checks + continuum_checks()


def symmetric_case(normalize: str, positions: int, seed: int) -> Case:
    """One set of points on both sides."""
    points = scattered_points(positions, seed)
    affinity = Affinity(points, points, "heat", normalize, SCALE)
    return Case.of(affinity, random_signal(positions, CHANNELS, seed + 1))


def one_sided_case(normalize: str, positions: int, seed: int) -> Case:
    """Two sets of points, as separate embeddings give."""
    affinity = Affinity(
        scattered_points(positions, seed), scattered_points(positions, seed + 1), "heat", normalize, SCALE
    )
    return Case.of(affinity, random_signal(positions, CHANNELS, seed + 1))


def continuum_checks() -> list[Check]:
    """The statements about the integral operator."""
    smooth = continuum.smooth_continuum()
    return [
        *continuum.operator_statements(smooth),
        *continuum.flow_statements(smooth),
        *continuum.poincare_statements(),
        *continuum_modelling.hilbert_schmidt_statements(),
        *continuum_modelling.reversal_statements(),
        *continuum_modelling.cell_statements(),
    ]


def all_as_expected(checks: Iterable[Check]) -> bool:
    """False if a statement fails under its hypothesis, or if one that should fail as stated does not."""
    return all(check.is_as_expected for check in checks)


def summary(checks: Sequence[Check]) -> str:
    """The checks as a table, statements by normalisations, and below it what the statements marked * need."""
    columns = list(dict.fromkeys(check.normalize for check in checks))
    rows = list(dict.fromkeys(check.name for check in checks))
    cells = {(check.name, check.normalize): _mark(check) for check in checks}
    width = max([len(row) for row in rows], default=0)
    sizes = [max(len(column), len(EXPECTED_FAILURE)) for column in columns]
    lines = [_line("", columns, width, sizes)]
    for row in rows:
        lines.append(_line(row, [cells.get((row, column), "") for column in columns], width, sizes))
    lines += ["", "–  the hypothesis is not met    *  as the paper states it; what it needs:"]
    failed = [check for check in checks if check.verdict == check.expected == "fails"]
    for name in dict.fromkeys(check.name for check in failed):
        # The numbers of one normalisation are enough to see why.
        check = next(check for check in failed if check.name == name)
        lines.append(f"*  {name} ({check.normalize}): {check.detail}")
    wrong = [check for check in checks if not check.is_as_expected]
    lines += [f"!! {check.name} ({check.normalize}): {check.statement}; {check.detail}" for check in wrong]
    return "\n".join([*lines, "", _count(checks, len(wrong))])


def _mark(check: Check) -> str:
    if check.verdict == check.expected == "fails":
        return EXPECTED_FAILURE
    return MARKS[check.verdict] if check.is_as_expected else MARKS[check.verdict].upper()


def _line(name: str, cells: Sequence[str], width: int, sizes: Sequence[int]) -> str:
    padded = [cell.ljust(size) for cell, size in zip(cells, sizes, strict=True)]
    return "  ".join([name.ljust(width), *padded]).rstrip()


def _count(checks: Sequence[Check], wrong: int) -> str:
    held = sum(check.verdict == "holds" and check.is_as_expected for check in checks)
    failed = sum(check.verdict == "fails" and check.is_as_expected for check in checks)
    unmet = sum(check.verdict == "hypothesis not met" for check in checks)
    told = f"{len(checks)} checks: {held} hold, {failed} fail as they must, {unmet} without their hypothesis"
    return f"{told}; all as expected" if wrong == 0 else f"{told}; {wrong} NOT AS EXPECTED"
