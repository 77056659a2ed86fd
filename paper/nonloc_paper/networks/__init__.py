"""Networks by name: `build("preresnet20/diffusive-5@2")`."""

from nonloc._lazy import lazy

_WHERE = {
    "NetworkSpec": "nonloc_paper.networks.spec",
    "StageOptions": "nonloc.nn.options",
    "PreResNet": "nonloc_paper.networks.preresnet",
    "Restorer": "nonloc_paper.networks.restorer",
    "build": "nonloc_paper.networks.build",
    "count_parameters": "nonloc_paper.networks.build",
    "describe": "nonloc_paper.networks.build",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy(__name__, _WHERE)
