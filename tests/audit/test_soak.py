"""The soak campaign at the size of a test run, and the defects that it must report."""

import pytest

from audit import soak
from tests import DEVICES


@pytest.mark.parametrize("device", DEVICES)
def test_two_thousand_steps_in_flat_memory(device):
    document = soak.soak(device, 2000)
    assert soak.ok(document), soak.table(document)
    assert {r["driver_allocations"] for r in document["samples"]} == {0}


def test_a_leak_is_seen():
    kept = []

    def leak(session, step: int) -> None:
        if step == 300:
            kept.append(session.device.zeros(1000))

    document = soak.soak("cpu", 400, after=leak)
    kept.clear()
    assert not soak.ok(document)
    assert "step 250: live_bytes" in document["failures"][0] and "live_buffers" in document["failures"][0]


def test_a_cache_that_is_emptied_is_seen():
    document = soak.soak("cpu", 100, after=lambda session, step: session.collect())
    assert "driver_allocations" in document["failures"][0]
