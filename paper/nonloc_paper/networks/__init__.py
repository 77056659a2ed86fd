"""Networks by name: `build("preresnet20/diffusive-5@2")`."""

from typing import TYPE_CHECKING

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
if TYPE_CHECKING:  # types for mypy and editors, of the names in _WHERE
    from nonloc.nn.options import StageOptions as StageOptions
    from nonloc_paper.networks.build import build as build
    from nonloc_paper.networks.build import count_parameters as count_parameters
    from nonloc_paper.networks.build import describe as describe
    from nonloc_paper.networks.preresnet import PreResNet as PreResNet
    from nonloc_paper.networks.restorer import Restorer as Restorer
    from nonloc_paper.networks.spec import NetworkSpec as NetworkSpec
else:
    __getattr__, __dir__ = lazy(__name__, _WHERE)
