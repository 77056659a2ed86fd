"""The Markov jump process: its laws, its paths, where it comes to rest and how fast."""

from nonloc._lazy import lazy

_WHERE = {
    "MixingTime": "nonloc.processes.jump.mixing",
    "JumpProcess": "nonloc.processes.jump.process",
    "SpectralGap": "nonloc.processes.jump.mixing",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy(__name__, _WHERE)
