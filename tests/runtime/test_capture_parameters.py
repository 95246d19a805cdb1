"""Where a captured step finds parameters: shared buffers are refused, values that lie in another's place are not lost."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from tests.runtime.tape_checks import Kept
from tlrt import AnyBuffer, Parameter, Session, checkpoint, optim
from tlrt._capture.aliases import alias_groups
from tlrt.errors import CaptureError, ReleasedError


class Run:
    """Three parameters, of which the step trains the first; it ends with `after`."""

    def __init__(
        self, device: tlrt.Device, after: Callable[["Run"], Any] = lambda run: None, kind: Any = optim.SGD
    ) -> None:
        self.session = s = Session(device)
        self.a, self.b, self.c = (
            s.param(np.arange(3.0) + 10 * i, n, requires_grad=i == 0) for i, n in enumerate("abc")
        )
        self.optimizer = kind([self.a], lr=0.1)
        self.after = after
        self.captured: Any = None

    def step(self, x: Any) -> Any:
        s = self.session
        loss = s.reduce_sum(s.square(s.mul(self.a, s.const(x))))
        s.backward(loss)
        self.optimizer.step()
        out = s.add(s.mul(self.b, s.const(x)), self.c)
        self.after(self)
        return out

    def eager(self, x: Any) -> list[float]:
        self.session.reset()
        found = self.step(x).numpy().tolist()
        self.session.reset()
        return found

    def replay(self, x: Any) -> list[float]:
        if self.captured is None:
            self.captured = self.session.capture(self.step, x)
            return self.captured.outputs.numpy().tolist()
        return self.captured(x).numpy().tolist()

    def values(self) -> list[list[float]]:
        return [p.mirror.numpy().tolist() for p in self.session.parameters.values()]

    def close(self) -> None:
        self.optimizer.close()
        self.session.close()


def tie(one: Parameter, other: Parameter) -> None:
    one.assign(AnyBuffer(one.shape, other.mirror.share()))


def swap(run: Run) -> None:
    first, second = (AnyBuffer((3,), p.mirror.share()) for p in (run.b, run.c))
    run.c.assign(first)
    run.b.assign(second)


@pytest.fixture
def make(dev: tlrt.Device) -> Any:
    made: list[Run] = []

    def build(after: Callable[[Run], Any] = lambda run: None, kind: Any = optim.SGD) -> Run:
        made.append(Run(dev, after, kind))
        return made[-1]

    yield build
    for run in made:
        run.close()


@pytest.mark.parametrize("n", [3, 0])
def test_which_handles_are_to_the_same_memory(dev: tlrt.Device, n: int) -> None:
    a, b, c, d = (dev.zeros(n) for _ in range(4))
    e, f, g = a.share(), c.share(), a.share()
    before = dev.memory()
    handles = [x._handle for x in (a, b, c, d, e, f, g)]
    assert alias_groups(dev, handles) == [[0, 4, 6], [2, 5]]
    assert alias_groups(dev, [b._handle, d._handle, b._handle]) == [[0, 2]]
    assert alias_groups(dev, [a._handle, b._handle, c._handle]) == [] == alias_groups(dev, [])
    assert dev.memory() == before
    d.release()
    assert_raises(ReleasedError, alias_groups, dev, [a._handle, d._handle, e._handle])
    assert dev.memory().live_buffers == before.live_buffers - 1


def test_parameters_made_to_share_before(make: Any) -> None:
    run = make()
    tie(run.b, run.a)
    said = r"^capture: b: got the buffer of a, expected one of its own \(assign a copy"
    assert_raises_regex(CaptureError, said, run.replay, np.ones(3))
    assert run.optimizer.steps == 0 and run.values()[0] == [0.0, 1.0, 2.0]
    run.b.assign(AnyBuffer((3,), run.a.mirror.copy()))
    run.replay(np.ones(3))
    assert run.values()[0] != run.values()[1]


def test_parameters_made_to_share_by_one_handle(make: Any) -> None:
    run = make()
    run.b.assign(AnyBuffer((3,), run.a.mirror))
    assert_raises_regex(CaptureError, r"^capture: b: got the buffer of a", run.replay, np.ones(3))


def test_parameters_made_to_share_within(make: Any) -> None:
    run = make(lambda run: tie(run.c, run.a))
    live = run.session.device.memory().live_buffers
    assert_raises_regex(CaptureError, r"^capture: c: got the buffer of a", run.replay, np.ones(3))
    assert run.optimizer.steps == 1  # it was a step, as one that raises is
    assert run.session.device.memory().live_buffers == live + 3  # the mirrors
    run.c.set(run.c.numpy())
    run.after = lambda run: run.c.assign(AnyBuffer((3,), run.a.mirror.copy()))
    plain = make(run.after)
    plain.a.set(run.a.numpy())
    plain.c.set(run.c.numpy())
    for k in range(4):
        assert plain.eager(np.full(3, k)) == run.replay(np.full(3, k))
    assert plain.values() == run.values()


@pytest.mark.parametrize("late", [False, True])
def test_parameters_made_to_share_between_replays(make: Any, late: bool) -> None:
    """Those made since the capture included."""
    run = make()
    run.replay(np.ones(3))
    other = run.session.param(np.zeros(3), "late") if late else run.b
    run.replay(np.ones(3))
    tie(other, run.a)
    before, counter = run.values(), run.session.counter
    for _ in range(2):
        with pytest.raises(CaptureError, match=rf"^replay: (a|{other.name}): got the buffer of (a|{other.name})"):
            run.replay(np.ones(3))
    assert run.values() == before and run.session.counter == counter and run.optimizer.steps == 2
    other.set(np.ones(3))
    run.replay(np.ones(3))
    assert other.numpy().tolist() == [1.0, 1.0, 1.0] and run.optimizer.steps == 3


def moved_on(run: Run) -> None:
    """The old value of one becomes that of another, where the next replay brings the new one."""
    old = AnyBuffer((3,), run.a.mirror.share())
    run.a.set(np.full(3, 0.5))
    run.b.assign(old)


def turned(run: Run) -> None:
    """Three go round."""
    first, second, third = (AnyBuffer((3,), p.mirror.share()) for p in (run.a, run.b, run.c))
    run.b.assign(first)
    run.c.assign(second)
    run.a.assign(third)


@pytest.mark.parametrize("between", [swap, moved_on, turned], ids=lambda f: f.__name__)
@pytest.mark.parametrize("within", [lambda run: None, swap], ids=["stay", "swap"])
def test_values_that_lie_in_places_of_others(make: Any, between: Any, within: Any) -> None:
    eager, captured = make(within), make(within)
    for k, step in enumerate([captured.replay, captured.eager, captured.replay, captured.replay, captured.eager] * 2):
        x = np.full(3, k * 0.25 + 0.5)
        assert eager.eager(x) == step(x), k
        if k != 3:
            between(eager)
            between(captured)
        assert eager.values() == captured.values(), k
    names = [[p.numpy().tolist() for p in run.session.parameters.values()] for run in (eager, captured)]
    assert names[0] == names[1]


def test_values_of_parameters_made_since(make: Any) -> None:
    """They may lie in a place of the step's, or in a result: neither a value brought back nor the calls change them."""
    run = make()
    run.replay(np.ones(3))
    first, second = run.session.param(np.zeros(3), "first"), run.session.param(np.zeros(3), "second")
    first.assign(AnyBuffer((3,), run.a.mirror.share()))
    run.a.set(np.full(3, 4.0))
    second.assign(run.captured.outputs.value.share())
    expected = [p.mirror.numpy().tolist() for p in (first, second)]
    first.requires_grad = False
    for k in range(3):
        run.replay(np.full(3, k + 2.0))
        assert [p.mirror.numpy().tolist() for p in (first, second)] == expected
    assert run.a.numpy().tolist() != [4.0] * 3


def test_a_tape_that_a_replay_writes_over(make: Any) -> None:
    """Frozen parameters lie on the tape as they are in memory, where a replay leaves their next values, or brings one that was
    set: a gradient by the new value would be wrong, so it is refused; on a tape that has the old one it is right."""

    def halve(run: Run) -> None:
        run.b.assign(AnyBuffer((3,), run.session.tape.kernels.scale(run.b.mirror, 0.5)))

    nothing, set_b = (lambda run: None), (lambda run: run.b.set(np.ones(3)))

    def keep(run: Run) -> None:
        run.b.assign(AnyBuffer((3,), run.b.mirror))

    for after, between, before in (
        (halve, nothing, nothing), (nothing, set_b, nothing), (halve, set_b, nothing), (nothing, set_b, keep)
    ):  # fmt: skip
        run = make(after)
        s, v = run.session, run.session.param(np.ones(3), "v")
        run.replay(np.ones(3))
        before(run)
        loss = s.reduce_sum(s.mul(v, run.b))
        between(run)
        later = s.reduce_sum(s.mul(v, run.b))
        run.replay(np.ones(3))
        said = "b: got a value changed since this tape recorded it"
        assert_raises_regex(ValueError, said, s.backward, loss)
        if after is not halve:
            s.backward(later)
            assert v.grad.numpy().tolist() == [1.0, 1.0, 1.0]
        now = run.b.numpy()
        s.backward(s.reduce_sum(s.mul(v, run.b)))
        assert v.grad.numpy().tolist() == now.tolist()


def test_a_state_loaded_between_two_captures(make: Any, tmp_path: Any) -> None:
    """Both have parameters and states in places of their own; eager steps between replays use those that are current."""
    eager, captured = runs = [make(kind=optim.Adam) for _ in range(2)]
    steps = []
    for _ in range(2):
        steps.append(captured.session.capture(captured.step, np.ones(3)))
        eager.eager(np.ones(3))
        for run in runs:
            run.optimizer.load_state(*run.optimizer.state())
    for k in range(9):
        x = np.full(3, k * 0.5)
        assert eager.eager(x) == (captured.eager(x) if k % 3 == 2 else steps[k % 2](x).numpy().tolist())
        for run in runs if k in (1, 2, 5) else ():
            path = tmp_path / "state.safetensors"
            checkpoint.save(path, run.session, run.optimizer)
            checkpoint.load(path, run.session, run.optimizer)
    assert eager.values() == captured.values()
    states = [[a.tolist() for a in run.optimizer.state()[1].values()] for run in runs]
    assert states[0] == states[1]


def test_steps_loads_and_new_values_in_every_order(make: Any) -> None:
    """Eager steps and replays mix, whatever moved the states and the parameters in between."""
    for order in itertools.product(("step", "replay", "load", "set"), repeat=4):
        eager, captured = runs = [make(kind=optim.Adam) for _ in range(2)]
        for k, what in enumerate((*order, "step")):
            x = np.full(3, k * 0.5 + 1)
            if what in ("step", "replay"):
                assert eager.eager(x) == (captured.eager(x) if what == "step" else captured.replay(x)), order
            for run in runs if what == "load" else ():
                run.optimizer.load_state(*run.optimizer.state())
            for run in runs if what == "set" else ():
                run.a.set(run.a.numpy() * 0.5)
        assert eager.values() == captured.values(), order
        states = [[a.tolist() for a in run.optimizer.state()[1].values()] for run in runs]
        assert states[0] == states[1], order


def test_values_in_their_places_are_left_alone(make: Any) -> None:
    """Only what was given another buffer is brought back, at the capture and at a replay."""
    run = make()
    before = [p.mirror for p in run.session.parameters.values()]
    run.replay(np.ones(3))
    assert [p.mirror is m for p, m in zip(run.session.parameters.values(), before, strict=True)] == [True] * 3
    run.b.set(run.b.numpy() + 1)
    moved = run.b.mirror
    run.replay(np.ones(3))
    assert run.b.mirror is not moved and (run.a.mirror, run.c.mirror) == (before[0], before[2])
    kept = run.session.square(run.c)  # reads a value that no replay writes over
    run.b.set(run.b.numpy() + 1)
    run.replay(np.ones(3))
    assert kept.numpy().tolist() == (run.c.numpy() ** 2).tolist() and run.captured._places[2].writes[0] == 0


def test_parameters_made_since_have_one_place_each(make: Any) -> None:
    run, plain = make(), make()
    s = run.session
    for i in range(6):
        if i in (2, 3):
            s.param([1.0], f"new {i}")
        assert run.replay(np.ones(3)) == plain.eager(np.ones(3))
        assert [place.parameter for place in run.captured._places][:3] == [run.a, run.b, run.c]
        assert i == 2 or {place.parameter for place in run.captured._places} == {*s.parameters.values()}
        assert len(run.captured._places) <= len(s.parameters)


@pytest.mark.parametrize(
    "after", [lambda run: None, swap, lambda run: run.b.assign(run.session.square(run.b).value.copy())]
)
def test_nothing_is_left_to_the_collector(after: Callable[[Run], Any]) -> None:
    """As many buffers are live where something refers to each that was ever made."""

    def live(keep: bool) -> list[int]:
        counts = []
        with tlrt.Device.new("cpu") as device:
            run = Run(device, after)
            kept = Kept(run.session.tape) if keep else None
            for _ in range(3):
                run.replay(np.ones(3))
                counts.append(device.memory().live_buffers)
            run.close()
            counts.append(device.memory().live_buffers)
            if kept is not None:
                device.ignore(kept)
        return counts

    assert live(True) == live(False)
