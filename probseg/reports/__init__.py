"""Reports: tables, figures and pages of an evaluation, and comparisons of several."""

from probseg.reports.report import write_report
from probseg.reports.tables import markdown_table, print_summary

__all__ = ["markdown_table", "print_summary", "write_report"]
