"""The campaigns of interrupts and contention at the size of a test run, and defects they must report."""

import os
import shutil

import pytest

from audit import contention, interrupts
from audit.injection import LibraryCalls
from tlrt import Session
from tlrt.tape import Tape

pytestmark = pytest.mark.skipif(
    "asan" in os.environ.get("TORCHLEAN_CUDA_LIBRARY", ""), reason="traced, and slow enough"
)


@pytest.mark.parametrize("kind", interrupts.KINDS)
def test_a_sample_of_every_kind(kind, monkeypatch):
    if kind == "allocation" and shutil.which("make") is None:
        pytest.skip("no make on this machine")
    every = 211 if kind == "interrupt" else 7
    programs = ("step adam", "checkpoint", "assignment", "end") if kind == "allocation" else tuple(interrupts.PROGRAMS)
    document = interrupts.campaign(every, [kind], programs, workers=1)
    assert document["failures"] == []
    assert document["points"] > (10 if kind == "allocation" else 60)


def failures(program: str, act: str, kind: str = "interrupt") -> list[str]:
    trials = interrupts._trials.__wrapped__(program)
    place = [a.name for a in trials.acts].index(act)
    found = []
    with interrupts.injector(kind) as inject:
        for point in range(10_000):
            where, wrong = trials.run(place, point, inject)
            if where is None:
                return found
            found += wrong
    return found


def test_a_value_set_in_two_acts_is_seen(monkeypatch):
    """The device gives the old value back one act after the host has the new one."""
    assert failures("assignment", "set") == []

    def one_by_one(changes, calls):
        for change in changes:
            setattr(*change)

    monkeypatch.setattr("tlrt.parameter.set_and_call", one_by_one)
    assert any("neither the state before" in text for text in failures("assignment", "set"))


def test_the_lists_of_calls_are_restored():
    with Session("cpu") as s:
        before = dict(s.device._library.lib.__dict__)
        with LibraryCalls().installed():
            assert s.device._library.lib.torchlean_cuda_buffer_share is not before.get("torchlean_cuda_buffer_share")
        assert s.device._library.lib.__dict__.keys() >= before.keys()
        assert s.relu(s.const([1.0])).numpy().tolist() == [1.0]


@pytest.mark.parametrize("subject", contention.SUBJECTS)
def test_eight_threads_at_one_object(subject):
    row = contention.use_at_once(subject, 2000)
    assert row["failures"] == [] and row["turns"] == 2000 and row["right"] > 0


def test_a_thread_that_gets_what_is_not_its_own_is_seen(monkeypatch):
    """A tape that hands ids out again after another thread's undoing."""
    monkeypatch.setattr(Tape, "value", lambda self, id: self.nodes[max(id - 4, 0)].value)
    assert any("is wrong" in text for text in contention.use_at_once("tape", 800)["failures"])


def test_forks_beside_threads():
    assert contention.fork_beside_threads(5)["failures"] == []
