"""nonloc check: every theorem of the paper as a check that can fail."""

from __future__ import annotations

from typing import Any

from jsonargparse import ArgumentParser, Namespace

from nonloc._checks import check_memory, shown
from nonloc.cli.output import Output, add_output_arguments
from nonloc.outcomes import EXIT_DONE, EXIT_FAILED
from nonloc_paper.commands.parser import CommandParser

MATRICES = 100  # of all pairs of positions, in float64, that all checks together keep
PARSER = CommandParser
SUMMARY = "check the paper's propositions and theorems numerically, for every normalisation"
DESCRIPTION = """\
Check every statement of the paper, and print how many hold. Some need more than the paper asks: as stated they must
fail, on a counterexample, and that is expected. With --all, print every statement with its hypothesis, and for each
normalisation the verdict (holds, fails, hypothesis not met) and the residual; then one table of all verdicts, with
what the statements that fail as stated (*) need.

  nonloc check
  nonloc check --all
  nonloc check --positions 60 --seed 3 --json

Exit codes: 0 every verdict is the expected one; 1 something fails under its hypothesis, or no kernel here meets the
hypothesis of a statement."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--positions", type=int, default=25, help="number of positions M of the discrete problems"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random problems")
    parser.add_argument("--all", action="store_true", help="every statement, and the table of all verdicts")
    add_output_arguments(parser)


def run(options: Namespace) -> int:
    output = Output(options)
    check_memory(
        f"--positions {shown(options.positions)}", MATRICES * 8 * options.positions**2, "use fewer positions"
    )

    import shutil
    from dataclasses import asdict

    import torch

    from nonloc_paper.theory.all_checks import all_as_expected, check_all, counts, summary

    # Thousands of products of small matrices: a second thread has nothing to do in them but wait, and on a machine
    # that is busy elsewhere everything waits for it.
    torch.set_num_threads(1)
    checks = check_all(positions=options.positions, seed=options.seed)
    good = all_as_expected(checks)
    if options.all:
        text = f"{_statements(checks)}\n\n{summary(checks)}"
    else:
        ending = "All is as expected. `nonloc check --all` shows every statement." if good else ""
        text = f"{counts(checks, min(100, shutil.get_terminal_size().columns))}\n\n{ending}".rstrip()
    output.result(text, {"as_expected": good, "checks": [asdict(check) for check in checks]})
    return EXIT_DONE if good else EXIT_FAILED


def _statements(checks: list[Any]) -> str:
    """Each statement once, with its hypotheses, and a verdict and a residual for each normalisation."""
    parts = []
    for name in dict.fromkeys(check.name for check in checks):
        same = [check for check in checks if check.name == name]
        lines, hypothesis = [f"{name}: {same[0].statement}"], None
        for check in same:
            if check.hypothesis != hypothesis:
                hypothesis = check.hypothesis
                lines.append(f"    hypothesis: {hypothesis}")
            verdict = f"{check.verdict}{'*' * check.is_counterexample}"
            lines.append(f"    {check.normalize:<10} {verdict:<19} residual {check.residual:.1e}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
