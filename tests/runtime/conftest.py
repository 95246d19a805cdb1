"""Fixtures: every test gets devices of its own, and leaves no buffer behind."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator

import pytest

import tlrt
from tlrt.spec import SpecDevice

FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def dev(request: pytest.FixtureRequest) -> Iterator[tlrt.Device]:
    """A device of the test's own; at the end no buffer may be live."""
    if request.param == "cuda" and len(tlrt.devices()) == 1:
        pytest.skip("no CUDA device on this machine")
    with tlrt.Device.new(request.param) as device:
        yield device
        gc.collect()
        if not device.closed and not request.node.stash.get(FAILED, False):  # a traceback keeps its buffers
            assert device.memory().live_buffers == 0, "buffers leaked"


@pytest.fixture(params=["spec", "cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def s(request: pytest.FixtureRequest) -> Iterator[tlrt.Session]:
    """A session on each device; nothing may be live on its device afterwards."""
    if request.param == "cuda" and len(tlrt.devices()) == 1:
        pytest.skip("no CUDA device on this machine")
    device = SpecDevice() if request.param == "spec" else tlrt.device(request.param, new=True)
    session = tlrt.Session(device, seed=5)
    yield session
    session.close()
    assert device.memory().live_buffers == 0, "buffers leaked"
    device.close()
