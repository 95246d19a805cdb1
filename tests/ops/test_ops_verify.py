"""``python -m tlrt verify``: options, exit status, JSON, the user's own arrays, the line that repeats a failure."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from tlrt import verify
from tlrt.verify_inputs import InputError, infer
from tlspec import registry
from tlspec.cases import draw_case
from tlspec.registry import Op


def some(where: object) -> Op:
    return next(r for r in registry.ops() if where(r))  # type: ignore[operator]


ELEMENTWISE = some(lambda r: r.signature.elementwise and not r.signature.params and len(r.signature.inputs) == 1)
SHAPED = some(lambda r: len(r.signature.inputs) == 2 and len(r.signature.buffers) == 2 and len(r.signature.dims) >= 3)


def test_one_operation(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert verify.main(["--ops", SHAPED.name, "--cases", "2", "--device", "cpu", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert SHAPED.name in text
    assert "pass" in text
    document = json.loads(out.read_text())
    assert document["verdict"] == "pass"
    assert {"devices", "build", "versions", "started", "seconds", "seed", "command"} <= set(document)
    assert {r["entry"] for r in document["results"]} == {SHAPED.name, f"{SHAPED.name}_bwd"}
    assert all({"share", "ulp", "cases", "identical", "failures"} <= set(r) for r in document["results"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--ops", "no_such_op"],
        ["--data", "nonsense"],
        ["--cases", "0"],
        ["--device", "abacus"],
        ["--inputs", "/nowhere.npz"],
    ],
)
def test_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        verify.main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err


def test_failure_gives_status_and_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from tlrt import Buffer, kernels

    original = getattr(kernels, ELEMENTWISE.name)

    def wrong(x: Buffer, *, out: Buffer | None = None) -> Buffer:
        y = original(x, out=out)
        return y.fill(42.0) if len(y) else y

    monkeypatch.setattr(kernels, ELEMENTWISE.name, wrong)
    assert verify.main(["--ops", ELEMENTWISE.name, "--device", "cpu"]) == 1
    text = capsys.readouterr().out
    assert "FAIL" in text
    assert "got 42.0" in text
    line = next(line for line in text.splitlines() if line.strip().startswith("python -m tlrt verify"))
    assert verify.main(shlex.split(line)[4:]) == 1
    assert capsys.readouterr().out.count("got 42.0") == 1


def test_own_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = draw_case(SHAPED, 5, "normal", "small")
    arrays = {k: x.astype(np.float64) for k, x in case.inputs.items() if x is not None}
    np.savez(tmp_path / "own.npz", **arrays, **case.params)
    assert verify.main(["--ops", SHAPED.name, "--inputs", str(tmp_path / "own.npz"), "--device", "cpu"]) == 0
    values, given = infer(SHAPED, {**arrays, **{k: np.asarray(v) for k, v in case.params.items()}})
    assert {d: values[d] for d in case.dims} == case.dims
    assert all(np.array_equal(given[k], case.inputs[k]) for k in arrays)  # type: ignore[arg-type]


def test_own_arrays_that_do_not_fit() -> None:
    case = draw_case(SHAPED, 5, "normal", "small")
    arrays = {k: x for k, x in case.inputs.items() if x is not None}
    first, second = SHAPED.signature.inputs
    with pytest.raises(InputError, match=f"{second.name}: not in the file"):
        infer(SHAPED, {first.name: arrays[first.name]})
    with pytest.raises(InputError, match=f"{first.name}: got dtype complex"):
        infer(SHAPED, {**arrays, first.name: arrays[first.name].astype(complex)})
    with pytest.raises(InputError, match=f"{first.name}: got dtype float16"):
        infer(SHAPED, {**arrays, first.name: arrays[first.name].astype(np.float16)})
    with pytest.raises(InputError, match="expected"):
        infer(SHAPED, {**arrays, first.name: arrays[first.name].reshape(-1, 1, 1, 1, 1)})


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main(["--list"]) == 0
    assert all(r.name in capsys.readouterr().out for r in [registry.ops()[0]])
