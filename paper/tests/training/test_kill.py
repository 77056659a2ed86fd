"""kill -9: a killed and resumed run ends as the one that was never killed, to the last bit."""

import subprocess
import sys

import killing
from killing import MOMENTS, SHORT, ending, newest_step, temporaries, work_in

from nonloc_paper.runs import Run


def test_runs_killed_at_exact_moments(tmp_path):
    whole = Run(tmp_path / "whole")
    work_in(whole, SHORT)
    subprocess.run([sys.executable, killing.__file__, str(tmp_path)], check=True)
    runs = [Run(tmp_path / moment) for moment in MOMENTS]
    assert [newest_step(run) for run in runs] == [3, 6, 5, 5]
    assert [len(temporaries(run)) for run in runs] == [1, 1, 0, 0]
    assert [len(run.read_metrics()) for run in runs] == [0, 1, 0, 1], "a torn line is not read"
    assert runs[2].metrics_path.stat().st_size > 0
    for run in runs:
        work_in(run, SHORT)
        assert ending(run) == ending(whole), run.name
