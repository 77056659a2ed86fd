"""The run folder: strict JSON, torn lines, truncation, atomic results, the lock."""

import errno
import fcntl
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nonloc.outcomes import CorruptDataError, LockedRunError
from nonloc_paper.files import TEMPORARY, write_atomically
from nonloc_paper.runs import Run, find_runs


def make_result(ending):
    """The result of a run without any epoch."""
    machine = {"cpu": "abacus", "cores": 2, "threads": 1, "device": "cpu", "platform": "table"}
    return {
        "outcome": {"ending": ending, "epoch": 0, "step": 0, "message": "", "metrics": {}},
        "metrics": {},
        "parameters": 3,
        "data_sha256": "0" * 64,
        "weights_sha256": None,
        "seconds": 1.5,
        "machine": machine,
        "versions": {"python": "3"},
    }


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "first")
    run.write_recipe({"seed": 3})
    return run


def test_recipe_and_result_come_back(run, monkeypatch):
    assert not run.is_finished
    with pytest.raises(ValueError, match=r"no result\.json; .* the command that began it goes on"):
        run.read_result()
    for ending in ("converged", "finished"):
        run.write_result(make_result(ending=ending))
        assert run.read_result() == make_result(ending="converged")
    assert run.is_finished
    assert Run.open(run.path).read_recipe() == {"seed": 3}
    monkeypatch.chdir(run.path)
    assert Run(".").name == "first"


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


def test_a_line_that_is_appended_while_the_file_is_read_is_no_damage(run, monkeypatch):
    """A report may look at a run that another process trains."""
    run.append_metrics({"epoch": 1})
    whole = b'{"epoch": 1}\n{"epoch": 2}\n'
    reads = iter([whole[:-5], whole])
    monkeypatch.setattr(Path, "read_bytes", lambda path: next(reads))
    assert [line["epoch"] for line in run.read_metrics()] == [1]


def test_a_broken_line_in_the_middle_is_damage_and_named(run):
    for second in (b'{"epo', b'{"loss": 2.0}'):
        run.metrics_path.write_bytes(b'{"epoch": 1}\n' + second + b'\n{"epoch": 3}\n')
        with pytest.raises(CorruptDataError, match=r"metrics\.jsonl, line 2"):
            run.read_metrics()


def test_truncation_drops_later_epochs_and_torn_lines_only(run):
    run.truncate(0)
    assert os.listdir(run.path) == ["recipe.json"], "no files are made"
    for epoch in (1, 2, 3):
        run.append_metrics({"epoch": epoch})
        run.append_spectra({"epoch": epoch - 1})
    with open(run.metrics_path, "ab") as file:
        file.write(b'{"epoch": 1')
    run.truncate(1)
    assert run.metrics_path.read_bytes() == b'{"epoch": 1}\n'
    assert [line["epoch"] for line in run.read_spectra()] == [0, 1]


def test_a_full_disk_leaves_the_old_file_and_names_it(run, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*recipe\.json"):
        run.write_recipe({"seed": 4})
    assert run.read_recipe() == {"seed": 3}
    assert os.listdir(run.path) == ["recipe.json"], "no temporary file is left"
    with pytest.raises(OSError, match=r"No space left on device: .*metrics\.jsonl"):
        run.append_metrics({"epoch": 1})


@pytest.fixture
def done(monkeypatch):
    """The paths that are synced, and "rename" for each rename, in order."""
    done, fsync, replace = [], os.fsync, os.replace

    def note_fsync(handle):
        done.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def note_replace(source, target):
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    return done


def test_a_file_is_synced_before_its_rename_and_the_folder_after(tmp_path, done):
    write_atomically(tmp_path / "file.json", b"{}")
    first, *rest = done
    assert re.fullmatch(r".*/file\.json\.\d+-[0-9a-f]{8}\.tmp", first)
    assert rest == ["rename", str(tmp_path)]


def test_a_new_file_of_lines_is_synced_with_its_folder(run, done):
    """A checkpoint that outlives a power cut must not lack its metrics."""
    done.clear()
    run.append_metrics({"epoch": 1})
    run.append_metrics({"epoch": 2})
    assert done == [str(path) for path in (run.metrics_path, run.path, run.metrics_path)]


@pytest.mark.parametrize(
    "name", ["thesis.tex", "thesis.tex.tmp", "thesis.tex.4711-0123abcd.tmp", "recipe.json.4711.tmp", "folder"]
)
def test_files_and_folders_with_other_things_are_not_runs(tmp_path, name):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_text("")
    with pytest.raises(ValueError, match="not a run folder"):
        Run(folder)
    with pytest.raises(ValueError, match="is a file, not a run folder"):
        Run(folder / name)


@pytest.mark.parametrize(
    "names",
    [
        ("lock", f"recipe.json.4711-0123abcd{TEMPORARY}"),
        ("metrics.jsonl", "spectra.jsonl", "observations.json", "observations.safetensors"),
        ("spectrum.json", "stability.json", f"stability.json.4711-0123abcd{TEMPORARY}"),
    ],
)
def test_what_a_crash_or_an_interrupted_copy_left_without_recipe_is_a_new_run(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text("")
    run = Run(tmp_path)
    assert not run.exists
    assert not run.is_finished


def test_missing_and_damaged_recipes_and_results_are_named(tmp_path, run):
    with pytest.raises(ValueError, match=r"no recipe\.json"):
        Run.open(tmp_path / "nothing")
    run.recipe_path.write_text('{"seed"')
    with pytest.raises(CorruptDataError, match=r"recipe\.json is not valid JSON"):
        run.read_recipe()
    run.write_result(make_result(ending="interrupted"))
    with pytest.raises(CorruptDataError, match=r"result\.json has outcome\.ending 'interrupted', not one of"):
        run.read_result()


def test_runs_are_found_at_any_depth(tmp_path, run):
    Run(tmp_path / "suite" / "second").write_recipe({})
    (tmp_path / "suite" / "not a run").mkdir()
    assert [found.name for found in find_runs(tmp_path)] == ["first", "second"]
    assert [found.name for found in find_runs(run.path)] == ["first"]


def test_runs_behind_links_are_found_once_and_by_their_own_path(tmp_path, run):
    elsewhere = Run(tmp_path / "elsewhere" / "second")
    elsewhere.write_recipe({})
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    run.path.rename(folder / "first")
    (folder / "again").symlink_to(folder / "first")
    (folder / "deep" / "link").symlink_to(elsewhere.path.parent)
    (folder / "zlink").symlink_to(elsewhere.path)
    (folder / "deep" / "loop").symlink_to(folder)
    (folder / "deep" / "above").symlink_to(tmp_path)
    (folder / "dangling").symlink_to(tmp_path / "nothing")
    assert [found.path for found in find_runs(folder)] == [
        folder / "deep" / "link" / "second",
        folder / "first",
    ]


@pytest.mark.parametrize("name", ["recipe.json", "result.json", "metrics.jsonl"])
@pytest.mark.parametrize("kind", ["folder", "broken link", "loop", "pipe"])
def test_what_is_no_file_in_the_place_of_one_is_named(run, name, kind):
    path = run.path / name
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path if kind == "loop" else run.path / "nothing")
    read = {"recipe.json": run.read_recipe, "result.json": run.read_result, "metrics.jsonl": run.read_metrics}
    with pytest.raises(CorruptDataError, match=rf"{name} is not a file; "):
        read[name]()


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


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(run, tmp_path):
    (tmp_path / "precious").write_text("not to be touched")
    run.lock_path.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="lock"), run.lock():
        pass
    assert (tmp_path / "precious").read_text() == "not to be touched"


def test_a_folder_that_was_there_outlives_its_lock(tmp_path):
    with Run(tmp_path).lock(), Run(tmp_path / "new" / "deep").lock():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_lock_that_its_holder_has_removed_is_not_taken(run, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: run.lock_path.unlink())
    with pytest.raises(LockedRunError), run.lock():
        pass


def test_the_lock_of_a_killed_process_is_free(run):
    code = "import sys, os; from nonloc_paper.runs import Run\nwith Run(sys.argv[1]).lock(): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code, str(run.path)], check=False).returncode == -9
    with run.lock():
        assert run.lock_path.read_text() == f"{os.getpid()}\n"
