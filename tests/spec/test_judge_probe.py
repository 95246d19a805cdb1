"""Accumulators: how many bits a kernel's sums keep and how they round, found by the probe or declared."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tlspec import arrays, registry
from tlspec.formats import FORMATS
from tlspec.judge import check
from tlspec.judge.kernel import Kernel
from tlspec.judge.probe import Accumulator, accumulator_of, word_of


def cut_off(A: np.ndarray, B: np.ndarray, bits: int = 24) -> np.ndarray:
    """A product whose sums keep so many bits and cut off the rest."""
    total = np.zeros((A.shape[0], B.shape[1]))
    for k in range(A.shape[1]):
        fraction, exponent = np.frexp(total + A[:, k : k + 1].astype(float) * B[k])
        total = np.ldexp(np.trunc(np.ldexp(fraction, bits)), exponent - bits)
    return total.astype(np.float32)


def in_float16(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    total = np.zeros((A.shape[0], B.shape[1]), np.float16)
    for k in range(A.shape[1]):
        total = total + (A[:, k : k + 1] * B[k]).astype(np.float16)
    return total.astype(np.float32)


@pytest.mark.parametrize(("kernel", "bits", "to_nearest"), [
    (np.matmul, 24, True), (cut_off, 24, False), (in_float16, 11, True),
    (lambda A, B: (A.astype(float) @ B).astype(np.float32), 53, True),
    (lambda A, B, m, n, p: np.matmul(A.reshape(m, n), B.reshape(n, p)), 24, True),
])  # fmt: skip
def test_the_probe_finds_the_accumulator(kernel: Callable[..., Any], bits: int, to_nearest: bool) -> None:
    row = registry.get("matmul")
    found = accumulator_of(lambda case: Kernel(kernel, arrays.get("numpy"), case), row, FORMATS["float32"])
    assert found == Accumulator(bits, to_nearest)
    few: dict[str, Any] = {"cases": {"small": 16}, "sensitive": False, "repeats": 8}
    assert check(kernel, "matmul", accumulate="probe", **few).ok == (bits >= 24)


@pytest.mark.parametrize(
    ("bits", "to_nearest", "word"),
    [
        (53, True, "fp64"),
        (50, True, "fp64"),
        (49, True, "fp32"),
        (25, False, "hopper"),
        (24, False, "ampere"),
        (23, False, "fp32"),
    ],
)
def test_words_of_accumulators(bits: int, to_nearest: bool, word: str) -> None:
    assert word_of(Accumulator(bits, to_nearest)) == word


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_sums_of_fourteen_bits_pass_where_that_is_declared(name: str) -> None:
    """Products of 8-bit arrays, as the tensor cores of Hopper sum them."""
    pytest.importorskip("ml_dtypes")

    def kernel(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        return cut_off(A.astype(np.float32), B.astype(np.float32), 14)

    options: dict[str, Any] = {"dtype": name, "out_dtype": "float32", "data": ["uniform", "normal"], "empty": False,
                               "cases": {"small": 16, "medium": 2, "edges": 2}, "repeats": 8}  # fmt: skip
    assert check(kernel, "matmul", fail_fast=True, **options).verdict == "fail"
    declared = check(kernel, "matmul", accumulate="fp8", **options)
    assert declared.ok, declared
