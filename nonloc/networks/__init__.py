"""Networks by name: `build("preresnet20/diffusive-5@2")`."""

from nonloc._lazy import lazy

_WHERE = {
    "NetworkSpec": "nonloc.networks.spec",
    "StageOptions": "nonloc.networks.stage_options",
    "PreResNet": "nonloc.networks.preresnet",
    "Restorer": "nonloc.networks.restorer",
    "build": "nonloc.networks.build",
    "count_parameters": "nonloc.networks.build",
    "describe": "nonloc.networks.build",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy(__name__, _WHERE)
