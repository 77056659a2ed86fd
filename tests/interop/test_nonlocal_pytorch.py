"""Non-local_pytorch's state dicts. It is no package, and computes what mmcv does with use_scale=False."""

import pytest
import torch

from nonloc.interop.nonlocal_pytorch import from_nonlocal

pytestmark = pytest.mark.interop
MODES = ["gaussian", "embedded_gaussian", "dot_product", "concatenation"]


def renamed(state, sub_sample, norm):
    """Return the state dict of mmcv's module with the names that Non-local_pytorch gives to the same weights."""
    after = ".0" if sub_sample else ""
    names = {
        f"g{after}.conv": f"g{after}",
        f"phi{after}.conv": f"phi{after}",
        "theta.conv": "theta",
        "conv_out.conv": "W.0" if norm else "W",
        "conv_out.bn": "W.1",
        "concat_project.conv": "concat_project.0",
    }
    parts = {key: key.rpartition(".") for key in state}
    return {f"{names[part]}.{last}": state[key] for key, (part, _, last) in parts.items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sub_sample", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_the_output_is_that_of_the_same_weights(mode, sub_sample, norm, randomized):
    from mmcv.cnn import NonLocal2d

    norm_cfg = {"type": "BN2d"} if norm else None
    module = NonLocal2d(8, mode=mode, sub_sample=sub_sample, norm_cfg=norm_cfg, use_scale=False)
    randomized(module).eval()
    state = renamed(module.state_dict(), sub_sample, norm)
    x = torch.randn(2, 8, 5, 6, generator=torch.Generator().manual_seed(1))
    block = from_nonlocal(state, mode)
    assert not block.training
    assert (block(x) - module(x)).abs().max() <= 1e-6 * module(x).abs().max().clamp(min=1)
    if mode in ("gaussian", "concatenation"):
        assert torch.equal(from_nonlocal(state)(x), block(x))
        with pytest.raises(ValueError, match=f"the weights are those of '{mode}'"):
            from_nonlocal(state, "dot_product")
    else:
        with pytest.raises(ValueError, match="look alike; say mode="):
            from_nonlocal(state)
        with pytest.raises(ValueError, match="mode='gaussian', and the weights"):
            from_nonlocal(state, "gaussian")


def test_a_whole_checkpoint_is_refused():
    with pytest.raises(ValueError, match="take the prefix of the block away first. It has layer.g.weight"):
        from_nonlocal({"layer.g.weight": torch.zeros(1)})
