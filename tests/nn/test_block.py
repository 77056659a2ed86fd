"""One sub-block: what it computes, and its local limit."""

import pytest
import torch
from equations import diffusive_step, embedded_gaussian, original_step

from nonloc.nn.stage import DiffusiveBlock, DiffusiveStage, OriginalBlock, OriginalStage

C, M = 6, 5
BLOCKS = [OriginalBlock, DiffusiveBlock]


@pytest.fixture
def x():
    return torch.randn(2, M, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def made(kind, **keywords):
    torch.manual_seed(0)
    return kind(C, layout="positions", init="torch", **keywords).double()


def test_original_block_is_equation_1(x):
    block = made(OriginalBlock)
    omega = embedded_gaussian(x, block.embeddings[0].theta.weight, block.embeddings[0].phi.weight)
    expected = original_step(x, omega, block.maps[0].w_z.weight, block.maps[0].w_g.weight)
    torch.testing.assert_close(block(x), expected)


def test_diffusive_block_is_equation_8_with_one_step(x):
    block = made(DiffusiveBlock)
    omega = embedded_gaussian(x, block.embeddings[0].theta.weight, block.embeddings[0].phi.weight)
    torch.testing.assert_close(block(x), diffusive_step(x, omega, block.weights()[0]))


def test_original_block_with_delta_is_a_residual_linear_map(x):
    block = made(OriginalBlock, affinity="delta")
    torch.testing.assert_close(block(x), x + x @ block.weights()[0].T)


def test_diffusive_block_with_delta_is_the_identity(x):
    assert torch.equal(made(DiffusiveBlock, affinity="delta")(x), x)


@pytest.mark.parametrize(
    ("block", "stage"), [(OriginalBlock, OriginalStage), (DiffusiveBlock, DiffusiveStage)]
)
def test_block_is_a_stage_of_one(block, stage, x):
    one = made(block)
    other = stage(C, 1, layout="positions").double()
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_take_no_number_and_no_sharing(block):
    with pytest.raises(TypeError):
        block(C, 3)
    with pytest.raises(TypeError):
        block(C, share_affinity=True)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("weight", ["factored", "full"])
@pytest.mark.parametrize("affinity", ["gaussian", "embedded_gaussian", "dot", "concat", "heat"])
def test_gradients_are_right(block, weight, affinity):
    torch.manual_seed(0)
    module = block(3, layout="positions", init="torch", weight=weight, affinity=affinity, bias=True).double()
    x = torch.randn(1, 4, 3, dtype=torch.float64, requires_grad=True)
    names, values = zip(*module.named_parameters(), strict=True)

    def run(x, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *(v.detach().requires_grad_() for v in values)))


def test_bias_of_w_g_exists_only_where_it_can_matter():
    original, diffusive = made(OriginalBlock, bias=True).maps[0], made(DiffusiveBlock, bias=True).maps[0]
    assert original.w_g.bias is not None
    assert original.w_z.bias is not None
    assert diffusive.w_g.bias is None
    assert diffusive.w_z.bias is not None


def test_biases_shift_the_original_block_as_written(x):
    block = made(OriginalBlock, bias=True, affinity="gaussian")
    weight = block.maps[0]
    omega = torch.exp(x @ x.mT)
    kernel = omega / omega.sum(-1, keepdim=True)
    expected = (
        x + (kernel @ (x @ weight.w_g.weight.T + weight.w_g.bias)) @ weight.w_z.weight.T + weight.w_z.bias
    )
    torch.testing.assert_close(block(x), expected)
