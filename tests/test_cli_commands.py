"""The commands of `nonloc`: those of other distributions join, and a broken or doubled one is reported."""

from importlib.metadata import EntryPoint

import pytest

from nonloc.cli import entry, main
from nonloc.cli.commands import GROUP, find_commands, load_command


def point(name, module):
    return EntryPoint(name, module, GROUP)


def test_a_command_joins_by_an_entry_point():
    actual = find_commands([point("again", "nonloc.cli.simulate")])
    assert list(actual) == ["again", "simulate"]
    assert load_command(actual["again"]).SUMMARY


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
