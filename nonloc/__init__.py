"""nonloc: nonlocal networks and nonlocal diffusion, from the equations to a trained network.

layers in your model   DiffusiveStage, OriginalStage, DiffusiveBlock, OriginalBlock, insert, freeze
before you train       estimate (memory and time), certify and cfl_limit (can a signal grow?)
look at a model        logit_spreads, feature_trace, weight_spectrum, Spectrum; nonloc.plots draws them
who looks at whom      Affinity, SparseAffinity, kernel_matrix, logit_spread
operations with it     aggregate, diffuse, propagate, prepare, dirichlet_energy
simulation             Diffusion, simulate; nonloc.processes has more, nonloc.estimators is for scikit-learn
how a run ended        Outcome

Each has an example: help(nonloc.DiffusiveStage).
"""

from typing import TYPE_CHECKING

from nonloc._lazy import lazy, modules_by_name

__version__ = "0.1.0"

_WHERE = modules_by_name(
    {
        "nonloc.ops.affinity": "Affinity",
        "nonloc.ops.sparse": "SparseAffinity",
        "nonloc.ops.functional": "aggregate diffuse propagate prepare kernel_matrix dirichlet_energy",
        "nonloc.ops.cost": "estimate",
        "nonloc.ops.exponential": "logit_spread",
        "nonloc.nn.stage": "OriginalBlock DiffusiveBlock OriginalStage DiffusiveStage",
        "nonloc.nn.insert": "insert",
        "nonloc.nn.freeze": "freeze",
        "nonloc.nn.inspect": "feature_trace logit_spreads",
        "nonloc.processes.diffusion": "Diffusion",
        "nonloc.processes.simulate": "simulate",
        "nonloc.processes.stability.certify": "certify",
        "nonloc.processes.stability.cfl": "cfl_limit",
        "nonloc.spectrum": "Spectrum weight_spectrum",
        "nonloc.outcomes": "Outcome",
    }
)

__all__ = ["__version__", *_WHERE]
_MOVED = dict.fromkeys(("Recipe", "Run", "build", "fit"), "nonloc_paper")
if TYPE_CHECKING:  # types for mypy and editors, of the names in _WHERE
    from nonloc.nn.freeze import freeze as freeze
    from nonloc.nn.insert import insert as insert
    from nonloc.nn.inspect import feature_trace as feature_trace
    from nonloc.nn.inspect import logit_spreads as logit_spreads
    from nonloc.nn.stage import DiffusiveBlock as DiffusiveBlock
    from nonloc.nn.stage import DiffusiveStage as DiffusiveStage
    from nonloc.nn.stage import OriginalBlock as OriginalBlock
    from nonloc.nn.stage import OriginalStage as OriginalStage
    from nonloc.ops.affinity import Affinity as Affinity
    from nonloc.ops.cost import estimate as estimate
    from nonloc.ops.exponential import logit_spread as logit_spread
    from nonloc.ops.functional import aggregate as aggregate
    from nonloc.ops.functional import diffuse as diffuse
    from nonloc.ops.functional import dirichlet_energy as dirichlet_energy
    from nonloc.ops.functional import kernel_matrix as kernel_matrix
    from nonloc.ops.functional import prepare as prepare
    from nonloc.ops.functional import propagate as propagate
    from nonloc.ops.sparse import SparseAffinity as SparseAffinity
    from nonloc.outcomes import Outcome as Outcome
    from nonloc.processes.diffusion import Diffusion as Diffusion
    from nonloc.processes.simulate import simulate as simulate
    from nonloc.processes.stability.certify import certify as certify
    from nonloc.processes.stability.cfl import cfl_limit as cfl_limit
    from nonloc.spectrum import Spectrum as Spectrum
    from nonloc.spectrum import weight_spectrum as weight_spectrum
else:
    __getattr__, __dir__ = lazy(__name__, _WHERE, _MOVED)
