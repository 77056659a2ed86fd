"""Files that are replaced at once: several writers, killed writers, files of others."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from nonloc_paper.files import write_atomically


def test_writers_of_the_same_file_do_not_disturb_each_other(tmp_path, monkeypatch):
    """The second writes all of it while the first is between its last byte and its rename."""
    path, replace = tmp_path / "file.json", os.replace

    def let_another_write_first(source, target):
        monkeypatch.setattr(os, "replace", replace)
        write_atomically(path, b"second")
        assert path.read_bytes() == b"second"
        replace(source, target)

    monkeypatch.setattr(os, "replace", let_another_write_first)
    write_atomically(path, b"first")
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file.json"]


def test_many_writers_at_once_all_succeed(tmp_path):
    path = tmp_path / "file.json"

    def write(letter):
        for _ in range(20):
            write_atomically(path, letter * 5000)

    with ThreadPoolExecutor() as pool:
        assert len(list(pool.map(write, (b"a", b"b", b"c")))) == 3, "an error would be raised here"
    assert path.read_bytes() in {b"a" * 5000, b"b" * 5000, b"c" * 5000}
    assert os.listdir(tmp_path) == ["file.json"]


def test_what_a_killed_writer_left_goes_with_the_next_write_and_what_is_being_written_stays(tmp_path):
    path = tmp_path / "file.json"
    code = (
        "import os, sys, time; from pathlib import Path; from nonloc_paper.files import write_atomically\n"
        "os.replace = lambda source, target: time.sleep(60)\n"
        "write_atomically(Path(sys.argv[1]), b'{}')"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        deadline = time.monotonic() + 30
        while not (found := list(tmp_path.iterdir())) or not found[0].stat().st_size:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        write_atomically(path, b"[]")
        assert sorted(tmp_path.iterdir()) == sorted([path, *found])
    finally:
        writer.kill()
    assert writer.wait() == -signal.SIGKILL
    assert found[0].exists()
    write_atomically(path, b"[1]")
    assert os.listdir(tmp_path) == ["file.json"]


def test_temporary_files_of_others_are_left_alone(tmp_path):
    names = ["file.json.tmp", "other.json.123-0123abcd.tmp", "notes.tmp"]
    for name in names:
        (tmp_path / name).write_text("")
    write_atomically(tmp_path / "file.json", b"{}")
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "file.json"])
