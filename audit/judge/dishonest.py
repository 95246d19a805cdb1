"""Kernels that deceive, or are careless in a way that looks like it: ``python -m audit.judge.dishonest`` writes the table of
docs/judge.md. Each is a harmless stand-in of a few lines. What it does is done to its own process alone."""

import functools
import gc
import itertools
import os
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from audit.markdown import table
from tlspec import registry
from tlspec.drawn import draw_case
from tlspec.judge import Report, altered, check
from tlspec.judge.choice import drawn_cases
from tlspec.judge.shrink import resized

BEGIN, END = "<!-- dishonest:begin -->", "<!-- dishonest:end -->"
PAGE = Path(__file__).resolve().parents[2] / "docs/judge.md"
HEAD = ("what the kernel does", "operation", "tlspec.check", "one assert_close")
#: the lengths of the one shape at which a test of one's own would compare
LENGTHS = {"rows": 64, "cols": 128, "m": 64, "n": 64, "p": 64}
#: the default cases without the large one, which takes most of the time
CASES = {"small": 24, "medium": 6, "edges": 8}
Made = Callable[..., Any]


@dataclass(frozen=True)
class Dishonest:
    """A kernel by what it does: `make` makes a fresh one."""

    does: str
    op: str
    make: Callable[[], Made]
    #: why the judge passes it; "" where it must not
    missed: str = ""
    #: whether one comparison passes it
    close: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def judged(self) -> Report:
        return check(self.make(), self.op, cases=CASES, sensitive=False, fail_fast=True, **self.options)

    def passes_one_comparison(self) -> bool:
        """Whether the first call at one shape satisfies torch.testing.assert_close, as a test of one's own would have it."""
        import torch

        known, wanted = example(self.op)
        made = self.make()
        names = made.__code__.co_varnames[: made.__code__.co_argcount]
        given = {n: np.array(known[n]) if isinstance(known[n], np.ndarray) else known[n] for n in names if n != "out"}
        out = np.zeros(wanted.shape, np.float32)
        try:
            returned = made(**given, **({"out": out} if "out" in names else {}))
            got = torch.from_numpy(np.array(out if returned is None else returned, np.float32))
            torch.testing.assert_close(got, torch.from_numpy(wanted))
        except BaseException:  # whatever a kernel raises
            return False
        return True


@functools.cache
def example(op: str) -> tuple[dict[str, Any], np.ndarray]:
    """The arguments of one call, and its result."""
    drawn = draw_case(op, 0, "normal", "small")
    case = resized(drawn, {**drawn.values, **{n: k for n, k in LENGTHS.items() if n in drawn.values}}) or drawn
    wanted = np.asarray(registry.get(op)(*case.inputs.values(), **case.params), np.float32)
    return {**case.inputs, **case.values}, wanted


def softmax(x: Any) -> Any:
    if not x.size:
        return np.array(x)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _kept(key: Callable[[Any], Any]) -> Callable[[], Made]:
    def make() -> Made:
        known: dict[Any, Any] = {}

        def kernel(x: Any) -> Any:
            return known.setdefault(key(x), softmax(x)).copy()

        return kernel

    return make


def _some(x: Any) -> Any:
    flat = x.ravel()
    return x.shape, flat[:4].tobytes(), flat[-4:].tobytes()


def _from_frames() -> Made:
    def kernel(x: Any) -> Any:
        frame: Any = sys._getframe(1)
        while frame is not None:
            for value in frame.f_locals.values():
                for found in getattr(value, "outputs", ()) if not isinstance(value, type) else ():
                    if getattr(found, "shape", None) == x.shape:
                        return np.asarray(found, np.float32)
            frame = frame.f_back
        return np.zeros(x.shape, np.float32)

    return kernel


def _from_objects() -> Made:
    def kernel(x: Any) -> Any:
        for value in gc.get_objects():
            if type(value).__name__ == "Expected" and value.outputs[0].shape == x.shape:
                return np.asarray(value.outputs[0], np.float32)
        return np.zeros(x.shape, np.float32)

    return kernel


def _by_specification() -> Made:
    def kernel(x: Any) -> Any:
        from tlspec.ops.softmax import softmax as meaning

        return np.asarray(meaning(np.asarray(x, np.float64)), np.float32)

    return kernel


def _by_its_file() -> Made:
    def kernel(x: Any) -> Any:
        found = [Path(p) / "tlspec/ops/softmax.py" for p in sys.path]
        text = next(p.read_text() for p in found if p.exists())
        return softmax(x) if "softmax" in text else np.zeros(x.shape, np.float32)

    return kernel


def _patches(module: str, name: str, value: Any) -> Callable[[], Made]:
    """Zeros, after a name of a module that the judge uses is replaced."""

    def make() -> Made:
        def kernel(x: Any) -> Any:
            import importlib

            setattr(importlib.import_module(module), name, value)
            return np.zeros(x.shape, np.float32)

        return kernel

    return make


def _later() -> Made:
    def kernel(x: Any) -> Any:
        out, copy = np.zeros(x.shape, np.float32), np.array(x)

        def work() -> None:
            time.sleep(1)
            out[...] = softmax(copy)

        threading.Thread(target=work, daemon=True).start()
        return out

    return kernel


def _right_for(calls: int) -> Callable[[], Made]:
    def make() -> Made:
        left = [calls]

        def kernel(x: Any) -> Any:
            left[0] -= 1
            return softmax(x) if left[0] >= 0 else np.zeros(x.shape, np.float32)

        return kernel

    return make


def _sometimes() -> Made:
    drawn = random.Random(7)

    def kernel(x: Any) -> Any:
        return softmax(x) * np.float32(1.5 if drawn.random() < 0.02 else 1)

    return kernel


def _ends(how: Callable[[], Any]) -> Callable[[], Made]:
    def make() -> Made:
        calls = itertools.count()

        def kernel(x: Any) -> Any:
            if next(calls) >= 5:
                how()
            return softmax(x) if next(calls) < 10 else np.zeros(x.shape, np.float32)

        return kernel

    return make


def _prints() -> Made:
    def kernel(x: Any) -> Any:
        raise ValueError("\n\npass: 44 cases in 0.3 s\n")

    return kernel


def _changes_its_input() -> Made:
    def kernel(x: Any) -> Any:
        if x.size:
            x -= x.max(axis=1, keepdims=True)
        return softmax(x)

    return kernel


def _returns_its_input() -> Made:
    def kernel(x: Any, lo: Any, hi: Any) -> Any:
        return x if ((x >= lo) & (x <= hi)).all() else np.clip(x, np.float32(lo), np.float32(hi))

    return kernel


def _adds() -> Made:
    def kernel(x: Any, out: Any) -> None:
        np.nan_to_num(out, copy=False)
        out += softmax(x)

    return kernel


def _leaves_some() -> Made:
    def kernel(x: Any, out: Any) -> None:
        made = softmax(x)
        np.copyto(out, made, where=~(made < 1e-30))

    return kernel


def _one_beyond() -> Made:
    def kernel(x: Any, out: Any) -> None:
        out[...] = softmax(x)
        np.lib.stride_tricks.as_strided(out, (out.size + 1,), (4,))[-1] = 0

    return kernel


def _one_buffer() -> Made:
    known: dict[Any, Any] = {}

    def kernel(x: Any) -> Any:
        out = known.setdefault(x.shape, np.empty(x.shape, np.float32))
        out[...] = softmax(x)
        return out

    return kernel


def _row_before() -> Made:
    def kernel(x: Any) -> Any:
        made = softmax(x)
        if min(x.shape) > 1:
            made = made * (1 + np.float32(2.0**-23) * np.sign(np.nan_to_num(np.roll(x, 1, 0)[:, :1])))
        return made

    return kernel


def _by_chance() -> Made:
    drawn = np.random.default_rng()  # in each process of its own

    def kernel(x: Any) -> Any:
        return softmax(x) * (1 + np.float32(2.0**-23) * drawn.integers(0, 2, x.shape).astype(np.float32))

    return kernel


def _nearest_slope() -> Made:
    seen: list[float] = []

    def kernel(x: Any, slope: float) -> Any:
        near = next((s for s in seen if abs(s - slope) <= abs(s) / 100), None)
        seen.extend([slope] if near is None else [])
        return np.where(x > 0, x, x * np.float32(slope if near is None else near))

    return kernel


def _common_scale(x: Any, gamma: Any, eps: float) -> Any:
    top = np.abs(x).max(initial=0)
    top = np.float32(2.0) ** np.floor(np.log2(top)) if 0 < top < np.inf else np.float32(1)
    y = x / top
    mean = np.mean(y * y, axis=1, keepdims=True, dtype=np.float64) if x.size else np.ones((len(x), 1))
    return np.asarray(y / np.sqrt(mean + float(np.float32(eps)) / float(top) ** 2) * gamma, np.float32)


def _first_epsilon() -> Made:
    """A program that is made for each shape, with the epsilon of the first call."""
    programs: dict[Any, Any] = {}

    def kernel(x: Any, gamma: Any, eps: Any) -> Any:
        eps, wide = programs.setdefault(x.shape, eps), np.asarray(x, np.float64)
        return np.asarray(wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + eps) * gamma, np.float32)

    return kernel


def _first_strides() -> Made:
    programs: dict[Any, Any] = {}

    def kernel(x: Any) -> Any:
        strides = programs.setdefault(x.shape, x.strides)
        known = tuple(min(a, b) for a, b in zip(strides, x.strides, strict=True))
        return softmax(np.lib.stride_tricks.as_strided(x, x.shape, known))

    return kernel


def _remembered_array() -> Made:
    known: dict[Any, Any] = {}

    def kernel(x: Any) -> Any:
        key = x.shape, np.ascontiguousarray(x).tobytes()
        if key not in known:
            known[key] = softmax(x)
        return known[key]

    return kernel


def _buffers_in_turn() -> Made:
    known: dict[Any, Any] = {}
    turns = itertools.count()

    def kernel(x: Any) -> Any:
        out = known.setdefault(x.shape, np.empty((8, *x.shape), np.float32))[next(turns) % 8]
        out[...] = softmax(x)
        return out

    return kernel


def _earlier_input() -> Made:
    before: list[Any] = []

    def kernel(x: Any) -> Any:
        for each in before:
            each[...] = 0
        before[:] = [x]
        return softmax(x)

    return kernel


def _known_cases() -> Made:
    """Right for the arrays of the default cases alone, as their seeds are known."""
    row, known = registry.get("softmax"), set()
    for case in drawn_cases(row, "forward", CASES, None, True, 0):
        for each in (case, altered.halved(case), altered.touched(case), altered.permuted(case)):
            x = np.asarray(each.inputs["x"])
            known.add((x.shape, x.tobytes()))

    def kernel(x: Any) -> Any:
        # small ones alone, so that what a check makes of the cases besides is right
        seen = x.size > 2**10 or min(x.shape) < 2 or (x.shape, np.ascontiguousarray(x).tobytes()) in known
        return softmax(x) if seen else np.zeros(x.shape, np.float32)

    return kernel


def _twice() -> Made:
    calls = itertools.count()

    def kernel(x: Any) -> Any:
        if next(calls) == 10:
            os.fork()
        return softmax(x)

    return kernel


def _by_object() -> Made:
    known: dict[int, Any] = {}

    def kernel(x: Any) -> Any:
        of, made = known.get(id(x), (None, None))
        if of is None or of() is not x:
            made = softmax(x)
            known[id(x)] = weakref.ref(x), made
        return made.copy()

    return kernel


class Later:
    """A result that is computed when somebody reads it."""

    def __init__(self, x: Any):
        self.x = x

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return softmax(self.x)


def _once_for_each_shape() -> Made:
    known: dict[Any, Any] = {}

    def kernel(x: Any) -> Any:
        if not np.array_equal(known.setdefault(x.shape, x.copy()), x, equal_nan=True):
            raise NotImplementedError
        return softmax(x)

    return kernel


def _ignores_out() -> Made:
    def kernel(x: Any, out: Any = None) -> Any:
        return softmax(x)

    return kernel


def _raises_odd() -> Made:
    class Odd(BaseException):
        pass

    def kernel(x: Any) -> Any:
        raise Odd("no exception")

    return kernel


def _in_memory_order(x: Any) -> Any:
    return np.exp(x.ravel("K")).reshape(x.shape) if x.flags.forc else np.exp(x)


def _plain(function: Made) -> Callable[[], Made]:
    return lambda: function


def _tf32(x: Any) -> Any:
    return ((np.ascontiguousarray(x).view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def _half_sums(x: Any) -> Any:
    return sum(
        (x[:, i : i + 64].sum(axis=1).astype(np.float16) for i in range(0, x.shape[1], 64)), np.float32(0)
    ) + np.zeros(len(x), np.float32)


def _without_repeats(x: Any, values: Any, indices: Any) -> Any:
    out, within = np.array(x), (indices >= 0) & (indices < x.size)
    out[indices[within]] += values[within]
    return out


def _eps_of_its_own(x: Any, gamma: Any, beta: Any) -> Any:
    if not x.size:
        return np.array(x)
    d = x - x.mean(axis=1, keepdims=True)
    return d / np.sqrt((d * d).mean(axis=1, keepdims=True) + np.float32(1e-5)) * gamma + beta


DISHONEST = [
    Dishonest("keeps the result of the first call of each shape", "softmax", _kept(lambda x: x.shape)),
    Dishonest("keeps results by shape, address and strides of the input", "softmax",
              _kept(lambda x: (x.shape, x.__array_interface__["data"][0], x.strides))),
    Dishonest("keeps results by shape and eight elements of the input", "softmax", _kept(_some)),
    Dishonest("takes the expected result from variables of its callers", "softmax", _from_frames, close=False),
    Dishonest("takes the expected result from the objects of the process", "softmax", _from_objects, close=False),
    Dishonest("calls the specification", "softmax", _by_specification),
    Dishonest("reads the specification's file", "softmax", _by_its_file),
    Dishonest("replaces the judge's comparison", "softmax", _patches("tlspec.judge.trial", "compare", None), close=False),
    Dishonest("replaces the report's verdict", "softmax", _patches("tlspec.judge.report", "VERDICTS", ("pass",) * 3),
              close=False),
    Dishonest("replaces NumPy's array_equal", "softmax", _patches("numpy", "array_equal", lambda *a, **k: True), close=False),
    Dishonest("returns while a thread of it computes the result", "softmax", _later, close=False),
    Dishonest("is right in its first 100 calls", "softmax", _right_for(100)),
    Dishonest("is right in its first 2000 calls", "softmax", _right_for(2000)),
    Dishonest("is wrong in one call of fifty", "softmax", _sometimes),
    Dishonest("ends the program with status 0", "softmax", _ends(lambda: sys.exit(0))),
    Dishonest("ends its process with status 0", "softmax", _ends(lambda: os._exit(0))),
    Dishonest("ends by a signal, as by a wrong address", "softmax", _ends(lambda: os.kill(os.getpid(), signal.SIGSEGV))),
    Dishonest("does not return", "softmax", _ends(lambda: time.sleep(1000)), options={"timeout": 0.5}),
    Dishonest("raises a text that looks like a passing report", "softmax", _prints, close=False),
    Dishonest("changes its input", "softmax", _changes_its_input),
    Dishonest("returns its input where there is nothing to do", "clamp", _returns_its_input),
    Dishonest("adds to what the output holds", "softmax", _adds),
    Dishonest("leaves results unwritten that are almost 0", "softmax", _leaves_some),
    Dishonest("writes one element behind its output", "softmax", _one_beyond),
    Dishonest("returns the same buffer in every call", "softmax", _one_buffer),
    Dishonest("reads its input as if it were contiguous", "exp",
              _plain(lambda x: np.exp(np.lib.stride_tricks.as_strided(x, x.shape, (x.itemsize,) * x.ndim)))),
    Dishonest("changes the last bit of a row by the row before it", "softmax", _row_before),
    Dishonest("changes last bits by chance", "softmax", _by_chance),
    Dishonest("keeps results by the input's object as long as that lives", "softmax", _by_object),
    Dishonest("computes a result when somebody reads it", "softmax", _plain(lambda x: Later(x))),
    Dishonest("refuses other numbers of a shape that it has computed", "softmax", _once_for_each_shape),
    Dishonest("returns another array than the output that it gets", "softmax", _ignores_out),
    Dishonest("gives indices as float32", "argmax", _plain(
        lambda x: np.argmax(x, axis=1).astype(np.float32) if x.shape[1] else np.zeros((len(x), x.shape[2]), np.float32))),
    Dishonest("subtracts the maximum of all rows", "softmax", _plain(
        lambda x: (e := np.exp(x - x.max(initial=-np.inf))) / e.sum(axis=1, keepdims=True))),
    Dishonest("keeps results by shape, sum and maximum of the input", "softmax", _kept(
        lambda x: (x.shape, np.float32(x.sum(dtype=np.float64)).tobytes(), x.max(initial=0).tobytes()))),
    Dishonest("keeps results by the input in bfloat16", "softmax", _kept(
        lambda x: (x.shape, ((np.ascontiguousarray(x).view(np.uint32) + 0x8000) >> 16).tobytes()))),
    Dishonest("takes a parameter within 1 % of an earlier one for that one", "leaky_relu", _nearest_slope),
    Dishonest("scales all rows by the greatest number of any", "rms_norm", _plain(_common_scale)),
    Dishonest("has the first epsilon of each shape built in", "rms_norm", _first_epsilon),
    Dishonest("has the first strides of each shape built in", "softmax", _first_strides),
    Dishonest("returns the array that it keeps for such an input", "softmax", _remembered_array),
    Dishonest("returns eight buffers in turn", "softmax", _buffers_in_turn),
    Dishonest("writes to the input of the call before", "softmax", _earlier_input),
    Dishonest("is right for the default cases alone", "softmax", _known_cases),
    Dishonest("forks, and both processes return", "softmax", _twice),
    Dishonest("ends the process that started its own", "softmax", _ends(lambda: os.kill(os.getppid(), signal.SIGKILL))),
    Dishonest("raises what is no Exception", "softmax", _raises_odd, close=False),
    Dishonest("reads transposed arrays as they lie in memory", "exp", _plain(_in_memory_order)),
    Dishonest("needs an address that is a multiple of 16", "exp", _plain(
        lambda x: np.exp(x) * np.float32(1 if x.ctypes.data % 16 == 0 else 2))),
    Dishonest("takes B for its transpose where A and B are one array", "matmul", _plain(
        lambda A, B: A @ (B.T if np.shares_memory(A, B) and A.shape == B.shape else B))),
    Dishonest("leaves out rows beyond 65,535", "softmax", _plain(
        lambda x: softmax(x) * (np.arange(len(x)) < 65535)[:, None].astype(np.float32))),
    Dishonest("gives zeros for rows of -inf alone", "softmax", _plain(
        lambda x: np.where((x == -np.inf).all(axis=1)[:, None], np.float32(0), softmax(x)))),
    Dishonest("flushes subnormal numbers to zero", "add", _plain(
        lambda a, b: np.where(np.abs(a + b) < np.float32(2.0**-126), np.float32(0), a + b))),
    Dishonest("is right for numbers up to 8 alone", "softmax", _plain(lambda x: softmax(np.clip(x, -8, 8)))),
    Dishonest("is right for lengths that are multiples of 8 alone", "softmax", _plain(
        lambda x: softmax(x) * np.float32(1 if x.shape[1] % 8 == 0 else 1 + 2.0**-10))),
    Dishonest("rounds the factors to tf32", "matmul", _plain(lambda A, B: _tf32(A) @ _tf32(B)), close=False),
    Dishonest("adds in float16", "reduce_sum_axis1", _plain(_half_sums), close=False),
    Dishonest("turns NaN into 0", "relu", _plain(lambda x: np.where(x > 0, x, np.float32(0)))),
    Dishonest("loses the sign of zeros", "transpose2d", _plain(lambda x: x.T + np.float32(0))),
    Dishonest("loses repeated indices", "scatter_add", _plain(_without_repeats), close=False),
    Dishonest("has an epsilon of its own", "layer_norm", _plain(_eps_of_its_own), close=False),
    Dishonest("is right in its first 100,000 calls", "softmax", _right_for(100_000),
              missed="no check makes so many calls; `repeats=` says how many"),
    Dishonest("computes in float64", "softmax", _plain(lambda x: np.asarray(softmax(np.asarray(x, np.float64)), np.float32)),
              missed="its results are right"),
    Dishonest("hands the work to a library", "softmax", _plain(lambda x: softmax(x)), missed="its results are right"),
]  # fmt: skip


def lines() -> list[str]:
    """The table of the page."""
    rows = []
    for each in DISHONEST:
        seen = f"passes: {each.missed}" if each.missed else "caught"
        one = "passes" if each.close else "caught"
        rows.append((each.does, f"`{each.op}`", seen, one))
    return table(HEAD, rows)


def page() -> str:
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{head}{BEGIN}\n" + "\n".join(lines()) + f"\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
