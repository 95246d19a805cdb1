"""The coverage campaign: what gcov's counts of several copies of a source come to, and what its verdict is."""

import shutil
import subprocess
from pathlib import Path

import pytest

from audit import coverage
from audit.coverage import Line

SOURCE = """\
int sign(int x)
{
    if (x < 0) return -1;
#ifdef WIDE
    if (x > 9 && x < 99) return 2;
#endif
    return x > 0;
}
int main(int count, char **words) { return words[0] ? sign(count - LESS) > 5 : 1; }
"""


@pytest.mark.skipif(None in (shutil.which("cc"), shutil.which("gcov")), reason="no gcov on this machine")
def test_copies_of_a_source_are_one(tmp_path: Path) -> None:
    """A branch is reached if it is in one copy; a line that only some copies have counts too."""
    (tmp_path / "src/core").mkdir(parents=True)
    (tmp_path / "src/core/sign.c").write_text(SOURCE)
    for name, *defines in (("low", "LESS=2"), ("high", "LESS=0", "WIDE")):
        (tmp_path / name).mkdir()
        flags = [f"-D{d}" for d in defines]
        build = ["cc", "-O1", "--coverage", "-fno-inline", *flags, "-c", "src/core/sign.c", "-o", f"{name}/sign.o"]
        subprocess.run(build, cwd=tmp_path, check=True)
        subprocess.run(["cc", "--coverage", f"{name}/sign.o", "-o", f"{name}/run"], cwd=tmp_path, check=True)
        subprocess.run([f"./{name}/run"], cwd=tmp_path, check=True)
    lines = coverage.read(tmp_path)["src/core/sign.c"]
    assert all(lines[3].branches[2]) and lines[3].count == 2  # the one copy is below 0, the other is not
    assert lines[5].count == 1 and [0 in copy for copy in lines[5].branches.values()] == [True]
    document = coverage.judge({"src/core/sign.c": lines}, tmp_path)
    assert [m["line"] for m in document["missed"]] == [5, 9]
    assert any(f.startswith("src/core: ") for f in document["failures"])
    coverage.clear(tmp_path)
    assert not any(line.count for line in coverage.read(tmp_path)["src/core/sign.c"].values())


def test_a_reason_excuses_its_line_and_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src/cpu").mkdir(parents=True)
    (tmp_path / "src/cpu/a.c").write_text("if (gpu)\nif (a)\n")
    found = {"src/cpu/a.c": {1: Line(1, {2: (1, 0)}), 2: Line(9, {2: (4, 5)})}}
    monkeypatch.setattr(coverage, "EXCEPTIONS", (("src/cpu/*", "gpu", "needs a GPU"),))
    document = coverage.judge(found, tmp_path)
    assert document["failures"] == [] and document["files"][0]["excepted"] == 1
    monkeypatch.setattr(coverage, "EXCEPTIONS", ())
    document = coverage.judge(found, tmp_path)
    assert document["failures"] == ["src/cpu: 75.00% of the branches are reached, expected 98%"]
    assert "src/cpu/a.c:1: 1 of 2 branches: if (gpu)" in coverage.table(document)
    monkeypatch.setattr(coverage, "EXCEPTIONS", (("src/cpu/*", "if (a)", "nothing"),))
    assert coverage.judge(found, tmp_path)["failures"][0] == "no branch is left of the exception src/cpu/*: if (a)"
