"""Modelling with the operator: diffusion, damped flow and jump processes, simulated and checked. Nothing learned."""

from nonloc._lazy import lazy

# One line a name, sorted by file.
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
    "Diffusion": "nonloc.processes.diffusion",
    "DampedFlow": "nonloc.processes.diffusion",
    "from_edge_index": "nonloc.processes.graphs",
    "from_scipy": "nonloc.processes.graphs",
    "horizon": "nonloc.processes.graphs",
    "neighbors": "nonloc.processes.graphs",
    "to_edge_index": "nonloc.processes.graphs",
    "to_scipy": "nonloc.processes.graphs",
    "MixingTime": "nonloc.processes.jump.mixing",
    "JumpProcess": "nonloc.processes.jump.process",
    "SpectralGap": "nonloc.processes.jump.mixing",
    "NotSolvedError": "nonloc.processes.solvers",
    "Process": "nonloc.processes.process",
    "simulate": "nonloc.processes.simulate",
    "Certificate": "nonloc.processes.stability.certificate",
    "certify": "nonloc.processes.stability.certify",
    "cfl_limit": "nonloc.processes.stability.cfl",
    "CFLLimit": "nonloc.processes.stability.cfl",
    "STEPPERS": "nonloc.processes.simulate",
    "Trajectory": "nonloc.processes.trajectory",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy(__name__, _WHERE)
