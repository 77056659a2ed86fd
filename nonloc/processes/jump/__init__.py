"""The Markov jump process: its laws, its paths, where it comes to rest and how fast."""

from typing import TYPE_CHECKING

from nonloc._lazy import lazy

_WHERE = {
    "MixingTime": "nonloc.processes.jump.mixing",
    "JumpProcess": "nonloc.processes.jump.process",
    "SpectralGap": "nonloc.processes.jump.mixing",
}

__all__ = list(_WHERE)
if TYPE_CHECKING:  # types for mypy and editors, of the names in _WHERE
    from nonloc.processes.jump.mixing import MixingTime as MixingTime
    from nonloc.processes.jump.mixing import SpectralGap as SpectralGap
    from nonloc.processes.jump.process import JumpProcess as JumpProcess
else:
    __getattr__, __dir__ = lazy(__name__, _WHERE)
