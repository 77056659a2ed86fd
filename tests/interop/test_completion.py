"""nonloc --print_completion: bash completes commands and their options."""

import subprocess

import pytest

from nonloc.cli import main

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("rep", ["report", "reproduce"]),
        ("reproduce --side", ["--side_by_side"]),
        ("train --epo", ["--epochs"]),
    ],
)
def test_bash(words, expected, capsys):
    assert main(["--print_completion", "bash"]) == 0
    script = capsys.readouterr().out
    number = len(words.split())
    ask = f'COMP_WORDS=(nonloc {words}); COMP_CWORD={number}; _shtab_nonloc; echo "${{COMPREPLY[@]}}"'
    answer = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == expected


def test_an_unknown_shell_is_named(capsys):
    assert main(["--print-completion", "cmd"]) == 2
    assert "'cmd' is not a shell; choose one of bash, zsh" in capsys.readouterr().err
