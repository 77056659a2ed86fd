"""The stored matrix against the equations as written; NaN and overflow are refused wherever an affinity is passed."""

import pytest
import torch

from nonloc.ops import NORMALIZATIONS, Affinity, SparseAffinity, adjoint, kernel_matrix
from nonloc.processes import DampedFlow, Diffusion, JumpProcess, certify, cfl_limit, kernel, simulate
from problems import generator, relative

M = 40


def made(kind, normalize, form="plain", size=1.0, positions=M, dtype=torch.float64):
    x = size * torch.randn(2, positions, 3, dtype=torch.float64, generator=generator(1)).to(dtype)
    is_one_set = normalize in ("symmetric", "sinkhorn")
    other = torch.randn(2, positions, 3, dtype=torch.float64, generator=generator(2)).to(dtype)
    y = x if is_one_set else other
    mask = measure = None
    if form in ("masked", "both"):
        mask = torch.rand(2, positions, generator=generator(3)) > 0.3
        if not is_one_set:
            mask[1] = False
    if form in ("measured", "both"):
        measure = torch.rand(positions, dtype=torch.float64, generator=generator(4)).to(dtype)
        measure[3] = 0
    return Affinity(x, y, kind, normalize, mask=mask, measure=measure)


@pytest.mark.parametrize("form", ["plain", "masked", "measured", "both"])
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("kind", ["gaussian", "heat"])
def test_it_is_the_kernel(kind, normalize, form, monkeypatch):
    monkeypatch.setattr(kernel, "BLOCK_ENTRIES", 7 * M)  # several blocks, the last one smaller
    a = made(kind, normalize, form)
    assert relative(kernel.stored_matrix(a, torch.float64), kernel_matrix(a)) <= 1e-14


@pytest.mark.parametrize(("kind", "size"), [("gaussian", 10.0), ("heat", 10.0), ("gaussian", 1000.0)])
def test_a_scaling_outside_the_range_of_numbers_is_found(kind, size):
    a = made(kind, "sinkhorn", size=size)
    assert relative(kernel.stored_matrix(a, torch.float64), kernel_matrix(a)) <= 1e-10


def test_it_is_kept_between_what_one_product_keeps_and_256_mebibytes():
    def keeps(positions, kind="heat", dtype=torch.float64, batch=1):
        x = torch.zeros(batch, positions, 1)
        return kernel.stores_matrix(Affinity(x, x, kind), dtype)

    assert not keeps(1000)  # there auto has it already
    assert keeps(1500)
    assert keeps(5792)
    assert not keeps(5793)
    assert keeps(8192, dtype=torch.float32)
    assert not keeps(4096, batch=3)
    assert not keeps(4096, kind="concat")


@pytest.fixture
def large():
    return made("heat", "row", positions=1200, dtype=torch.float32)


def test_a_simulation_by_the_matrix_is_the_one_without(large, monkeypatch):
    z = torch.randn(2, 1200, 2, generator=generator(5))
    stored = simulate(Diffusion(large), z, num_steps=3, step_size=0.5)
    monkeypatch.setattr(kernel, "LARGEST_MATRIX", 0)
    without = simulate(Diffusion(large), z, num_steps=3, step_size=0.5)
    assert relative(stored.final, without.final) <= 1e-5
    assert relative(stored.energy, without.energy) <= 1e-5


def test_a_process_makes_the_matrix_once_and_a_kernel_that_follows_makes_none(large, monkeypatch):
    calls = []
    real = kernel.stored_matrix
    monkeypatch.setattr(kernel, "stored_matrix", lambda *args: calls.append(args) or real(*args))
    z = torch.zeros(2, 1200, 1)
    process = Diffusion(large)
    for state in (z, z.half()):  # half precision is computed in float32
        simulate(process, state, num_steps=2)
    assert len(calls) == 1
    simulate(Diffusion(lambda z: large), z, num_steps=2)
    assert len(calls) == 1


def test_laws_move_by_its_transpose():
    a = made("gaussian", "row", positions=1100)  # 2 × 1100² entries: more than one product keeps
    law = torch.rand(2, 1100, 1, dtype=torch.float64, generator=generator(6))
    assert relative(JumpProcess(a).rate(law), adjoint(a)(law) - law) <= 1e-12


ENTRY_POINTS = {
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
    matrix = torch.ones(5, 5, dtype=torch.float64)
    matrix[1, 2] = matrix[2, 1] = value
    return SparseAffinity(matrix.to_sparse_csr())


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("left and right", r"features that are not finite; replace them, or mask their positions"),
        ("right", r"features that are not finite; replace them, or mask their positions"),
        ("matrix", "matrix with values that are not finite; leave out those entries"),
    ],
)
def test_numbers_that_are_not_finite_are_refused(what, message, entry_point):
    with pytest.raises(ValueError, match=message):
        ENTRY_POINTS[entry_point](broken(what, torch.nan if entry_point == "certify" else torch.inf))


def test_what_lies_in_the_padding_is_not_looked_at():
    mask = torch.tensor([[True, True, False, True, True]])
    a = Affinity(with_one(torch.nan), with_one(torch.nan), "heat", mask=mask)
    for entry_point in ENTRY_POINTS.values():
        entry_point(a)


@pytest.mark.parametrize(
    "entry_point",
    ["Diffusion", "DampedFlow", "cfl_limit", "cfl_limit by bound", "certify", "certify by bound"],
)
def test_a_kernel_that_overflows_is_refused(entry_point):
    x = 100 * points()
    a = Affinity(x, x, "gaussian", "none")
    use = (lambda p: simulate(p, points(), num_steps=1)) if entry_point in ("Diffusion", "DampedFlow") else id
    with pytest.raises(ValueError, match=r'the kernel overflows.*use normalize="row"'):
        use(ENTRY_POINTS[entry_point](a))


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_something_else_and_sub_sampled_givers_are_refused_in_the_same_words(entry_point):
    with pytest.raises(ValueError, match="affinity"):
        ENTRY_POINTS[entry_point](points())
    with pytest.raises(ValueError, match="affinity must have the same positions .* got 5 and 3"):
        ENTRY_POINTS[entry_point](Affinity(points(), points(3), "heat"))


def test_a_kernel_that_follows_the_state_ends_the_simulation_instead():
    flow = DampedFlow(lambda z: Affinity(z, z, "gaussian", "none"), backwards=True)
    run = simulate(flow, 3 * points(), num_steps=50, throw=False)
    assert run.outcome.ending == "diverged"
    assert len(run) == run.outcome.step


@pytest.mark.parametrize(
    "weight",
    [torch.inf, torch.tensor([1.0, torch.nan]), torch.diag(torch.tensor([1.0, torch.inf]))],
)
def test_a_weight_that_is_not_finite_is_refused(weight):
    with pytest.raises(ValueError, match="weight .*finite"):
        Diffusion(Affinity(points(), points(), "heat"), weight=weight)
