"""Transforms of many lengths: what is kept of one for the next is bounded."""

import os

import numpy as np
import pytest

import tlrt
from tlrt import kernels
from tlrt.verify.run import Runtime
from tlspec.cases import draw_case
from tlspec.compare import compare_outputs


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


@pytest.mark.operations("rfft1d_packed")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer keeps freed memory resident")
def test_plans_kept_for_later_take_memory_and_not_too_much(python):
    code = """if True:
        import numpy as np, tlrt
        from tlrt.kernels import rfft1d_packed
        x = tlrt.Buffer.from_numpy(np.zeros(1_000_099, np.float32))

        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * 4096

        def transform(n):
            return rfft1d_packed(tlrt.Buffer.from_numpy(np.zeros(n, np.float32)), 1, n)

        transform(1_000_003)
        before = resident()
        for n in range(1_000_005, 1_000_021, 2):  # prime factors above 13: tables of several MiB each
            transform(n)
        print((resident() - before) >> 20)
    """
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert 32 <= int(done.stdout) <= 64 + 32, "MiB that plans take: none are kept, or too many"
