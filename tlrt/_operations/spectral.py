"""Fourier transforms."""

from tlrt._binding.arguments import integer
from tlrt._operations.base import Ref
from tlrt._operations.forwarding import ForwardingOperations


class SpectralOperations(ForwardingOperations[Ref]):
    """Fourier transforms and spectral convolution."""

    def irfft1d_packed(self, spec: Ref, n: int) -> Ref:
        """The inverse of rfft1d_packed, (batch, n//2 + 1, 2) to (batch, n), scaled 1/n."""
        return self._apply("irfft1d_packed", (spec,), (integer("irfft1d_packed", "n", n),))

    def spectral_conv1d_rfft(self, x: Ref, w_re: Ref, w_im: Ref) -> Ref:
        """Spectral convolution along the grid: x (grid, width), weights (modes, width, width)."""
        return self._apply("spectral_conv1d_rfft", (x, w_re, w_im))
