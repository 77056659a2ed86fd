"""The nonlocal operator: functions on tensors [B, M, C], with nothing learned."""

from nonloc.ops.affinity import KINDS, NORMALIZATIONS, Affinity
from nonloc.ops.cost import Cost, estimate
from nonloc.ops.functional import (
    BACKENDS,
    aggregate,
    choose_backend,
    diffuse,
    dirichlet_energy,
    kernel_matrix,
    propagate,
)

__all__ = [
    "BACKENDS",
    "KINDS",
    "NORMALIZATIONS",
    "Affinity",
    "Cost",
    "aggregate",
    "choose_backend",
    "diffuse",
    "dirichlet_energy",
    "estimate",
    "kernel_matrix",
    "propagate",
]
