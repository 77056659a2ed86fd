"""Reports: read run folders and the paper, compute nothing again. Imported on first use."""

from nonloc._lazy import lazy

_WHERE = {
    "RowRecord": "nonloc_paper.report.records",
    "RunRecord": "nonloc_paper.report.records",
    "collect": "nonloc_paper.report.records",
    "write_report": "nonloc_paper.report.page",
    "write_reproduction": "nonloc_paper.report.reproduction",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy(__name__, _WHERE)
