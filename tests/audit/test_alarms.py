"""The false-alarm campaign at the size of a test run, and the defects that it must report."""

from typing import Any

import numpy as np
import pytest

import tlrt
from audit import alarms
from tests import DEVICES
from tests.audit.test_determinism import spoil


@pytest.mark.parametrize("device", DEVICES)
def test_no_false_alarm(device: str) -> None:
    document = alarms.alarms([tlrt.device(device).name], 400, workers=0)
    (total,) = document["totals"].values()
    assert total["alarms"] == 0 and total["comparisons"] >= 400 and alarms.ok(document)
    exact = next(r for r in document["entries"] if r["entry"] == "add")
    ulps = next(r for r in document["entries"] if r["entry"] == "exp")
    assert sum(exact["histogram"]) == exact["measured"] == 0
    assert sum(ulps["histogram"]) == ulps["measured"] > 0 and ulps["worst"] > 0.1


def test_an_alarm_is_counted_with_its_line() -> None:
    def off(y: np.ndarray, *_: Any) -> None:
        y *= np.float32(1 + 2.0**-20)

    document = alarms.alarms(["cpu"], 40, "exp", workers=0, kernels=spoil("exp", off))
    row = next(r for r in document["entries"] if r["entry"] == "exp")
    assert row["alarms"] > 0 and not alarms.ok(document)
    assert "python -m tlrt verify --ops exp" in row["alarm_lines"][0]
    assert "FAIL exp" in alarms.table(document)


def test_a_loose_bound_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "LOOSE", 2.0)
    document = alarms.alarms(["cpu"], 20, "exp", workers=0)
    assert [r["entry"] for r in document["loose"]] == ["exp"]
    assert "loose: exp on cpu" in alarms.table(document)
