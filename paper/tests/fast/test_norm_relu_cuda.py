"""NormReLU on a GPU: against float64, the same bits every time, in a captured graph, and in whole networks."""

import pytest
import torch
import torch.nn.functional as F
from norm_problems import check, twins

from nonloc_paper.fast.norm_relu import NormReLU
from nonloc_paper.networks.build import build

pytestmark = pytest.mark.gpu

DEVICE_TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
SHAPES = [(2, 1, 1, 1), (3, 5, 7, 5), (128, 16, 32, 32), (128, 64, 32, 32), (100, 256, 8, 8), (2, 1000, 9, 3)]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", list(DEVICE_TOLERANCE))
@pytest.mark.parametrize("shape", SHAPES)
def test_cuda_module_against_float64(shape, dtype, training):
    module, plain = twins(shape[1])
    module, plain = module.cuda().train(training), plain.double().cuda().train(training)
    x = (2 * torch.randn(shape, device="cuda") + 1).to(dtype).contiguous(memory_format=torch.channels_last)
    inputs, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    normed = plain(exact)
    out, wanted = module(inputs), normed.relu()
    # At the kink rounding decides which of two right gradients is found.
    grad = torch.where(normed.abs() > 1e-4, torch.randn_like(x), 0)
    assert type(out.grad_fn).__name__ == "_FusedBackward"
    assert out.dtype == dtype
    assert out.is_contiguous(memory_format=torch.channels_last)
    found = torch.autograd.grad(out, [inputs, module.weight, module.bias], grad)
    exact_found = torch.autograd.grad(wanted, [exact, plain.weight, plain.bias], grad.double())
    check((out, *found), (wanted, *exact_found), dtype, DEVICE_TOLERANCE)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name].double(), value.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", list(DEVICE_TOLERANCE))
@pytest.mark.parametrize("stride", [1, 2])
def test_cuda_sum_and_activation_against_float64(dtype, stride):
    """The gradient comes to the sum, through the activation and directly, and is the gradient to both terms."""
    torch.manual_seed(8)
    module, plain = twins(64)
    module, plain = module.cuda(), plain.double().cuda()
    x, added = (
        torch.randn(16, 64, 9, 12, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)
        for _ in range(2)
    )
    x, added = x.requires_grad_(), added.requires_grad_()
    total, out = module.sum_and_activation(x, added, stride)
    torch.testing.assert_close(total, x + added, rtol=0, atol=0)
    more, grad = torch.randn_like(total), torch.randn_like(out)
    found = torch.autograd.grad(
        (out.double() * grad).sum() + (total.double() * more).sum(), [x, added, module.weight, module.bias]
    )
    assert torch.equal(found[0], found[1])
    exact = total.detach().double().requires_grad_()
    wanted = plain(exact).relu()[:, :, ::stride, ::stride]
    exact_found = torch.autograd.grad(
        (wanted * grad).sum() + (exact * more).sum(), [exact, plain.weight, plain.bias]
    )
    check((out, found[0], *found[2:]), (wanted, *exact_found), dtype, DEVICE_TOLERANCE)


def test_cuda_gradient_of_any_layout():
    module, plain = (m.cuda() for m in twins(8))
    x = torch.randn(4, 8, 6, 6, device="cuda").contiguous(memory_format=torch.channels_last).requires_grad_()
    one, other = (
        torch.autograd.grad(y.mean((2, 3)).square().sum(), x)[0] for y in (module(x), plain(x).relu())
    )
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "x",
    [
        pytest.param(lambda: torch.randn(2, 4, 6, 6, device="cuda"), id="channels first"),
        pytest.param(
            lambda: torch.randn(2, 4, 6, 6, device="cuda").double().to(memory_format=torch.channels_last),
            id="float64",
        ),
    ],
)
def test_cuda_falls_back_to_plain_torch(x):
    module, plain = (m.cuda() for m in twins(4))
    x = x()
    module, plain = module.to(x.dtype), plain.to(x.dtype)
    assert torch.equal(module(x), plain(x).relu())


def test_cuda_same_bits_every_time():
    module, _ = twins(64)
    module.cuda()
    x = (
        torch.randn(32, 64, 16, 16, device="cuda")
        .contiguous(memory_format=torch.channels_last)
        .requires_grad_()
    )
    grad = torch.randn_like(x)
    results = []
    for _ in range(3):
        out = module(x)
        results.append([out, *torch.autograd.grad(out, [x, module.weight, module.bias], grad)])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_cuda_captured_graph_trains_on_what_its_input_holds():
    module, plain = (m.cuda() for m in twins(24))
    x = (
        torch.zeros(8, 24, 10, 10, device="cuda")
        .contiguous(memory_format=torch.channels_last)
        .requires_grad_()
    )
    grad = torch.randn_like(x)

    def work(norm):
        out = norm(x) if norm is module else norm(x).relu()
        return out, *torch.autograd.grad(out, [x, norm.weight, norm.bias], grad)

    state = {name: value.clone() for name, value in module.state_dict().items()}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work(module)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = work(module)
    module.load_state_dict(state)
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            x.copy_(torch.randn(x.shape, device="cuda") + seed)
        graph.replay()
        for one, other in zip(found, work(plain), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert int(module.num_batches_tracked) == 3
    torch.testing.assert_close(module.running_var, plain.running_var)


def one_batch(network, x, y, dtype):
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        loss = F.cross_entropy(network(x).float(), y)
    return [loss, *torch.autograd.grad(loss, list(network.parameters()))]


@pytest.mark.parametrize("spec", ["preresnet20/baseline", "preresnet20-basic/baseline"])
def test_cuda_network_fused_against_plain_on_one_batch(spec):
    """Float32 with tf32 off; both are held to float64, and the fused network must be no worse than twice the plain.

    In the Euclidean norm: at a ReLU's kink rounding decides about single entries.
    """
    torch.manual_seed(5)
    network = build(spec).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(32, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (32,), device="cuda")
    start = {name: value.clone() for name, value in network.state_dict().items()}
    errors = {}
    with torch.backends.cudnn.flags(allow_tf32=False, deterministic=True, benchmark=False):
        exact_network = build(spec).double().cuda()
        exact_network.load_state_dict(start)
        exact = one_batch(exact_network, x.double(), y, torch.float32)
        for fused in (True, False):
            network.load_state_dict(start)
            for module in network.modules():
                if isinstance(module, NormReLU):
                    module.fused = fused
            found = one_batch(network, x, y, torch.float32)
            errors[fused] = max(float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True))
    assert errors[True] < max(2 * errors[False], 1e-5)
    assert errors[False] < 1e-2


def test_cuda_compiled_network_gives_the_same_outputs():
    torch.manual_seed(6)
    module, plain = (m.cuda() for m in twins(8))
    x = torch.randn(4, 8, 6, 6, device="cuda").contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(torch.compile(module)(x), plain(x).relu())


def test_functional_gradients_go_the_plain_way():
    torch.manual_seed(0)
    model = build("preresnet11/baseline").to("cuda", memory_format=torch.channels_last).eval()
    x = torch.randn(2, 3, 16, 16, device="cuda").contiguous(memory_format=torch.channels_last)
    parameters = dict(model.named_parameters())

    def loss(values):
        return torch.func.functional_call(model, values, (x,)).square().sum()

    # Torch's convolutions are tf32 unless told otherwise, which is more than what is compared here.
    with torch.backends.cudnn.flags(allow_tf32=False, deterministic=True, benchmark=False):
        found = torch.func.grad(loss)(parameters)
        wanted = torch.autograd.grad(loss(parameters), list(parameters.values()))
    for name, gradient in zip(parameters, wanted, strict=True):
        assert float((found[name] - gradient).norm() / gradient.norm()) < 1e-4, name
