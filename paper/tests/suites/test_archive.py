"""Records: keep and restore finished runs, lock a folder, note what runs cost."""

import fcntl
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from threading import Thread

import pytest

from nonloc.outcomes import CorruptDataError, LockedRunError
from nonloc_paper.runs import Run, find_runs
from nonloc_paper.suites import SUITES, archive
from nonloc_paper.suites.archive import (
    check_keep,
    keep,
    kept_path,
    lock_folder,
    move_spent,
    note_spent,
    read_spent,
    restore,
)
from nonloc_paper.suites.train_all import train_all
from nonloc_paper.training.checkpoint import weights_sha256
from nonloc_paper.training.observe import observe_spectra
from nonloc_paper.training.trained import trained_network

CHANGES = {"epochs": 1, "steps_per_epoch": 2, "train_images": 64, "test_images": 16, "batch_size": 8}
SUITE = SUITES["demo"].with_changes(CHANGES).with_rows(["3"]).with_seeds(3)
(ROW,) = SUITE.rows


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train_all(SUITE.recipes(ROW), folder, device="cpu", progress=False)
    return folder


@pytest.fixture
def runs(trained, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(trained, tmp_path / "runs")


def go(runs, tmp_path, suite=SUITE, **keywords):
    return keep(suite, runs, tmp_path / "kept", changes=CHANGES, **keywords)


def weighed(tmp_path):
    return sorted(int(path.parent.parent.name) for path in (tmp_path / "kept").rglob("*.safetensors"))


def set_score(runs, seed, psnr):
    run = Run(runs / SUITE.recipes(ROW)[seed].name)
    result = run.read_result()
    run.write_result(result | {"metrics": result["metrics"] | {"psnr": psnr}})


def set_scores(runs, *scores):
    for seed, psnr in enumerate(scores):
        set_score(runs, seed, psnr)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_layout_is_suite_row_seed_and_keeping_again_changes_nothing(runs, tmp_path):
    kept = go(runs, tmp_path)
    folder, before = tmp_path / "kept" / "demo" / "4-diffusive-blocks", contents(tmp_path / "kept")
    assert kept.new == tuple(folder / str(seed) for seed in range(3))
    assert [run.path for run in find_runs(folder)] == list(kept.new)
    assert kept.size == sum(len(content) for content in before.values())
    assert {path.name for path in (folder / "0").iterdir()} - {"checkpoints"} == {
        "recipe.json",
        "result.json",
        "metrics.jsonl",
        "spectra.jsonl",
        "spectrum.json",
        "observations.json",
    }
    again = go(runs, tmp_path)
    assert (again.new, len(again.same)) == ((), 3)
    assert contents(tmp_path / "kept") == before


def test_the_numbers_are_those_of_the_run(runs, tmp_path):
    go(runs, tmp_path)
    for recipe in SUITE.recipes(ROW):
        run, kept = Run(runs / recipe.name), Run(kept_path(tmp_path / "kept", SUITE, ROW, recipe.seed))
        assert kept.read_result() == run.read_result() | {"records": kept.digests()}
        assert kept.read_recipe() == run.read_recipe()
        for line, short in zip(run.read_metrics(), kept.read_metrics(), strict=True):
            assert short == pytest.approx(line, rel=1e-6)
        assert kept.metrics_path.stat().st_size < run.metrics_path.stat().st_size


def test_another_result_is_not_overwritten(runs, tmp_path):
    go(runs, tmp_path)
    before = contents(tmp_path / "kept")
    set_score(runs, 1, 12.0)
    with pytest.raises(ValueError, match="keeps a run with another result"):
        go(runs, tmp_path)
    assert contents(tmp_path / "kept") == before


def test_the_weights_are_those_of_the_median_seed_without_the_optimizer(runs, tmp_path):
    set_scores(runs, 10.0, 30.0, 20.0)
    first = go(runs, tmp_path, SUITE.with_seeds(2))
    assert weighed(tmp_path) == [0], "of two, the one with the lower score"
    assert first.lacking == ()
    go(runs, tmp_path)
    assert weighed(tmp_path) == [2]
    kept = Run(kept_path(tmp_path / "kept", SUITE, ROW, 2))
    assert weights_sha256(trained_network(kept)) == kept.read_result()["weights_sha256"]
    assert observe_spectra(kept)["stages"], "the other commands can read it"
    (weights,) = kept.checkpoints_path.glob("*.safetensors")
    source = runs / SUITE.recipes(ROW)[2].name / "checkpoints" / weights.name
    assert weights.stat().st_size < 0.5 * source.stat().st_size


def lose_weights(runs, seed):
    shutil.rmtree(runs / SUITE.recipes(ROW)[seed].name / "checkpoints")


def test_where_the_median_has_no_weights_those_of_the_nearest_seed_are_kept(runs, tmp_path):
    set_scores(runs, 10.0, 30.0, 22.0)
    lose_weights(runs, 2)
    assert go(runs, tmp_path).lacking == ("4 diffusive blocks (seed 1 in place of 2)",)
    assert weighed(tmp_path) == [1]


def test_a_row_all_of_whose_weights_are_gone_says_so(runs, tmp_path):
    set_scores(runs, 10.0, 30.0, 20.0)
    for seed in range(3):
        lose_weights(runs, seed)
    assert go(runs, tmp_path).lacking == ("4 diffusive blocks (none in place of 2)",)
    assert go(runs, tmp_path, weights="all").lacking == ("4 diffusive blocks (without seed 0, 1, 2)",)
    assert weighed(tmp_path) == []


def test_a_suite_chooses_the_rows_that_have_weights(runs, tmp_path):
    without = replace(SUITE, weighed=("another row",))
    assert go(runs, tmp_path, without).lacking == ()
    assert weighed(tmp_path) == []
    go(runs, tmp_path, replace(SUITE, weighed=(ROW.label,)))
    (kept,) = weighed(tmp_path)
    go(runs, tmp_path, without)
    assert weighed(tmp_path) == [kept], "what is kept stays"
    go(runs, tmp_path, without, weights="all")
    assert weighed(tmp_path) == [0, 1, 2], "who asks for weights gets them"


def test_no_weights_and_a_wrong_word_for_them(runs, tmp_path):
    go(runs, tmp_path, weights="none")
    assert weighed(tmp_path) == []
    with pytest.raises(ValueError, match="weights='some' is unknown; choose one of median, all, none"):
        go(runs, tmp_path, weights="some")


def test_damaged_weights_are_kept_anew(runs, tmp_path):
    go(runs, tmp_path)
    before = contents(tmp_path / "kept")
    (path,) = (tmp_path / "kept").rglob("*.safetensors")
    path.write_bytes(path.read_bytes()[:50])
    go(runs, tmp_path)
    assert contents(tmp_path / "kept") == before


def test_weights_of_another_network_are_not_kept(runs, tmp_path):
    run = Run(runs / SUITE.recipes(ROW)[0].name)
    run.write_result(run.read_result() | {"weights_sha256": "0" * 64})
    with pytest.raises(CorruptDataError, match="are not those of its result"):
        go(runs, tmp_path, SUITE.with_seeds(1))


def test_a_diverged_run_is_kept_without_weights(tmp_path):
    changes = CHANGES | {"optimizer": "sgd", "learning_rate": 1e30}
    suite = SUITES["demo"].with_changes(changes).with_rows(["1"]).with_seeds(1)
    train_all(suite.recipes(suite.rows[0]), tmp_path / "runs", device="cpu", progress=False)
    kept = keep(suite, tmp_path / "runs", tmp_path / "kept", changes=changes)
    assert (len(kept.new), kept.weights, kept.lacking) == (1, (), ())
    assert Run(kept.new[0]).read_result()["outcome"]["ending"] == "diverged"


def test_the_plan_lets_the_report_arrange_the_rows(runs, tmp_path):
    go(runs, tmp_path)
    plan = json.loads((tmp_path / "kept" / "demo" / "suite.json").read_bytes())
    assert (plan["name"], plan["rows"], plan["changes"], plan["seeds"]) == ("demo", [], CHANGES, None)
    more = SUITE.with_seeds(5)
    go(runs, tmp_path, more)
    go(runs, tmp_path)
    assert json.loads((tmp_path / "kept" / "demo" / "suite.json").read_bytes())["seeds"] == 5


def test_a_restored_run_is_finished_and_is_kept_as_it_was(runs, tmp_path):
    go(runs, tmp_path)
    before = contents(tmp_path / "kept")
    assert restore(SUITE, tmp_path / "kept", tmp_path / "again") == SUITE.recipes(ROW)
    assert len(find_runs(tmp_path / "again")) == 3
    assert (
        train_all(SUITE.recipes(ROW), tmp_path / "again", device="cpu", budget=0.0, progress=False).left == ()
    )
    assert len(go(tmp_path / "again", tmp_path).same) == 3
    assert contents(tmp_path / "kept") == before


def test_restoring_leaves_finished_runs_and_replaces_unfinished_ones(runs, tmp_path):
    go(runs, tmp_path)
    one, two = (Run(runs / recipe.name) for recipe in SUITE.recipes(ROW)[:2])
    set_score(runs, 0, 99.0)
    two.result_path.unlink()
    restore(SUITE, tmp_path / "kept", runs)
    assert one.read_result()["metrics"]["psnr"] == 99.0
    assert two.read_result() == Run(kept_path(tmp_path / "kept", SUITE, ROW, 1)).read_result()


def test_a_name_that_something_else_has_stops_neither_keeping_nor_restoring(runs, tmp_path):
    recipes = SUITE.recipes(ROW)
    shutil.rmtree(runs / recipes[0].name)
    (runs / recipes[0].name).write_text("a file")
    assert len(go(runs, tmp_path).new) == len(recipes) - 1
    again = tmp_path / "again"
    again.mkdir()
    (again / recipes[1].name).write_text("a file")
    assert restore(SUITE, tmp_path / "kept", again) == recipes[2:]


def test_a_run_that_is_kept_for_one_suite_counts_for_every_other(runs, tmp_path):
    go(runs, tmp_path)
    other = replace(SUITE, name="table1", rows=(replace(ROW, label="the same by another name"),))
    assert restore(other, tmp_path / "kept", tmp_path / "again") == SUITE.recipes(ROW)


def test_a_run_that_is_kept_for_another_suite_is_not_kept_twice(runs, tmp_path):
    go(runs, tmp_path)
    (tmp_path / "kept" / "demo").rename(tmp_path / "kept" / "another")
    before = contents(tmp_path / "kept" / "another")
    kept = go(runs, tmp_path)
    assert (kept.new, len(kept.same)) == ((), 3)
    assert list(find_runs(tmp_path / "kept" / "demo")) == []
    assert contents(tmp_path / "kept" / "another") == before


def test_what_was_not_looked_at_yet_is_not_kept_and_what_is_missing_is_added(runs, tmp_path):
    names = [recipe.name for recipe in SUITE.recipes(ROW)]
    (runs / names[0] / "observations.json").rename(tmp_path / "later")
    (runs / names[1] / "spectrum.json").rename(tmp_path / "spectrum")
    assert [path.name for path in go(runs, tmp_path).new] == ["1", "2"]
    (tmp_path / "later").rename(runs / names[0] / "observations.json")
    (tmp_path / "spectrum").rename(runs / names[1] / "spectrum.json")
    assert [path.name for path in go(runs, tmp_path).new] == ["0"]
    assert (tmp_path / "kept" / "demo" / ROW.slug / "1" / "spectrum.json").is_file()


def test_a_run_restored_in_part_is_not_finished_until_it_is_restored_again(runs, tmp_path, monkeypatch):
    """The first run has six files; the process stops before it writes the last."""
    go(runs, tmp_path)
    write, written = archive.write_atomically, []

    def write_five(path, content):
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(path)
        write(path, content)

    monkeypatch.setattr(archive, "write_atomically", write_five)
    with pytest.raises(KeyboardInterrupt):
        restore(SUITE, tmp_path / "kept", tmp_path / "again")
    monkeypatch.undo()
    (run,) = find_runs(tmp_path / "again")
    assert (run.path / "observations.json").is_file()
    assert not run.is_finished
    assert len(restore(SUITE, tmp_path / "kept", tmp_path / "again")) == 3
    assert all(Run(tmp_path / "again" / recipe.name).is_finished for recipe in SUITE.recipes(ROW))


def test_a_run_that_another_process_restores_is_passed_over(runs, tmp_path):
    go(runs, tmp_path)
    held = Run(tmp_path / "again" / SUITE.recipes(ROW)[0].name)
    with held.lock():
        assert len(restore(SUITE, tmp_path / "kept", tmp_path / "again")) == 3
    assert not held.is_finished


def test_a_folder_beside_the_seeds_is_not_part_of_the_row(runs, tmp_path):
    set_scores(runs, 10.0, 30.0, 20.0)
    go(runs, tmp_path, SUITE.with_seeds(2))
    row = kept_path(tmp_path / "kept", SUITE, ROW, 0).parent
    shutil.copytree(row, row / "backup")
    before = contents(row / "backup")
    go(runs, tmp_path)
    assert len(weighed(tmp_path)) - len(list((row / "backup").rglob("*.safetensors"))) == 1
    assert contents(row / "backup") == before


def test_a_conflict_with_what_another_suite_keeps_is_known_before(runs, tmp_path):
    go(runs, tmp_path)
    (tmp_path / "kept" / SUITE.name).rename(tmp_path / "kept" / "another")
    check_keep(SUITE, tmp_path / "kept", changes=CHANGES, runs=runs)
    set_score(runs, 1, 12.0)
    with pytest.raises(ValueError, match="keeps a run with another result"):
        check_keep(SUITE, tmp_path / "kept", changes=CHANGES, runs=runs)


OTHER = """\
import sys
from nonloc_paper.suites.archive import lock_folder
with lock_folder(sys.argv[1], wait=True):
    print("held")
"""


def test_another_process_waits_for_a_locked_folder(tmp_path):
    folder = tmp_path / "new" / "one"
    with lock_folder(folder):
        with pytest.raises(LockedRunError), lock_folder(folder):
            pass
        other = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(timeout=1)
    assert other.communicate(timeout=60)[0] == "held\n"
    assert list(folder.iterdir()) == []


def test_what_runs_cost_comes_back_by_folder(tmp_path):
    for seconds in (2.5, 3):
        note_spent(tmp_path / "map", seconds=seconds, runs=1)
    assert read_spent(tmp_path) == {
        tmp_path / "map": [{"seconds": 2.5, "runs": 1}, {"seconds": 3, "runs": 1}]
    }
    note_spent(tmp_path / "elsewhere", seconds=4, device="a GPU")
    for _ in range(2):
        move_spent(tmp_path / "elsewhere", tmp_path / "map")
    assert [line["seconds"] for line in read_spent(tmp_path)[tmp_path / "map"]] == [2.5, 3, 4]
    note_spent(tmp_path, seconds=None, runs=1)
    with pytest.raises(CorruptDataError, match=r"spent\.jsonl, line 1, has seconds None"):
        read_spent(tmp_path)


def test_processes_that_note_and_move_what_was_spent_take_turns(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    note_spent(here, seconds=1)
    with open(here / "spent.jsonl", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        others = [
            Thread(target=note_spent, args=(here,), kwargs={"seconds": 2}),
            Thread(target=move_spent, args=(here, there)),
        ]
        for other in others:
            other.start()
            other.join(timeout=0.2)
        file.write(b'{"seconds": 3}\n')
    for other in others:
        other.join()
    assert sorted(line["seconds"] for lines in read_spent(tmp_path).values() for line in lines) == [1, 2, 3]
