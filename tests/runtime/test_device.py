"""Devices: names, life, memory, time."""

import itertools
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from tests import ROOT, has_cuda
from tlrt import errors, kernels
from tlrt._binding import handles
from tlrt._binding import library as _library
from tlrt.spec import SpecDevice

no_cuda = pytest.mark.skipif(has_cuda(), reason="this machine has a CUDA device")


def test_names():
    assert tlrt.device("cpu") is tlrt.device("cpu")
    assert tlrt.device("cpu", new=True) is not tlrt.device("cpu")
    assert tlrt.device().name == "cpu" and tlrt.devices()[0] == "cpu"
    assert tlrt.describe("cpu") == tlrt.device("cpu").describe() and not tlrt.device("cpu").is_cuda


def test_the_description_names_the_processor():
    lines = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    name = lines[0].partition(": ")[2] if lines else "unknown processor"
    assert tlrt.describe("cpu").startswith(f"CPU, {name}, SIMD variant ")


@pytest.mark.parametrize(
    "name", ["", "CPU", "gpu", "cuda:", "cuda:-1", "cuda:01", "cuda:1 ", "cpu:0", "cuda:9999999999", "cpu\n"]
)
def test_bad_names(name):
    with pytest.raises(errors.ArgumentError) as caught:
        tlrt.device(name)
    assert str(caught.value) == f"device: name: got {name!r}, expected 'cpu', 'cuda' or 'cuda:N'"
    assert isinstance(caught.value, ValueError)


def test_bad_name_types():
    assert_raises_regex(TypeError, "device: name: got int", tlrt.device, 0)


@no_cuda
@pytest.mark.parametrize("name", ["cuda", "cuda:7"])
def test_cuda_without_a_gpu(name, monkeypatch):
    monkeypatch.delenv("TORCHLEAN_CUDA_LIBRARY", raising=False)
    for use in (tlrt.device, tlrt.describe, tlrt.Device.new):
        with pytest.raises(errors.UnavailableError) as caught:
            use(name)
        assert isinstance(caught.value, RuntimeError) and caught.value.status == 50
        assert str(caught.value).startswith(("device: ", "describe: "))
        assert ("cuda`" in str(caught.value)) != ("doctor" in str(caught.value))


def test_close(dev):
    b = dev.zeros(2)
    dev.close()
    dev.close()
    assert dev.closed and b.released
    b.release()
    assert repr(dev) == f"Device({dev.name!r}, closed)"
    for use in (dev.memory, dev.synchronize, lambda: dev.zeros(1), dev.collect, lambda: kernels.add(b, b)):
        assert_raises(errors.ReleasedError, use)


@pytest.mark.parametrize("asked", [None, "fast", "reproducible"])
@pytest.mark.parametrize("later", ["fast", "reproducible"])
def test_a_closed_shared_device_is_made_anew(monkeypatch, asked, later):
    monkeypatch.setattr(handles, "_shared", {})  # other tests use the shared device
    first = tlrt.device("cpu", math=asked)
    first.set_math(later)
    first.close()
    for math in (None, "fast", "reproducible"):
        assert tlrt.device("cpu", math=math) is not first and tlrt.device("cpu", math=math).zeros(1).numpy() == 0


@pytest.mark.parametrize("usual", [None, "fast", "reproducible"])
def test_a_shared_device_has_the_mode_that_is_asked_for(monkeypatch, usual):
    """Or that of the environment, whatever was asked for before."""
    monkeypatch.delenv("TORCHLEAN_MATH", raising=False)
    if usual is not None:
        monkeypatch.setenv("TORCHLEAN_MATH", usual)
    for order in itertools.permutations((None, "fast", "reproducible")):
        monkeypatch.setattr(handles, "_shared", {})
        assert [tlrt.device("cpu", math=m).math for m in order] == [m or usual or "fast" for m in order]


def test_memory(dev):
    assert dev.memory().live_buffers == dev.memory().live_bytes == dev.memory().allocations == 0
    for each in (dev, SpecDevice()):
        kept, other = each.zeros(1000), each.zeros(5000)
        shared = kept.share()
        assert each.memory().live_buffers == 3 and each.memory().live_bytes >= 4 * 6000
        kept.release(), other.release()
        before = each.memory()
        assert before.peak_bytes > before.live_bytes > 0 and before.allocations == 2 >= before.driver_allocations > 0
        assert (before.cached_bytes > 0) is (each is dev)
        each.reset_peak()
        after = each.memory()
        assert after.peak_bytes == after.live_bytes == before.live_bytes and after.cached_bytes == before.cached_bytes
        more = each.zeros(3000)
        assert each.memory().peak_bytes == each.memory().live_bytes > after.peak_bytes
        more.release(), shared.release(), each.collect()
        assert each.memory().live_bytes == each.memory().cached_bytes == 0 < each.memory().peak_bytes


def test_cap(dev):
    dev.cap(1 << 20)
    assert dev.memory().cap_bytes == 1 << 20
    with pytest.raises(errors.OutOfMemoryError) as caught:
        dev.zeros(1 << 20)
    assert isinstance(caught.value, MemoryError) and str(caught.value)
    a, b = dev.zeros(1 << 17), dev.zeros(1 << 16)
    assert_raises(MemoryError, kernels.add, a, a)
    assert dev.memory().live_buffers == 2
    b.release()
    dev.cap(0)
    assert len(dev.zeros(1 << 20)) == 1 << 20
    for bad, kind in ((-1, ValueError), (2**64, ValueError), ("1", TypeError), (1.5, TypeError), (True, TypeError)):
        assert_raises_regex(kind, "cap: limit: got", dev.cap, bad)


def test_time(dev):
    dev.mark(0)
    dev.zeros(10).fill(1)
    dev.mark(7)
    assert dev.elapsed(0, 7) >= 0
    dev.synchronize()
    assert_raises_regex(errors.TorchleanError, "mark", dev.mark, 8)
    assert_raises_regex(errors.TorchleanError, "elapsed", dev.elapsed, 0, 5)
    assert_raises_regex(TypeError, "mark: slot: got str", dev.mark, "0")


def test_repr_and_pickle(dev):
    assert repr(dev) == f"Device({dev.name!r})"
    assert_raises_regex(TypeError, "name", pickle.dumps, dev)
    assert_raises(AttributeError, setattr, dev, "colour", "red")


def test_threads_of_a_process(python):
    """Those that TORCHLEAN_CPU_THREADS names, else a thread for each core that the process may use. A wrong number is refused
    where a device is made."""
    code = """
import os, tlrt
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
for said, use in (
    *((said, tlrt.threads) for said in (None, "", "1024", "3")),
    *((said, tlrt.device) for said in ("0", "1025", "3 ", "many", "-1")),
):
    os.environ.pop("TORCHLEAN_CPU_THREADS", None)
    os.environ.update({} if said is None else {"TORCHLEAN_CPU_THREADS": said})
    child = os.fork()
    if not child:
        try:
            print(use(), flush=True)
        except tlrt.TorchleanError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
    lines = python(code).stdout.splitlines()
    assert lines[:4] == ["1", "1", "1024", "3"]
    for said, line in zip(("0", "1025", "3 ", "many", "-1"), lines[4:], strict=True):
        assert f'TORCHLEAN_CPU_THREADS: got "{said}", expected a whole number from 1 to 1024' in line


def test_threads_and_variants():
    before = tlrt.threads()
    try:
        for count in (1024, 1):
            tlrt.set_threads(count)
            assert tlrt.threads() == count
        for count in (-1, 1025):
            assert_raises_regex(errors.TorchleanError, "set_threads", tlrt.set_threads, count)
    finally:
        tlrt.set_threads(0)
    assert tlrt.threads() == before
    best = tlrt.cpu_variant()
    try:
        tlrt.set_cpu_variant("base")
        assert tlrt.cpu_variant() == "base"
        assert_raises(errors.UnavailableError, tlrt.set_cpu_variant, "sse9")
        assert_raises(TypeError, tlrt.set_cpu_variant, 2)
    finally:
        tlrt.set_cpu_variant(None)
    assert tlrt.cpu_variant() == best


@pytest.mark.parametrize(
    ("source", "named", "said"),
    [
        (True, "", f"run `make -C {ROOT} cuda`"),
        (False, "", "run `TORCHLEAN_BUILD=cuda pip install --force-reinstall .` in the source tree"),
        (True, "/some.so", "unset TORCHLEAN_CUDA_LIBRARY, or set it to a libtorchlean_cuda.so built with CUDA"),
    ],
)
def test_one_remedy_that_fits(monkeypatch, tmp_path, source, named, said):
    class Cpu:
        build_info = {"backend": "cpu"}  # noqa: RUF012

    monkeypatch.setenv("TORCHLEAN_CUDA_LIBRARY", named)
    monkeypatch.setattr(_library, "_TREE", ROOT if source else tmp_path)
    with pytest.raises(errors.UnavailableError) as caught:
        handles._require_cuda("cuda:0", 0, Cpu(), "device")
    text = "device: name: got 'cuda:0', expected 'cpu', as the library is a CPU-only build"
    assert str(caught.value) == f"{text} ({said})"
    handles._require_cuda("cpu", -1, Cpu(), "device")


def test_the_hint_is_for_cuda_devices():
    error = errors.UnavailableError("device: no such device", op="device", status=50)
    assert "doctor" in str(handles._explain_unavailable(error, 0))
    assert handles._explain_unavailable(error, -1) is error
    bad = errors.UnavailableError('device: TORCHLEAN_CPU_VARIANT: got "sse", expected another', op="device", status=50)
    assert handles._explain_unavailable(bad, 0) is bad
    other = errors.CudaError("x")
    assert handles._explain_unavailable(other, 0) is other


def test_kernels_give_their_scratch_back(dev):
    n = 40_000  # three leaves, so that a sum needs scratch
    a, b = dev.zeros(n), dev.zeros(n)
    before = dev.memory().live_bytes
    for _ in range(3):
        kernels.mse_loss(a, b, n).release()
        kernels.reduce_sum(a, n).release()
        kernels.cross_entropy(a, np.zeros(n // 2, np.uint32), 2).release()
    assert dev.memory().live_bytes == before


def test_the_cap_counts_what_is_cached(dev):
    limit = 1 << 20
    dev.collect()
    dev.cap(dev.memory().live_bytes + limit)
    dev.zeros(200_000).release()  # 800 kB wait in the cache, of another size class than what follows
    kept = dev.zeros(100_000)
    memory = dev.memory()
    dev.cap(0)
    assert memory.live_bytes + memory.cached_bytes <= limit
    kept.release()


@pytest.mark.skipif(not has_cuda(), reason="needs a GPU")
@pytest.mark.parametrize("said", ["0", "1"])
def test_calls_of_cuda_end_with_their_work_where_that_is_asked_for(said):
    code = """if 1:
        import time, tlrt
        from tlrt import kernels
        with tlrt.Device.new("cuda") as dev:
            x = dev.full(8192 * 8192, 1.0)
            for _ in range(2):
                dev.synchronize()
                times = [time.monotonic()]
                kernels.matmul(x, x, 8192, 8192, 8192)
                times.append(time.monotonic())
                dev.synchronize()
                times.append(time.monotonic())
            print(times[1] - times[0] > times[2] - times[1])
    """
    environment = {**os.environ, "TORCHLEAN_CUDA_SYNC": said}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{said == '1'}\n"


def test_threads_without_work_sleep(python):
    code = """if 1:
        import time, tlrt
        from tlrt import kernels
        kernels.exp(tlrt.device("cpu").full(1 << 21, 1.0))
        time.sleep(0.1)
        before = time.process_time()
        time.sleep(0.5)
        print(time.process_time() - before < 0.25)
    """
    done = python(code, TORCHLEAN_CPU_THREADS="2")
    assert done.stdout == "True\n", done.stderr
