"""Benchmarks: the registry's operations beside NumPy and PyTorch, in one run. ``python -m bench --help``."""
