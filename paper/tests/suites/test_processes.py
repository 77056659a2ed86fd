"""Several processes train a list of recipes as one does."""

import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch
from test_train_all import RECIPES, go

from nonloc_paper.runs import Run
from nonloc_paper.suites import processes
from nonloc_paper.suites.processes import train_all_by_processes
from nonloc_paper.suites.train_all import SuiteProgress
from nonloc_paper.training.trained import trained_network


@pytest.mark.slow
def test_two_processes_train_what_one_trains(tmp_path):
    one = go(tmp_path / "one")
    two = train_all_by_processes(
        RECIPES, tmp_path / "two", processes=2, device="cpu", progress=False, side_by_side=None
    )
    assert (two.done, two.left, two.locked, two.errors) == (one.done, (), (), ())
    for recipe in RECIPES:
        first, second = (
            trained_network(Run(tmp_path / folder / recipe.name)).state_dict() for folder in ("one", "two")
        )
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_why_this_process_stopped_is_told_and_what_another_did_is_counted(monkeypatch):
    stopped = SuiteProgress((), tuple(RECIPES), reason="Spent.", errors=(ValueError("no"),))
    counted = SuiteProgress((RECIPES[0],), tuple(RECIPES[1:]), reason="Its budget of 0 s was spent.")
    train_all = Mock(side_effect=[stopped, counted])
    monkeypatch.setattr(processes, "train_all", train_all)
    monkeypatch.setattr(processes.multiprocessing, "get_context", Mock())
    progress = train_all_by_processes(RECIPES, "runs", processes=2, budget=9.0)
    assert train_all.call_args.kwargs["budget"] == 0
    assert (progress.done, progress.left) == (counted.done, counted.left)
    assert (progress.reason, progress.errors) == ("Spent.", stopped.errors)


def test_one_unfinished_run_needs_no_second_process(tmp_path, monkeypatch):
    go(tmp_path, RECIPES[1:])
    monkeypatch.setattr(processes.multiprocessing, "get_context", None)
    progress = train_all_by_processes(RECIPES, tmp_path, processes=2, device="cpu", progress=False)
    assert progress.done == tuple(RECIPES)


INTERRUPTED = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
os.kill(os.getpid(), signal.SIGINT)
from nonloc_paper.suites.processes import _help
_help([], "runs", None, "cpu", 1, None)
"""


def test_ctrl_c_while_a_helper_imports_ends_it_without_a_traceback(monkeypatch):
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")
    blocked = []

    def start():
        blocked.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))

    context = Mock()
    context.return_value.Process.return_value.start = start
    monkeypatch.setattr(processes.multiprocessing, "get_context", context)
    monkeypatch.setattr(processes, "train_all", lambda *_, **__: SuiteProgress((), ()))
    train_all_by_processes(RECIPES, "runs", processes=2)
    assert blocked == [True]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
