"""Products of arrays with any number of axes, against NumPy, and what they refuse."""

import itertools

import numpy as np
import pytest

from tlrt import Session, errors
from tlspec.drawn import generator

SHAPES = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((5, 2, 3), (3,)), ((3,), (5, 3, 4)),
    ((5, 2, 3), (1, 3, 4)), ((1, 2, 3), (5, 3, 4)), ((6, 1, 2, 3), (5, 3, 4)), ((6, 5, 2, 3), (5, 3, 4)), ((0, 2, 3), (1, 3, 4)),
    ((2, 0), (0, 3)), ((6, 5, 2, 3), (3, 4)), ((1, 1, 2, 3), (6, 5, 3, 1)), ((4, 2, 0), (4, 0, 3)),
]  # fmt: skip


@pytest.mark.operations("matmul", "bmm")
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul_is_numpys(shapes: tuple[tuple[int, ...], ...]) -> None:
    """Of small integers, so exactly; and so are the gradients."""
    rng = generator("matmul", str(shapes))
    a, b = (rng.integers(-8, 9, size=s).astype(np.float32) for s in shapes)
    want = np.matmul(a, b)
    g = rng.integers(-8, 9, size=want.shape).astype(np.float32)
    with Session("cpu") as s:
        x, y = s.input(a, requires_grad=True), s.input(b, requires_grad=True)
        made = x @ y
        assert made.shape == want.shape
        np.testing.assert_array_equal(made.numpy(), want)
        if want.size:
            s.backward(s.reduce_sum(s.mul(made, s.const(g))))
            rows, columns = np.atleast_2d(a), b if b.ndim > 1 else b[:, None]
            full = g.reshape(
                *np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2]), rows.shape[-2], columns.shape[-1]
            )
            for leaf, back, shape in (
                (x, full @ columns.swapaxes(-1, -2), a.shape), (y, rows.swapaxes(-1, -2) @ full, b.shape)
            ):  # fmt: skip
                wide = (1,) * (back.ndim - max(len(shape), 2)) + ((1, *shape) if leaf is x and a.ndim == 1 else
                        (*shape, 1) if leaf is y and b.ndim == 1 else shape)  # fmt: skip
                spread = tuple(k for k, (n, m) in enumerate(zip(back.shape, wide, strict=True)) if n != m)
                np.testing.assert_array_equal(leaf.grad.numpy(), back.sum(axis=spread).reshape(shape))


@pytest.mark.operations("linear")
def test_linear_takes_pytorchs_order() -> None:
    rng = generator("linear order")
    x, w, b = (rng.integers(-8, 9, size=s).astype(np.float32) for s in ((2, 5, 3), (4, 3), (4,)))
    with Session("cpu") as s:
        tensors = [s.const(a) for a in (x, w, b)]
        np.testing.assert_array_equal(s.linear(*tensors).numpy(), x @ w.T + b)
        np.testing.assert_array_equal(s.linear(tensors[1], tensors[2], tensors[0]).numpy(), x @ w.T + b)
        np.testing.assert_array_equal(s.linear(tensors[0], tensors[1], None).numpy(), x @ w.T)
        before = s.tape.size
        np.testing.assert_array_equal(s.linear(tensors[1], None, tensors[0]).numpy(), x @ w.T)
        assert "const" not in {n.name for n in s.tape.nodes[before:]}, "a bias of zeros was uploaded"


@pytest.mark.operations("permute")
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 1, 5), (2, 2, 2, 2), (3, 2), (7,), (), (0, 3, 2)])
def test_permute_is_one_call(shape: tuple[int, ...]) -> None:
    x, rank = generator("permute").integers(0, 99, shape).astype(np.float32), len(shape)
    with Session("cpu") as s:
        given = s.const(x)
        for axes in itertools.permutations(range(rank)):
            before = s.tape.size
            np.testing.assert_array_equal(s.permute(given, axes).numpy(), x.transpose(axes))
            swaps = [n.name for n in s.tape.nodes[before:] if n.name != "reshape"]
            assert swaps in ([], ["permute"][: axes != tuple(range(rank))]), axes


REFUSED = {
    "subscripts: got int, expected a string": (1, ((2,),)),
    "subscripts: got 1 terms, expected one for each of 2": ("ij", ((2, 3), (2, 3))),
    "subscripts: got 'i1', expected letters": ("i1", ((2, 3),)),
    "operands: got 2 axes, expected 3 axes, as 'ijk' has letters": ("ijk->k", ((2, 3),)),
    "operands: got 1 axes, expected 2 or more": ("i...j", ((2,),)),
    r"operands\[1\]: got size 4 for 'j', expected 3": ("ij,jk", ((2, 3), (4, 5))),
    r"operands\[0\]: got size 3 for 'i', expected 2": ("ii", ((2, 3),)),
    "subscripts: got 'ij->k', expected a result of letters": ("ij->k", ((2, 3),)),
    "subscripts: got 'ij->ii', expected a result of letters": ("ij->ii", ((2, 3),)),
}


@pytest.mark.parametrize("said", REFUSED)
def test_einsum_refuses(said: str) -> None:
    subscripts, shapes = REFUSED[said]
    with (
        Session("cpu") as s,
        pytest.raises((errors.ShapeError, errors.ArgumentError, errors.ArgumentTypeError)) as raised,
    ):
        s.einsum(subscripts, *(s.zeros(x) for x in shapes))  # type: ignore[arg-type]
    assert raised.match(f"^einsum: {said}")


@pytest.mark.operations("bmm")
def test_a_contraction_is_one_product_of_matrices() -> None:
    with Session("cpu") as s:
        x, y = s.zeros((2, 3, 4)), s.zeros((2, 5, 4))
        before = s.tape.size
        s.einsum("ijk,ilk->ijl", x, y)
        assert [n.name for n in s.tape.nodes[before:] if n.plan] == ["permute", "bmm"]
