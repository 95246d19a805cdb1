"""Captured steps: N of them equal N eager ones, bit for bit, in everything that an eager step changes."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises

import tlrt
from tests import unchanged_memory
from tests.runtime.acted_graphs import act_graphs
from tlrt import AnyBuffer, Session, checkpoint, errors, kernels, nn, optim
from tlrt.errors import ReleasedError

Step = Callable[..., Any]
STEPS = 6


@pytest.fixture
def twins(dev: tlrt.Device) -> Iterator[Callable[..., list["Twin"]]]:
    """Makes two sessions with equal programs; they are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda build: [stack.enter_context(contextlib.closing(Twin(dev, build))) for _ in range(2)]


class Twin:
    """One of two sessions with equal programs: one runs its step eagerly, the other captures it."""

    def __init__(self, device: tlrt.Device, build: Callable[[Session], tuple[Any, Step]], **options: Any) -> None:
        self.session = Session(device, seed=5, **options)
        self.optimizer, self.step = build(self.session)
        self.captured: Any = None

    def eager(self, *arguments: Any) -> list[np.ndarray[Any, Any]]:
        self.session.reset()
        found = [v.numpy() for v in flat(self.step(*arguments))]
        self.session.reset()
        return found

    def replay(self, *arguments: Any) -> list[np.ndarray[Any, Any]]:
        if self.captured is None:
            self.captured = self.session.capture(self.step, *arguments)
            return [v.numpy() for v in flat(self.captured.outputs)]
        return [v.numpy() for v in flat(self.captured(*arguments))]

    def close(self) -> None:
        if self.optimizer is not None:
            self.optimizer.close()
        self.session.close()


def flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [w for v in value for w in flat(v)]
    if isinstance(value, dict):
        return [w for v in value.values() for w in flat(v)]
    return [] if value is None else [value]


def same(a: Any, b: Any) -> bool:
    """Whether the bits are the same."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def require_equal(eager: Twin, captured: Twin, folder: Path) -> None:
    """Parameters, their versions' freshness, optimiser, generator and the bytes of a checkpoint."""
    for name, p in eager.session.parameters.items():
        q = captured.session.parameters[name]
        assert p.host_is_stale is q.host_is_stale, name
        assert same(p.numpy(), q.numpy()), name
    assert eager.session.counter == captured.session.counter
    if eager.optimizer is not None:
        (left, first), (right, second) = eager.optimizer.state(), captured.optimizer.state()
        assert left == right and all(same(first[k], second[k]) for k in first)
    paths = [folder / "eager.safetensors", folder / "captured.safetensors"]
    for twin, path in zip((eager, captured), paths, strict=True):
        checkpoint.save(path, twin.session, () if twin.optimizer is None else twin.optimizer)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def mlp(s: Session) -> tuple[Any, Step]:
    layers = [nn.Linear(s, 7, 11, name="a"), nn.Linear(s, 11, 3, name="b")]
    optimizer = optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.05)

    def step(x: Any, y: Any) -> Any:
        loss = s.mse_loss(layers[1](s.tanh(layers[0](s.const(x)))), s.const(y))
        s.backward(loss)
        optimizer.step()
        return loss

    return optimizer, step


def convnet(s: Session) -> tuple[Any, Step]:
    model = nn.Sequential(
        nn.Conv(s, 1, 3, 3, padding=1, bias=False, name="c1"), nn.BatchNorm(s, 3, name="n1"), s.relu,
        nn.MaxPool(2), nn.Conv(s, 3, 5, 3, padding=1, name="c2"), nn.BatchNorm(s, 5, name="n2"), s.relu,
        lambda h: h.reshape((-1, 5 * 16)), nn.Linear(s, 5 * 16, 4, name="out"),
    )  # fmt: skip
    optimizer = optim.Adam(model.parameters(), lr=1e-2)

    def step(x: Any, labels: Any) -> Any:
        loss = s.cross_entropy(model(s.const(x), training=True), labels)
        s.backward(loss)
        optimizer.step()
        return {"loss": loss, "first": loss.value}

    return optimizer, step


def gpt(s: Session) -> tuple[Any, Step]:
    width, context, words = 12, 5, 9
    tokens = nn.Embedding(s, words, width, name="tokens")
    positions = s.param(nn.init.normal(s, (context, width)), "positions")
    block = nn.TransformerBlock(s, width, 2, name="block", causal=True, dropout=0.2)
    head = nn.Linear(s, width, words, name="head", bias=False)
    optimizer = optim.AdamW(s.parameters.values(), lr=1e-2, weight_decay=0.1)

    def step(x: Any, y: Any) -> Any:
        h = s.dropout(s.add(tokens(x), s.slice_range0(s.use(positions), 0, np.shape(x)[1])), 0.1)
        loss = s.cross_entropy(head(block(h, training=True)), y)
        s.backward(loss)
        norm = s.clip_grad_norm(0.5)
        optimizer.step()
        return [loss, (norm,)]

    return optimizer, step


def unlike(s: Session) -> tuple[Any, Step]:
    """Own arithmetic: momentum, a parameter that the loss does not reach and clipping in place on its zeros, constants made
    within, buffers filled, written in place and kept, uploads written over, numbers as arguments, gathers and scatters."""
    w = s.param(np.linspace(-1, 1, 12).reshape(4, 3), "w")
    idle = s.param(np.ones(4), "idle")
    average = s.param(np.zeros((4, 3)), "average", requires_grad=False)
    optimizer = optim.SGD([w, idle], lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    count = s.device.buffer([0.0])
    one = s.device.buffer([1.0])

    def step(rows: Any, i: Any, scale: Any, flag: bool) -> Any:
        assert flag is True
        noise = s.rand_normal((4, 3)) * 0.1 + s.rand_uniform((4, 3)) * s.full((4, 3), 0.5)
        y = s.mul(s.add(s.use(w), noise), s.const(scale))
        picked = s.gather_rows_nat(y, rows) + s.gather_rows_nat(y, [3, 1, 3])
        more = s.gather_scalar_nat(y.flatten(), i)
        loss = (
            s.reduce_sum(s.square(picked))
            + s.exp(more)
            + s.reduce_mean(s.scatter_add(s.flatten(y), s.ones_like(rows), rows))
        )
        s.backward(loss)
        norm = s.clip_grad_norm(1.0)
        optimizer.step()
        scratch = s.device.zeros(12)
        kernels.axpy(scratch, w.mirror, 1.0, out=scratch)
        kernels.add(average.mirror, scratch, out=average.mirror)
        average.updated()
        scratch.fill(3.0)
        start, places = s.device.buffer(np.arange(12)), s.device.indices([3, 1, 2])
        read = kernels.gather_rows(start, places, 4, 3)
        kernels.add(start, w.mirror, out=start)
        kernels.argmax(start, 1, 4, 3, out=places)
        kernels.add(count, one, out=count)
        return loss, norm, *(AnyBuffer((b.length,), b) for b in (scratch, count, start, read))

    s.ones_like = lambda rows: s.full((len(rows),), 0.25)  # type: ignore[attr-defined]
    optimizer._keep = (count, one)  # type: ignore[attr-defined]
    return optimizer, step


#: programs, and what their steps take
PROGRAMS: dict[str, tuple[Any, Callable[[np.random.Generator], tuple[Any, ...]]]] = {
    "mlp": (mlp, lambda draw: (draw.standard_normal((6, 7)).astype(np.float32), draw.standard_normal((6, 3)))),
    "convnet": (convnet, lambda draw: (draw.standard_normal((3, 1, 8, 8)).astype(np.float32), draw.integers(0, 4, 3))),
    "gpt": (gpt, lambda draw: (draw.integers(0, 9, (4, 5)), draw.integers(0, 9, (4, 5)).astype(np.uint32))),
    "unlike": (unlike, lambda draw: (
        draw.integers(0, 4, 3), int(draw.integers(0, 12)), float(draw.standard_normal()), True)),
}  # fmt: skip


@pytest.fixture(params=[False, True], ids=["", "acted graphs"])
def acted(request: pytest.FixtureRequest, dev: tlrt.Device, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the device acts as if it made graphs."""
    if request.param:
        act_graphs(dev, monkeypatch)
    return bool(request.param)


@pytest.mark.parametrize("name", PROGRAMS)
def test_captured_steps_equal_eager_ones(twins: Any, dev: tlrt.Device, name: str, acted: bool, tmp_path: Path) -> None:
    program, arrays = PROGRAMS[name]
    (eager, captured), draw = twins(program), np.random.default_rng(3)
    for k in range(STEPS):
        given = arrays(draw)
        for twin in (eager, captured):
            twin.optimizer.lr = nn.schedules.cosine(k, peak=0.05, total=STEPS, warmup=2)
        expected, got = eager.eager(*given), captured.replay(*given)
        assert len(expected) == len(got) > 0
        assert all(same(a, b) for a, b in zip(expected, got, strict=True)), (name, k)
    require_equal(eager, captured, tmp_path)
    assert (captured.captured.graphs > 0) is dev.is_cuda


@pytest.mark.parametrize("name", PROGRAMS)
def test_eager_steps_between_replays(twins: Any, name: str, tmp_path: Path) -> None:
    """Eager steps, values set and checkpoints loaded between replays are what the next replay starts from."""
    program, arrays = PROGRAMS[name]
    (eager, captured), draw = twins(program), np.random.default_rng(4)
    order = [captured.replay, captured.eager, captured.replay, captured.replay, captured.eager, captured.replay]
    for k, step in enumerate(order):
        given = arrays(draw)
        expected, got = eager.eager(*given), step(*given)
        assert all(same(a, b) for a, b in zip(expected, got, strict=True)), (name, k)
        if k == 2:
            for twin in (eager, captured):
                p = next(iter(twin.session.parameters.values()))
                p.set(p.numpy() * 1.5)
        if k == 3:
            for twin in (eager, captured):
                path = tmp_path / f"{id(twin)}.safetensors"
                checkpoint.save(path, twin.session, twin.optimizer)
                checkpoint.load(path, twin.session, twin.optimizer)
    require_equal(eager, captured, tmp_path)


def test_memory_is_flat(dev: tlrt.Device) -> None:
    twin = Twin(dev, gpt)
    given = PROGRAMS["gpt"][1](np.random.default_rng(6))
    for _ in range(3):
        twin.replay(*given)
    before = dev.memory()
    with unchanged_memory(dev):
        for _ in range(1000):
            twin.captured(*given)
    after = dev.memory()
    assert (after.cached_bytes, after.driver_allocations) == (before.cached_bytes, before.driver_allocations)
    twin.close()


def test_storage_is_shared_by_what_does_not_overlap(dev: tlrt.Device) -> None:
    """A chain of operations needs two buffers, not one per operation."""
    with Session(dev) as s, s.no_grad():

        def chain(x: Any) -> Any:
            h = s.const(x)
            for _ in range(50):
                h = s.tanh(h)
            return h

        before = dev.memory().live_bytes
        with s.capture(chain, np.ones(1024, np.float32)):
            # the tape keeps every value alive until the step's end, but nothing reads one again
            assert dev.memory().live_bytes - before <= 6 * 4096


def test_results_outlive_reset_and_take_part(dev: tlrt.Device) -> None:
    with Session(dev) as s:
        w = s.param([1.0, 2.0], "w")
        step = s.capture(lambda x: s.mul(s.use(w), s.const(x)), [3.0, 4.0])
        y = step.outputs
        assert y.shape == (2,) and y.numpy().tolist() == [3.0, 8.0]
        s.reset()
        assert s.get_value(y).tolist() == [3.0, 8.0]
        kept = s.add(y, 1.0)
        assert kept.numpy().tolist() == [4.0, 9.0] and not kept.requires_grad
        assert step([1.0, 1.0]) is y and y.numpy().tolist() == [1.0, 2.0]
        assert kept.numpy().tolist() == [4.0, 9.0]  # the tape is left alone
        assert s.relu(y).numpy().tolist() == [1.0, 2.0] and y.reduce_sum().item() == 3.0
        nested = s.capture(lambda: (s.zeros(1), [s.zeros(2), None], {"w": w})).outputs
        assert type(nested) is tuple and type(nested[1]) is list and nested[1][1] is None and nested[2] == {"w": w}


def test_arrays_of_the_function_are_read_at_the_capture(dev: tlrt.Device, acted: bool) -> None:
    """Who writes over them later changes no replay, which uploads what the step writes over and nothing else."""
    start, places = np.arange(6, dtype=np.float32), np.array([2, 0], np.uint32)
    with Session(dev) as s:

        def step() -> Any:
            x, i, still, zeros = dev.buffer(start), dev.indices(places), dev.indices(places), dev.zeros(4)
            read = kernels.add(kernels.gather_rows(x, i, 3, 2), zeros)
            again = kernels.gather_rows(x, places, 3, 2)
            kernels.argmax(kernels.gather_rows(x, still, 3, 2), 2, 2, 1, out=i)
            fresh = dev.buffer(start)
            return [AnyBuffer((len(b),), b) for b in (read, again, kernels.scale(fresh, 2.0, out=fresh))]

        captured = s.capture(step)
        start[:], places[:] = 9, 1
        for _ in range(3):
            assert [y.numpy().tolist() for y in captured()] == [[4, 5, 0, 1], [4, 5, 0, 1], [0, 2, 4, 6, 8, 10]]
        assert (captured.calls, captured.graphs) == ((4, 1) if dev.is_cuda else (8, 0))


def test_an_update_is_in_the_graph_while_its_settings_stay(dev: tlrt.Device, acted: bool) -> None:
    """One launch is the step, argument and update within; another rate takes the update out, and both count steps alike."""
    with Session(dev) as s:
        w = s.param([2.0, 4.0], "w")
        optimizer = optim.SGD([w], lr=0.5)

        def step(x: Any) -> Any:
            s.backward(s.reduce_sum(s.mul(w, s.const(x))))
            optimizer.step()

        captured = s.capture(step, np.ones(2, np.float32))
        assert (captured.calls, captured.graphs) == ((1, 1) if dev.is_cuda else (captured.calls, 0))
        expected, before = np.array(w.value), optimizer.steps
        for k, rate in enumerate((0.5, 0.5, 0.25, 0.25)):
            optimizer.lr, x = rate, np.array([k, 1.0], np.float32)
            captured(x)
            expected = expected - rate * x
            assert w.value.tolist() == expected.tolist() and optimizer.steps == before + k + 1
        if dev.is_cuda:
            assert (captured.calls, captured.graphs) == (2, 1)
        optimizer.close()
        assert_raises(ReleasedError, captured, x)
        assert w.value.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", [np.float16, np.longdouble])
def test_arguments_of_other_floats(dev: tlrt.Device, kind: Any) -> None:
    first, later = (np.array([1.5, -2.25, v], kind) for v in (0.1, 0.3))
    with Session(dev) as s:
        step = s.capture(lambda x: s.scale(s.const(x), 2.0), first)
        for array in (first, later, later.astype(np.float32)):
            assert np.array_equal(step(array).numpy(), 2 * array.astype(np.float32))
        w = s.param(first, "w")
        w.set(later)
        assert w.value.dtype == np.float32 and np.array_equal(w.numpy(), later.astype(np.float32))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_an_argument_may_be_one_array_that_is_filled_again(dev: tlrt.Device, kind: Any) -> None:
    batch = np.zeros((3, 2), kind)
    with Session(dev) as s:
        step = s.capture(lambda x: s.scale(s.input(x), 2.0), batch)
        for number in (5.0, 7.0, 7.0, -1.0):
            batch[:] = number
            assert (step(batch).numpy() == 2 * number).all()


def test_arguments_that_lie_in_any_way(dev: tlrt.Device) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with tlrt.Session(dev) as s:
        step = s.capture(lambda given: s.const(given) * 1.0, x)
        for laid in (np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2], x[::-1, ::-1], np.broadcast_to(x[:1], (2, 3))):
            assert np.array_equal(step(laid).numpy(), laid)


def test_closing(dev: tlrt.Device) -> None:
    s = Session(dev)
    w = s.param(np.ones(1000), "w")
    first = s.capture(lambda x: s.mul(s.use(w), s.const(x)), np.ones(1000))
    second = s.capture(lambda x: s.add(s.use(w), s.const(x)), np.ones(1000))
    before = dev.memory().live_bytes
    first.close()
    first.close()
    assert first.closed and dev.memory().live_bytes < before
    assert_raises(errors.ReleasedError, first, np.ones(1000))
    assert_raises(errors.ReleasedError, first.outputs.numpy)
    assert_raises(errors.ReleasedError, s.add, first.outputs, 1.0)
    assert second(np.ones(1000)).numpy()[0] == 2.0
    s.close()
    assert second.closed
    assert_raises(errors.ReleasedError, second, np.ones(1000))


def test_a_dropped_step_gives_its_memory_back(dev: tlrt.Device) -> None:
    with Session(dev) as s:
        w = s.param(np.ones(1000), "w")
        _ = w.mirror
        before = dev.memory().live_bytes
        with unchanged_memory(dev):
            step = s.capture(lambda x: s.mul(s.use(w), s.const(x)), np.ones(1000))
            assert dev.memory().live_bytes > before
            del step
            gc.collect()


def test_a_result_is_a_constant_on_the_tape(dev: tlrt.Device) -> None:
    """Two batches through a captured teacher before one backward pass: each product keeps the value it was made with."""
    with Session(dev) as s:
        w = s.param([1.0, 2.0], "w")
        teacher = s.capture(lambda x: s.scale(s.const(x), 2.0), [0.0, 0.0])
        first = s.mul(w, teacher([1.0, 2.0]))
        leaf = s.detach(teacher.outputs)
        second = s.mul(w, teacher([10.0, 20.0]))
        assert leaf.numpy().tolist() == [2.0, 4.0]
        s.backward(s.reduce_sum(s.add(first, second)))
        assert w.grad is not None and w.grad.numpy().tolist() == [22.0, 44.0]
