"""Numbers of numpy are numbers, True and False are none."""

import json
from fractions import Fraction

import numpy as np
import pytest
import torch

from nonloc import Affinity, DiffusiveStage, estimate
from nonloc._checks import check_memory, check_whole, is_finite, is_number, is_whole, shown
from nonloc.nn.options import StageOptions
from nonloc.processes.continuum.quadrature import quadrature
from nonloc_paper import Recipe


@pytest.mark.parametrize(
    ("kinds", "values"),
    [
        ((True, True, True), [0, -3, 10**308, np.int64(3), np.uint8(3)]),
        ((True, True, False), [10**400, -(10**400)]),
        ((False, True, True), [2.5, np.float32(1e38), np.float64(2.5), Fraction(1, 3)]),
        ((False, True, False), [Fraction(10**400), float("nan"), -float("inf"), np.float32("inf")]),
        ((False, False, False), [True, np.bool_(True), "3", None, 1j, [3], np.array(3), torch.tensor(3)]),
    ],
    ids=str,
)
def test_what_is_whole_a_number_and_held_by_a_float(kinds, values):
    for value in values:
        assert (is_whole(value), is_number(value), is_finite(value)) == kinds, value


@pytest.mark.parametrize("value", [10**20, 10**5000], ids=["20 digits", "5000 digits"])
def test_whole_numbers_of_more_than_64_bits_are_refused_in_few_words(value):
    with pytest.raises(ValueError, match=r"n must be at most 9,223,372,036,854,775,807, got .{1,130}; use"):
        check_whole("n", value)


def test_a_stage_of_numpys_numbers_is_the_same_stage():
    sizes = {"channels": np.int64(8), "num_blocks": np.int32(2), "embed": np.uint8(4), "hidden": np.int64(3)}
    stage = DiffusiveStage(**sizes, init_std=np.float32(0.5))
    assert repr(stage) == repr(DiffusiveStage(8, 2, embed=4, hidden=3, init_std=0.5))
    x = torch.randn(1, 8, 4, 4)
    torch.testing.assert_close(torch.compile(stage, fullgraph=True, backend="eager")(x), stage(x))


def test_a_recipe_of_numpys_numbers_is_the_same_recipe():
    stage = StageOptions(hidden=np.int64(3), init_std=np.float32(0.5))
    numbers = {"epochs": np.int64(3), "seed": np.int64(1), "milestones": (np.int64(2),)}
    recipe = Recipe(**numbers, learning_rate=np.float32(0.5), stage=stage)
    same = Recipe(
        epochs=3, seed=1, milestones=(2,), learning_rate=0.5, stage=StageOptions(hidden=3, init_std=0.5)
    )
    assert recipe == same
    assert recipe.name == same.name
    assert json.loads(json.dumps(recipe.to_dict())) == json.loads(json.dumps(same.to_dict()))


def test_numpys_numbers_elsewhere():
    x = torch.randn(1, 5, 2)
    assert Affinity(x, x, "heat", scale=np.float32(0.5)).scale == 0.5
    assert estimate(DiffusiveStage(8, 2), shape=(np.int64(1), 8, np.int64(16), 16)).auto == "reference"
    assert len(quadrature(np.int64(4), dimension=np.int64(1)).points) == 4


def test_a_whole_number_may_have_a_largest_value():
    assert check_whole("seeds", 1000, most=1000) == 1000
    with pytest.raises(ValueError, match="seeds must be at most 1,000, got 1001"):
        check_whole("seeds", 1001, most=1000)


@pytest.mark.parametrize(
    ("value", "start"),
    [("x" * 5000, "'xxx"), (10**4000, "1000"), (10**5000, "a int with too many digits"), (["x"] * 5000, "['x', 'x'"),
     (torch.zeros(30, 30), "tensor([[0., 0.")],
    ids=range(5),
)  # fmt: skip
def test_long_values_are_cut_and_on_one_line(value, start):
    assert shown(value).startswith(start)
    assert len(shown(value)) < 130
    assert "\n" not in shown(value)


def test_short_values_are_shown_whole():
    assert shown("x" * 98) == repr("x" * 98)


def test_more_than_the_memory_of_the_machine_is_refused():
    check_memory("a small thing", 2**20, "")
    with pytest.raises(ValueError, match=r"M=9 would need 1073741824 GiB of memory, .*; use fewer"):
        check_memory("M=9", 2**60, "use fewer")
