"""kill -9: a killed and resumed run ends as the one that was never killed, to the last bit."""

import pytest
from killing import MOMENTS, experiment


def test_one_run_killed_three_times(tmp_path):
    [trial] = experiment(tmp_path, [("random", "save", "save")])
    assert trial.is_equal
    assert trial.found[1], "the first kill meant for a save missed it"
    assert trial.found[2], "the second kill meant for a save missed it"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_runs_killed_once(tmp_path):
    trials = experiment(tmp_path, [(MOMENTS[number % 2],) for number in range(20)], seed=1)
    assert [trial.is_equal for trial in trials] == [True] * 20
    in_saves = [trial for trial in trials if trial.moments == ("save",)]
    assert len(in_saves) == 10
    assert all(trial.found[0] for trial in in_saves), "a kill meant for a save missed it"
    assert len({trial.resumed_at for trial in trials}) > 5, "the kills did not hit different moments"
