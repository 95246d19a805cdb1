"""Matrix products, and contractions that are made of them."""

import math

from tlrt._operations.base import Ref, atomic
from tlrt._operations.contraction import Labels, parse_einsum
from tlrt._operations.elementwise import ElementwiseOperations, broadcast_shape
from tlrt._operations.plan import Shape
from tlrt._operations.reduce import ReduceOperations
from tlrt._operations.slices import SliceOperations
from tlrt.errors import ShapeError, refusal


class LinalgOperations(ElementwiseOperations[Ref], SliceOperations[Ref], ReduceOperations[Ref]):
    """Products of matrices, and of arrays with more axes."""

    def matmul(self, a: Ref, b: Ref) -> Ref:
        """Matrix product a @ b, as NumPy has it.

        Leading axes are broadcast. One matrix b takes all rows of a at once; else an operand that is broadcast is
        copied to the common leading axes.

        Parameters
        ----------
        a : tensor
            Shape (…, m, n), or (n,): a row.
        b : tensor
            Shape (…, n, p), or (n,): a column.

        Returns
        -------
        tensor
            Shape (…, m, p), without the axis of a vector.

        Raises
        ------
        ShapeError
            The shapes do not fit.

        See Also
        --------
        tlrt.kernels.matmul : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.matmul(x, s.const([1, 0, 1])).numpy())
        [ 4. 10.]
        """
        shapes = self._shape("matmul", a), self._shape("matmul", b)
        try:
            if len(shapes[0]) == len(shapes[1]) == 2:
                return self._apply("matmul", (a, b))
            if len(shapes[0]) == len(shapes[1]) == 3 and shapes[0][0] == shapes[1][0]:
                return self._apply("bmm", (a, b))
            return self._product(a, b, *shapes)
        except ShapeError:
            if len(shapes[0]) == len(shapes[1]) == 2:
                raise
            got = f"shapes {shapes[0]} and {shapes[1]}"
            raise refusal(ShapeError, "matmul", "a, b", got, "(…, m, n) by (…, n, p), or vectors of n") from None

    @atomic
    def _product(self, a: Ref, b: Ref, left: Shape, right: Shape) -> Ref:
        if not left or not right:
            raise refusal(ShapeError, "matmul", "a, b", "a scalar", "at least one axis")
        m, n = (1, *left)[-2:]
        p = 1 if len(right) == 1 else right[-1]
        inner = right[0] if len(right) == 1 else right[-2]
        if n != inner:
            raise refusal(ShapeError, "matmul", "a, b", f"{n} and {inner}", "one inner dimension")
        outer_a, outer_b = left[:-2], right[:-2]
        outer = broadcast_shape("matmul", outer_a, outer_b, "b")
        if math.prod(outer_b) == 1:
            rows = self._view(a, (math.prod(outer_a) * m, n), "reshape")
            made = self._apply("matmul", (rows, self._view(b, (n, p), "reshape")))
        else:
            a, b = self._view(a, (*outer_a, m, n), "reshape"), self._view(b, (*outer_b, n, p), "reshape")
            a, b = self._spread(a, (*outer, m, n)), self._spread(b, (*outer, n, p))
            count = math.prod(outer)
            a, b = self._view(a, (count, m, n), "reshape"), self._view(b, (count, n, p), "reshape")
            made = self._apply("bmm", (a, b))
        rest = ((m,) if len(left) > 1 else ()) + ((p,) if len(right) > 1 else ())
        return self._view(made, (*outer, *rest), "matmul")

    @atomic
    def einsum(self, subscripts: str, *operands: Ref) -> Ref:
        """Sum over products that NumPy's subscripts name.

        Letters name axes. Those that the result has not are summed over, a letter twice in an operand takes its
        diagonal, ... stands for axes that are broadcast, and without -> the result has the letters that appear once, in
        alphabetical order. Axes of size 1 are broadcast. Operands are contracted from the left to the right, two at a
        time, each pair by one product of matrices over the letters that nothing later needs.

        Parameters
        ----------
        subscripts : str
            Such as "ijk,ilk->ijl".
        *operands : tensor
            One for each part of the subscripts.

        Returns
        -------
        tensor
            The axes after ->.

        Raises
        ------
        ShapeError
            Sizes of one letter differ.
        ArgumentError
            The subscripts are not NumPy's.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.einsum("ij,ij->i", x, x).numpy())
        [14. 77.]
        """
        shapes = [self._shape("einsum", x) for x in operands]
        labels, out, sizes = parse_einsum(subscripts, shapes)
        first, have = self._prepare(operands[0], labels[0], sizes, [*labels[1:], out])
        for i in range(1, len(operands)):
            later = [*labels[i + 1 :], out]
            second, other = self._prepare(operands[i], labels[i], sizes, [*later, have])
            first, have = self._contract(first, have, second, other, {c for x in later for c in x})
            first, have = self._sum_out(first, have, later)
        return self._arrange(first, have, out)

    def _prepare(self, x: Ref, labels: Labels, sizes: dict[str, int], elsewhere: list[Labels]) -> tuple[Ref, Labels]:
        """An operand with each letter once, without those of size 1 that are larger elsewhere, summed over those of its own."""
        for letter in dict.fromkeys(labels):
            while labels.count(letter) > 1:
                i = labels.index(letter)
                j = labels.index(letter, i + 1)
                rest = [k for k in range(len(labels)) if k not in (i, j)]
                x = self.permute(x, (*rest, i, j))
                kept, n = tuple(self.shape(x)[:-2]), self.shape(x)[-1]
                x = self._view(x, (*kept, n * n), "reshape")
                x = self._slice(x, (*kept, n * n), (slice(None),) * len(kept) + (slice(None, None, n + 1),))
                labels = (*(labels[k] for k in rest), letter)
        shape = self.shape(x)
        whole = [k for k, c in enumerate(labels) if shape[k] == sizes[c]]
        if len(whole) < len(labels):
            x, labels = self._view(x, tuple(shape[k] for k in whole), "reshape"), tuple(labels[k] for k in whole)
        return self._sum_out(x, labels, elsewhere)

    def _sum_out(self, x: Ref, labels: Labels, elsewhere: list[Labels]) -> tuple[Ref, Labels]:
        for k in reversed(range(len(labels))):
            if not any(labels[k] in others for others in elsewhere):
                x, labels = self._apply("reduce_sum_axis", (x,), (k,)), labels[:k] + labels[k + 1 :]
        return x, labels

    def _contract(self, a: Ref, left: Labels, b: Ref, right: Labels, kept: set[str]) -> tuple[Ref, Labels]:
        """The product of two operands, summed over what both have and `kept` has not."""
        shared = [c for c in left if c in right]
        batch, inner = [c for c in shared if c in kept], [c for c in shared if c not in kept]
        rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
        sizes = dict(zip((*left, *right), (*self.shape(a), *self.shape(b)), strict=True))
        a, b = self._arrange(a, left, (*batch, *rows, *inner)), self._arrange(b, right, (*batch, *inner, *columns))
        counts = {
            name: math.prod(sizes[c] for c in of)
            for name, of in zip("bmnp", (batch, rows, inner, columns), strict=True)
        }
        full = tuple(sizes[c] for c in (*batch, *rows, *columns))
        if not inner and not (rows and columns):
            m, p = counts["m"], counts["p"]
            a, b = self._view(a, (counts["b"], m), "reshape"), self._view(b, (counts["b"], p), "reshape")
            made = self._pair("mul", a, b)
        else:
            outer = (counts["b"],) if batch else ()
            a = self._view(a, (*outer, counts["m"], counts["n"]), "reshape")
            b = self._view(b, (*outer, counts["n"], counts["p"]), "reshape")
            made = self._apply("bmm" if batch else "matmul", (a, b))
        return self._view(made, full, "reshape"), (*batch, *rows, *columns)

    def _arrange(self, x: Ref, labels: Labels, order: Labels) -> Ref:
        return self.permute(x, tuple(labels.index(c) for c in order))

    def linear(self, w: Ref, b: Ref | None, x: Ref | None = None) -> Ref:
        """Affine layer W·x + b: linear(w, b, x), or in PyTorch's order linear(x, w, b).

        Parameters
        ----------
        w : tensor
            Weights: shape (outputs, inputs).
        b : tensor or None
            Shape (outputs,). Where the second operand is a matrix it is the weights, as in PyTorch's order.
        x : tensor
            Shape (…, inputs).

        Returns
        -------
        tensor
            Shape (…, outputs).

        Raises
        ------
        ShapeError
            The shapes do not fit.

        See Also
        --------
        tlrt.kernels.linear : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> w = s.const([[1, 0, 0], [0, 1, 1]])
        >>> print(s.linear(w, s.const([0.5, 0]), x).numpy())
        [1.5 5. ]
        """
        if b is not None and len(self._shape("linear", b)) == 2:
            w, b, x = b, x, w
        if x is not None and b is not None and len(self._shape("linear", x)) == 2:
            return self._apply("linear", (w, x, b))
        return self._folded_linear(w, b, x)

    @atomic
    def _folded_linear(self, w: Ref, b: Ref | None, x: Ref | None) -> Ref:
        if x is None:
            got = f"shapes {self.shape(w)} and {None if b is None else self.shape(b)} alone"
            raise refusal(ShapeError, "linear", "w, b, x", got, "linear(w, b, x), or linear(x, w, b) with w a matrix")
        shape = self._shape("linear", x)
        if not shape:
            raise refusal(ShapeError, "linear", "x", "a scalar", "(…, inputs)")
        rows = self._view(x, (math.prod(shape[:-1]), shape[-1]), "reshape")
        if b is None:
            outputs = self._require_rank("linear", w, 2, "w")[0]
            b = self._full((outputs,), 0.0)
        try:
            y = self._apply("linear", (w, rows, b))
        except ShapeError:  # which speaks of rows that nobody passed
            got = f"shapes {self.shape(w)}, {self.shape(b)} and {shape}"
            expected = "(outputs, inputs), (outputs) and (…, inputs)"
            raise refusal(ShapeError, "linear", "w, b, x", got, expected) from None
        return self._view(y, (*shape[:-1], self.shape(y)[1]), "linear")
