"""Training: `fit` trains a Recipe in a run folder. The modules are imported on first use."""

from __future__ import annotations

from nonloc._lazy import lazy

_WHERE = {
    "Outcome": "nonloc.outcomes",
    "Recipe": "nonloc_paper.training.recipe",
    "fit": "nonloc_paper.training.fit",
    "fit_many": "nonloc_paper.training.scheduler",
    "trained_network": "nonloc_paper.training.trained",
}

__all__ = ["Outcome", "Recipe", "fit", "fit_many", "trained_network"]

__getattr__, __dir__ = lazy(__name__, _WHERE)
