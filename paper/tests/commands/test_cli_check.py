"""nonloc check: every statement in the text, and an exit code for a failure."""

import json
from dataclasses import replace

import pytest

from nonloc.cli import main
from nonloc_paper.theory.check import Check

HOLDS = Check("Theorem 0", "all is well", "none", "row", "holds", 1e-16, "by nothing")


def test_a_hypothesis_is_shown_again_where_it_is_another(monkeypatch, capsys):
    other = replace(HOLDS, hypothesis="ρ symmetric", normalize="continuum")
    checks = [HOLDS, replace(HOLDS, normalize="none"), other]
    monkeypatch.setattr("nonloc_paper.theory.all_checks.check_all", lambda **_: checks)
    main(["check"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == [
        "hypothesis:",
        "row",
        "none",
        "hypothesis:",
        "continuum",
    ]


@pytest.mark.parametrize(("verdict", "code"), [("holds", 0), ("fails", 1), ("hypothesis not met", 0)])
def test_every_statement_is_shown_and_a_failure_under_its_hypothesis_is_exit_1(
    verdict, code, monkeypatch, capsys
):
    checks = [HOLDS, Check("Theorem 1", "z = 0", "z small", "row", verdict, 0.5, "by a half")]
    monkeypatch.setattr("nonloc_paper.theory.all_checks.check_all", lambda **_: checks)
    assert main(["check"]) == code
    text = capsys.readouterr().out
    assert "Theorem 1: z = 0\n    hypothesis: z small\n" in text
    assert text.count("residual") == 2
    assert verdict in text
    assert main(["check", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["as_expected"] is (code == 0)
