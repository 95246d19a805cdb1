"""The report: what evidence files hold, as one page for people. :mod:`audit.report.page` gathers what the page shows,
``page.html.j2`` is how it looks, :mod:`audit.report.charts` draws."""

from audit.report.page import render_page, write_page

__all__ = ["render_page", "write_page"]
