"""What all tests share: the operations under test (``OPS=name,family,pattern*`` in the environment picks some), the devices,
and the hypothesis profiles (``--hypothesis-profile=ci``, or ``HYPOTHESIS_PROFILE=ci`` in the environment, draws more)."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

import tlrt
from tlrt.verify.run import Runtime
from tlrt.verify.verifier import directions
from tlspec import registry
from tlspec.registry import Op

ROWS = registry.ops(os.environ.get("OPS") or None)
ENTRIES = [(row, which) for row in ROWS for which in directions(row)]

_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "database": None}
settings.register_profile("dev", max_examples=5, derandomize=True, **_common)
settings.register_profile("ci", max_examples=200, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_report_header() -> str:
    chosen = os.environ.get("OPS")
    return f"operations: {len(ROWS)}" + (f" (OPS={chosen})" if chosen else "")


def entry_id(entry: tuple[Op, str]) -> str:
    return f"{entry[0].name}-{entry[1]}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only(where): the rows, or (row, which) entries, a parametrised test is about")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`row` is each operation; `entry` each operation's forward, and its VJP where it has one: (row, which). The mark
    ``only`` leaves out what a test has nothing to say about."""
    predicates = [mark.kwargs["where"] for mark in metafunc.definition.iter_markers("only")]
    if "row" in metafunc.fixturenames:
        rows = [r for r in ROWS if all(p(r) for p in predicates)]
        metafunc.parametrize("row", rows, ids=lambda r: r.name, scope="session")
    if "entry" in metafunc.fixturenames:
        entries = [e for e in ENTRIES if all(p(*e) for p in predicates)]
        metafunc.parametrize("entry", entries, ids=entry_id, scope="session")


@pytest.fixture(scope="session")
def thorough() -> bool:
    """Whether the profile in force, however it was chosen, is the one that draws more."""
    return settings.default is not None and settings.default.max_examples >= settings.get_profile("ci").max_examples


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Each device; a device that is absent is a skip that the summary counts."""
    if request.param == "cuda" and len(tlrt.devices()) == 1:
        pytest.skip("no CUDA device on this machine")
    return Runtime(request.param)
