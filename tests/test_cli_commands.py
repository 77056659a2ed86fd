"""The commands of `nonloc`: those of other distributions join, and a broken or doubled one is reported."""

import signal
import sys
from contextlib import suppress
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from nonloc.cli import entry, main
from nonloc.cli.commands import GROUP, find_commands, load_command


def point(name, module):
    return EntryPoint(name, module, GROUP)


def test_a_command_joins_by_an_entry_point():
    actual = find_commands([point("again", "nonloc.cli.simulate")])
    assert list(actual) == ["again", "simulate"]
    assert load_command(actual["again"]).SUMMARY


def test_a_command_may_name_its_options_either_way(monkeypatch):
    def add_arguments(parser):
        parser.add_argument("--first-one", type=int)
        parser.add_argument("--second_one", type=int)

    command = SimpleNamespace(
        DESCRIPTION="", add_arguments=add_arguments, run=lambda parsed: parsed.first_one + parsed.second_one
    )
    monkeypatch.setattr(entry, "find_commands", lambda: {"count": None})
    monkeypatch.setattr(entry, "load_command", lambda point: command)
    for words in (["--first-one", "1", "--second-one=2"], ["--first_one", "1", "--second_one=2"]):
        assert main(["count", *words]) == 3


def test_two_modules_under_one_name_are_an_error():
    with pytest.raises(
        ValueError, match="'simulate' is added twice, by nonloc.cli.simulate and by other.place"
    ):
        find_commands([point("simulate", "other.place")])


def test_the_same_module_twice_is_no_clash():
    assert list(find_commands([point("simulate", "nonloc.cli.simulate")])) == ["simulate"]


@pytest.mark.parametrize(
    ("module", "message"),
    [("no_such_module", "cannot be loaded: No module named"), ("nonloc.cli.durations", "lacks SUMMARY")],
)
def test_a_broken_command_is_one_line_in_help_and_an_error_when_it_is_used(
    module, message, capsys, monkeypatch
):
    monkeypatch.setattr(entry, "find_commands", lambda: find_commands([point("broken", module)]))
    with pytest.raises(SystemExit):
        main(["--help"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  broken ")]
    assert message in line
    assert main(["broken"]) == 1
    assert message in capsys.readouterr().err


def failing(monkeypatch, error):
    def fail(words):
        raise error

    monkeypatch.setattr(entry, "_run", fail)


def test_an_error_that_no_user_can_correct_is_one_line_that_says_so(monkeypatch, capsys):
    failing(monkeypatch, TypeError("int + str"))
    assert main(["simulate"]) == 1
    line = (
        "nonloc: error: TypeError: int + str; this is a bug of nonloc: please report it, with the traceback"
    )
    assert capsys.readouterr().err == f"{line} that NONLOC_DEBUG=1 shows\n"
    monkeypatch.setenv("NONLOC_DEBUG", "1")
    with pytest.raises(TypeError):
        main(["simulate"])


def test_what_an_interruption_becomes_while_modules_are_loaded_is_still_one(monkeypatch, capsys):
    def fail(words):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ImportError("initialization failed")

    monkeypatch.setattr(entry, "_run", fail)
    assert main(["simulate"]) == 130
    assert capsys.readouterr().err == "nonloc: interrupted\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
        ),
        RuntimeError("Storage size calculation overflowed with sizes=[1]"),
        TypeError("empty(): argument failed to unpack: Overflow when unpacking long long"),
        OverflowError("Python int too large to convert to C long"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_size_that_memory_cannot_hold_is_said_to_be_too_large(monkeypatch, capsys, error):
    failing(monkeypatch, error)
    assert main(["simulate"]) == 1
    assert "a size is too large for this machine, make it smaller" in capsys.readouterr().err


def test_a_long_value_is_not_repeated_at_length(capsys):
    assert main(["simulate", "diffusion", "--steps", "x" * 5000]) == 2
    err = capsys.readouterr().err
    assert err.startswith("nonloc: error: argument --steps: invalid int value: 'xxx")
    assert len(err) < 2000


def test_completion_names_the_package_that_it_needs(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--print-completion", "bash"]) == 2
    assert "--print_completion needs shtab; pip install shtab" in capsys.readouterr().err
