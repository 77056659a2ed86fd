"""The run folder: strict JSON, torn lines, truncation, atomic results, the lock."""

import fcntl
import json
import math
import os
import subprocess
import sys

import pytest

from nonloc.outcomes import CorruptDataError, LockedRunError
from nonloc.runs import Run, find_runs, write_atomically


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "first")
    run.write_recipe({"seed": 3})
    return run


def test_recipe_and_result_come_back(run):
    run.write_result({"outcome": {"ending": "converged"}, "error": 8.19})
    assert Run.open(run.path).read_recipe() == {"seed": 3}
    assert run.read_result() == {"outcome": {"ending": "converged"}, "error": 8.19}


def test_a_run_is_finished_once_it_has_a_result(run):
    assert not run.is_finished
    run.write_result({})
    assert run.is_finished


def test_the_name_is_the_folders_name_even_for_a_relative_path(run, monkeypatch):
    monkeypatch.chdir(run.path)
    assert Run(".").name == "first"


def test_lines_come_back_in_order(run):
    for epoch in (1, 2, 3):
        run.append_metrics({"epoch": epoch, "train_loss": 1 / epoch})
        run.append_spectra({"epoch": epoch, "stages": []})
    assert [line["train_loss"] for line in run.read_metrics()] == [1.0, 1 / 2, 1 / 3]
    assert [line["epoch"] for line in run.read_spectra()] == [1, 2, 3]


def test_numbers_that_are_not_finite_become_null_in_strict_json(run):
    run.append_metrics(
        {"epoch": 1, "test_loss": math.nan, "nested": [math.inf, {"x": -math.inf}], "fine": 2.5}
    )

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    line = json.loads(run.metrics_path.read_text(), parse_constant=refuse)
    assert line == {"epoch": 1, "test_loss": None, "nested": [None, {"x": None}], "fine": 2.5}


@pytest.mark.parametrize("torn", [b'{"epoch": 3, "tr', b'{"epoch": 3}', b'{"epoch": 3, "tr\n', b"\0\0\0\0"])
def test_a_torn_last_line_is_ignored_and_cut_off_by_the_next_one(run, torn):
    run.append_metrics({"epoch": 1})
    run.append_metrics({"epoch": 2})
    with open(run.metrics_path, "ab") as file:
        file.write(torn)
    assert [line["epoch"] for line in run.read_metrics()] == [1, 2]
    run.append_metrics({"epoch": 3, "whole": True})
    assert run.metrics_path.read_bytes() == b'{"epoch": 1}\n{"epoch": 2}\n{"epoch": 3, "whole": true}\n'


def test_a_torn_only_line_is_cut_off(run):
    run.metrics_path.write_bytes(b'{"epo')
    assert run.read_metrics() == []
    run.append_metrics({"epoch": 1})
    assert run.metrics_path.read_bytes() == b'{"epoch": 1}\n'


def test_a_broken_line_in_the_middle_is_damage_and_named(run):
    run.metrics_path.write_bytes(b'{"epoch": 1}\n{"epo\n{"epoch": 3}\n')
    with pytest.raises(CorruptDataError, match=r"metrics\.jsonl, line 2"):
        run.read_metrics()


def test_truncation_drops_later_epochs_and_torn_lines_only(run):
    for epoch in (1, 2, 3):
        run.append_metrics({"epoch": epoch})
        run.append_spectra({"epoch": epoch - 1})
    with open(run.metrics_path, "ab") as file:
        file.write(b'{"epoch": 1')
    run.truncate(1)
    assert run.metrics_path.read_bytes() == b'{"epoch": 1}\n'
    assert [line["epoch"] for line in run.read_spectra()] == [0, 1]


def test_truncating_a_run_without_metrics_makes_no_files(run):
    run.truncate(0)
    assert sorted(entry.name for entry in run.path.iterdir()) == ["recipe.json"]


def test_a_failed_replacement_leaves_the_old_file(run, monkeypatch):
    def crash(handle):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="no space"):
        run.write_recipe({"seed": 4})
    assert run.read_recipe() == {"seed": 3}


def test_a_file_is_synced_before_its_rename_and_the_folder_after(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(handle):
        done.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def note_replace(source, target):
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_atomically(tmp_path / "file.json", b"{}")
    assert done == [str(tmp_path / "file.json.tmp"), "rename", str(tmp_path)]


def test_a_file_is_not_a_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file, not a run folder"):
        Run(tmp_path / "file")


def test_a_folder_with_other_things_is_not_a_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=r"not a run folder.*thesis\.tex"):
        Run(tmp_path)


def test_a_folder_that_a_crash_left_without_recipe_is_a_new_run(tmp_path):
    (tmp_path / "lock").write_text("1\n")
    (tmp_path / "recipe.json.tmp").write_text("{")
    assert not Run(tmp_path).exists


def test_opening_needs_a_recipe(tmp_path):
    with pytest.raises(ValueError, match=r"no recipe\.json"):
        Run.open(tmp_path / "nothing")


def test_reading_what_is_not_there_yet_says_so(run):
    with pytest.raises(ValueError, match=r"has no result\.json"):
        run.read_result()


def test_a_damaged_recipe_is_named(run):
    run.recipe_path.write_text('{"seed"')
    with pytest.raises(CorruptDataError, match=r"recipe\.json is not valid JSON"):
        run.read_recipe()


def test_runs_are_found_at_any_depth(tmp_path, run):
    Run(tmp_path / "suite" / "second").write_recipe({})
    (tmp_path / "suite" / "not a run").mkdir()
    assert [found.name for found in find_runs(tmp_path)] == ["first", "second"]
    assert [found.name for found in find_runs(run.path)] == ["first"]


def test_a_second_lock_names_the_folder_and_the_holder(run):
    with (
        run.lock(),
        pytest.raises(LockedRunError, match=rf"first is in use by process {os.getpid()}"),
        run.lock(),
    ):
        pass


def test_a_lock_is_free_again_afterwards_even_after_an_error(run):
    with pytest.raises(ZeroDivisionError), run.lock():
        raise ZeroDivisionError
    with run.lock(), open(run.lock_path) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_lock_of_a_killed_process_is_free(run):
    code = (
        "import sys, os; from nonloc.runs import Run\nwith Run(sys.argv[1]).lock(): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(run.path)], check=False).returncode == -9
    with run.lock():
        assert run.lock_path.read_text() == f"{os.getpid()}\n"


def test_runs_do_not_import_torch():
    code = "import sys, nonloc.runs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
