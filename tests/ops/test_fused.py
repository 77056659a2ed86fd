"""The fused kernels in Triton's interpreter: values and gradients of float64, and what they refuse."""

import copy

import pytest
import torch
from fused_problems import FACTOR, Problem, by, check, errors, poison
from torch.library import opcheck

from nonloc.nn import DiffusiveStage, OriginalStage
from nonloc.ops import (
    Affinity,
    SparseAffinity,
    aggregate,
    choose_backend,
    diffuse,
    dirichlet_energy,
    fused,
    prepare,
    propagate,
)
from nonloc.ops.fused import choice, launch, operators, stored
from nonloc.ops.fused.launch import Launcher, _groups, is_interpreted
from nonloc.ops.fused.operators import (
    embedded_stage,
    fused_product,
    fused_stage,
    stored_product,
    stored_stage,
)

pytestmark = [
    pytest.mark.skipif(not is_interpreted(), reason="no interpreted Triton; on a GPU: test_fused_gpu.py"),
    # Rows and columns beyond M are computed, too, and not stored.
    pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered"),
]

HALF, WIDE = torch.float16, torch.float64


SITES = {}


@pytest.fixture(autouse=True)
def a_site_tells_all_that_triton_compiles_by(monkeypatch):
    """In every launch of every test here: on a GPU what is compiled for a site is launched without another question."""
    plain = launch.launch_kernel

    def checked(site, describe, arguments):
        _, grid, constants, options = describe()
        # Of a tensor what Triton compiles by; it does not by floats.
        kinds = [
            (one.dtype, one.data_ptr() % 16) if isinstance(one, torch.Tensor) else one
            for one in arguments
            if not isinstance(one, float)
        ]
        key = (site, *constants.items(), *options.items())
        assert SITES.setdefault(key, (grid, kinds)) == (grid, kinds)
        plain(site, describe, arguments)

    for module in (launch, stored):
        monkeypatch.setattr(module, "launch_kernel", checked)


@pytest.fixture
def launches(monkeypatch):
    """Every launch as (kernel, its constants)."""
    seen = []
    launch = Launcher.launch

    def spy(self, name, kernel, *tensors, **constants):
        seen.append((kernel, constants))
        launch(self, name, kernel, *tensors, **constants)

    monkeypatch.setattr(Launcher, "launch", spy)
    return seen


# Forms × kernels × masks × dtypes × weights in few cases.
STAGES = {
    "even": {"positions": 64},
    "heat, odd widths": {"kind": "heat", "embed": 5, "hidden": 12, "channels": 20, "positions": 33},
    "heat, mask": {"kind": "heat", "is_masked": True, "positions": 70, "blocks": 1, "batch": 2},
    "original, mask, full": {"differs": False, "is_masked": True, "hidden": None, "channels": 24},
    "heat, shared, original": {"kind": "heat", "is_shared": True, "size": 0.3, "differs": False, "blocks": 3},
    "half": {"dtype": HALF, "hidden": None, "channels": 20, "embed": 5, "positions": 33},
    "half, heat, mask": {"dtype": HALF, "kind": "heat", "is_masked": True, "shift": 30.0},
    "rows that share keys": {"size": 1e6, "copies": 3, "positions": 42, "blocks": 4},
}
MORE_STAGES = {
    "mask": {"is_masked": True, "batch": 2, "blocks": 1},
    "wide hidden": {"embed": 8, "hidden": 40},
    "wide embed": {"embed": 100},
    "three chunks": {"channels": 150},
    "negative scale": {"scale": -0.5},
    "heat far from zero": {"kind": "heat", "shift": 100.0},
    "keys far from zero": {"right_shift": 30.0},
    "small logits": {"size": 0.01},
    "original": {"differs": False, "blocks": 3, "positions": 33},
    "original, heat, mask": {"differs": False, "kind": "heat", "is_masked": True, "positions": 70, "batch": 2},
    "original, one": {"differs": False, "blocks": 1, "hidden": None, "positions": 64},
    "half, small logits": {"dtype": HALF, "size": 0.01},
    "half, keys far from zero": {"dtype": HALF, "right_shift": 30.0},
    "half, large logits": {"dtype": HALF, "size": 100.0},
    "half, rows that share keys": {"dtype": HALF, "size": 1e6, "copies": 3, "positions": 42, "blocks": 4},
    **{f"{n} sub-blocks": {"blocks": n, "positions": 20} for n in (1, 3, 4, 5, 6, 7)},
    **{
        f"rows that share keys, {size:g}, {differs}": {"size": size, "copies": 3, "positions": 42, "differs": differs}
        for size in (1e5, 1e7)
        for differs in (True, False)
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "keywords",
    [
        *(pytest.param(keywords, id=name) for name, keywords in STAGES.items()),
        *(pytest.param(keywords, id=name, marks=pytest.mark.slow) for name, keywords in MORE_STAGES.items()),
    ],
)
def test_a_stage(keywords):
    check("fused", Problem(**keywords))


def test_many_sub_blocks_take_several_passes(launches):
    check("fused", Problem(blocks=12, hidden=32, positions=20))
    passes = [sizes["WIDE"] + sizes["REST"] for kernel, sizes in launches if kernel == "key_kernel"]
    assert passes == [8 * 32, 4 * 32]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gaussian", "heat"])
def test_large_logits(kind):
    """Cauchy–Schwarz is more than a hundred bits above them: the kernel has to look at every logit.

    Six problems: in a single one the plain computation may have no error by chance.
    """
    check("fused", *(Problem(kind, size=100.0, seed=seed) for seed in range(6)))


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_enormous_logits_are_finite(dtype):
    problem = Problem("heat", size=1e4, dtype=dtype)
    actual, truth = problem.solve(by("fused")), problem.truth()
    assert all(bool(x.isfinite().all()) for x in actual.values())
    assert errors(actual, truth)["value"] < {torch.float32: 1e-3, HALF: 1e-2}[dtype]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "blocks"), [(torch.float32, 2), (HALF, 2), (HALF, 20)])
def test_a_row_that_is_one_number_has_no_gradient(dtype, blocks):
    """A gradient that rounding leaves would be as large as the keys."""
    problem = Problem(size=1e5, dtype=dtype, blocks=blocks, right_shift=100.0)
    actual = problem.solve(by("fused"))
    left, right, z = (x.double().norm() for x in problem.inputs[:3])
    rounding = torch.finfo(dtype).eps * z * problem.cotangent.double().norm() / problem.positions**0.5
    assert float(actual["left"].double().norm() / right) < 1e-3 * rounding
    assert float(actual["right"].double().norm() / left) < 1e-3 * rounding


@pytest.mark.slow
@pytest.mark.parametrize("tiles", ["NARROW", "SINGLE", "DEEP", "WIDE"])
def test_the_tiles_of_the_gpu(monkeypatch, tiles):
    """Blocks and steps of different sizes, and positions that neither divides."""
    monkeypatch.setattr(launch, "EXACT", getattr(launch, tiles))
    check("fused", Problem(positions=150, blocks={"SINGLE": 1, "DEEP": 5}.get(tiles, 2)))


def solve(operation, backend, kind, dtype, channels, mask, exact=False, shift=0.0):
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randn(1, 40, c, generator=generator).to(dtype) for c in (6, 6, channels)]
    drawn[1] += shift
    left, right, z = ((x.double() if exact else x).requires_grad_() for x in drawn)
    out = operation(Affinity(left, right, kind, scale=0.5, mask=mask), z, backend=backend)
    weight = torch.randn(out.shape, generator=generator).to(out.dtype)
    return [out, *torch.autograd.grad(out, [left, right, z], weight)]


@pytest.mark.parametrize(
    ("backend", "operation", "kind", "channels", "is_masked", "dtype"),
    [
        ("fused", aggregate, "gaussian", 20, False, HALF),
        ("fused", aggregate, "heat", 7, True, torch.float32),
        ("fused", diffuse, "gaussian", 150, False, torch.float32),
        ("fused", diffuse, "heat", 15, True, HALF),
        ("fused", dirichlet_energy, "gaussian", 5, True, torch.float32),
        ("stored", aggregate, "gaussian", 20, False, HALF),
        ("stored", aggregate, "gaussian", 20, False, torch.float32),
    ],
)
def test_single_operations(backend, operation, kind, channels, is_masked, dtype):
    mask = torch.rand(1, 40, generator=torch.Generator().manual_seed(1)) > 0.3 if is_masked else None
    truth = solve(operation, "reference", kind, dtype, channels, mask, exact=True)
    actual = solve(operation, backend, kind, dtype, channels, mask)
    assert actual[0].dtype == dtype
    eps = torch.finfo(dtype).eps
    for value, expected in zip(actual, truth, strict=True):
        # Signal, K, and the products are rounded once each; the energy subtracts numbers of its own size.
        difference = value.detach().double() - expected.detach()
        assert float(difference.norm() / expected.detach().norm()) < 12 * eps


def test_keys_far_from_zero_in_a_product():
    """An error of the row sums would be as large as the keys."""
    keywords = {"kind": "gaussian", "dtype": HALF, "channels": 20, "mask": None, "shift": 30.0}
    truth = solve(aggregate, "reference", exact=True, **keywords)
    actual = solve(aggregate, "fused", **keywords)
    assert float((actual[1].double() - truth[1]).norm() / truth[1].norm()) < 2 * torch.finfo(HALF).eps


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("backend", "mode", "least"),
    [
        pytest.param("fused", "deterministic", 13, marks=pytest.mark.slow),
        ("fused", "usual", 13),
        ("stored", "usual", 5),
    ],
)
def test_every_number_is_written(monkeypatch, request, backend, mode, least):
    if mode == "deterministic":
        request.getfixturevalue("deterministic")
    problem = Problem("heat", blocks=3, hidden=128, positions=33, is_masked=True)

    def numbers():
        return [
            *problem.solve(by(backend)).values(),
            *solve(diffuse, backend, "heat", torch.float32, 20, None),
        ]

    clean = numbers()
    made = poison(monkeypatch)
    for actual, expected in zip(numbers(), clean, strict=True):
        assert torch.equal(actual, expected)
    assert len(made) > least


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize(("kind", "where"), [("gaussian", "left"), ("heat", "right"), ("gaussian", "z")])
def test_nan_reaches_the_output(kind, where):
    left, right, z = (torch.randn(2, 40, 16) for _ in range(3))
    {"left": left, "right": right, "z": z}[where][0, 35, 2] = torch.nan
    pairs = [(torch.randn(16, 16), torch.randn(16, 16)) for _ in range(2)]
    out, reference = (
        propagate(Affinity(left, right, kind), z, pairs, backend=b) for b in ("fused", "reference")
    )
    assert bool(out[0, 35].isnan().any())
    assert torch.equal(out[0].isnan().any(-1), reference[0].isnan().any(-1))
    assert bool(out[1].isfinite().all())


def test_nan_in_the_padding_stays_there():
    left, right, z = (torch.randn(1, 40, 16) for _ in range(3))
    mask = torch.ones(1, 40, dtype=torch.bool)
    mask[0, 7:20] = False
    for x in (left, right, z):
        x[0, 7:20] = torch.nan
    out = propagate(Affinity(left, right, "heat", mask=mask), z, torch.randn(2, 16, 16), backend="fused")
    assert torch.equal(out.isnan().all(-1), ~mask)
    assert torch.equal(out.isnan().any(-1), ~mask)


def test_the_deterministic_option_has_no_atomic_sums(launches, deterministic):
    Problem().solve(by("fused"))
    assert {sizes["SLOTS"] for kernel, sizes in launches if kernel == "adjoint_kernel"} == {0}
    launches.clear()
    torch.use_deterministic_algorithms(False)
    Problem().solve(by("fused"))
    assert {sizes["SLOTS"] for kernel, sizes in launches if kernel == "adjoint_kernel"} != {0}


def features(dtype=torch.float32, positions=8, width=4):
    return torch.randn(1, positions, width).to(dtype)


REFUSED = {
    "kind": (lambda: Affinity(features(), features(), "dot"), features, "dot"),
    "normalize": (lambda: Affinity(features(), features(), "heat", "count"), features, 'normalize="row"'),
    "measure": (lambda: Affinity(*[features()] * 2, "heat", measure=torch.ones(8)), features, "a measure"),
    "float64": (
        lambda: Affinity(*[features(WIDE)] * 2, "heat"),
        lambda: features(WIDE),
        "dtype .* not float64",
    ),
    "mixed": (
        lambda: Affinity(*[features(HALF)] * 2, "heat"),
        lambda: features(torch.bfloat16),
        "z in that or in float32, not bfloat16 and float16",
    ),
    "width": (lambda: Affinity(*[features(width=129)] * 2, "heat"), features, "d ≤ 128, not 129"),
    "sparse": (lambda: SparseAffinity(torch.eye(8).to_sparse_csr()), features, "not a SparseAffinity"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    affinity, z, message = REFUSED[name]
    z = z()
    for operation in (aggregate, lambda a, z, **k: propagate(a, z, [torch.eye(z.shape[-1])], **k)):
        with pytest.raises(ValueError, match=f'backend="fused" needs .*{message}.*backend="auto"'):
            operation(affinity(), z, backend="fused")


def test_other_limits_are_named(monkeypatch):
    few = features(positions=4)
    with pytest.raises(ValueError, match="as many givers as receivers, not 4 and 8"):
        aggregate(Affinity(features(), few, "gaussian"), few, backend="fused")
    many = torch.zeros(65_536, 1, 1)
    assert "at most 65,535, not 65,536" in fused.lacks(Affinity(many, many, "gaussian"))
    monkeypatch.setattr(fused, "is_available", lambda device: False)
    assert "and Triton, not cpu" in fused.lacks(Affinity(features(), features(), "gaussian"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_auto_does_not_come_here_on_the_cpu(dtype, launches):
    affinity, z = Affinity(features(dtype), features(dtype), "gaussian"), features(dtype)
    assert choose_backend(affinity, z) == "reference"
    propagate(affinity, z, [torch.eye(4, dtype=dtype)])
    prepare(affinity, torch.float32).apply(z.float())
    assert launches == []


@pytest.mark.parametrize("state", [HALF, torch.float32])
def test_auto_takes_the_same_in_a_traced_program(state, monkeypatch):
    monkeypatch.setattr(choice, "_is_measured", lambda affinity: True)
    left, right, z = features(HALF, 16), features(HALF, 16), features(state, 16)
    weights = [torch.randn(4, 4) for _ in range(2)]
    graphs = []

    def look(graph, inputs):
        graphs.append(graph)
        return graph

    def stage(left, right, z):
        return propagate(Affinity(left, right, "gaussian"), z, weights)

    torch.compiler.reset()
    out = torch.compile(stage, backend=look, fullgraph=True)(left, right, z)
    assert "nonloc.fused_stage" in graphs[0].code
    assert torch.equal(out, stage(left, right, z))
    # An exported program should run without this library.
    assert "nonloc" not in torch.export.export(Calling(stage), (left, right, z)).graph_module.code


class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def test_a_second_derivative_is_an_error():
    left, right, z, outer, inner = (x.clone().requires_grad_() for x in Problem().inputs)
    affinity, pairs = Affinity(left, right, "gaussian"), list(zip(outer, inner, strict=True))
    for out in (propagate(affinity, z, pairs, backend="fused"), diffuse(affinity, z, backend="fused")):
        with pytest.raises(ValueError, match='no second derivative.*backend="reference"'):
            torch.autograd.grad(out.sum(), z, create_graph=True)


def test_the_output_may_be_overwritten_and_shares_no_storage():
    def stage(affinity, z, pairs, differs):
        out = propagate(affinity, z, pairs, backend="fused")
        assert out.untyped_storage().nbytes() == out.nbytes
        return out.mul_(2)

    actual, truth = Problem().solve(stage), Problem().truth()
    for name, value in truth.items():
        torch.testing.assert_close(actual[name].double(), 2 * value, rtol=1e-4, atol=1e-5)


def test_only_what_a_gradient_needs_is_computed(launches):
    left, right, z, outer, inner = Problem().inputs
    affinity, pairs = Affinity(left, right, "gaussian"), list(zip(outer, inner, strict=True))
    z = z.clone().requires_grad_()
    with torch.no_grad():
        propagate(affinity, z, pairs, backend="fused")
    assert not any(sizes["SAVES"] for kernel, sizes in launches if kernel == "forward_kernel")
    stage = propagate(affinity, z, pairs, backend="fused")
    (gradient,) = torch.autograd.grad(stage, z, Problem().cotangent)
    torch.testing.assert_close(gradient.double(), Problem().truth()["z"], rtol=1e-4, atol=1e-5)
    assert {"key_kernel", "query_kernel"}.isdisjoint(kernel for kernel, _ in launches)


WEIGHTS = {
    "none": lambda w: [],
    "different_ranks": lambda w: [(w(20, 4), w(4, 20)), (w(20, 9), w(9, 20))],
    "full_and_factored": lambda w: [w(20, 20), (w(20, 4), w(4, 20))],
    "too_wide_for_one_launch": lambda w: [(w(20, 130), w(130, 20))],
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_do_not_make_one_stage(name):
    """They go through K z, a sub-block at a time."""
    torch.manual_seed(0)
    left, right, z = (torch.randn(1, 33, c) for c in (6, 6, 20))
    pairs = WEIGHTS[name](lambda *shape: 0.2 * torch.randn(shape))
    actual, expected = (
        propagate(Affinity(left, right, "gaussian"), z, pairs, backend=backend)
        for backend in ("fused", "reference")
    )
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("batch", "positions"), [(0, 5), (2, 1)])
def test_no_sample_and_one_position(batch, positions):
    left, right, z = (torch.randn(batch, positions, 4, requires_grad=True) for _ in range(3))
    out = propagate(Affinity(left, right, "gaussian"), z, torch.randn(2, 4, 4), backend="fused")
    torch.testing.assert_close(out, z)
    out.sum().backward()
    torch.testing.assert_close(z.grad, torch.ones_like(z))
    torch.testing.assert_close(left.grad, torch.zeros_like(z))


def test_strides_and_autocast_change_nothing():
    """Images come channels first: their positions are the last dimension in memory."""
    problem = Problem()
    clean = problem.solve(by("fused"))
    problem.inputs = [x.mT.contiguous().mT for x in problem.inputs]
    problem.cotangent = problem.cotangent.mT.contiguous().mT
    with torch.autocast("cpu", torch.bfloat16):
        actual = problem.solve(by("fused"))
    for name, value in clean.items():
        assert torch.equal(actual[name], value), name


def leaf(*shape):
    return (0.3 * torch.randn(shape)).requires_grad_()


def whole_stage(left, right, z, w_z, w_g):
    pairs = list(zip(w_z, w_g, strict=True))
    return 2 * propagate(Affinity(left, right, "gaussian"), z + 1, pairs, backend="fused")


def one_product(left, right, z, *_):
    return 2 * diffuse(Affinity(left, right, "heat"), z + 1, backend="fused")


@pytest.mark.parametrize("function", [whole_stage, pytest.param(one_product, marks=pytest.mark.slow)])
def test_a_traced_program_carries_it_whole_for_any_batch_and_positions(function):
    """The same kernels on the same numbers: equal to the last bit."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    weights = leaf(2, 20, 16), leaf(2, 16, 20)
    for batch, positions in ((3, 25), (4, 30)):
        inputs = [leaf(batch, positions, width) for width in (16, 16, 20)]
        with torch._dynamo.config.patch(error_on_recompile=positions == 30):
            results = [one(*inputs, *weights) for one in (function, compiled)]
        assert torch.equal(*results)
        for expected, actual in zip(
            *(torch.autograd.grad(one.square().sum(), inputs) for one in results), strict=True
        ):
            assert torch.equal(expected, actual)
    with torch.no_grad():
        assert torch.equal(compiled(*inputs, *weights), results[0])


@pytest.mark.parametrize("needs_affinity", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["fused_stage", "stored_stage", "fused_product", "stored_product", "embedded_stage"]
)
def test_every_computation_has_the_same_bits_in_a_traced_program(name, needs_affinity):
    torch._dynamo.reset()
    compute, settings = getattr(operators, name), launch.Settings(0.7, True, True, dtype=torch.float32)
    features = [leaf(2, 20, 16), leaf(2, 20, 16), leaf(2, 20)]
    if name == "embedded_stage":
        given = [leaf(2, 20, 16), leaf(16, 16), leaf(16, 16)]
    else:
        given = [*(one if needs_affinity else one.detach() for one in features), leaf(2, 20, 16)]
    if name.endswith("stage"):
        given += [leaf(2, 16, 16), leaf(2, 16, 16)]
    leaves = [one for one in given if one.requires_grad]

    def solve(function):
        value = function(*given)
        return value, *torch.autograd.grad(value.square().sum(), leaves)

    def stage(*tensors):
        return compute(*tensors, settings=settings)

    for one, other in zip(
        solve(stage), solve(torch.compile(stage, backend="aot_eager", fullgraph=True)), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("has_bias", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_operators_of_torch_are_as_they_say(has_bias):
    """Their derivatives are those of the functions that call them."""
    shapes = [(2, 20, 16)] * 3 + [(2, 16, 16)] * 2
    q, k, x, w_z, w_g, theta, phi = (leaf(*shape).detach() for shape in (*shapes, (16, 16), (16, 16)))
    bias = leaf(2, 20).detach() if has_bias else None
    for stage, product in ((fused_stage, fused_product), (stored_stage, stored_product)):
        opcheck(stage.operator, (q, k, bias, x, w_z, w_g, 0.7, True, False, True, None, True))
        opcheck(product.operator, (q, k, bias, x, 0.7, False, False, True, None, True))
    opcheck(fused_stage.operator, (q, k, bias, x, w_z, w_g, 0.7, True, True, False, None, False))
    if not has_bias:
        settings = (0.7, True, False, True, torch.float32, True)
        opcheck(embedded_stage.operator, (x, theta, phi, w_z, w_g, *settings))


def stage_results(stage, x, dtype=None):
    """The value, and the gradients of the input and of all parameters."""
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        value = stage(x)
    gradients = torch.autograd.grad(value, [x, *stage.parameters()], torch.ones_like(value).cumsum(1))
    names = ["value", "x", *(name for name, _ in stage.named_parameters())]
    return dict(zip(names, [value.detach(), *gradients], strict=True))


@pytest.mark.parametrize(
    ("stage", "is_deterministic", "x_dtype"),
    [
        (DiffusiveStage(16, 2, hidden=16, embed=16), False, torch.float32),
        (OriginalStage(32, 2), False, HALF),
        (DiffusiveStage(64, 1, hidden=64, embed=64), False, HALF),
        (DiffusiveStage(192, 1, hidden=16, embed=16), False, HALF),
        pytest.param(DiffusiveStage(32, 2, scaled=True), True, torch.float32, marks=pytest.mark.slow),
        pytest.param(
            DiffusiveStage(32, 2, share_affinity=False), False, torch.float32, marks=pytest.mark.slow
        ),
    ],
    ids=["shared", "original", "wide", "three chunks", "deterministic", "own"],
)
def test_a_stage_with_its_embedding_inside(launches, stage, is_deterministic, x_dtype):
    """As far from float64 as with θ called outside, which a hook asks for."""
    stage = copy.deepcopy(stage)
    stage.init = "fan_in"
    stage.backend = "fused"
    stage.reset_parameters()
    x = torch.randn(2, stage.channels, 5, 6).to(x_dtype)
    truth = copy.deepcopy(stage).double()
    truth.backend = "reference"
    truth = stage_results(truth, x.double())
    torch.use_deterministic_algorithms(is_deterministic)
    try:
        inside = stage_results(stage, x, HALF)
        count = 1 if stage.shares_affinity else stage.num_blocks
        last = "key_kernel" if len(stage.embeddings[0].theta.weight) <= 32 else "finish_kernel"
        assert [c["EMBEDS"] for kernel, c in launches if kernel == last] == [True] * count
        launches.clear()
        for embedding in stage.embeddings:
            embedding.theta.register_forward_hook(lambda *_: None)
        outside = stage_results(stage, x, HALF)
        assert not any(constants.get("EMBEDS", False) for _, constants in launches)
    finally:
        torch.use_deterministic_algorithms(False)
    actual, plain = errors(inside, truth), errors(outside, truth)
    eps = torch.finfo(HALF).eps
    assert {n: e for n, e in actual.items() if e > FACTOR * max(eps, plain[n])} == {}


@pytest.mark.parametrize(
    ("keywords", "masked"),
    [
        ({"bias": True}, False),
        ({"embed": 8}, False),
        ({"normalize": "sinkhorn", "shared_embedding": True}, False),
        ({}, True),
    ],
)
def test_other_stages_call_their_embedding(launches, keywords, masked):
    stage = DiffusiveStage(32, 1, **keywords)
    mask = torch.ones(1, 4, 4, dtype=torch.bool) if masked else None
    with torch.autocast("cpu", HALF):
        stage(torch.zeros(1, 32, 4, 4), mask)
    assert not any(constants.get("EMBEDS", False) for _, constants in launches)


@pytest.mark.parametrize(("setting", "expected"), [("tf32", "tf32"), ("ieee", "tf32x3")])
def test_tf32_is_used_only_where_it_is_allowed(monkeypatch, setting, expected):
    seen = []
    monkeypatch.setattr(Launcher, "launch", lambda self, *args, **constants: seen.append(self.precision))
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = setting
    try:
        diffuse(Affinity(features(), features(), "gaussian"), features(), backend="fused")
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert set(seen) == {expected}


@pytest.mark.parametrize(
    ("blocks", "hidden", "stride", "expected"),
    [
        (4, 32, 100, [(0, 4)]),
        (7, 32, 100, [(0, 6), (6, 1)]),
        (3, 128, 100, [(0, 2), (2, 1)]),
        (4, 32, 2**30, [(0, 2), (2, 2)]),  # offsets within one pass stay within 32 bits
        (2, 32, 2**33, [(0, 1), (1, 1)]),
    ],
)
def test_the_passes_over_sub_blocks(blocks, hidden, stride, expected):
    assert _groups(blocks, hidden, stride) == expected


def test_what_triton_would_compile_anew_is_not_taken_from_what_is_kept(monkeypatch):
    """Triton compiles by dtypes, by addresses and whole numbers that are multiples of 16, and by what is absent."""
    compiled, launched = [], []

    class Kernel:
        arg_names = ("X", "Y", "M", "scale", "BLOCK")

        def __getitem__(self, grid):
            def compile_and_launch(*arguments, **keywords):
                compiled.append(arguments)
                number = len(compiled)
                return {(2, 3, 1): lambda *arguments: launched.append((number, arguments[-2:]))}

            return compile_and_launch

    def run(x, y, size, scale, block):
        site = (*launch.make_site(x, y), size, block)
        launch.launch_kernel(
            site, lambda: (Kernel(), (2, 3), {"BLOCK": block}, {"num_warps": 4}), (x, y, size, scale)
        )

    monkeypatch.setattr(launch, "is_interpreted", lambda: False)
    monkeypatch.setattr(launch, "_compiled", {})
    numbers, other, _, _, aligned = torch.zeros(64).unfold(0, 60, 1)
    assert aligned.data_ptr() % 16 == 0 != other.data_ptr() % 16
    different = [
        (numbers, aligned, 16, 0.5, 64),
        (numbers, other, 16, 0.5, 64),
        (other, numbers, 16, 0.5, 64),
        (numbers, None, 16, 0.5, 64),
        (numbers, aligned.half(), 16, 0.5, 64),
        (numbers, aligned, 17, 0.5, 64),
        (numbers, aligned, 16, 0.5, 32),
    ]
    for _ in range(2):
        for one in different:
            run(*one)
    run(aligned, numbers, 16, 0.7, 64)
    assert len(compiled) == len(different)
    expected = [(n + 1, (0.5, one[-1])) for n, one in enumerate(different)]
    assert launched == [*expected, (1, (0.7, 64))]
