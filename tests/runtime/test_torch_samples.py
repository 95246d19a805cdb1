"""Operators on the samples that PyTorch tests itself with: values and gradients in a block, beside float64."""

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from tests import python_path
from tests.runtime.torch_cases import mode, torch

#: parts of the names of operators that draw, or leave memory as it is
UNDEFINED = ("bernoulli", "cauchy", "dropout", "empty", "exponential", "geometric", "jiterator", "multi_head", "multinomial",
             "normal", "rand", "uniform")  # fmt: skip


def cast(x: Any, dtype: Any) -> Any:
    """Arguments with real tensors of a type, at their strides."""
    if isinstance(x, torch.Tensor):
        real = x.is_floating_point() and x.layout == torch.strided
        y = x.detach().to(dtype, copy=True) if real else x.detach().clone()
        return y.requires_grad_(x.requires_grad)
    if isinstance(x, dict):
        return {name: cast(y, dtype) for name, y in x.items()}
    return type(x)(cast(y, dtype) for y in x) if type(x) in (list, tuple) else x


def tensors(x: Any) -> list[Any]:
    if isinstance(x, torch.Tensor):
        return [x] if x.layout == torch.strided else []
    return [t for y in x for t in tensors(y)] if isinstance(x, (list, tuple)) else []


def computed(op: Any, sample: Any, dtype: Any) -> list[Any]:
    """Results, as far as PyTorch says that they are determined, and their gradients along a direction by all arguments that
    need one."""
    x, args, others = cast((sample.input, list(sample.args), sample.kwargs), dtype)
    results = sample.output_process_fn_grad(op(x, *args, **others))
    ends = [t for t in tensors(results) if t.requires_grad]
    leaves = [t for t in tensors([x, args, list(others.values())]) if t.requires_grad]
    along = [torch.linspace(-1, 1, t.numel(), dtype=torch.float64).reshape(t.shape).to(t.dtype) for t in ends]
    grads = torch.autograd.grad(ends, leaves, along, allow_unused=True) if ends and leaves else ()
    return [t.detach() for t in (*tensors(results), *grads) if t is not None]


def off(found: list[Any], exact: list[Any], size: float) -> str:
    """What is wrong with results, or "". Each has few roundings of numbers no larger than `size`."""
    if len(found) != len(exact):
        return f"{len(found)} results, expected {len(exact)}"
    for i, (mine, wanted) in enumerate(zip(found, exact, strict=True)):
        if mine.shape != wanted.shape:
            return f"result {i}: {mine.shape}, expected {wanted.shape}"
        slack = size * 2.0**-14 if wanted.is_floating_point() or wanted.is_complex() else 0
        if not torch.allclose(mine.to(wanted.dtype), wanted, rtol=2.0**-14 if slack else 0, atol=slack, equal_nan=True):
            return f"result {i}: got {mine.flatten()[:6].tolist()}, expected {wanted.flatten()[:6].tolist()}"
    return ""


def wrong(op: Any, count: int) -> Iterator[str]:
    """What is wrong with an operator's samples, "" for one that is right. One that PyTorch's own float32 misses as well lies on
    an edge. What a block leaves to PyTorch is not compared."""
    trained = op.supports_autograd and torch.float32 in op.backward_dtypes
    every = list(islice(op.sample_inputs("cpu", torch.float32, requires_grad=trained), 60 if count > 1 else 1))
    for i, sample in enumerate(every[:: max(1, len(every) // count)][:count]):
        try:
            given = sample.noncontiguous() if i % 2 else sample
            exact = computed(op, given, torch.float64)
        except (RuntimeError, NotImplementedError):  # a sparse tensor, no float64, or no gradient
            continue
        with mode.reproducible() as report:
            found = computed(op, given, torch.float32)
        if report.left or sample.kwargs.get("dropout_p"):
            continue
        real = [t for t in (*tensors([given.input, *given.args]), *exact) if t.is_floating_point() and t.numel()]
        size = max([1.0, *(float(t.detach().abs().nan_to_num(0, 0, 0).max()) for t in real)])
        said = off(found, exact, size)
        said = "" if said and off(computed(op, given, torch.float32), exact, size) else said
        yield said and f"{op.name} {op.variant_test_name}, sample {i}: {said}"


def main(count: int) -> None:
    """Prints what is wrong, and how many samples were compared."""
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    operators = [op for op in op_db if torch.float32 in op.dtypes and not any(n in op.name for n in UNDEFINED)]
    found = [said for op in operators for said in wrong(op, count)]
    print(*filter(None, found), f"{len(found)} compared", sep="\n")


def test_samples_of_pytorch(thorough: bool) -> None:
    """In a process of its own, as the module of samples changes settings of PyTorch and of hypothesis."""
    pytest.importorskip("expecttest")
    child = [sys.executable, "-m", __name__, "4" if thorough else "1"]
    done = subprocess.run(
        child, env={**os.environ, "PYTHONPATH": python_path()}, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *said, summary = done.stdout.splitlines()
    assert not said, "\n".join(said)
    assert int(summary.split()[0]) > 500, summary


if __name__ == "__main__":
    main(int(sys.argv[1]))
