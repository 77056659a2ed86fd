"""Which steps are stable: the largest one of a kernel, and certificates for whole stages."""

from typing import TYPE_CHECKING

from nonloc._lazy import lazy

_WHERE = {
    "Certificate": "nonloc.processes.stability.certificate",
    "certify": "nonloc.processes.stability.certify",
    "cfl_limit": "nonloc.processes.stability.cfl",
    "CFLLimit": "nonloc.processes.stability.cfl",
}

__all__ = list(_WHERE)
if TYPE_CHECKING:  # types for mypy and editors, of the names in _WHERE
    from nonloc.processes.stability.certificate import Certificate as Certificate
    from nonloc.processes.stability.certify import certify as certify
    from nonloc.processes.stability.cfl import CFLLimit as CFLLimit
    from nonloc.processes.stability.cfl import cfl_limit as cfl_limit
else:
    __getattr__, __dir__ = lazy(__name__, _WHERE)
