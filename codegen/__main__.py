"""``python -m codegen`` (``make abi``): writes the generated files; with ``--check`` it names those that are stale.

Neither happens while a row is wrong or lacks a kernel: each such problem is one line that says what to do.
"""

import argparse
import sys
import traceback

from codegen.files import GENERATED, generated_files
from codegen.kernel_sources import missing_kernels
from codegen.new import unfilled
from codegen.operations import FOLDER, MARK
from codegen.text import ROOT
from tlspec import registry
from tlspec.validation import row_problems


def main() -> int:
    """Writes or compares the files; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m codegen", description="Writes what the registry's rows determine.")
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing them")
    check = parser.parse_args().check
    if problems := find_problems():
        print("\n".join(problems), file=sys.stderr)
        return 1
    return update_files(check)


def find_problems() -> list[str]:
    """What is wrong with the rows and their kernels, a sentence each."""
    if places := list(unfilled()):
        return places
    try:
        rows = registry.operations()
    except Exception as error:
        return [_load_problem(error)]
    return [p for row in rows for p in row_problems(row)] or missing_kernels()


def _load_problem(error: Exception) -> str:
    """The sentence for a family that cannot be imported: the last line of its own that was reached, and what it met."""
    if isinstance(error, SyntaxError):
        place, line = error.filename or "tlspec/ops", error.lineno
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/tlspec/ops/" in f.filename]
        place, line = (frames[-1].filename, frames[-1].lineno) if frames else ("tlspec/ops", None)
    at = f"{place.removeprefix(f'{ROOT}/')}{f':{line}' if line else ''}"
    return f"{at}: {type(error).__name__}: {' '.join(str(error).split())}: correct the row there"


def update_files(check: bool) -> int:
    """Writes the files that differ, or with `check` names them; returns the exit status."""
    files = generated_files()
    stale = []
    for name, text in files.items():
        path = ROOT / name
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    ours = sorted((ROOT / GENERATED).iterdir())
    ours += [path for path in sorted((ROOT / FOLDER).glob("*.py")) if path.read_text().startswith(MARK)]
    for path in ours:
        if (name := path.relative_to(ROOT).as_posix()) not in files:
            stale.append(f"{name} (of no row)")
            if not check:
                path.unlink()
    for name in stale:
        print(("stale: " if check else "wrote: ") + name)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
