"""bench.ranks: hashes of runs on several ranks, and the run that goes on after one was killed."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench import ranks
from tests.runtime.fake_nccl import build_fake_nccl
from tlrt.verify.documents import read_document, write_document

pytest.importorskip("sklearn")


def test_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--only", "digits", "--ranks", "1,2", "--starters", "launch", "--steps", "4", "--parts", "weights"]
    assert ranks.main([*arguments, "--json", str(tmp_path / "r.jsonl"), "--commit", "abc"]) == 0
    found = read_document(tmp_path / "r.jsonl")
    assert [(r["ranks"], r["note"]) for r in found["rows"]] == [
        (1, ""), (2, ""), (1, "2 ranks, one killed at step 3, then 1"),
    ]  # fmt: skip
    assert len({r["sha256"] for r in found["rows"]}) == 1
    others = iter("abc")
    monkeypatch.setattr(ranks, "result_of", lambda *a: {"sha256": next(others), "ms": 1.0})
    assert ranks.main(arguments) == 1
    assert "digits: different weights" in capsys.readouterr().out


def test_weights_of_gpus_are_compared_with_those_of_the_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = {"cpu": "a", "cuda": "b"}
    monkeypatch.setattr(ranks, "result_of", lambda *a: {"sha256": hashes[a[3][a[3].index("--device") + 1]], "ms": 1.0})
    arguments = ["--device", "cuda", "--only", "digits", "--ranks", "1", "--starters", "launch", "--parts", "weights"]
    assert ranks.main(arguments) == 1 and "digits: different weights" in capsys.readouterr().out
    hashes["cuda"] = "a"
    assert ranks.main(arguments) == 0


def test_weights_are_compared_with_those_of_another_file(tmp_path: Path) -> None:
    rows = [{"example": "digits", "steps": 4, "sha256": "a"}, {"example": "digits", "steps": 9, "sha256": "b"}]
    write_document(tmp_path / "other.jsonl", {"rows": rows})
    same = [{"example": "digits", "steps": 9, "sha256": "b"}, {"example": "char_gpt", "steps": 9, "sha256": "c"}]
    assert ranks.compare(same, tmp_path / "other.jsonl") == []
    different = [{"example": "digits", "steps": 9, "sha256": "a"}]
    assert ranks.compare([{**different[0], "data": "another"}], tmp_path / "other.jsonl") == []
    assert ["other weights than in" in line for line in ranks.compare(different, tmp_path / "other.jsonl")] == [True]
    assert ranks.compare(different, tmp_path / "missing.jsonl") == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_parts_are_measured_one_by_one_into_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By TCP, and by NCCL's calls to what moves host memory in its place."""
    monkeypatch.setenv("TORCHLEAN_NCCL_LIBRARY", build_fake_nccl(tmp_path))
    path = tmp_path / "r.jsonl"
    common = ["--starters", "launch", "--transports", "host,nccl", "--json", str(path), "--add"]
    assert ranks.main(["--parts", "links", "--ranks", "2", "--largest", "64", *common]) == 0
    loops = ["ours", "allreduce"] + ["ddp"] * (find_spec("torch") is not None)
    assert ranks.main(["--parts", "times", "--ranks", "1,2", "--timed", "5", "--loops", ",".join(loops), *common]) == 0
    found = read_document(path)
    assert {(r["transport"], r["level"]) for r in found["links"]} == {
        (t, k) for t in ("host", "nccl") for k in (0, "add")
    }
    assert all(r["us"] > 0 for r in found["links"]) and len(found["earlier"]) == 1
    kinds = {(r["loop"], r["transport"], r["ranks"]) for r in found["times"]}
    expected = {("ours", "host", 1), ("ours", "host", 2), ("ours", "nccl", 2), ("allreduce", "nccl", 2)}
    assert kinds == expected | ({("ddp", "gloo", 1), ("ddp", "gloo", 2)} if "ddp" in loops else set())
    for count in (1, 2):  # all loops begin with the same weights and batches
        losses = [r["loss"] for r in found["times"] if r["ranks"] == count]
        assert max(losses) - min(losses) < 1e-5 * max(losses)
    assert {r["parameters"] for r in found["times"]} == {114816}


def test_a_run_that_fails_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ranks.Failed, match="exit status 2"):
        ranks.result_of("launch", 1, "bench.ranks", ["--unknown"])
    arguments = ["--parts", "times", "--loops", "allreduce", "--ranks", "2", "--transports", "nccl"]
    path = tmp_path / "r.json"
    assert ranks.main([*arguments, "--json", str(path), "--models", "tiny"]) == 1  # there is no NCCL for host memory
    assert "exit status 1" in capsys.readouterr().out and "exit status 1" in read_document(path)["wrong"][0]
    for option in ("--parts", "--models", "--loops", "--transports", "--starters"):
        with pytest.raises(SystemExit):
            ranks.main([option, "other"])
