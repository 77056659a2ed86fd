"""torchvision, also where its compiled part does not load: it is built for CUDA, and torch here is not.

Only its models and its feature extraction are used. Importing those declares two compiled operators.
"""

import torch

# As long as this module is loaded, so are the declarations.
LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import torchvision  # noqa: E402, F401
