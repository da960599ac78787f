"""An evaluation as one HTML file that needs nothing else: tables, charts, and how to repeat it."""

from recsys.evaluation.report.page import html_report

__all__ = ["html_report"]
