"""kill -9: a killed and resumed run ends as the one that was never killed, to the last bit."""

import subprocess
import sys

import killing
import pytest
from killing import MOMENTS, SHORT, ending, experiment, saved_steps, temporaries, work_in

from nonloc_paper.runs import Run


def test_runs_killed_at_exact_moments(tmp_path):
    whole = Run(tmp_path / "whole")
    work_in(whole, SHORT)
    subprocess.run([sys.executable, killing.__file__, "--exact", str(tmp_path)], check=True)
    runs = [Run(tmp_path / moment) for moment in MOMENTS]
    assert [saved_steps(run) for run in runs] == [3, 6, 5, 5]
    assert [len(temporaries(run)) for run in runs] == [1, 1, 0, 0]
    assert [len(run.read_metrics()) for run in runs] == [0, 1, 0, 1], "a torn line is not read"
    assert runs[2].metrics_path.stat().st_size > 0
    for run in runs:
        work_in(run, SHORT)
        assert ending(run) == ending(whole), run.name


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_runs_killed_from_outside(tmp_path):
    trials = experiment(tmp_path, 20, seed=1)
    assert [trial.is_equal for trial in trials] == [True] * 20
    assert all(trial.left for trial in trials if trial.in_save), "a kill meant for a save missed it"
    assert len({trial.resumed_at for trial in trials}) > 5, "the kills did not hit different moments"
