"""The documentation site: ``make site`` writes it to out/site.

Its pages are the documents of the repository, one page per operation made from the registry and the evidence, and the examples
run as notebooks. :mod:`pages.sources` collects the documents, :mod:`bench.results` the tables that some of them end with,
:mod:`pages.operations` the pages of operations. :mod:`pages.figures` measures and draws errors, :mod:`pages.execute` runs the
notebooks. :mod:`pages.build` puts all into one folder, has MkDocs make HTML of it, and :mod:`pages.check` reads that. Nothing is
fetched while it is built, and nothing when it is read.
"""
