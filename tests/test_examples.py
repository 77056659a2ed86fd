"""Every example runs from a shell and prints what its docstring promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
PROMISED = {
    "denoise.py": "one diffusion step",
    "drop_in.py": "the output changed by",
    "local_stage.py": "one pixel depends on",
    "over_smoothing.py": "growth ×",
    "point_cloud.py": "mean moved by",
    "which_mean.py": "sinkhorn",
    "will_it_fit.py": "photograph",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_it_runs(path):
    assert path.name in PROMISED, "say here what the example prints"
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert PROMISED[path.name] in done.stdout
