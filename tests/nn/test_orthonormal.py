"""orthonormal_part: its kernel in the interpreter and its gradient, against QR in float64."""

import pytest
import torch

from interpreted import interpreted
from nonloc.nn import stable_weight
from nonloc.nn.stable_weight import gradient, orthonormal_part


@pytest.fixture(scope="module")
def kernel():
    with interpreted("nonloc.nn.orthonormal_kernel") as module:
        yield module


def by_qr(v):
    """(Q, P) in float64, with the signs that make R's diagonal positive."""
    rank = v.shape[1]
    q, r = torch.linalg.qr(torch.cat([v.double(), torch.eye(rank, dtype=torch.float64)]))
    q = q * r.diagonal().sign()
    return q[: len(v)], q[len(v) :]


SHAPES = [(64, 32), (8, 4), (7, 5), (3, 3), (1, 1), (2, 6)]


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_finds_the_columns_of_qr(kernel, shape, size):
    torch.manual_seed(0)
    v = size * torch.randn(shape)
    for found, wanted in zip(kernel.columns(v), by_qr(v), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-7)


def test_the_columns_stay_orthonormal_where_v_is_nearly_singular(kernel):
    """Four columns that differ in the seventh digit, a million times as large as the identity below them."""
    torch.manual_seed(1)
    v = 1e6 * (torch.randn(16, 1) + 1e-7 * torch.randn(16, 4))
    both = torch.cat(kernel.columns(v)).double()
    torch.testing.assert_close(both.mT @ both, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-6)


def test_a_transposed_v_is_read_as_it_lies(kernel):
    torch.manual_seed(2)
    v = torch.randn(5, 9).mT
    torch.testing.assert_close(kernel.columns(v)[0].double(), by_qr(v)[0], rtol=1e-6, atol=1e-7)


def test_what_is_not_a_number_stays_none(kernel):
    v = torch.randn(8, 4)
    v[2, 0] = torch.nan
    assert bool(kernel.columns(v)[0].isnan().all())


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_is_that_of_qr(shape):
    torch.manual_seed(3)
    v = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    q, p = by_qr(v)
    dq = torch.randn_like(q)
    (wanted,) = torch.autograd.grad(q, v, dq)
    torch.testing.assert_close(gradient(dq, q.detach(), p.detach()), wanted, rtol=1e-10, atol=1e-12)


def test_the_function_has_both(kernel, monkeypatch):
    monkeypatch.setattr(stable_weight, "_triton_kernel", lambda: kernel)
    torch.manual_seed(4)
    v = torch.randn(8, 4, requires_grad=True)
    found = stable_weight._Columns.apply(v)
    exact = v.detach().double().requires_grad_()
    wanted, _ = by_qr(exact)
    weight = torch.randn(8, 4)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-7)
    (gradient_found,) = torch.autograd.grad(found, v, weight)
    (gradient_wanted,) = torch.autograd.grad(wanted, exact, weight.double())
    torch.testing.assert_close(gradient_found.double(), gradient_wanted, rtol=1e-5, atol=1e-6)


def test_on_the_cpu_it_is_qr():
    torch.manual_seed(5)
    v = torch.randn(6, 3, dtype=torch.float64)
    q = orthonormal_part(v)
    wanted = v @ torch.linalg.inv(torch.eye(3, dtype=torch.float64) + v.mT @ v) @ v.mT
    torch.testing.assert_close(q @ q.mT, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(64, 32), (7, 5), (128, 64), (256, 128)])
def test_cuda_value_and_gradient_in_a_captured_graph(shape):
    """The last of them is too large for the kernel, and is not captured."""
    torch.manual_seed(6)
    v = torch.randn(shape, device="cuda", requires_grad=True)
    weight = torch.randn(shape, device="cuda")

    def both():
        q = orthonormal_part(v)
        product = q @ q.mT  # free of the columns' signs
        return product.detach(), *torch.autograd.grad((product * (weight @ weight.mT)).sum(), v)

    exact = v.detach().double().requires_grad_()
    inside = torch.linalg.inv(torch.eye(shape[1], dtype=torch.float64, device="cuda") + exact.mT @ exact)
    product = exact @ inside @ exact.mT
    wanted = [
        product.detach(),
        *torch.autograd.grad((product * (weight @ weight.mT).double()).sum(), exact),
    ]
    found = both()
    if shape[0] < 256:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            both()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = both()
        graph.replay()
        torch.cuda.synchronize()
    for one, other in zip(found, wanted, strict=True):
        assert float((one.double() - other).norm() / other.norm()) < 1e-5
