"""What the benchmark times each operation at and against: a module per family, an entry per operation."""

import importlib

from bench.rivals.table import Rival
from tlspec.registry import families

#: by family, then by operation
RIVALS: dict[str, dict[str, Rival]] = {f: importlib.import_module(f"bench.rivals.{f}").RIVALS for f in families()}


def rival_of(name: str) -> Rival:
    """The entry of one operation; one without sizes where there is none."""
    return next((entries[name] for entries in RIVALS.values() if name in entries), Rival())
