"""nonloc_paper: the paper as an experiment, from its networks and suites to its records and pages."""

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
__getattr__, __dir__ = lazy(__name__, _WHERE)
