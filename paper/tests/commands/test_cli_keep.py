"""nonloc reproduce --keep, nonloc eval and nonloc map, as they are typed."""

import json
import re
import shutil

import pytest
from small_map import small_data

from nonloc.cli import main
from nonloc_paper.commands.map import map_text
from nonloc_paper.runs import Run, find_runs, read_json, write_json
from nonloc_paper.suites import train_all
from nonloc_paper.suites.archive import lock_folder, note_spent, read_spent
from nonloc_paper.training.recipe import Recipe

SMALL = ["--set", "epochs=1", "steps_per_epoch=2", "train_images=64", "test_images=16", "batch_size=8"]
WORDS = ["reproduce", "demo", "--rows", "1", "3", *SMALL, "--device", "cpu", "--quiet", "--json"]


def go(capsys, *words):
    code = main([*WORDS, *map(str, words)])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder of two kept runs of seed 0, and nothing else left of them."""
    folder = tmp_path_factory.mktemp("kept")
    folders = ["--output", str(folder / "work"), "--kept", str(folder / "results")]
    assert main([*WORDS, "--seeds", "1", *folders, "--keep"]) == 0
    shutil.rmtree(folder / "work")
    return folder / "results"


def test_a_kept_run_is_not_trained_again_and_is_in_the_table(kept, tmp_path, capsys):
    results = shutil.copytree(kept, tmp_path / "results")
    rows = [results / "demo" / name for name in ("4-diffusive-blocks", "local-baseline")]
    assert [run.path for run in find_runs(results)] == [row / "0" for row in rows]
    shutil.copytree(rows[1] / "0", rows[1] / "0-copy")
    words = ["--output", tmp_path / "work", "--kept", results, "--seeds", 2]
    code, answer = go(capsys, *words, "--budget", "0s")
    assert (code, answer["done"], len(answer["left"])) == (0, 2, 2)
    assert all("seed1" in name for name in answer["left"])
    assert [row["n"] for row in answer["rows"]] == [1, 1]
    code, answer = go(capsys, *words, "--keep")
    assert (code, answer["done"], answer["left"], answer["kept"]["runs"]) == (0, 4, [], 4)
    assert [row["n"] for row in answer["rows"]] == [2, 2]
    for run in find_runs(kept):
        assert Run(results / run.path.relative_to(kept)).read_result() == run.read_result()
    assert (rows[1] / "0-copy").is_dir(), "a copy beside the seeds stays, and does not stop the keeping"
    total = sum(path.stat().st_size for path in results.rglob("*") if path.is_file())
    assert total - 1000 < answer["kept"]["bytes"] <= total


@pytest.mark.parametrize(("weights", "count"), [("null", 2), ("none", 0)])
def test_none_is_a_word_and_null_the_choice_of_the_suite(tmp_path, capsys, weights, count):
    folders = ["--output", tmp_path / "work", "--kept", tmp_path / "results", "--keep"]
    code, _ = go(capsys, "--seeds", "1", *folders, "--weights", weights)
    assert (code, len(list((tmp_path / "results").rglob("*.safetensors")))) == (0, count)
    command = read_json(tmp_path / "work" / "suite.json")["command"]
    assert ("--weights none" in command) == (count == 0)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("words", "added"),
    [
        (["eval", "{record}", "--device", "cpu"], ()),
        (["spectrum", "{record}", "--output", "{other}"], ()),
        (["spectrum", "{record}", "--output", "{other}", "--features"], ()),
        (["spectrum", "{record}"], ("spectrum.svg", "spectrum.png", "features.svg", "features.png")),
        (["stability", "{record}", "--images", "1"], ("stability.svg", "stability.png")),
        (["stability", "{record}", "--images", "1", "--output", "{other}"], ()),
        (["report", "{record}", "--output", "{other}/page.html"], ()),
        (["check"], ()),
    ],
)
def test_looking_at_a_record_never_changes_it(kept, tmp_path, monkeypatch, words, added):
    monkeypatch.setattr("nonloc_paper.theory.all_checks.check_all", lambda **_: [])
    record = shutil.copytree(kept, tmp_path / "results") / "demo" / "4-diffusive-blocks" / "0"
    if "--features" in words:
        # As an older version left it; a new look goes elsewhere.
        path = record / "observations.json"
        write_json(path, read_json(path) | {"format": 1})
    before = contents(tmp_path / "results")
    places = {"record": record, "other": tmp_path / "other"}
    assert main([word.format(**places) for word in words]) == 0
    after = contents(tmp_path / "results")
    assert {path.name for path in after.keys() - before.keys()} == set(added)
    assert {path: after[path] for path in before} == before


def test_an_older_look_and_another_run_are_not_replaced(kept, tmp_path, capsys):
    results = shutil.copytree(kept, tmp_path / "results")
    record, other = (results / "demo" / name / "0" for name in ("4-diffusive-blocks", "local-baseline"))
    path = record / "observations.json"
    write_json(path, read_json(path) | {"format": 1})
    before = contents(results)
    assert main(["spectrum", str(record), "--features"]) == 2
    assert "stays as it is; name a folder with --output" in capsys.readouterr().err
    assert main(["spectrum", str(record), "--output", str(other)]) == 2
    assert "is another run" in capsys.readouterr().err
    (tmp_path / "loop").symlink_to("loop")
    assert main(["spectrum", str(record), "--output", str(tmp_path / "loop")]) == 2
    assert "loop" in capsys.readouterr().err
    assert contents(results) == before


def test_a_report_replaces_pages_only(kept, tmp_path, capsys):
    runs = shutil.copytree(kept / "demo", tmp_path / "runs")
    before = contents(runs)
    for output, wrong in (
        (runs, "is a folder; name the page"),
        (runs / "suite.json", "is there and is no page"),
    ):
        assert main(["report", str(runs), "--output", str(output)]) == 2
        assert wrong in capsys.readouterr().err
    assert contents(runs) == before
    page = tmp_path / "page.html"
    page.write_text("<!doctype html>")
    assert main(["report", str(runs), "--output", str(page)]) == 0
    assert "local baseline" in page.read_text()


def test_what_was_spent_in_the_folder_comes_with_its_runs_once(kept, tmp_path, capsys):
    shutil.copytree(kept / "demo", tmp_path / "results" / "another")
    note_spent(tmp_path / "work", seconds=7, device="elsewhere")
    words = ["--output", tmp_path / "work", "--kept", tmp_path / "results", "--seeds", 2, "--keep"]
    for _ in range(2):
        code, answer = go(capsys, *words)
        assert (code, answer["done"], answer["kept"]["runs"]) == (0, 4, 4)
    lines = read_spent(tmp_path / "results")[tmp_path / "results" / "demo"]
    assert [line["device"] for line in lines].count("elsewhere") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "learning_rate=0.5"], "keep it in another folder"),
        (["--kept", "null"], "--keep needs a folder"),
        (["--kept", "{work}/kept"], "one lies in the other"),
        (["--kept", "{work}/.."], "one lies in the other"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_trained(kept, tmp_path, capsys, words, message):
    work = tmp_path / "demo"
    words = [word.format(work=work) for word in words]
    assert main([*WORDS, "--output", str(work), "--kept", str(kept), "--keep", *words]) == 2
    assert message in capsys.readouterr().err
    assert not work.exists()


def test_a_run_that_fails_does_not_keep_the_others_from_being_kept_and_reported(
    tmp_path, capsys, monkeypatch
):
    honest = train_all.observe

    def observe(run, *rest, **keywords):
        if "diffusive" in run.name:
            raise ValueError("nothing to see")
        return honest(run, *rest, **keywords)

    monkeypatch.setattr(train_all, "observe", observe)
    folders = ["--output", str(tmp_path / "work"), "--kept", str(tmp_path / "results")]
    assert main([*WORDS, *folders, "--keep", "--seeds", "1"]) == 2
    assert "nothing to see" in capsys.readouterr().err
    assert [run.path.parent.name for run in find_runs(tmp_path / "results")] == ["local-baseline"]
    assert (tmp_path / "work" / "report.html").is_file()


def test_eval_computes_a_kept_score_again(kept, capsys):
    run = str(kept / "demo" / "4-diffusive-blocks" / "0")
    assert main(["eval", run, "--device", "cpu", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["agree"] == 1
    assert answer["machine"]["device"] == "cpu"
    assert answer["rows"][0]["stored"] == Run(run).read_result()["metrics"]["psnr"]
    assert main(["eval", run, "--device", "cpu"]) == 0
    assert "they agree (the same hardware)" in capsys.readouterr().out


def test_eval_in_another_precision_says_what_would_tell(kept, capsys):
    run = str(kept / "demo" / "local-baseline" / "0")
    main(["eval", run, "--device", "cpu", "--precision", "bfloat16"])
    answer = capsys.readouterr().out
    assert re.search(r"recorded +\S+ dB on cpu, float32", answer)
    assert "at most 0.05 dB; another precision may take more: try float32)" in answer


def test_eval_of_a_wrong_record_is_exit_1(kept, tmp_path, capsys):
    run = Run(shutil.copytree(kept / "demo" / "local-baseline" / "0", tmp_path / "run"))
    result = run.read_result()
    run.write_result(result | {"metrics": result["metrics"] | {"psnr": 1.0}})
    assert main(["eval", str(run.path), "--device", "cpu"]) == 1
    assert "they DIFFER" in capsys.readouterr().out


def test_eval_of_a_folder_takes_every_run_that_has_weights(kept, tmp_path, capsys):
    results = shutil.copytree(kept, tmp_path / "results")
    weighed = {str(path.parents[1]) for path in results.rglob("*.safetensors")}
    assert main(["eval", str(results), "--device", "cpu", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert {line.split()[0] for line in out.splitlines() if "they agree" in line} == weighed
    assert f"{len(weighed)} of {len(weighed)} agree; recomputed on cpu" in out
    shutil.rmtree(Run(sorted(weighed)[0]).checkpoints_path)
    assert main(["eval", str(results), "--device", "cpu", "--json"]) == 0
    assert [row["run"] for row in json.loads(capsys.readouterr().out)["rows"]] == sorted(weighed)[1:]


def test_eval_of_a_folder_passes_over_what_diverged_and_tells_of_what_is_broken_last(kept, tmp_path, capsys):
    results = shutil.copytree(kept, tmp_path / "results")
    good, lost, broken = (Run(results / "demo" / "local-baseline" / str(seed)) for seed in (0, 1, 2))
    for run in (lost, broken):
        shutil.rmtree(run.path, ignore_errors=True)
        shutil.copytree(good.path, run.path)
    result = good.read_result()
    lost.write_result(result | {"outcome": result["outcome"] | {"ending": "diverged"}})
    broken.write_result(result | {"weights_sha256": "0" * 64})
    assert main(["eval", str(results / "demo" / "local-baseline"), "--device", "cpu", "--json"]) == 4
    out, err = capsys.readouterr()
    assert [row["run"] for row in json.loads(out)["rows"]] == [str(good.path)]
    assert f"the weights in {broken.path} are not those" in err
    assert f"the weights in {broken.path} are not those" in json.loads(out)["errors"][0]


def test_eval_of_a_folder_tells_once_what_data_are_missing_and_evaluates_the_rest(kept, tmp_path, capsys):
    results = shutil.copytree(kept, tmp_path / "results")
    good = Run(results / "demo" / "local-baseline" / "0")
    for seed in ("1", "2"):
        other = Run(shutil.copytree(good.path, good.path.parent / seed))
        recipe = Recipe.of(other).with_(data="cifar10")
        other.write_recipe(recipe.to_dict())
        other.write_result(other.read_result() | {"recipe_sha256": recipe.sha256})
    words = ["eval", str(good.path.parent), "--data-dir", str(tmp_path / "empty")]
    assert main([*words, "--device", "cpu", "--json"]) == 1
    out, err = capsys.readouterr()
    assert [row["run"] for row in json.loads(out)["rows"]] == [str(good.path)]
    (error,) = json.loads(out)["errors"]
    assert error.startswith("CIFAR-10 is not in")
    assert error in err


def test_eval_of_runs_without_weights_is_exit_2(kept, tmp_path, capsys):
    results = shutil.copytree(kept, tmp_path / "results")
    for path in results.rglob("checkpoints"):
        shutil.rmtree(path)
    assert main(["eval", str(results)]) == 2
    assert f"runs in {results} is finished and has its final weights" in capsys.readouterr().err


@pytest.fixture
def map_words(tmp_path, monkeypatch):
    monkeypatch.setattr("nonloc_paper.training.scheduler.load", lambda name, data_dir: small_data())
    settings = ["--set", "batch_size=8", "precision=float32", "channels_last=false"]
    folders = ["--output", str(tmp_path / "map"), "--work", str(tmp_path / "work"), "--device", "cpu"]
    return ["map", "one_epoch", "--only", "rate 0.01, zero, original 1", "--seeds", "1", *settings, *folders]


def test_the_map_is_made_and_goes_on_where_it_stopped(map_words, tmp_path, capsys):
    assert main([*map_words, "--budget", "0s", "--quiet", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["done"], answer["left"]) == (0, ["rate 0.01, zero, original 1, seed 0"])
    assert main([*map_words, "--quiet"]) == 0
    assert "1 of 1 runs are done, 1 of them now." in capsys.readouterr().out
    (line,) = (tmp_path / "map" / "one_epoch.jsonl").read_text().splitlines()
    assert json.loads(line)["ending"] == "converged"
    assert [line["runs"] for line in read_spent(tmp_path)[tmp_path / "map"]] == [0, 1]
    assert main([*map_words, "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["new"] == 0


def test_a_table_that_another_process_holds_is_left_to_it(map_words, tmp_path, capsys):
    with lock_folder(tmp_path / "map"):
        assert main([*map_words, "--quiet"]) == 5
    assert "is in use by another process" in capsys.readouterr().err


def test_the_text_counts_what_diverged():
    def row(form, blocks, ending):
        return {"rate": 0.1, "init": "torch", "form": form, "blocks": blocks, "ending": ending}

    rows = [row("original", 4, "diverged"), row("original", 4, "converged"), row("diffusive", 2, "converged")]
    head, line = map_text(rows).splitlines()
    assert head.split()[-4:] == ["orig", "4", "diff", "2"]
    assert line.split() == ["0.1", "torch", "1/2", "0/1"]


def test_a_run_that_is_kept_with_another_result_is_told_before_anything_is_trained(kept, tmp_path, capsys):
    words = ["--output", tmp_path / "work", "--kept", tmp_path / "kept", "--seeds", 1]
    shutil.copytree(kept, tmp_path / "kept")
    go(capsys, *words)
    run, _ = find_runs(tmp_path / "work" / "runs")
    run.write_result(run.read_result() | {"seconds": 1e6})
    assert main([*WORDS, *map(str, words), "--seeds", "2", "--keep"]) == 2
    assert "keeps a run with another result" in capsys.readouterr().err
    assert len(find_runs(tmp_path / "work" / "runs")) == 2, "no second seed was begun"
