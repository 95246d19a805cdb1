"""Fixed rows of two checkouts in one run: the verdict, rows that cannot be compared, and processes that end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from audit.environment import ROOT
from bench import beside, models
from bench.beside_worker import with_tuples
from bench.measure import Subject, fixed_subjects
from tlrt._binding.library import load
from tlrt.verify.documents import read_document
from tlspec import registry

#: the real worker with changes, which may depend on the checkout it runs in
WORKER = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import beside_worker
worker, checkout = beside_worker.Worker, Path.cwd().name
{change}
beside_worker.main()
"""
#: the time of every row is ten times as long in one checkout
SLOWER = """
time = worker.time
worker.time = lambda self, budget: time(self, budget) * (10 if checkout == {slower!r} else 1)
worker.core = lambda self: [["one call", "add", 10 if checkout == {slower!r} else 1]]
"""


def checkout(folder: Path) -> Path:
    """A folder that is a checkout of this tree with the library that this process tests."""
    library = folder / "native/build/cpu/libtorchlean_cuda.so"
    library.parent.mkdir(parents=True)
    library.symlink_to(load().path)
    for package in ("audit", "bench", "tlrt", "tlspec"):
        (folder / package).symlink_to(ROOT / package)
    return folder


@pytest.fixture
def trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """This checkout and an earlier one; turns and samples are short."""
    here, earlier = checkout(tmp_path / "here"), checkout(tmp_path / "earlier")
    monkeypatch.setattr(beside, "ROOT", here)
    for name, value in {"TURNS": 1, "LEAST_PROCESSES": 1, "MOST_PROCESSES": 1}.items():
        monkeypatch.setattr(beside, name, value)
    for name, seconds in {"SECONDS": 0.0, "MORE_SECONDS": 0.0, "SAMPLE": 0.001}.items():
        monkeypatch.setattr(beside, name, seconds)

    def subjects(names: Any, limit: float) -> Iterator[Subject]:
        for name in names:
            yield Subject(registry.ops([name])[0], {"n": 64}, "forward")

    monkeypatch.setattr(beside, "fixed_subjects", subjects)
    return here, earlier


def change_worker(folder: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    file = folder / "worker.py"
    file.write_text(WORKER.format(folder=str(ROOT / "bench"), change=change), encoding="utf-8")
    monkeypatch.setattr(beside, "WORKER", file)


def run(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "beside.jsonl"
    status = beside.main([*arguments, "--device", "cpu", "--json", str(file)])
    return status, read_document(file)


@pytest.mark.parametrize("slower", ["here", "earlier"])
def test_a_slower_checkout_is_found(
    slower: str, trees: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_worker(tmp_path, monkeypatch, SLOWER.format(slower=slower))
    status, document = run(tmp_path, str(trees[1]), "--ops", "add,relu,core")
    assert [row["op"] for row in document["rows"]] == ["one call", "add", "relu"]
    assert status == (slower == "here")
    for row in document["rows"]:
        assert row["turns"] == (beside.MOST_PROCESSES if slower == "here" else 1)
        assert row["ratio"] < 0.5 if slower == "here" else row["ratio"] > 2
        assert row["beside"] == "earlier"


SLOWER_MODELS = """
time = worker.time_model
worker.time_model = lambda self: [ms * (10 if checkout == {slower!r} else 1) for ms in time(self)]
"""


@pytest.mark.parametrize("slower", ["here", "earlier"])
def test_models_of_two_checkouts(
    slower: str,
    trees: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A model's figure is the earlier checkout's time over this one's; the command fails where it is below the limit."""
    rows = [models.ModelRow.of("add", {"n": 64}), models.ModelRow.of("matmul", {"m": 4, "n": 4, "p": 4})]
    table = models.Table(rows, {("tiny", 1): {0: 2, 1: 1}}, {"tiny": {}})
    monkeypatch.setattr(models, "load", lambda: table)
    change_worker(tmp_path, monkeypatch, SLOWER_MODELS.format(slower=slower))
    status, document = run(tmp_path, str(trees[1]), "--models", "--batches", "1")
    assert status == (slower == "here") and not document["failed"]
    assert {(r["op"], r["math"]) for r in document["rows"]} == {
        ("add", "fast"), ("matmul", "fast"), ("matmul", "reproducible")
    }  # fmt: skip
    for f in document["models"]:
        assert f["ratio"] < 0.5 if slower == "here" else f["ratio"] > 2
    assert ("FALLEN tiny, batch 1" in capsys.readouterr().out) == (slower == "here")


def test_sizes_survive_json() -> None:
    """The worker's subject is the parent's, though JSON knows no tuples."""
    for subject in fixed_subjects(None, 1e12):
        size = with_tuples(json.loads(json.dumps(subject.size)))
        assert Subject(subject.op, size, subject.which).label == subject.label
