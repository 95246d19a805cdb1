"""The parts of the judge beside their plain definitions, over many lengths, steps, keys and values."""

import functools
import html
import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tlspec import arrays, registry
from tlspec.bounds import call_reference
from tlspec.case import as_tuple
from tlspec.draw.cases import Case, Expected, draw_case, is_empty, refused_by
from tlspec.formats import FORMATS
from tlspec.judge import altered, blocks, checking, choice, kept, mutants, repetition, trial
from tlspec.judge.arithmetic import ULPS, arithmetic
from tlspec.judge.contract import constrained, contract
from tlspec.judge.formulas import ALWAYS, CASTS, NAMED, further, usual
from tlspec.judge.invariants.axes import Trials
from tlspec.judge.invariants.samples import LAYOUTS, NEIGHBOURS, Samples, laid_out, slots_of
from tlspec.judge.report import Finding, Report, Row, name_of, word_for
from tlspec.judge.runner import Failure, Plain
from tlspec.judge.shrink import lengths_of, resized
from tlspec.judge.subject import subject_of
from tlspec.judge.trial import Trial, quantised
from tlspec.running import ErrorArray, Model

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
FLOAT32 = FORMATS["float32"]


def case_of(op: str, seed: int = 0, data: str = "normal", **lengths: Any) -> Case:
    case = draw_case(op, seed, data, "small")
    made = resized(case, {**lengths_of(case), **lengths})
    assert made is not None
    return made


def first(x: np.ndarray) -> np.ndarray:
    """The array with its longest axis first."""
    return np.moveaxis(x, int(np.argmax(x.shape)), 0)


def half(x: np.ndarray, y: np.ndarray, change: Callable[[np.ndarray], Any]) -> bool:
    """Whether the first half of the longest axis alone is changed."""
    n = len(first(x)) // 2
    return bool((first(y)[:n] == change(first(x)[:n])).all() and (first(y)[n:] == first(x)[n:]).all())


#: by change: what holds of an array of finite numbers other than 0, and of what becomes of it
CHANGES: dict[Callable[[Case], Case], Callable[[np.ndarray, np.ndarray], Any]] = {
    altered.halved: lambda x, y: np.array_equal(y, x[..., ::-1] / 2),
    altered.touched: lambda x, y: np.array_equal(y[y != x] / x[y != x], [0.5]),
    altered.nudged: lambda x, y: (x != y).sum() == 1 and all(2**-21 < r - 1 <= 2**-10 for r in y[y != x] / x[y != x]),
    altered.permuted: lambda x, y: np.array_equal(np.sort(y, None), np.sort(x, None)),
    altered.falling: lambda x, y: np.array_equal(y, np.sort(x, axis=-1)[..., ::-1]),
    altered.tied: lambda x, y: np.array_equal(y, np.sign(x) * (np.abs(x) > 0.5)),
    altered.late: lambda x, y: np.array_equal(
        y.flat, np.where(np.arange(x.size) < x.size - math.ceil(x.size / 8), 1, 0.5) * x.flat),
    altered.steep: lambda x, y: half(x, y, lambda part: part * np.float32(2**60)),
    altered.masked: lambda x, y: half(x, y, lambda part: -np.inf),
    altered.sparse: lambda x, y: np.count_nonzero(y) == min(x.size, 2) and (y[y != 0] == x[y != 0]).all(),
    altered.alike: lambda x, y: x.ndim < 2 or all((r != x[0]).sum() == 1 for r in y),
    altered.expanded: lambda x, y: (y == x[:1]).all(),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_altered_cases_are_what_their_names_say(change: Callable[[Case], Case]) -> None:
    """At every length."""
    sizes = (
        [{"n": n} for n in range(1, 40)],
        [dict(zip("mnp", s, strict=True)) for s in itertools.product((1, 2, 5, 8), repeat=3)],
    )
    for op, several in zip(("exp", "matmul"), sizes, strict=True):
        for seed, lengths in enumerate(several):
            case = case_of(op, seed, **lengths)
            for name, x in case.inputs.items():
                assert x is not None and CHANGES[change](x, change(case).inputs[name]), (lengths, x)  # type: ignore[arg-type]


def test_every_change_of_a_case_reaches_the_kernel() -> None:
    """But for those that a layout, or memory in which a call was before, asks for."""
    case, seen, right = case_of("softmax", rows=3, cols=1500), list[np.ndarray](), registry.get("softmax")
    kernel = lambda x: seen.append(x.copy()) or np.float32(right(x))  # type: ignore[func-returns-value]
    checking.check(kernel, "softmax", case=checking.address_of(case), isolate=False)
    x, others = case.inputs["x"], [y for y in seen if not np.array_equal(case.inputs["x"], y)]  # type: ignore[arg-type]
    for change in CHANGES.keys() - {altered.late, altered.expanded}:
        assert any(y.shape == (3, 1500) and CHANGES[change](x, y) for y in others), change.__name__  # type: ignore[arg-type]


def test_numbers_are_nudged_by_many_shares() -> None:
    """Of which a key that rounds misses some, wherever it rounds."""
    pairs = ((x := case_of("exp", seed, n=9)).inputs["x"] / altered.nudged(x).inputs["x"] for seed in range(80))
    assert {round(-math.log2(1 - r.min())) for r in pairs} >= set(range(10, 20))


@pytest.mark.parametrize("high", [1, 2, 3, 8, 256])
def test_whole_numbers_are_filled_to_their_ends(high: int) -> None:
    op = subject_of(None, lambda x, at, q: x[at] + q, "x[rows], at: u32[k] < rows, q: i8[k] -> out[k]")
    case, last, middle = resized(draw_case(op, 0, "normal", "small"), {"rows": high, "k": 3}), high - 1, (high - 1) // 2
    for place, ends in enumerate([(0, -128), (last, 127), (middle, -1), (min(middle + 1, last), 0)]):
        made = altered.filled(case, place)  # type: ignore[arg-type]
        assert made is not None and [{*made.inputs[n]} for n in ("at", "q")] == [{end} for end in ends]  # type: ignore[misc]


def test_a_reference_says_what_its_results_are() -> None:
    """By lengths, with the defaults of parameters; arrays that are given have their shapes and kinds, numbers their values."""
    arrays = {"x": np.ones((3, 4), np.float32), "at": np.arange(2), "m": np.ones(4, bool)}
    numbers = {"c": np.float64(0.5), "k": np.uint32(2)}
    several = "out0[n, m], out1[m, 3], out2[2, n], out3[1]"
    for inputs, reference, text in (
        ("x[m, n]; k: u32 = 3, c: float = 2.0", lambda x, k, c: (x.T, x[:, :k], x[: int(c)], x.sum()), several),
        ("x[m, 2*n], y[m, 3]; k: u32, c: float", lambda x, y, k, c: x[:k, ::2] * (c == 0.5) + y[:k, :1], "out[1, n]"),
        ("x[m], q: i8[m], b: bool[m], at: index[k] < 3", lambda x, q, b, at: (x + q)[at][b.dtype != bool :], "out[k]"),
        (arrays | numbers, lambda x, at, m, c, k: np.where(m, x[at] * c, k), "out[2, 4]"),
    ):
        op = subject_of(None, reference, inputs)
        said = inputs if isinstance(inputs, str) else "x[3, 4], at: u32[2], m: bool[4]; c: float = 0.5, k: u32 = 2"
        assert (op.text, op.name) == (f"{said} -> {text}", "lambda")
    op = subject_of("exp", lambda x, at, of: x[at, of], "x: f64[m, n], at: index[k], of: u32[k] < n -> out[k]")
    assert [(a.kind, a.below) for a in op.signature.inputs] == [("float64", ""), ("index", "m"), ("u32", "n")]
    for m, n, k in itertools.product((0, 1, 2), repeat=3):
        assert (refused_by(op, {"m": m, "n": n, "k": k}) is None) == (k == 0 or min(m, n) > 0)


def test_arrays_are_one_where_shapes_agree() -> None:
    case = case_of("where", n=3)
    made = altered.shared(case)
    assert made is not None and len({id(x) for x in made.inputs.values()}) == 1 and altered.shared(made) is None
    several = replace(made, inputs={n: np.array(x) for n, x in made.inputs.items()})
    assert altered.is_same(case, replace(case)) and not altered.is_same(made, several)
    assert altered.shared(case_of("matmul", m=2, n=3, p=2)) is None, "as many numbers in another shape"


@pytest.mark.parametrize("lengths", [(12,), (13,), (12, 8), (1, 11), (4, 7, 3)], ids=str)
def test_a_sample_reaches_both_ends_and_has_lines_anywhere(lengths: tuple[int, ...]) -> None:
    """Whatever the steps; no part of it is empty, or lies outside."""
    names = dict(zip("abc", lengths, strict=False))

    def sample(step: Sequence[int], seed: int) -> list[dict[str, slice]]:
        case: Any = SimpleNamespace(op=SimpleNamespace(name="op"), seed=seed, data="normal")
        return blocks._sampled(case, names, dict(zip("abc", step, strict=False)))

    for step in itertools.product(*(range(1, n + 1) for n in lengths)):
        seen = np.zeros(lengths, bool)
        for block in sample(step, 0):
            assert all(0 <= s.start < s.stop <= names[d] for d, s in block.items())
            seen[tuple(block[d] for d in names)] = True
        assert seen.flat[0] and seen.flat[-1], step
    found = [item for seed in range(150) for block in sample([2] * len(lengths), seed) for item in block.items()]
    lines = {(d, s.start) for d, s in found if s.stop - s.start == 1}
    assert len(lengths) == 1 or lines >= {(d, i) for d, n in names.items() for i in range(n)}


@pytest.mark.parametrize("cases", [{"small": 9, "edges": 4}, 12], ids=str)
def test_data_classes_and_then_seeds_are_drawn_in_turn(cases: Any) -> None:
    """In each size; cases of no elements are passed over where they are not wanted."""
    op, classes = registry.get("softmax"), ("normal", "integers", "special")
    found = list(choice.drawn_cases(op, "forward", cases, classes, False, 40))
    usual = {"small": cases, "medium": cases // 4, "edges": cases // 3, "large": 1} if isinstance(cases, int) else cases
    assert len(found) == sum(usual.values())
    for size, count in usual.items():
        order = ("integers", "normal", "special") if size == "large" else classes
        every = (draw_case(op, 40 + i // 3, order[i % 3], size) for i in itertools.count())
        wanted = itertools.islice((c for c in every if not is_empty(c)), count)
        assert [(c.seed, c.data) for c in found if c.size == size] == [(c.seed, c.data) for c in wanted]
    for data in (*classes, [*classes]):
        shaped = choice.shaped_cases(op, "forward", {"rows": 2, "cols": 3}, data, 40)
        assert [(c.seed, c.data) for c in shaped] == [(40, d) for d in ([data] if isinstance(data, str) else data)]
        (first, *_) = choice.path_cases(registry.get("conv2d"), "forward", None, data)
        assert first.data == (data if isinstance(data, str) else data[0])


def test_what_was_used_last_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the room, by each word of its key."""
    mine = kept._Kept()
    monkeypatch.setattr(kept, "_kept", mine)
    monkeypatch.setattr(kept, "MOST", 6 * kept.ALONE)
    words = ("exp", "softmax"), (0, 1), ("normal", "integers"), ("small", "edges"), ("forward", "vjp")
    keys, used = list(itertools.product(*words)), list[int]()
    for i in map(int, np.random.default_rng(0).integers(0, len(keys), 60)):
        op, *rest = keys[i]
        assert altered.is_same(kept.drawn(registry.get(op), *rest), draw_case(op, *rest))  # type: ignore[arg-type]
        used = [*(k for k in used if k != i), i]
        held = [e.case for e in mine.entries.values()]
        assert mine.bytes == sum(e.bytes for e in mine.entries.values()) <= kept.MOST and len(mine.of_case) == len(held)
        assert [(c.op.name, c.seed, c.data, c.size, c.which) for c in held] == [
            keys[k] for k in used[len(used) - len(held) :]
        ]


def test_a_verdict_is_what_its_counts_say() -> None:
    rng = np.random.default_rng(0)
    for _ in range(600):
        report = Report("kernel", "exp", "float32", "numpy", "", undeclared=int(rng.integers(9)), unsupported=9)
        for _ in range(rng.integers(3)):
            cases = int(rng.integers(6))
            empty = int(rng.integers(cases + 1))
            blind = int(rng.integers(cases - empty + 1))
            report.rows.append(Row("forward", "normal", cases, empty, blind, share=rng.random()))
        told, every = (sum(r.cases - more * r.empty for r in report.rows) for more in (1, 0))
        nothing = not told or report.undeclared > every or sum(r.blind for r in report.rows) / told > 0.5
        assert (report.verdict, report.ok) == (("blind", False) if nothing else ("pass", True))
        assert report.share == max([0.0, *(r.share for r in report.rows)])


def test_a_report_says_what_it_holds() -> None:
    """Each field in its place, in a page of its own without being read as one, and in a document."""
    report = Report(
        "kernel", "exp", "float32 -> float16", "torch", "any order of sums", process="isolate=False", seconds=1.26
    )
    report.rows = [
        Row("forward", "normal", 12, 1, 2, 3, 400, 0.51234, 1.5),
        Row("vjp", "special", 30, elements=5, ulp=0.25),
    ]
    report.repeats, report.batches, report.calls, report.unsupported = True, False, 100, 7
    report.sensitivity = {"zeros": (3, 4), "ones": (0, 2), "twos": (0, 0)}
    report.sampled, report.notes = ["n=9, normal: all results"], ["<b>a note & more</b>"]
    report.findings = [Finding("value", "out[0]: 1 < 2", "again()")]
    missed = "a fault that comes and goes is missed with"
    lines = [
        "kernel as exp, float32 -> float16, torch arrays; assumed: any order of sums",
        "in process: the kernel can see the expected values (isolate=False)", "<b>a note & more</b>", "",
        "direction  data class  cases  blind  failed  elements  worst share  worst ulp",
        "forward    normal         12      2       3       400        0.512        1.5",
        "vjp        special        30                        5            0       0.25", "",
        "7 cases that the kernel does not support (NotImplementedError) were left out", "",
        "at given shapes, compared:", "    n=9, normal: all results", "",
        "same bits when repeated: yes; whatever the batch: no", "same bits whatever other rows hold: not tried",
        f"100 results compared: {missed} p = 0.37 if it is in 1 % of calls, 0.9 if it is in 0.1 % of calls",
        "defects these cases catch: zeros (3 of 4)", "defects they would miss: ones", "",
        "value: out[0]: 1 < 2", "    again()", "", "fail: 42 cases in 1.3 s",
    ]  # fmt: skip
    assert str(report).splitlines() == lines
    for verdict, colour in (("fail", "b3261e"), ("blind", "9a6700"), ("pass", "1a7f37")):
        page, document = report.html(), json.loads(report.json())
        assert f'<p style="color:#{colour};font-weight:600">{verdict}</p>' in page and "<b>" not in page
        (shown,) = re.findall("<pre>(.*)</pre>", page, re.DOTALL)
        assert html.unescape(shown) == str(report) and document["verdict"] == report.verdict == verdict
        assert document["sensitivity"]["zeros"] == {"caught": 3, "changed": 4} and document["share"] == 0.51234
        assert [r["ulp"] for r in document["rows"]] == [1.5, 0.25] and document["repeats"] is True
        report.findings, report.isolated, report.undeclared = [], True, 43 if verdict == "fail" else 42
        said = "left out; shapes= names those that it is for\n" in str(report)
        assert said == (verdict == "fail") and "in process" not in str(report)


def test_a_kernel_has_a_name_for_a_person_and_for_a_line() -> None:
    """What is no name in Python stands as `kernel` in a line, and a person reads where a lambda is."""
    keyword = functools.wraps(np.exp)(lambda x: x)
    keyword.__name__ = "class"
    for function, word, name in (
        (np.exp, "exp", "exp"), ("file.py:kernel", "'file.py:kernel'", "kernel"), (case_of, "case_of", "case_of"),
        (lambda x: x, "kernel", "kernel = <lambda> of test_judge_parts.py:"),
        (functools.partial(np.exp), "kernel", "partial"),
        (keyword, "kernel", "class"),
    ):  # fmt: skip
        assert word_for(function, "kernel") == word and name_of(function).startswith(name), word


@pytest.mark.parametrize("which", ["forward", "vjp"])
@pytest.mark.parametrize("op", ["exp", "softmax", "layer_norm", "reduce_sum_axis", "avg_pool", "rotary", "amax"])
def test_an_address_names_its_case(op: str, which: str) -> None:
    """Of every size, direction and data class, also where lengths are lists or were made smaller."""
    row = registry.get(op)
    if which == "vjp" and row.vjp_rule is None:
        pytest.skip("no gradient")
    for seed, (size, data) in enumerate(itertools.product(("small", "edges"), ("normal", "integers"))):
        case = draw_case(row, seed + 8, data, size, which)
        known = lengths_of(case)
        smaller = [resized(case, {**known, n: v - 1}) for n, v in known.items() if isinstance(v, int) and v]
        cases = [case, *(c for c in smaller if c is not None)]
        cases += [] if row.signature.elementwise else choice.shaped_cases(row, which, [dict(case.values)], data, seed)
        assert len(cases) > 1
        for each in cases:
            address = checking.address_of(each)
            assert ("vjp:" in address) == (which == "vjp") and "forward" not in address
            again = checking.case_at(row, address)
            assert altered.is_same(again, each) and checking.address_of(again) == address, address


def test_each_planted_defect_is_caught_or_missed() -> None:
    report = Report("kernel", "exp", "float32", "numpy", "")
    report.sensitivity = {f"{c} of {k}": (c, k) for k in range(4) for c in range(k + 1)}
    (missed,) = (line for line in str(report).splitlines() if line.startswith("defects they would miss: "))
    assert missed.partition(": ")[2] == "0 of 1, 0 of 2, 0 of 3"


@pytest.mark.parametrize(("requests", "size", "calls"), [*itertools.product((1, 2, 3, 5), (1, 2, 3, 4, 7), (1, 6, 23))])
def test_calls_in_turn_whatever_a_message_holds(requests: int, size: int, calls: int) -> None:
    """Each result belongs to the request whose turn it is, also in the next message and where a call fails."""
    made: list[int] = []

    def turns(of: Sequence[Any], kinds: Any, count: int) -> tuple[list[bytes], Exception | None]:
        assert kinds == [[("float32", (i,))] for i in of]
        found = [of[i % len(of)] for i in range(min(count, size))]
        made.extend(found)
        return [bytes([i]) for i in found], Failure("late") if len(made) >= 20 else None

    plain = {i: [Plain("float32", (i,), np.zeros(i, np.uint32))] for i in range(requests)}
    check: Any = SimpleNamespace(function=SimpleNamespace(turns=turns))
    found = list(repetition._in_turn(check, {i: i for i in plain}, plain, calls, math.inf))  # type: ignore[misc]
    results = found[: len(made)]
    assert [i for i, _ in found] == [i % requests for i in range(len(found))] and [i for i, _ in results] == made
    assert all(got == bytes([i]) for i, got in results) and (len(made) >= 20 or len(made) == len(found) == calls)


@pytest.mark.parametrize("op", ["matmul", "log_softmax"])
def test_a_large_case_has_the_same_outcome_at_each_use(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of blocks that are computed, that are kept, and that are taken from there; wherever a number is wrong."""
    for module, name, size in (
        (blocks, "LARGE", 100),
        (trial, "LARGE", 100),
        (blocks, "OUTPUT", 20),
        (blocks, "ARRAY", 60),
    ):
        monkeypatch.setattr(module, name, size)
    case = case_of(op, **{"matmul": {"m": 11, "n": 6, "p": 9}, "log_softmax": {"rows": 13, "cols": 9}}[op])
    case = replace(case, op=constrained(case.op, None, (), FLOAT32))
    right = np.asarray(case.op(*case.inputs.values())).astype(np.float32)
    known: dict[str, Any] = {}
    for i, place in enumerate([None, *[*np.ndindex(right.shape)][::7], None]):
        got = right.copy()
        got[place] += place is not None
        used = Trial(case, FLOAT32, arithmetic(), kept=known if i % 3 else None)
        (found,) = used.compare([got])
        assert used.large and found.count == used.sampled == right.size and not used.blind
        assert (found.ok, found.violations) == ((True, 0) if place is None else (False, 1)) and (
            found.ok or found.index == place
        )


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("data", ["normal", "wide", "special"])
def test_numbers_are_rounded_alike_in_pieces(name: str, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("matmul", data=data, m=5, n=7, p=3)
    whole = quantised(case, FORMATS[name])
    for piece in (1, 4, 5, 21, 34, 35):
        monkeypatch.setattr(trial, "PIECE", piece)
        assert altered.is_same(whole, quantised(case, FORMATS[name]))
    assert all(np.array_equal(FORMATS[name].round(x), x, equal_nan=True) for x in whole.inputs.values())  # type: ignore[arg-type]


#: value and error of a reference, those of another formula, the tolerance, and the infinity that may be met
HELD: list[tuple[float, ...]] = [
    (1, 0.25, 1.5, 0.5, 1.0, 0), (1, 0.25, 1, 0.125, 0.25, 0), (1, 0.25, 0.5, 0.125, 0.625, 0),
    (1, 0.25, 1.5, np.inf, np.inf, 0), (np.nan, 0, 2, 0.5, np.inf, 0), (np.inf, 0, 2, 0.5, np.inf, 0),
    (np.inf, 0, np.inf, 0, 0, np.inf), (1, 0.25, np.inf, 0, 0.25, np.inf), (1, 0.25, -np.inf, 0, 0.25, -np.inf),
    (1, 0.25, np.nan, 0, 0.25, np.nan), (1, 0.25, np.inf, 0.5, 0.25, 2),
]  # fmt: skip


def test_results_are_held_to_what_either_formula_allows() -> None:
    """By hand; an infinity of the other formula is met by itself, or by any where it may overflow."""
    value, error, again, more, tolerance, met = np.array(HELD).T
    made = [(ErrorArray(value, error),), (ErrorArray(again, more),)]
    held = trial._held(case_of("exp", n=len(HELD)), FLOAT32, Model(), made)
    assert isinstance(held, trial.Either) and np.array_equal(held.outputs[0], value, equal_nan=True)
    assert held.tolerances[0].tolist() == tolerance.tolist()
    for got in (np.inf, -np.inf, np.nan, 7.0):
        found = held.settled(0, np.full(len(HELD), got), FLOAT32)
        is_met = [np.array_equal(m, got, equal_nan=True) or (m == 2 and not np.isfinite(got)) for m in met]
        assert np.array_equal(found, np.where(is_met, value, got), equal_nan=True), got


def test_what_saturates_is_as_far_as_the_largest_number() -> None:
    most = FLOAT32.largest
    rows = [
        (0.5, 0.25, 0.5, 0.25),
        (0.9, 0.2, 0.9, 0.2),
        (1.1, 0.2, 1, 0.1),
        (2, 0.5, 1, 0),
        (-1.1, 0.2, -1, 0.1),
        (np.inf, 0, 1, 0),
    ]
    value, error, wanted, allowed = np.array(rows).T
    found = trial._bounded(case_of("exp", n=6), FLOAT32, Model(saturate=True), 0, value * most, error * most)
    assert np.allclose(found[0] / most, wanted, rtol=1e-12) and np.allclose(
        found[1] / most, allowed, rtol=1e-12, atol=0
    )


def test_the_last_rounding_is_that_of_the_interval() -> None:
    """A result whose error passes a power of two is rounded by the spacing beyond it; an exact one has no error."""
    value, error = np.array([0.9999, -0.9999, 1.5, 1.5]), np.array([0.0045, 0.0045, 2.0**-20, 0.0])
    _, found = trial._bounded(case_of("exp", n=4), FORMATS["bfloat16"], Model(), 0, value, error)
    assert found.tolist() == [0.0045 + 2.0**-8, 0.0045 + 2.0**-8, 2.0**-20 + 2.0**-8, 0]


@pytest.mark.parametrize(("data", "a", "b", "share"), [
    ("normal", [1, 1, 2, 3], [5], 1 / 6), ("normal", [1, 2, 3, 4], [5, 5, 5], 1), ("normal", [1, 2], [3, 4], 0),
    ("structured", [1, 2], [3, 4], 1), ("integers", [0, 0, 0, 1, 1], [0, -1], 0.4), ("normal", [], [1], 0),
])  # fmt: skip
def test_equal_numbers_are_counted_in_pairs(data: str, a: list[float], b: list[float], share: float) -> None:
    inputs = {"a": np.float32(a), "b": np.float32(b), "at": np.zeros(3, np.uint32), "none": None}
    case: Any = SimpleNamespace(data=data, inputs=inputs, cotangents={})
    assert trial._alike(case) == share
    case.inputs, case.cotangents = {}, inputs
    assert trial._alike(case) == share


def test_what_may_be_flushed_is_an_error_of_an_argument() -> None:
    least, x = 2.0**-126, np.array([0.5, -0.25, 1.0, 0.0]) * 2.0**-126
    assert trial._tracked(x, Model(flushed=least)).error.tolist() == [0.5 * least, 0.25 * least, 0, 0]
    assert not trial._tracked(x, Model()).error.any()


@pytest.mark.parametrize("data", ["normal", "integers", "wide"])
def test_numbers_of_a_format_use_its_bits_and_its_range(data: str) -> None:
    """Those of float64 more bits than float32 where they are not whole; those of all binades all that a format has."""
    case = case_of("matmul", data=data, m=40, n=50, p=3)
    x, wide = (np.float64(of.inputs["A"]) for of in (case, quantised(case, FORMATS["float64"])))  # type: ignore[arg-type]
    assert np.all(np.abs(wide - x) <= np.abs(x) * 2.0**-25)
    assert np.mean(wide == x) == 1 if data == "integers" else np.mean(wide == x) < 0.1
    for name in ("float16", "bfloat16", "float8_e5m2") if data == "wide" else ():
        y, f = np.float64(quantised(case, FORMATS[name]).inputs["A"]), FORMATS[name]  # type: ignore[arg-type]
        assert np.isfinite(y).all() and len(np.unique(np.frexp(y[y != 0])[1])) > 12, name
        assert np.mean(np.abs(y) == f.largest) < 0.02 and np.abs(y).max() > f.largest / 2**6, name


def test_forward_results_keep_the_bits_of_the_format() -> None:
    case = quantised(draw_case("softmax", 3, "normal", "small", "vjp"), FORMATS["float64"])
    out = call_reference(case.op.reference, case.wide_inputs, case.values)
    (given,) = (x for n, x in (case.given or {}).items() if n in {a.name for a in case.op.signature.outputs})
    assert given.dtype == np.float64 and np.array_equal(given, out)


@pytest.mark.parametrize("op", registry.ops(), ids=lambda op: op.name)
def test_a_kernel_may_refuse_empty_arrays_of_every_operation(op: Any) -> None:
    drawn = [draw_case(op, seed, "normal", "edges") for seed in range(12)]
    emptied = [resized(drawn[0], {**lengths_of(drawn[0]), name: 0}) for name in lengths_of(drawn[0])]
    found = [
        c for c in [*drawn, *emptied] if c is not None and any(x is not None and not x.size for x in c.inputs.values())
    ]
    assert all(contract("any", "empty").leaves_out(c) for c in found)


def test_a_trial_is_blind_where_its_bounds_exceed_most_answers() -> None:
    for many, loose in ((n, k) for n in range(1, 8) for k in range(n + 1)):
        used, values = Trial(case_of("exp", n=many), FLOAT32, arithmetic()), np.arange(1.0, many + 1)
        bounds = np.where(np.arange(many) < loose, values, 0.5)
        used.__dict__["expected"] = Expected((values,), (bounds,), False, (None,))
        assert used.blind == used.open == (loose > many / 2)


def test_the_sensitivity_counts_trials_that_a_defect_changes() -> None:
    """Equal numbers are not changed by another order."""
    trials: list[Trial] = []
    for n, step in itertools.product((1, 2, 3, 8), (0, 1)):
        x = 1 + step * np.arange(n, dtype=np.float32)
        trials.append(Trial(replace(case_of("relu", n=n), inputs={"x": x}, given=None), FLOAT32, arithmetic()))
    found = mutants.sensitivity(trials)
    assert found["zeros"] == found["the last element unwritten"] == (8, 8)
    assert found["shifted by one"] == found["an earlier result"] == (3, 3)
    assert not {"a copy of an input", "a wrong parameter"} & found.keys()
    two = subject_of(None, lambda x: (x, 0 * x), "x[n] -> a[n], b[n]")
    case = resized(draw_case(two, 0, "uniform", "small"), {"n": 3})
    assert case is not None
    pair = Trial(case, FLOAT32, arithmetic())
    assert mutants.sensitivity([pair])["zeros"] == (1, 1), "one wrong result of several is enough"


@pytest.mark.parametrize(("name", "op"), [*(("", op) for op in ALWAYS), *(("cast", op) for op in CASTS),
                                          *((n, op) for n in NAMED for op in NAMED[n])])  # fmt: skip
def test_a_formula_is_its_operation(name: str, op: str) -> None:
    """At lengths and parameters of all kinds, within the errors of the operation's own formula; of parts within those of parts.
    An operation of a user's own has none by its name."""
    row = subject_of(op, None, None)
    own = subject_of(op, lambda x: x, "x[*]")
    assert usual(own) is own and not further(own, FORMATS["float16"])
    formula = CASTS[op](row, FLOAT32) if name == "cast" else NAMED[name][op] if name else ALWAYS[op]
    for seed in range(16):
        case = quantised(draw_case(row, seed, "uniform", "small"), FLOAT32)
        results = [np.asarray(x) for x in as_tuple(call_reference(formula, case.wide, case.values))]
        if name.endswith("x3"):  # whose numbers are positive
            right = case.expected.outputs[0]
            assert np.all(np.abs(results[0] - right) <= 2.0**-22 * right), seed
            continue
        outcomes = Trial(case, FLOAT32, arithmetic()).compare([x.astype(np.float32) for x in results])
        assert all(c.ok for c in outcomes), (seed, case.values)


def test_a_sample_is_the_same_in_every_batch() -> None:
    samples = Samples(
        slots_of("x[batch, seq, 3], t: index[seq, batch] < 5, m: bool[batch, seq], w[4]", {"seq": 6})[0], 0
    )
    alone = [samples.values([i]) for i in range(6)]
    for ids, content in itertools.product(([0], [3, 1], [5, 0, 2, 4], [4, 3, 2, 1, 0]), NEIGHBOURS):
        for place, sample in enumerate(ids):
            made = samples.values(ids, content, place)
            for i, (slot, x) in enumerate(zip(samples.slots, made, strict=True)):
                assert np.array_equal(x if slot.batch < 0 else x.take([place], slot.batch), alone[sample][i])
            rest, own = np.delete(made[0], place, 0), np.delete(samples.values(ids)[0], place, 0)
            copies = np.repeat(alone[sample][0], len(ids) - 1, 0)
            wanted = {"copies": copies, "zeros": 0 * own, "large": 4096 * own, "nan": np.nan * own}.get(content)
            assert (rest != own).all() if wanted is None else np.array_equal(rest, wanted, equal_nan=True)


def test_a_sample_alone_is_called_once_for_each_length() -> None:
    made: list[Any] = []

    def call(values: Sequence[np.ndarray]) -> Callable[[], np.ndarray]:
        return lambda: made.append(values) or values[0].astype(np.float32)  # type: ignore[func-returns-value]

    subject: Any = SimpleNamespace(library=arrays.get("numpy"), torch=None, call=call)
    trials = Trials(subject, Samples(slots_of("x[batch, seq, 3]", {"seq": 6})[0], 0), False, None, None)  # type: ignore[arg-type]
    for sample, of in [*itertools.product(range(3), trials.lengths)] * 2:
        (result,) = trials._alone(sample, of)[1]
        assert np.array_equal(result.numbers(), of.values([sample])[0].astype(np.float32))
    assert len(trials.lengths) > 1 and len(made) == 3 * len(trials.lengths)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (2, 3, 4, 5)], ids=str)
def test_an_array_holds_its_numbers_in_every_layout(shape: tuple[int, ...]) -> None:
    x = np.arange(1.0, math.prod(shape) + 1).reshape(shape)
    for layout, least in LAYOUTS.items():
        made = laid_out(arrays.get("numpy"), x, FLOAT32, layout)
        assert np.array_equal(made, x), layout
        assert made.flags.c_contiguous == (len(shape) < least or layout == "one element further"), layout
        whole = made if made.base is None else made.base
        if layout == "one element further":
            assert isinstance(whole, np.ndarray) and made.ctypes.data == whole.ctypes.data + made.itemsize


#: by word: the bits of a sum, whether it is rounded to nearest, and the terms of a part
SUMS = {"ampere": (24, False, 0), "tensorcore": (24, False, 0), "hopper": (25, False, 0), "fp8": (14, False, 0),
        "promoted:128": (14, False, 128), "int32": (31, True, 0), "bf16": (8, True, 0), "fp32": (24, True, 0),
        "fp64": (53, True, 0)}  # fmt: skip


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float8_e4m3fn"])
def test_words_of_arithmetic_are_what_the_tables_say(name: str) -> None:
    inside, narrow = FORMATS["float64" if name == "float64" else "float32"], FORMATS[name].precision < 24
    usual = arithmetic(name)
    assert (usual.precision, usual.overflow) == (inside.precision, inside.overflow)
    assert usual.flushed == 0 and not usual.saturate
    assert (usual.sum_precision, usual.to_nearest, usual.chunk) == SUMS["tensorcore" if narrow else f"fp{inside.bits}"]
    assert usual.operands is (FORMATS[name] if narrow else None)
    for word, found in SUMS.items():
        made = arithmetic(name, accumulate=word)
        assert (made.sum_precision, made.to_nearest, made.chunk, made.operands) == (*found, None), word
    for word, bits in {"bf16": 8, "float16": 11, "fp32": 24}.items():
        made = arithmetic(name, intermediate=word)
        assert (made.precision, made.sum_precision, made.to_nearest, made.operands) == (bits, bits, True, None)
    assert arithmetic(name, flush=True).flushed == inside.least_normal
    assert all(ULPS["documented"][f] >= u or f in ("divide", "sqrt") for f, u in ULPS["cuda"].items())
