"""ONNX: every kernel and normalisation in onnxruntime, with sizes that the exporter did not see."""

import io

import numpy as np
import pytest
import torch

import nonloc

pytestmark = pytest.mark.interop
C = 6
KERNELS = ["embedded_gaussian", "gaussian", "dot", "concat", "heat", "delta"]
NORMALIZATIONS = ["row", "count", "none", "symmetric", "sinkhorn"]


def made(kind=nonloc.DiffusiveStage, **keywords):
    torch.manual_seed(0)
    stage = kind(C, 2, init_std=0.2, **keywords)
    # Entries above 0, as "sinkhorn" needs; with those of both signs a row sum may be nearly 0.
    if keywords.get("affinity") in ("dot", "concat"):
        torch.nn.init.constant_(stage.embeddings[0].theta.bias, 2.0)
    return nonloc.freeze(stage, sinkhorn_steps=10)


def images():
    """Return the example of the export, and another batch of another size."""
    generator = torch.Generator().manual_seed(1)
    # Small numbers: without a normalisation, e^x multiplies the rounding of x by its size.
    return [0.5 * torch.randn(size, generator=generator) for size in ((2, C, 5, 6), (3, C, 7, 4))]


def check(stage, program):
    session = onnxruntime_session(program)
    for x in images():
        expected = stage(x).numpy()
        (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert np.abs(expected - x.numpy()).max() > 1e-4 or "delta" in str(stage)
        # Sums of up to 30 terms of the size of the largest number, in another order.
        assert np.abs(actual - expected).max() <= 30 * np.finfo(np.float32).eps * np.abs(expected).max()


def onnxruntime_session(program):
    import onnxruntime

    return onnxruntime.InferenceSession(program)


def by_dynamo(stage):
    b, h, w = (torch.export.Dim(name) for name in "bhw")
    file = io.BytesIO()
    exported = torch.onnx.export(
        stage, (images()[0],), dynamo=True, dynamic_shapes=({0: b, 2: h, 3: w},), verbose=False
    )
    exported.save(file)
    return file.getvalue()


def by_trace(stage):
    file = io.BytesIO()
    axes = {"x": {0: "b", 2: "h", 3: "w"}}
    torch.onnx.export(stage, (images()[0],), file, dynamo=False, input_names=["x"], dynamic_axes=axes)
    return file.getvalue()


@pytest.mark.parametrize("export", [by_dynamo, by_trace])
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("affinity", KERNELS)
def test_every_kernel_and_normalisation(affinity, normalize, export):
    keywords = {"affinity": affinity, "normalize": normalize}
    if affinity in ("embedded_gaussian", "dot", "concat", "heat"):
        keywords["shared_embedding"] = True
    if affinity in ("dot", "concat"):
        keywords["bias"] = True
    stage = made(**keywords)
    check(stage, export(stage))


@pytest.mark.parametrize("export", [by_dynamo, by_trace])
@pytest.mark.parametrize(
    ("kind", "keywords"),
    [
        (nonloc.DiffusiveStage, {"weight": "stable"}),
        (nonloc.DiffusiveStage, {"batch_norm": True, "bias": True, "share_affinity": False}),
        (nonloc.OriginalStage, {"subsample": 2}),
        (nonloc.OriginalStage, {"subsample": 2, "pool_after": True}),
    ],
)
def test_every_kind_of_stage(kind, keywords, export):
    stage = made(kind, **keywords)
    check(stage, export(stage))
