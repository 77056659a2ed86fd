"""nonloc check: the table, and an exit code that knows a failure."""

import json

import pytest

from nonloc.cli import main


@pytest.fixture(scope="module")
def everything():
    from nonloc_paper.theory.all_checks import check_all

    return check_all(positions=4, normalizations=["none"])


def test_every_statement_is_shown_with_hypothesis_verdict_and_residual(everything, monkeypatch, capsys):
    monkeypatch.setattr("nonloc_paper.theory.all_checks.check_all", lambda **_: everything)
    assert main(["check"]) == 0
    text = capsys.readouterr().out
    assert "Theorem 2 (i)" in text
    assert "hypothesis: " in text
    assert text.count("residual") == len(everything)


def test_a_failure_under_its_hypothesis_is_exit_1(everything, monkeypatch, capsys):
    from dataclasses import replace

    broken = [replace(everything[0], verdict="fails"), *everything[1:]]
    monkeypatch.setattr("nonloc_paper.theory.all_checks.check_all", lambda **_: broken)
    assert main(["check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["as_expected"] is False
