"""The explorer: a folder with a page to touch, made from records. Imported on first use."""

from typing import TYPE_CHECKING

from nonloc._lazy import lazy

_WHERE = {"write_explorer": "nonloc_paper.explorer.build"}

__all__ = list(_WHERE)
if TYPE_CHECKING:  # types for mypy and editors, of the names in _WHERE
    from nonloc_paper.explorer.build import write_explorer as write_explorer
else:
    __getattr__, __dir__ = lazy(__name__, _WHERE)
