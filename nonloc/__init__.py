"""nonloc: nonlocal networks and nonlocal diffusion, from the equations to a trained network."""

from nonloc._lazy import lazy

__version__ = "0.1.0"

_WHERE = {
    "Affinity": "nonloc.ops.affinity",
    "SparseAffinity": "nonloc.ops.sparse",
    "aggregate": "nonloc.ops.functional",
    "diffuse": "nonloc.ops.functional",
    "propagate": "nonloc.ops.functional",
    "prepare": "nonloc.ops.functional",
    "kernel_matrix": "nonloc.ops.functional",
    "dirichlet_energy": "nonloc.ops.functional",
    "estimate": "nonloc.ops.cost",
    "logit_spread": "nonloc.ops.exponential",
    "OriginalBlock": "nonloc.nn.stage",
    "DiffusiveBlock": "nonloc.nn.stage",
    "OriginalStage": "nonloc.nn.stage",
    "DiffusiveStage": "nonloc.nn.stage",
    "insert": "nonloc.nn.insert",
    "feature_trace": "nonloc.nn.inspect",
    "logit_spreads": "nonloc.nn.inspect",
    "Diffusion": "nonloc.processes.diffusion",
    "simulate": "nonloc.processes.simulate",
    "certify": "nonloc.processes.stability.certify",
    "cfl_limit": "nonloc.processes.stability.cfl",
    "Spectrum": "nonloc.spectrum",
    "weight_spectrum": "nonloc.spectrum",
    "Outcome": "nonloc.outcomes",
}

__all__ = ["__version__", *_WHERE]
_MOVED = dict.fromkeys(("Recipe", "Run", "build", "fit"), "nonloc_paper")
__getattr__, __dir__ = lazy(__name__, _WHERE, _MOVED)
