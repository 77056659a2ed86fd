"""The public functions at the edges: one position, masks, NaN, dtypes, wrong arguments; for every backend."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from nonloc.ops import (
    KINDS,
    Affinity,
    aggregate,
    choose_backend,
    diffuse,
    dirichlet_energy,
    prepare,
    propagate,
    row_blocks,
)
from problems import EXACT, SOME_CELLS, SYMMETRIC, affinity, decoration, features, relative, signal

each_backend = pytest.mark.parametrize("backend", EXACT)
each_cell = pytest.mark.parametrize(("kind", "normalize"), SOME_CELLS)


@each_backend
@each_cell
def test_one_position(kind, normalize, backend):
    a = affinity(kind, normalize, positions=1)
    z = signal(a)
    assert float(diffuse(a, z, backend=backend).abs().max()) <= 1e-13
    if normalize in ("row", "symmetric", "sinkhorn") and kind != "concat":
        assert relative(aggregate(a, z, backend=backend), z) <= 1e-13


@each_backend
@each_cell
def test_a_prepared_affinity_serves_many_calls_and_computes_its_kernel_once(
    kind, normalize, backend, monkeypatch
):
    a = affinity(kind, normalize, **decoration("both"))
    z, w = signal(a).requires_grad_(), torch.randn(2, 4, 4, dtype=torch.float64)
    expected = [f(a, z, backend=backend) for f in (aggregate, diffuse, dirichlet_energy)]
    expected.append(propagate(a, z, w, backend=backend))
    prepared = prepare(a, backend=backend)
    monkeypatch.setattr("nonloc.ops.functional.BACKENDS", {})
    actual = [f(prepared, z) for f in (aggregate, diffuse, dirichlet_energy)]
    actual.append(propagate(prepared, z, w))
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(*(torch.autograd.grad(t.sum(), z, retain_graph=True)[0] for t in (one, other)))


def test_a_prepared_affinity_says_what_comes_too_late():
    a = affinity("heat")
    narrow = prepare(replace(a, left=a.left.float(), right=a.right.float()))
    with pytest.raises(ValueError, match=r"z is torch.float64 .* use prepare\(affinity, torch.float64\)"):
        aggregate(narrow, signal(a))
    with pytest.raises(ValueError, match=r"use prepare\(…, backend='reference'\)"):
        diffuse(prepare(a), signal(a), backend="reference")
    assert aggregate(narrow, signal(a).half()).dtype == torch.float16


@each_backend
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["as a copy", "pickled"]
)
def test_a_prepared_affinity_travels(copied, backend):
    x, z = features("heat", "row").float().requires_grad_(), signal(affinity("heat"))
    kernel = prepare(Affinity(x, x, "heat"), torch.float64, backend=backend)
    again = copied(kernel)
    assert torch.equal(diffuse(again, z), diffuse(kernel, z))
    assert (again.dtype, again.backend) == (torch.float64, backend)
    (gradient,) = torch.autograd.grad(diffuse(again, z).sum(), again.affinity.left)
    assert bool(gradient.isfinite().all())


@each_backend
@each_cell
def test_an_empty_batch(kind, normalize, backend):
    a = affinity(kind, normalize, batch=0)
    z = signal(a).requires_grad_()
    out = propagate(a, z, torch.zeros(2, 4, 4), backend=backend)
    out.sum().backward()
    assert out.shape == (0, 6, 4)


@each_backend
@pytest.mark.parametrize("normalize", ["row", "symmetric"])
@pytest.mark.parametrize(("kind", "first"), [("dot", 0.0), ("concat", -9.0)])
def test_a_row_whose_sum_is_zero_is_a_row_of_zeros(kind, first, normalize, backend):
    left = torch.tensor([[[first], [1.0], [2.0]]], dtype=torch.float64)
    a = Affinity(left, left, kind, normalize)
    z = torch.randn(1, 3, 2, dtype=torch.float64, requires_grad=True)
    out = aggregate(a, z, backend=backend)
    assert not out[0, 0].any()
    assert not diffuse(a, z, backend=backend)[0, 0].any()
    assert bool(out.isfinite().all())
    assert bool(torch.autograd.grad(out.sum(), z)[0].isfinite().all())


@each_backend
def test_a_negative_row_sum_is_divided_by_as_written(backend):
    left = torch.tensor([[[-1.0], [1.0]]], dtype=torch.float64)
    right = torch.tensor([[[1.0], [3.0]]], dtype=torch.float64)
    a = Affinity(left, right, "dot")  # Ω = [[-1, -3], [1, 3]], sums -4 and 4
    out = aggregate(a, torch.tensor([[[4.0], [8.0]]], dtype=torch.float64), backend=backend)
    assert out.flatten().tolist() == [7.0, 7.0]


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalize", ["row", "symmetric", "sinkhorn"])
def test_huge_logits_stay_finite(normalize, dtype, backend):
    x = torch.tensor([[[100.0], [-100.0], [99.0], [0.0]]], dtype=dtype).requires_grad_()  # logits up to ±1e4
    z = torch.tensor([[[1.0], [2.0], [3.0], [4.0]]], dtype=dtype)
    for kind in ("gaussian", "heat"):
        out = aggregate(Affinity(x, x, kind, normalize), z, backend=backend)
        (gradient,) = torch.autograd.grad(out.sum(), x)
        assert bool(out.isfinite().all())
        assert bool(gradient.isfinite().all())


@each_backend
@pytest.mark.parametrize("normalize", ["none", "count"])
def test_huge_logits_overflow_where_nothing_cancels_them(normalize, backend):
    x = torch.tensor([[[100.0], [-100.0]]])
    out = aggregate(Affinity(x, x, "gaussian", normalize), torch.ones(1, 2, 1), backend=backend)
    assert bool(out.isinf().all())


@each_backend
@each_cell
def test_a_sample_without_any_valid_position_is_left_alone(kind, normalize, backend):
    mask = torch.tensor([[True] * 6, [False] * 6])
    a = affinity(kind, normalize, mask=mask)
    z = signal(a).requires_grad_()
    out = propagate(a, z, torch.eye(4, dtype=torch.float64).expand(2, 4, 4), backend=backend)
    assert torch.equal(out[1], z[1])
    (gradient,) = torch.autograd.grad(out.sum(), z)
    assert bool(gradient.isfinite().all())


@each_backend
@pytest.mark.parametrize("normalize", ["row", "count", "none", "symmetric"])
@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_weighs_nothing_is_given(kind, normalize, backend):
    a = affinity(kind, normalize, measure=torch.zeros(6, dtype=torch.float64))
    assert torch.equal(aggregate(a, signal(a), backend=backend), torch.zeros(2, 6, 4, dtype=torch.float64))


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_cell
def test_the_output_has_the_signals_dtype_and_is_near_the_exact_one(kind, normalize, dtype, backend):
    exact = affinity(kind, normalize)
    z = signal(exact).to(dtype)

    def diffused(dtype, backend):
        # Inputs are rounded before both; what is left is float32 arithmetic and one rounding of the result.
        left, right = (side.to(z.dtype).to(dtype) for side in (exact.left, exact.right))
        right = left if normalize in SYMMETRIC else right
        return diffuse(Affinity(left, right, kind, normalize, exact.scale), z.to(dtype), backend=backend)

    out = diffused(dtype, backend)
    assert out.dtype == dtype
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
    assert relative(out.double(), diffused(torch.float64, "reference")) <= tolerance


@each_backend
def test_mixed_dtypes_compute_in_the_widest_and_return_the_signals(backend):
    a = affinity("gaussian")
    z = signal(a)
    narrow = Affinity(a.left.float(), a.right.float(), "gaussian", scale=a.scale)
    wide = Affinity(a.left.float().double(), a.right.float().double(), "gaussian", scale=a.scale)
    assert relative(diffuse(narrow, z, backend=backend), diffuse(wide, z, backend=backend)) <= 1e-14
    assert diffuse(a, z.half(), backend=backend).dtype == torch.float16


@each_backend
@each_cell
def test_strides_do_not_matter(kind, normalize, backend):
    a = affinity(kind, normalize)
    z = signal(a)
    left = a.left.mT.contiguous().mT
    right = left if normalize in SYMMETRIC else a.right.flip(1).flip(1)
    strided = Affinity(left, right, kind, normalize, a.scale)
    z_strided = z.mT.contiguous().mT
    assert not z_strided.is_contiguous()
    assert relative(diffuse(strided, z_strided, backend=backend), diffuse(a, z, backend=backend)) <= 1e-14


@each_backend
@each_cell
def test_nan_travels_and_does_not_hang(kind, normalize, backend):
    a = affinity(kind, normalize)

    def aggregated(left, right, z):
        return aggregate(Affinity(left, right, kind, normalize, a.scale), z, backend=backend)

    z, broken = signal(a), a.left.clone()
    broken[0, 2] = torch.nan
    symmetric = normalize in SYMMETRIC
    out = aggregated(broken, broken if symmetric else a.right, z)
    if kind != "delta":
        assert bool(out[0, 2].isnan().all())
        assert symmetric or bool(aggregated(a.left, broken, z)[0].isnan().all())
    z[1, 3] = torch.nan
    assert bool(aggregate(a, z, backend=backend)[1, 3].isnan().all())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.zeros(1, 3, 3), r"weights\[0\] is \[3, 3\]; with C = 4"),
        (torch.eye(4), r"one W \[4, 4\] goes in as \[W\]"),
        (0.5, r"a number w as \[w \* torch.eye\(4\)\]"),
        ([torch.eye(4), 0.5], r"a number w as \[w \* torch.eye\(4\)\]"),
        ([torch.eye(4), torch.zeros(4, 3)], r"weights\[1\] is \[4, 3\]"),
        ([(torch.zeros(4, 2), torch.zeros(3, 4))], r"weights\[0\] is \(\[4, 2\], \[3, 4\]\)"),
        ([(torch.zeros(()), torch.zeros(()))], r"weights\[0\] is \(\[\], \[\]\)"),
        (None, "weights must hold a matrix or a pair"),
        ("abc", "weights must hold a matrix or a pair"),
        ([(torch.eye(4),) * 3], "weights must hold a matrix or a pair"),
    ],
)
def test_weights_of_the_wrong_shape(weights, message):
    a = affinity("gaussian")
    with pytest.raises(ValueError, match=message):
        propagate(a, signal(a), weights)


@pytest.mark.parametrize("function", [aggregate, diffuse, dirichlet_energy])
def test_an_unknown_backend_lists_the_choices(function):
    a = affinity("gaussian")
    with pytest.raises(ValueError, match="backend='cuda' is unknown; choose one of auto"):
        function(a, signal(a), backend="cuda")


@pytest.mark.parametrize(
    ("z", "message"),
    [
        (torch.zeros(6, 4), r"z must be a tensor \[B, M, C\], got \[6, 4\]"),
        ([1.0], "z must be a tensor .* got list"),
        (torch.zeros(2, 5, 4), r"batch and positions, \[2, 6, C\]"),
        (torch.zeros(1, 6, 4), r"batch and positions, \[2, 6, C\]"),
        (torch.zeros(2, 6, 4, dtype=torch.long), "z must be floating point"),
        (torch.zeros(2, 6, 4, device="meta"), "z is on meta"),
    ],
)
def test_a_wrong_signal_names_the_fix(z, message):
    with pytest.raises(ValueError, match=message):
        diffuse(affinity("gaussian"), z)


def test_differences_need_every_position():
    a = Affinity(torch.zeros(1, 6, 2), torch.zeros(1, 3, 2), "gaussian")
    with pytest.raises(ValueError, match="diffuse needs z_j − z_i.*aggregate alone"):
        diffuse(a, torch.zeros(1, 6, 2))


def test_autocast_does_not_narrow_the_logits():
    x = features("gaussian", "row").float()
    a = Affinity(10 * x, x, "gaussian")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = aggregate(a, x, backend="reference")
    assert torch.equal(inside, aggregate(a, x, backend="reference"))


@pytest.mark.parametrize(
    ("kind", "batch", "positions", "expected"),
    [
        ("gaussian", 1, 1024, "reference"),
        ("gaussian", 8, 1024, "factored"),  # the matrices of the whole batch count
        ("gaussian", 1, 2000, "factored"),
        ("dot", 1, 100, "factored"),
        ("concat", 1, 2000, "factored"),
    ],
)
def test_auto_keeps_the_matrix_while_it_is_small(kind, batch, positions, expected):
    x = torch.empty(batch, positions, 1)
    assert choose_backend(Affinity(x, x, kind)) == expected


@pytest.mark.parametrize(("kind", "normalize"), [("gaussian", "row"), ("heat", "count"), ("concat", "row")])
def test_compiles_and_exports_whole(kind, normalize):
    class Diffuse(torch.nn.Module):
        def forward(self, left, right, z):
            return diffuse(Affinity(left, right, kind, normalize), z)

    torch._dynamo.reset()  # each case is a program of its own, not a recompilation of the last
    a = affinity(kind, normalize)
    inputs = (a.left, a.right, signal(a))
    truth = Diffuse()(*inputs)
    compiled = torch.compile(Diffuse(), fullgraph=True, backend="aot_eager")
    assert relative(compiled(*inputs), truth) <= 1e-14
    exported = torch.export.export(Diffuse(), inputs)
    assert relative(exported.module()(*inputs), truth) <= 1e-14


MASK = torch.tensor([[True, False, False, True, False, False]])


def all_ones(normalize="none"):
    """Ω_ij = 1 between two valid positions of six, with padding that must not be looked at."""
    x = torch.ones(1, 6, 1, dtype=torch.float64)
    x[~MASK] = torch.nan
    return Affinity(x, x, "dot", normalize, mask=MASK)


def two_values(low, high):
    z = torch.full((1, 6, 1), torch.nan, dtype=torch.float64)
    z[0, 0, 0], z[0, 3, 0] = low, high
    return z


@pytest.mark.parametrize(("normalize", "expected"), [("none", 4.0), ("row", 2.0), ("count", 2.0)])
def test_energy_of_two_valid_positions_far_from_zero(normalize, expected):
    """½ Σ_ij K_ij |z_i − z_j|² = K_01 · 2², and no digit of it is lost to a mean of 1e12."""
    z = two_values(1e12 - 1, 1e12 + 1)
    assert dirichlet_energy(all_ones(normalize), z).tolist() == [expected]


def test_a_masked_constant_has_no_energy_at_all():
    assert dirichlet_energy(all_ones(), two_values(1 / 3e-9, 1 / 3e-9)).tolist() == [0.0]


def test_a_sample_without_a_valid_position_has_no_energy():
    a = Affinity(torch.ones(1, 3, 1), torch.ones(1, 3, 1), "dot", mask=torch.zeros(1, 3, dtype=torch.bool))
    assert dirichlet_energy(a, torch.ones(1, 3, 1)).tolist() == [0.0]


def test_few_compiled_programs_serve_many_sizes(monkeypatch):
    monkeypatch.setattr(row_blocks, "BLOCK_ENTRIES", 1000)
    torch._dynamo.reset()
    counter = CompileCounter()

    def symmetric(x, z):
        return diffuse(Affinity(x, x, "heat", "symmetric"), z, backend="factored")

    compiled = torch.compile(symmetric, backend=counter, fullgraph=True)
    with torch.no_grad():
        for positions in range(60, 89, 4):  # at least 4 to 8 blocks
            x, z = torch.rand(1, positions, 2), torch.rand(1, positions, 3)
            torch.testing.assert_close(compiled(x, z), symmetric(x, z))
    assert counter.frame_count <= 3, "the first size, and two numbers of blocks"
