"""Pairs of features in drawn orders: a captured step, optimisers of the library and of one's own, modes, threads, checkpoints,
JAX and PyTorch in between, beside the same training in plain NumPy.

All numbers are multiples of a power of two, and few enough that float32 holds every result, so each mode, device and number of
threads has to give the bits of NumPy's float64. Where a step would need more bits, training begins anew.
"""

import copy
import importlib.util
import itertools
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

import tlrt
from tests.runtime.steps import Halving
from tlrt import _foreign, checkpoint, errors, optim
from tlrt.spec import SpecDevice

ROWS, WIDTHS = 5, (3, 4, 2)
#: in place of the first weights, where the loss does not reach them
FIXED = np.eye(*WIDTHS[:2], dtype=np.float32)
BATCHES = st.integers(0, 2**16)
PHASES = (Phase.generate, Phase.shrink)
#: whether the loss reaches the last weights alone, and whether gradients are added to those before
HOW = st.tuples(st.booleans(), st.booleans())
MATH = st.sampled_from(["fast", "reproducible"])


def has(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


OPTIMISERS: dict[str, Callable[[Any, float], optim.Optimizer]] = {
    "SGD": lambda parameters, lr: optim.SGD(parameters, lr=lr),
    "momentum": lambda parameters, lr: optim.SGD(parameters, lr=lr, momentum=0.5),
    "Lion": lambda parameters, lr: optim.Lion(parameters, lr=lr, beta1=0.5, beta2=0.5),
    "one's own": Halving,
}


class Inexact(Exception):
    """A result that float32 does not hold."""


def exact(x: Any) -> Any:
    if not np.array_equal(np.asarray(x, np.float32), x):
        raise Inexact
    return x


def unit(x: Any) -> float:
    """The largest power of two of which all numbers of an array are multiples; 1 where all are 0."""
    fractions, exponents = np.frexp(np.asarray(x, np.float64))
    whole = (fractions * 2.0**53).astype(np.int64)
    return float(np.min((whole & -whole) * 2.0 ** (exponents - 53), where=whole != 0, initial=1.0))


def product(a: Any, b: Any) -> Any:
    """A product of matrices of which float32 holds the partial sums in any order."""
    if np.any(np.abs(a) @ np.abs(b) > 2.0**24 * unit(a) * unit(b)):
        raise Inexact
    return exact(a.astype(np.float64) @ b)


def weights(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-2, 3, shape).astype(np.float64) for shape in itertools.pairwise(WIDTHS)]


def batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, t = (rng.integers(-2, 3, (ROWS, n)).astype(np.float32) for n in (WIDTHS[0], WIDTHS[-1]))
    return x, t


class Plain:
    """The training in NumPy."""

    def __init__(self, kind: str, seed: int):
        self.kind, self.lr, self.steps = kind, 0.25, 0
        self.weights = weights(seed)
        self.moments = [np.zeros_like(w) for w in self.weights]

    def copy(self) -> "Plain":
        made = copy.copy(self)
        made.weights, made.moments = list(self.weights), list(self.moments)
        return made

    def stepped(self, x: np.ndarray, t: np.ndarray, partly: bool) -> tuple["Plain", float]:
        """What follows from a step, and its loss, which `partly` reaches the last weights alone. Raises Inexact."""
        new, (first, second) = self.copy(), self.weights
        hidden = x @ FIXED if partly else np.maximum(product(x, first), 0)
        terms = exact(product(hidden, second) * t)
        loss = product(terms.reshape(1, -1), np.ones(terms.size))
        gradients = [None if partly else product(x.T, product(t, second.T) * (hidden > 0)), product(hidden.T, t)]
        for i, (w, g, m) in enumerate(zip(self.weights, gradients, self.moments, strict=True)):
            if g is None:
                continue
            moved = g
            if self.kind == "momentum":
                new.moments[i] = moved = exact(exact(m / 2) + g)
            elif self.kind == "Lion":
                moved, new.moments[i] = np.sign(exact(m / 2 + g / 2)), exact(m / 2 + g / 2)
            elif self.kind == "one's own":
                moved = g / 2 ** (self.steps % 2)
            new.weights[i] = exact(w - exact(self.lr * moved))
        new.steps += 1
        return new, float(loss[0])


class Features(RuleBasedStateMachine):
    """One model on one device."""

    device_name = "cpu"
    session: Any = None
    how = False, False

    @initialize(kind=st.sampled_from(list(OPTIMISERS)), seed=BATCHES)
    def begin(self, kind: str, seed: int) -> None:
        self.device: Any = SpecDevice() if self.device_name == "spec" else tlrt.device(self.device_name, new=True)
        self.folder = tempfile.TemporaryDirectory()
        self.threads, self.foreign = tlrt.threads(), _foreign.math()
        self.open(kind, seed)

    def open(self, kind: str, seed: int) -> None:
        """Training from its start, in a new session."""
        if self.session is not None:
            self.session.close()
        self.plain, self.captured, self.saved = Plain(kind, seed), None, list[Plain]()
        self.session = tlrt.Session(self.device)
        self.parameters = [self.session.param(w, f"w{i}") for i, w in enumerate(self.plain.weights)]
        self.optimizer: Any = OPTIMISERS[kind](self.parameters, self.plain.lr)

    def step(self, x: Any, t: Any) -> Any:
        s, (first, second), (partly, accumulate) = self.session, self.parameters, self.how
        hidden = s.matmul(s.const(x), s.const(FIXED)) if partly else s.relu(s.matmul(s.const(x), first))
        loss = s.reduce_sum(s.mul(s.matmul(hidden, second), s.const(t)))
        s.backward(loss, accumulate=accumulate)
        self.optimizer.step()
        return loss

    def advance(self, seed: int) -> tuple[tuple[np.ndarray, np.ndarray], float]:
        """The plain model's step, from the start again where this one needs more bits."""
        given = batch(seed)
        try:
            self.plain, loss = self.plain.stepped(*given, self.how[0])
        except Inexact:
            self.open(self.plain.kind, seed)
            self.plain, loss = self.plain.stepped(*given, self.how[0])
        return given, loss

    @rule(seed=BATCHES, how=HOW)
    def train(self, seed: int, how: tuple[bool, bool]) -> None:
        """A step, replayed where one is captured; a mode that has changed since is refused, and the step made again."""
        if self.captured is None:
            self.how = how
        given, loss = self.advance(seed)
        if self.captured is not None and self.math != getattr(self.device, "math", ""):
            with pytest.raises(errors.CaptureError):
                self.captured(*given)
            self.captured.close()
            self.captured = None
        made = self.step(*given) if self.captured is None else self.captured(*given)
        assert made.item() == loss, self.plain.kind
        if self.captured is None:
            self.session.reset()

    @rule(seed=BATCHES, how=HOW)
    def capture(self, seed: int, how: tuple[bool, bool]) -> None:
        if self.captured is not None:
            self.captured.close()
        self.how = how
        given, _ = self.advance(seed)  # which may begin anew
        self.captured, self.math = self.session.capture(self.step, *given), getattr(self.device, "math", "")

    @rule(seed=BATCHES, how=HOW)
    def train_in_a_thread(self, seed: int, how: tuple[bool, bool]) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self.train, seed, how).result()

    @precondition(lambda self: self.device_name != "spec")
    @rule(math=MATH)
    def mode(self, math: str) -> None:
        self.device.set_math(math)
        assert self.device.math == math

    @rule(count=st.sampled_from([1, 2, 3]))
    def set_threads(self, count: int) -> None:
        tlrt.set_threads(count)

    @rule(lr=st.sampled_from([0.0, 0.125, 0.25, 0.5]))
    def rate(self, lr: float) -> None:
        self.optimizer.lr = self.plain.lr = lr

    @rule(seed=BATCHES)
    def assign(self, seed: int) -> None:
        self.plain.weights = weights(seed)
        for p, w in zip(self.parameters, self.plain.weights, strict=True):
            p.set(w)

    @rule()
    def save(self) -> None:
        checkpoint.save(Path(self.folder.name) / "c.safetensors", self.session, self.optimizer)
        self.saved = [self.plain.copy()]

    @precondition(lambda self: self.saved)
    @rule()
    def load(self) -> None:
        checkpoint.load(Path(self.folder.name) / "c.safetensors", self.session, self.optimizer)
        self.plain = self.saved[0].copy()

    @rule(seed=BATCHES)
    def another_session(self, seed: int) -> None:
        x, w = batch(seed)[0], self.plain.weights[0]
        with tlrt.Session(self.device) as s:
            assert np.array_equal(s.matmul(s.const(x), s.const(w)).numpy(), x @ w)

    @precondition(lambda self: has("jax"))
    @rule(seed=BATCHES, math=MATH, compiled=st.booleans())
    def in_jax(self, seed: int, math: str, compiled: bool) -> None:
        import jax

        import tlrt.jax as tl

        tl.set_math(math)
        x, w = batch(seed)[0], self.parameters[0].numpy()
        found = (jax.jit(tl.matmul) if compiled else tl.matmul)(jax.numpy.asarray(x), jax.numpy.asarray(w))
        assert np.array_equal(np.asarray(found), x @ self.plain.weights[0])

    @precondition(lambda self: has("torch"))
    @rule(seed=BATCHES)
    def a_tensor_of_torch(self, seed: int) -> None:
        import torch

        x, s = batch(seed)[0], self.session
        found = s.matmul(s.const(torch.from_numpy(x)), s.use(self.parameters[0]))
        assert np.array_equal(found.numpy(), x @ self.plain.weights[0])
        s.reset()

    @invariant()
    def weights_are_those_of_numpy(self) -> None:
        if self.session is not None:
            for p, w in zip(self.parameters, self.plain.weights, strict=True):
                assert np.array_equal(p.numpy(), w), self.plain.kind

    def teardown(self) -> None:
        if self.session is not None:
            self.session.close()
            self.folder.cleanup()
            tlrt.set_threads(self.threads)
            _foreign.set_math(self.foreign)


@pytest.mark.parametrize("device", ["cpu", "spec"])
def test_features(device: str) -> None:
    chosen = settings.default
    assert chosen is not None
    run_machine(
        type("Features", (Features,), {"device_name": device}),
        settings=settings(
            max_examples=chosen.max_examples, stateful_step_count=30, phases=PHASES, report_multiple_bugs=False
        ),
    )
