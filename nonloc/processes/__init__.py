"""Modelling with the operator: diffusion, damped flow and jump processes, simulated and checked. Nothing learned."""

from typing import TYPE_CHECKING

from nonloc._lazy import lazy, modules_by_name

_WHERE = modules_by_name(
    {
        "nonloc.processes.continuum.continuum": "cell_kernel Continuum hilbert_schmidt_norm",
        "nonloc.processes.continuum.horizon": "HorizonKernel",
        "nonloc.processes.continuum.local": "ReversalGrowth local_laplacian reversal_growth",
        "nonloc.processes.continuum.quadrature": "Quadrature quadrature",
        "nonloc.processes.diffusion": "Diffusion DampedFlow",
        "nonloc.processes.graphs": "from_edge_index from_scipy horizon neighbors to_edge_index to_scipy",
        "nonloc.processes.jump.mixing": "MixingTime SpectralGap",
        "nonloc.processes.jump.process": "JumpProcess",
        "nonloc.processes.solvers": "NotSolvedError",
        "nonloc.processes.process": "Process",
        "nonloc.processes.simulate": "simulate STEPPERS",
        "nonloc.processes.stability.certificate": "Certificate",
        "nonloc.processes.stability.certify": "certify",
        "nonloc.processes.stability.cfl": "cfl_limit CFLLimit",
        "nonloc.processes.trajectory": "Trajectory",
    }
)

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
    from nonloc.processes.diffusion import DampedFlow as DampedFlow
    from nonloc.processes.diffusion import Diffusion as Diffusion
    from nonloc.processes.graphs import from_edge_index as from_edge_index
    from nonloc.processes.graphs import from_scipy as from_scipy
    from nonloc.processes.graphs import horizon as horizon
    from nonloc.processes.graphs import neighbors as neighbors
    from nonloc.processes.graphs import to_edge_index as to_edge_index
    from nonloc.processes.graphs import to_scipy as to_scipy
    from nonloc.processes.jump.mixing import MixingTime as MixingTime
    from nonloc.processes.jump.mixing import SpectralGap as SpectralGap
    from nonloc.processes.jump.process import JumpProcess as JumpProcess
    from nonloc.processes.process import Process as Process
    from nonloc.processes.simulate import STEPPERS as STEPPERS
    from nonloc.processes.simulate import simulate as simulate
    from nonloc.processes.solvers import NotSolvedError as NotSolvedError
    from nonloc.processes.stability.certificate import Certificate as Certificate
    from nonloc.processes.stability.certify import certify as certify
    from nonloc.processes.stability.cfl import CFLLimit as CFLLimit
    from nonloc.processes.stability.cfl import cfl_limit as cfl_limit
    from nonloc.processes.trajectory import Trajectory as Trajectory
else:
    __getattr__, __dir__ = lazy(__name__, _WHERE)
