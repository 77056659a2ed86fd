"""Models of other libraries: a stage is inserted in one line, changes nothing at first, and learns."""

import pytest
import torch

import nonloc

pytestmark = pytest.mark.interop
SIDE = 64


def timm_model(name, **sizes):
    def make():
        import timm

        return timm.create_model(name, num_classes=5, **sizes)

    return make


def torchvision_model(kind, name):
    def make():
        import torchvision

        return getattr(getattr(torchvision.models, kind), name)(num_classes=5)

    return make


def unet():
    from segmentation_models_pytorch import Unet

    return Unet("resnet18", encoder_weights=None, classes=5)


def transformer(name, **sizes):
    def make():
        import transformers

        config = getattr(transformers, f"{name}Config")(image_size=SIDE, num_labels=5, **sizes)
        kind = "SemanticSegmentation" if name == "Segformer" else "ImageClassification"
        return getattr(transformers, f"{name}For{kind}")(config)

    return make


SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
POSITIONS = {"layout": "positions"}
MODELS = {
    "timm resnet50": (timm_model("resnet50"), "layer2.1", {}),
    "timm convnext": (timm_model("convnext_atto"), "stages.1", {}),
    "timm swin": (timm_model("swin_tiny_patch4_window7_224", img_size=SIDE), "layers.1", POSITIONS),
    "timm vit": (timm_model("vit_tiny_patch16_224", img_size=SIDE), "blocks.2", POSITIONS),
    "torchvision resnet18": (torchvision_model("resnet", "resnet18"), "layer2.1", {}),
    "torchvision r3d_18": (torchvision_model("video", "r3d_18"), "layer2.1", {}),
    "smp Unet": (unet, "encoder.layer2", {}),
    "HF ViT": (transformer("ViT", intermediate_size=24, **SMALL), "vit.layers.0", POSITIONS),
    "HF Dinov2": (transformer("Dinov2", **SMALL), "dinov2.encoder.layer.0", POSITIONS),
    "HF Segformer": (
        transformer("Segformer", hidden_sizes=[8, 16, 24, 32], depths=[1] * 4, num_attention_heads=[1] * 4),
        "segformer.stages.1.blocks.0",
        POSITIONS,
    ),
}


def output(model, x):
    result = model(x)
    return result if isinstance(result, torch.Tensor) else result.logits


@pytest.mark.parametrize("name", MODELS)
def test_a_stage_is_inserted(name, torchvision):
    make, place, options = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    x = torch.randn(2, 3, 4, 16, 16) if "r3d" in name else torch.randn(2, 3, SIDE, SIDE)
    before = output(model, x)
    (inserted,) = nonloc.insert(model, {place: {"form": "diffusive", "num_blocks": 2} | options}, example=x)
    stage = model.get_submodule(inserted.path)
    for one in stage.maps:
        torch.nn.init.zeros_(one.w_z.weight)
    assert torch.equal(output(model, x), before)
    stage.reset_parameters()
    after = output(model.train(), x)
    assert after.shape == before.shape
    after.square().sum().backward()
    assert all(0 < one.grad.abs().max() < torch.inf for one in stage.parameters())
