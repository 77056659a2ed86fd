"""A network with the names and sizes of ResNet-18 up to its first group."""

from torch import nn


def resnet18() -> nn.Module:
    def block() -> nn.Module:
        return nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())

    model = nn.Sequential()
    model.add_module("conv1", nn.Conv2d(3, 64, 7, 2, 3, bias=False))
    model.add_module("maxpool", nn.MaxPool2d(3, 2, 1))
    model.add_module("layer1", nn.Sequential(block(), block()))
    model.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(64, 1000))
    return model
