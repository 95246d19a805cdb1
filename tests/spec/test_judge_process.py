"""A kernel's own process: how a kernel gets there, what it finds there, and what becomes of one that ends it."""

import ast
import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import python_path
from tests.spec import address_in
from tests.spec.test_judge import softmax, softmax_vjp
from tlspec import arrays
from tlspec.judge import Report, check, repetition
from tlspec.judge.apart import Apart, Beside, Ended, Here, TimedOut, kernels_of
from tlspec.judge.runner import Failure, Raised, Request

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
#: a check of a few calls
SMALL: dict[str, Any] = {"cases": {"small": 2}, "empty": False, "sensitive": False, "repeats": 0}


def request(x: Any = ((1.0, 2.0),), **more: Any) -> Request:
    values = np.array(x, np.float32)
    return Request({"x": ("float32", values.view(np.uint32))}, {}, {"out": values.shape}, positional=["x"], **more)


def called(function: Callable[..., Any], **options: Any) -> np.ndarray:
    """What a function returns of [[1, 2]] in a process of its own."""
    kernel = Apart(function, None, "numpy", **options)
    try:
        (result,) = kernel.call(request()).results
        assert result.patterns is not None
        return result.patterns.view(np.float32)
    finally:
        kernel.close()


def text_of(function: Callable[..., Any], **options: Any) -> str:
    with pytest.raises(Failure) as failure:
        called(function, **options)
    return str(failure.value)


class Scaled:
    """A callable object."""

    def __init__(self, factor: float):
        self.factor = np.float32(factor)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return x * self.factor


def closure(factor: float) -> Callable[..., Any]:
    def kernel(x: np.ndarray, depth: int = 2, *, by: float = 4.0) -> np.ndarray:
        return kernel(x, depth - 1) if depth else twice(x) * np.float32(factor / by * known.two)

    known: Any = kernel
    known.two = 2
    return kernel


def twice(x: np.ndarray) -> np.ndarray:
    return x + x


libm = ctypes.CDLL("libm.so.6")
libm.sqrtf.argtypes, libm.sqrtf.restype = [ctypes.c_float], ctypes.c_float


@pytest.mark.parametrize(("function", "wanted"), [
    (twice, [2, 4]), (lambda x: twice(x), [2, 4]), (closure(3), [3, 6]), (np.exp, np.exp(np.float32([1, 2]))),
    (functools.partial(np.power, 2), [2, 4]), (functools.partial(lambda a, x: x * np.float32(a), 4), [4, 8]),
    (lambda x, of=libm: np.vectorize(of.sqrtf, otypes=[np.float32])(x), np.sqrt(np.float32([1, 2]))),
])  # fmt: skip
def test_functions_are_sent(function: Callable[..., Any], wanted: Any) -> None:
    assert np.array_equal(called(function), np.array([wanted], np.float32))


def test_what_cannot_be_sent_runs_here_and_is_said() -> None:
    lock = threading.Lock()

    def kernel(x: np.ndarray) -> np.ndarray:
        with lock:
            return softmax(x)

    report = check(kernel, "softmax", **SMALL)
    assert report.ok and not report.isolated
    assert "in process: the kernel can see the expected values (it cannot be sent to another: " in str(report)
    both = check(softmax, "softmax", backward=lambda out, g: kernel(g), **SMALL | {"cases": {}})
    assert not both.isolated and "it cannot be sent" in both.process
    with pytest.raises(ValueError, match="cannot run in a process of its own: "):
        check(kernel, "softmax", isolate=True, **SMALL)
    here = check(softmax, "softmax", isolate=False, **SMALL)
    assert "in process: the kernel can see the expected values (isolate=False)" in str(here)
    assert check(softmax, "softmax", **SMALL).isolated
    assert not check(softmax, "softmax", array=arrays.get("numpy"), **SMALL).isolated


SCRIPT = """
import sys
import numpy as np
import tlspec
print("loaded")
factor = np.float32(1)
class Kernel:
    def __init__(self): self.lock = __import__("threading").Lock()
    def __call__(self, x):
        with self.lock: return np.exp(x) * factor
kernel = Kernel()
report = tlspec.check(kernel, "exp", cases={"small": 2}, sensitive=False, repeats=0)
print(report.verdict, report.isolated)
"""


def test_a_script_runs_up_to_the_check_again(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "script.py")]
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": python_path()}
    )
    assert found.stdout.split() == ["loaded", "pass", "True"], found


def _finds_frames(x: Any) -> Any:
    frame: Any = sys._getframe(1)
    while frame is not None:
        if {"trial", "expected", "case"} & set(frame.f_locals):
            return x
        frame = frame.f_back
    return x * 0


def _finds_objects(x: Any) -> Any:
    names = {type(o).__name__ for o in gc.get_objects()} & {"Expected", "Trial", "Case", "Op"}
    return x if names else x * 0


def _finds_modules(x: Any) -> Any:
    allowed = {"tlspec", "tlspec.judge", "tlspec.formats", "tlspec.arrays", "tlspec.judge.runner"}
    return x if {m for m in sys.modules if m.startswith("tlspec")} - allowed else x * 0


@pytest.mark.parametrize("look", [_finds_frames, _finds_objects, _finds_modules])
def test_the_process_holds_no_reference(look: Callable[..., Any]) -> None:
    assert not called(look).any()


def _opens(x: Any) -> Any:
    path = next(p for p in sys.path if os.path.exists(os.path.join(p, "tlspec/ops/softmax.py")))
    with open(os.path.join(path, "tlspec/ops/softmax.py")) as file:
        return x * len(file.read())


@pytest.mark.parametrize(("get", "said"), [
    (lambda x: importlib.import_module("tlspec.ops.softmax"), "ImportError: tlspec.ops: it is a part of the specification"),
    (lambda x: importlib.import_module("tlspec").check, "AttributeError: tlspec.check: it is a part of the specification"),
    (_opens, "softmax.py: it is a part of the specification"),
    (lambda x: subprocess.run([sys.executable, "-c", "import tlspec.ops"], check=True), "it names the specification"),
])  # fmt: skip
def test_the_specification_is_refused(get: Callable[..., Any], said: str) -> None:
    assert said in text_of(get)


@pytest.mark.parametrize(("end", "kind", "said"), [
    (lambda x: os._exit(0), Ended, "the process of the kernel ended with status 0, expected results"),
    (lambda x: os.kill(os.getpid(), signal.SIGSEGV), Ended, "signal 11 (SIGSEGV), expected results (test_judge_process.py:"),
    (lambda x: os.kill(os.getpid(), signal.SIGKILL), Ended, "signal 9 (SIGKILL), as where memory runs out, expected results"),
    (lambda x: time.sleep(60), TimedOut, "a call took more than 0.5 s (test_judge_process.py:"),
    (lambda x: sys.exit(0), Failure, "the kernel ended the program with status 0, expected results"),
    (lambda x: np.ones(2**40), Raised, "MemoryError"),
])  # fmt: skip
def test_ends_are_failures(end: Callable[..., Any], kind: type[Failure], said: str) -> None:
    kernel = Apart(end, None, "numpy", seconds=0.5 if kind is TimedOut else 60)
    with pytest.raises(kind) as failure:
        kernel.call(request())
    assert type(failure.value) is kind and said in str(failure.value)
    kernel.close()


def test_a_process_is_where_its_caller_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its folder, with its environment and its words, whatever these were for the process before."""
    called(twice)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_WORD_OF_THE_CALLER", "word")
    monkeypatch.setattr(sys, "argv", ["program", "option"])
    around = lambda: (os.getcwd(), {**os.environ}, sys.argv)
    here = around()
    assert called(lambda x: x + (around() == here)).tolist() == [[2, 3]]


def test_a_process_has_so_much_memory() -> None:
    assert "MemoryError" in text_of(lambda x: np.ones(2**29), memory=2**30)


@pytest.mark.parametrize(
    ("end", "at", "kinds"),
    [(lambda: os._exit(0), 3, ["crash"] * 3), (lambda: time.sleep(60), 0, ["time-out"])],
    ids=["exit", "sleep"],
)
def test_the_end_of_a_process_is_a_verdict(end: Callable[[], Any], at: int, kinds: list[str]) -> None:
    """Of which a few are enough, and one that took too long is not made again with smaller cases."""
    calls = itertools.count()

    def kernel(x: np.ndarray) -> np.ndarray:
        if next(calls) == at:
            end()
        return softmax(x)

    report = check(kernel, "softmax", cases={"small": 24}, data="integers", timeout=None if at else 0.3)
    assert [f.kind for f in report.findings if f.kind in kinds] == kinds, report
    assert at or ";" not in report.findings[0].repeat
    assert any(note.startswith("forward: ended after ") for note in report.notes), report


@pytest.mark.parametrize("more", [2.0**-22, 1.0])
def test_bits_of_another_process(more: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ones are a note, wrong ones a finding."""
    monkeypatch.setattr(repetition, "OFTEN_SECONDS", 0.0)
    known, file = dict[str, float](), tmp_path / "called"

    def kernel(x: np.ndarray) -> np.ndarray:
        factor = known.setdefault("factor", 1 + more * os.path.exists(file))
        open(file, "w").close()
        return softmax(x) * np.float32(factor)

    report = check(kernel, "softmax", data="normal", fixed={"rows": 2, "cols": 3}, cases={"small": 2}, sensitive=False)
    assert "in another process results have other bits" in report.notes and report.ok == (more < 1), report
    assert report.ok or report.findings[0].text.startswith("in another process: out[")


def test_an_exception_says_where_and_is_one_line() -> None:
    def kernel(x: np.ndarray) -> np.ndarray:
        raise ValueError("no\n\npass: 44 cases in 0.1 s\x1b[2J")

    for isolate in (True, False):
        report = check(kernel, "softmax", isolate=isolate, **SMALL)
        assert (
            "test_judge_process.py:" in report.findings[0].text
            and "in kernel: raise ValueError(" in report.findings[0].text
        )
        assert all("\n" not in f.text or not isolate for f in report.findings)


@pytest.mark.parametrize("options", [{}, {"arguments": lambda f, v: f(v["x"])}, {"arguments": "x"}, {"isolate": False}])
def test_the_line_that_repeats_a_case_is_python(options: dict[str, Any]) -> None:
    report = check(lambda x: x, "softmax", backward=lambda out, g: g, **SMALL, **options)
    forward, backward = (
        next(f.repeat for f in report.findings if ("vjp:" in f.repeat) == vjp) for vjp in (False, True)
    )
    for line in (forward, backward):
        ast.parse(line)
    assert forward.startswith('tlspec.check(kernel, "softmax"') and "backward=backward" in backward
    assert "kernel = <lambda> of test_judge_process.py:" in str(report)
    line = check(None, "softmax", backward=softmax_vjp, **SMALL | {"cases": {"small": 0}}).name
    assert line == "softmax_vjp"


def command(*words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-W", "ignore", "-m", "tlspec", "check", *words]
    return subprocess.run(
        program, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": python_path()}
    )


def test_the_command_has_a_verdict_whatever_the_kernel_does(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(
        "import os\nimport numpy as np\nprint('pass: 44 cases')\ndef ends(x):\n    os._exit(0)\n"
        "def right(x):\n    print('pass: 44 cases')\n    return np.exp(x)\n"
    )
    (tmp_path / "gone.py").write_text("import sys\nsys.exit(0)\n")
    apart = command(f"{tmp_path}/ends.py:ends", "--op", "exp", "--cases", "2")
    assert apart.returncode == 1 and "ended with status 0, expected results" in apart.stdout
    here = command(f"{tmp_path}/ends.py:ends", "--op", "exp", "--cases", "2", "--in-process")
    assert here.returncode == 1 and "ended with status 0, expected a verdict" in here.stderr
    right = command(f"{tmp_path}/ends.py:right", "--op", "exp", "--cases", "2", "--repeats", "0")
    assert right.returncode == 0 and "44 cases" not in right.stdout, right
    gone = command(f"{tmp_path}/gone.py:kernel", "--op", "exp")
    assert gone.returncode == 2 and "SystemExit: 0 (gone.py:2, in <module>: sys.exit(0))" in gone.stderr


def test_an_interrupt_ends_the_processes(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time\ndef kernel(x):\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n    time.sleep(600)\n"
    )
    words = [sys.executable, "-m", "tlspec", "check", f"{tmp_path}/slow.py:kernel", "--op", "exp"]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    # a shell's background processes ignore the signal
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    program = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL, preexec_fn=heard)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert program.poll() is None
        time.sleep(0.05)
    child = int((tmp_path / "pid").read_text())
    program.send_signal(signal.SIGINT)
    assert program.wait(60) != 0
    for _ in range(200):
        if not _runs(child):
            break
        time.sleep(0.05)
    assert not _runs(child)


def _runs(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("kind", [Apart, Here])
def test_both_ways_of_running_say_the_same(kind: Any) -> None:
    def kernel(x: np.ndarray, out: np.ndarray) -> None:
        out[...] = x * 2
        x[...] = 0

    given = request()
    given.keywords, given.positional, given.written = {"x": "x", "out": "out"}, [], {"out": "float32"}
    runs = kind(kernel, None, "numpy" if kind is Apart else arrays.get("numpy"))
    answer = runs.call(given)
    (result,) = answer.results
    assert result.patterns is not None and result.patterns.view(np.float32).tolist() == [[2, 4]]
    assert not answer.arrays["x"].patterns.any() and (answer.canaries["out"] == arrays.CANARY).all()  # type: ignore[union-attr]
    assert runs.parameters == [("x", 1, True), ("out", 1, True)]
    runs.close()


class Unspoken(Exception):
    def __str__(self) -> str:
        raise OSError("no text")


class Lazy:
    def __array__(self, *words: Any, **more: Any) -> np.ndarray:
        return np.zeros((1, 2), np.float32)


def _raise(error: BaseException) -> Any:
    raise error


def _resized(x: np.ndarray) -> np.ndarray:
    x.shape = (2, 1)
    return np.zeros((1, 2), np.float32)


def _threaded(x: np.ndarray) -> np.ndarray:
    threading.Thread(target=lambda: time.sleep(0.03)).start()
    return x.copy()


#: what a call returns or does, and what is said of it; "" where it is right
SAID: list[tuple[Callable[..., Any], str]] = [
    (lambda x: [x, x], "returned 2 results, expected 1: out of shape (1, 2)"),
    (lambda x: None, "returned 1 results, expected 1: out of shape (1, 2)"),
    (lambda x: {"output": x}, "returned 1 results, expected 1: out of shape (1, 2)"),
    (lambda x: {"other": x, "out": 2 * x}, ""), (lambda x: (2 * x,), ""), (lambda x: 2 * x, ""),
    (lambda x: [[2 * x]], "out: a list of 1, expected one array of shape (1, 2)"),
    (lambda x: Lazy(), "out: a Lazy, which makes its elements when they are read, expected an array"),
    (_resized, "x: the kernel changed its input's shape to (2, 1)"),
    (_threaded, "the kernel returned while a thread that it had started was at work"),
    (lambda x: _raise(Unspoken()), "Unspoken: its text raises OSError"),
    (lambda x: _raise(ValueError("e" * 5000)), f"ValueError: {'e' * 2000} (test_judge_process.py:"),
    (lambda x: _raise(RuntimeError("no")), "RuntimeError: no"), (lambda x: _raise(AssertionError()), "AssertionError"),
    (lambda x: _raise(TypeError("no")), "TypeError: no"),
    (lambda x: _raise(SystemExit(3)), "the kernel ended the program with status 3"),
    (lambda x, out: np.multiply(x, 2, out=out), ""), (lambda x, out: np.multiply(x, 2, out=out) is None or 0, ""),
    (lambda x, out: np.multiply(x, 2, out=out) is None or (out,), ""),
    (lambda x, out: x + x, "out: returned another array than the one that it was to write"),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "said"), SAID, ids=[f"{i} {said[:40]}" for i, (_, said) in enumerate(SAID)])
def test_what_a_call_makes_is_told(kernel: Callable[..., Any], said: str) -> None:
    """By a message with the name of the result; some errors refuse a case. An optional argument at the end is left out."""
    given = request()
    given.scalars, given.positional = {"none": None}, ["x", "none"]
    if "out" in inspect.signature(kernel).parameters:
        given.keywords, given.positional, given.written = {"x": "x", "out": "out"}, [], {"out": "float32"}
    runs = Here(kernel, None, arrays.get("numpy"))
    if not said:
        (result,) = runs.call(given).results
        assert result.patterns is not None and result.patterns.view(np.float32).tolist() == [[2, 4]]
        return
    with pytest.raises(Failure) as failure:
        runs.call(given)
    assert str(failure.value).startswith(said)
    refusals = {"ValueError": True, "RuntimeError": True, "AssertionError": True, "Unspoken": False, "TypeError": False}
    assert getattr(failure.value, "refusal", None) == refusals.get(said.partition(":")[0])


def fails(kernel: Callable[..., Any], op: str = "softmax", **options: Any) -> Report:
    report = check(kernel, op, cases={"small": 12}, sensitive=False, **options)
    assert report.verdict == "fail", report
    return report


def test_rare_faults_are_met_by_repeats() -> None:
    calls = itertools.count()

    def kernel(x: np.ndarray) -> np.ndarray:
        return softmax(x) * np.float32(1 + (next(calls) % 1500 > 1490))  # some cases hold NaN alone

    report = fails(kernel, repeats=1600)
    assert any("of 1600 on a few cases: out[" in f.text for f in report.findings), report
    again = check(kernel, "softmax", case="0:normal:small", repeats=1600)
    assert any("of 1600 on a few cases: out[" in f.text for f in again.findings), again
    late = lambda x: softmax(x) * np.float32(1 + 2.0**-22 * (next(calls) > 400))
    right = check(late, "softmax", cases={"small": 12}, sensitive=False, repeats=500)
    assert right.ok and right.calls > 500 and right.repeats is False, right
    assert (
        f"{right.calls} results compared: a fault that comes and goes is missed with p = {0.99**right.calls:.2g} if"
        in str(right)
    )


@pytest.mark.parametrize("calls", [150, 1700, 4800])
def test_faults_that_begin_late_are_met_by_default(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "OFTEN_SECONDS", 60.0)  # however slow the machine is
    count = itertools.count()

    def kernel(x: np.ndarray) -> np.ndarray:
        return softmax(x) * np.float32(1 if next(count) < calls else 1.5)

    report = fails(kernel, data="normal", empty=False)
    assert report.isolated and any(f.kind == "value" for f in report.findings), report


@pytest.mark.parametrize("kind", [Apart, Here])
def test_calls_in_turn(kind: Any) -> None:
    """Each has its result, up to the first that fails or has a result of another type."""
    count, limit = itertools.count(), 7

    def kernel(x: np.ndarray) -> np.ndarray:
        at = next(count)
        if at == 2 * limit:
            raise NotImplementedError
        return (x + np.float32(at)).astype(np.float64 if at == limit else np.float32)

    runs = kind(kernel, None, "numpy" if kind is Apart else arrays.get("numpy"))
    requests, kinds = [request(), request([[3.0]])], [[("float32", (1, 2))], [("float32", (1, 1))]]
    wanted = [[[1.0, 2.0], [3.0]][i % 2] for i in range(limit)]
    found, error = runs.turns(requests, kinds, 100)
    assert [np.frombuffer(x, np.float32).tolist() for x in found] == [[n + i for n in x] for i, x in enumerate(wanted)]
    assert type(error) is Failure and "results of another type or shape than in an earlier call" in str(error)
    found, error = runs.turns(requests, kinds, 100)
    assert len(found) == limit - 1 and type(error) is NotImplementedError
    assert len(runs.turns(requests, kinds, 4)[0]) == 4
    runs.close()


def test_an_end_among_calls_in_turn() -> None:
    count = itertools.count()
    runs = Apart(lambda x: x if next(count) < 5 else os._exit(3), None, "numpy")
    for _ in range(2):  # of which the second is in a new process
        with pytest.raises(Ended, match="ended with status 3, expected results"):
            runs.turns([request()], [[("float32", (1, 2))]], 9)
    runs.close()


#: by what a forward function keeps what the gradient's function then uses
SAVED: dict[str, Callable[[np.ndarray], Any]] = {
    "the shape": lambda x: x.shape,
    "the shape and a few numbers": lambda x: (x.shape, x.ravel()[:4].tobytes(), x.ravel()[-4:].tobytes()),
    "the shape and the sum": lambda x: (x.shape, np.float32(x.sum(dtype=np.float64)).tobytes()),
    "the address": lambda x: (x.shape, x.__array_interface__["data"][0]),
}


def pair(key: Callable[[np.ndarray], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A forward function that keeps its result, and a gradient's that takes it for that of its own x."""
    kept: dict[Any, np.ndarray] = {}

    def forward(x: np.ndarray) -> np.ndarray:
        kept[key(x)] = softmax(x)
        return kept[key(x)].copy()

    def backward(x: np.ndarray, g: np.ndarray) -> np.ndarray:
        out = kept.get(key(x))
        return softmax_vjp(softmax(x) if out is None else out, g)

    return forward, backward


@pytest.mark.parametrize("by", SAVED)
def test_a_gradient_that_uses_what_a_forward_call_left(by: str) -> None:
    forward, backward = pair(SAVED[by])
    options: dict[str, Any] = {"cases": {"small": 2}, "data": "normal", "empty": False, "sensitive": False}
    report = check(forward, "softmax", backward=backward, repeats=0, **options)
    stale = [f for f in report.findings if f.kind == "stale"]
    assert report.isolated and any("forward call" in f.text and "vjp:" in f.repeat for f in stale), report
    again = check(forward, "softmax", backward=backward, case="vjp:0:normal:small")
    assert any("forward call" in f.text for f in again.findings), again
    assert check(softmax, "softmax", backward=lambda x, g: softmax_vjp(softmax(x), g), repeats=0, **options).ok


def test_a_result_that_uses_what_a_gradient_left() -> None:
    kept: list[np.ndarray] = []

    def forward(x: np.ndarray) -> np.ndarray:
        return softmax(kept[0] if kept and kept[0].shape == x.shape else x)

    def backward(x: np.ndarray, g: np.ndarray) -> np.ndarray:
        kept[:] = [x.copy()]
        return softmax_vjp(softmax(x), g)

    options: dict[str, Any] = {"data": "normal", **SMALL}
    (found,) = check(forward, "softmax", backward=backward, fail_fast=True, **options).findings
    assert found.kind == "stale" and "after the gradient of other numbers" in found.text


def test_both_functions_are_in_one_process(tmp_path: Path) -> None:
    """Those of a file, too, which is run once there; what cannot be sent is here, and the end of one is not that of the other."""
    (tmp_path / "pair.py").write_text(
        "import numpy as np\nkept = []\n"
        "def forward(x):\n    kept[:] = [x]\n    return x + 0\ndef backward(x, g):\n    return g * len(kept)\n"
    )
    names = [(f"{tmp_path}/pair.py:{n}", None) for n in ("forward", "backward")]
    first, second = kernels_of(names, "numpy", None, 9.0, 2**33)
    assert isinstance(first, Apart) and isinstance(second, Beside) and (first.seconds, first._memory) == (9, 2**33)
    given = request()
    given.arrays["g"], given.positional = given.arrays["x"], ["x", "g"]

    def gradient() -> list[float]:
        (result,) = second.call(given).results
        assert result.patterns is not None
        return result.patterns.view(np.float32).ravel().tolist()

    assert second.parameters == [("x", 1, True), ("g", 1, True)] and first.parameters == [("x", 1, True)]
    assert gradient() == [0, 0] and first.call(request()) and gradient() == [1, 2]
    second.close()  # the process of both
    assert gradient() == [0, 0] and first.call(request()) and gradient() == [1, 2]
    first.close()
    here, there = kernels_of([(names[0][0], None), (names[1][0], None)], "numpy", False, None, None)
    assert not here.apart and not there.apart and here.call(request())
    (result,) = there.call(given).results
    assert result.patterns is not None and result.patterns.view(np.float32).ravel().tolist() == [1, 2]
    lock = threading.Lock()
    held = lambda x, g: (lock.locked(), g)[1]
    assert [k.apart for k in kernels_of([(softmax, None), (held, None)], "numpy", None, None, None)] == [True, False]


def test_a_gradient_that_ends_the_process_leaves_the_forward_function() -> None:
    def ends(out: np.ndarray, g: np.ndarray) -> None:
        os._exit(5)

    report = check(softmax, "softmax", backward=ends, cases={"small": 4}, sensitive=False)
    assert {(f.kind, "vjp:" in f.repeat) for f in report.findings} == {("crash", True)}, report


def test_bits_that_change_by_chance_where_nothing_is_ordered() -> None:
    """A sum of many terms may be added in any order; of one or two none is to be chosen."""

    def last_bit(x: np.ndarray) -> np.ndarray:
        return softmax(x) * (1 + 6e-8 * np.random.default_rng().integers(0, 2, x.shape)).astype(np.float32)

    def any_order(x: np.ndarray) -> np.ndarray:
        return x[:, np.random.default_rng().permutation(x.shape[1])].cumsum(axis=1)[:, -1] if x.size else x.sum(axis=1)

    (found,) = fails(last_bit).findings
    assert found.kind == "repeat" and "no sum has more than two terms" in found.text and "cols=1" in found.repeat
    assert check(last_bit, "softmax", case=address_in(found)).findings[0].kind == "repeat"
    report = check(any_order, "reduce_sum_axis1", cases={"small": 12}, sensitive=False)
    assert report.ok and report.repeats is False, report


def test_what_rows_depend_on() -> None:
    """A row of the batch before another changes its last bit: a finding, unless the operation's kernels may mix rows."""

    def kernel(x: np.ndarray) -> np.ndarray:
        return (
            softmax(x) * (1 + np.float32(2.0**-23) * np.sign(np.roll(x, 1, 0)[:, :1]))
            if min(x.shape) > 1
            else softmax(x)
        )

    report = fails(kernel, data="normal", empty=False)
    assert report.neighbours is False and {f.kind for f in report.findings} == {"batch"}, report
    assert "depends on what other rows hold" in str(report)
    assert check(softmax, "softmax", data="normal", empty=False, cases={"small": 12}).neighbours

    def meaning(x: Any) -> Any:
        e = np.exp(x - np.max(x, axis=1, keepdims=True))
        return e / np.sum(e, axis=1, keepdims=True)

    mixed = check(kernel, reference=meaning, inputs="x[rows, cols]", data="normal", empty=False, cases={"small": 12})
    assert mixed.ok and mixed.neighbours is False, mixed


def test_a_thread_that_is_still_at_work_is_a_finding() -> None:
    def kernel(x: np.ndarray) -> np.ndarray:
        out, copy = np.zeros(x.shape, np.float32), np.array(x)

        def work() -> None:
            time.sleep(0.002)
            out[...] = softmax(copy)

        threading.Thread(target=work, daemon=True).start()
        return out

    for isolate in (True, False):
        report = fails(kernel, isolate=isolate)
        assert any("returned while a thread that it had started was at work" in f.text for f in report.findings), report


def test_an_error_that_every_call_makes_is_no_stale_result() -> None:
    """It shows on halves of the numbers alone, in a new process, too."""
    halves = lambda x: softmax(x) * np.float32(1 + (x.size > 0 and not np.array_equal(x, np.rint(x))) * 2.0**-8)
    for isolate in (True, False):
        report = fails(halves, data="integers", empty=False, isolate=isolate)
        assert {f.kind for f in report.findings} == {"value"}, report


def test_settings_of_pytorch_are_those_of_the_caller() -> None:
    """Each alone, and back; that of deterministic algorithms imports much."""
    torch = pytest.importorskip("torch")
    library = arrays.get("torch")
    before, others = (
        library.settings(),
        {"threads": 3, "precision": "high", "gradients": False, "tf32": False, "benchmark": True},
    )
    assert before.keys() == others.keys() | {"deterministic"}

    def kernel(x: Any) -> Any:
        import torch

        return x * 0 + torch.get_num_threads()

    try:
        for name, other in [*others.items(), *before.items()]:
            library.apply({**before, name: other})
            assert library.settings() == {**before, name: other}, name
        for threads in (1, 2):
            torch.set_num_threads(threads)
            runs = Apart(kernel, None, "torch")
            (result,) = runs.call(request()).results
            assert result.patterns is not None and (result.patterns.view(np.float32) == threads).all()
            runs.close()
    finally:
        library.apply(before)


def test_settings_that_a_call_changes() -> None:
    pytest.importorskip("torch")

    def kernel(x: Any) -> Any:
        import torch

        torch.set_float32_matmul_precision("high" if torch.get_float32_matmul_precision() == "highest" else "highest")
        return torch.softmax(x, 1)

    report = fails(kernel, array="torch", data="normal", empty=False)
    assert report.findings[0].text.startswith("the kernel changed precision from "), report


def test_a_library_that_is_not_there() -> None:
    with contextlib.suppress(ImportError):
        import cupy

        pytest.skip(f"CuPy {cupy.__version__} is there")
    with pytest.raises(ImportError, match="pip install cupy"):
        check(softmax, "softmax", array="cupy")
    with pytest.raises(ValueError, match="unknown library"):
        check(softmax, "softmax", array="tensor")
