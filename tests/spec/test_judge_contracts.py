"""What an author says of a kernel: a right one passes where the contract says so; where not, it fails, or a wrong one does."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.spec import address_in
from tlspec import registry
from tlspec.draw.cases import draw_case, is_empty
from tlspec.formats import FORMATS
from tlspec.judge import Report, check, checking
from tlspec.judge.arithmetic import arithmetic
from tlspec.judge.formulas import conv2d_by_fft, conv_by_fft, merged_mean, strassen
from tlspec.running import ErrorArray, track_call

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
EPS = np.float32(1e-6)
#: the default cases but for the large one and those of its size, and cases of other sizes, to which no long axes are added
SMALL, OTHERS = {"small": 24, "medium": 6, "edges": 8}, {"medium": 3, "edges": 3}


def judged(kernel: Callable[..., Any], op: str | registry.Op | None = None, **options: Any) -> Report:
    usual: dict[str, Any] = {
        "cases": {"small": 12, "medium": 1, "edges": 1},
        "empty": False,
        "sensitive": False,
        "repeats": 50,
        "isolate": False,
    }
    return check(kernel, op, **{**usual, **options})


def fails(kernel: Callable[..., Any], op: str | None = None, **options: Any) -> bool:
    return judged(kernel, op, fail_fast=True, **options).verdict == "fail"


def passes(kernel: Callable[..., Any], op: str, data: str, **options: Any) -> bool:
    """In the first small cases of data classes, without those that draws have seldom, whose long axes take most of the time."""
    drawn = ((seed, each, draw_case(op, seed, each, "small")) for each in data.split() for seed in range(3))
    cases = [f"{seed}:{each}:small" for seed, each, case in drawn if not is_empty(case)]
    return len(cases) > 2 and all(judged(kernel, op, case=case, **options).ok for case in cases)


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "float16"])
def test_a_cast_that_saturates(name: str) -> None:
    format = FORMATS[name]
    if name != "float16":
        pytest.importorskip("ml_dtypes")
    options = {
        "reference": lambda x: x * 1.0,
        "inputs": "x[*] -> out[*]",
        "out_dtype": name,
        "data": ["wide", "normal", "special"],
    }
    saturating = lambda x: format.array(np.clip(x, -format.largest, format.largest))
    assert judged(saturating, saturate=True, **options).ok
    assert fails(format.array, saturate=True, **options)
    if format.infinite:  # without infinities the largest number stands for what is beyond it anyway
        assert fails(saturating, **options)


@pytest.mark.parametrize("said", ["", "float16", "float64"])
@pytest.mark.parametrize("name", FORMATS)
def test_intermediate_results_have_a_format_of_their_own(name: str, said: str) -> None:
    """That which is said, else float64 beside float64 and float32 beside all others."""
    model, kept = arithmetic(name, intermediate=said, flush=True), FORMATS[said or f"float{32 << (name == 'float64')}"]
    assert (model.precision, model.overflow, model.flushed) == (kept.precision, kept.overflow, kept.least_normal)
    assert arithmetic(name, intermediate=said, full_range=True).overflow == np.inf
    assert model.tiny == max(kept.tiny / 2, 2.0**-1074)


#: what is said of a layout, and how a kernel of arrays (a, b, c, d) sees it
LAID: dict[str, Callable[..., bool]] = {
    "room behind each row": lambda x, y: x.strides[3] == x.itemsize and x.strides[2] > x.shape[3] * x.itemsize,
    "from the end are exchanged": lambda x, y: x.strides[3] == x.itemsize and x.strides[1] < x.strides[2],
    "second axis lies last": lambda x, y: x.strides[1] == x.itemsize and x.shape[1] > 1,
    "strides of 0": lambda x, y: 0 in x.strides,
    "negative strides": lambda x, y: min(x.strides) < 0,
    "lie in different ways": lambda x, y: x.strides != y.strides,
}


@pytest.mark.parametrize("said", LAID)
def test_layouts(said: str) -> None:
    def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x + y + bool(min(x.shape) > 1 and LAID[said](x, y))

    options = {"reference": lambda x, y: x + y, "inputs": "x[a, b, c, d], y[a, b, c, d] -> out[a, b, c, d]"}
    report = judged(kernel, **options, data="normal", cases={"small": 60})
    address = address_in(next(f for f in report.findings if said in f.text))
    assert any(said in f.text for f in judged(kernel, **options, case=address).findings), report


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long lengths are tried however long a case takes."""
    monkeypatch.setattr(checking, "SLOW_SECONDS", math.inf)


def test_lengths_are_left_out_where_a_case_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "SLOW_SECONDS", 0.0)
    said = [f"lengths beyond {n:,} were not tried, as a case took " for n in (2**16, 2**17)]
    report = judged(np.exp, "exp", data="normal", cases={"small": 1, "large": 0}, repeats=0)
    assert [note[: note.index("took ") + 5] for note in report.notes] == said


@pytest.mark.usefixtures("patient")
def test_indices_reach_the_end_of_long_axes() -> None:
    def kernel(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        at = labels.astype(np.int16 if narrow else np.int64) % max(logits.shape[1], 1)
        x = logits.astype(np.float64)
        x -= x.max(axis=1, keepdims=True, initial=-np.inf)
        return (np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(x)), at]).mean(keepdims=True).astype(np.float32)

    for narrow in (False, True):
        assert judged(kernel, "cross_entropy", data="normal").ok != narrow


def test_a_height_is_that_of_the_tallest_tree_of_its_kind() -> None:
    """A balanced tree is of two halves that differ by a term at most; other orders may be a chain."""

    def balanced(n: int) -> int:
        return 0 if n < 2 else 1 + balanced(n - n // 2)

    kinds = {"pairwise": balanced, "sequential": lambda n: max(n - 1, 0), "any": lambda n: max(n - 1, 0)}
    for name, tallest in kinds.items():
        height = arithmetic("float32", height=name).height
        assert [height(n) for n in range(300)] == [tallest(n) for n in range(300)]


@pytest.mark.usefixtures("patient")
def test_lengths_beyond_the_largest_vocabularies() -> None:
    def kernel(x: np.ndarray) -> np.ndarray:
        kept = np.exp(x[:, : 2**18] - x.max(axis=1, keepdims=True, initial=-np.inf))
        return np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf)) / kept.sum(axis=1, keepdims=True)

    assert fails(kernel, "softmax", data="normal", cases={"small": 1, "large": 0})


@pytest.mark.usefixtures("patient")
def test_a_row_that_a_parameter_names_is_the_last_one_too() -> None:
    def kernel(mat: np.ndarray, row: np.ndarray, i: int) -> np.ndarray:
        out = mat.copy()
        out[i & (0xFFFF if narrow else -1)] += row
        return out

    for narrow in (False, True):
        assert judged(kernel, "scatter_add_row", data="normal").ok != narrow


@pytest.mark.parametrize("all_of", [np.all, lambda mask: not mask.any()], ids=["true", "false"])
def test_masks_that_are_all_alike(all_of: Any) -> None:
    def kernel(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        wrong = x.size > 4 and all_of(mask)
        return np.where(mask, x / np.float32(0.75), x) * np.float32(1.5 if wrong else 1)

    reference = lambda x, mask: np.where(mask, x / 0.75, x)
    text = "x[rows, cols], mask: bool[rows, cols] -> out[rows, cols]"
    report = judged(kernel, reference=reference, inputs=text, data="normal")
    assert any("whole number alone" in f.text for f in report.findings), report


def test_whole_numbers_at_the_ends_of_their_type() -> None:
    narrow = lambda a, b: (a.astype(np.int16) * b).clip(-16000, 16000).astype(np.float32)
    for kernel, right in ((lambda a, b: a.astype(np.float32) * b, True), (narrow, False)):
        found = judged(kernel, reference=lambda a, b: a * 1.0 * b, inputs="a: i8[n], b: i8[n] -> out[n]")
        assert found.ok == right, found


def test_arrays_that_require_gradients() -> None:
    torch = pytest.importorskip("torch")
    right = lambda x: torch.exp(x)
    wrong = lambda x: torch.exp(x) + x.requires_grad
    shown = lambda x: torch.from_numpy(np.exp(x.numpy()))  # which PyTorch refuses with gradients, and that is no fault
    assert judged(right, "exp", array="torch", data="normal").ok
    assert judged(shown, "exp", array="torch", data="normal").ok
    report = judged(wrong, "exp", array="torch", data="normal")
    assert report.findings and all("require gradients" in f.text for f in report.findings), report


def test_memory_that_larger_results_share() -> None:
    scratch = np.empty(2**22, np.float32)

    def kernel(x: np.ndarray) -> np.ndarray:
        if x.size < 2**12:
            return np.exp(x)
        return np.exp(x, out=scratch[: x.size].reshape(x.shape))

    report = judged(kernel, "exp", data="normal")
    assert {f.kind for f in report.findings} == {"stale"}, report


def test_refusals_by_numbers_and_of_most_cases() -> None:
    def only(holds: Any) -> Any:
        def kernel(x: np.ndarray) -> np.ndarray:
            if not holds(x):
                raise NotImplementedError
            return np.exp(x)

        return kernel

    assert judged(only(lambda x: np.isfinite(x).all()), "exp").ok
    report = judged(only(lambda x: not (np.abs(x) > 50).any()), "exp")
    assert {f.kind for f in report.findings} == {"refused"}, report
    assert judged(only(lambda x: x.size == 64), "exp").verdict == "blind"


def test_results_whose_elements_share_memory() -> None:
    report = judged(
        lambda x: np.lib.stride_tricks.as_strided(np.exp(x), x.shape, [0 if len(set(x.flat)) == 1 else x.itemsize]),
        "exp",
    )
    assert {f.kind for f in report.findings} == {"alias"}, report


def test_layouts_and_refusals() -> None:
    flat = lambda x: np.exp(np.lib.stride_tricks.as_strided(x, x.shape, (x.itemsize,)))
    assert judged(flat, "exp", layouts="contiguous", data="normal").ok
    assert fails(flat, "exp", data="normal")

    def narrow(x: np.ndarray) -> np.ndarray:
        if not 0 < x.shape[1] <= 20:
            raise ValueError("too wide, or empty")
        return x.sum(axis=1)

    report = judged(narrow, "reduce_sum_axis1", refuses=["empty", "cols > 20"], empty=True, cases=SMALL)
    assert report.ok and report.unsupported > 0

    def few(x: np.ndarray) -> np.ndarray:
        if x.shape[1] > 4:
            raise NotImplementedError
        return x.sum(axis=1)

    report = judged(few, "reduce_sum_axis1", refuses="cols > 4", data="normal", cases={"small": 24})
    assert report.verdict == "pass" and report.unsupported > sum(r.cases for r in report.rows)
    for refuses in (None, "empty", "cols > 30", lambda cols: cols > 30):
        assert fails(narrow, "reduce_sum_axis1", refuses=refuses, empty=True, cases=SMALL)
    with pytest.raises(ValueError, match="reduce_sum_axis1 has no columns; it has rows, cols"):
        judged(narrow, "reduce_sum_axis1", refuses="columns > 20")
    with pytest.raises(ValueError, match="layouts='dense': expected any or contiguous"):
        judged(narrow, "reduce_sum_axis1", layouts="dense")


def test_indices_stay_below_what_the_signature_says() -> None:
    pick = lambda x, y: x[np.arange(x.shape[0]), y]
    assert judged(pick, reference=pick, inputs="x[rows, cols], y: u32[rows] < cols -> out[rows]").ok
    report = judged(
        lambda x, y: pick(x, y) * np.float32(1.01),
        reference=pick,
        inputs="x[rows, cols], y: u32[rows] < cols -> out[rows]",
    )
    assert report.findings and "IndexError" not in str(report)


def test_arrays_in_formats_of_their_own() -> None:
    kind = pytest.importorskip("ml_dtypes").bfloat16

    def norm(x: Any, w: Any) -> Any:
        root = 1 / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-6)
        return x * root * w, root[:, 0]

    def kernel(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert x.dtype == kind and w.dtype == np.float32
        wide = x.astype(np.float32)
        root = 1 / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + EPS)
        return (wide * root * w).astype(kind), root[:, 0]

    options = {
        "reference": norm, "inputs": "x[rows, cols], w: f32[cols] -> y[rows, cols], r: f32[rows]", "dtype": "bfloat16",
    }  # fmt: skip
    assert judged(kernel, **options).ok
    assert fails(lambda x, w: (kernel(x, w)[0], kernel(x, w)[1].astype(kind)), **options)


def test_whole_numbers_and_truth_values() -> None:
    dequantised = lambda x, q, s: x @ (q * s[:, None]).T
    text = "x[rows, k], q: i8[cols, k], s[cols] -> out[rows, cols]"
    assert judged(lambda x, q, s: x @ (q.astype(np.float32) * s[:, None]).T, reference=dequantised, inputs=text).ok
    product, text = lambda a, b, s: (a @ b.T) * s, "a: i8[rows, k], b: i8[cols, k], s[cols] -> out[rows, cols]"
    right = lambda a, b, s: (a.astype(np.int32) @ b.astype(np.int32).T).astype(np.float32) * s
    narrow = lambda a, b, s: (a.astype(np.float16) @ b.astype(np.float16).T).astype(np.float32) * s
    assert judged(right, reference=product, inputs=text, mixed="int8").ok
    assert fails(narrow, reference=product, inputs=text, mixed="int8")
    masked = lambda x, m: np.where(m, x, np.float32(0))
    assert judged(masked, reference=masked, inputs="x[rows, k], m: bool[rows, k] -> out[rows, k]").ok

    def quantised(x: Any) -> Any:
        s = np.maximum(np.max(np.abs(x), axis=1, keepdims=True), 1e-10) / 127
        return np.rint(x / s), s[:, 0]

    def kernel(x: np.ndarray, rounded: Callable[..., Any] = np.rint) -> tuple[np.ndarray, np.ndarray]:
        s = np.maximum(np.abs(x).max(axis=1, keepdims=True), np.float32(1e-10)) / np.float32(127)
        return rounded(x / s).astype(np.int8), s[:, 0]

    options = {
        "reference": quantised, "inputs": "x[rows, cols] -> q: i8[rows, cols], s[rows]", "data": ["normal", "uniform"],
    }  # fmt: skip
    assert judged(kernel, **options).ok
    assert fails(lambda x: kernel(x, np.floor), **options)


def test_results_in_place() -> None:
    options = {"reference": lambda x: 2 * x, "inputs": "x[rows, cols] -> x[rows, cols]"}

    def doubled(x: np.ndarray) -> None:
        x *= 2

    assert judged(doubled, **options).ok
    assert fails(lambda x: 2 * x, **options), "the input is as it was"


def test_lengths_that_are_multiples_and_values_that_are_fixed() -> None:
    seen = set[int]()

    def kernel(x: np.ndarray) -> np.ndarray:
        seen.add(x.shape[1])
        return x.sum(axis=1)

    report = judged(kernel, reference=lambda x: np.sum(x, axis=1), inputs="x[rows, 64*k] -> out[rows]")
    assert report.ok
    assert all(n % 64 == 0 for n in seen) and len(seen) > 2

    def norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float) -> np.ndarray:
        d = x - x.mean(axis=1, keepdims=True)
        return d / np.sqrt((d * d).mean(axis=1, keepdims=True) + np.float32(1e-5)) * gamma + beta

    assert judged(norm, "layer_norm", fixed={"eps": 1e-5}).ok
    assert fails(norm, "layer_norm")
    with pytest.raises(ValueError, match="layer_norm has no epsilon; it has rows, cols, eps"):
        judged(norm, "layer_norm", fixed={"epsilon": 1e-5})


@pytest.mark.usefixtures("patient")
def test_no_case_departs_from_a_fixed_dimension() -> None:
    """Drawn ones, those that draws have seldom, halves of a batch, laws, and the smaller case of a finding."""
    seen = set[tuple[int, ...]]()

    def kernel(x: np.ndarray) -> np.ndarray:
        seen.add(x.shape)
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True) * np.float32(x.shape[1] < 200)

    report = judged(kernel, "softmax", fixed={"rows": 8}, repeats=1, cases={"small": 12, "large": 0})
    assert {rows for rows, _ in seen} == {8} and max(columns for _, columns in seen) > 65_536
    assert not report.ok and "rows=8, cols=20" in str(report)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_cast_inside(name: str) -> None:
    """Of a normalised row, as Liger-Kernel has it, in the reference and as a formula; no other number of bits passes."""
    kind: Any = np.float16 if name == "float16" else pytest.importorskip("ml_dtypes").bfloat16

    def scaled(x: np.ndarray, eps: float = 1e-6) -> np.ndarray:
        wide = x.astype(np.float32)
        return wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + np.float32(eps))

    reference = lambda x, w: (x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-6)).astype(kind) * w
    options = {"reference": reference, "inputs": "x[rows, cols], w[cols]", "dtype": name, "cases": OTHERS}
    assert judged(lambda x, w: scaled(x).astype(kind) * w, **options).ok
    assert fails(lambda x, w: scaled(x, 1e-5).astype(kind) * w, **options)
    assert fails(lambda x, w: (scaled(x) * w.astype(np.float32)).astype(kind), **options)
    formula = lambda x, gamma, eps: (x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps)).astype(kind) * gamma
    inside = lambda x, gamma, eps: scaled(x, eps).astype(kind) * gamma
    assert judged(inside, "rms_norm", dtype=name, formulas=[formula], cases=OTHERS).ok
    assert fails(inside, "rms_norm", dtype=name, cases=OTHERS)


def test_weights_that_are_rounded_before_a_product() -> None:
    kind = pytest.importorskip("ml_dtypes").bfloat16

    def attention(q: Any, k: Any, v: Any) -> Any:
        s = q @ k.T / np.sqrt(q.shape[1])
        e = np.exp(s - np.max(s, axis=1, keepdims=True))
        return e @ v / np.sum(e, axis=1, keepdims=True)

    def kernel(*arrays: np.ndarray) -> np.ndarray:
        q, k, v = (a.astype(np.float32) for a in arrays)
        s = q @ k.T / np.float32(np.sqrt(q.shape[1]))
        e = np.exp(s - s.max(axis=1, keepdims=True))
        return (e.astype(kind).astype(np.float32) @ v / e.sum(axis=1, keepdims=True)).astype(kind)

    options = {"reference": attention, "inputs": "q[n, d], k[m, d], v[m, w] -> out[n, w]"}
    for words in ({"mixed": "bf16"}, {"dtype": "bfloat16"}):  # as tensor cores take no other operands
        assert judged(kernel, **words, **options).ok
    assert fails(kernel, dtype="bfloat16", accumulate="fp32", **options)
    with pytest.raises(ValueError, match="mixed='bf17': expected bf16, fp16, fp8, int8"):
        judged(kernel, mixed="bf17", **options)


def test_cases_are_kept_for_each_format_of_results() -> None:
    """A kernel of another format is held to that one's tolerances, in the process of a check before."""
    options: dict[str, Any] = {"data": "normal", "cases": {"small": 4}, "repeats": 0}
    assert judged(lambda A, B: A @ B, "matmul", **options).ok
    assert judged(lambda A, B: (A @ B).astype(np.float16), "matmul", out_dtype="float16", **options).ok


def test_an_input_that_needs_no_work_is_not_the_result() -> None:
    def kernel(x: np.ndarray) -> np.ndarray:
        return x if x.flags.c_contiguous and (x >= 0).all() else np.abs(x)

    report = judged(kernel, "abs", data="uniform", cases={"small": 6}, repeats=0)
    assert {f.kind for f in report.findings} == {"alias"}, report


def test_the_whole_range_can_be_demanded() -> None:
    """x·x overflows where the result does not; what the infinity makes of it may come out unless the contract says otherwise."""
    plain = lambda x, gamma, eps: x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(eps)) * gamma
    wide = lambda x, gamma, eps: plain(x.astype(np.float64), gamma, eps).astype(np.float32)
    options: dict[str, Any] = {"data": ["huge", "wide"]}
    assert not judged(plain, "rms_norm", **options).findings
    assert judged(plain, "rms_norm", full_range=True, **options).findings
    assert judged(wide, "rms_norm", full_range=True, **options).ok


OVERFLOWING = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": lambda x: 1 - 2 / (1 + np.exp(2 * x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "l2": lambda x: x / np.sqrt(np.sum(x * x, axis=1, keepdims=True) + x.dtype.type(1)),
}


@pytest.mark.parametrize("name", OVERFLOWING)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_overflow_on_the_way_excuses_what_it_gives_alone(name: str, dtype: str) -> None:
    """A kernel that overflows, and one that does not, pass; one that has any other number there fails."""
    f, kind = OVERFLOWING[name], np.dtype(dtype).type
    options = {"reference": f, "inputs": "x[n, 9] -> out[n, 9]", "dtype": dtype, "data": ["wide", "special", "huge"]}

    def plain(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return f(x.astype(np.float32)).astype(kind)

    def wide(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return f(x.astype(np.longdouble)).astype(kind)

    def lost(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            away = ~np.isfinite(np.exp(np.abs(x.astype(np.float32)))) & np.isfinite(x)
        return np.where(away, kind(17), wide(x)).astype(kind)

    assert judged(plain, **options).ok and judged(wide, **options).ok
    assert fails(lost, **options)


def test_another_formula_of_the_same() -> None:
    """A convolution by Fourier transforms, of integers too, which direct sums give exactly."""

    def direct(x: Any, w: Any) -> Any:
        n = x.shape[1]
        return np.stack([np.sum(x * w[:, (i - np.arange(n)) % n], axis=1) for i in range(n)], axis=1)

    def by_transforms(x: Any, w: Any) -> Any:
        return np.fft.irfft(np.fft.rfft(x, axis=1) * np.fft.rfft(w, axis=1), x.shape[1], axis=1)

    options = {"reference": direct, "inputs": "x[rows, n], w[rows, n] -> out[rows, n]", "data": ["integers", "structured"],
               "cases": {"small": 0}, "shapes": [{"rows": 3, "n": 24}, {"rows": 1, "n": 7}]}  # fmt: skip
    kernel = lambda x, w: by_transforms(x, w).astype(np.float32)
    assert fails(kernel, **options)
    assert judged(kernel, formulas=[by_transforms], **options).ok
    assert fails(lambda x, w: kernel(x, w) * np.float32(1.01), formulas=[by_transforms], **options)


def test_a_reference_is_not_called_with_what_is_left_out() -> None:
    def reference(x: Any) -> Any:
        assert 0 not in x.shape
        return np.cumsum(x, axis=1)

    assert judged(
        lambda x: np.cumsum(x, axis=1),
        reference=reference,
        inputs="x[rows, cols] -> out[rows, cols]",
        cases={"small": 60},
        data="integers",
    ).ok


def _rms_with_a_cast(x: np.ndarray, gamma: np.ndarray, eps: float, more: float = 1.0) -> np.ndarray:
    wide = x.astype(np.float32)
    root = np.sqrt((wide * wide).mean(axis=1, keepdims=True) + np.float32(more * eps))
    return (wide / root).astype(x.dtype) * gamma


def _in_parts(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    a, b = (split(x) for x in (A, B))
    return a[0] @ b[0] + (a[0] @ b[1] + a[1] @ b[0]) + (a[0] @ b[2] + a[1] @ b[1] + a[2] @ b[0])


def split(x: np.ndarray) -> list[np.ndarray]:
    found = []
    for _ in range(3):
        found.append(FORMATS["bfloat16"].round(x).astype(np.float32))
        x = x - found[-1]
    return found


def _half_a_tanh(x: np.ndarray) -> np.ndarray:
    half = np.float32(0.5)
    return half * (1 + np.tanh(half * x))


def _scan_by_pairs(A: Any, B: Any, x: Any, h0: Any) -> Any:
    a, b = np.broadcast_to(A, x.shape).copy(), B * x
    b[:1] += A * h0
    d = 1
    while d < len(b):
        a[d:], b[d:], d = a[d:] * a[:-d], a[d:] * b[:-d] + b[d:], 2 * d
    return b


def _adam_of_torch(
    ps: Any,
    gs: Any,
    ms: Any,
    vs: Any,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> Any:
    import torch

    m, v = torch.lerp(ms, gs, 1 - beta1), (vs * beta2).addcmul(gs, gs, value=1 - beta2)
    root = v.sqrt() / math.sqrt(1 - beta2**step) + eps
    return (ps * (1 - lr * weight_decay)).addcdiv(m, root, value=-lr / (1 - beta1**step)), m, v


def _group_norm_of_torch(x: Any, gamma: Any, beta: Any, eps: float) -> Any:
    import torch

    b, k, c, p = x.shape
    weights = (None if w is None else w.reshape(-1).contiguous() for w in (gamma, beta))
    out, *found = torch.native_group_norm(x.reshape(b, k * c, p).contiguous(), *weights, b, k * c, p, k, eps)
    return out.reshape(x.shape), *found


def _conv_without_zeros(x: Any, w: Any, b: Any, stride_h: int, stride_w: int, padding_h: int, padding_w: int) -> Any:
    """Passes over what lies outside of x, beside infinite weights too."""
    (*_, height, width), (*_, kernel_h, kernel_w) = x.shape, w.shape
    rows = range(-padding_h, height + padding_h - kernel_h + 1, stride_h)
    columns = range(-padding_w, width + padding_w - kernel_w + 1, stride_w)
    out = np.empty((len(x), len(w), len(rows), len(columns)), x.dtype)
    for (i, top), (j, left) in itertools.product(enumerate(rows), enumerate(columns)):
        part = x[:, :, max(top, 0) : max(top + kernel_h, 0), max(left, 0) : max(left + kernel_w, 0)]
        up, to = max(-top, 0), max(-left, 0)
        kernel = w[:, :, up : up + part.shape[2], to : to + part.shape[3]]
        out[:, :, i, j] = np.tensordot(part, kernel, ((1, 2, 3), (1, 2, 3))) + b
    return out


@pytest.mark.parametrize(("op", "array", "kernel"), [
    ("selective_scan_diag", "numpy", _scan_by_pairs), ("conv2d", "numpy", _conv_without_zeros),
    ("adamw_step", "torch", _adam_of_torch), ("group_norm_stats", "torch", _group_norm_of_torch)])  # fmt: skip
def test_common_formulas_need_no_name(op: str, array: str, kernel: Callable[..., Any]) -> None:
    pytest.importorskip(array)
    assert passes(kernel, op, "special normal spread", array=array)
    bare = replace(registry.get(op), formulas={"forward": (), "vjp": ()})
    assert any(not judged(kernel, bare, array=array, case=f"{seed}:special:small").ok for seed in range(3))


def _running_mean(x: np.ndarray, axis: int) -> np.ndarray:
    y = np.moveaxis(x, axis, 0)
    m = np.full(y.shape[1:], 0 if len(y) else np.nan, np.float32)
    for k, number in enumerate(y, 1):
        m = m + (number - m) / np.float32(k)
    return m


def _running_mse(yhat: np.ndarray, target: np.ndarray) -> np.ndarray:
    return _running_mean((yhat - target) ** 2, 0).reshape(1)


def _shares_of_windows(x: np.ndarray, kernel: Any, stride: Any, padding: Any, weight: Any = np.multiply) -> np.ndarray:
    """A convolution with equal weights, or a sum of quotients."""
    wide = np.pad(x, [(0, 0), *((p, p) for p in padding)])
    view = np.lib.stride_tricks.sliding_window_view(wide, tuple(kernel), tuple(range(1, x.ndim)))
    view = view[(slice(None), *(slice(None, None, s) for s in stride))]
    count = np.float32(math.prod(kernel))
    shares = view / count if weight is np.divide else view * (np.float32(1) / count)
    return shares.reshape(*view.shape[: x.ndim], -1).sum(axis=-1)


_WINDOWS = "0:integers:medium; channels=1, spatial=[3,3,5,1], kernel=[3,3,3,2], stride=[2,3,3,1], padding=[0,0,1,3]"


@pytest.mark.parametrize(("op", "case", "kernel"), [
    ("reduce_mean", "3:integers:small", _running_mean), ("mse_loss", "3:integers:small", _running_mse),
    ("reduce_mean", "0:special:small; dims=[2, 33], axis=0", _running_mean), ("avg_pool", _WINDOWS, _shares_of_windows),
    ("avg_pool", _WINDOWS, partial(_shares_of_windows, weight=np.divide)),
])  # fmt: skip
def test_averages_of_parts_need_no_name(op: str, case: str, kernel: Callable[..., Any]) -> None:
    """A running mean, in which infinities are NaN, and sums of shares; errors beside these fail still."""
    report = judged(kernel, op, case=case)
    assert report.ok, report
    assert not judged(lambda *a: kernel(*a) * np.float32(1 + 2.0**-14), op, case=case).ok


def test_a_running_mean_keeps_equal_numbers() -> None:
    x, more = np.full((4, 1000), 3.0), np.arange(4000.0).reshape(4, 1000)
    values = {"axis": 1}
    for numbers, exact in ((x, True), (more, False)):
        merged, plain = (
            track_call(f, {"x": ErrorArray(numbers)}, values)[0]
            for f in (merged_mean, registry.get("reduce_mean").reference)
        )
        assert np.allclose(merged.value, plain.value, 1e-15)
        assert np.array_equal(merged.error, plain.error) == exact


#: by the formula's name: a row, the format, a kernel that follows the formula, and a wrong one
FOLLOWED: dict[str, tuple[str, str, Callable[..., Any], Callable[..., Any]]] = {
    "tanh": ("sigmoid", "float32", _half_a_tanh, lambda x: _half_a_tanh(x) + np.float32(2.0**-20)),
    "strassen": ("matmul", "float32", lambda A, B: strassen(A, B), lambda A, B: strassen(A, B) * np.float32(1.001)),
    "bf16x3": ("matmul", "float32", _in_parts, lambda A, B: split(A)[0] @ split(B)[0]),
    "cast": ("rms_norm", "float16", _rms_with_a_cast, lambda x, gamma, eps: _rms_with_a_cast(x, gamma, eps, 10.0)),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_formula_is_named(name: str) -> None:
    """Without the name a kernel of this formula fails, and the report says the name; with it a wrong kernel fails still."""
    op, dtype, kernel, wrong = FOLLOWED[name]
    options: dict[str, Any] = {"dtype": dtype, "cases": {"small": 24} if name == "tanh" else {"medium": 8}}
    report = judged(kernel, op, **options)
    assert not report.ok
    assert any(f"formulas={name!r} allows it" in note for note in report.notes), report
    assert judged(kernel, op, formulas=name, **options).ok
    failed = judged(wrong, op, formulas=name, fail_fast=True, **options)
    assert not failed.ok and f"formulas={name!r}" in failed.findings[0].repeat
    assert f"formulas={[name]!r}" in judged(wrong, op, formulas=[name], fail_fast=True, **options).findings[0].repeat
    with pytest.raises(ValueError, match=f"softmax in {dtype} has no formula of this name; it has none"):
        judged(kernel, "softmax", formulas=name, **options)


@pytest.mark.parametrize("odd", [False, True])
def test_a_formula_is_named_only_where_it_allows_all_that_is_wrong(odd: bool) -> None:
    _, _, kernel, wrong = FOLLOWED["tanh"]
    report = judged(lambda x: (wrong if x.size % 2 == odd else kernel)(x), "sigmoid", cases={"small": 24})
    assert not report.ok and not any("allows it" in note for note in report.notes), report


def test_a_formula_that_the_analysis_does_not_know_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"formulas: <lambda>, for relu: .* does not know numpy.angle .*test_judge_contracts"
    ):
        judged(lambda x: x, "relu", formulas=lambda x: np.angle(x))


def test_convolutions_by_transforms() -> None:
    def by_fft(x: np.ndarray, w: np.ndarray, b: np.ndarray, **p: int) -> np.ndarray:
        if not (np.isfinite(x).all() and np.isfinite(w).all()):
            raise NotImplementedError
        return conv2d_by_fft(x, w, b, p["stride_h"], p["stride_w"], p["padding_h"], p["padding_w"]).astype(np.float32)

    def kernel(x: Any, w: Any, b: Any, stride_h: int, stride_w: int, padding_h: int, padding_w: int) -> np.ndarray:
        words = {"stride_h": stride_h, "stride_w": stride_w, "padding_h": padding_h, "padding_w": padding_w}
        return by_fft(x.astype(np.float16).astype(np.float32) if rounds else x, w, b, **words)

    def of_any_axes(x: Any, w: Any, b: Any, stride: Any, padding: Any) -> np.ndarray:
        x = x.astype(np.float16).astype(np.float32) if rounds else x
        return conv_by_fft(x, w, b, stride, padding).astype(np.float32)

    for rounds in (False, True):
        assert passes(kernel, "conv2d", "normal integers uniform", formulas="fft") != rounds
        assert passes(of_any_axes, "conv", "normal uniform", formulas="fft") != rounds


TWO_PI = np.float64(2 * np.pi)


def _one_number_of_two_pi(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide - np.rint(wide / TWO_PI) * TWO_PI


def _two_numbers_of_two_pi(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    turns = np.rint(wide / TWO_PI)
    return (wide - turns * 6.28125) - turns * float(np.float32(TWO_PI - 6.28125))


def _wide_sine(x: Any) -> Any:
    return np.sin(x) + np.sin(3 * x) / 3


@pytest.mark.parametrize("reduced", [_one_number_of_two_pi, _two_numbers_of_two_pi])
@pytest.mark.parametrize("name", ["sin", "cos", "of a user"])
def test_functions_that_turn_far_from_zero(name: str, reduced: Callable[[np.ndarray], np.ndarray]) -> None:
    """A reduction that loses the last bits of a multiple of pi shows beside the zeros alone, however few of the numbers are."""
    function: Callable[..., Any] = {"sin": np.sin, "cos": np.cos}.get(name, _wide_sine)
    of = {"reference": _wide_sine, "inputs": "x[*] -> out[*]"} if name == "of a user" else {"op": name}

    def kernel(x: np.ndarray, reduce: bool = True) -> np.ndarray:
        few = reduce & (np.abs(x) > 1e4) & (np.abs(x) < 1e6) & (np.abs(function(x.astype(np.float64))) < 2.0**-12)
        wide = x.astype(np.float64)
        return function(np.where(few, reduced(wide), wide)).astype(np.float32)

    options: dict[str, Any] = {**of, "data": ["normal", "uniform", "special"], "cases": {"small": 3}, "repeats": 0}
    report = judged(kernel, **options)
    assert any("at which the function turns" in f.text for f in report.findings), report
    assert judged(lambda x: kernel(x, False), **options).ok
    assert judged(lambda x: function(x), **options).ok


@pytest.mark.parametrize("operation", ["log_softmax", "cross_entropy"])
def test_limits_beside_infinity(operation: str) -> None:
    """A row with +inf may be NaN throughout, or have the limits -inf of finite logits; nothing else."""

    def lse(x: np.ndarray) -> np.ndarray:
        m = x.max(axis=1, keepdims=True)
        safe = np.where(np.isfinite(m), m, np.float32(0))
        return safe + np.log(np.exp(x - safe).sum(axis=1, keepdims=True))

    def kernel(x: np.ndarray, labels: np.ndarray | None = None) -> np.ndarray:
        made = x - lse(x)
        made[np.isinf(x).any(axis=1) & np.isinf(made).any(axis=1)] *= np.float32(factor)
        return made if labels is None else -made[np.arange(len(x)), labels].mean(keepdims=True)

    function = (lambda x: kernel(x)) if operation == "log_softmax" else (lambda logits, labels: kernel(logits, labels))
    options: dict[str, Any] = {"data": "special", "cases": {"small": 24}}
    factor = 1.0
    assert judged(function, operation, **options).ok
    factor = -1.0
    assert fails(function, operation, **options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_an_attention_are_operands(dtype: str) -> None:
    kind = np.dtype(np.float16) if dtype == "float16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    options = {"dtype": dtype, "fixed": {"mask_mode": 0}, "data": ["normal", "uniform", "spread"], "repeats": 0,
               "cases": OTHERS}  # fmt: skip

    def attention(normalised: bool, scaled: float = 1.0) -> Callable[..., Any]:
        def kernel(Q: Any, K: Any, V: Any, mask: Any, mask_mode: int, scale: float) -> Any:
            q, k, v = (x.astype(np.float32) for x in (Q, K, V))
            s = (q @ k.swapaxes(1, 2)) * np.float32(scale * scaled)
            e = np.exp(s - s.max(axis=2, keepdims=True))
            total = e.sum(axis=2, keepdims=True)
            p = (e / total if normalised else e).astype(kind).astype(np.float32)
            return (p @ v / (np.float32(1) if normalised else total)).astype(kind)

        return kernel

    for normalised in (True, False):
        assert judged(attention(normalised), "flash_attention", **options).ok
        assert fails(attention(normalised, 1.02), "flash_attention", **options)
    assert fails(attention(True), "flash_attention", accumulate="fp32", **options)


@pytest.mark.parametrize(("dtype", "most"), [("float16", 65504.0), ("float8_e4m3fn", 448.0), ("bfloat16", 3.4e38)])
def test_squares_beyond_the_format_are_tried(dtype: str, most: float) -> None:
    """Of numbers that are within it; a kernel that squares in float32 has none beyond."""
    if dtype != "float16":
        pytest.importorskip("ml_dtypes")

    def kernel(x: np.ndarray, weight: np.ndarray, eps: float = 1e-6, narrow: bool = True) -> np.ndarray:
        x = x.astype(np.float32)
        squares = np.where((x * x > most) & narrow, np.float32(np.inf), x * x)
        return x / np.sqrt(squares.mean(axis=1, keepdims=True) + np.float32(eps)) * weight.astype(np.float32)

    def reference(x, weight, eps):  # type: ignore[no-untyped-def]
        return x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps) * weight

    for narrow in (True, False):
        report = check(
            partial(kernel, narrow=narrow), reference=reference, inputs="x[rows, cols], weight[cols]; eps: float = 1e-6",
            dtype=dtype, out_dtype="float32", data="normal", cases={"small": 4}, sensitive=False, repeats=0, empty=False,
        )  # fmt: skip
        assert report.ok != (narrow and dtype != "bfloat16"), report
