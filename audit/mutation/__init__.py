"""Random changes of one line, and whether the tests see them: ``python -m audit mutate``."""
