"""The bench of the two forms: every network in every round, and the ratio of what was timed."""

import pytest
import torch

from benchmarks import forms, side_by_side
from benchmarks.side_by_side import seconds_of

SMALL = {"rounds": 2, "steps": 1, "batch_size": 2, "network": "preresnet8-basic/{}-{}@3"}


def test_both_forms_are_timed_in_every_round(monkeypatch):
    order = []

    def timed(way, steps, device):
        order.append((type(way).__name__, steps))
        return seconds_of(way, steps, device)

    monkeypatch.setattr(forms, "seconds_of", timed)
    monkeypatch.setattr(side_by_side, "seconds_of", timed)
    found = forms.costs(torch.device("cpu"), **SMALL)
    assert [(cost.form, cost.blocks) for cost in found] == [
        (form, blocks) for blocks in (2, 3, 4) for form in ("original", "diffusive") for _ in range(2)
    ]
    assert all(len(cost.milliseconds) == 2 and min(cost.milliseconds) > 0 for cost in found)
    # Twelve warm up, then each round has each of them once.
    assert order[12:] == [("PlainLoop", 1), ("LibrarySteps", 1)] * 12


def test_the_table_has_the_ratio_of_the_medians():
    rows = [
        forms.Cost(form, 2, "plain loop", 128, "bfloat16", times).to_dict()
        for form, times in (("original", (2.0, 4.0, 9.0)), ("diffusive", (1.0, 3.0, 5.0)))
    ]
    line = forms.table(rows).splitlines()[-1]
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [
        "plain loop",
        "2",
        "4.000 (2.000–9.000)",
        "3.000 (1.000–5.000)",
        "0.75",
    ]


@pytest.mark.gpu
def test_cuda_steps_of_both_forms_are_captured():
    found = forms.costs(torch.device("cuda"), rounds=2, steps=2, batch_size=8)
    assert {cost.way for cost in found} == {"plain loop", "captured"}
    assert {cost.precision for cost in found} == {"bfloat16"}
