"""What all tests share: the operations under test, the devices, and the hypothesis profiles.

``OPS=name,family,pattern*`` in the environment chooses operations. Then only those tests run that concern a chosen operation: by
a parameter (a row, an entry, or the name of one), by the mark ``operations(name, ...)``, or, as they concern every choice, by the
mark ``every_choice``.

``--hypothesis-profile=ci`` (or ``HYPOTHESIS_PROFILE=ci`` in the environment) draws more examples, and ``thorough`` draws
many, other ones at every run.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import tlrt
from tests import DEVICES, ROOT, has_cuda, python_path
from tlrt._binding import handles
from tlrt.spec import SpecDevice
from tlrt.verify.run import Runtime
from tlrt.verify.verifier import directions
from tlspec import registry
from tlspec.entries import Entry, all_entries
from tlspec.registry import Op

ROWS = registry.ops(os.environ.get("OPS") or None)
#: the name of an entry point, or of a method of tapes and sessions that is a form of an operation -> the operation's
OPERATION_OF = {e.name: e.op.name for e in all_entries()} | {r.name: r.name for r in registry.ops()}
ENTRIES = [(row, which) for row in ROWS for which in directions(row)]

_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "database": None}
settings.register_profile("dev", max_examples=5, derandomize=True, **_common)
settings.register_profile("ci", max_examples=20, derandomize=True, **_common)  # a change is judged, not a draw
settings.register_profile("thorough", max_examples=200, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_report_header() -> list[str]:
    chosen = os.environ.get("OPS")
    if not chosen:
        return [f"operations: {len(ROWS)}"]
    return [
        f"operations: {len(ROWS)} (OPS={chosen})",
        "left out: tests that concern none of these operations (training, processes, campaigns, examples, documents, ...)",
    ]


def entry_id(entry: tuple[Op, str]) -> str:
    return f"{entry[0].name}-{entry[1]}"


def pytest_configure(config: pytest.Config) -> None:
    for mark in (
        "only(where): the rows, or (row, which) entries, a parametrised test is about",
        "operations(name, ...): the operations that a test is about; runs if OPS chooses one of them",
        "every_choice: runs whatever operations OPS chooses",
    ):
        config.addinivalue_line("markers", mark)


def names_of(value: object) -> set[str]:
    """The operations that a test's parameter names."""
    if isinstance(value, Op):
        return {value.name}
    if isinstance(value, Entry):
        return {value.op.name}
    if isinstance(value, tuple):
        return {name for part in value for name in names_of(part)}
    return {OPERATION_OF[value]} if isinstance(value, str) and value in OPERATION_OF else set()


def concerns(item: pytest.Item, chosen: set[str]) -> bool:
    """Whether a test is about one of the chosen operations."""
    if item.get_closest_marker("every_choice"):
        return True
    named = {name for mark in item.iter_markers("operations") for name in mark.args}
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        named |= {name for value in item.callspec.params.values() for name in names_of(value)}
    return bool(named & chosen)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what OPS does not name, and tests of CUDA where there is none: skips would take time and say no more."""
    chosen = {row.name for row in ROWS}
    left = {
        item
        for item in items
        if (os.environ.get("OPS") and not concerns(item, chosen))
        or (item.get_closest_marker("cuda") and not has_cuda())
    }
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says which device is missing from tests and their parameters."""
    if not has_cuda():
        terminalreporter.write_line("no CUDA device on this machine: tests of every device ran on the CPU alone")


@pytest.fixture(scope="module", autouse=True)
def _older() -> None:
    """What was made before a file's tests (thousands of tests, modules) lives on: the collections they ask for pass it over."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def closed_devices() -> Iterator[None]:
    """Closes the devices that the tests of a file leave open, as ranks in threads do: every capture attaches to all of them."""
    before = {tlrt.device("cpu"), *handles._open_devices}
    yield
    for device in {*handles._open_devices} - before:
        device.close()


@pytest.fixture(scope="session")
def thorough() -> bool:
    """Whether the profile in force, however it was chosen, is the one that draws more."""
    return settings.default is not None and settings.default.max_examples >= settings.get_profile("ci").max_examples


@pytest.fixture(scope="session", params=DEVICES)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return Runtime(request.param)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(params=DEVICES)
def dev(request: pytest.FixtureRequest) -> Iterator[tlrt.Device]:
    """A device of the test's own; at the end no buffer may be live."""
    with tlrt.Device.new(request.param) as device:
        yield device
        gc.collect()
        if not device.closed and not request.node.stash.get(FAILED, False):  # a traceback keeps its buffers
            assert device.memory().live_buffers == 0, "buffers leaked"


@pytest.fixture(params=["spec", *DEVICES])
def s(request: pytest.FixtureRequest) -> Iterator[tlrt.Session]:
    """A session on each device; nothing may be live on its device afterwards."""
    device = SpecDevice() if request.param == "spec" else tlrt.device(request.param, new=True)
    session = tlrt.Session(device, seed=5)
    yield session
    session.close()
    assert device.memory().live_buffers == 0, "buffers leaked"
    device.close()


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python code in a process of its own, outside the source tree."""

    def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        whole = {**os.environ, **environment}
        whole["PYTHONPATH"] = python_path(environment.get("PYTHONPATH", ROOT))
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=whole, cwd=tmp_path, timeout=120,
            check=False,
        )  # fmt: skip

    return run
