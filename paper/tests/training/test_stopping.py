"""Signals and budgets as reasons to stop."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from nonloc_paper.training.stopping import Stopping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted(number):
    with Stopping() as stopping:
        assert stopping.reason == ""
        os.kill(os.getpid(), number)
        assert stopping.reason == f"It was stopped by {number.name}."
        assert stopping.signal == number


@pytest.mark.parametrize("signalled", [False, True])
def test_handlers_are_put_back_and_a_signal_brings_the_default_until_then(signalled):
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with Stopping():
        if signalled:
            os.kill(os.getpid(), signal.SIGTERM)
            assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
        else:
            assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_kills_at_once(second):
    code = (
        "import os, signal\nfrom nonloc_paper.training.stopping import Stopping\n"
        "with Stopping():\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        f"    os.kill(os.getpid(), {int(second)})\n"
        "raise SystemExit(0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -second


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Stopping() as stopping:
            os.kill(os.getpid(), signal.SIGINT)
            assert stopping.reason == ""
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_installs_nothing():
    def handler():
        with Stopping():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor() as pool:
        assert pool.submit(handler).result() == signal.getsignal(signal.SIGINT)


def test_a_budget_is_a_reason_once_it_is_spent():
    with Stopping(stop_after=1000) as ample, Stopping(stop_after=0) as spent, Stopping() as endless:
        assert (ample.reason, spent.reason) == ("", "Its budget of 0 s was spent.")
        assert 990 < ample.seconds_left <= 1000
        assert (spent.seconds_left, endless.seconds_left) == (0, None)
