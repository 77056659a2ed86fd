"""hold: one process at a time, and nothing left behind."""

import subprocess
import sys

import pytest

from nonloc.outcomes import LockedRunError
from nonloc_paper.suites.holding import hold

OTHER = """\
import sys
from nonloc_paper.suites.holding import hold
with hold(sys.argv[1], wait=sys.argv[2] == "wait"):
    print("held")
"""


def another(folder, wait):
    return subprocess.run(
        [sys.executable, "-c", OTHER, str(folder), wait],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_another_process_is_refused_while_it_is_held_and_let_in_after(tmp_path):
    with hold(tmp_path):
        found = another(tmp_path, "no")
        assert found.returncode == 1
        assert "is in use by another process" in found.stderr
    assert another(tmp_path, "no").stdout == "held\n"
    assert list(tmp_path.iterdir()) == []


def test_one_that_waits_gets_it_in_the_end(tmp_path):
    words = [sys.executable, "-c", OTHER, str(tmp_path), "wait"]
    with hold(tmp_path):
        waiting = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(timeout=1.5)
    assert waiting.communicate(timeout=60)[0] == "held\n"


def test_the_folder_is_made_and_held_once(tmp_path):
    with hold(tmp_path / "new" / "one"), pytest.raises(LockedRunError), hold(tmp_path / "new" / "one"):
        pass
