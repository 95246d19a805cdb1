"""Documents of runs: JSON lines give back what was written, one measurement a line; and no committed file is a burden."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

from tests import ROOT
from tlrt.verify.documents import format_command, read_document, to_plain, write_document

DOCUMENT: dict[str, Any] = {
    "command": "x",
    "empty": {"results": [], "rows": {}, "none": None},
    "verify": {"seed": 0, "results": [{"entry": "exp", "share": 0.5}, {"entry": "log", "share": math.inf}]},
    "hostile": [
        {"entries": {"a.b": {"calls": 1}, "c": {"calls": np.int64(2)}}, "seed": 1, "long": list(range(900))},
        {"entries": {"a.b": {"calls": 3}}, "failures": [{"said": "é" * 700}, {"said": "line\nline\x85\u2028line"}]},
        {"entries": {"a.b": {"failures": [{"said": "x" * 1200}]}, "c": {"%2E[]": {"rows": [{"x": 1}]}}, "d": {}}},
    ],
    "nested": {"functions": [{"devices": {"cpu": {"hashes": ["0" * 16] * 200}}, "special": [{"x": "0"}] * 300}]},
    "text": "at [] . key",
    "": {"": {"results": [{"at": 1, "key": "x", "%at": 2, "items": [3], "": 4}]}, "at": {"key": {"at": ["x" * 1200]}}},
}


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_what_is_written_is_read(name: str, tmp_path: Path) -> None:
    write_document(tmp_path / name, DOCUMENT)
    assert read_document(tmp_path / name) == to_plain(DOCUMENT)
    assert [p.name for p in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text().endswith("\n")


@pytest.mark.parametrize("kind", ["bool", *np.typecodes["AllInteger"], "float16", "float32", "float64"])
def test_numbers_of_numpy_are_plain(kind: str) -> None:
    """Strict JSON holds them wherever they stand: numbers as numbers, infinities and NaN as text."""
    x = np.array([0, 1, *([0.5, -0.0, math.inf, -math.inf, math.nan] if "float" in kind else [])], kind)
    expected = [v if math.isfinite(v) else str(v) for v in x.tolist()]
    document = {"all": list(x), "row": {"inner": [{str(k): (v,) for k, v in enumerate(x)}]}, "last": x[-1]}
    found = json.loads(json.dumps(to_plain(document), allow_nan=False))
    inner = {str(k): [v] for k, v in enumerate(expected)}
    assert repr(found) == repr({"all": expected, "row": {"inner": [inner]}, "last": expected[-1]})


def test_a_command_has_no_folders() -> None:
    words = ["verify", "--json", "/home/me/out.json", "--inputs=/home/me/a b.npz", "x=y=/z", "a/b", "--ops=add", "="]
    assert format_command(words) == "verify --json out.json '--inputs=a b.npz' x=y=/z a/b --ops=add ="


def test_a_pipe_is_written_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    reader = os.open(tmp_path / "a.json", os.O_RDONLY | os.O_NONBLOCK)
    write_document(tmp_path / "a.json", {"x": 1})
    assert json.loads(os.read(reader, 4096)) == {"x": 1} and (tmp_path / "a.json").is_fifo()
    os.close(reader)


def test_a_measurement_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_document(path, DOCUMENT)
    lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    assert lines[0] == {"at": "", "command": "x", "empty": DOCUMENT["empty"], "text": DOCUMENT["text"]}
    assert {"at": "verify.results[]", "entry": "exp", "share": 0.5} in lines
    assert {"at": "hostile[].entries", "key": "c", "calls": 2} in lines
    assert max(map(len, path.read_text().split("\n")[:-1])) < 2000


def test_a_list_is_cut_into_lines(tmp_path: Path) -> None:
    path, row = tmp_path / "a.jsonl", {"points": list(range(1000)), "words": ["x" * 3000]}
    write_document(path, {"command": "x", "row": row})
    assert read_document(path)["row"] == row
    cut = [line for line in path.read_text().split("\n")[:-1] if "row.points" in line]
    assert len(cut) > 2 and all(500 < len(line) < 1500 for line in cut[:-1])


@pytest.mark.parametrize("text", ["{", '{"x": 1}', "[1]", '{"at": "rows[].x", "y": 1}'])
def test_what_is_no_document_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    assert_raises_regex(ValueError, "line 1", read_document, path)


def test_evidence_stays_small() -> None:
    lines = [line for p in (ROOT / "evidence").iterdir() for line in p.read_text(encoding="utf-8").split("\n")[:-1]]
    assert max(map(len, lines)) <= 2000
    assert {p.suffix for p in (ROOT / "evidence").iterdir()} == {".jsonl"}
