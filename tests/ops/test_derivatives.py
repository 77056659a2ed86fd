"""Derivatives beyond the first backward: right, or a ValueError that names the way out. Never silently wrong."""

import pytest
import torch
from torch.autograd import forward_ad, grad
from torch.func import grad as func_grad
from torch.func import jacfwd, jacrev, jvp, vmap

from nonloc.ops import NORMALIZATIONS, Affinity, SparseAffinity, diffuse, sinkhorn
from nonloc.ops.derivatives import differentiable_as
from problems import CELLS, EXACT, FORMED_CELLS, SOME_CELLS, decoration, features, generator, relative

M = 5
each_backend = pytest.mark.parametrize("backend", EXACT)
each_cell = pytest.mark.parametrize(("kind", "normalize"), SOME_CELLS)
KERNELS = ["gaussian", "heat", "dot", "concat"]


def signal(channels=2, seed=1):
    return torch.randn(1, M, channels, dtype=torch.float64, generator=generator(seed))


def roughness(kind, normalize, backend, z=None):
    """x -> a number, with a Hessian that has every entry."""
    z = signal() if z is None else z
    scale = 0.7 if kind in ("gaussian", "heat", "dot") else 1.0

    def value(x, z=z):
        out = diffuse(Affinity(x, x, kind, normalize, scale), z, backend=backend)
        return out.square().sum() + x.square().sum()

    return value


def start(kind, normalize="symmetric"):
    return features(kind, normalize, batch=1, positions=M, width=2)


def direction(x):
    return torch.randn(x.shape, dtype=x.dtype, generator=generator(2))


def hessian_product(function, x, v):
    x = x.clone().requires_grad_()
    (first,) = grad(function(x), x, create_graph=True)
    return grad((first * v).sum(), x)[0]


def second_derivatives_agree(function, x):
    """Whether x -> function(x, backend) [any shape] has the same Hessian without the matrix as with it."""

    def loss(backend):
        return lambda y: function(y, backend).square().sum() + y.square().sum()

    products = (hessian_product(loss(backend), x, direction(x)) for backend in ("factored", "reference"))
    return relative(*products) <= 1e-10


@pytest.mark.parametrize(("kind", "normalize", "form"), FORMED_CELLS)
def test_second_derivatives_without_the_matrix_are_those_with_it(kind, normalize, form):
    z = torch.randn(2, M, 2, dtype=torch.float64, generator=generator(4))

    def function(x, backend):
        return diffuse(Affinity(x, x, kind, normalize, **decoration(form, M)), z, backend=backend)

    assert second_derivatives_agree(function, features(kind, normalize, positions=M))


@pytest.mark.parametrize("kind", KERNELS)
def test_second_derivatives_of_a_scaling_see_the_measure(kind):
    def function(measure, backend):
        a = Affinity(start(kind), start(kind), kind, "sinkhorn", measure=measure)
        return diffuse(a, signal(), backend=backend)

    assert second_derivatives_agree(function, torch.linspace(0.3, 1.2, M, dtype=torch.float64))


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_second_derivatives_of_a_sparse_kernel(normalize):
    points = torch.rand(M, 1, dtype=torch.float64, generator=generator(5))
    near = (points - points.mT).abs() < 0.5

    def function(points, backend):
        omega = torch.where(near, torch.exp(-(points - points.mT).square()), 0)
        return diffuse(SparseAffinity(omega.to_sparse_csr(), normalize), signal(), backend=backend)

    assert second_derivatives_agree(function, points)


def test_a_first_derivative_still_goes_through_attention():
    x = start("heat").requires_grad_()
    with torch.profiler.profile() as profile:
        grad(roughness("heat", "row", "factored")(x), x)
    assert any("flash_attention_for_cpu_backward" in event.key for event in profile.key_averages())


def gradient(function, x):
    x = x.clone().requires_grad_()
    return grad(function(x), x)[0]


def slope(function, x, v):
    return (gradient(function, x) * v).sum()


def by_dual_numbers(function, x, v):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, v))).tangent


# What can be asked of torch, and the same by backward alone: (function, x, v) -> tensor, each.
WAYS = {
    "dual numbers": (by_dual_numbers, slope),
    "jvp": (lambda f, x, v: jvp(f, (x,), (v,))[1], slope),
    "jacfwd": (lambda f, x, v: jacfwd(f)(x), lambda f, x, v: gradient(f, x)),
    "func.grad": (lambda f, x, v: func_grad(f)(x), lambda f, x, v: gradient(f, x)),
    "jvp(grad)": (lambda f, x, v: jvp(func_grad(f), (x,), (v,))[1], hessian_product),
    "jacrev(grad)": (lambda f, x, v: (jacrev(func_grad(f))(x) * v).sum((-3, -2, -1)), hessian_product),
    "grad(jvp)": (lambda f, x, v: func_grad(lambda y: jvp(f, (y,), (v,))[1])(x), hessian_product),
    "vmap(grad)": (
        lambda f, x, v: vmap(func_grad(f))(torch.stack([x, 1.1 * x])),
        lambda f, x, v: torch.stack([gradient(f, x), gradient(f, 1.1 * x)]),
    ),
}


@each_backend
@pytest.mark.parametrize(
    ("way", "kind", "normalize"), [(list(WAYS)[n % len(WAYS)], *cell) for n, cell in enumerate(CELLS)]
)
def test_torch_func_and_forward_mode(kind, normalize, way, backend):
    x = start(kind)
    v = direction(x)
    find, truth = WAYS[way]
    function = roughness(kind, normalize, backend)
    if (backend, normalize) == ("factored", "sinkhorn") and kind != "delta":
        with pytest.raises(ValueError, match='by torch.autograd alone.*use backend="reference"'):
            find(function, x, v)
        return
    assert relative(find(function, x, v), truth(roughness(kind, normalize, "reference"), x, v)) <= 1e-10


@each_backend
@each_cell
def test_vmap_of_the_features_and_of_the_signal(kind, normalize, backend):
    function, x = roughness(kind, normalize, backend), start(kind)
    truth = roughness(kind, normalize, "reference")
    several = torch.stack([x, 1.1 * x, 0.9 * x])
    assert relative(vmap(function)(several), torch.stack([truth(one) for one in several])) <= 1e-11
    signals = torch.stack([signal(), signal(seed=8)])
    actual = vmap(function, in_dims=(None, 0))(x, signals)
    assert relative(actual, torch.stack([truth(x, z) for z in signals])) <= 1e-11


def test_vmap_takes_newton_steps_where_others_are_not_enough():
    x = torch.tensor([[[1.0, 0.01], [0.02, 1.0], [2.0, 0.01], [0.01, 3.0]]], dtype=torch.float64)
    z = torch.randn(1, 4, 1, dtype=torch.float64, generator=generator(0))

    def function(x):  # almost bipartite: an eigenvalue of K is close to −1
        return diffuse(Affinity(x, x.flip(-1), "dot", "sinkhorn"), z, backend="factored")

    assert relative(vmap(function)(x.unsqueeze(0))[0], function(x)) <= 1e-11


@pytest.mark.parametrize("way", ["jvp", "vmap(grad)"])
def test_a_sparse_kernel_names_its_way_out(way):
    a = SparseAffinity(torch.eye(M, dtype=torch.float64).to_sparse_csr())
    find, _ = WAYS[way]
    with pytest.raises(ValueError, match="neither torch.func nor forward mode.*as_dense"):
        find(lambda z: diffuse(a, z).square().sum(), signal(), signal())
    dense = a.as_dense()
    assert bool(find(lambda z: diffuse(dense, z).square().sum(), signal(), signal()).isfinite().all())


@pytest.mark.parametrize("way", ["jvp", "vmap(grad)"])
def test_fused_names_its_way_out(way):
    x = start("heat").float()
    find, _ = WAYS[way]
    with pytest.raises(ValueError, match='backend="fused" needs .* torch.func .* use backend="auto"'):
        find(roughness("heat", "row", "fused", signal().float()), x, x)


def test_sinkhorn_compiles_whole_with_its_gradient(monkeypatch):
    # A program of six steps; the Newton steps do the rest.
    monkeypatch.setattr(sinkhorn, "UNSEEN_STEPS", 6)
    torch._dynamo.reset()
    function = roughness("heat", "sinkhorn", "reference")
    x = start("heat").requires_grad_()
    actual = torch.compile(function, fullgraph=True, backend="aot_eager")(x)
    assert relative(actual, function(x)) <= 1e-12
    assert relative(grad(actual, x)[0], grad(function(x), x)[0]) <= 1e-11


@pytest.mark.skipif(torch.__version__ < (2, 7), reason="it cannot trace an error in a with block")
def test_compiled_without_the_matrix_values_serve_and_gradients_name_the_way_out():
    torch._dynamo.reset()
    function, x = roughness("dot", "sinkhorn", "factored"), start("dot")
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    assert relative(compiled(x), function(x)) <= 1e-12
    with pytest.raises(torch._dynamo.exc.Unsupported, match='use backend="reference"'):
        compiled(x.requires_grad_())


def test_autocast_around_backward_does_not_reach_what_is_computed_again():
    seen = []

    def square(x):
        seen.append(torch.is_autocast_enabled("cpu"))
        return x * x

    x = torch.tensor([3.0], requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (first,) = grad(differentiable_as(square, lambda x: x.square(), x), x, create_graph=True)
        (second,) = grad(first, x)
    assert seen == [False]
    assert (first.item(), second.item()) == (6.0, 2.0)
