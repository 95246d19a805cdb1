"""A plugin of pytest, for a run that coverage.py counts: it says of every line which test ran it, and how long each test took.

``COVERAGE_PROCESS_START=SETTINGS python -m pytest -p audit.mutation.contexts``, where the settings name the variable
``TEST_THAT_RUNS`` as the context, so that processes which a test starts count for it. ``TIMES_OF_TESTS`` names the file of the times.
"""

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

#: environment variables: the test that runs, and the file of the seconds of each test
TEST, TIMES = "TEST_THAT_RUNS", "TIMES_OF_TESTS"

_seconds: dict[str, float] = {}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    import coverage  # the extra `coverage`

    counter = coverage.Coverage.current()
    assert counter is not None, "coverage.py counts nothing: COVERAGE_PROCESS_START names no settings"
    os.environ[TEST] = item.nodeid
    counter.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        counter.switch_context("")
        del os.environ[TEST]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        _seconds[report.nodeid] = float("inf")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        Path(os.environ[TIMES]).write_text(json.dumps(_seconds), encoding="utf-8")
