"""Transforms of many lengths: what is kept of one for the next is bounded."""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest

import tlrt
from tlrt import kernels
from tlrt._binding import library as _library
from tlrt.verify.run import Runtime
from tlspec.compare import compare_outputs
from tlspec.draw.cases import draw_case


@pytest.mark.operations("rfft1d_packed", "irfft1d_packed")
def test_rows_near_the_range_are_right():
    """Each result that float32 can hold, whatever overflows on the way; on CUDA where nothing does."""
    cuda = 0
    for name in ("rfft1d_packed", "irfft1d_packed"):
        for which in ("forward", "vjp"):
            for seed in range(16):
                case = draw_case(name, seed, "huge", "edges" if seed % 4 == 3 else "small", which)
                (found,) = compare_outputs(case.expected_on("cpu"), Runtime("cpu").run(case))
                assert found.ok, (case.line, found.explain(case.name))
                (mine,), (theirs,) = case.expected_on("cpu").tolerances, case.expected_on("cuda:0").tolerances
                assert np.isfinite(mine).all() and np.all((theirs == mine) | np.isinf(theirs))
                cuda += int(np.isinf(theirs).sum())
    assert cuda > 1000


@pytest.mark.operations("rfft1d_packed")
@pytest.mark.parametrize("n", [2, 6, 2048, 7000, 7001])
def test_a_bin_beyond_the_range_leaves_the_others(n):
    device = tlrt.device("cpu")
    rows = np.zeros((3, n), np.float32)
    rows[0] = 3e38 * (-1.0) ** np.arange(n)  # in bin n/2, where there is one
    rows[1], rows[2, 0] = 3e38 / n, np.inf
    spec = kernels.rfft1d_packed(device.buffer(rows), 3, n).numpy((3, n // 2 + 1, 2))
    assert not np.isnan(spec[:2]).any() and np.isnan(spec[2]).all()
    assert np.isinf(spec[0]).any() and (n % 2 == 1 or np.isfinite(spec[0, : n // 2]).all())
    assert np.isfinite(spec[1]).all()


HELD = """if True:
    import ctypes, numpy as np, tlrt
    from tlrt.kernels import rfft1d_packed, spectral_conv1d_rfft
    cpu, libc = tlrt.device("cpu"), ctypes.CDLL(None)
    w, x = cpu.zeros(16 * 16), cpu.zeros(16 * 62_501)
    libc.mallinfo2.restype = type("mallinfo2", (ctypes.Structure,), {"_fields_": [(f"f{i}", ctypes.c_size_t) for i in range(10)]})

    def held():
        cpu.collect()
        found = libc.mallinfo2()
        return found.f4 + found.f7  # mapped, and in use of what is not

    def transform(n):
        with cpu.zeros(n) as x:
            rfft1d_packed(x, 1, n).release()
"""


@pytest.mark.operations("rfft1d_packed")
@pytest.mark.skipif(os.confstr("CS_GNU_LIBC_VERSION") is None, reason="counts what glibc has given out")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer has its own malloc")
@pytest.mark.parametrize(
    ("code", "least", "most"),
    [
        # lengths with a prime factor above 13, more than are kept: a second round leaves what the first left
        ("def run():\n        for n in range(2003, 2131, 2): transform(n)\n    run()", -(1 << 14), 1 << 14),
        # many plans of 1.5 MiB, and then one of 26: as many go as it takes, not one
        ("def run():\n        for n in [*range(50021, 50083, 2), 1_000_003]: transform(n)", 32 << 20, 65 << 20),
        # plans of several MiB each are kept, and not too many
        (
            "transform(1_000_003)\n    def run():\n        for n in range(1_000_005, 1_000_021, 2): transform(n)",
            16 << 20,
            65 << 20,
        ),
        # a length that comes again finds its plan
        ("transform(1_000_003)\n    def run():\n        for _ in range(3): transform(1_000_003)", -(1 << 14), 1 << 14),
        # few modes take roots of unity, not a transform of the whole grid
        ("def run(): spectral_conv1d_rfft(x, w, w, 62_501, 16, 1).release()", 1 << 12, 1 << 20),
    ],
    ids=["a leak", "a bound in bytes", "plans kept", "a plan kept", "roots alone"],
)
def test_host_memory_of_plans(python, code, least, most):
    rounds = 3 if least < 0 else 1  # a leak is in each; threads get memory of their own at some time
    measure = (
        f"def grown(before): run(); return held() - before\n    print(min(grown(held()) for _ in range({rounds})))"
    )
    done = python(f"{HELD}\n    {code}\n    {measure}\n")
    assert done.returncode == 0, done.stderr
    assert least <= int(done.stdout) <= most


@pytest.mark.operations("rfft1d_packed")
def test_plans_made_and_dropped_by_several_threads(python):
    """More lengths than are kept, so that plans are made and dropped all the time."""
    code = """if True:
        import threading, numpy as np, tlrt
        from tlrt.kernels import rfft1d_packed

        def run(first):
            with tlrt.Device.new("cpu") as cpu:
                for i in range(3000):
                    n = 2 + (first + 7 * i) % 90
                    with cpu.zeros(n) as x:
                        rfft1d_packed(x, 1, n).release()

        tlrt.set_threads(1)
        threads = [threading.Thread(target=run, args=(11 * k,)) for k in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    """
    done = python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.operations("rfft1d_packed")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="reads machine code")
def test_no_product_of_a_transform_is_fused():
    """Their sources write no fma: a compiler that fuses a product and a sum gives variants different roots of unity, of which
    one in 2^29 then is rounded otherwise."""
    folder = _library.load().path.parent / "obj"
    objects = [
        file for stem in ("chirp", "fft", "plan", "spectral") for file in folder.glob(f"cpu_*/spectral/{stem}.o")
    ]
    if not objects:
        pytest.skip("no objects lie beside the library")
    for file in objects:
        code = subprocess.run(["objdump", "-d", file], capture_output=True, text=True, check=True).stdout
        assert "<" in code and not re.findall(r"\tv?fn?m(?:add|sub|la|ls)\w*", code), file
