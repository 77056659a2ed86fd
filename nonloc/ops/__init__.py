"""The nonlocal operator: functions on tensors [B, M, C], with nothing learned."""

from nonloc.ops.affinity import KINDS, NORMALIZATIONS, Affinity
from nonloc.ops.bounds import row_sums, self_adjoint_weights
from nonloc.ops.cost import Cost, estimate
from nonloc.ops.exponential import kernel_logit_spreads, largest_logit_spread, logit_spread
from nonloc.ops.functional import (
    BACKENDS,
    Prepared,
    adjoint,
    aggregate,
    apply_adjoint,
    choose_backend,
    diffuse,
    dirichlet_energy,
    kernel_matrix,
    prepare,
    propagate,
)
from nonloc.ops.normalize import Operator
from nonloc.ops.sharded import prepare_sharded
from nonloc.ops.sparse import SparseAffinity

__all__ = [
    "BACKENDS",
    "KINDS",
    "NORMALIZATIONS",
    "Affinity",
    "Cost",
    "Operator",
    "Prepared",
    "SparseAffinity",
    "adjoint",
    "aggregate",
    "apply_adjoint",
    "choose_backend",
    "diffuse",
    "dirichlet_energy",
    "estimate",
    "kernel_logit_spreads",
    "kernel_matrix",
    "largest_logit_spread",
    "logit_spread",
    "prepare",
    "prepare_sharded",
    "propagate",
    "row_sums",
    "self_adjoint_weights",
]
