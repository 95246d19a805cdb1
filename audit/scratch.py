"""A copy of the source tree that a planted defect may spoil, with the objects already compiled, so that little is rebuilt."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from audit.build import make
from audit.environment import ROOT

#: what the library, its tests and their tools need
PARTS = ("native", "tlspec", "codegen", "tlrt", "audit", "tests", "bench", "evidence", "examples", "docs")
SKIPPED = {"__pycache__", ".hypothesis", "_lib"}


class Scratch:
    """The copy under `folder`: its library is that of a back end, and `options` are words for every make in it."""

    def __init__(self, folder: Path, backend: str = "cpu", options: Sequence[str] = ()):
        self.folder, self.backend, self.options = folder, backend, options

    @property
    def library(self) -> Path:
        """The back end's library of the copy."""
        return self.folder / "native" / "build" / self.backend / "libtorchlean_cuda.so"

    def sanitized(self) -> "Scratch":
        """The same copy, whose library is that for AddressSanitizer and UndefinedBehaviorSanitizer."""
        return Scratch(self.folder, "asan", [*self.options, "SANITIZE=address,undefined"])

    def edit(self, file: str, old: str, new: str) -> None:
        """Replaces a text, which the file must hold exactly once. Raises ValueError."""
        path = self.folder / file
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{file} holds {old!r} {text.count(old)} times, expected once")
        path.write_text(text.replace(old, new), encoding="utf-8")

    @contextmanager
    def edited(self, file: str, old: str, new: str) -> Iterator[None]:
        """The copy with an edit, which is undone at the end."""
        text = (self.folder / file).read_text(encoding="utf-8")
        self.edit(file, old, new)
        try:
            yield
        finally:
            (self.folder / file).write_text(text, encoding="utf-8")

    def make(self, *goals: str, jobs: int = 2) -> None:
        """Builds what changed. Raises BuildError."""
        make(*goals, *self.options, tree=self.folder, jobs=jobs)


def _names_to_skip(folder: str, names: list[str]) -> set[str]:
    """Build directories other than the plain one and that of failing allocations stay behind."""
    here = Path(folder)
    extra = set(names) - {"cpu", "faults"} if here.name == "build" and here.parent.name == "native" else set()
    return {n for n in names if n in SKIPPED} | extra


@contextmanager
def scratch(folder: Path, source: Scratch | None = None) -> Iterator[Scratch]:
    """A copy of the tree, or of another copy, under `folder`, removed at the end. Times of files are kept: make rebuilds only
    what is edited, and what Python has compiled in another copy is good here."""
    target = folder / "tree"
    target.mkdir(parents=True)
    root = source.folder if source else ROOT
    ignore = None if source else _names_to_skip
    try:
        for part in PARTS:
            if (root / part).exists():
                shutil.copytree(root / part, target / part, ignore=ignore)
        for file in root.iterdir():
            if file.is_file():
                shutil.copy2(file, target / file.name)
        yield Scratch(target, source.backend, source.options) if source else Scratch(target)
    finally:
        shutil.rmtree(target, ignore_errors=True)
