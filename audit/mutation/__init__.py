"""The mutation campaign: listed one-line defects, and whether the tests see them (``python -m audit mutate``)."""
