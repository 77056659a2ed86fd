"""NaN, infinite and overflowing kernels: the same ValueError, with its fix, at every door that takes an affinity."""

import pytest
import torch

from nonloc.ops import Affinity, SparseAffinity
from nonloc.processes import DampedFlow, Diffusion, JumpProcess, certify, cfl_limit, simulate

DOORS = {
    "Diffusion": Diffusion,
    "DampedFlow": DampedFlow,
    "JumpProcess": JumpProcess,
    "cfl_limit": cfl_limit,
    "cfl_limit by bound": lambda a: cfl_limit(a, exact_up_to=0),
    "certify": lambda a: certify(a, 0.5),
    "certify by bound": lambda a: certify(a, 0.5, exact_up_to=0),
}


def points(size=5):
    return torch.randn(1, size, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def with_one(value):
    x = points()
    x[0, 2, 1] = value
    return x


def broken(what, value):
    if what == "left and right":
        x = with_one(value)
        return Affinity(x, x, "heat")
    if what == "right":
        return Affinity(points(), with_one(value), "gaussian")
    if what == "measure":
        return Affinity(points(), points(), "heat", measure=torch.tensor([1, value, 1, 1, 1]))
    matrix = torch.ones(5, 5, dtype=torch.float64)
    matrix[1, 2] = matrix[2, 1] = value
    return SparseAffinity(matrix.to_sparse_csr())


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("left and right", r"features that are not finite; replace them, or mask their positions"),
        ("right", r"features that are not finite; replace them, or mask their positions"),
        ("measure", "measure that is not finite; quadrature weights must be finite"),
        ("matrix", "matrix with values that are not finite; leave out those entries"),
    ],
)
def test_numbers_that_are_not_finite_are_refused(what, message, value, door):
    with pytest.raises(ValueError, match=message):
        DOORS[door](broken(what, value))


def test_what_lies_in_the_padding_is_not_looked_at():
    mask = torch.tensor([[True, True, False, True, True]])
    a = Affinity(with_one(torch.nan), with_one(torch.nan), "heat", mask=mask)
    for door in DOORS.values():
        door(a)


@pytest.mark.parametrize(
    "door", ["Diffusion", "DampedFlow", "cfl_limit", "cfl_limit by bound", "certify", "certify by bound"]
)
def test_a_kernel_that_overflows_is_refused(door):
    x = 100 * points()
    a = Affinity(x, x, "gaussian", "none")
    use = (lambda p: simulate(p, points(), num_steps=1)) if door in ("Diffusion", "DampedFlow") else id
    with pytest.raises(ValueError, match=r'the kernel overflows.*use normalize="row"'):
        use(DOORS[door](a))


def test_walkers_need_probabilities_that_do_not_overflow():
    x = torch.full((1, 3, 1), 1e200, dtype=torch.float64)
    with pytest.raises(ValueError, match="the kernel overflows"):
        JumpProcess(Affinity(x, x, "dot")).sample_paths(3, 1)


@pytest.mark.parametrize("door", DOORS)
def test_something_else_and_sub_sampled_givers_are_refused_in_the_same_words(door):
    with pytest.raises(ValueError, match="affinity|certify takes an affinity"):
        DOORS[door](points())
    with pytest.raises(
        ValueError,
        match="affinity must have the same positions on both sides, got 5 and 3.*do not sub-sample",
    ):
        DOORS[door](Affinity(points(), points(3), "heat"))


@pytest.mark.parametrize("door", [Diffusion, cfl_limit])
def test_whoever_gives_points_is_told_how_they_become_an_affinity(door):
    with pytest.raises(ValueError, match=r'Affinity\(x, x, "heat"\) with x = points\[None\]'):
        door(points()[0])


def test_a_kernel_that_follows_the_state_ends_the_simulation_instead():
    flow = DampedFlow(lambda z: Affinity(z, z, "gaussian", "none"), backwards=True)
    run = simulate(flow, 3 * points(), num_steps=50, throw=False)
    assert run.outcome.ending == "diverged"
    assert len(run) == run.outcome.step


@pytest.mark.parametrize(
    "weight",
    [torch.nan, torch.inf, torch.tensor([1.0, torch.nan]), torch.diag(torch.tensor([1.0, torch.inf]))],
)
def test_a_weight_that_is_not_finite_is_refused(weight):
    with pytest.raises(ValueError, match="weight .*finite"):
        Diffusion(Affinity(points(), points(), "heat"), weight=weight)
