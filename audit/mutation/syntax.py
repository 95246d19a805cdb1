"""Whether a mutant of C or CUDA is a program at all: the compiler reads one source that holds it, which takes a tenth of the time of a
copy of the tree and a build. Most mutants are none."""

import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from audit.mutation.suite import Turn, run_limited
from audit.scratch import Scratch

#: seconds for one source
PATIENCE = 120.0


def first_error(text: str) -> str:
    """The first error that a compiler, linker or make names; "" where there is none."""
    found = re.search(r"(?:error:|undefined reference|\*\*\* ).*", text)
    return found[0] if found else ""


class Reader:
    """Reads mutants of the sources of a clean tree, which has been built."""

    def __init__(self, tree: Scratch):
        self.tree = tree
        build = tree.library.parent / "obj"
        notes = sorted(((d.read_text().split(), d) for d in build.rglob("*.d")), key=lambda n: len(n[0]))
        self.notes = [(words, str(d.with_suffix(".o").relative_to(tree.folder / "native"))) for words, d in notes]
        self.commands: dict[str, list[str]] = {}

    def error(self, file: str, text: str, turn: Turn) -> str:
        """The first error in a source, or in the smallest one that includes a header, if the file held a text; "" where there is
        none, or no source is known to read the file."""
        name = file.removeprefix("native/")
        found = (self._command(target) for words, target in self.notes if name in words)
        command = next(filter(None, found), None)
        if command is None:
            return ""
        source = Path(self.tree.folder, "native", command[-1])
        with tempfile.TemporaryDirectory(dir=self.tree.folder) as folder:
            for place, content in ((command[-1], source.read_text(encoding="utf-8")), (name, text)):
                Path(folder, place).parent.mkdir(parents=True, exist_ok=True)
                Path(folder, place).write_text(content, encoding="utf-8")
            # A header may be named from the folder of the file that includes it.
            folders = sorted({source.parent, (self.tree.folder / file).parent})
            paths = [f"-I{folder}/src", *(f"-iquote{place}" for place in folders)]
            words = [command[0], *paths, *command[1:-1], f"{folder}/{command[-1]}"]
            status, said = run_limited(self.tree, ["env", "-C", "native", *words], patience=PATIENCE, turn=turn)
        return "" if status == 0 else first_error(said)

    def _command(self, target: str) -> list[str]:
        """How make compiles an object, without what writes files; [] where it does not: an object of another variant."""
        if target not in self.commands:
            words = ["make", "-C", "native", "-n", "V=1", f"PYTHON={sys.executable}", target]
            _, said = run_limited(self.tree, words, patience=PATIENCE)
            found = [shlex.split(line) for line in said.splitlines() if f" -c -o {target} " in line]
            self.commands[target] = reading(found[0], target) if found else []
        return self.commands[target]


def reading(words: Sequence[str], target: str) -> list[str]:
    """A compiler's command as one that reads its source and keeps nothing. nvcc, which has no word for that, compiles for a
    debugger, without optimising, and for the first architecture."""
    left_out = {"-MMD", "-MP", "-MF", "-c", "-o", "-gencode", target, target.removesuffix(".o") + ".d"}
    architectures = [word.partition(",")[0] for word in words if word.startswith("arch=")]
    kept = [word for word in words if word not in left_out and not word.startswith("arch=")]
    only = [f"-{architectures[0]}", "-ptx", "-G", "-o", "/dev/null"] if architectures else ["-fsyntax-only"]
    return [*kept[:-1], *only, kept[-1]]
