"""Spectral convolution of two axes in float64, where nothing rounds its matrices."""

import numpy as np
import pytest

from tlrt import Session
from tlrt.spec import SpecDevice
from tlspec.cases import generator


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
