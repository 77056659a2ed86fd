"""Signals and budgets as reasons to stop."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from nonloc_paper.training.stopping import Stopping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted(number):
    with Stopping() as stopping:
        assert stopping.reason == ""
        os.kill(os.getpid(), number)
        assert stopping.reason == f"It was stopped by {number.name}."
        assert stopping.signal == number


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Stopping():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_handlers_are_put_back_after_a_signal_too():
    before = signal.getsignal(signal.SIGINT)
    with Stopping():
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == before


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
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with Stopping():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_budget_is_a_reason_once_it_is_spent():
    with Stopping(stop_after=1000) as ample, Stopping(stop_after=0) as spent:
        assert ample.reason == ""
        assert spent.reason == "Its budget of 0 s was spent."


def test_it_says_what_is_left_of_the_budget():
    with Stopping(stop_after=1000) as ample, Stopping(stop_after=0) as spent, Stopping() as endless:
        assert 990 < ample.seconds_left <= 1000
        assert spent.seconds_left == 0
        assert endless.seconds_left is None
