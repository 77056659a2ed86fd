"""The paper's tables and figures, and the demo, as data: each row is a recipe and the published number. No torch.

"Nonlocal Neural Networks, Nonlocal Diffusion and Nonlocal Modeling", Tao, Sun, Du and Liu, 2018. The protocol is the
nearest to the text; what the text leaves open is decided in tables.py, and every decision is named in a note.
"""

from nonloc_paper.suites.catalog import SUITES, arranged_suite, find_suite
from nonloc_paper.suites.rows import Row, Suite

__all__ = ["SUITES", "Row", "Suite", "arranged_suite", "find_suite"]
