"""The judge: right kernels pass, whatever their order of sums; wrong ones fail, with a line that repeats it; and the judge says
what it cannot tell."""

import ctypes
import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tlspec
from tests import ROOT, python_path
from tests.spec import address_in
from tlspec import pytest_plugin, references, registry
from tlspec.__main__ import main
from tlspec.draw.cases import Case, Expected, draw_case
from tlspec.formats import FORMATS
from tlspec.judge import Report, check, checking, choice, kept
from tlspec.judge.arithmetic import arithmetic
from tlspec.judge.blocks import ARRAY, blocks_of, independent_dimensions
from tlspec.judge.example import Example
from tlspec.judge.report import Finding
from tlspec.judge.shrink import resized, shrink
from tlspec.judge.trial import Trial, quantised
from tlspec.ops import attention, conv
from tlspec.running import ErrorArray

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
#: the default cases but for the large one and its like, where a defect shows in small ones
SMALL: dict[str, Any] = {"cases": {"small": 24, "edges": 2}, "sensitive": False, "repeats": 50}
#: the arguments of kernels that take any
ORDER = {
    "softmax": "x",
    "reduce_sum_axis1": "x",
    "reduce_sum_axis0": "x",
    "exp": "x",
    "matmul": "A, B",
    "reduce_sum": "x",
}


def softmax(x: np.ndarray) -> np.ndarray:
    if not x.size:
        return x.copy()
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def one_after_the_other(x: np.ndarray) -> np.ndarray:
    """A softmax whose sums are sequential."""
    if not x.size:
        return x.copy()
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / np.add.accumulate(e, axis=1)[:, -1:]


def softmax_vjp(out: np.ndarray, g: np.ndarray) -> np.ndarray:
    return out * (g - (g * out).sum(axis=1, keepdims=True))


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + np.float32(eps)) * weight


def fails(*args: Any, **options: Any) -> bool:
    return check(*args, fail_fast=True, **options).verdict == "fail"


def kinds(report: Report) -> set[str]:
    return {f.kind for f in report.findings}


@pytest.mark.parametrize(("kernel", "options"), [(softmax, {}), (one_after_the_other, SMALL)])
def test_a_right_kernel_passes_in_any_order_of_sums(kernel: Callable[..., Any], options: dict[str, Any]) -> None:
    report = tlspec.check(kernel, "softmax", **options)
    assert report.verdict == "pass", report
    assert report.repeats
    assert {r.data for r in report.rows} == {
        *["normal", "uniform", "integers", "special", "structured", "offset", "spread"]
    }
    assert 0 < report.share < 1
    assert not any(r.failed for r in report.rows)
    for name in () if options else ("zeros", "a copy of an input", "an earlier result"):
        caught, changed = report.sensitivity[name]
        assert caught == changed > 0, name


@pytest.mark.parametrize(
    ("backward", "options"),
    [
        (softmax_vjp, {"cases": {"small": 2, "large": 1}, "data": "normal", "repeats": 50}),
        (lambda x, g: softmax_vjp(softmax(x), g), SMALL),
    ],
)
def test_a_gradient_takes_the_output_or_the_input(backward: Callable[..., Any], options: dict[str, Any]) -> None:
    report = check(softmax, "softmax", backward=backward, **options)
    assert report.ok, report
    assert {r.which for r in report.rows} == {"forward", "vjp"}
    told = {n.removesuffix(" (vjp)") for n in report.sensitivity if n.endswith(" (vjp)")}
    assert {"zeros", "shifted by one"} <= told & report.sensitivity.keys() or "sensitive" in options


def test_zeros_copies_and_stale_results_are_caught() -> None:
    kept: dict[tuple[int, ...], np.ndarray] = {}

    def stale(x: np.ndarray) -> np.ndarray:
        return kept.setdefault(x.shape, softmax(x))

    for wrong in (lambda x: np.zeros_like(x), lambda x: x.copy(), lambda x: np.full_like(x, np.nan)):
        report = check(wrong, "softmax", cases={"small": 1}, sensitive=False)
        assert not report.ok
        assert next(r.cases >= r.failed > 1 for r in report.rows if r.data == "normal")
    assert kinds(check(stale, "softmax", data="normal", **SMALL)) & {"value", "stale"}
    (finding,) = check(lambda x: stale(x).copy(), "softmax", case="0:normal:small").findings
    assert finding.kind == "stale" and finding.text.startswith("from other numbers in arrays of these shapes: out[")


@pytest.mark.parametrize(("op", "kernel", "where"), [
    ("softmax", lambda x: softmax(x) * np.float32(x.shape[1] != 1), "cols=1"),
    ("matmul", lambda A, B: A @ B if A.shape[1] else np.full((len(A), B.shape[1]), np.nan, np.float32), "n=0"),
    ("transpose2d", lambda x: x.copy() if x.shape[0] == x.shape[1] else x.T.copy(), "rows=33, cols=33"),
    ("reduce_sum", lambda x: x[: x.size % 2**16].sum(keepdims=True), ":integers:large"),
    # a tile without a maximum beside tiles that have one
    ("softmax", lambda x: softmax(x) * np.where((x[:, :64] == -np.inf).all(axis=1), np.float32("nan"), 1)[:, None], "cols=8209"),
])  # fmt: skip
def test_sizes_that_draws_seldom_have(op: str, kernel: Callable[..., Any], where: str) -> None:
    report = check(kernel, op, **({} if where.endswith("large") else SMALL))
    address = address_in(next(f for f in report.findings if where in f.repeat))
    assert fails(kernel, op, case=address)
    assert not fails(kernel, op, case=address, data="normal") or "8209" not in where, "special numbers are not wanted"


def test_lengths_that_draws_have_seldom() -> None:
    """Each beyond a grid beside one beyond a warp; of each axis 0, 1 and long ones; tiles in a few matrices of a batch."""
    op = registry.get("softmax")
    small, special = (draw_case(op, 0, data, "small") for data in ("normal", "special"))
    found = choice.seldom_drawn([small, special], True)
    sizes = [c.dims for c in found if c.data == "normal"]
    for long, other in itertools.permutations(("rows", "cols")):
        assert any(each[long] > 65535 and each[other] > 32 for each in sizes)
        assert {0, 1, choice.WIDTH, choice.VOCABULARY} <= {each[long] for each in sizes}
        assert any(c.dims[long] == 1 for c in found if c.data == "special")
    square = {(c.data, c.dims["rows"]) for c in found if len({*c.dims.values()}) == 1}
    assert square >= {("special", choice.SQUARE), *(("normal", n) for n in (2, 16, 33, 64, 128, 256))}
    tiles = [c.dims for c in choice.seldom_drawn([draw_case("bmm", 0, "normal", "small")], False)]
    assert {n["m"] for n in tiles if n["batch"] == 3 and n["m"] == n["n"] == n["p"]} > {33, 64, 128}


def test_lengths_that_belong_together_are_tried() -> None:
    """A window of three with many channels; more than two tiles of 128 keys."""

    def convolution(x, w, b, stride_h, stride_w, padding_h, padding_w):  # type: ignore[no-untyped-def]
        right = conv.conv2d(x, w, b, stride_h, stride_w, padding_h, padding_w).astype(np.float32)
        return right * np.float32(w.shape[1] < 16 or w.shape[2:] != (3, 3))

    def attend(Q, K, V, mask, mask_mode, scale):  # type: ignore[no-untyped-def]
        right = attention.flash_attention(Q, K, V, mask, mask_mode, scale).astype(np.float32)
        return right * np.float32(Q.shape[1] <= 256 or Q.shape[2] < 32)

    for kernel, op in ((convolution, "conv2d"), (attend, "flash_attention")):
        options: dict[str, Any] = {"data": "normal", "sensitive": False, "repeats": 0, "isolate": False}
        (found,) = check(kernel, op, fail_fast=True, **options).findings
        assert found.kind == "value"
        assert fails(kernel, op, isolate=False, case=address_in(found))


def test_what_follows_from_parameters_alone_has_errors_too() -> None:
    """A rotation by sines and cosines that are an ulp off, of right angles."""

    def turn(x: np.ndarray, base: float, start: int, halves: int) -> np.ndarray:
        _, n, d = x.shape
        angle = (start + np.arange(n)[:, None]) * base ** (-2 * np.arange(d // 2) / max(d, 1))
        c, s = (np.nextafter(f(angle).astype(np.float32), np.float32(np.inf)) for f in (np.cos, np.sin))
        out, half = np.empty_like(x), d // 2
        i, j = (slice(0, half), slice(half, d)) if halves else (slice(0, d, 2), slice(1, d, 2))
        out[..., i], out[..., j] = x[..., i] * c - x[..., j] * s, x[..., i] * s + x[..., j] * c
        return out

    report = check(turn, "rotary", data=("normal", "uniform"), empty=False, **SMALL)
    assert report.ok, report


DEFECTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "no maximum is subtracted": ("softmax", lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) if x.size else x.copy()),
    "the last column is left out": ("reduce_sum_axis1", lambda x: x[:, :-1].sum(axis=1)),
    "inputs in TF32": ("matmul", lambda A, B: tf32(A) @ tf32(B)),
    "a float16 result": ("softmax", lambda x: softmax(x).astype(np.float16)),
    "a float64 result": ("softmax", lambda x: softmax(x.astype(np.float64))),
    "another shape": ("softmax", lambda x: softmax(x).T),
    "a column too few": ("softmax", lambda x: softmax(x)[:, 1:]),
    "an input is changed": ("exp", lambda x: np.exp(x, out=x).copy()),
    "the input is returned": ("relu", lambda x: np.maximum(x, 0, out=x)),
    "an exception": ("softmax", lambda x: 1 / 0),
    "nothing": ("softmax", lambda x: None),
    "strides are ignored": ("exp", lambda x: np.exp(np.lib.stride_tricks.as_strided(x, x.shape, (x.itemsize,)))),
    "NaN becomes 0": ("relu", lambda x: np.nan_to_num(np.maximum(x, 0), nan=0.0, posinf=np.inf)),
    "an overflow on the way": ("softplus", lambda x: np.log1p(np.exp(x))),
    "biased where it should not be": (
        "var", lambda x, axes, correction: np.var(x, axis=tuple(k for k in range(x.ndim) if axes >> k & 1))),
}  # fmt: skip
#: what is found of those that do more than give wrong values
KINDS = {
    "a float16 result": {"result"}, "a float64 result": {"result"}, "another shape": {"value", "result"}, "nothing": {"result"},
    "a column too few": {"result"},
    "an input is changed": {"inputs"}, "the input is returned": {"inputs", "alias"}, "an exception": {"error"},
}  # fmt: skip


def tf32(x: np.ndarray) -> np.ndarray:
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_wrong_kernel_fails_with_a_line_that_repeats_it(name: str) -> None:
    op, kernel = DEFECTS[name]
    report = check(kernel, op, **SMALL)
    assert report.verdict == "fail" and kinds(report) == KINDS.get(name, {"value"}), report
    with pytest.raises(AssertionError, match="fail"):
        report.assert_ok()
    finding = report.findings[0]
    address = address_in(finding)
    again = check(kernel, op, case=address)
    assert again.verdict == "fail", finding.repeat


def _by_sample(x: np.ndarray, axis: int) -> np.ndarray:
    mean = x.mean(axis=axis)
    sample = np.moveaxis(x, axis, -1)[..., ::64]
    return np.where(
        (sample == sample[..., :1]).all(axis=-1) & (x.shape[axis] > 64),
        sample[..., :1].max(axis=-1, initial=-np.inf),
        mean,
    )


def _by_the_row_before(W: np.ndarray, x: np.ndarray, b: np.ndarray) -> np.ndarray:
    y = x @ W.T + b
    for r in range(1, len(x) if x.shape[1] > 32 else 0):
        if np.array_equal(x[r, :16], x[r - 1, :16]) and np.array_equal(x[r, -16:], x[r - 1, -16:]):
            y[r] = y[r - 1]
    return y


def _by_running_sums(x: np.ndarray, kernel: Any, stride: Any, padding: Any) -> np.ndarray:
    y = np.pad(x.astype(np.float64), [(0, 0), *((p, p) for p in padding)])
    exact = np.lib.stride_tricks.sliding_window_view(y, tuple(kernel), tuple(range(1, y.ndim))).mean(
        axis=tuple(range(-len(kernel), 0))
    )
    for axis, k in enumerate(kernel, 1):
        c = np.pad(np.cumsum(y, axis), [(0, 0)] * axis + [(1, 0)] + [(0, 0)] * (y.ndim - axis - 1))
        ends = np.arange(y.shape[axis] - k + 1)
        y = (c.take(ends + k, axis) - c.take(ends, axis)) / k
    return np.where(np.isfinite(y), y, exact)[(slice(None), *(slice(None, None, s) for s in stride))]


def _without_tiles_of_zeros(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    out = np.zeros((len(A), B.shape[1]), np.float32)
    for k in range(0, A.shape[1], 16):
        if A[:, k : k + 16].any():
            out += A[:, k : k + 16] @ B[k : k + 16]
    return out


def _kept(key: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], np.ndarray]:
    known: dict[Any, np.ndarray] = {}

    def kernel(x: np.ndarray) -> np.ndarray:
        return known.setdefault((x.shape, key(x)), np.maximum(x, 0)).copy()

    return kernel


#: wrong where numbers, parameters or lengths are as draws have them seldom
SELDOM: dict[str, tuple[str, Callable[..., Any]]] = {
    "a maximum begins at 0": (
        "amax", lambda x, axes: np.max(x, axis=tuple(k for k in range(x.ndim) if axes >> k & 1),
                                       initial=0 if x.size > 1024 and (x < 0).all() else -np.inf)),
    "small terms are dropped": (
        "softmax", lambda x: np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf)) / np.where(
            (e := np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))) < np.exp(-16), 0, e).sum(axis=1, keepdims=True)),
    "a sample stands for all": ("reduce_mean", _by_sample),
    "rows that begin and end alike are one": ("linear", _by_the_row_before),
    "running sums are subtracted": ("avg_pool", _by_running_sums),
    "tiles of zeros are passed over": ("matmul", _without_tiles_of_zeros),
    "upper bits are a key": ("relu", _kept(lambda x: (np.ascontiguousarray(x).view(np.uint32) >> 12).tobytes())),
    "first numbers in a place are a key": (
        "relu", _kept(lambda x: (x.ctypes.data, x[:256].tobytes(), x.size) if x.size > 999 else x.tobytes())),
    "infinite too early": ("exp", lambda x: np.where(x > np.float32(88.7), np.float32(np.inf), np.exp(x))),
    "eps is never 0": ("layer_norm", lambda x, gamma, beta, eps: (
        (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + np.float32(max(eps, 1e-12)))
        * gamma + beta)),
    "a little decay is none": ("sgd_step", lambda ps, gs, lr, weight_decay: ps - np.float32(lr) * (
        gs + np.float32(weight_decay if weight_decay > 1e-3 else 0) * ps)),
}  # fmt: skip


@pytest.mark.parametrize("name", SELDOM)
def test_what_draws_seldom_have_is_tried(name: str) -> None:
    op, kernel = SELDOM[name]

    def quiet(*args: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(kernel(*args, **named), np.float32)

    report = check(functools.wraps(kernel)(quiet), op, fail_fast=True, sensitive=False, repeats=0)
    assert {f.kind for f in report.findings} <= {"value", "stale"} and not report.ok, report
    address = address_in(report.findings[0])
    assert fails(functools.wraps(kernel)(quiet), op, sensitive=False, case=address), report.findings[0]


def test_what_a_kernel_does_not_support_is_no_failure() -> None:
    def kernel(x: np.ndarray) -> np.ndarray:
        if x.shape[1] % 2:
            raise NotImplementedError
        return softmax(x)

    report = check(kernel, "softmax", **SMALL)
    assert report.ok and report.unsupported > 0 and sum(r.cases for r in report.rows) > 0
    assert f"{report.unsupported} cases that the kernel does not support" in str(report)


def test_a_failure_shrinks() -> None:
    """To the least lengths, which no drawn case has."""
    kernel = lambda x: np.where(np.arange(x.shape[1]) == 37, 0, softmax(x))
    report = check(kernel, "softmax", data="normal", fail_fast=True, **SMALL)
    assert "; rows=1, cols=38'" in report.findings[0].repeat, report
    case = resized(draw_case("softmax", 0, "normal", "small"), {"rows": 40, "cols": 60})
    least = shrink(case, lambda c: c.values["cols"] > 4 and 2 * c.values["rows"] >= c.values["cols"])  # type: ignore[arg-type]
    assert least.values == {"rows": 3, "cols": 5}, "each again where another became less"


def test_a_smaller_case_has_the_first_elements_of_all_arrays() -> None:
    case = draw_case("matmul", 0, "normal", "small", "vjp")
    values = {**case.values, "m": case.values["m"] - 1}
    part = resized(case, values)
    assert part is not None
    (g,), (small,) = case.cotangents.values(), part.cotangents.values()
    assert np.array_equal(small, g[:-1]) and np.array_equal(part.inputs["A"], case.inputs["A"][:-1])


def test_a_fault_that_comes_and_goes_is_reported() -> None:
    """The smaller case that the search found has it no more."""
    calls = itertools.count()
    assert kinds(check(lambda x: softmax(x) * np.float32(1 + (next(calls) < 2)), "softmax", **SMALL)) == {"value"}


def test_an_output_that_the_kernel_writes_is_poisoned_and_guarded() -> None:
    def right(x: np.ndarray, out: np.ndarray) -> None:
        np.exp(x, out=out)

    def outside(before: bool) -> Callable[..., None]:
        def beyond(x: np.ndarray, out: np.ndarray) -> None:
            np.exp(x, out=out)
            if out.flags.c_contiguous and out.size > 8:
                ctypes.c_float.from_address(out.ctypes.data + (-4 if before else out.nbytes)).value = 0

        return beyond

    def partly(x: np.ndarray, out: np.ndarray) -> None:
        np.exp(x[:-1], out=out[:-1])

    assert check(right, "exp", **SMALL).ok
    assert "canary" in kinds(check(outside(True), "exp", **SMALL))
    assert "canary" in kinds(check(outside(False), "exp", **SMALL))
    assert "value" in kinds(check(partly, "exp", **SMALL))


def test_a_check_that_can_tell_nothing_is_blind() -> None:
    """Of a sum in any order of numbers that cancel, float16 accumulation leaves nothing that is certain."""
    report = check(
        lambda x: x.sum(keepdims=True),
        "reduce_sum",
        accumulate="fp8",
        data="normal",
        cases={"large": 2},
        sensitive=False,
    )
    assert report.verdict == "blind", report
    assert check(softmax, "softmax", cases={"small": 0}).verdict == "blind"


def test_results_that_a_gradient_reads_are_rounded_once() -> None:
    """The numbers of one case and of the same case beside others, of a gradient that reads the forward results."""

    def gradient(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        made = registry.get("gru_cell").rule.reference(*(x.astype(np.float32) for x in arrays))
        return tuple(x.astype(np.float16) for x in made)

    case = "vjp:50000:normal:edges"
    report = check(None, "gru_cell", backward=gradient, dtype="float16", case=case, isolate=False, sensitive=False)
    assert report.ok and report.neighbours, report


def test_a_reference_of_ones_own_is_enough() -> None:
    own = {"reference": rms_norm, "inputs": "x[rows, cols], weight[cols]; eps: float = 1e-6"} | SMALL
    report = check(rms_norm, data=["normal", "uniform", "integers"], **own)
    assert report.ok, report
    low = check(lambda x, weight, eps: rms_norm(tf32(x), tf32(weight), eps), data="normal", **own)
    assert low.verdict == "fail"
    wrong = check(lambda x, weight, eps: rms_norm(x, weight, 10 * eps), **own)
    assert wrong.verdict == "fail"
    given = {"x": np.ones((3, 64)), "weight": np.ones(64), "eps": 1e-6}
    assert check(rms_norm, data="normal", **own | {"inputs": given}).ok


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_formats(dtype: str) -> None:
    def kernel(x: np.ndarray) -> np.ndarray:
        return softmax(x.astype(np.float64 if dtype == "float64" else np.float32)).astype(dtype)

    report = check(kernel, "softmax", dtype=dtype, **SMALL)
    assert report.ok, report
    if dtype == "float64":
        lower = lambda x: softmax(x.astype(np.float32)).astype(dtype)
        assert fails(lower, "softmax", dtype=dtype, data="normal", **SMALL)
    assert fails(lambda x: softmax(x.astype(np.float32)), "softmax", dtype=dtype, data="normal", **SMALL)


def test_the_arithmetic_that_is_assumed_can_be_said() -> None:
    def sums_in_float16(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        total = np.zeros((A.shape[0], B.shape[1]), np.float16)
        for k in range(A.shape[1]):
            total = (total + A[:, k : k + 1].astype(np.float16) * B[k].astype(np.float16)).astype(np.float16)
        return total

    options: dict[str, Any] = {"dtype": "float16", "data": ["uniform"], "cases": {"small": 12}}
    assert fails(sums_in_float16, "matmul", **options)
    assert not check(sums_in_float16, "matmul", accumulate="fp16", intermediate="fp16", **options).findings
    with pytest.raises(ValueError, match="height='up'"):
        check(softmax, "softmax", height="up")
    with pytest.raises(ValueError, match="no number format"):
        check(softmax, "softmax", accumulate="fp33")


def test_arguments_in_another_order() -> None:
    def kernel(axis: int, values: np.ndarray) -> np.ndarray:
        return values.sum(axis=axis)

    assert check(kernel, "reduce_sum_axis", arguments="axis, x", **SMALL).ok
    assert check(lambda *, axis, a: a.sum(axis=axis), "reduce_sum_axis", arguments="a=x, axis=axis", **SMALL).ok
    assert check(np.sum, "reduce_sum_axis", arguments=lambda f, v: f(v["x"], axis=v["axis"]), **SMALL).ok
    with pytest.raises(ValueError, match="none of"):
        check(kernel, "reduce_sum_axis", arguments="axis, y")


def layer_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float) -> np.ndarray:
    if not x.size:
        return x.copy()
    d = x - x.mean(1, keepdims=True)
    return d / np.sqrt((d * d).mean(1, keepdims=True) + np.float32(eps)) * gamma + beta


def test_batches_and_repeats_are_told() -> None:
    calls = itertools.count()
    assert check(softmax, "softmax", **SMALL).batches
    assert check(layer_norm, "layer_norm", **SMALL).batches, "a law of the row says it"
    noisy = check(lambda x: softmax(x) * np.float32(1 + next(calls) * 2.0**-23), "softmax", data="normal", **SMALL)
    assert noisy.repeats is False


@pytest.mark.parametrize("lacking", ["normal", "integers"])
@pytest.mark.parametrize("name", ["repeats", "batches", "neighbours"])
def test_a_property_that_one_data_class_lacks_is_lacking(name: str, lacking: str) -> None:
    """Whichever class is judged first. Results of that class depend on chance, on the length, or on the first number."""
    rng = np.random.default_rng(0)

    def kernel(x: np.ndarray) -> np.ndarray:
        out = np.exp(x)
        if not x.size or (x[-1] == np.floor(x[-1])) != (lacking == "integers"):
            return out
        up = {"repeats": rng.random(x.shape) < 0.5, "batches": len(x).bit_length() % 2, "neighbours": x[0] > 0}[name]
        return np.nextafter(out, np.where(up, np.inf, -np.inf).astype(np.float32))

    data = ["normal", "integers"]
    report = check(kernel, "exp", data=data, cases={"small": 8}, repeats=0, sensitive=False, isolate=False)
    assert getattr(report, name) is False, report


def test_reports_can_be_kept() -> None:
    report = check(softmax, "softmax", cases={"small": 2}, repeats=0)
    assert json.loads(report.json())["verdict"] == "pass"
    assert "<h1>softmax as softmax: pass</h1>" in report.html()
    assert "pass: " in str(report)


@pytest.mark.parametrize("counts", [{"value": 3}, {"value": 4}, {"law": 1, "value": 5, "alias": 4}], ids=str)
def test_a_report_says_how_many_findings_it_leaves_out(counts: dict[str, int]) -> None:
    report = Report("kernel", "exp", "float32", "numpy", "any order of sums")
    report.findings = [Finding(kind, f"case {i}", "again") for kind, n in counts.items() for i in range(n)]
    lines = str(report).splitlines()
    for kind, n in counts.items():
        assert [line for line in lines if line.startswith(f"{kind}: ")] == [
            f"{kind}: case {i}" for i in range(min(n, 3))
        ]
        assert (f"... and {n - 3} more of the kind {kind}" in lines) == (n > 3)


def test_a_law_that_does_not_hold_is_a_finding() -> None:
    """Where all numbers are within their bounds; its line repeats it."""
    kernel = lambda x: np.where(x < 0, np.nextafter(np.tanh(x), np.float32(0)), np.tanh(x))
    (found,) = check(kernel, "tanh", cases={}, isolate=False).findings
    address = address_in(found)
    assert found.kind == "law" and found in check(kernel, "tanh", case=address, isolate=False).findings


def test_a_report_counts_its_cases() -> None:
    """Those without elements, those that are wrong, and the elements of all others."""
    sizes = [draw_case("relu", seed, "normal", "medium").inputs["x"].size for seed in range(8, 14)]
    few: dict[str, Any] = {"data": "normal", "seed": 8, "repeats": 0, "isolate": False}
    kernel = lambda x: np.maximum(x, 0, out=x if x.size % 2 else None) * np.float32(x.size % 2 + 1)
    report = check(kernel, "relu", cases={"medium": 6}, **few)
    (row,), wrong = report.rows, [n for n in sizes if n % 2]
    assert (row.cases, row.empty, row.failed) == (6, 1, len(wrong)) and row.elements == sum(sizes) - sum(wrong) > 0
    assert check(softmax, "softmax", case="0:normal:small; rows=0", **few).calls == 0 < report.seconds


def test_no_case_has_a_seed_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn cases, those of laws, and those with other parameters."""
    seeds, drawn = set[int](), kept.drawn

    def counted(op: registry.Op, seed: int, *words: str) -> Case:
        seeds.add(seed)
        return drawn(op, seed, *words)

    monkeypatch.setattr(kept, "drawn", counted)
    check(layer_norm, "layer_norm", seed=7000, isolate=False, **SMALL)
    assert min(seeds) == 7000, seeds


@pytest.mark.parametrize("place", range(3))
def test_every_result_belongs_to_the_caller(place: int) -> None:
    """Who may write to it: a kernel that returns an array again returns what was written."""
    known: dict[Any, np.ndarray] = {}

    def kernel(x: np.ndarray) -> tuple[np.ndarray, ...]:
        made = [x * np.float32(k) for k in (2, 4, 8)]
        made[place] = known.setdefault((x.shape, x.tobytes()), made[place])
        return tuple(made)

    options: dict[str, Any] = {"reference": lambda x: (2 * x, 4 * x, 8 * x), "data": "normal", "isolate": False,
                               "inputs": "x[rows, cols] -> a[rows, cols], b[rows, cols], c[rows, cols]"}  # fmt: skip
    assert kinds(check(kernel, **options, **SMALL)) & {"value", "stale"}


@pytest.mark.parametrize(("number", "found"), [(7.0, {"value"}), (np.nan, set()), (0.0, set())])
@pytest.mark.parametrize("op", ["gelu", "silu"])
def test_beside_a_formula_that_gives_no_number_not_every_number_is_right(
    op: str, number: float, found: set[str]
) -> None:
    """x times a share of 0 is NaN at -inf, and so it may be, or 0."""

    def kernel(x: np.ndarray) -> np.ndarray:
        return np.where(x == -np.inf, number, registry.get(op)(x)).astype(np.float32)

    assert kinds(check(kernel, op, data="special", isolate=False, **SMALL)) == found


@pytest.mark.parametrize(("arguments", "status", "text"), [
    (["softmax", "--op", "softmax", "--data", "normal"], 0, "pass"),
    (["wrong", "--op", "softmax", "--data", "normal"], 1, "fail"),
    (["shy", "--op", "softmax"], 1, "blind"),
    (["missing", "--op", "softmax"], 2, "no function or class missing"),
    (["softmax", "--op", "softmaxx"], 2, "did you mean softmax"), (["softmax"], 2, "which operation"),
    (["softmax", "--op", "softmax", "--formulas", "fft"], 2, "formulas='fft': softmax in float32 has no formula of this name"),
])  # fmt: skip
def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, text: str
) -> None:
    source = (
        "import numpy as np\ndef softmax(x):\n    if not x.size: return x.copy()\n    e = np.exp(x - x.max(1, keepdims=True))\n"
        "    return e / e.sum(1, keepdims=True)\ndef wrong(x):\n    return softmax(x) * np.float32(1.001)\n"
        "def shy(x):\n    raise NotImplementedError\n"
    )
    (tmp_path / "kernels.py").write_text(source)
    kept = ["--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")]
    found = main(["check", f"{tmp_path}/kernels.py:{arguments[0]}", *arguments[1:], *kept])
    told = capsys.readouterr()
    assert found == status, told
    assert text in told.out + told.err
    assert (tmp_path / "r.json").exists() == (tmp_path / "r.html").exists() == (status < 2)
    assert status == 2 or f"as softmax: {text}</h1>" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_line_of_the_command_repeats_a_named_reference(tmp_path: Path) -> None:
    source = "def twice(x):\n    return x + x\ndef wrong(x):\n    return x + x + x\n"
    (tmp_path / "pair.py").write_text(source)
    wrong, meant = (f"{tmp_path}/pair.py:{name}" for name in ("wrong", "twice"))
    command = ["check", wrong, "--reference", meant, "--inputs", "x[n]", "--json", str(tmp_path / "r.json")]
    assert main(command) == 1
    (first, *_) = json.loads((tmp_path / "r.json").read_text())["findings"]
    again = eval(first["repeat"], {"tlspec": tlspec})
    assert not again.ok and again.op == "twice"


def test_lengths_of_0_that_a_reference_refuses_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said; and an error with other lengths, of whatever type, names the reference's own line."""
    (tmp_path / "own.py").write_text(
        "import numpy as np\ndef less(x):\n    return x - np.max(x, axis=1, keepdims=True)\n"
        "def cut(x):\n    return x[:, :2] + x\ndef lost(x):\n    return y\n"
    )
    names = {name: f"{tmp_path}/own.py:{name}" for name in ("less", "cut", "lost")}
    report = check(names["less"], reference=names["less"], inputs="x[rows, cols]", **SMALL)
    assert report.verdict == "pass" and any("refuses were not tried: ValueError: zero-size" in n for n in report.notes)
    assert any("(own.py:3, in less: return x - np.max" in note for note in report.notes)
    assert report.rows[0].empty  # no rows are taken
    for name, said in {"cut": "ValueError: operands", "lost": "NameError: name 'y'"}.items():
        words = ["--reference", names[name], "--inputs", "x[rows, cols] -> out[rows, cols]", "--repeats", "0"]
        assert main(["check", names["less"], *words]) == 2
        told = capsys.readouterr().err
        assert said in told and f"(own.py:{5 if name == 'cut' else 7}, in {name}: return " in told


@pytest.mark.parametrize(("ending", "said"), [
    ("os._exit(0)", "ended with status 0, expected results"), ("os._exit(3)", "ended with status 3, expected results"),
    ("os.kill(os.getpid(), 9)", "ended by signal 9 (SIGKILL)"), ("sys.exit(0)", "ended the program with status 0"),
    ("sys.exit()", "ended the program with status None"), ("exit(2)", "ended the program with status 2"),
    ("atexit.register(os._exit, 0)", "fail"),
])  # fmt: skip
@pytest.mark.parametrize("calls", [0, 7])
def test_a_kernel_that_ends_the_process_does_not_pass(tmp_path: Path, ending: str, said: str, calls: int) -> None:
    source = (
        f"import atexit, os, sys\nimport numpy as np\nleft = [{calls}]\ndef kernel(x):\n    left[0] -= 1\n"
        f"    if left[0] < 0: {ending}\n    return np.exp(x) * np.float32(1.001 if left[0] < 0 else 1)\n"
    )
    (tmp_path / "ends.py").write_text(source)
    report = check(f"{tmp_path}/ends.py:kernel", "exp", **SMALL)
    assert report.verdict == "fail" and said in str(report)


@pytest.mark.parametrize(("operation", "kernel"), [
    ("softmax", softmax), ("reduce_sum_axis1", lambda x: x.sum(1)), ("reduce_sum_axis0", lambda x: x.sum(0)), ("exp", np.exp),
    ("matmul", np.matmul), ("reduce_sum", lambda x: x.sum(keepdims=True)),
])  # fmt: skip
def test_a_result_with_an_axis_more_fails(operation: str, kernel: Callable[..., np.ndarray]) -> None:
    """Wherever it is, and also where all axes are of length 1; a number stands for a result of one element."""
    few: dict[str, Any] = {"data": "normal", "cases": {"small": 4}, "sensitive": False, "repeats": 50}
    same = check(kernel, operation, **few)
    assert same.ok, same
    for axis in range(len(registry.get(operation).signature.outputs[0].dims) + 1):
        more = check(
            lambda *a, axis=axis: np.expand_dims(kernel(*a), axis), operation, arguments=ORDER[operation], **few
        )
        assert not more.ok and "a result of shape" in str(more)
    if operation == "reduce_sum":
        assert check(lambda x: x.sum(), operation, **few).ok


def test_the_command_lists_every_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out == "".join(
        f"{r.name:32s}{r.text}\n" for r in [*registry.operations(), *references.references()]
    )


@pytest.mark.parametrize(("names", "listed"), [
    (["conv2d"], "conv2d"), (["softmax, exp"], "exp softmax log_softmax"),
    (["swi*", "random"], "rand_uniform bernoulli_mask rand_normal swiglu"),
    (["fused"], "fused_add_rms_norm swiglu geglu geglu_erf"), (["exp", "softmaxx"], "did you mean softmax"),
])  # fmt: skip
def test_the_command_lists_names_families_and_patterns(
    capsys: pytest.CaptureFixture[str], names: list[str], listed: str
) -> None:
    known = "mean" not in listed
    assert main(["list", *names]) == (0 if known else 2)
    told = capsys.readouterr()
    assert [line.split()[0] for line in told.out.splitlines()] == (listed.split() if known else [])
    assert known or listed in told.err


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, tlspec; print([m for m in sys.modules if m.startswith(('numpy', 'tlspec.'))], dir(tlspec))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("[]")
    assert "'check'" in found.stdout


def test_a_row_is_called_like_a_function() -> None:
    from tlspec.ops import norm
    from tlspec.ops.softmax import softmax as meaning

    assert np.allclose(meaning([[0.0, 0.0]]), 0.5)
    assert norm.layer_norm(np.eye(3), np.ones(3), np.zeros(3)).shape == (3, 3)
    with pytest.raises(TypeError, match="gamma, beta missing"):
        norm.layer_norm(np.eye(3))


@pytest.mark.parametrize("op", ["exp", "softmax", "matmul", "bmm", "layer_norm"])
def test_large_cases_are_judged_in_blocks(op: str) -> None:
    """The blocks cover every output once, and say what the whole says."""
    row = registry.get(op)
    assert independent_dimensions(row, "forward") == {"exp": ("*",), "softmax": ("rows",), "matmul": ("m", "p"),
                                                      "bmm": ("batch", "m", "p"), "layer_norm": ("rows",)}[op]  # fmt: skip
    values = {"exp": {"n": 2**21 + 5}, "softmax": {"rows": 1031, "cols": 2048},
              "matmul": {"m": 1030, "n": 300, "p": 1700}, "bmm": {"batch": 70, "m": 131, "n": 64, "p": 140},
              "layer_norm": {"rows": 1100, "cols": 2000, "eps": 1e-5}}[op]  # fmt: skip
    case = resized(draw_case(op, 0, "normal", "small"), values)
    assert case is not None
    result = np.asarray(row(*case.inputs.values(), **case.params)).astype(np.float32)
    whole = Trial(case, FORMATS["float32"], arithmetic())
    covered = np.zeros(result.shape, int)
    for part, (place,) in blocks_of(case):
        covered[place] += 1
        assert all(x is None or x.size <= ARRAY for x in part.inputs.values())
    assert covered.min() == covered.max() == 1
    (outcome,) = whole.compare([result])
    small = Trial(case, FORMATS["float32"], arithmetic())
    small.large = False
    (expected,) = small.compare([result])
    assert whole.large
    assert (outcome.ok, outcome.count) == (True, result.size)
    assert outcome.share == pytest.approx(expected.share, rel=1e-6)
    result.flat[-1] += 1
    (outcome,) = whole.compare([result])
    assert outcome.index == tuple(n - 1 for n in result.shape)
    assert outcome.violations == 1


def test_a_small_case_is_one_block() -> None:
    case = draw_case("matmul", 0, "normal", "small", "vjp")
    ((part, places),) = blocks_of(case)
    assert part is case
    for output, place in zip(case.signature.outputs, places, strict=True):
        assert np.ones(case.shape(output))[place].shape == case.shape(output)


def test_examples_for_tests_of_ones_own() -> None:
    example = Example("layer_norm", "3:normal:small")
    assert [type(a).__name__ for a in example.arguments] == ["ndarray"] * 3 + ["float"]
    assert example.x is example["x"]
    example.check(np.asarray(registry.get("layer_norm")(*example.arguments)).astype(np.float32))
    with pytest.raises(AssertionError, match=r"--tlspec-repro='3:normal:small'"):
        example.check(np.zeros_like(example.x))
    with pytest.raises(AssertionError, match="got 2 results"):
        example.check(example.x, example.x)
    with pytest.raises(AttributeError, match="it has x, gamma, beta"):
        _ = example.y


TESTS = """
import numpy as np, tlspec
from hypothesis import given, settings
from tlspec.strategies import case as drawn

def softmax(x):
    if not x.size: return x.copy()
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)

@tlspec.cases("softmax", count=12)
def test_right(case):
    case.check(softmax(case.x))

@tlspec.cases("softmax", backward=True, count=6)
def test_gradient(case):
    case.check(case.out * (case.g - (case.g * case.out).sum(1, keepdims=True)))

@tlspec.cases("softmax", data="normal")
def test_wrong(case):
    case.check(softmax(case.x) * np.float32(1.0001))

@given(drawn("softmax", data="normal"))
@settings(max_examples=30, deadline=None, database=None, derandomize=True)
def test_drawn(case):
    case.check(np.where(np.arange(case.x.shape[1]) == 3, 0, softmax(case.x)))
"""


def test_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_kernels.py").write_text(TESTS)
    words = ["-m", "pytest", "-q", "-p", "tlspec.pytest_plugin", "-p", "no:cacheprovider", "-W", "ignore"]
    command = [sys.executable, *words, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": python_path(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def run(*options: str) -> str:
        return subprocess.run(
            [*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        ).stdout

    def named(found: str) -> list[str]:
        return [line.split()[0] for line in found.splitlines() if "::" in line]

    found = run("-v", "-v", "-k", "right or gradient")
    assert "18 passed" in found
    again, others = (run("-k", "right or gradient", "--collect-only", *o) for o in ((), ("--tlspec-seed", "7")))
    assert named(found) == named(again) != named(others)
    found = run("-k", "wrong or drawn", "--tlspec-repro", "2:normal:small", "-p", "_hypothesis_pytestplugin")
    assert "2 failed" in found
    assert "repeat: pytest --tlspec-repro='2:normal:small'" in found
    assert "rows=1, cols=4'" in found, found


@pytest.mark.parametrize("words", [
    {"data": "normal", "count": 5}, {"empty": False, "count": 12}, {"dtype": "float16", "count": 1},
    {"backward": True, "count": 8, "data": ["integers", "uniform"]}, {"out_dtype": "float16", "count": 1},
    {"accumulate": "bf16", "count": 1},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("seed", [0, 70])
def test_the_plugin_draws_the_cases_that_a_test_asks_for(
    words: dict[str, Any], seed: int, pytestconfig: pytest.Config
) -> None:
    """With the options of the examples."""
    pytest_plugin.pytest_configure(pytestconfig)

    @pytest_plugin.cases("softmax", **words)
    def decorated(case: Any) -> None: ...

    (mark,) = decorated.pytestmark
    made: list[Any] = []
    options = {"--tlspec-seed": seed, "--tlspec-repro": None}
    test = SimpleNamespace(
        definition=SimpleNamespace(get_closest_marker=lambda name: mark if name == pytest_plugin.MARK else None),
        config=SimpleNamespace(getoption=options.get),
        parametrize=lambda name, later, ids, indirect: made.extend(zip(later, ids)),
    )  # fmt: skip
    pytest_plugin.pytest_generate_tests(test)  # type: ignore[arg-type]
    most = words["count"] * 3 // 4
    sizes, which = {"small": most, "edges": words["count"] - most}, "vjp" if words.get("backward") else "forward"
    drawn = choice.drawn_cases(registry.get("softmax"), which, sizes, words.get("data"), words.get("empty", True), seed)
    assert [name for _, name in made] == [checking.address_of(c) for c in drawn] and len(made) == words["count"]
    case = made[0][0]()
    array = case.g if words.get("backward") else case.x
    assert case.address == made[0][1] and array.dtype == words.get("dtype", "float32")
    assert case._out.name == words.get("out_dtype", words.get("dtype", "float32"))
    assert case._trial.model.sum_precision == (8 if "accumulate" in words else 24)


def focal_loss(x: Any, target: Any, gamma: Any) -> Any:
    """Of logits: -(1 - p)^γ·ln p with p the probability of the target, a sum over each row."""
    p = 1 / (1 + np.exp(-x * (2 * target - 1)))
    return ((1 - p) ** gamma * -np.log(p)).sum(axis=1)


def through(kernel: Callable[..., Any], change: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    return lambda *arrays: kernel(*(change(a) if isinstance(a, np.ndarray) else a for a in arrays))


def bfloat16(x: np.ndarray) -> np.ndarray:
    return FORMATS["bfloat16"].round(x).astype(np.float32)


def accumulated(terms: np.ndarray) -> np.ndarray:
    """Sums of rows whose partial sums are bfloat16 numbers."""
    total = np.zeros(terms.shape[0], np.float32)
    for column in terms.T:
        total = bfloat16(total + column)
    return total


@pytest.mark.parametrize(("reference", "inputs", "low"), [
    (rms_norm, "x[rows, cols], weight[cols]; eps: float = 1e-6",
     lambda x, w, eps: x / np.sqrt(accumulated(x * x)[:, None] / max(x.shape[1], 1) + np.float32(eps)) * w),
    (focal_loss, "x[rows, cols], target[rows, cols]; gamma: float = 2.0",
     lambda x, t, gamma: accumulated((1 - (p := 1 / (1 + np.exp(-x * (2 * t - 1))))) ** np.float32(gamma) * -np.log(p))),
])  # fmt: skip
def test_operations_that_no_row_has_are_checked_from_a_reference_alone(
    reference: Callable[..., Any], inputs: str, low: Callable[..., Any]
) -> None:
    options: dict[str, Any] = {
        "reference": reference,
        "inputs": inputs,
        "data": ["uniform", "normal"],
        "empty": False,
    } | SMALL
    right = lambda *arrays: np.asarray(reference(*(np.float32(a) if isinstance(a, float) else a for a in arrays)))
    report = check(right, **options)
    assert report.ok, report
    few = options | {"cases": {"small": 8}}
    assert fails(through(right, tf32), **few)
    assert fails(low, **few)


def test_a_gradient_alone() -> None:
    report = check(None, "exp", backward=lambda out, g: out * g, cases={"small": 6})
    assert report.ok and {r.which for r in report.rows} == {"vjp"}
    assert fails(None, "exp", backward=lambda out, g: out + g, cases={"small": 6})


def test_indices_are_whole_numbers_whatever_the_format_of_the_arrays_is() -> None:
    """257 is no bfloat16 and no float8, and an index all the same."""
    places = check(lambda x: np.argmax(x, axis=1), "argmax", dtype="float16", empty=False, **SMALL)
    assert places.ok, places
    case = draw_case(registry.get("argmax"), 0, "normal", "small")
    (found,) = Trial(case, FORMATS["bfloat16"], arithmetic("bfloat16"))._compared(
        Expected((np.array([257.0]),), (np.zeros(1),), False, (None,)), 0, np.array([256.0])
    ),  # fmt: skip
    assert not found.ok


def test_the_zero_of_a_maximum_may_have_either_sign() -> None:
    assert check(lambda a, b: np.where((a > b) | np.isnan(a), a, b), "max", empty=False, data="special", **SMALL).ok


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_whatever_lies_within_the_errors_is_rounded_to_what_passes(name: str) -> None:
    """Also where the errors reach into the next binade."""
    row, format, model = registry.get("reduce_sum_axis1"), FORMATS[name], arithmetic(name, accumulate="bf16")
    case = resized(draw_case(row, 0, "uniform", "small"), {"rows": 4000, "cols": 5})
    assert case is not None
    case = quantised(case, format)
    made = np.sum(ErrorArray(case.wide["x"], 0.0, model), axis=1)
    for step in (-1, 1):
        got = format.round(made.value + step * made.error)
        assert Trial(case, format, model).compare([got])[0].ok


def test_a_sum_is_rounded_where_it_is_kept() -> None:
    """A mean in float16, whose sum is added in float32 and rounded before it is divided."""

    def mean(x: np.ndarray, axis: int) -> np.ndarray:
        total = x.astype(np.float32).sum(axis=axis).astype(np.float16)
        return (total / np.float32(x.shape[axis])).astype(np.float16)

    options = {"dtype": "float16", "intermediate": "float16", "accumulate": "float32", "empty": False}
    report = check(mean, "reduce_mean", data=("normal", "uniform"), **options, **SMALL)
    assert report.ok, report
    assert report.share > 0.5


@pytest.mark.parametrize("name", ["tf32", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_products_of_rounded_operands_pass_where_that_is_declared(name: str) -> None:
    low = through(np.matmul, lambda x: FORMATS[name].round(x).astype(np.float32))
    options: dict[str, Any] = {**SMALL, "data": ["uniform", "normal"], "empty": False, "cases": {"small": 12}}
    assert fails(low, "matmul", **{**options, "cases": {"small": 4}})
    declared = check(low, "matmul", products=name, **options)
    assert declared.ok, declared
