"""nonloc train: a recipe from flags, files and the environment; every way to end."""

import json
import os
import shlex
import signal

import pytest
import torch
import yaml

from nonloc.cli import main
from nonloc.outcomes import Outcome
from nonloc_paper.commands.train import advice
from nonloc_paper.runs import Run
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.session import Session

TINY = shlex.split(
    "--network restorer8/diffusive-1@2 --data motifs --train_images 64 --test_images 16 --epochs 1 --steps_per_epoch 2 "
    "--batch_size 8 --optimizer adam --schedule constant --learning_rate 0.01 --device cpu"
)


def test_it_trains_and_says_where_and_refuses_another_recipe(tmp_path, capsys):
    words = ["train", *TINY, "--run", str(tmp_path / "run")]
    assert main(words) == 0
    out, err = capsys.readouterr()
    result = Run.open(tmp_path / "run").read_result()
    assert result["outcome"]["ending"] == "converged"
    assert f"{result['metrics']['psnr']:.2f} dB PSNR" in out
    assert str(tmp_path / "run") in out
    assert "step 2/2" in err
    assert main([*words, "--seed", "1", "--quiet"]) == 2
    assert "seed is 1, was 0" in capsys.readouterr().err


def test_json_is_all_of_stdout(tmp_path, capsys):
    assert main(["train", *TINY, "--run", str(tmp_path / "run"), "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["outcome"]["ending"] == "converged"
    assert answer["result"] == Run.open(tmp_path / "run").read_result()
    assert "restorer8/diffusive-1@2 on motifs" in err


def test_the_default_folder_is_named_after_the_recipe_and_a_finished_run_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *TINY, "--captured", "false", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("motifs-restorer8-diffusive-1@2-seed0-")
    before = (folder / "result.json").stat().st_mtime_ns
    monkeypatch.setattr(Run, "lock", None)  # a folder that nothing can be written to has none
    assert main(["train", *TINY, "--quiet"]) == 0
    assert (folder / "result.json").stat().st_mtime_ns == before


def test_the_number_of_threads_is_of_the_machine_and_not_of_the_recipe(tmp_path):
    """So a run goes on with another number, and its result names both."""
    words = ["train", *TINY, "--run", str(tmp_path), "--quiet"]
    before = torch.get_num_threads()
    try:
        assert main([*words, "--threads", "3", "--budget", "0s"]) == 0
        assert main([*words, "--threads", "1"]) == 0
    finally:
        torch.set_num_threads(before)
    result = Run.open(tmp_path).read_result()
    assert result["machine"]["threads"] == 1
    assert [part["machine"]["threads"] for part in result["earlier"]] == [3]


def test_print_config_goes_round_through_config(tmp_path, capsys):
    words = ["--stage.init_std", "0.25", "--milestones", "[3, 5]", "--seed", "7", "--print_config"]
    with pytest.raises(SystemExit) as end:
        main(["train", *TINY, *words])
    assert end.value.code == 0
    (tmp_path / "recipe.yaml").write_text(capsys.readouterr().out)
    words = ["--config", str(tmp_path / "recipe.yaml"), "--run", str(tmp_path / "run"), "--quiet"]
    assert main(["train", *words]) == 0
    recipe = Run.open(tmp_path / "run").read_recipe()
    assert (recipe["network"], recipe["seed"], recipe["milestones"]) == ("restorer8/diffusive-1@2", 7, [3, 5])
    assert recipe["stage"]["init_std"] == 0.25
    assert recipe["train_images"] == 64


def test_flags_win_over_the_file_and_the_file_over_the_environment(tmp_path, capsys, monkeypatch):
    (tmp_path / "recipe.json").write_text(json.dumps({"epochs": 5, "batch_size": 32}))
    monkeypatch.setenv("NONLOC_TRAIN__EPOCHS", "4")
    monkeypatch.setenv("NONLOC_TRAIN__BATCH_SIZE", "16")
    monkeypatch.setenv("NONLOC_TRAIN__STAGE__INIT_STD", "0.125")
    with pytest.raises(SystemExit):
        main(["train", "--config", str(tmp_path / "recipe.json"), "--epochs", "6", "--print_config"])
    answer = yaml.safe_load(capsys.readouterr().out)
    assert (answer["epochs"], answer["batch_size"], answer["stage"]["init_std"]) == (6, 32, 0.125)


@pytest.mark.parametrize("name", ["NONLOC_TRAIN__LEARNINGRATE", "NONLOC_TRAIN_LEARNING_RATE"])
def test_a_variable_that_sets_no_option_is_refused(capsys, monkeypatch, name):
    monkeypatch.setenv(name, "5")
    assert main(["train", "--print_config"]) == 2
    assert "is NONLOC_TRAIN__LEARNING_RATE meant?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"stage: null", "stage must hold options by name, such as {hidden: 8}, got null"),
        (b"stage: 3", "stage must hold options by name, such as {hidden: 8}, got 3"),
        (b"stage: [1]", "stage must hold options by name, such as {hidden: 8}, got [1]"),
        ("network: é".encode("latin-1"), "recipe.yaml: it is not UTF-8"),
        (b"", "recipe.yaml: options by name are needed"),
        (b"stage: {hiden: 3}", "there is no option 'hiden'; the nearest is stage.hidden"),
        (b"config: 3", "recipe.yaml: config cannot be set in a config file; leave it out"),
        (b"seed: !!timestamp x", "recipe.yaml: the value 'seed: !!timestamp x' cannot be read"),
        (
            b"milestones: &a [*a]",
            "recipe.yaml: the value 'milestones: &a [*a]' repeats a part of itself (*a)",
        ),
        (b"milestones: " + b"[" * 3000 + b"]" * 3000, "characters) is nested more than 20 deep"),
        (b"# x\n" * 30000, "recipe.yaml: it has more than 100,000 bytes"),
    ],
    ids=["null", "3", "list", "latin-1", "empty", "unknown", "config", "tag", "alias", "deep", "long"],
)
def test_a_config_file_that_cannot_be_meant_is_refused_by_its_name(
    tmp_path, monkeypatch, capsys, content, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_bytes(content)
    assert main(["train", "--config", "recipe.yaml"]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--stage.hidden", str(10**12)], "with --stage.hidden 1000000000000, --stage.embed null would need"),
        (["--stage.backend", "attention"], "error: --stage.backend attention needs features in float16"),
        (["--steps_per_epoch", "99"], "but 64 images make 8 batches of --batch_size 8"),
    ],
    ids=["when it is built", "in its first step", "by its data"],
)
def test_a_run_that_fails_at_its_start_leaves_nothing(tmp_path, capsys, option, message):
    assert main(["train", *TINY, "--run", str(tmp_path / "new" / "run"), *option]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_options_of_stages_are_refused_for_a_network_without_but_a_recorded_recipe_has_them(tmp_path, capsys):
    words = ["train", *TINY, "--network", "restorer8/baseline", "--budget", "0s", "--quiet"]
    assert main([*words, "--run", str(tmp_path / "run"), "--stage.scaled", "true", "--stage.embed", "3"]) == 2
    wrong = "restorer8/baseline has no nonlocal stages, so --stage.embed, --stage.scaled would do nothing"
    assert wrong in capsys.readouterr().err
    (tmp_path / "recipe.json").write_text('{"stage": {"scaled": true, "init_std": 1}}')
    (tmp_path / "none.yaml").write_text("stage: null")
    words += ["--run", str(tmp_path / "run"), "--config", str(tmp_path / "none.yaml")]
    words += ["--config", str(tmp_path / "recipe.json")]
    assert main([*words, "--stage.embed", "3"]) == 2
    assert "so --stage.embed would do nothing" in capsys.readouterr().err
    assert main([*words, "--config", "{stage: {hidden: 3}}"]) == 2
    assert "so --stage.hidden would do nothing" in capsys.readouterr().err
    assert main(words) == 0


def test_a_config_file_may_be_a_pipe_also_for_a_network_without_stages(tmp_path):
    read, write = os.pipe()
    os.write(write, b'{"network": "restorer8/baseline", "stage": {"scaled": true}}')
    os.close(write)
    words = [*TINY[2:], "--config", f"/dev/fd/{read}", "--run", str(tmp_path), "--budget", "0s", "--quiet"]
    assert main(["train", *words]) == 0
    os.close(read)


def test_divergence_is_exit_3_and_recorded(tmp_path, capsys):
    words = [
        "train",
        *TINY,
        *shlex.split("--optimizer sgd --learning_rate 1e30 --epochs 3 --run"),
        str(tmp_path / "r"),
    ]
    assert main([*words, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["outcome"]["ending"] == "diverged"
    assert Run.open(tmp_path / "r").read_result()["outcome"]["ending"] == "diverged"
    assert main([*words, "--quiet"]) == 3, "also when it has diverged before"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"network": ', "is not valid JSON"),
        ('{"name": "soup"}', "recipe.json is no recipe of this version: 'name' is not a field"),
    ],
    ids=["torn", "of another program"],
)
def test_a_damaged_recipe_is_exit_4_and_not_overwritten(tmp_path, capsys, content, message):
    path = tmp_path / "run" / "recipe.json"
    path.parent.mkdir()
    path.write_text(content)
    assert main(["train", *TINY, "--run", str(path.parent), "--quiet"]) == 4
    assert message in capsys.readouterr().err
    assert path.read_text() == content


def test_a_locked_folder_is_exit_5_and_capturing_without_a_cuda_device_exit_2(tmp_path, capsys):
    words = ["train", *TINY, "--run", str(tmp_path / "run"), "--quiet"]
    with Run(tmp_path / "run").lock():
        assert main(words) == 5
    assert "is in use by process" in capsys.readouterr().err
    assert main([*words, "--captured", "true"]) == 2
    assert "--captured true needs --device cuda" in capsys.readouterr().err


def test_advice_is_for_stages_that_diverged_and_names_what_is_not_there_yet():
    gone, trained = Outcome("diverged", 1, 3), Outcome("finished", 1, 3)
    recipe = Recipe(network="preresnet20/original-4@2")
    assert "--stage.scaled true" in advice(recipe, gone)
    assert "--stage.init_std" not in advice(recipe, gone), "it has a small one"
    assert "--stage.init_std 0.01" in advice(recipe.with_(stage={"init_std": 0.07}), gone)
    assert "--stage.init_std 0.01" in advice(recipe.with_(stage={"init": "torch"}), gone)
    for change in ({"scaled": True}, {"affinity": "concat"}, {"affinity": "dot"}):
        assert "--stage.scaled true" not in advice(recipe.with_(stage=change), gone)
    assert "--stage.share_affinity true" in advice(recipe, gone)
    for network in ("preresnet20/original-1@2", "preresnet20/diffusive-4@2"):
        assert "share_affinity" not in advice(recipe.with_(network=network), gone)
    assert "share_affinity" not in advice(recipe.with_(stage={"share_affinity": True}), gone)
    recomputed = recipe.with_(network="preresnet20/diffusive-4@2", stage={"share_affinity": False})
    assert "--stage.share_affinity true" in advice(recomputed, gone)
    assert "--learning_rate below 0.1" in advice(recipe, gone)
    assert advice(recipe, trained) == ""
    assert advice(recipe.with_(network="preresnet20/baseline"), gone) == ""


def test_a_spent_budget_saves_and_exits_0(tmp_path, capsys):
    words = ["train", *TINY, "--run", str(tmp_path / "run"), "--quiet"]
    assert main([*words, "--budget", "0s"]) == 0
    assert "was interrupted after saving" in capsys.readouterr().out
    assert not Run.open(tmp_path / "run").is_finished
    assert main(words) == 0
    assert Run.open(tmp_path / "run").is_finished


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_same_command_continues(tmp_path, capsys, monkeypatch, number, code):
    words = ["train", *TINY, "--epochs", "3", "--run", str(tmp_path / "run"), "--quiet", "--json"]
    finish_epoch = Session.finish_epoch

    def signal_and_finish(session, measured):
        os.kill(os.getpid(), number)
        return finish_epoch(session, measured)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "finish_epoch", signal_and_finish)
        assert main(words) == code
    answer = json.loads(capsys.readouterr().out)
    assert answer["outcome"]["ending"] == "interrupted"
    assert answer["result"] is None
    run = Run(tmp_path / "run")
    (reached,) = run.read_metrics()
    assert main(words) == 0
    assert run.read_metrics()[0] == reached, "what was done was not done again"
    assert [line["epoch"] for line in run.read_metrics()] == [1, 2, 3]
