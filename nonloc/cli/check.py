"""nonloc check: every theorem of the paper as a check that can fail."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

from nonloc.cli.output import Output, add_output_arguments
from nonloc.outcomes import EXIT_DONE, EXIT_FAILED

SUMMARY = "check the paper's propositions and theorems numerically, for every normalisation"
DESCRIPTION = """\
Print a table: statement, hypothesis, normalisation, verdict (holds, fails, hypothesis not met) and residual. Statements
that need more than the paper asks are shown failing as stated and holding with what they need; the last column says
which verdict is expected.

  nonloc check
  nonloc check --positions 60 --seed 3 --json

Exit codes: 0 every verdict is the expected one; 1 something fails under its hypothesis."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--positions", type=int, default=40, help="number of positions M of the discrete problems"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random problems")
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)

    from dataclasses import asdict

    from nonloc.processes.theory import all_as_expected, check_all, summary

    checks = check_all(positions=options.positions, seed=options.seed)
    good = all_as_expected(checks)
    output.result(
        f"{summary(checks)}\n\n{'All verdicts are as expected.' if good else 'Something fails under its hypothesis.'}",
        {"as_expected": good, "checks": [asdict(check) for check in checks]},
    )
    return EXIT_DONE if good else EXIT_FAILED
