"""The integral operator on [0, 1]^d, its discretisations, and the local equation it tends to."""

from typing import TYPE_CHECKING

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
if TYPE_CHECKING:  # types for mypy and editors, of the names in _WHERE
    from nonloc.processes.continuum.continuum import Continuum as Continuum
    from nonloc.processes.continuum.continuum import cell_kernel as cell_kernel
    from nonloc.processes.continuum.continuum import hilbert_schmidt_norm as hilbert_schmidt_norm
    from nonloc.processes.continuum.horizon import HorizonKernel as HorizonKernel
    from nonloc.processes.continuum.local import ReversalGrowth as ReversalGrowth
    from nonloc.processes.continuum.local import local_laplacian as local_laplacian
    from nonloc.processes.continuum.local import reversal_growth as reversal_growth
    from nonloc.processes.continuum.quadrature import Quadrature as Quadrature
    from nonloc.processes.continuum.quadrature import quadrature as quadrature
else:
    __getattr__, __dir__ = lazy(__name__, _WHERE)
