"""Spectral convolution over two axes, against NumPy's transforms in float64."""

from typing import Any

import numpy as np
import pytest

from tests.runtime.operation_calls import spectral2d
from tlrt import Session, errors, nn
from tlrt._operations.spectral import fourier_matrices
from tlrt.spec import SpecDevice
from tlspec.bounds import U
from tlspec.drawn import generator

#: (batch, inputs, outputs, n1, n2, m1, m2)
GEOMETRIES = [
    (1, 2, 3, 8, 8, 2, 3), (3, 2, 2, 7, 9, 3, 5), (3, 4, 1, 8, 6, 4, 4), (1, 1, 2, 2, 1, 1, 1), (3, 1, 1, 5, 4, 2, 3),
    (1, 3, 2, 16, 15, 3, 2), (1, 2, 2, 1, 4, 0, 2), (3, 2, 2, 4, 4, 1, 0), (0, 2, 1, 4, 4, 1, 1),
]  # fmt: skip


def magnitude(x: Any, w_re: Any, w_im: Any) -> Any:
    """The result that the absolute values of the operands and of the matrices give."""
    (b, _, n1, n2), (rows, m2, _, outputs) = x.shape, w_re.shape
    forward2, forward1, inverse1, inverse2 = (
        np.abs(m, dtype=np.float64) for m in fourier_matrices(n1, n2, rows // 2, m2)
    )
    lines = (np.abs(x) @ forward2).reshape(*x.shape[:2], 2 * n1, m2)
    spectrum = (forward1 @ lines).reshape(*x.shape[:2], 2, rows, m2)
    mixed = [np.einsum("bcpkm,kmco->bopkm", spectrum, np.abs(w)) for w in (w_re, w_im)]
    lines = inverse1 @ np.stack(mixed, axis=2).reshape(b, outputs, 4 * rows, m2)
    return lines.reshape(b, outputs, n1, 2 * m2) @ inverse2


@pytest.mark.operations("matmul", "bmm", "concat_rows", "swap_adjacent_at_depth")
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_convolution_and_its_gradients_are_numpys_within_the_bound(geometry: tuple[int, ...]) -> None:
    """The gradients along one direction of all operands, where the derivative is the convolution's own: it is linear in x and in
    the weights. Backward sums over as many terms again, over the outputs and, for the weights, over the samples."""
    batch, inputs, outputs, n1, n2, m1, m2 = geometry
    rng = generator("spectral", str(geometry))
    weight = (2 * m1, m2, inputs, outputs)
    x, *w = (rng.normal(size=s).astype(np.float32) for s in ((batch, inputs, n1, n2), weight, weight))
    dx, *dw = (rng.normal(size=a.shape) for a in (x, *w))
    g = rng.normal(size=(batch, outputs, n1, n2)).astype(np.float32)
    with Session("cpu") as s:
        leaves = [s.input(a, requires_grad=True) for a in (x, *w)]
        y = s.spectral_conv2d(*leaves)
        value = y.numpy()
        s.backward(y, g)
        slope = sum((leaf.grad.numpy() * d).sum() for leaf, d in zip(leaves, (dx, *dw), strict=True))
    x, *w = (a.astype(np.float64) for a in (x, *w))
    terms = n2 + 2 * n1 + inputs + 8 * m1 + 2 * m2 + 10
    assert np.all(np.abs(value - spectral2d(x, *w)) <= terms * U * magnitude(x, *w))
    along = spectral2d(dx, *w) + spectral2d(x, *dw)
    most = (np.abs(g) * (magnitude(dx, *w) + magnitude(x, *dw))).sum()
    assert abs(slope - (g * along).sum()) <= (2 * terms + outputs + 2 * batch) * U * most


def test_layer_is_the_reference_with_its_two_weights() -> None:
    """As the authors' code lays them out, one for each end of the first axis."""
    rng = generator("two weights")
    x = rng.normal(size=(2, 3, 8, 6)).astype(np.float32)
    low, high = (rng.normal(size=(3, 3, 2, 3)) + 1j * rng.normal(size=(3, 3, 2, 3)) for _ in range(2))
    spectrum, kept = np.fft.rfft2(x.astype(np.float64)), np.zeros((2, 3, 8, 4), complex)
    kept[:, :, :2, :3] = np.einsum("bixy,ioxy->boxy", spectrum[:, :, :2, :3], low)
    kept[:, :, -2:, :3] = np.einsum("bixy,ioxy->boxy", spectrum[:, :, -2:, :3], high)
    with Session("spec") as s:
        layer = nn.SpectralConv2d(s, 3, (2, 3), name="l")
        both = np.concatenate([low, high], 2).transpose(2, 3, 0, 1)
        layer.weight_re.set(both.real)
        layer.weight_im.set(both.imag)
        want = np.fft.irfft2(kept, s=(8, 6))
        assert np.allclose(layer(s.const(x)).numpy(), want, rtol=0, atol=64 * U * np.abs(want).max())


def test_a_captured_step_has_the_bits_of_an_eager_one() -> None:
    rng = generator("captured spectral")
    one, two = (rng.normal(size=(2, 2, 6, 6)).astype(np.float32) for _ in range(2))
    with Session("cpu", seed=1) as s:
        block = nn.FNOBlock2d(s, 2, 2, name="l")
        captured = s.capture(lambda x: block(s.const(x)), one)
        assert captured(two).numpy().tobytes() == block(s.const(two)).numpy().tobytes()


#: (x, w_re, w_im, which has the shape of w_re unless given)
REFUSED: list[tuple[tuple[int, ...], ...]] = [
    ((2, 4, 4), (2, 1, 2, 2)), ((1, 2, 4, 4), (3, 1, 2, 2)), ((1, 2, 4, 4), (6, 1, 2, 2)), ((1, 2, 4, 4), (2, 4, 2, 2)),
    ((1, 2, 4, 4), (2, 1, 3, 2)), ((1, 2, 4, 4), (2, 1, 2, 2), (2, 1, 2)), ((1, 2, 4, 0), (2, 1, 2, 2)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", REFUSED, ids=str)
def test_other_shapes_are_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    with Session("cpu") as s:
        operands = [s.zeros(shape) for shape in (*shapes, shapes[1])[:3]]
        before = s.tape.size
        with pytest.raises(errors.ShapeError, match="^spectral_conv2d: "):
            s.spectral_conv2d(*operands)
        assert s.tape.size == before


@pytest.mark.parametrize(("n1", "n2", "m1", "m2"), [(8, 9, 3, 4), (7, 8, 2, 5), (6, 6, 3, 4)])
def test_spectral_conv2d_in_float64_is_that_of_numpy(n1: int, n2: int, m1: int, m2: int) -> None:
    rng = generator("spectral_conv2d", n1, n2)
    x, w_re, w_im = (rng.normal(size=shape) for shape in ((2, 3, n1, n2), (2 * m1, m2, 3, 4), (2 * m1, m2, 3, 4)))
    rows = np.r_[:m1, n1 - m1 : n1]
    spectrum = np.zeros((2, 4, n1, n2 // 2 + 1), complex)
    spectrum[:, :, rows, :m2] = np.einsum("bixy,xyio->boxy", np.fft.rfft2(x)[:, :, rows, :m2], w_re + 1j * w_im)
    with Session(SpecDevice(np.float64)) as s:
        got = s.spectral_conv2d(s.const(x), s.const(w_re), s.const(w_im)).numpy()
    np.testing.assert_allclose(got, np.fft.irfft2(spectrum, s=(n1, n2)), rtol=0, atol=1e-13)
