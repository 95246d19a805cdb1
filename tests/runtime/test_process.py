"""Threads, fork, and the end of the interpreter."""

import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

import tlrt
from tests import DEVICES, frequent_switches, run_in_thread
from tests.runtime.floating_point_modes import FLIPS, mode
from tlrt import errors, kernels
from tlrt._binding import call, convert
from tlrt._binding.library import load
from tlrt._binding.observer import Observer
from tlrt._binding.together import set_and_call
from tlrt.verify.run import Runtime, cpu_settings
from tlspec.drawn import draw_case
from tlspec.registry import ops


def test_old_values_go_after_all_attributes_have_changed():
    """The finaliser of one runs code, in which another thread may go on."""

    class Old:
        def __del__(self) -> None:
            seen.append((there.x, there.y))

    class There:
        x, y = Old(), 1

    there, seen = There(), []
    there.x, There.x = There.x, None
    set_and_call([(there, "x", 2), (there, "y", 3)], [])
    assert seen == [(2, 3)]


def test_threads_share_a_device(dev):
    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            x, y = (rng.standard_normal(257).astype(np.float32) for _ in range(2))
            a, b = dev.buffer(x), dev.buffer(y)
            assert np.array_equal(kernels.add(a, b).numpy(), x + y)
            assert_raises_regex(errors.ShapeError, "^mul: b: got 1 elements", kernels.mul, a, dev.zeros(1))
            ga, gb = kernels.mul_bwd(a, b, a)
            assert np.array_equal(ga.numpy(), x * y) and np.array_equal(gb.numpy(), x * x)

    with frequent_switches(), ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


def test_messages_belong_to_their_thread(dev):
    a, b = dev.zeros(2), dev.zeros(3)
    expect = partial(assert_raises_regex, errors.ShapeError)
    run_in_thread(lambda: expect("^mul: b: got 2 elements", kernels.mul, b, a))
    expect("^add: b: got 3 elements", kernels.add, a, b)


def test_interrupts_leak_nothing(python):
    """A handler that raises at any moment, again while the last exception is handled included, loses no handle."""
    code = """
import gc, signal, time, tlrt
from tlrt import kernels

class Alarm(BaseException):
    pass

def ring(number, frame):
    global rings
    if start < time.monotonic() < end:
        rings += 1
        raise Alarm

d = tlrt.Device.new("cpu")
a, b, out = d.zeros(1), d.zeros(1), d.zeros(1)
start = end = rings = 0

def calls():
    while time.monotonic() < end:
        kernels.add(a, b)

def work():
    while time.monotonic() < end:
        kernels.add(a, b)
        kernels.add(a, b, out=out)
        kernels.reduce_sum_axis(a, [1], 0)
        kernels.mul_bwd(a, b, a)
        kernels.mul_bwd(a, b, a, want=(True, False), out=(out, None))
        d.zeros(1).copy().share().release()
        d.buffer([1])

def again(function, *arguments):
    while time.monotonic() < end:
        try:
            function(*arguments)
        except Alarm:
            pass

started = time.monotonic()
for _ in range(100):
    kernels.add(a, b)
period = max(5e-5, (time.monotonic() - started) / 100 * 50)  # a slow build must get out of a handler in time
signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, period, period)
for function in (calls, work):
    now = time.monotonic()
    start, end = now + 0.2, now + 2
    again(again, again, again, again, again, function)  # an alarm while one of them handles one goes to the next
    gc.collect()
    print(function.__name__, d.memory().live_buffers, a.references, rings > 200)
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    done = python(code)
    # stderr may name callbacks of the interpreter's own that were interrupted
    assert done.returncode == 0, done.stderr
    assert done.stdout == "calls 3 1 True\nwork 3 1 True\n"


@pytest.mark.parametrize("device", DEVICES)
def test_live_buffers_at_shutdown(python, device):
    code = f"""
import sys, tlrt
from tlrt import kernels
d = tlrt.device({device!r})
own = tlrt.Device.new({device!r})
kept = [d.buffer([1, 2]), kernels.add(d.zeros(3), d.zeros(3)), own.zeros(4)]
class Cycle: pass
c = Cycle(); c.me = c; c.buffer = d.zeros(5)
sys.late = d.zeros(6)
tlrt.late = own.zeros(7)
import builtins
builtins.late = d.zeros(8)
print("done")
"""
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def require_fork(python, code):
    """Runs a program that forks into `child`, which has to end with status 0."""
    begin = "import os, signal, sys, threading, warnings, tlrt\nbegun, over = threading.Event(), threading.Event()\n"
    begin += "warnings.filterwarnings('ignore', 'This process', DeprecationWarning)  # Python 3.12 on, of any thread\n"
    done = python(f'{begin}{code}print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))')
    assert (done.stdout, done.stderr) == ("child 0\n", "")


def test_fork(python):
    code = """
import numpy as np
from tlrt import kernels
d = tlrt.device("cpu")
a = d.buffer(np.arange(100_000))
kernels.add(a, a).numpy()
child = os.fork()
if child == 0:
    b = kernels.add(a, a)
    good = b.numpy()[7] == 14 and a.numpy()[9] == 9
    del b
    a.release()
    d.close()
    os._exit(not good or tlrt.device("cpu").zeros(3).numpy().tolist() != [0, 0, 0])
assert kernels.add(a, a).numpy()[7] == 14
"""
    require_fork(python, code)


@pytest.mark.parametrize("work", ["device('cpu')", "device('cpu').buffer([1])"])
def test_fork_while_another_thread_begins(python, work):
    """It stops at the library's search, or at an import of NumPy's if there is one, until the process is about to fork."""
    code = f"""
from tlrt._binding import library
from tlrt.context import device
find = library._find

def stop():
    begun.set()
    over.wait()

class Finder:
    def find_spec(name, path=None, target=None):
        return stop() if name == "numpy.ma" else None

if "buffer" in {work!r}:
    sys.meta_path.insert(0, Finder)
else:
    library._find = lambda: stop() or find()
os.register_at_fork(before=over.set)
threading.Thread(target=lambda: ({work}, begun.set())).start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(int(device("cpu").buffer([1, 2]).numpy().tolist() != [1, 2]))
"""
    require_fork(python, code)


@pytest.mark.parametrize(
    ("module", "work"),
    [("tlspec.ops.conv", "ops()"), ("tlrt._capture.record", "s.capture(lambda x: s.const(x), [1.0])")],
)
def test_fork_during_an_import(python, module, work):
    """The import stops until the process is about to fork, which waits for its end."""
    code = f"""
from tlspec.registry import ops
s = tlrt.Session("cpu") if "capture" in {work!r} else None

class Finder:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            begun.set()
            over.wait()

sys.meta_path.insert(0, Finder)
os.register_at_fork(before=over.set)
thread = threading.Thread(target=lambda: {work})
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    {work}
    os._exit(0)
"""
    require_fork(python, code)


def test_fork_while_another_thread_captures(python):
    """The child has no such thread, so nothing is recorded there, and no lock is taken."""
    code = """
from tlrt._capture import record
s, t = tlrt.Session("cpu"), tlrt.Session("cpu")

def step(x):
    begun.set()
    over.wait()
    return s.const(x)

thread = threading.Thread(target=lambda: s.capture(step, [1.0]))
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    y = t.capture(lambda x: t.square(t.const(x)), [3.0]).outputs.numpy()
    os._exit(int(y != 9 or s.device._observers != () or record._recorders != {}))
over.set()
thread.join()
"""
    require_fork(python, code)


def test_fork_while_another_thread_steps(python):
    """The child can go on from the state before the other thread's update."""
    code = """
s = tlrt.Session("cpu")
w = s.param([3.0], "w")
optimizer = tlrt.optim.SGD([w], lr=0.5)
s.backward(s.square(w))
update = optimizer._update

def paused(*arguments):
    begun.set()
    over.wait()

optimizer._update = paused
thread = threading.Thread(target=optimizer.step)
thread.start()
begun.wait()
optimizer._update = update
child = os.fork()
if child == 0:
    signal.alarm(20)
    optimizer.step()
    os._exit(int(w.value.tolist() != [0.0] or optimizer.steps != 1))
over.set()
thread.join()
"""
    require_fork(python, code)


@pytest.mark.cuda
def test_fork_after_cuda(python):
    code = """
import os, warnings, tlrt
from tlrt import errors, kernels
warnings.simplefilter("ignore")
d = tlrt.device("cuda")
a = d.zeros(3)
child = os.fork()
if child == 0:
    try:
        kernels.add(a, a)
    except errors.TorchleanError as error:
        print(error, flush=True)
        del a
        os._exit(0)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), a.numpy().tolist())
"""
    done = python(code)
    assert "fork" in done.stdout and done.stdout.endswith("0 [0.0, 0.0, 0.0]\n")


def test_workers_keep_subnormals_whatever_their_maker_does():
    """Reading a large buffer makes the workers; it computes nothing, so it leaves its caller's mode as it is."""
    n, least = 1 << 22, np.float32(2.0**-149)
    with tlrt.Device.new("cpu") as dev, cpu_settings(threads=1):
        x = dev.buffer(np.full(n, least, np.float32))
        tlrt.set_threads(4)
        with mode("flush"):
            assert least * np.float32(1) == 0  # the mode is on
            x.numpy()
        for _ in range(10):
            assert (kernels.add(x, x).numpy() == 2 * least).all()


class InMode(Observer):
    """Every call of the C library runs in a mode."""

    def __init__(self, name: str) -> None:
        self.name = name

    def before_call(self, device, symbol, arguments):
        entered = mode(self.name)
        entered.__enter__()
        return entered

    def after_call(self, device, symbol, arguments, status, note):
        note.__exit__(None, None, None)


@pytest.mark.parametrize("name", FLIPS)
def test_no_mode_of_the_caller_changes_a_bit(name):
    observer, runtime = InMode(name), Runtime("cpu")
    for row in ops():
        for which in ("forward", "vjp") if row.vjp_rule else ("forward",):
            case = draw_case(row, 2, "normal", "small", which)
            expected = runtime.run(case)
            runtime.device.observe(observer)
            try:
                got = runtime.run(case)
            finally:
                runtime.device.ignore(observer)
            for a, b in zip(expected, got, strict=True):
                assert a is None or a.tobytes() == b.tobytes(), row.name


@pytest.mark.parametrize("name", FLIPS)
def test_no_mode_of_the_caller_changes_a_number(dev, name):
    """Nor the description of the processor."""
    arrays = [np.array([1e-40, 1 + 2.0**-30, -1e-46, 1e300]), np.array([2**25 + 1, -(2**62) - 2**38 - 1])]
    one = dev.full(1, 1)
    arrays += [np.array([2**64 - 2**39 - 1], np.uint64), np.array([1, 255], np.uint8), np.array([2**25 + 1], np.int32)]
    with np.errstate(over="ignore"):
        expected = [a.astype(np.float32) for a in arrays]
    described = tlrt.describe("cpu")
    with np.errstate(all="raise"), mode(name):
        described_in_mode = tlrt.describe("cpu")
        got = [dev.buffer(a) for a in arrays] + [kernels.scale(one, 1 + 2.0**-30)]
    for a, b in zip([*expected, np.float32([1])], got, strict=True):
        assert a.tobytes() == b.numpy().tobytes()
    assert described_in_mode == described


def test_a_conversion_that_is_refused_is_an_error(dev, monkeypatch):
    """Its result would be whatever lay in memory."""
    monkeypatch.setitem(load().lib.__dict__, "torchlean_cuda_convert", lambda *_: errors.UnavailableError.status)
    assert_raises_regex(errors.UnavailableError, "^from_numpy: ", dev.buffer, [1.5, 2.5])


def test_small_stacks(python):
    code = """
import threading, tlrt
from tlrt import kernels
d, n = tlrt.device("cpu"), 1100
x = d.full(n * n, 1)
def work():
    g = d.zeros(n)
    kernels.softmax(x, n, n)
    kernels.layer_norm_bwd(x, g, x, n, n, 1e-5)
    kernels.selective_scan_diag_bwd(g, g, x, g, x, x, n, n)
    print("done")
threading.stack_size(65536)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    done = python(code)
    assert done.stdout == "done\n", done


def test_a_handler_keeps_the_text_of_the_failure_it_interrupts(dev, monkeypatch):
    """A signal between a refused call and the reading of its text."""

    def fail_too(number, frame):
        monkeypatch.undo()
        for op in (kernels.mul, kernels.add):
            assert_raises_regex(errors.ShapeError, f"^{op.__name__}: b: got 3 elements", op, b, a)

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGUSR1)
        return failure(*arguments)

    a, b, failure = dev.zeros(3), dev.zeros(2), call.failure
    monkeypatch.setattr(call, "failure", interrupted)
    previous = signal.signal(signal.SIGUSR1, fail_too)
    try:
        assert_raises_regex(errors.ShapeError, "^sub: b: got 2 elements", kernels.sub, a, b)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert call.failure is failure  # the handler ran


def test_handles_of_another_copy_of_the_library_are_refused(tmp_path):
    ours = load()
    other = ours.ffi.dlopen(str(shutil.copy(ours.path, tmp_path)))
    buffer, n = tlrt.device("cpu").zeros(1), ours.ffi.new("uint32_t *")
    context, made = ours.ffi.new("torchlean_context **"), ours.ffi.new("torchlean_buffer **")
    assert other.torchlean_cuda_context_create(-1, context) == 0
    for _ in range(100):  # one of the same slot and generation among them
        made[0] = ours.ffi.NULL
        assert other.torchlean_cuda_buffer_zeros(context[0], 1, made) == 0
        assert ours.lib.torchlean_cuda_buffer_length(made[0], n) == errors.ReleasedError.status
    assert other.torchlean_cuda_buffer_length(buffer._handle, n) == errors.ReleasedError.status
    assert other.torchlean_cuda_context_destroy(context[0]) == 0


@pytest.mark.parametrize("dtype", [np.uint32, np.float32, np.float64])
def test_unaligned_arrays_are_copied(dtype):
    array = np.zeros(17, np.uint8)[1:].view(dtype)
    read = {np.uint32: convert.uint32, np.float32: convert.float32, np.float64: convert.float64}[dtype]
    assert not array.flags.aligned and read("op", "x", array).flags.aligned
    with pytest.raises(errors.ArgumentTypeError, match="op: out: got a strided, unaligned or read-only array"):
        convert.float64_out("op", "out", np.zeros(17, np.uint8)[1:].view(np.float64), (2,), [])
