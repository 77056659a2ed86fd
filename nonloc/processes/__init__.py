"""Modelling with the operator: diffusion, damped flow and jump processes, simulated and checked. Nothing learned."""

from nonloc._lazy import lazy

# One line a name, sorted by file.
_WHERE = {
    "cell_kernel": "nonloc.processes.averaged",
    "Certificate": "nonloc.processes.certificate",
    "CFLLimit": "nonloc.processes.cfl",
    "Continuum": "nonloc.processes.continuum",
    "Diffusion": "nonloc.processes.diffusion",
    "DampedFlow": "nonloc.processes.diffusion",
    "from_scipy": "nonloc.processes.graphs",
    "horizon": "nonloc.processes.graphs",
    "neighbors": "nonloc.processes.graphs",
    "hilbert_schmidt_norm": "nonloc.processes.hilbert_schmidt",
    "HorizonKernel": "nonloc.processes.horizon_kernel",
    "JumpProcess": "nonloc.processes.jump",
    "ReversalGrowth": "nonloc.processes.local",
    "local_laplacian": "nonloc.processes.local",
    "reversal_growth": "nonloc.processes.local",
    "MixingTime": "nonloc.processes.mixing",
    "Process": "nonloc.processes.process",
    "Quadrature": "nonloc.processes.quadrature",
    "quadrature": "nonloc.processes.quadrature",
    "simulate": "nonloc.processes.simulate",
    "NotSolvedError": "nonloc.processes.solvers",
    "SpectralGap": "nonloc.processes.spectral",
    "certify": "nonloc.processes.stability",
    "cfl_limit": "nonloc.processes.stability",
    "Check": "nonloc.processes.statements.check",
    "STEPPERS": "nonloc.processes.steppers",
    "all_as_expected": "nonloc.processes.theory",
    "check_all": "nonloc.processes.theory",
    "summary": "nonloc.processes.theory",
    "Trajectory": "nonloc.processes.trajectory",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy(__name__, _WHERE)
