"""The signature grammar refuses what it cannot mean."""

import dataclasses
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

from tlspec import registry
from tlspec.bounds import call_reference, exact
from tlspec.case import Case, as_tuple
from tlspec.draw.cases import draw_case
from tlspec.entries import composition_arguments
from tlspec.expressions import evaluate
from tlspec.formats import FORMATS
from tlspec.registry import Op
from tlspec.signature import Array, Signature

pytestmark = pytest.mark.every_choice


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a[n]", "no '->'"), ("a[n] ->", "no output"), ("a -> out[n]", "not an array"),
        ("a: i12[n] -> out[n]", "not an array"), ("a[n]; c -> out[n]", "not a parameter"),
        ("a[n]; c: double -> out[n]", "not a parameter"), ("a[n], a[n] -> out[n]", "used twice"),
        ("n[n] -> out[n]", "used twice"), ("a[n]; n: float -> out[a]", "used twice"),
        ("call[n] -> out[n]", "reserved"), ("a[*], b[n] -> out[*]", "do not mix"),
        ("a: list[n], b: list[m] -> out: list[n]", "one dimension"), ("a?: list[n] -> out: list[n]", "not optional"),
        ("a: list[2] -> out: list[2]", "is a name"), ("a: list[n], lengths[n] -> out: list[n]", "`lengths` is taken"),
        ("a: list[n] -> out: list[n], z[n]", "all lists or none"), ("a[n] -> out: list[n]", "need lists of inputs"),
        ("a[*], b: list[n] -> out[*]", "do not mix"),
        ("x[n] < 3 -> out[n]", "indices alone"), ("x[n], i: i64[k] < n -> out[k]", "indices alone"),
    ],
)  # fmt: skip
def test_refused_signatures(text: str, message: str) -> None:
    assert_raises_regex(ValueError, message, Signature.parse, text)
    assert_raises_regex(ValueError, "no permutation", Signature.parse, "a[m, n] -> out[n]", "n")


def test_a_signature() -> None:
    sig = Signature.parse(
        "x[*dims], m?[n, n], i: u32[k]; axis: u32, eps: float = 1e-6 -> out[*drop(dims, axis)], z[n // 2 + 1]"
    )
    assert sig.dims == ("*dims", "n", "k") and [a.optional for a in sig.inputs] == [False, True, False]
    assert [(p.name, p.kind, p.default) for p in sig.params] == [("axis", "u32", None), ("eps", "float", "1e-6")]
    assert [o.dims for o in sig.outputs] == [("*drop(dims, axis)",), ("n // 2 + 1",)]
    assert not sig.elementwise and not sig.needs_context
    assert Signature.parse("s: u32[k] -> out[k]").needs_context and Signature.parse("m?[k] -> out[k]").needs_context


#: an array of a signature -> its name, lengths, kind, whether it may be left out, and what its indices are below
ARRAYS: dict[str, tuple[Any, ...]] = {
    "x[rows, 64*k]": ("x", ("rows", "64*k"), "f32"), "s[]": ("s", (), "f32"), "m? [n,n]": ("m", ("n", "n"), "f32", True),
    "w : bf16 [n]": ("w", ("n",), "bfloat16"), "w: f32[n]": ("w", ("n",), "float32"),
    "A: f64[m, n]": ("A", ("m", "n"), "f64"), "i: index[k] < n": ("i", ("k",), "index", False, "n"),
    "h: u32[m, k]<2 * n": ("h", ("m", "k"), "u32", False, "2 * n"), "l: list[n]": ("l", ("n",), "list"),
    **{f"q: {kind}[f(m, n), *d]": ("q", ("f(m, n)", "*d"), kind) for kind in ("i8", "u8", "i16", "i32", "i64", "bool")},
}  # fmt: skip


@pytest.mark.parametrize("text", ARRAYS)
def test_an_array_of_a_signature(text: str) -> None:
    """Alone and between others; a kind of its own is a buffer's, and what lies on the host or in an index buffer is none."""
    wanted = Array(*ARRAYS[text])
    for before, after in product(("", "a[z], "), ("", ", b[p(z, z)]", "; c: float, d0: dims, e: u64 = 7")):
        sig = Signature.parse(f"{before}{text}{after} -> out[n]")
        found = sig.inputs[before != ""]
        assert found == wanted and len(sig.inputs) == 1 + bool(before) + ("b[" in after)
        known = {"buffers": not wanted.host and wanted.kind not in ("index", "list"), "indices": wanted.kind == "index"}
        assert all((found in getattr(sig, n)) == holds for n, holds in {**known, "lists": wanted.listed}.items())
        params = [(p.name, p.kind, p.default) for p in sig.params]
        assert params[1:] == [("d0", "dims", None), ("e", "u64", "7")] * (";" in after)
        own = FORMATS.get(wanted.kind, FORMATS["float8_e5m2"])
        assert wanted.format(FORMATS["float8_e5m2"]) is own and wanted.host == (wanted.kind in ("u32", "f64"))


def test_dimensions_have_the_order_in_which_they_appear() -> None:
    """Names alone first, those of expressions behind them and in order; or the order that is given."""
    text = "x[rows, 64*k + b], a?[*dims], w[n, f(z, rows)]; p: u32 -> out[p, n + m, late], x[rows, 64*k + b]"
    sig = Signature.parse(text)
    assert sig.dims == ("rows", "*dims", "n", "late", "b", "k", "z")
    assert [(o.name, o.over, o.dims) for o in sig.outputs][1] == ("x_out", "x", ("rows", "64*k + b"))
    assert sig.outputs[0] == Array("out", ("p", "n + m", "late")) and sig.sizes[1] == "dims"
    assert Signature.parse(text, "z, k, b, late, n, *dims, rows").dims == sig.dims[::-1]
    for order in ("z, k, b, late, n, dims, rows", "z, z, k, b, late, n, *dims, rows", ""):
        assert_raises_regex(ValueError, "no permutation", Signature.parse, text, order)


def test_lists() -> None:
    sig = Signature.parse("a: list[count], x[1]; c: float -> out: list[count]")
    assert [a.name for a in sig.lists] == ["a"] and [a.name for a in sig.buffers] == ["x"]
    assert sig.dims == ("count",) and sig.sizes == ("count", "lengths") and not sig.needs_context
    assert Signature.parse("a: list[count] -> out[1]").needs_context  # an empty list tells no context
    row = Op(
        name="toy", family="optim", text="", signature=sig, reference=lambda a, x, c: a, bound=exact(), no_vjp="lists"
    )
    assert_raises_regex(ValueError, "toy has no VJP: lists", row.signature_of, "vjp")
    assert_raises_regex(ValueError, "no VJP", row.vjp, "g -> ga")


def toy() -> Op:
    text = "a[n], b[n] -> out[n]"
    sig = Signature.parse(text)
    return Op(name="toy", family="elementwise", text=text, signature=sig, reference=lambda a, b: a, bound=exact())


@pytest.mark.parametrize(
    ("text", "message"), [("c, g -> ga", "reads"), ("g -> gc", "gives"), ("g -> b", "gives"), ("g_out -> ga", "reads")]
)
def test_refused_vjps(text: str, message: str) -> None:
    assert_raises_regex(ValueError, message, toy().vjp, text)


def test_rows_in_reproducible_contexts() -> None:
    """Have other bounds and the same bits where these differ in fast ones and do not in reproducible ones."""
    for row in registry.ops():
        other = row.in_math("reproducible")
        changed = row.contract.reproducible and not row.contract.same_bits
        assert row.in_math("fast") is row and (other is not row) == changed
        assert other.contract.same_bits == row.contract.same_bits or changed
        if changed:
            assert other.contract == dataclasses.replace(row.contract, same_bits=True) and other.name == row.name
            for which in ("forward", "vjp") if row.vjp_rule else ("forward",):
                bound, chain = row.bound_of(which), other.bound_of(which)
                assert chain.kind == "chain" if bound.height else chain is (bound.chain or bound)
    assert sum(row.in_math("reproducible") is not row for row in registry.ops()) > 5


def test_vjp_suffixes_must_match() -> None:
    assert_raises_regex(ValueError, "suffixes", toy().vjp, "g -> ga, gb", each=("a",))


def test_unknown_names_get_a_hint() -> None:
    known = registry.ops()[-1].name
    assert_raises_regex(KeyError, f"did you mean.*{known}", registry.ops, known + "x")


def test_an_operation_of_two_families_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = registry.get("max_pool")
    monkeypatch.setitem(vars(sys.modules["tlspec.ops.conv"])[registry._ROWS], twice.name, twice)
    assert_raises_regex(ValueError, "operation max_pool is registered twice", registry.ops)


def test_a_hint_lists_what_is_close() -> None:
    with pytest.raises(KeyError) as caught:
        registry.ops("max_pool3d")
    names = str(caught.value).removesuffix('?"').rpartition("; did you mean ")[2].split(", ")
    assert {"max_pool", "max_pool2d"} <= set(names) <= {r.name for r in registry.operations()}
    assert_raises_regex(
        KeyError, "'no operation or family 'zzz''|\"no operation or family 'zzz'\"$", registry.ops, "zzz"
    )


def test_what_is_written_down_stays_as_it_is() -> None:
    """Every dataclass of the specification is frozen, but for the row, which its VJP completes; a report grows."""
    modules = [m for n, m in list(sys.modules.items()) if n.startswith("tlspec.") and not n.startswith("tlspec.judge")]
    found = {v for m in modules for v in vars(m).values() if isinstance(v, type) and dataclasses.is_dataclass(v)}
    assert len(found) > 15
    assert [c.__name__ for c in found if not c.__dataclass_params__.frozen] == ["Op"]  # type: ignore[attr-defined]


def test_paths_reach_the_products_on_tensor_cores() -> None:
    """Of products whose rows are whole 16 bytes in every form: both wide and narrow tiles at least three quarters full, on half
    of 132 multiprocessors (``tl_prefer_wgmma``), and one product that they do not serve."""
    wgmma, narrow = 128, 64
    for name, sizes in {"matmul": "1 m n p", "bmm": "batch m n p", "linear": "1 batch inputs outputs"}.items():
        paths = registry.get(name).drawing.paths
        served = []
        for path in paths:
            batch, m, n, p = (path.get(s, 1) for s in sizes.split())
            if any(k % 4 for k in (m, n, p)) or (name != "bmm" and min(m, n, p) < 64):
                continue
            forms = ((m, n, p), (m, p, n), (n, m, p))  # of the result, of the gradients of either operand
            tiles = [batch * -(-a // wgmma) * -(-b // narrow) for a, _, b in forms]
            served.append(
                [
                    2 * t >= 132 and 4 * batch * a * b >= 3 * t * wgmma * narrow
                    for t, (a, _, b) in zip(tiles, forms, strict=True)
                ]
            )
        assert sum(all(s) for s in served) >= 2 and not all(all(s) for s in served), (name, served)
        assert len(paths) == len({str(path) for path in paths}) >= 3


def test_selection() -> None:
    rows = registry.ops()
    family = rows[0].family
    assert registry.ops(family) == tuple(r for r in rows if r.family == family)
    assert registry.ops(f"{rows[1].name}, {rows[0].name}") == rows[:2] and registry.ops("*") == rows


def demand_equal_formulas(case: Case) -> None:
    """Of the case's row and direction, in float64: the same as the reference but for rounding."""
    for formula in case.op.formulas[case.which]:
        with np.errstate(all="ignore"):
            found, wanted = (as_tuple(call_reference(f, case.wide, case.values)) for f in (formula, case.reference))
        for x, y in zip(found, wanted, strict=True):
            assert np.allclose(x, y, rtol=1e-9, atol=1e-9, equal_nan=True), (case, formula)


@pytest.mark.parametrize("which", ["forward", "vjp"])
@pytest.mark.only(where=lambda row: any(row.formulas.values()))
def test_other_formulas_give_the_same(row: Op, which: str) -> None:
    for seed in range(4):
        demand_equal_formulas(draw_case(row, seed, "uniform", "small", which))


def test_a_row_is_a_function() -> None:
    """Of arrays, and of parameters by name or by default."""
    scale = registry.get("scale")
    assert scale([1.0, 2.0], c=3.0).tolist() == scale([1.0, 2.0], 3.0).tolist() == [3.0, 6.0]
    assert_raises_regex(TypeError, r"scale takes \(x, c\): c missing", scale, [1.0])
    assert_raises_regex(TypeError, r"got c once too often", scale, [1.0], 3.0, c=3.0)
    assert_raises_regex(TypeError, "takes 2 arguments", scale, [1.0], 3.0, 4.0)
    losses, logits = registry.get("cross_entropy_rows"), [[1.0, 2.0, 4.0]]
    assert registry.get("cross_entropy")(logits, [2]) == losses(logits, [2])  # labels are whole numbers
    assert losses(logits, [2]) == losses(logits, [2], None, 0.0) == losses(logits, [2], [1, 1, 1])


def test_an_interrupted_import_registers_nothing(python: Callable[..., Any]) -> None:
    """Wherever an interrupt ends the import of a family, the next use of the registry finds each row, once."""
    code = """
import sys
from tlspec import registry

def interrupt(frame, event, argument):
    if event == "line":
        lines[0] -= 1
        if not lines[0]:
            sys.settrace(None)
            raise KeyboardInterrupt
    return interrupt

def trace(frame, event, argument):
    return interrupt if frame.f_code.co_name == "<module>" and "ops/conv" in frame.f_code.co_filename else None

cut = 0
while True:
    cut, lines = cut + 5, [cut + 5]
    sys.settrace(trace)
    try:
        rows = registry.ops()
        break
    except KeyboardInterrupt:
        continue
sys.settrace(None)
print(cut > 20, len(rows), len({r.name for r in rows}))
"""
    done = python(code)
    assert done.stdout.split() == ["True", *[str(len(registry.ops()))] * 2], done.stderr


def test_a_row_is_found_by_its_whole_name_alone():
    named = [row for row in registry.ops() if row.name not in registry.FAMILIES]
    assert all((registry.get(row.name),) == registry.ops(row.name) for row in named)
    for name in ("elementwise", "re*", "conv,relu", "no such"):
        with pytest.raises(KeyError, match="no operation"):
            registry.get(name)


def test_expressions_know_the_functions_of_shapes_alone():
    assert evaluate("rank(d) + n", {"d": [1, 2], "n": 1}) == 3
    for name in ("len", "max", "__import__"):
        assert_raises(NameError, evaluate, f"{name}('os')", {})


@pytest.mark.parametrize(("name", "taken"), [("scatter_add", {"n"}), ("scatter_add_rows", {"rows", "cols"})])
def test_a_composition_gets_what_the_operation_takes(name, taken):
    """Where it takes any name: those of the operation's own function."""
    values = {**dict.fromkeys(registry.get(name).signature.sizes, 3), "else": 1}
    assert composition_arguments(registry.get(name), values).keys() & {*taken, "else"} == taken


def test_lengths_in_messages():
    sig = Signature.parse("a[batch, m, n], b[*dims], d[n + 1], e[m, n + 1] -> out[1]")
    assert [a.length_text for a in sig.inputs] == ["batch*m*n", "product(dims)", "n + 1", "m*(n + 1)"]
    assert [a.length_text for a in Signature.parse("x[*] -> out[*]").inputs] == ["n"]
