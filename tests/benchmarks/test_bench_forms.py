"""Both forms are timed in every round, and the table has the ratio of the medians."""

import pytest
import torch

from benchmarks import forms

SMALL = {"rounds": 2, "steps": 1, "batch_size": 2, "network": "preresnet8-basic/{}-{}@3"}


@pytest.mark.slow
def test_both_forms_are_timed_in_every_round():
    actual = forms.costs(torch.device("cpu"), **SMALL)
    assert [(row["form"], row["blocks"], row["way"]) for row in actual] == [
        (form, blocks, way)
        for blocks in (2, 3, 4)
        for form in ("original", "diffusive")
        for way in ("plain loop", "the library's step")
    ]
    assert all(len(row["milliseconds"]) == 2 and min(row["milliseconds"]) > 0 for row in actual)


def test_the_table_has_the_ratio_of_the_medians():
    rows = [
        {"form": form, "blocks": 2, "way": "plain loop", "milliseconds": times}
        for form, times in (("original", (2.0, 4.0, 9.0)), ("diffusive", (1.0, 3.0, 5.0)))
    ]
    line = forms.table(rows).splitlines()[-1]
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [
        "plain loop", "2", "4.000 (2.000–9.000)", "3.000 (1.000–5.000)", "0.75",
    ]  # fmt: skip


@pytest.mark.gpu
def test_cuda_steps_of_both_forms_are_captured():
    actual = forms.costs(torch.device("cuda"), rounds=2, steps=2, batch_size=8)
    assert {row["way"] for row in actual} == {"plain loop", "captured"}
    assert {row["precision"] for row in actual} == {"bfloat16"}
