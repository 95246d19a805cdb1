"""Fourier transforms."""

from functools import lru_cache
from typing import Any

import numpy as np

from tlrt._binding.arguments import integer
from tlrt._operations.base import Ref, atomic
from tlrt._operations.rows import RowOperations
from tlrt.errors import ShapeError, refusal


class SpectralOperations(RowOperations[Ref]):
    """Fourier transforms and spectral convolution."""

    def irfft1d_packed(self, spec: Ref, n: int) -> Ref:
        """Inverse of rfft1d_packed, scaled by 1/n.

        Parameters
        ----------
        spec : tensor
            Shape (batch, n // 2 + 1, 2).
        n : int
            Number of samples.

        Returns
        -------
        tensor
            Shape (batch, n).

        See Also
        --------
        tlrt.kernels.irfft1d_packed : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> spec = s.rfft1d_packed(s.const([[1, 2, 3]]))
        >>> print(s.irfft1d_packed(spec, 3).numpy().round(4))
        [[1. 2. 3.]]
        """
        return self._apply("irfft1d_packed", (spec,), (integer("irfft1d_packed", "n", n),))

    def spectral_conv1d_rfft(self, x: Ref, w_re: Ref, w_im: Ref) -> Ref:
        """Convolution along the grid by complex weights on the lowest Fourier modes.

        Parameters
        ----------
        x : tensor
            Shape (grid, width).
        w_re : tensor
            Shape (modes, width, width): real parts.
        w_im : tensor
            Shape (modes, width, width): imaginary parts.

        Returns
        -------
        tensor
            Shape (grid, width).

        See Also
        --------
        tlrt.kernels.spectral_conv1d_rfft : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x, one = s.const([[1], [2], [3], [6]]), s.full((1, 1, 1), 1)
        >>> print(s.spectral_conv1d_rfft(x, one, s.zeros((1, 1, 1))).numpy())
        [[3.]
         [3.]
         [3.]
         [3.]]
        """
        return self._apply("spectral_conv1d_rfft", (x, w_re, w_im))

    @atomic
    def spectral_conv2d(self, x: Ref, w_re: Ref, w_im: Ref) -> Ref:
        """Spectral convolution over two periodic axes, of the modes that the weights have.

        y = irfft2(Z), Z[b, o, k1, k2] = Σ_c X[b, c, k1, k2]·(w_re + i·w_im)[k1, k2, c, o] for -m1 <= k1 < m1 and k2 <
        m2, else 0, X = rfft2(x)

        The imaginary part of what the inverse along the first axis leaves at k2 = 0 and k2 = n2/2 is ignored, as irfft2
        does. A gradient is that of this function. The transforms are products with matrices of cosines and sines,
        rounded once to float32, so that few modes cost little. The error is at most (n2 + 2·n1 + in + 8·m1 + 2·m2 +
        10)·2^-24 of the result that the absolute values of x, the weights and the matrices give, to first order.

        Parameters
        ----------
        x : tensor
            Shape (batch, in, n1, n2).
        w_re : tensor
            Shape (2·m1, m2, in, out): real parts; k1 < 0 follows k1 >= 0.
        w_im : tensor
            Shape (2·m1, m2, in, out): imaginary parts.

        Returns
        -------
        tensor
            Shape (batch, out, n1, n2).

        Raises
        ------
        ShapeError
            2·m1 > n1, m2 > n2//2 + 1, or the weights do not fit.

        References
        ----------
        Li et al., arXiv:2010.08895

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const(np.arange(4).reshape(1, 1, 2, 2))
        >>> print(s.spectral_conv2d(x, s.full((2, 1, 1, 1), 1), s.zeros((2, 1, 1, 1))).numpy())
        [[[[0.5 0.5]
           [2.5 2.5]]]]
        """
        op = "spectral_conv2d"
        batch, inputs, n1, n2 = shape = self._require_rank(op, x, 4)
        rows, m2, _, outputs = weights = self._require_rank(op, w_re, 4, "w_re")
        if self._shape(op, w_im) != weights:
            raise refusal(ShapeError, op, self._named("w_im", w_im), f"shape {self._shape(op, w_im)}", weights)
        if weights[2] != inputs or rows % 2 or rows > n1 or m2 > n2 // 2 + 1 or not n2:
            expected = f"(2·m1, m2, {inputs}, out), 2·m1 <= {n1} and m2 <= {n2 // 2 + 1 if n2 else 0}"
            raise refusal(ShapeError, op, self._named("w_re", w_re), f"shape {weights} for x {shape}", expected)
        forward2, forward1, inverse1, inverse2 = map(self._constant, fourier_matrices(n1, n2, rows // 2, m2))
        samples, images, modes = batch * inputs, batch * outputs, rows * m2

        def product(a: Ref, b: Ref, m: int, n: int, p: int) -> Ref:
            return self._apply("matmul", (self._view(a, (m, n), op), self._view(b, (n, p), op)))

        def exchange(a: Ref, m: int, n: int, inner: int = 1) -> Ref:
            return self._apply("swap_adjacent_at_depth", (self._view(a, (m, n, inner), op),), (0,))

        # parts are (re or im); the axes in front are those that the next product sums over
        lines = product(x, forward2, samples * n1, n2, 2 * m2)  # (samples, n1, part, m2)
        lines = exchange(lines, samples, n1 * 2 * m2)  # (n1, part, m2, samples)
        spectrum = product(forward1, lines, 2 * rows, 2 * n1, m2 * samples)  # (part, modes, samples)
        spectrum = self._view(exchange(spectrum, 2, modes, samples), (modes, 2 * batch, inputs), op)
        mixed = [
            self._view(self._apply("bmm", (spectrum, self._view(w, (modes, inputs, outputs), op))), (modes, 2 * images), op)
            for w in (w_re, w_im)
        ]  # fmt: skip
        both = self._apply("concat_rows", (mixed[0], mixed[1]))  # (modes, weight's part, part, images)
        both = exchange(both, modes, 4, images)
        lines = product(inverse1, both, 2 * n1, 4 * rows, m2 * images)  # (n1, part, m2, images)
        lines = exchange(lines, n1 * 2 * m2, images)
        y = product(lines, inverse2, images * n1, 2 * m2, n2)
        return self._view(y, (batch, outputs, n1, n2), op)


@lru_cache(maxsize=16)
def fourier_matrices(n1: int, n2: int, m1: int, m2: int) -> tuple[np.ndarray, ...]:
    """The four matrices of spectral_conv2d: forward along the last axis (n2, 2·m2) and the first (4·m1, 2·n1), and inverse along
    the first (2·n1, 8·m1), for the products with w_re and w_im, and the last (2·m2, n2). In float64: a device rounds them
    as it takes them."""

    def waves(places: Any, frequencies: Any, n: int) -> tuple[Any, Any]:
        angle = 2 * np.pi / n * (np.multiply.outer(places, frequencies) % n)
        return np.cos(angle), np.sin(angle)

    low = np.arange(m2)
    cos, sin = waves(np.arange(n2), low, n2)
    forward2 = np.concatenate([cos, -sin], axis=1)
    once = (low == 0) | (2 * low == n2)  # frequencies that are their own negatives, whose sine is 0
    twice = np.where(once, 1.0, 2.0)
    inverse2 = np.concatenate([cos * twice, np.where(once, 0.0, -2.0 * sin)], axis=1).T / n2
    cos, sin = waves(np.arange(n1), np.concatenate([np.arange(m1), np.arange(-m1, 0)]), n1)
    # of x + iy along n1, by rows for the result's parts: e^(-ia)(x + iy) forward, and e^(ia)(x + iy), e^(ia)i(x + iy) inverse
    forward1 = np.stack([np.stack([cos.T, sin.T], -1), np.stack([-sin.T, cos.T], -1)])
    inverse1 = np.stack([np.stack([cos, -sin, -sin, -cos], 1), np.stack([sin, cos, cos, -sin], 1)], 1) / max(n1, 1)
    matrices = (forward2, forward1.reshape(4 * m1, 2 * n1), inverse1.reshape(2 * n1, 8 * m1), inverse2)
    made = tuple(map(np.ascontiguousarray, matrices))
    for matrix in made:
        matrix.flags.writeable = False
    return made
