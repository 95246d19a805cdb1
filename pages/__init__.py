"""The documentation site: ``make site`` writes it to out/site.

Its pages are the documents of the repository as they are, one page per operation made from the registry and the evidence, and the
examples run as notebooks. :mod:`pages.sources` collects the documents, :mod:`pages.operations` writes the pages of operations,
:mod:`pages.figures` measures and draws their errors, :mod:`pages.charts` draws what evidence files hold,
:mod:`pages.execute` runs the notebooks, and :mod:`pages.build` puts all into one folder and has MkDocs make HTML of it, which
:mod:`pages.check` reads. Nothing is fetched while it is built, and nothing when it is read.
"""
