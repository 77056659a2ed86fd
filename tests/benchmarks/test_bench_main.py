"""python -m benchmarks: usage errors, a missing GPU, and aligned tables."""

import pytest
import torch

from benchmarks.__main__ import SUBJECTS, main
from benchmarks.shared import markdown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["speed"], "invalid choice: 'speed'"),
        (["backends", "--repeats", "0"], "--repeats must be at least 1"),
        (["backends", "--device", "foo"], "device='foo' is unknown"),
        (["backends", "--output", __file__], "File exists"),  # and nothing was measured
    ],
)
def test_wrong_usage_is_exit_2(words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a GPU")
def test_a_profile_needs_a_gpu(capsys):
    assert main(["profile"]) == 2
    assert "CUDA device" in capsys.readouterr().err


def test_help_lists_every_benchmark(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in SUBJECTS)


def test_words_are_left_and_numbers_right():
    assert markdown(["name", "n"], [["ab", "1"], ["c", "10"]]).splitlines() == [
        "| name |  n |",
        "|------|---:|",
        "| ab   |  1 |",
        "| c    | 10 |",
    ]
