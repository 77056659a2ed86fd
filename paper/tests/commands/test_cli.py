"""The command line as a whole: help without torch, usage errors, the environment, the words."""

import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from jsonargparse import Namespace

from nonloc.cli import main
from nonloc.cli.commands import find_commands, load_command
from nonloc.cli.durations import format_duration, parse_duration
from nonloc.cli.output import Output
from nonloc.cli.parser import with_underscores
from nonloc.nn.options import StageOptions
from nonloc_paper.training.recipe import Recipe

ROOT = Path(__file__).parents[3]
COMMANDS = find_commands()
RECORD = str(ROOT / "paper" / "results" / "table1" / "baseline" / "0")
HUGE = str(10**20)


def test_neither_help_nor_pages_of_records_need_torch(tmp_path):
    """In one fresh process: `--help` of every command, a page of a recorded run, and the pages of kept records."""
    records = shutil.copytree(RECORD, tmp_path / "results" / "table1" / "baseline" / "0").parents[2]
    code = f"""
import sys
from nonloc.cli import main
for words in [[], *([name] for name in {list(COMMANDS)})]:
    try:
        main([*words, "--help"])
    except SystemExit as end:
        assert end.code == 0
heavy = {{"torch", "numpy", "matplotlib", "sklearn", "safetensors", "pooch"}} & set(sys.modules)
assert not heavy, f"--help imported {{heavy}}"
assert main(["report", {RECORD!r}, "--output", {str(tmp_path / "page.html")!r}]) == 0
assert main(["report", {str(records)!r}, "--output", {str(tmp_path / "pages")!r}]) == 0
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: nonloc") == 1 + len(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = capsys.readouterr().out
    assert f"  nonloc {name} " in text, "an example"
    assert "Exit codes: 0" in text
    assert f"NONLOC_{name.upper()}__" in text or name == "simulate"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_runs_in_its_examples_have_weights(name):
    """As seeds are added, another run of a row may become the one whose weights are kept."""
    named = re.findall(r"\bpaper/results/\w[\w-]*/[\w-]+/\d+", load_command(COMMANDS[name]).DESCRIPTION)
    assert named or name not in ("eval", "stability")
    for path in named:
        assert list((ROOT / path / "checkpoints").glob("*.safetensors")), (
            f"no weights in {path}; name another"
        )


def test_every_field_of_a_recipe_is_explained():
    assert all(one.metadata["help"] for kind in (Recipe, StageOptions) for one in fields(kind))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "command"),
        (["trian"], "train"),
        (["train", "--epoch", "3"], "the nearest to --epoch is --epochs"),
        (["train", "--lr", "3"], "the nearest to --lr is --learning_rate"),
        (["train", "--scale=true"], "the nearest to --scale is --stage.scaled"),
        (["train", "--xyz", "3"], "unrecognized arguments: --xyz 3\n"),
        (["train", "--batch-size", "0"], "error: --batch_size must be a whole number ≥ 1"),
        (["train", "--nesterov=true", "--momentum=0"], "; set --nesterov false"),
        (["train", "--network", "own-classifier/x"], "in Python, give it as model= to fit"),
        (["train", "--stage", "3"], "--stage: options by name are needed"),
        (["train", "--stage", "{hidden: x}"], "error: --stage.hidden must be a whole number or null"),
        (["train", "--network", "resnet20"], "such as preresnet20/diffusive-5@2"),
        (["train", "--stage.init", "small"], "error: --stage.init small is unknown; choose one of normal"),
        (["train", "--budget", "soon"], "'soon' is not a length of time"),
        (["train", "--config", "no-such-file.yaml"], "no-such-file.yaml"),
        (["reproduce", "table3"], "'table3' is not a suite; choose one of demo, table1, table2"),
        (
            ["reproduce", "demo", "--set", "epoch=3"],
            "'epoch' is not a field of the recipe; the nearest is epochs; ",
        ),
        (["reproduce", "demo", "--set", "scaled=true"], "the nearest is stage.scaled; "),
        (
            ["reproduce", "demo", "--set", "xyz=3"],
            "'xyz' is not a field of the recipe; the fields are network,",
        ),
        (["reproduce", "demo", "--set", "epochs"], "write FIELD=VALUE"),
        (["reproduce", "demo", "--set", "stage.hidden=0"], "error: stage.hidden must be a whole number ≥ 1"),
        (["reproduce", "demo", "--set", "data=mnist"], "choose one of motifs, cifar10, cifar100"),
        (["reproduce", "demo", "--set", "steps_per_epoch=None"], "≥ 1 or null, got 'None'"),
        (["reproduce", "demo", "--set", "epochs=1", "epochs=2"], "epochs is set before it"),
        (["reproduce", "demo", "--set", "stage.hidden=1", "stage.hidden=2"], "stage.hidden is set before it"),
        (
            ["reproduce", "demo", "--set", "stage.scaled=true", 'stage={"init_std": 0.3}'],
            "stage is set before it, in whole or in part; set it once",
        ),
        (["reproduce", "demo", "--set", "stage=1", "stage.embed=2"], "set one or the other"),
        (
            ["reproduce", "demo", "--rows", "local baseline", "--set", "stage.scaled=true"],
            "no row that is chosen has nonlocal stages",
        ),
        (["reproduce", "table1", "--quick"], "--quick is for the demo"),
        (["reproduce", "demo", "--quick", "--seeds", "2"], "leave out --rows, --set and --seeds"),
        (["reproduce", "demo", "--engine", "slurm"], "not a known engine; choose one of local, ray"),
        (["reproduce", "demo", "--device", "bread"], "--device bread is unknown"),
        (["reproduce", "demo", "--side-by-side", "0"], "--side_by_side must be"),
        (["reproduce", "demo", "--processes", "0"], "--processes must be"),
        (["reproduce", "demo", "--kept", "no-such-folder"], "--kept no-such-folder is not a folder"),
        (["reproduce", "demo", "--keep", "--kept", "/dev/null"], "--kept /dev/null is not a folder"),
        (["reproduce", "demo", "--weights", "some"], "--weights some is unknown; choose one of median"),
        (["reproduce", "demo", "--output", "/dev/null/x"], "/dev/null/x: a file is there, or above it"),
        (["train", "--threads", "0"], "error: --threads must be"),
        (["train", "--epochs", "abc"], "error: --epochs must be a whole number, got abc\n"),
        (["train", "--stage.init_std", "nan"], "error: --stage.init_std must be a number or null, got nan\n"),
        (["train", "--captured", "maybe"], "error: --captured must be true or false or null, got maybe\n"),
        (["train", "--threads", "true"], "error: --threads must be a whole number or null, got true\n"),
        (["train", "--milestones", "1,2"], "error: --milestones must be a list such as [1,2], got 1,2\n"),
        (["train", "--precision", "half"], "error: --precision must be one of float32, bfloat16, got half\n"),
        (["check", "--positions", "0"], "error: --positions must be"),
        (["reproduce", "demo", "--seeds", HUGE], f"seeds must be at most 1,000, got {HUGE}"),
        (["reproduce", "demo", "--threads", HUGE], f"threads must be at most 1,000, got {HUGE}"),
        (["reproduce", "demo", "--rows", "9" * 5000], "is no row of demo"),
        (["reproduce", "demo", "--set", "milestones=" + "[" * 10**5], "milestones must be a list of epochs"),
        (["map", "two_epochs"], "is no part of the map; choose one of one_epoch, ten_epochs"),
        (["map", "one_epoch", "--only", "rate 7"], "no cell of one_epoch has 'rate 7' in its name"),
        (["map", "one_epoch", "--set", "learning_rate=1"], "a cell of the map says that itself"),
        (["map", "one_epoch", "--seeds", HUGE], f"seeds must be at most 1,000, got {HUGE}"),
        (["train", "--seed", "{0}"], "the value '{0}' cannot be read"),
        (["train", "--budget", "9" * 307 + "d"], "is not a length of time"),
        (["check", "--positions", str(10**11)], "use fewer positions"),
        (["check", "--seed", HUGE], "--seed must be a whole number of less than 63 bits"),
        *(
            ([name, RECORD, "--device", "foo"], "--device foo is unknown; use cpu or cuda")
            for name in ("eval", "spectrum", "stability")
        ),
        (["eval", "."], ". is not a run folder, and holds none"),
        (["eval", "nowhere"], "nowhere is not a folder"),
        (["spectrum", RECORD], "has no nonlocal blocks"),
        (["stability", "."], "it has no recipe.json; name one that training made"),
        (["stability", RECORD, "--images", "0"], "--images must be a whole number ≥ 1"),
        (["stability", RECORD, "--images", HUGE], f"--images must be at most 1,000,000, got {HUGE}"),
        (["data", "mnist"], "choose one of motifs, cifar10, cifar100"),
        (["simulate", "diffusion", "--size=--"], "argument --size: expected a value, got --"),
        (["train", "--print-config=--"], "argument --print-config: expected a value, got --"),
        (["spectrum", "no-such-run"], "no-such-run is not a run folder"),
        (["report", "no-such-folder"], "no-such-folder is not a folder"),
        (["report", RECORD, "--beside", "."], "--beside . has no kept records"),
    ],
    ids=lambda words: " ".join(words)[:80],
)
def test_wrong_usage_is_one_clear_line_and_exit_2(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("nonloc: error: ")
    assert err.count("\n") == 1
    assert message in err
    assert list(tmp_path.iterdir()) == [], "nothing was made"


def test_version_and_debug(monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, "nonloc 0.1.0\n")
    monkeypatch.setenv("NONLOC_DEBUG", "1")
    with pytest.raises(ValueError, match="mnist"):
        main(["data", "mnist"])


def test_dashes_and_underscores_are_the_same_in_names_of_options_only():
    words = with_underscores(["data", "a-b", "--data-dir=c-d", "--data-dir", "e-f", "-x-y"])
    assert words == ["data", "a-b", "--data_dir=c-d", "--data_dir", "e-f", "-x-y"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("25m", 1500), ("1.5h", 5400), (" 2 d ", 172800)]
)
def test_lengths_of_time(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_lengths_of_time_are_written_as_people_do(seconds, text):
    assert format_duration(seconds) == text


def test_data_are_counted_and_the_folder_variable_is_no_option(capsys, monkeypatch, tmp_path):
    # NONLOC_DATA is the data folder; it must not be taken for the configuration of `nonloc data`.
    monkeypatch.setenv("NONLOC_DATA", str(tmp_path))
    assert main(["data", "motifs", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    expected = {"train": 4096, "test": 512, "shape": [3, 12, 12], "classes": 0}
    assert answer | expected == answer


def test_missing_and_corrupt_data_have_exit_codes_of_their_own(capsys, tmp_path):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"not an archive")
    assert main(["data", "cifar10", "--data-dir", str(tmp_path)]) == 4
    assert "cifar-10-binary.tar.gz has a wrong MD5" in capsys.readouterr().err
    words = ["--data-dir", str(tmp_path / "empty"), "--run", str(tmp_path / "run")]
    assert main(["train", "--data", "cifar10", *words]) == 1
    assert "CIFAR-10 is not in" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [["reproduce", "table1", "--kept", "."], ["map", "ten_epochs"]])
def test_without_its_data_no_run_is_begun(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where no run is kept
    words = ["--data-dir", str(tmp_path / "empty"), "--output", str(tmp_path / "runs")]
    assert main([*command, *words]) == 1
    assert capsys.readouterr().err.startswith("nonloc: error: CIFAR-10 is not in")


def test_a_closed_pipe_is_no_error():
    with subprocess.Popen(
        [sys.executable, "-m", "nonloc", "data", "motifs"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_an_error_into_a_closed_pipe_keeps_its_exit_code():
    with subprocess.Popen([sys.executable, "-m", "nonloc", "bogus"], stderr=subprocess.PIPE) as process:
        process.stderr.close()
        assert process.wait(60) == 2


def test_a_closed_stdout_is_no_error_and_a_closed_stderr_sends_none_to_stdout(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["data", "mnist"]) == 2
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["data", "motifs"]) == 0


def test_a_terminal_without_unicode_loses_no_result(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "latin-1"))
    with pytest.raises(SystemExit) as end:
        main(["train", "--help"])
    sys.stdout.flush()
    assert end.value.code == 0
    assert b"\\u221ad" in raw.getvalue(), "√d, which latin-1 does not have"


def test_json_is_json_in_any_encoding(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "latin-1", "backslashreplace"))
    Output(Namespace(json=True, quiet=True)).result("", {"é √": "W_Z · φ"})
    assert json.loads(raw.getvalue().decode("latin-1")) == {"é √": "W_Z · φ"}
