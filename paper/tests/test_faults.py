import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.slow
def test_every_trial_still_finds_what_it_damages():
    path = os.pathsep.join(map(str, (TESTS.parents[1] / "tests", TESTS, TESTS / "training")))
    command = [sys.executable, "-m", "faults", "--seconds", "1", "--most", "1"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
