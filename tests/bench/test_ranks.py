"""bench.ranks: hashes of runs on several ranks, and the run that goes on after one was killed."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench import ranks
from tests.runtime.fake_nccl import build_fake_nccl
from tlrt.verify.documents import read_document

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")


def test_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--only", "char_gpt", "--ranks", "1,2", "--starters", "launch", "--steps", "4", "--parts", "weights"]
    assert ranks.main([*arguments, "--json", str(tmp_path / "r.jsonl"), "--commit", "abc"]) == 0
    found = read_document(tmp_path / "r.jsonl")
    assert [(r["ranks"], r["note"]) for r in found["rows"]] == [
        (1, ""), (2, ""), (1, "2 ranks, one killed at step 3, then 1"),
    ]  # fmt: skip
    assert len({r["sha256"] for r in found["rows"]}) == 1
    others = iter("abc")
    monkeypatch.setattr(ranks, "result_of", lambda *a: {"sha256": next(others), "ms": 1.0})
    assert ranks.main(arguments) == 1
    assert "char_gpt: different weights" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_parts_are_measured_one_by_one_into_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By TCP, and by NCCL's calls to what moves host memory in its place."""
    monkeypatch.setenv("TORCHLEAN_NCCL_LIBRARY", build_fake_nccl(tmp_path))
    path = tmp_path / "r.jsonl"
    common = ["--starters", "launch", "--transports", "host,nccl", "--json", str(path), "--add"]
    assert ranks.main(["--parts", "links", "--ranks", "2", "--largest", "64", *common]) == 0
    assert ranks.main(["--parts", "times", "--ranks", "1,2", "--timed", "5", "--loops", "ours,allreduce", *common]) == 0
    found = read_document(path)
    assert {(r["transport"], r["level"]) for r in found["links"]} == {
        (t, k) for t in ("host", "nccl") for k in (0, "add")
    }
    assert all(r["us"] > 0 for r in found["links"]) and len(found["earlier"]) == 1
    kinds = {(r["loop"], r["transport"], r["ranks"]) for r in found["times"]}
    assert kinds == {("ours", "host", 1), ("ours", "host", 2), ("ours", "nccl", 2), ("allreduce", "nccl", 2)}
    for count in (1, 2):  # all loops begin with the same weights and batches
        losses = [r["loss"] for r in found["times"] if r["ranks"] == count]
        assert max(losses) - min(losses) < 1e-5 * max(losses)
    assert {r["parameters"] for r in found["times"]} == {114816}
