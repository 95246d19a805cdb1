"""The test suite: a folder for each package, and ``repo`` for what must hold of the tree."""

from pathlib import Path

#: the repository's root
ROOT = Path(__file__).resolve().parents[1]
