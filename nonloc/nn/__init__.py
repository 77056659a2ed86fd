"""Modules that learn: affinities, nonlocal blocks and stages, and the way to put them into any network."""

from typing import TYPE_CHECKING

from nonloc._lazy import lazy, modules_by_name

_WHERE = modules_by_name(
    {
        "nonloc.nn.affinity": "AFFINITIES PairwiseAffinity Gaussian EmbeddedGaussian DotProduct "
        "Concatenation Heat Delta make_affinity",
        "nonloc.nn.nonlocal_module": "NonlocalModule",
        "nonloc.nn.stage": "OriginalBlock DiffusiveBlock OriginalStage DiffusiveStage stages",
        "nonloc.nn.insert": "insert Inserted",
        "nonloc.nn.after": "After",
        "nonloc.nn.freeze": "freeze",
        "nonloc.nn.shard": "shard",
        "nonloc.nn.inspect": "feature_trace logit_spreads stage_inputs",
    }
)

__all__ = list(_WHERE)
if TYPE_CHECKING:  # types for mypy and editors, of the names in _WHERE
    from nonloc.nn.affinity import AFFINITIES as AFFINITIES
    from nonloc.nn.affinity import Concatenation as Concatenation
    from nonloc.nn.affinity import Delta as Delta
    from nonloc.nn.affinity import DotProduct as DotProduct
    from nonloc.nn.affinity import EmbeddedGaussian as EmbeddedGaussian
    from nonloc.nn.affinity import Gaussian as Gaussian
    from nonloc.nn.affinity import Heat as Heat
    from nonloc.nn.affinity import PairwiseAffinity as PairwiseAffinity
    from nonloc.nn.affinity import make_affinity as make_affinity
    from nonloc.nn.after import After as After
    from nonloc.nn.freeze import freeze as freeze
    from nonloc.nn.insert import Inserted as Inserted
    from nonloc.nn.insert import insert as insert
    from nonloc.nn.inspect import feature_trace as feature_trace
    from nonloc.nn.inspect import logit_spreads as logit_spreads
    from nonloc.nn.inspect import stage_inputs as stage_inputs
    from nonloc.nn.nonlocal_module import NonlocalModule as NonlocalModule
    from nonloc.nn.shard import shard as shard
    from nonloc.nn.stage import DiffusiveBlock as DiffusiveBlock
    from nonloc.nn.stage import DiffusiveStage as DiffusiveStage
    from nonloc.nn.stage import OriginalBlock as OriginalBlock
    from nonloc.nn.stage import OriginalStage as OriginalStage
    from nonloc.nn.stage import stages as stages
else:
    __getattr__, __dir__ = lazy(__name__, _WHERE)
