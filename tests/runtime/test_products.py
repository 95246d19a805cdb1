"""Products of arrays with any number of axes, against NumPy, and what they refuse."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

from tlrt import Session, errors
from tlspec.drawn import generator


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
    kinds = errors.ShapeError, errors.ArgumentError, errors.ArgumentTypeError
    with Session("cpu") as s:
        assert_raises_regex(kinds, f"^einsum: {said}", s.einsum, subscripts, *(s.zeros(x) for x in shapes))


@pytest.mark.operations("bmm")
def test_a_contraction_is_one_product_of_matrices() -> None:
    with Session("cpu") as s:
        x, y = s.zeros((2, 3, 4)), s.zeros((2, 5, 4))
        before = s.tape.size
        s.einsum("ijk,ilk->ijl", x, y)
        assert [n.name for n in s.tape.nodes[before:] if n.plan] == ["permute", "bmm"]
