"""Spectral convolution over two axes, against NumPy's transforms in float64."""

import numpy as np
import pytest

from tlrt import Session, errors, nn
from tlspec.bounds import U
from tlspec.drawn import generator


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
        block = nn.FNOBlock2d(s, 2, 2, name="l", activation=None)
        captured = s.capture(lambda x: block(s.const(x)), one)
        assert captured(two).numpy().tobytes() == block(s.const(two)).numpy().tobytes()
        apart = block.spectral(s.const(two)) + block.point(s.const(two))
        assert captured.outputs.numpy().tobytes() == apart.numpy().tobytes()


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
