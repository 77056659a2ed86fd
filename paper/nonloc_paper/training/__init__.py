"""Training: `fit` trains a Recipe in a run folder. The modules are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nonloc._lazy import lazy

_WHERE = {
    "Outcome": "nonloc.outcomes",
    "Recipe": "nonloc_paper.training.recipe",
    "fit": "nonloc_paper.training.fit",
    "fit_many": "nonloc_paper.training.scheduler",
    "trained_network": "nonloc_paper.training.trained",
}

__all__ = ["Outcome", "Recipe", "fit", "fit_many", "trained_network"]

if TYPE_CHECKING:  # types for mypy and editors, of the names in _WHERE
    from nonloc.outcomes import Outcome as Outcome
    from nonloc_paper.training.fit import fit as fit
    from nonloc_paper.training.recipe import Recipe as Recipe
    from nonloc_paper.training.scheduler import fit_many as fit_many
    from nonloc_paper.training.trained import trained_network as trained_network
else:
    __getattr__, __dir__ = lazy(__name__, _WHERE)
