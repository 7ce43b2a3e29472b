"""Reports: tables, figures and pages of an evaluation, and comparisons of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probseg.kinds import lazy_getattr

if TYPE_CHECKING:
    from probseg.reports.report import write_report
    from probseg.reports.tables import markdown_table, print_summary

_PATHS = {
    "markdown_table": "probseg.reports.tables.markdown_table",
    "print_summary": "probseg.reports.tables.print_summary",
    "write_report": "probseg.reports.report.write_report",
}

__all__ = ["markdown_table", "print_summary", "write_report"]

__getattr__ = lazy_getattr(__name__, _PATHS)
