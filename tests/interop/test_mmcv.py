"""mmcv's NonLocal modules as our blocks, and our blocks in mmcv's configurations."""

import copy
import pickle

import pytest
import torch
from torch import nn

from nonloc.interop.mmcv import from_nonlocal, register

pytestmark = pytest.mark.interop
MODES = ["gaussian", "embedded_gaussian", "dot_product", "concatenation"]
SIZES = {1: (9,), 2: (5, 6), 3: (3, 4, 5)}
C = 8


def image(dimensions, dtype=torch.float32):
    return torch.randn(2, C, *SIZES[dimensions], generator=torch.Generator().manual_seed(1)).to(dtype)


def theirs(dimensions, **keywords):
    from mmcv.cnn.bricks import non_local

    return getattr(non_local, f"NonLocal{dimensions}d")(C, **keywords)


@pytest.mark.parametrize("dimensions", SIZES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sub_sample", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("use_scale", [False, True])
def test_the_output_is_theirs(dimensions, mode, sub_sample, norm, use_scale, randomized):
    norm_cfg = {"type": f"BN{dimensions}d", "eps": 1e-3} if norm else None
    module = theirs(
        dimensions, mode=mode, sub_sample=sub_sample, norm_cfg=norm_cfg, use_scale=use_scale, reduction=4
    )
    randomized(module).eval()
    x = image(dimensions)
    block = from_nonlocal(module)
    assert not block.training
    assert (block(x) - x).abs().max() > 0.01
    # Relative to the largest number: rounding grows with what is added up.
    assert (block(x) - module(x)).abs().max() <= 1e-6 * module(x).abs().max().clamp(min=1)
    double = module.double()
    torch.testing.assert_close(from_nonlocal(double)(x.double()), double(x.double()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", MODES[:3])  # of the fourth torch cannot differentiate theirs
def test_it_trains_as_theirs(mode, randomized):
    module = randomized(theirs(2, mode=mode, sub_sample=True, norm_cfg={"type": "BN2d"})).double().train()
    block, x = from_nonlocal(module), image(2, torch.float64).requires_grad_()
    assert block.training
    outputs = block(x), module(x)
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*(torch.autograd.grad(one.square().sum(), x) for one in outputs))
    # The running statistics that the batch left behind.
    torch.testing.assert_close(block.eval()(x), module.eval()(x))


def test_another_module_is_refused():
    with pytest.raises(ValueError, match="one of mmcv's NonLocal1d, NonLocal2d and NonLocal3d, got Conv2d"):
        from_nonlocal(nn.Conv2d(3, 3, 1))
    with pytest.raises(ValueError, match="must be a batch normalisation"):
        from_nonlocal(theirs(2, norm_cfg={"type": "GN", "num_groups": 2}))


@pytest.mark.parametrize(
    ("name", "keywords"),
    [("OriginalBlock", {}), ("DiffusiveBlock", {}), ("OriginalStage", {"num_blocks": 2}),
     ("DiffusiveStage", {"num_blocks": 2, "scaled": True})],
)  # fmt: skip
def test_a_configuration_names_our_blocks(name, keywords):
    from mmcv.cnn import build_plugin_layer

    import nonloc

    register()
    register()
    torch.manual_seed(0)
    _, layer = build_plugin_layer({"type": name, **keywords}, postfix="_after", in_channels=C)
    torch.manual_seed(0)
    ours = getattr(nonloc, name)(C, **keywords)
    assert isinstance(layer, getattr(nonloc, name))
    for one in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(one(image(2)), ours(image(2)))
