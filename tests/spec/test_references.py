"""References without kernels of this project: right kernels by other algorithms pass, wrong ones fail."""

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tlspec
from tests.spec import address_in
from tests.spec.test_registry import demand_equal_formulas
from tlspec import references, registry
from tlspec.bounds import call_named
from tlspec.draw.cases import data_classes, draw_case, refused_by
from tlspec.formats import FORMATS
from tlspec.references.quantised import BLOCK

F32 = np.float32
Array = np.ndarray
Kernel = Callable[..., Any]


def sigmoid(x: Array) -> Array:
    return F32(0.5) * (F32(1) + np.tanh(F32(0.5) * x))


def add_norm(x: Array, residual: Array, gamma: Array, eps: float) -> Any:
    total = x + residual
    scale = np.reciprocal(np.sqrt(np.mean(np.square(total), axis=1, keepdims=True, dtype=F32) + F32(eps)))
    return total * scale * gamma, total


def add_norm_of_x(x: Array, residual: Array, gamma: Array, eps: float) -> Any:
    """The mean square is that of x."""
    return (x + residual) / np.sqrt(np.mean(np.square(x), axis=1, keepdims=True) + F32(eps)) * gamma, x + residual


def swiglu(gate: Array, up: Array) -> Array:
    return gate / (F32(1) + np.exp(-gate)) * up


def swiglu_exchanged(gate: Array, up: Array) -> Array:
    return up / (F32(1) + np.exp(-up)) * gate


def geglu(gate: Array, up: Array) -> Array:
    return F32(0.5) * gate * (F32(1) + np.tanh(F32(np.sqrt(2 / np.pi)) * (gate + F32(0.044715) * gate**3))) * up


def geglu_by_sigmoid(gate: Array, up: Array) -> Array:
    """The approximation x·σ(1.702 x)."""
    return gate / (F32(1) + np.exp(F32(-1.702) * gate)) * up


def grouped(x: Array, w: Array, ends: Array) -> Array:
    """Row by row."""
    of = np.searchsorted(ends, np.arange(len(x)), side="right")
    return np.einsum("ik,ikn->in", x, w[of]).astype(x.dtype)


def grouped_one_late(x: Array, w: Array, ends: Array) -> Array:
    """The first row of a group belongs to the group before."""
    of = np.searchsorted(ends, np.arange(len(x)), side="left")
    return np.einsum("ik,ikn->in", x, w[of]).astype(x.dtype)


def experts(x: Array, w: Array, weight: Array, expert: Array) -> Array:
    out = np.zeros((len(x), w.shape[2]), F32)
    for t in range(len(x)):
        for c, e in enumerate(expert[t]):
            out[t] += (x[t] * weight[t, c]) @ w[e]
    return out


def experts_without_weights(x: Array, w: Array, weight: Array, expert: Array) -> Array:
    return experts(x, w, np.ones_like(weight), expert)


def attend(q: Array, k: Array, v: Array, scale: float, causal: int) -> Array:
    """A running maximum over blocks of keys."""
    rows, heads, _ = q.shape
    q, k, v = (x.transpose(1, 0, 2).repeat(heads // x.shape[1], axis=0) for x in (q, k, v))
    top, total, sums = np.full((heads, rows, 1), -np.inf, F32), np.zeros((heads, rows, 1), F32), np.zeros(q.shape, F32)
    step = max(5, k.shape[1] // 8)
    for block in (slice(start, start + step) for start in range(0, k.shape[1], step)):
        scores = (q @ k[:, block].swapaxes(1, 2)) * F32(scale)
        if causal:
            later = np.arange(k.shape[1])[block] > np.arange(rows)[:, None] + k.shape[1] - rows
            scores = np.where(later, F32(-np.inf), scores)
        new = np.maximum(top, scores.max(axis=2, keepdims=True))
        shift = np.where(np.isfinite(new), new, 0)
        e, old = np.exp(scores - shift), np.exp(top - shift)
        total, sums, top = total * old + e.sum(axis=2, keepdims=True), sums * old + e @ v[:, block], new
    return (sums / total).transpose(1, 0, 2)


def varlen(q: Array, k: Array, v: Array, bounds: Array, causal: int, scale: float) -> Array:
    out = np.zeros(q.shape, F32)
    for a, b in itertools.pairwise(bounds):
        out[a:b] = attend(q[a:b], k[a:b], v[a:b], scale, causal)
    return out


def varlen_over_the_bounds(q: Array, k: Array, v: Array, bounds: Array, causal: int, scale: float) -> Array:
    """A sequence attends to those before it."""
    out = np.zeros(q.shape, F32)
    for a, b in itertools.pairwise(bounds):
        out[a:b] = attend(q[a:b], k[:b], v[:b], scale, causal)
    return out


def paged(q: Array, keys: Array, values: Array, table: Array, filled: Array, scale: float) -> Array:
    out = np.zeros(q.shape, F32)
    for b, count in enumerate(filled.tolist()):
        k, v = (x[table[b]].reshape(-1, *x.shape[2:]) for x in (keys, values))
        if count:
            out[b] = attend(q[b : b + 1], k[:count], v[:count], scale, 0)[0]
    return out


def paged_to_the_end_of_the_page(
    q: Array, keys: Array, values: Array, table: Array, filled: Array, scale: float
) -> Array:
    page = keys.shape[1]
    return paged(q, keys, values, table, np.minimum(-(-filled // page), table.shape[1]) * page, scale)


def signed(patterns: Array) -> Array:
    return patterns.astype(np.uint8).view(np.int8)


def int8(a: Array, b: Array, a_scale: Array, b_scale: Array) -> Array:
    sums = signed(a).astype(np.int32) @ signed(b).astype(np.int32).T
    return sums.astype(F32) * np.outer(a_scale, b_scale)


def int8_in_sixteen_bits(a: Array, b: Array, a_scale: Array, b_scale: Array) -> Array:
    """Sums in 16-bit integers overflow."""
    sums = signed(a).astype(np.int16) @ signed(b).astype(np.int16).T
    return sums.astype(F32) * np.outer(a_scale, b_scale)


def fp8(a: Array, b: Array, a_scale: Array, b_scale: Array) -> Array:
    a, b = (FORMATS["float8_e4m3fn"].decode(x.astype(np.uint8)).astype(F32) for x in (a, b))
    out = np.zeros((len(a), len(b)), F32)
    for at in range(a_scale.shape[1])[::-1]:
        block = slice(at * BLOCK, (at + 1) * BLOCK)
        out += (a[:, block] @ b[:, block].T) * (a_scale[:, at, None] * b_scale[np.arange(len(b)) // BLOCK, at])
    return out


def fp8_with_one_scale(a: Array, b: Array, a_scale: Array, b_scale: Array) -> Array:
    """The scale of the first block of a row stands for all."""
    return fp8(a, b, np.repeat(a_scale[:, :1], a_scale.shape[1], axis=1), b_scale)


def top_k_top_p(logits: Array, k: int, p: float, strict: bool = False) -> Array:
    """How much likelier tokens add up to, found among the sorted ones."""
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    if 0 < k < logits.shape[1]:
        e = np.where(logits >= np.partition(logits, -k, axis=1)[:, -k][:, None], e, 0)
    probs = e / e.sum(axis=1, keepdims=True, dtype=F32)
    likelier = np.empty_like(probs)
    for row, values, out in zip(logits, probs, likelier, strict=True):
        order = np.argsort(row)
        above = np.append(np.cumsum(values[order][::-1], dtype=F32)[::-1], F32(0))
        out[:] = above[np.searchsorted(row[order], row, side="right")]
    kept = (likelier + probs <= p if strict else likelier < p) | (logits == logits.max(axis=1, keepdims=True))
    part = np.where(kept, probs, F32(0))
    return part / part.sum(axis=1, keepdims=True)


def top_k_top_p_below(logits: Array, k: int, p: float) -> Array:
    """The token that crosses the threshold is left out."""
    return top_k_top_p(logits, k, p, strict=True)


def renormalised(probs: Array, p: float) -> Array:
    order = np.argsort(-probs, axis=1, kind="stable")
    ranked = np.take_along_axis(probs, order, 1)
    before = np.cumsum(ranked, axis=1, dtype=F32) - ranked
    least = np.where(
        (before < F32(p) * probs.sum(axis=1, keepdims=True)) | (ranked == ranked[:, :1]), ranked, np.inf
    ).min(axis=1)
    part = np.where(probs >= least[:, None], probs, F32(0))
    return part / part.sum(axis=1, keepdims=True)


def kept_as_they_are(probs: Array, p: float) -> Array:
    """Without a new sum."""
    return np.where(renormalised(probs, p) > 0, probs, F32(0))


def geglu_erf(gate: Array, up: Array) -> Array:
    wide = gate.astype(np.float64)
    near = np.abs(wide) < 30  # beyond it the tail is 0
    tail = np.frompyfunc(math.erfc, 1, 1)(np.where(near, -wide, 0) / math.sqrt(2)).astype(np.float64)
    return (np.where(near, wide * tail / 2, np.maximum(wide, 0))).astype(F32) * up


#: a reference -> a right kernel and a wrong one
KERNELS: dict[str, tuple[Kernel, Kernel]] = {
    "fused_add_rms_norm": (add_norm, add_norm_of_x), "swiglu": (swiglu, swiglu_exchanged), "geglu": (geglu, geglu_by_sigmoid),
    "geglu_erf": (geglu_erf, geglu),
    "grouped_matmul": (grouped, grouped_one_late), "expert_matmul": (experts, experts_without_weights),
    "varlen_attention": (varlen, varlen_over_the_bounds), "paged_attention": (paged, paged_to_the_end_of_the_page),
    "int8_matmul": (int8, int8_in_sixteen_bits), "fp8_block_matmul": (fp8, fp8_with_one_scale),
    "top_k_top_p": (top_k_top_p, top_k_top_p_below), "top_p_renormalise": (renormalised, kept_as_they_are),
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_every_reference_has_kernels_here() -> None:
    assert KERNELS.keys() == {row.name for row in references.references()}


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_right_kernel_passes_and_a_wrong_one_fails(name: str) -> None:
    """The line of the report repeats the case."""
    right, wrong = KERNELS[name]
    few: dict[str, Any] = {"cases": {"small": 1, "medium": 7, "edges": 2}, "empty": False, "repeats": 8,
                           "isolate": False}  # fmt: skip
    cheap = name in ("swiglu", "int8_matmul", "grouped_matmul")
    report = tlspec.check(right, name, sensitive=cheap, **few)
    assert report.ok and not report.findings, report
    found = tlspec.check(wrong, name, sensitive=False, fail_fast=True, **few)
    finding = next(f for f in found.findings if f.kind == "value")
    address = address_in(finding)
    assert found.verdict == "fail" and f'"{name}"' in finding.repeat
    assert tlspec.check(wrong, name, case=address, isolate=False).verdict == "fail"


@pytest.mark.parametrize("p", np.arange(9) / 8)
def test_thresholds_that_are_reached_exactly(p: float) -> None:
    """Probabilities in eighths, whose sums are exact: the answer has no rounding to decide it."""
    rng = np.random.default_rng(int(8 * p))
    probs = (rng.multinomial(8, [0.25, 0.25, 0.125, 0.125, 0.25], 40) / 8).astype(F32)
    found = references.find("top_p_renormalise").reference(probs.astype(float), p)
    assert np.array_equal(found.astype(F32), renormalised(probs, p))


HEADS = {"heads": 4, "kv_heads": 2}
PAGES = HEADS | {"batch": 2, "page": 4, "most": 2, "pages": 3}
TABLE = {"table": np.array([[0, 2], [2, 1]]), "filled": np.array([0, 8])}
#: a reference -> values that its checks accept, and what makes each of them refuse
ENDS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]] = {
    "fused_add_rms_norm": ({"eps": 0.0}, [{"eps": 1e10}], [{"eps": -1e-30}, {"eps": np.nan}]),
    "grouped_matmul": (
        {"groups": 3, "rows": 3, "ends": np.array([0, 3, 3])}, [{"ends": np.array([3, 3, 3])}, {"rows": 0, "ends": np.zeros(3)}],
        [{"ends": np.array([2, 1, 3])}, {"ends": np.array([1, 2, 2])}, {"groups": 0, "rows": 0, "ends": np.zeros(0)}],
    ),
    "expert_matmul": (
        {"experts": 2, "expert": np.array([[0, 1]])}, [{"expert": np.array([[1, 1]])}], [{"expert": np.array([[0, 2]])}]),
    "varlen_attention": (
        {**HEADS, "total": 3, "count": 4, "bounds": np.array([0, 0, 3, 3])}, [{"bounds": np.array([0, 1, 2, 3])}],
        [{"bounds": np.array(b)} for b in ([0, 2, 1, 3], [1, 1, 2, 3], [0, 1, 2, 2])]
        + [{"total": 0, "count": 1, "bounds": np.zeros(1)}, {"kv_heads": 0}, {"kv_heads": 3}],
    ),
    "paged_attention": (
        PAGES | TABLE, [{"filled": np.array([8, 8])}],
        [{"filled": np.array([9, 0])}, {"table": np.array([[0, 3], [0, 0]])}, {"kv_heads": 0}, {"kv_heads": 3}],
    ),
    "int8_matmul": ({"k": 0}, [{"k": (2**31 - 1) // 127**2}], [{"k": (2**31 - 1) // 127**2 + 1}]),
    "fp8_block_matmul": (
        {"n": 0, "k": 0, "n_blocks": 0, "k_blocks": 0}, [{"n": n, "n_blocks": -(-n // BLOCK)} for n in (1, 127, 128, 129, 256)],
        [{"n": 128, "n_blocks": 2}, {"n": 129, "n_blocks": 1}, {"k": 127}, {"k": 128}],
    ),
    **dict.fromkeys(("top_k_top_p", "top_p_renormalise"), (
        {"vocab": 1, "p": 0.0}, [{"p": 1.0}], [{"p": -1e-30}, {"p": 1 + 2.0**-23}, {"p": np.nan}, {"vocab": 0}])),
}  # fmt: skip


@pytest.mark.parametrize("name", [row.name for row in references.references() if row.contract.checks])
def test_references_take_all_that_they_say(name: str) -> None:
    row, (values, accepted, refused) = references.find(name), ENDS[name]
    for some, ok in (({}, True), *((a, True) for a in accepted), *((r, False) for r in refused)):
        assert (refused_by(row, {**values, **some}) is None) == ok, some


#: a reference -> what has to be among its drawn cases
AMONG: dict[str, dict[str, Callable[..., Any]]] = {
    "grouped_matmul": {
        "a first group without rows": lambda ends, rows: rows and len(ends) > 1 and ends[0] == 0,
        "a last group without rows": lambda ends, rows: rows and len(ends) > 1 and ends[-2] == rows,
        "groups of rows alone": lambda ends: len(ends) > 1 and np.all(np.diff(ends, prepend=0) > 0),
    },
    "expert_matmul": {
        "an expert chosen twice": lambda expert: any(len({*row}) < len(row) for row in expert.tolist()),
        "other experts for each token": lambda expert: len(expert) > 1 and np.ptp(expert, axis=0).all(),
    },
    "varlen_attention": {
        "a sequence without rows": lambda bounds, total: total and 0 in np.diff(bounds),
        "sequences of several lengths": lambda bounds: len({*np.diff(bounds)} - {0}) > 1,
    },
    "paged_attention": {
        "no token": lambda filled: 0 in filled, "all tokens": lambda filled, page, most: page * most in filled,
        "a page in part": lambda filled, page: np.any(filled % page),
        "a shared page": lambda table, batch: batch > 1 and len(np.unique(table)) < table.size,
    },
    "int8_matmul": {
        "a row of ends beside another": lambda a: a.shape[1] > 9 and len({*np.isin(a, (127, 129)).all(axis=1)}) > 1,
        "a long row of one number": lambda b: b.shape[1] > 200 and np.any(np.ptp(b, axis=1) == 0),
    },
    "fp8_block_matmul": {
        "a last block in part": lambda n: n > BLOCK and n % BLOCK, "less than a block": lambda n: 0 < n < BLOCK,
        "scales of several blocks": lambda a_scale, b_scale: len(a_scale) > 1 and min(a_scale.shape[1], *b_scale.shape) > 1,
    },
    "top_k_top_p": {"k beyond all": lambda k, vocab: k > vocab, "all": lambda k, vocab: k == vocab,
                    "k in part": lambda k, vocab: 1 < k < vocab,
                    "ties": lambda logits, vocab: vocab > 2 and any(1 < len({*row}) < vocab for row in logits.tolist())},
}  # fmt: skip


#: bit patterns that are not drawn: the lowest 8-bit integer, and those of NaN
NEVER = {"int8_matmul": (0x80,), "fp8_block_matmul": (0x7F, 0xFF)}


@pytest.mark.parametrize("name", AMONG)
def test_references_draw_what_they_are_about(name: str) -> None:
    row = references.find(name)
    missing = dict(AMONG[name])
    for seed, data, size in itertools.product(range(40), data_classes(row, "forward"), ("small", "medium")):
        case = draw_case(row, seed, data, size)
        known = {**case.values, **case.inputs}
        for array in ("a", "b") if name in NEVER else ():
            assert not np.isin(case.inputs[array], NEVER[name]).any()
        missing = {k: f for k, f in missing.items() if not call_named(f, known)}
        if not missing:
            break
    assert not missing


@pytest.mark.parametrize("reference", references.references(), ids=lambda r: r.name)
def test_references_say_what_they_take_and_return(reference: registry.Op) -> None:
    text = inspect.getdoc(reference.reference) or ""
    assert "Parameters\n---" in text and "Returns\n---" in text and reference.source
    for array in (*reference.signature.inputs, *reference.signature.params):
        assert array.name in text, array.name


@pytest.mark.parametrize("reference", references.references(), ids=lambda r: r.name)
def test_other_formulas_give_the_same(reference: registry.Op) -> None:
    for seed in range(20):
        demand_equal_formulas(draw_case(reference, seed, data_classes(reference, "forward")[0], "medium"))


def test_a_reference_is_called_on_arrays() -> None:
    gate = np.array([0.0, 2.0])
    assert np.allclose(tlspec.references.fused.swiglu(gate, [3.0, 3.0]), [0.0, 6 / (1 + np.exp(-2.0))])


def test_the_row_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="no bound of its own"):
        tlspec.check(swiglu, "swiglu", bound="row", cases=1)
