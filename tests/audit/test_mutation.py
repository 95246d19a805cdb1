"""Random mutants: which are drawn, what counts as a change, that one of every kind is judged, and that a campaign goes on."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.build import make
from audit.mutation import command
from audit.mutation.checks import Check, checks
from audit.mutation.command import Campaign
from audit.mutation.mutants import KINDS, Mutant, compiles, read_lines, sample, sources
from audit.scratch import Scratch, scratch

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_a_function_of_its_seed(kind: str) -> None:
    pytest.importorskip("universalmutator", reason="the extra `mutation` is not installed")
    first = {seed: list(itertools.islice(sample(kind, seed), 4)) for seed in (1, 2)}
    assert first[1] == list(itertools.islice(sample(kind, 1), 4)) and not {*first[1]} & {*first[2]}
    for mutant in first[1]:
        assert mutant.before.split() != mutant.after.split() and mutant.text() != "".join(read_lines(mutant.file))
        assert not mutant.file.endswith(".py") or compiles(mutant.text())


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scratch]:
    make("cpu")
    with scratch(tmp_path_factory.mktemp("clean")) as copied:
        yield copied


@pytest.fixture
def campaign(tree: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Campaign]:
    """One whose unchanged tree is the one with all variants, and whose checks are quick."""
    monkeypatch.setattr(command, "cpu_variants", lambda: ["base"])
    quick = [Check(("tlrt", "verify", "--device", "cpu", "--cases", "1", "--ops", "relu")),
             Check(("pytest", "-q", "tests/runtime/test_device.py"))]  # fmt: skip
    monkeypatch.setattr(command, "checks", lambda *_: quick)
    with Campaign(tmp_path / "mutants.jsonl", 3, 1) as opened:
        opened.clean |= {"": tree, "base": tree}
        yield opened


def planted(kind: str, file: str, before: str, after: str) -> Mutant:
    number, line = next((i, text) for i, text in enumerate(read_lines(file), 1) if before in text)
    return Mutant(kind, file, number, 1, line, line.replace(before, after))


@pytest.mark.parametrize(
    ("kind", "file", "before", "after", "outcome"),
    [
        ("c", "native/src/core/device.c", "if (!ctx)", "if (!cty)", "invalid"),
        ("c", "native/src/core/device.c", "if (!ctx)", "if (ctx == NULL)", "equivalent"),
        ("c", "native/src/core/device.c", "if ((status = tl_threads", "if (!(status = tl_threads", "killed"),
        ("python", "tlrt/context.py", 'return ("cpu", *(', 'return ("cpu", "cpu", *(', "killed"),
        ("specification", "tlspec/ops/elementwise.py", "(x != x) | (x > 0)", "(x != x) | (x < 0)", "killed"),
    ],
)
def test_a_planted_mutant_is_judged(
    campaign: Campaign, kind: str, file: str, before: str, after: str, outcome: str
) -> None:
    mutant = planted(kind, file, before, after)
    assert campaign.judge(mutant) == outcome, campaign.rows
    again = Campaign(campaign.target, 3, 1)  # goes on with what is written
    assert again.rows[mutant.key]["outcome"] == outcome and again.counts()[kind][outcome] == 1
    with pytest.raises(ValueError, match="expected 4"):
        Campaign(campaign.target, 4, 1)


@pytest.mark.parametrize("kind", ["c", "python", "specification"])
def test_every_file_has_checks_of_all_folders(kind: str, tree: Scratch) -> None:
    for file in sources(kind)[::20]:
        found = [*checks(kind, file, tree)]
        words = " ".join(w for c in found for w in c.words)
        assert all(f"tests/{folder}/" in words for folder in ("spec", "kernels", "verify", "runtime")), file
        assert found[0].words[0] == "-c" or kind == "c"
