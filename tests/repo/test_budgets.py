"""How many lines the repository may have: written by hand, generated, and measured."""

from bench import results
from codegen.files import generated_files
from tests import ROOT
from tests.repo.tree import files, name

#: kind of line -> the most lines that the repository may hold of it; what a new capability needs is added with it
BUDGET = {"by hand": 167_950, "generated": 23_200, "evidence": 18_200}
#: documents that quote results within text written by hand
QUOTING = {"README.md", "TRUST_BOUNDARIES.md"}
#: files that hold no lines
BINARY = {".png", ".npz", ".safetensors", ".so", ".pyc"}


def lines_by_kind() -> dict[str, dict[str, int]]:
    """Kind -> file -> its lines."""
    generated = {*generated_files(), *results.documents()} - QUOTING
    found: dict[str, dict[str, int]] = {kind: {} for kind in BUDGET}
    for path in files():
        file = name(path)
        if path.suffix not in BINARY:
            kind = "evidence" if file.startswith("evidence/") else "generated" if file in generated else "by hand"
            found[kind][file] = len(path.read_bytes().splitlines())
    return found


def test_lines_stay_within_their_budgets() -> None:
    over = []
    for kind, by_file in lines_by_kind().items():
        total = sum(by_file.values())
        if total > BUDGET[kind]:
            longest = sorted(by_file, key=lambda f: -by_file[f])[:5]
            over.append(
                f"{kind}: {total} lines, budget {BUDGET[kind]}; the longest: "
                + ", ".join(f"{f} ({by_file[f]})" for f in longest)
            )
    assert not over, "\n".join(over)


def test_every_kind_is_counted() -> None:
    assert all(lines_by_kind().values())
    assert all((ROOT / file).exists() for by_file in lines_by_kind().values() for file in by_file)
