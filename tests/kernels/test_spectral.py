"""Transforms of many lengths: what is kept of one for the next is bounded."""

import os

import pytest


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
