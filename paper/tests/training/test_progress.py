"""Progress: nothing, lines in a log, a bar on a terminal."""

import io
import sys

import pytest

from nonloc_paper.training.progress import Progress

METRICS = {"epoch": 1, "step": 50, "train_loss": 1.5, "test_loss": 1.0, "error": 12.345}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def use(shown, begin=0):
    with shown:
        for done in range(begin + 1, 51):
            shown.step(done, 2.0)
        shown.epoch(METRICS)
        shown.step(51, 0.25)


def test_nothing_is_shown_if_not_asked_for_or_without_stderr(capsys, monkeypatch):
    use(Progress("run", 0, 100, is_shown=False))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", None)
    use(Progress("run", 0, 100, is_shown=True))
    assert capsys.readouterr().out == ""


def test_a_log_gets_one_line_an_epoch(capsys):
    shown = Progress("run", 0, 100, is_shown=True)
    use(shown)
    shown.epoch({"epoch": 2, "step": 60, "train_loss": 1.5, "psnr": 21.456})
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert first.startswith("run: epoch 1, step 50/100, loss 1.5, error 12.35 %, ")
    assert "psnr 21.46 dB" in second
    assert out == ""
    assert "\r" not in err


@pytest.mark.parametrize("begin", [0, 40])
def test_a_terminal_gets_a_wide_bar_with_the_score_and_before_it_the_loss(monkeypatch, begin):
    monkeypatch.setenv("COLUMNS", "90")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    shown = Progress("4 diffusive, large start, own affinities", begin, 100, is_shown=True)
    shown.step(begin + 1, 2.0)
    shown._bar.refresh()
    assert "loss 2" in terminal.getvalue()
    use(shown, begin)
    last = terminal.getvalue().rstrip("\n").split("\r")[-1]
    assert " 51%, error 12.35 %, " in last
    assert "loss" not in last
    name, bar, _ = last.split("|")
    assert name == "4 diffusive, large start, own affinities "
    assert len(bar) >= 10
