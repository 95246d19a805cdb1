"""Fast kernels against the bounds of the rows they stand for, in both precisions; the tape operations against the plain ones."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from tests.runtime import tape_checks
from tlrt import Session
from tlrt import fast_kernels as fast
from tlrt.spec import SpecDevice
from tlrt.spec import kernels as specification
from tlrt.tape import Tape
from tlspec import registry
from tlspec.compare import compare
from tlspec.drawn import build_case, generator

PRECISIONS = ["fp32", "fp64"]


def draw(*shape: int, key: str = "x") -> np.ndarray:
    """float64 values that are no float32, so that the precision shows."""
    return generator("fast", key, str(shape)).standard_normal(shape) * (1 + 2.0**-30)


def within(op: str, which: str, dims: dict[str, int], given: dict[str, np.ndarray], got: list[np.ndarray]) -> None:
    case = build_case(registry.get(op), dims, given, generator("fast"), which=which)
    for out, ref, tol in zip(got, case.expected.outputs, case.expected.tolerances, strict=True):
        c = compare(np.ascontiguousarray(out).reshape(ref.shape), ref, tol, signed_zeros=False)
        assert c.ok, c.explain(op)


def product_within(a: np.ndarray, b: np.ndarray, got: np.ndarray, precision: str) -> None:
    dims = {"m": a.shape[0], "n": a.shape[1], "p": b.shape[1]}
    kind, op = (np.float64, "dgemm") if precision == "fp64" else (np.float32, "matmul")
    assert got.dtype == kind
    with np.errstate(all="ignore"):
        within(op, "forward", dims, {"A": a.astype(kind), "B": b.astype(kind)}, [got])


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.cuda)], ids=["cpu", "gpu"])
def use_gpu(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(3, 5, 4), (1, 1, 1), (33, 65, 17), (4, 0, 3), (0, 3, 2)], ids=str)
def test_matmul(shape: tuple[int, int, int], precision: Any, use_gpu: bool) -> None:
    m, n, p = shape
    a, b, g = draw(m, n, key="a"), draw(n, p, key="b"), draw(m, p, key="g")
    product_within(a, b, fast.matmul_forward(a, b, precision=precision, use_gpu=use_gpu), precision)
    da, db = fast.matmul_backward(a, b, g, precision=precision, use_gpu=use_gpu)
    if precision == "fp64":
        product_within(g, b.T, da, precision)
        product_within(a.T, g, db, precision)
    else:
        f = {k: v.astype(np.float32) for k, v in {"A": a, "B": b, "g": g}.items()}
        within("matmul", "vjp", {"m": m, "n": n, "p": p}, f, [da, db])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("batch", [None, 1, 9])
def test_linear(batch: int | None, precision: Any, use_gpu: bool) -> None:
    """In float64 y = [x, 1]·[Wᵀ; b] is a product of one more term, db one with ones, so their bounds are DGEMM's."""
    outputs, inputs = 5, 33
    w, b = draw(outputs, inputs, key="w"), draw(outputs, key="b")
    x, g = (draw(n, key="x") if batch is None else draw(batch, n, key="x") for n in (inputs, outputs))
    y = fast.linear_forward(w, b, x, precision=precision, use_gpu=use_gpu)
    dw, db, dx = fast.linear_backward(w, x, g, precision=precision, use_gpu=use_gpu)
    assert [v.shape for v in (y, dw, db, dx)] == [g.shape, w.shape, b.shape, x.shape]
    rows, up = np.atleast_2d(x), np.atleast_2d(g)
    if precision == "fp64":
        ones = np.ones((len(rows), 1))
        product_within(np.hstack([rows, ones]), np.vstack([w.T, b]), np.atleast_2d(y), precision)
        product_within(up.T, rows, dw, precision)
        product_within(up, w, np.atleast_2d(dx), precision)
        product_within(up.T, ones, db[:, None], precision)
    else:
        f = {k: v.astype(np.float32) for k, v in {"W": w, "x": rows, "b": b, "g": up}.items()}
        dims = {"outputs": outputs, "inputs": inputs, "batch": len(rows)}
        within("linear", "forward", dims, {k: f[k] for k in "Wxb"}, [y])
        within("linear", "vjp", dims, f, [dw, dx, db])


def test_precision_shows() -> None:
    """What float32 cannot hold."""
    a, b = np.array([[1.0, 1.0]]), np.array([[1.0], [2.0**-40]])
    assert fast.matmul_forward(a, b, precision="fp64")[0, 0] == 1 + 2.0**-40
    assert fast.matmul_forward(a, b, precision="fp32")[0, 0] == 1.0
    default = fast.matmul_forward_gpu(a, b)
    assert default.dtype == np.float64
    assert np.array_equal(default, fast.matmul_forward(a, b, precision="fp64", use_gpu=True))
    assert fast.dot([1, 1], [1, 2.0**-40]) == 1 + 2.0**-40
    assert fast.dot([1, 1], [1, 2.0**-40], precision="fp32") == 1.0 and fast.dot([], []) == 0.0


def test_views() -> None:
    v = np.arange(3.0)
    assert fast.as_column(v).shape == (3, 1) and fast.as_row(v).shape == (1, 3)
    assert np.shares_memory(fast.as_column(v), v) and np.shares_memory(fast.drop_column(fast.as_column(v)), v)
    assert np.array_equal(fast.drop_column(fast.as_column(v)), v)
    assert [r.tolist() for r in fast.matrix_rows([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]
    assert fast.vector_array([1, 2]).dtype == np.float64
    for call in (lambda: fast.as_column([[1]]), lambda: fast.as_row(1), lambda: fast.drop_column([[1, 2]])):
        assert_raises(tlrt.errors.ShapeError, call)


def test_mean_squared_error() -> None:
    """Exact where the arithmetic is: integers and powers of two."""
    assert fast.mse_spec_vec([1, 2, 3, 4], [1, 0, 3, 8]) == 5.0
    assert fast.mse_spec_vec_grad([1, 2, 3, 4], [1, 0, 3, 8]).tolist() == [0, 1, 0, -2]
    assert np.isnan(fast.mse_spec_vec([], [])) and fast.mse_spec_vec_grad([], []).shape == (0,)


@pytest.mark.parametrize(
    "call",
    [
        lambda: fast.matmul_forward(np.ones((2, 3)), np.ones((2, 3))),
        lambda: fast.matmul_forward(np.ones(3), np.ones((3, 1))),
        lambda: fast.matmul_backward(np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 2))),
        lambda: fast.linear_forward(np.ones((2, 3)), np.ones(3), np.ones(3)),
        lambda: fast.linear_forward(np.ones((2, 3)), np.ones(2), np.ones(2)),
        lambda: fast.linear_backward(np.ones((2, 3)), np.ones(3), np.ones(3)),
        lambda: fast.dot([1], [1, 2]),
        lambda: fast.mse_spec_vec([1], [1, 2]),
        lambda: fast.matmul_forward(np.ones((1, 1)), np.ones((1, 1)), precision="fp16"),  # type: ignore[arg-type]
        lambda: fast.matmul_forward([["a"]], [[1]]),  # type: ignore[list-item]
        lambda: fast.matmul_forward(np.ones((1, 1), complex), [[1]]),
    ],
)
def test_refused(call: Any) -> None:
    said = r"\w+: \w+: got"
    assert_raises_regex((tlrt.errors.ShapeError, tlrt.errors.ArgumentError, tlrt.errors.ArgumentTypeError), said, call)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("batched", [False, True])
def test_tape_operations_are_the_plain_ones(dev: tlrt.Device, precision: Any, batched: bool) -> None:
    """Value and gradients within the plain row's bound; frozen operands get nothing; nothing leaks."""
    with Tape(dev) as tape:
        w, b = tape.leaf(draw(4, 6, key="w"), "w"), tape.leaf(draw(4, key="b"), "b")
        x = tape.leaf(draw(3, 6) if batched else draw(1, 6)[0], "x")
        c = tape.leaf(draw(4, 2, key="c"), "c", False)
        t = tape.leaf(draw(3 if batched else 1, 2, key="t"), "t", False)
        pairs = [(fast.linear_fast(tape, w, b, x, precision=precision), tape.linear(w, b, x), (w, x, b))]
        rows = tape.reshape(pairs[0][0], (-1, 4))
        pairs.append((fast.matmul_fast(tape, rows, c, precision=precision), tape.matmul(rows, c), (rows, c)))
        for mine, plain, operands in pairs:
            assert tape.shape(mine) == tape.shape(plain)
            node = tape.node(plain)
            while node.plan is None:  # a vector goes through views
                node = tape.node(node.parents[0])
            tape_checks.check_bounds(
                tape_checks.case_of_node(tape, node), [tape.value(mine).numpy().reshape(-1)], "value"
            )
            g = draw(*tape.shape(mine), key="g").astype(np.float32)
            found = tape.backward(mine, g)
            got = [found[p].numpy().reshape(-1) if tape.node(p).requires_grad else None for p in operands]
            tape_checks.check_bounds(tape_checks.case_of_node(tape, node, g), got, "gradient")
        grads = tape.backward_sparse(fast.mse_loss_fast(tape, pairs[1][0], t))
        assert set(grads) == {w, b, x} and all(v.numpy().any() for v in grads.values())
        assert_raises(tlrt.errors.ShapeError, fast.matmul_fast, tape, w, w, precision=precision)
        with pytest.raises(tlrt.errors.ArgumentError):
            fast.matmul_fast(tape, rows, c, precision="double")  # type: ignore[arg-type]


def test_on_the_specification() -> None:
    with Tape("spec") as tape:
        a, b = tape.leaf(draw(3, 4)), tape.leaf(draw(4, 2))
        mine, plain = fast.matmul_fast(tape, a, b, precision="fp64"), tape.matmul(a, b)
        ones = np.ones((3, 2))
        pairs = ((tape.value(mine), tape.value(plain)), (tape.backward(mine, ones)[a], tape.backward(plain, ones)[a]))
        # two float64 sums of at most 4 products in any order: 2·4·2^-53·Σ|terms|
        most = 4 * np.abs(tape.value(a).numpy()).max(initial=1) * np.abs(tape.value(b).numpy()).max(initial=1)
        for x, y in pairs:
            assert np.all(np.abs(x.numpy() - y.numpy()) <= 2 * 4 * 2.0**-53 * most)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_fast_kernels_stand_for_the_operations(s, precision):
    def run(session):
        w, b = session.param(np.linspace(-1, 1, 15).reshape(5, 3), "w"), session.param(np.ones(5), "b")
        x = session.const(np.linspace(0, 1, 24).reshape(2, 4, 3))
        y = session.linear(w, b, x)
        z = session.matmul(session.reshape(y, (8, 5)), w) @ session.const(np.ones((3, 2)))
        batch = session.matmul(y, session.const(np.ones((5, 2)))) + session.bmm(y, session.zeros((2, 5, 2)))
        loss = session.mse_loss(z, session.zeros((8, 2))) + session.mse_loss(batch, session.zeros((2, 4, 2)))
        session.backward(loss)
        return loss.item(), w.grad.numpy(), b.grad.numpy(), [n.name for n in session.tape.nodes]

    plain = run(s)
    with Session(s.device, fast_kernels=True, matmul_precision=precision) as fast:
        got = run(fast)
    assert ("linear_fast" in got[3] and "matmul_fast" in got[3]) == (precision == "fp64")
    for a, b in zip(plain[:3], got[:3], strict=True):
        assert np.allclose(a, b, rtol=1e-5)
    if precision == "fp32" and s.device.name != "cuda":
        assert plain[0] == got[0] and all(np.array_equal(a, b) for a, b in zip(plain[1:3], got[1:3], strict=True))


def test_fast_kernels_refuse_and_compare():
    with Session("cpu", fast_kernels=True, matmul_precision="fp64") as s:
        w, b, x = s.param(np.ones((5, 3)), "w"), s.param(np.ones(5), "b"), s.const(np.ones((2, 2, 4)))
        before = s.tape.size
        for call in (lambda: s.linear(w, b, x), lambda: s.matmul(x, w), lambda: s.linear(w, b, s.const(1.0))):
            assert_raises(ValueError, call)
        kept = [n for n in s.tape.nodes if not n.buffer.released]
        assert len(kept) <= before + 3, "refused operations stay on the tape"
        assert s.linear(w, b, s.const(np.ones(3))).numpy().tolist() == [4.0] * 5

    def program(session):
        return session.mse_loss(session.linear(session.param(np.eye(3), "w"), session.zeros(3), session.rand_normal((4, 3))),
                                session.zeros((4, 3)))  # fmt: skip

    assert tlrt.compare(program, fast_kernels=True, matmul_precision="fp64").ok


def test_other_types_of_numbers_have_the_plain_operations() -> None:
    with Tape(SpecDevice(np.longdouble)) as tape:
        a, b = tape.leaf(draw(3, 4)), tape.leaf(draw(4, 2))
        assert tape.node(fast.matmul_fast(tape, a, b, precision="fp64")).name == "matmul"


def test_a_product_of_host_arrays_on_the_specification() -> None:
    a, b = np.linspace(-1, 1, 6).reshape(2, 3), np.linspace(0, 1, 12).reshape(3, 4)
    found = specification.dgemm(SpecDevice(), a, b, 2, 3, 4)
    assert found.dtype == np.float64 and np.allclose(found, a @ b, rtol=1e-14)
