"""collect: run folders in the rows of their suite, or in rows of their own."""

import json
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from made import RESTORER, make_run
from made_records import certified, during, stability, weight

from nonloc.outcomes import CorruptDataError
from nonloc_paper.map.table import MapTable
from nonloc_paper.report.records import collect, read_run
from nonloc_paper.report.tensors import read_tensors
from nonloc_paper.runs import find_runs, read_json
from nonloc_paper.suites import SUITES
from nonloc_paper.suites.rows import write_plan
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
    make_run(tmp_path / "a", Recipe(network="preresnet20/diffusive-2@2", data="cifar10", epochs=2), 9.0)
    where = {"format": 2, "step": step, "epoch": 2}
    more = {"task": "classification", "batch_size": 32, "affinity": [], "features": []}
    seen = {
        "observations": where | more,
        "spectrum": where | {"caption": "", "stages": []},
        "stability": {"step": step} | stability([]),
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
    for seed, score in ((1, 21.0), (0, 20.0), (2, 25.0)):
        make_run(tmp_path / f"seed{seed}", RESTORER.with_(seed=seed), score)
    make_run(tmp_path / "other", RESTORER.with_(noise=0.2), 30.0)
    rows = {row.label: row for row in collect(tmp_path).rows}
    first, second = rows
    assert first == "restorer8/baseline on motifs"
    assert second.startswith("restorer8/baseline on motifs (noise is ")
    scores = sorted(row.scores for row in rows.values())
    assert scores == [[20.0, 21.0, 25.0], [30.0]]
    assert {row.median for row in rows.values()} == {21.0, 30.0}


def test_labels_name_the_few_settings_that_tell_runs_apart(tmp_path):
    short = {
        "epochs": 9,
        "steps_per_epoch": 50,
        "batch_size": 16,
        "optimizer": "adam",
        "schedule": "onecycle",
    }
    changes = [{}, short, short | {"noise": 0.2}, {"noise": 0.2}, {"spectrum_epochs": tuple(range(99))}]
    for number, change in enumerate(changes):
        make_run(tmp_path / str(number), RESTORER.with_(**change))
    labels = [row.label for row in collect(tmp_path).rows]
    start = "restorer8/baseline on motifs"
    assert labels[:4] == [
        start,
        f"{start} (epochs is 9; and 4 more)",
        f"{start} (epochs is 9; noise is 0.2; and 4 more)",
        f"{start} (noise is 0.2)",
    ]
    assert re.fullmatch(
        re.escape(start) + r" \(spectrum_epochs is \[0, 1, [^()]* 98\] \(386 characters\)\)", labels[4]
    )
    assert max(map(len, labels)) < 120


def test_different_runs_have_different_labels(tmp_path):
    """Also where long values differ in their middle alone, and where a run is there twice."""
    recipe = RESTORER.with_(epochs=200)
    changes = [
        {"spectrum_epochs": tuple(one for one in range(101) if one != left_out)} for left_out in (50, 51)
    ]
    for number, change in enumerate([{}, *changes, changes[1]]):
        make_run(tmp_path / str(number), recipe.with_(**change))
    first, second, third, copy = (row.label for row in collect(tmp_path).rows)
    assert len({first, second, third}) == 3
    assert copy == third


def test_diverged_and_unfinished_runs_have_no_score(tmp_path):
    make_run(tmp_path / "a", RESTORER, diverged_at=17)
    make_run(tmp_path / "b", RESTORER.with_(seed=1))
    (row,) = collect(tmp_path).rows
    assert [run.ending for run in row.runs] == ["diverged", "unfinished"]
    assert (row.scores, row.median) == ([], None)
    assert [run.path.name for run in row.diverged] == ["a"]


def test_the_curve_leaves_out_what_is_no_number(tmp_path):
    recipe = RESTORER.with_(epochs=2)
    run = make_run(tmp_path / "a", recipe, 20.0)
    run.metrics.append({"epoch": 3, "step": 30, "psnr": None})
    assert run.curve("psnr") == ([10, 20], [10.0, 20.0])


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no runs"):
        collect(tmp_path)


def test_a_corrupt_file_is_named(tmp_path):
    make_run(tmp_path / "a", RESTORER, 20.0)
    (tmp_path / "a" / "observations.json").write_text('{"step": ')
    with pytest.raises(CorruptDataError, match=r"observations\.json is not valid JSON"):
        collect(tmp_path)
    (tmp_path / "a" / "observations.json").write_text(json.dumps([1]))
    with pytest.raises(CorruptDataError, match="does not hold a JSON object"):
        collect(tmp_path)


DIFFUSIVE = RESTORER.with_(network="restorer8/diffusive-1@2", epochs=2, spectrum_epochs=(1,))
WHERE = {"format": 2, "step": 20, "epoch": 2}
STATE = {"norm": 1.0, "mean": 0.0, "variance": 1.0, "energy": None}
BLOCK = {"verdict": "stable", "growth": 1.0, "largest": 0.5, "lowest": 0.1, "limit": None}
AFFINITY = {"position": [2, 2], "grid": [4, 4], "spread": 0.5, "same_share": None, "same_chance": 0.1}
TRACED = {"block": 1, "before": STATE, "after": STATE}
STAGE = {"name": "trunk.stages.2", "form": "diffusive", "num_blocks": 1}
MADE = {
    "observations.json": WHERE
    | {"task": "restoration", "batch_size": 32, "input_psnr": 8.0}
    | {"affinity": [{"stage": "trunk.stages.2", **AFFINITY}], "features": []}
    | {"features": [STAGE | {"channels": 8, "blocks": [TRACED]}]}
    | {"psnr": {"noisy": [8.0, None], "restored": [9.0, 9.5]}},
    "spectrum.json": WHERE
    | {"caption": "", "stages": [{"name": STAGE["name"], "form": "diffusive", "weights": [weight(0.3)]}]},
    "spectra.jsonl": [
        {"epoch": epoch, "stages": [during({"name": STAGE["name"], "weights": [weight(0.3)]})]}
        for epoch in range(3)
    ],
    "stability.json": stability(
        [certified(2, form="diffusive", verdict="stable", growth=None, blocks=[BLOCK])]
    ),
}


def change(value, place, new):
    """Set, or with KeyError delete, what stands at a place such as "stages.0.name"."""
    *above, last = [int(word) if word.isdecimal() else word for word in place.split(".")]
    for word in above:
        value = value[word]
    if new is KeyError:
        del value[last]
    else:
        value[last] = new


@pytest.mark.parametrize(
    ("name", "place", "new", "wrong"),
    [
        ("result.json", "outcome.step", KeyError, "lacks outcome.step"),
        ("result.json", "outcome.step", 19, "ends at epoch 2, step 19, which its recipe"),
        ("result.json", "outcome.epoch", 1, "ends at epoch 1, step 20, which its recipe"),
        ("result.json", "outcome.ending", "diverged", "ends at epoch 2, step 20, which its recipe"),
        ("result.json", "seconds", 0.01, "has fewer seconds than the last line"),
        ("result.json", "weights_sha256", None, "must have weights_sha256 just where"),
        ("result.json", "mectrics", {}, "has an unknown field 'mectrics'"),
        ("result.json", "metrics.psnr", 24.4, "has outcome.metrics that are not its metrics"),
        ("metrics.jsonl", "0.error", 101, "line 1, has error 101, not a finite number ≥ 0 ≤ 100"),
        ("metrics.jsonl", "0.error", 50, "line 1, must have psnr as its score"),
        ("metrics.jsonl", "0.step", 11, "line 2, has step 20, not 22"),
        ("metrics.jsonl", "1.step", None, "line 2, has step None, not a whole number"),
        ("metrics.jsonl", "1.epoch", 1, "line 2, has epoch 1, not 2 of 2"),
        ("metrics.jsonl", "1.psnr", 24.4, "has metrics that are not the last line of metrics.jsonl"),
        ("metrics.jsonl", "0.seconds", 3, "line 2, has fewer seconds than the line before"),
        ("observations.json", "psnr", KeyError, "is not of its recipe's task"),
        ("observations.json", "psnr.restored", [9.0], "is not of its recipe's task"),
        ("observations.json", "task", "classification", "is not of its recipe's task"),
        ("observations.json", "affinity.0.position", [2, 4], "is not of its recipe's task"),
        ("observations.json", "features.0.blocks", KeyError, "lacks features[0].blocks"),
        ("observations.json", "features.0.blocks", [], "has other blocks in trunk.stages.2"),
        ("observations.json", "features.0.form", "original", "has a stage of another form"),
        ("observations.json", "step", None, "has an unknown field 'epoch'"),
        ("spectrum.json", "stages.0.weights", KeyError, "lacks stages[0].weights"),
        ("spectrum.json", "stages.0.weights", [], "has other weights in trunk.stages.2"),
        ("spectrum.json", "stages.0.name", "<b>", "has the stages '<b>', the recipe trunk.stages.2"),
        ("spectrum.json", "stages.0.weights.0.trace", 7.0, "has a trace that is not that of its eigenvalues"),
        ("spectrum.json", "stages.0.weights.0.eigenvalues.7", 1.0, "has eigenvalues that are not sorted"),
        ("spectrum.json", "stages.0.weights.0.negative_share", 0.4, "has a negative_share that is not"),
        ("spectrum.json", "stages.0.weights.0.norm", 0.5, "has a norm that is too small"),
        ("spectrum.json", "stages.0.weights.0.band.low", [0.0], "has a band that does not fit"),
        ("spectra.jsonl", "2.epoch", 3, "has other epochs than its recipe"),
        ("spectra.jsonl", "2", KeyError, "has other epochs than its recipe"),
        ("spectra.jsonl", "0.stages.0.weights.0.positive_energy", 7.0, "line 1, has a positive_energy that"),
        ("stability.json", "stages.0.blocks", None, "has stages[0].blocks None, not a list"),
        ("stability.json", "stages.0.num_blocks", 3, "has a stage of another form or size"),
    ],
)
def test_what_does_not_fit_its_schema_the_recipe_or_another_file_is_named(tmp_path, name, place, new, wrong):
    make_run(tmp_path / "a", DIFFUSIVE, 24.5)
    for other, value in MADE.items():
        lines = value if isinstance(value, list) else [value]
        (tmp_path / "a" / other).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert collect(tmp_path).rows[0].example is not None
    path = tmp_path / "a" / name
    is_lines = name.endswith("l")
    values = [json.loads(line) for line in path.read_text().splitlines()] if is_lines else read_json(path)
    change(values, place, new)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in values) if is_lines else json.dumps(values))
    with pytest.raises(CorruptDataError, match=rf"{tmp_path}/a/\w+\.jsonl?.*{re.escape(wrong)}.*; restore "):
        collect(tmp_path)


def test_a_look_at_a_run_without_a_checkpoint_lacks_nothing(tmp_path):
    make_run(tmp_path / "a", DIFFUSIVE, diverged_at=3)
    (tmp_path / "a" / "observations.json").write_text('{"format": 2, "step": null}')
    assert collect(tmp_path).rows[0].example is None


def test_of_a_run_that_is_there_twice_the_finished_one_counts_and_both_are_named(tmp_path):
    make_run(tmp_path / "a", RESTORER)
    make_run(tmp_path / "b", RESTORER, 24.5)
    row, other = collect(tmp_path).rows
    assert (row.scores, row.runs[0].path.name) == ([24.5], "b")
    assert (other.group, other.runs[0].path.name) == ("Runs that are there twice", "a")


def test_what_is_broken_is_named(tmp_path):
    make_run(tmp_path / "a", RESTORER, 24.5)
    (tmp_path / "suite.json").write_text('{"seeds": 2}')
    with pytest.raises(CorruptDataError, match=r"suite.json lacks name; restore it"):
        collect(tmp_path)
    for wrong in ({"rows": [3]}, {"changes": "abc"}, {"name": []}, {"seconds": None}, {"command": 3}):
        (tmp_path / "suite.json").write_text(json.dumps(PLAN | wrong))
        with pytest.raises(CorruptDataError, match=rf"suite.json has {next(iter(wrong))}.*; restore it"):
            collect(tmp_path)
    (tmp_path / "suite.json").unlink()
    (tmp_path / "a" / "result.json").write_text("{}")
    with pytest.raises(CorruptDataError, match=r"result.json lacks outcome; restore it"):
        collect(tmp_path)
    (tmp_path / "a" / "recipe.json").write_text('{"name": "another program\'s"}')
    with pytest.raises(CorruptDataError, match=r"recipe.json is no recipe of this version"):
        collect(tmp_path)


IMAGES = np.zeros((2, 3, 8, 8), np.uint8)
PIXELS, MAP = IMAGES.astype(np.float32), np.zeros((2, 4, 4), np.float32)
TENSORS = {"images": IMAGES, "noisy": PIXELS, "restored": PIXELS, "affinity.trunk.stages.2": MAP}


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, None),
        ({"restored": None}, None),
        (b"half", "is not a whole safetensors file"),
        ({"images": None}, "has no images, uint8"),
        ({"images": IMAGES.astype(np.int16)}, "has no images, uint8"),
        ({"noisy": PIXELS[:1]}, "has 'noisy' of another type or shape"),
        ({"noisy": PIXELS * np.nan}, "has 'noisy' with numbers that are not finite"),
        ({"affinity.trunk.stages.2": MAP[:, :3]}, "has 'affinity.trunk.stages.2' of another type"),
        ({"more": MAP}, "has 'more' of another type"),
        ({name: value[:1] for name, value in TENSORS.items()}, "has another number of images"),
    ],
)
def test_observed_tensors_fit_what_was_observed(tmp_path, change, wrong):
    content = change
    if isinstance(change, dict):
        tensors = {name: value for name, value in (TENSORS | change).items() if value is not None}
        content = safetensors.numpy.save(tensors)
    path = tmp_path / "observations.safetensors"
    path.write_bytes(content)
    with pytest.raises(CorruptDataError, match=f"{path} {wrong}") if wrong else nullcontext():
        assert read_tensors(path, MADE["observations.json"])["images"].shape == IMAGES.shape
    seen = MADE["observations.json"] | {"tensors_sha256": "0" * 64}
    with pytest.raises(CorruptDataError):
        read_tensors(path, seen)


def test_runs_and_tables_beside_the_results_are_read():
    folder = Path(__file__).parents[2] / "experiments"
    assert all(read_run(run).result is not None for run in find_runs(folder))
    tables = [*folder.rglob("one_epoch*.jsonl"), *folder.rglob("ten_epochs*.jsonl")]
    assert tables
    assert all(MapTable(path).rows for path in tables)
