"""Estimators for scikit-learn: DiffusionMap and LabelDiffusion. Numpy in, numpy out."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from nonloc._lazy import lazy

if find_spec("sklearn") is None:
    raise ImportError("estimators need scikit-learn, which is not installed; pip install 'nonloc[graphs]'")

_WHERE = {
    "DiffusionMap": "nonloc.estimators.diffusion_map",
    "LabelDiffusion": "nonloc.estimators.label_diffusion",
}

__all__ = list(_WHERE)
if TYPE_CHECKING:  # types for mypy and editors, of the names in _WHERE
    from nonloc.estimators.diffusion_map import DiffusionMap as DiffusionMap
    from nonloc.estimators.label_diffusion import LabelDiffusion as LabelDiffusion
else:
    __getattr__, __dir__ = lazy(__name__, _WHERE)
