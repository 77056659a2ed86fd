"""Progress: nothing, lines in a log, a bar on a terminal."""

import io
import sys

from nonloc_paper.training import progress
from nonloc_paper.training.progress import make_progress

METRICS = {"epoch": 1, "step": 50, "train_loss": 1.5, "test_loss": 1.0, "error": 12.345}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_a_terminal(monkeypatch):
    # Not a fixture: pytest puts its own stderr in place between the fixtures and the test.
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def use(shown):
    for done in range(1, 51):
        shown.step(done, 2.0)
    shown.epoch(METRICS)
    shown.step(51, 0.25)
    shown.close()


def test_nothing_is_shown_if_not_asked_for_or_without_stderr(capsys, monkeypatch):
    use(make_progress(False, "run", 0, 100))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", None)
    use(make_progress(True, "run", 0, 100))
    assert capsys.readouterr().out == ""


def test_a_log_gets_one_line_an_epoch(capsys):
    use(make_progress(True, "run", 0, 100))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("run: epoch 1, step 50/100, loss 1.5, error 12.35 %, ")
    assert "\r" not in err


def test_restoration_is_shown_in_decibel(capsys):
    shown = make_progress(True, "run", 0, 100)
    shown.epoch({"epoch": 1, "step": 50, "train_loss": 1.5, "psnr": 21.456})
    assert "psnr 21.46 dB" in capsys.readouterr().err


def test_a_terminal_gets_a_bar_with_loss_and_score(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    use(make_progress(True, "run", 0, 100))
    last = terminal.getvalue().split("\r")[-1]
    assert "51/100" in last
    assert "loss 0.25, error 12.35 %" in last


def test_a_resumed_bar_begins_where_the_run_is(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    shown = make_progress(True, "run", 40, 100)
    shown.step(41, 1.0)
    shown.close()
    assert "41/100" in terminal.getvalue()


def test_without_tqdm_a_terminal_gets_lines(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    monkeypatch.setattr(progress, "tqdm", None)
    use(make_progress(True, "run", 0, 100))
    assert terminal.getvalue().count("\n") == 1
