"""Reports: read run folders and the paper, compute nothing again. Imported on first use."""

from nonloc._lazy import lazy

_WHERE = {
    "RowRecord": "nonloc.report.records",
    "RunRecord": "nonloc.report.records",
    "collect": "nonloc.report.records",
    "write_report": "nonloc.report.page",
    "write_reproduction": "nonloc.report.reproduction",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy(__name__, _WHERE)
