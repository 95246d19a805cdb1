"""Pooling, channels first, of one image or a batch of them."""

from typing import Any

from tlrt._binding.arguments import integers
from tlrt._operations.base import Ref, Sizes, atomic, per_axis
from tlrt._operations.forwarding import ForwardingOperations
from tlrt.errors import ShapeError, refusal


class PoolOperations(ForwardingOperations[Ref]):
    """Pooling over windows."""

    def max_pool(self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes = 0) -> Ref:
        """The largest of each window; padding never wins, the first of equals takes the gradient. x (channels, spatial…);
        with `kernel` a list of d entries, a batch may come before the channels."""
        return self._pool("max_pool", x, kernel, stride, padding)

    def avg_pool(self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes = 0) -> Ref:
        """The mean of each window, padding counted in the divisor; shapes as max_pool."""
        return self._pool("avg_pool", x, kernel, stride, padding)

    def smooth_max_pool(self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes = 0, beta: float = 1.0) -> Ref:
        """ln(Σ e^(βv))/β over each window; shapes as max_pool."""
        return self._pool("smooth_max_pool", x, kernel, stride, padding, (beta,))

    def max_pool2d(self, x: Ref, kernel: Sizes, stride: Sizes) -> Ref:
        """max_pool of images without padding."""
        return self._pool("max_pool2d", x, kernel, stride, 0)

    def max_pool2d_pad(self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes) -> Ref:
        """max_pool of images with padding."""
        return self._pool("max_pool2d", x, kernel, stride, padding)

    def avg_pool2d(self, x: Ref, kernel: Sizes, stride: Sizes) -> Ref:
        """avg_pool of images without padding."""
        return self._pool("avg_pool2d", x, kernel, stride, 0)

    def avg_pool2d_pad(self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes) -> Ref:
        """avg_pool of images with padding."""
        return self._pool("avg_pool2d", x, kernel, stride, padding)

    def smooth_max_pool2d(self, x: Ref, kernel: Sizes, stride: Sizes, beta: float = 1.0) -> Ref:
        """smooth_max_pool of images without padding."""
        return self._pool("smooth_max_pool2d", x, kernel, stride, 0, (beta,))

    def smooth_max_pool2d_pad(self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes, beta: float = 1.0) -> Ref:
        """smooth_max_pool of images with padding."""
        return self._pool("smooth_max_pool2d", x, kernel, stride, padding, (beta,))

    @atomic
    def _pool(self, name: str, x: Ref, kernel: Any, stride: Any, padding: Any, extra: tuple[Any, ...] = ()) -> Ref:
        shape = self._shape(name, x)
        two = name.endswith("2d")
        rank = 2 if two else len(shape) - 1 if hasattr(kernel, "__index__") else len(integers(name, "kernel", kernel))
        if len(shape) not in (rank + 1, rank + 2) or rank < 1:
            expected = f"{rank + 1} axes, or {rank + 2} with a batch"
            raise refusal(ShapeError, name, self._named("x", x), f"shape {shape}", expected)
        lists = [per_axis(name, n, v, rank) for n, v in (("kernel", kernel), ("stride", stride), ("padding", padding))]
        batched = len(shape) == rank + 2
        if batched:  # every channel of every image is pooled alone
            x = self._view(x, (shape[0] * shape[1], *shape[2:]), "reshape")
        arguments = tuple(n for each in lists for n in each) if two else tuple(lists)
        y = self._apply(name, (x,), (*arguments, *extra))
        return self._view(y, (*shape[:2], *self.shape(y)[1:]), name) if batched else y
