"""Modules that learn: affinities, nonlocal blocks and stages, and the way to put them into any network."""

from nonloc._lazy import lazy

_WHERE = {
    "AFFINITIES": "nonloc.nn.affinity",
    "PairwiseAffinity": "nonloc.nn.affinity",
    "Gaussian": "nonloc.nn.affinity",
    "EmbeddedGaussian": "nonloc.nn.affinity",
    "DotProduct": "nonloc.nn.affinity",
    "Concatenation": "nonloc.nn.affinity",
    "Heat": "nonloc.nn.affinity",
    "Delta": "nonloc.nn.affinity",
    "make_affinity": "nonloc.nn.affinity",
    "NonlocalModule": "nonloc.nn.nonlocal_module",
    "OriginalBlock": "nonloc.nn.stage",
    "DiffusiveBlock": "nonloc.nn.stage",
    "OriginalStage": "nonloc.nn.stage",
    "DiffusiveStage": "nonloc.nn.stage",
    "stages": "nonloc.nn.stage",
    "insert": "nonloc.nn.insert",
    "After": "nonloc.nn.insert",
    "Inserted": "nonloc.nn.insert",
    "feature_trace": "nonloc.nn.inspect",
    "logit_spreads": "nonloc.nn.inspect",
    "stage_inputs": "nonloc.nn.inspect",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy(__name__, _WHERE)
