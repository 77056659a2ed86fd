"""Outcomes: "finished" in Python, "converged" in files."""

import pytest

from nonloc.outcomes import Outcome


def test_a_finished_outcome_keeps_the_spelling_of_older_files():
    outcome = Outcome("finished", epoch=2, step=7, metrics={"loss": 0.5})
    assert outcome.to_dict()["ending"] == "converged"
    assert Outcome.from_dict(outcome.to_dict() | {"added_later": 1}) == Outcome(
        "converged", 2, 7, "", {"loss": 0.5}
    )
    assert Outcome("converged").ending == "finished"


def test_an_unknown_ending_lists_the_choices():
    with pytest.raises(ValueError, match="finished, diverged, interrupted"):
        Outcome("lost")
