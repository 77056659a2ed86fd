"""Which steps are stable: the largest one of a kernel, and certificates for whole stages."""

from nonloc._lazy import lazy

_WHERE = {
    "Certificate": "nonloc.processes.stability.certificate",
    "certify": "nonloc.processes.stability.certify",
    "cfl_limit": "nonloc.processes.stability.cfl",
    "CFLLimit": "nonloc.processes.stability.cfl",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy(__name__, _WHERE)
