"""nonloc reproduce, report and spectrum: from a suite to a page, through interruptions."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from nonloc.cli import main
from nonloc.cli.parser import make_command_parser
from nonloc_paper.commands import reproduce
from nonloc_paper.commands.many_runs import parse_changes
from nonloc_paper.commands.terminal import fit_table
from nonloc_paper.report.tables import Table
from nonloc_paper.runs import Run, find_runs, read_json, write_json
from nonloc_paper.suites.train_all import SuiteProgress

SMALL = ["--set", "epochs=2", "steps_per_epoch=2", "train_images=64", "test_images=16", "batch_size=8"]
WORDS = ["reproduce", "demo", "--seeds", "1", "--rows", "1", "3", *SMALL, "--device", "cpu"]
# Reading the recorded runs for the page takes seconds.
ALONE = ["--kept", "null", "--quiet", "--json"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Two rows of the demo, made small: (folder, the JSON result, the messages)."""
    folder = tmp_path_factory.mktemp("reproduce") / "demo"
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*WORDS, "--output", str(folder), "--json"])
    assert code == 0, err.getvalue()
    return folder, json.loads(out.getvalue()), err.getvalue()


def test_every_row_is_run_and_has_the_score_of_its_run(demo):
    folder, result, messages = demo
    assert (result["done"], result["left"], result["reason"]) == (2, [], "")
    assert len(find_runs(folder / "runs")) == 2
    for number, label in ((1, "local baseline"), (2, "4 diffusive blocks")):
        assert f"run {number} of 2: {label} (" in messages
        assert f"\n{label}: epoch 2, step 4/4" in messages
    page = (folder / "report.html").read_text()
    for row in result["rows"]:
        (run,) = row["runs"]
        assert row["median"] == Run.open(run["path"]).read_result()["metrics"]["psnr"]
        assert f">{row['median']:.2f}<" in page
        assert f">{row['parameters']:,}<" in page
        assert f'<th scope="row" data-key="{row["median"]:.2f}">{row["label"]}</th>' in page


def test_the_page_asks_for_nothing_from_outside(demo):
    page = (demo[0] / "report.html").read_text()
    for address in re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)["']""", page):
        assert address.startswith(("data:", "#")), address
    assert "http://" not in page
    assert "https://" not in page
    assert not re.search(r"<script|<link|<iframe|@import|url\((?!#)", page)


def test_the_page_shows_all_that_was_observed(demo):
    page = (demo[0] / "report.html").read_text()
    titles = "; ".join(re.findall(r"<h2[^>]*>([^<]+)", page))
    for title in ("Results", "Training", "Restored images", "Affinity maps", "Spectra", "The features"):
        assert title in titles
    assert page.count("<img ") == 5 * (2 + 2), "five images: clean, noisy and two networks"
    assert page.count("<figcaption>") == 5
    assert "nonloc reproduce demo --output" in page


def test_report_of_runs_without_a_suite_names_them_by_their_networks(demo, capsys):
    folder, _, _ = demo
    assert main(["report", str(folder / "runs")]) == 0
    out = capsys.readouterr().out
    assert "restorer16/baseline on motifs" in out
    assert "restorer16/diffusive-4@2 on motifs" in out
    (folder / "runs" / "report.html").unlink()


def test_spectrum_writes_numbers_and_figures(demo, capsys, tmp_path):
    run = next(run for run in find_runs(demo[0]) if "diffusive-4@2" in run.name)
    assert main(["spectrum", str(run.path), "--output", str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["stages"][0]["weights"]) == 4
    assert result["stages"] == json.loads((run.path / "spectrum.json").read_text())["stages"]
    recorded = run.read_spectra()[-1]["stages"][0]["weights"]
    assert [w["trace"] for w in result["stages"][0]["weights"]] == pytest.approx(
        [w["trace"] for w in recorded], rel=1e-5
    )
    names = {"spectrum.json", "spectrum.svg", "spectrum.png", "features.svg", "features.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert (tmp_path / "spectrum.png").read_bytes().startswith(b"\x89PNG")
    assert "says nothing" in result["caption"], "the caption that warns of counting signs"


def test_the_best_network_is_certified_and_the_same_command_does_nothing_again(demo, capsys):
    folder, result, _ = demo
    best = max(result["rows"], key=lambda row: row["median"])
    has_stage = "baseline" not in best["network"]
    records = [run for run in find_runs(folder) if (run.path / "stability.json").exists()]
    assert [str(run.path) for run in records] == [best["runs"][0]["path"]] * has_stage
    before = {run.path: run.result_path.stat().st_mtime_ns for run in find_runs(folder)}
    assert main([*WORDS, "--output", str(folder), "--quiet"]) == 0
    assert before == {run.path: run.result_path.stat().st_mtime_ns for run in find_runs(folder)}
    *_, headline, _, _, page = capsys.readouterr().out.splitlines()
    assert headline.startswith(f"Best here: “{best['label']}”, {best['median']:.2f} dB"), (
        "the result comes last"
    )
    assert page == str(folder / "report.html")
    assert headline in (folder / "report.html").read_text()


def test_quick_has_a_folder_of_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "demo", "--quick", "--budget", "0s", *ALONE]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in result["rows"]] == ["local baseline", "4 diffusive blocks"]
    assert result["report"] == "demo-quick/report.html"
    again = [*shlex.split(result["command"])[1:], "--budget", "0s", "--quiet", "--json"]
    assert main(again) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == result["rows"]


def test_a_table_that_is_too_wide_loses_its_last_columns_and_says_so():
    table = Table(
        ("name", "score", "parameters"),
        [("a long title of lines",), ("one", "1.50", "12"), ("two", "2", "3")],
    )
    assert fit_table(table, None) == fit_table(table, 40) == table.as_text()
    assert fit_table(table, 16).splitlines() == [
        "name  score",
        "────  ─────",
        "a long title of",
        "lines",
        "one    1.50",
        "two       2",
        "On the page,",
        "too: parameters.",
    ]


def test_another_suite_in_the_folder_is_refused(demo, capsys):
    assert main(["reproduce", "table1", "--output", str(demo[0])]) == 2
    assert "holds the suite 'demo'" in capsys.readouterr().err


def test_a_run_that_another_process_holds_is_passed_over(tmp_path, capsys):
    words = [*WORDS, "--output", str(tmp_path), *ALONE]
    assert main([*words, "--budget", "0s"]) == 0
    left = json.loads(capsys.readouterr().out)["left"]
    assert len(left) == 2
    with Run(tmp_path / "runs" / left[0]).lock():
        assert main(words) == 5
        result = json.loads(capsys.readouterr().out)
        assert result["left"] == left[:1]
        assert [row["n"] for row in result["rows"]] == [0, 1]


def test_the_time_of_another_process_in_the_folder_is_not_lost(tmp_path, capsys, monkeypatch):
    def train(*_, **__):
        path = tmp_path / "suite.json"
        write_json(path, read_json(path) | {"seconds": 100.0})
        return SuiteProgress((), ())

    monkeypatch.setattr(reproduce, "_train", train)
    assert main([*WORDS, "--output", str(tmp_path), *ALONE]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] == pytest.approx(100, abs=1)


def test_a_diverged_row_is_a_result(tmp_path, capsys):
    words = shlex.split("reproduce demo --seeds 2 --rows 1")
    words += [*SMALL, "optimizer=sgd", "learning_rate=1e30"]
    assert main([*words, "--output", str(tmp_path), "--quiet"]) == 0
    assert "diverged at step" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert page.partition("The recorded runs on CIFAR-10</h2>")[0].count("diverged at step") == 2


def test_interrupted_it_saves_names_what_is_left_and_continues(tmp_path, capsys):
    words = [*WORDS, "--output", str(tmp_path), *ALONE]
    words[words.index("epochs=2")] = "epochs=4"
    process = subprocess.Popen(
        [sys.executable, "-m", "nonloc", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("runs/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    result = json.loads(process.communicate(timeout=60)[0])
    assert process.returncode == 143
    assert len(result["left"]) >= 1
    assert "SIGTERM" in result["reason"]
    assert "Not all runs are there" in (tmp_path / "report.html").read_text()
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["left"] == []


@pytest.mark.slow
def test_the_tasks_of_a_job_array_share_a_suite_and_a_terminated_one_loses_nothing(demo, tmp_path):
    script = Path(__file__).parents[3] / "examples" / "slurm_array.sh"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = ["bash", str(script), "demo", str(tmp_path / "together"), *WORDS[2:]]

    def start():
        return subprocess.Popen(
            words, stdout=subprocess.DEVNULL, env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
        )

    tasks = [start(), start()]
    while not list(tmp_path.glob("together/runs/*/metrics.jsonl")) and tasks[0].poll() is None:
        time.sleep(0.02)
    tasks[0].send_signal(signal.SIGTERM)
    assert {task.wait(timeout=120) for task in tasks} <= {0, 5, 143}
    assert start().wait(timeout=120) == 0
    hashes = [
        {run.name: run.read_result()["weights_sha256"] for run in find_runs(folder / "runs")}
        for folder in (tmp_path / "together", demo[0])
    ]
    assert hashes[0] == hashes[1]


def test_changes_are_read_as_json_or_else_as_text():
    assert parse_changes(["precision=bfloat16", "epochs=3", "stage.init_std=1e-2", "stage.scaled=true"]) == {
        "precision": "bfloat16",
        "epochs": 3,
        "stage": {"init_std": 0.01, "scaled": True},
    }


@pytest.mark.slow
def test_side_by_side_it_makes_the_same_table(demo, tmp_path, capsys):
    assert main([*WORDS, "--output", str(tmp_path), "--side-by-side", "2", "--quiet", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["median"] for row in rows] == [row["median"] for row in demo[1]["rows"]]
    assert "--side-by-side 2" in (tmp_path / "report.html").read_text()


def test_lists_that_are_written_twice_are_added_up():
    words = ["demo", "--set", "seed=1", "--rows", "1", "--set", "a=2", "b=3"]
    for _ in range(2):
        parsed = make_command_parser("reproduce", reproduce).parse_args(words)
        assert (parsed.set, parsed.rows) == (["seed=1", "a=2", "b=3"], ["1"])


@pytest.mark.parametrize(
    ("words", "is_installed", "message"),
    [
        (["--engine", "ray"], False, "--engine ray needs Ray; pip install 'nonloc-paper[ray]'"),
        (["--engine", "ray", "--device", "cuda:1"], True, "Ray chooses the GPU itself; use cpu or cuda"),
    ],
)
def test_an_engine_that_cannot_be_used_is_refused(
    words, is_installed, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(reproduce, "find_spec", lambda name: is_installed or None)
    assert main(["reproduce", "demo", "--output", str(tmp_path / "new"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
