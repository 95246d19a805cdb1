"""The league: operations of other libraries, each held by the judge to the meaning of the row that it is a counterpart of.

===================  ================================================================================================
:mod:`.libraries`    which libraries there are, with which formats, and what is assumed of their arithmetic
:mod:`.calls`        for each library a dictionary: the row's name -> the library's call, in the row's argument names
:mod:`.runner`       runs the judge on one call and says what came out as a line of evidence
:mod:`.explained`    failures that were looked at, each with its reason
:mod:`.table`        the tables and the chart of docs/league.md
===================  ================================================================================================

``python -m audit league`` runs what is installed; docs/league.md has the outcome."""
