"""Interrupts of long calls: what a signal ends, what is made again, and what stays as it was."""

from itertools import cycle

from tlrt._binding.observer import Calls
from tlrt.errors import InterruptedCallError
from tlrt.verify.run import Runtime
from tlspec.drawn import draw_case
from tlspec.registry import ops

#: calls that take seconds on two cores
LONG = """
import os, signal, threading, time
import numpy as np
import tlrt
from tlrt import kernels

d = tlrt.Device.new("cpu")
a, q, row = d.full(4096 * 4096, 1.5), d.full(32 * 4096 * 64, 0.25), d.zeros(2**22 - 3)
long = {
    "matmul": lambda: kernels.matmul(a, a, 4096, 4096, 4096),
    "conv2d": lambda: kernels.conv2d(a, q, d.zeros(256), 4, 256, 128, 128, 256, 5, 5, 1, 1, 2, 2),
    "flash_attention": lambda: kernels.flash_attention(q, q, q, 32, 4096, 64, 0, 0.125),
    "rfft": lambda: kernels.rfft1d_packed(row, 1, 2**22 - 3),
    "exp": lambda: kernels.exp(d.empty(2**29)),
}
q = d.full(256 * 256 * 25, 0.25) if name == "conv2d" else q
sent = []

def interrupt(delay):
    time.sleep(delay)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

def start(delay):
    thread = threading.Thread(target=interrupt, args=[delay])
    thread.start()
    return thread
"""


def test_ctrl_c_ends_long_calls_soon(python):
    for name in ("matmul", "conv2d", "flash_attention", "rfft", "exp"):
        code = f"""
name = {name!r}
{LONG}
signal.signal(signal.SIGINT, signal.default_int_handler)  # after the device was made
before = d.memory()

def wait(delay):
    thread = start(delay)
    try:
        long[name]()
        thread.join()
    except KeyboardInterrupt:
        return time.monotonic() - sent[-1]
    finally:
        thread.join()

for delay in (0.05, 0.15, 0.25):  # other processes may hold the processors for a while
    assert any(wait(delay) < 0.3 for _ in range(3))
after = d.memory()
assert (before.live_bytes, before.live_buffers) == (after.live_bytes, after.live_buffers), (before, after)
assert np.array_equal(kernels.exp(d.zeros(100_000)).numpy(), np.ones(100_000))
"""
        done = python(code)
        assert done.returncode == 0, f"{name}: {done.stderr}"


def test_a_handler_that_returns_leaves_the_result_right(python):
    code = f"""
name = "matmul"
{LONG}
stop = []
signal.signal(signal.SIGINT, lambda *_: stop.append(time.monotonic()))
x = np.random.default_rng(1).standard_normal(1024 * 1024)
x = d.buffer(x)
out = d.zeros(1024 * 1024)
expected = kernels.matmul(x, x, 1024, 1024, 1024).numpy().tobytes()
thread = threading.Thread(target=lambda: [interrupt(0.004) for _ in range(20)])
thread.start()
results = []
while thread.is_alive():
    results.append(kernels.matmul(x, x, 1024, 1024, 1024).numpy().tobytes() == expected)
    kernels.matmul(x, x, 1024, 1024, 1024, out=out)
    results.append(out.numpy().tobytes() == expected)
print(all(results), bool(stop))
"""
    done = python(code)
    assert done.stdout == "True True\n", done.stderr


def test_every_operation_is_made_again():
    """Each call of C is answered with an interrupt first; results, gradients and memory are those of one that is not."""
    runtime = Runtime("cpu")
    own = runtime.device._calls

    def twice(function):
        interrupted = cycle((True, False))
        return lambda *given: InterruptedCallError.status if next(interrupted) else function(*given)

    for row in ops():
        for which in ("forward", "vjp") if row.vjp_rule else ("forward",):
            case = draw_case(row, 3, "normal", "small", which)
            expected = runtime.run(case)
            live = runtime.device.memory().live_bytes
            runtime.device._calls = Calls({name: twice(function) for name, function in own.__dict__.items()})
            try:
                got = runtime.run(case)
            finally:
                runtime.device._calls = own
            assert runtime.device.memory().live_bytes == live, row.name
            for a, b in zip(expected, got, strict=True):
                assert a is None or a.tobytes() == b.tobytes(), row.name


def test_an_interrupted_plan_is_not_kept(python):
    """Bluestein's transform of a length whose plan is kept: the chirp and its kernel are made at the first call."""
    code = """
import hashlib, os, signal, threading, time
import numpy as np
import tlrt
from tlrt import kernels

d, n = tlrt.Device.new("cpu"), 2**19 - 1
x = d.buffer(np.random.default_rng(1).standard_normal(n))
signal.signal(signal.SIGINT, signal.default_int_handler)
for delay in {delays}:
    thread = threading.Thread(target=lambda: (time.sleep(delay), os.kill(os.getpid(), signal.SIGINT)))
    try:
        thread.start()
        kernels.rfft1d_packed(x, 1, n)
        thread.join()
    except KeyboardInterrupt:
        pass
    thread.join()
print(hashlib.sha256(kernels.rfft1d_packed(x, 1, n).numpy()).hexdigest())
"""
    plain = python(code.format(delays=[]))
    assert plain.returncode == 0, plain.stderr
    assert python(code.format(delays=[0.0005 * i for i in range(1, 60)])).stdout == plain.stdout
