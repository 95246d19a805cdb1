"""Pooling, channels first, of one image or a batch of them."""

from typing import Any

from tlrt._binding.arguments import integer, integers
from tlrt._operations.base import Ref, Sizes, atomic, per_axis
from tlrt._operations.forwarding import ForwardingOperations
from tlrt.errors import ShapeError, refusal


class PoolOperations(ForwardingOperations[Ref]):
    """Pooling over windows."""

    def max_pool(
        self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes = 0, *, rank: int | None = None
    ) -> Ref:  # fmt: skip
        """The largest of each window; padding never wins, the first of equals takes the gradient. x (channels, spatial…), or
        with a batch before it. The last `rank` axes are spatial: as many as a list among kernel, stride and padding has
        entries, unless said. Where neither tells the batch from the channels ShapeError is raised."""
        return self._pool("max_pool", x, kernel, stride, padding, (), rank)

    def avg_pool(
        self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes = 0, *, rank: int | None = None
    ) -> Ref:  # fmt: skip
        """The mean of each window, padding counted in the divisor; shapes as max_pool."""
        return self._pool("avg_pool", x, kernel, stride, padding, (), rank)

    def smooth_max_pool(
        self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes = 0, beta: float = 1.0, *, rank: int | None = None
    ) -> Ref:
        """ln(Σ e^(βv))/β over each window; shapes as max_pool."""
        return self._pool("smooth_max_pool", x, kernel, stride, padding, (beta,), rank)

    def max_pool2d(self, x: Ref, kernel: Sizes, stride: Sizes) -> Ref:
        """max_pool of images without padding."""
        return self._pool("max_pool2d", x, kernel, stride, 0, (), 2)

    def max_pool2d_pad(self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes) -> Ref:
        """max_pool of images with padding."""
        return self._pool("max_pool2d", x, kernel, stride, padding, (), 2)

    def avg_pool2d(self, x: Ref, kernel: Sizes, stride: Sizes) -> Ref:
        """avg_pool of images without padding."""
        return self._pool("avg_pool2d", x, kernel, stride, 0, (), 2)

    def avg_pool2d_pad(self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes) -> Ref:
        """avg_pool of images with padding."""
        return self._pool("avg_pool2d", x, kernel, stride, padding, (), 2)

    def smooth_max_pool2d(self, x: Ref, kernel: Sizes, stride: Sizes, beta: float = 1.0) -> Ref:
        """smooth_max_pool of images without padding."""
        return self._pool("smooth_max_pool2d", x, kernel, stride, 0, (beta,), 2)

    def smooth_max_pool2d_pad(self, x: Ref, kernel: Sizes, stride: Sizes, padding: Sizes, beta: float = 1.0) -> Ref:
        """smooth_max_pool of images with padding."""
        return self._pool("smooth_max_pool2d", x, kernel, stride, padding, (beta,), 2)

    @atomic
    def _pool(
        self, name: str, x: Ref, kernel: Any, stride: Any, padding: Any, extra: tuple[Any, ...], rank: int | None
    ) -> Ref:
        shape = self._shape(name, x)
        given = {"kernel": kernel, "stride": stride, "padding": padding}
        if rank is None:
            rank = self._pooled_rank(name, x, shape, given)
        rank = integer(name, "rank", rank)
        if len(shape) not in (rank + 1, rank + 2) or rank < 1:
            expected = f"{rank + 1} axes, or {rank + 2} with a batch"
            raise refusal(ShapeError, name, self._named("x", x), f"shape {shape}", expected)
        lists = [per_axis(name, n, v, rank) for n, v in given.items()]
        batched = len(shape) == rank + 2
        if batched:  # every channel of every image is pooled alone
            x = self._view(x, (shape[0] * shape[1], *shape[2:]), "reshape")
        arguments = tuple(n for each in lists for n in each) if name.endswith("2d") else tuple(lists)
        y = self._apply(name, (x,), (*arguments, *extra))
        return self._view(y, (*shape[:2], *self.shape(y)[1:]), name) if batched else y

    def _pooled_rank(self, name: str, x: Ref, shape: tuple[int, ...], given: dict[str, Any]) -> int:
        """The number of spatial axes, where it was not said: that of the entries of a list, or the only one there can be."""
        for argument, value in given.items():
            if not hasattr(value, "__index__"):
                return len(integers(name, argument, value))
        rank = len(shape) - 1
        if rank < 2:
            return rank
        expected = f"rank={rank - 1} with a batch or rank={rank} without one, as kernel is a number"
        raise refusal(ShapeError, name, self._named("x", x), f"shape {shape}", expected)
