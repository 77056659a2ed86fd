"""The integral operator on [0, 1]^d, its discretisations, and the local equation it tends to."""

from nonloc._lazy import lazy

_WHERE = {
    "cell_kernel": "nonloc.processes.continuum.continuum",
    "Continuum": "nonloc.processes.continuum.continuum",
    "hilbert_schmidt_norm": "nonloc.processes.continuum.continuum",
    "HorizonKernel": "nonloc.processes.continuum.horizon",
    "ReversalGrowth": "nonloc.processes.continuum.local",
    "local_laplacian": "nonloc.processes.continuum.local",
    "reversal_growth": "nonloc.processes.continuum.local",
    "Quadrature": "nonloc.processes.continuum.quadrature",
    "quadrature": "nonloc.processes.continuum.quadrature",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy(__name__, _WHERE)
