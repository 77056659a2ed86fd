"""nonloc_paper: the paper as an experiment, from its networks and suites to its records and pages."""

from typing import TYPE_CHECKING

from nonloc._lazy import lazy

_WHERE = {
    "NetworkSpec": "nonloc_paper.networks.spec",
    "Recipe": "nonloc_paper.training.recipe",
    "Run": "nonloc_paper.runs",
    "StageOptions": "nonloc.nn.options",
    "build": "nonloc_paper.networks.build",
    "fit": "nonloc_paper.training.fit",
    "load": "nonloc_paper.training.recorded",
    "models": "nonloc_paper.training.recorded",
    "fit_many": "nonloc_paper.training.scheduler",
    "trained_network": "nonloc_paper.training.trained",
}

__all__ = list(_WHERE)
if TYPE_CHECKING:  # types for mypy and editors, of the names in _WHERE
    from nonloc.nn.options import StageOptions as StageOptions
    from nonloc_paper.networks.build import build as build
    from nonloc_paper.networks.spec import NetworkSpec as NetworkSpec
    from nonloc_paper.runs import Run as Run
    from nonloc_paper.training.fit import fit as fit
    from nonloc_paper.training.recipe import Recipe as Recipe
    from nonloc_paper.training.recorded import load as load
    from nonloc_paper.training.recorded import models as models
    from nonloc_paper.training.scheduler import fit_many as fit_many
    from nonloc_paper.training.trained import trained_network as trained_network
else:
    __getattr__, __dir__ = lazy(__name__, _WHERE)
