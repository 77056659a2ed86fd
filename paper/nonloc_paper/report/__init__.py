"""Reports: read run folders and the paper, compute nothing again. Imported on first use."""

from typing import TYPE_CHECKING

from nonloc._lazy import lazy

_WHERE = {
    "RowRecord": "nonloc_paper.report.records",
    "RunRecord": "nonloc_paper.report.records",
    "collect": "nonloc_paper.report.records",
    "write_report": "nonloc_paper.report.page",
    "write_reproduction": "nonloc_paper.report.reproduction",
}

__all__ = list(_WHERE)
if TYPE_CHECKING:  # types for mypy and editors, of the names in _WHERE
    from nonloc_paper.report.page import write_report as write_report
    from nonloc_paper.report.records import RowRecord as RowRecord
    from nonloc_paper.report.records import RunRecord as RunRecord
    from nonloc_paper.report.records import collect as collect
    from nonloc_paper.report.reproduction import write_reproduction as write_reproduction
else:
    __getattr__, __dir__ = lazy(__name__, _WHERE)
