"""collect: run folders in the rows of their suite, or in rows of their own."""

import json
import re

import pytest
from made import make_run

from nonloc.outcomes import CorruptDataError
from nonloc_paper.report.records import collect, write_plan
from nonloc_paper.runs import read_json
from nonloc_paper.suites import SUITES
from nonloc_paper.training.recipe import Recipe

PLAN = {"name": "demo", "rows": [], "changes": {}, "seeds": 2}


def test_runs_find_their_row_by_their_recipe_and_not_by_their_name(tmp_path):
    recipe = SUITES["demo"].rows[2].recipe.with_(seed=1)
    make_run(tmp_path / "anywhere" / "x", recipe, 24.5)
    write_plan(tmp_path, PLAN)
    collection = collect(tmp_path)
    assert [row.label for row in collection.rows] == [row.label for row in SUITES["demo"].rows]
    row = collection.rows[2]
    assert [run and run.score for run in row.runs] == [None, 24.5]
    assert (row.scores, row.median, row.parameters, row.seconds) == ([24.5], 24.5, 1234, 5.0)
    assert all(run is None for other in (0, 1, 3, 4) for run in collection.rows[other].runs)


@pytest.mark.parametrize(("step", "is_shown"), [(20, True), (10, False)])
def test_what_was_seen_before_a_run_went_on_is_not_of_its_network(tmp_path, step, is_shown):
    make_run(tmp_path / "a", Recipe(network="preresnet20/diffusive-2@2", data="cifar10"), 9.0)
    seen = {
        "observations": {"step": step, "affinity": [], "features": []},
        "spectrum": {"step": step, "caption": "", "stages": []},
        "stability": {"step": step, "stages": []},
    }
    for name, content in seen.items():
        (tmp_path / "a" / f"{name}.json").write_text(json.dumps(content))
    (run,) = collect(tmp_path).runs
    assert [run.observations, run.spectrum, run.stability] == (
        list(seen.values()) if is_shown else [{}, {}, {}]
    )


def test_a_changed_suite_looks_for_changed_recipes(tmp_path):
    recipe = SUITES["demo"].rows[0].recipe
    make_run(tmp_path / "a", recipe, 20.0)
    make_run(tmp_path / "b", recipe.with_(epochs=3), 21.0)
    write_plan(tmp_path, {**PLAN, "rows": ["1"], "changes": {"epochs": 3}, "seeds": 1})
    row, other = collect(tmp_path).rows
    assert (row.label, row.scores) == ("local baseline", [21.0])
    assert (other.group, other.scores) == ("Other runs in this folder", [20.0])


def test_without_a_suite_seeds_go_together_and_recipes_apart(tmp_path):
    recipe = Recipe(network="restorer8/baseline", data="motifs")
    for seed, score in ((1, 21.0), (0, 20.0), (2, 25.0)):
        make_run(tmp_path / f"seed{seed}", recipe.with_(seed=seed), score)
    make_run(tmp_path / "other", recipe.with_(noise=0.2), 30.0)
    rows = {row.label: row for row in collect(tmp_path).rows}
    first, second = rows
    assert first == "restorer8/baseline on motifs"
    assert second.startswith("restorer8/baseline on motifs (noise is ")
    scores = sorted(row.scores for row in rows.values())
    assert scores == [[20.0, 21.0, 25.0], [30.0]]
    assert {row.median for row in rows.values()} == {21.0, 30.0}


def test_diverged_and_unfinished_runs_have_no_score(tmp_path):
    recipe = Recipe(network="restorer8/baseline", data="motifs")
    make_run(tmp_path / "a", recipe, diverged_at=17)
    make_run(tmp_path / "b", recipe.with_(seed=1))
    (row,) = collect(tmp_path).rows
    assert [run.ending for run in row.runs] == ["diverged", "unfinished"]
    assert (row.scores, row.median) == ([], None)
    assert [run.path.name for run in row.diverged] == ["a"]


def test_the_curve_leaves_out_what_is_no_number(tmp_path):
    recipe = Recipe(network="restorer8/baseline", data="motifs")
    run = make_run(tmp_path / "a", recipe, 20.0)
    run.metrics.append({"epoch": 3, "step": 30, "psnr": None})
    assert run.curve("psnr") == ([10, 20], [10.0, 20.0])


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no runs"):
        collect(tmp_path)


def test_a_corrupt_file_is_named(tmp_path):
    make_run(tmp_path / "a", Recipe(network="restorer8/baseline", data="motifs"), 20.0)
    (tmp_path / "a" / "observations.json").write_text('{"step": ')
    with pytest.raises(CorruptDataError, match=r"observations\.json is not valid JSON"):
        collect(tmp_path)
    (tmp_path / "a" / "observations.json").write_text(json.dumps([1]))
    with pytest.raises(CorruptDataError, match="does not hold a JSON object"):
        collect(tmp_path)


RESTORER = Recipe(network="restorer8/diffusive-1@2", data="motifs")
STAGE = {"verdict": "stable", "growth": None, "blocks": [{"growth": 1.0, "largest": 0.5, "limit": None}]}
SPECTRUM = {"caption": "", "stages": [{"name": "s", "form": "diffusive", "weights": []}]}
SEEN = {"step": 20, "affinity": [], "features": [], "psnr": {"noisy": [8.0, None], "restored": [9.0, 9.5]}}


@pytest.mark.parametrize(
    ("name", "change", "lacks"),
    [
        ("result.json", {"metrics": None}, "metrics"),
        ("result.json", {"outcome": {"ending": "diverged"}}, "outcome.step"),
        ("result.json", {"parameters": None}, "parameters"),
        ("result.json", {"seconds": "5"}, "seconds"),
        ("result.json", {"machine": {"cpu": "abacus"}}, "machine.cores"),
        ("result.json", {"versions": None}, "versions"),
        ("observations.json", {"psnr": None}, "psnr"),
        ("observations.json", {"psnr": {"noisy": [8.0]}}, "psnr.restored"),
        ("observations.json", {"features": [{"name": "s", "num_blocks": 1}]}, "features[0].blocks"),
        ("spectrum.json", {"stages": [{"name": "s", "form": "diffusive"}]}, "stages[0].weights"),
        ("stability.json", {"stages": [STAGE, STAGE | {"blocks": None}]}, "stages[1].blocks"),
    ],
)
def test_what_a_report_reads_must_be_there(tmp_path, name, change, lacks):
    make_run(tmp_path / "a", RESTORER, 24.5)
    path = tmp_path / "a" / name
    made = {"observations.json": SEEN, "spectrum.json": SPECTRUM, "stability.json": {"stages": [STAGE]}}
    whole = made[name] if name in made else read_json(path)
    path.write_text(json.dumps(whole))
    collect(tmp_path)
    path.write_text(json.dumps(whole | change))
    with pytest.raises(CorruptDataError, match=re.escape(f"{path} lacks {lacks}; restore it")):
        collect(tmp_path)


def test_a_look_at_a_run_without_a_checkpoint_lacks_nothing(tmp_path):
    make_run(tmp_path / "a", RESTORER, diverged_at=3)
    (tmp_path / "a" / "observations.json").write_text('{"format": 2, "step": null}')
    assert collect(tmp_path).rows[0].example is None


def test_a_line_of_metrics_without_its_step_is_named(tmp_path):
    make_run(tmp_path / "a", RESTORER, 24.5)
    path = tmp_path / "a" / "metrics.jsonl"
    path.write_text('{"epoch": 1, "step": 10}\n{"epoch": 2, "step": null}\n')
    with pytest.raises(CorruptDataError, match=r"metrics\.jsonl, line 2, lacks step; delete that line"):
        collect(tmp_path)


def test_of_a_run_that_is_there_twice_the_finished_one_counts_and_both_are_named(tmp_path):
    recipe = Recipe(network="restorer8/baseline", data="motifs")
    make_run(tmp_path / "a", recipe)
    make_run(tmp_path / "b", recipe, 24.5)
    row, other = collect(tmp_path).rows
    assert (row.scores, row.runs[0].path.name) == ([24.5], "b")
    assert (other.group, other.runs[0].path.name) == ("Runs that are there twice", "a")


def test_what_is_broken_is_named(tmp_path):
    recipe = Recipe(network="restorer8/baseline", data="motifs")
    make_run(tmp_path / "a", recipe, 24.5)
    (tmp_path / "suite.json").write_text('{"seeds": 2}')
    with pytest.raises(CorruptDataError, match=r"suite.json lacks name; restore it"):
        collect(tmp_path)
    for wrong in ({"rows": [3]}, {"changes": "abc"}, {"name": []}, {"seconds": None}, {"command": 3}):
        (tmp_path / "suite.json").write_text(json.dumps(PLAN | wrong))
        with pytest.raises(CorruptDataError, match=rf"suite.json lacks {next(iter(wrong))}.*; restore it"):
            collect(tmp_path)
    (tmp_path / "suite.json").unlink()
    (tmp_path / "a" / "result.json").write_text("{}")
    with pytest.raises(CorruptDataError, match=r"result.json does not say how the run ended"):
        collect(tmp_path)
    (tmp_path / "a" / "recipe.json").write_text('{"name": "another program\'s"}')
    with pytest.raises(CorruptDataError, match=r"recipe.json is no recipe of this version"):
        collect(tmp_path)
    record = make_run(tmp_path / "c", recipe, 24.5)
    (tmp_path / "c" / "observations.safetensors").write_bytes(b"half")
    with pytest.raises(CorruptDataError, match=r"observations.safetensors is damaged"):
        record.tensors  # noqa: B018
