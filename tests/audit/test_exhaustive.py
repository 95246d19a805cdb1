"""The exhaustive campaign at the size of a test run: every function at a stride, the checker, and planted defects."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tlrt
from audit import command
from audit.checker import CheckerError, checker, float_text
from audit.exhaustive import Exhaustive, entries
from tests import DEVICES
from tests.audit.replaced import Replaced
from tlrt import kernels
from tlspec import registry

try:
    checker()
except CheckerError as reason:
    pytest.skip(str(reason), allow_module_level=True)

#: 2^20 samples; 1.0 and both infinities are among them
STRIDE = 4096


def spoil(name: str, defect: Callable[..., np.ndarray]) -> Replaced:
    """The kernels with a defect in one function: `defect` gets its inputs and its right result."""

    def wrong(*buffers: Any, **keywords: Any) -> Any:
        inputs = [b.numpy() for b in [*buffers, *keywords.values()] if isinstance(b, tlrt.Buffer)]
        with getattr(kernels, name)(*buffers, **keywords) as right:
            return tlrt.Buffer.from_numpy(defect(*inputs, right.numpy()), right.device)

    return Replaced(name, wrong)


def one(name: str, **options: Any) -> dict[str, Any]:
    run = Exhaustive(["cpu"], [e for e in entries(name) if e.name == name], **{"stride": STRIDE, **options})
    run.run()
    return dict(run.document()["functions"][0])


@pytest.mark.parametrize("device", DEVICES)
def test_every_function_at_a_stride(device: str) -> None:
    devices = ["cpu"] if device == "cpu" else ["cpu", tlrt.device("cuda").name]
    run = Exhaustive(devices, entries(), stride=65521)
    run.run()
    document = run.document()
    assert [f["entry"] for f in document["functions"] if f["verdict"] != "pass"] == []
    assert len(document["functions"]) == len(entries())
    assert all(len(f["special"]) > 4 for f in document["functions"])
    json.dumps(document)


def test_every_unary_row_has_an_entry_and_a_reference() -> None:
    unary = [r for r in registry.ops() if r.signature.elementwise and len(r.signature.inputs) == 1]
    assert {e.name for e in entries(gradients=False)} == {r.name for r in unary}
    gradients = {f"{r.name}_bwd" for r in unary if r.vjp_rule is not None and r.vjp_rule.via is None}
    assert {e.name for e in entries()} - {r.name for r in unary} == gradients | {"div_bwd"}
    assert set(checker().index) == {e.name for e in entries()}


def test_the_checker_decides_ties() -> None:
    tiny = 2.0**-149
    want = checker().want
    # x/2 + x²/4: a little above a tie between two subnormals
    assert want("silu", tiny) == np.float32(tiny)
    assert want("silu", -tiny) == 0 and np.signbit(want("silu", -tiny))
    assert want("silu", 3 * tiny) == np.float32(2 * tiny) and want("silu", -3 * tiny) == np.float32(-tiny)
    # 1 + x + x²/2 with x half a spacing: above the tie, and below it on the other side
    assert want("exp", 2.0**-24) == np.float32(1 + 2.0**-23) and want("exp", -(2.0**-25)) == np.float32(1)
    assert want("sqrt", 2.0) == np.float32(np.sqrt(2.0)) and want("inv", 3.0) == np.float32(1 / 3)
    assert want("exp", 88.72284) == np.float32(np.finfo(np.float32).max) or np.isinf(want("exp", 88.72284))


def test_a_wrong_result_is_found_where_it_is() -> None:
    def defect(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        y = y.copy()
        y.view(np.uint32)[x == 1] += 3
        return y

    found = one("exp", kernels=spoil("exp", defect))
    assert found["verdict"] == "fail"
    p = found["devices"]["cpu"]
    assert p["worst"] in (2, 3, 4) and p["over"] == 1
    assert p["worst_case"]["at"] == float_text(0x3F800000) == "0x1p+0"
    assert one("exp")["devices"]["cpu"]["hash"] != p["hash"]


@pytest.mark.parametrize(
    ("name", "defect"),
    [
        ("relu", lambda x, y: np.nan_to_num(y, nan=0.0, posinf=np.inf)),  # hides NaN
        ("sqrt", lambda x, y: np.where(y == 0, np.float32(0), y)),  # loses the sign of zero
        ("exp", lambda x, y: np.where(np.abs(y) < 2.0**-126, np.float32(0), y)),  # flushes subnormals
        ("log", lambda x, y: np.where(np.isinf(y), np.float32(3e38) * np.sign(y), y).astype(np.float32)),  # no infinity
    ],
)
def test_hidden_specials_are_found(name: str, defect: Callable[..., np.ndarray]) -> None:
    assert one(name)["verdict"] == "pass"
    assert one(name, kernels=spoil(name, defect))["verdict"] == "fail"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "e.json"
    arguments = ["exhaustive", "--short", "--ops", "relu", "--device", "cpu"]
    assert command.main([*arguments, "--json", str(out)]) == 0
    assert "nothing failed" in capsys.readouterr().out
    document = json.loads(out.read_text())
    assert document["exhaustive"]["verdict"] == "pass" and "library" in document
    assert command.main([*arguments, "--against", str(out)]) == 0
    assert "every hash is equal" in capsys.readouterr().out
