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
    main(["check", "--all"])
    lines = capsys.readouterr().out.splitlines()
    first_words = [line.split()[0] for line in lines[1:6]]
    assert first_words == ["hypothesis:", "row", "none", "hypothesis:", "continuum"]


@pytest.mark.parametrize(("verdict", "code"), [("holds", 0), ("fails", 1), ("hypothesis not met", 1)])
def test_every_statement_is_shown_and_one_that_fails_or_says_nothing_is_exit_1(
    verdict, code, monkeypatch, capsys
):
    checks = [HOLDS, Check("Theorem 1", "z = 0", "z small", "row", verdict, 0.5, "by a half")]
    monkeypatch.setattr("nonloc_paper.theory.all_checks.check_all", lambda **_: checks)
    assert main(["check", "--all"]) == code
    text = capsys.readouterr().out
    assert "Theorem 1: z = 0\n    hypothesis: z small\n" in text
    assert text.count("residual") == 2
    assert verdict in text
    assert main(["check", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["as_expected"] is (code == 0)


def test_without_all_it_counts_and_a_counterexample_is_no_alarm(monkeypatch, capsys):
    fails = Check(
        "Section 0 as stated", "all is well", "none", "row", "fails", 1.0, "by one", expected="fails"
    )
    unmet = replace(HOLDS, verdict="hypothesis not met", residual=1.0)
    checks = [HOLDS, HOLDS, unmet, fails, replace(fails, normalize="none")]
    monkeypatch.setattr("nonloc_paper.theory.all_checks.check_all", lambda **_: checks)
    assert main(["check"]) == 0
    text = capsys.readouterr().out
    counts = [line.split()[:2] for line in text.splitlines()[1:4]]
    assert counts == [["2", "hold"], ["1", "say"], ["2", "fail,"]]
    assert "fail, as the counterexample must" in text
    assert text.count("Section 0") == 1
    assert "All is as expected" in text
    assert "FAILS" not in text
    checks.append(replace(fails, name="Theorem 1", expected="holds"))
    assert main(["check"]) == 1
    text = capsys.readouterr().out
    assert "    1  are NOT AS EXPECTED:\n       Theorem 1 (row): all is well; by one" in text
    assert "All is as expected" not in text
