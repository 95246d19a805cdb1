"""Matrix products."""

import math

from tlrt._operations.base import Ref, atomic
from tlrt._operations.forwarding import ForwardingOperations
from tlrt.errors import ShapeError, refusal


class LinalgOperations(ForwardingOperations[Ref]):
    """Products whose leading axes are folded into rows."""

    def matmul(self, a: Ref, b: Ref) -> Ref:
        """(m, n) x (n, p) to (m, p). A batch (batch, m, n) is multiplied by (batch, n, p), or by one (n, p)."""
        try:
            if len(self._shape("matmul", a)) == 3:
                return self._apply("bmm", (a, b)) if len(self._shape("matmul", b)) == 3 else self._batched_matmul(a, b)
            return self._apply("matmul", (a, b))
        except ShapeError:
            shapes = self._shape("matmul", a), self._shape("matmul", b)
            if max(map(len, shapes)) < 4:
                raise
            got = f"shapes {shapes[0]} and {shapes[1]}"
            expected = "(m, n) by (n, p), or (batch, m, n) by (n, p) or (batch, n, p)"
            raise refusal(ShapeError, "matmul", "a, b", got, expected) from None

    @atomic
    def _batched_matmul(self, a: Ref, b: Ref) -> Ref:
        batch, m, n = self._shape("matmul", a)
        rows = self._apply("matmul", (self._view(a, (batch * m, n), "reshape"), b))
        return self._view(rows, (batch, m, self.shape(rows)[1]), "matmul")

    def linear(self, w: Ref, b: Ref, x: Ref) -> Ref:
        """W·x + b: W (outputs, inputs), b (outputs), x (…, inputs) to (…, outputs)."""
        if len(self._shape("linear", x)) == 2:
            return self._apply("linear", (w, x, b))
        return self._folded_linear(w, b, x)

    @atomic
    def _folded_linear(self, w: Ref, b: Ref, x: Ref) -> Ref:
        shape = self.shape(x)
        if not shape:
            raise refusal(ShapeError, "linear", "x", "a scalar", "(…, inputs)")
        rows = self._view(x, (math.prod(shape[:-1]), shape[-1]), "reshape")
        try:
            y = self._apply("linear", (w, rows, b))
        except ShapeError:  # which speaks of rows that nobody passed
            got = f"shapes {self.shape(w)}, {self.shape(b)} and {shape}"
            expected = "(outputs, inputs), (outputs) and (…, inputs)"
            raise refusal(ShapeError, "linear", "w, b, x", got, expected) from None
        return self._view(y, (*shape[:-1], self.shape(y)[1]), "linear")
