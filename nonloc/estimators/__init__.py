"""Estimators for scikit-learn: DiffusionMap and LabelDiffusion. Numpy in, numpy out."""

from importlib.util import find_spec

from nonloc._lazy import lazy

if find_spec("sklearn") is None:
    raise ImportError("estimators need scikit-learn, which is not installed; pip install 'nonloc[graphs]'")

_WHERE = {
    "DiffusionMap": "nonloc.estimators.diffusion_map",
    "LabelDiffusion": "nonloc.estimators.label_diffusion",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy(__name__, _WHERE)
