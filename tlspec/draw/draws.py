"""What a row's ``draw(d)`` draws dimensions, parameters and strides with: sizes from a list, or next to edges."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tlspec.case import INTEGERS

#: in elements
Strides = tuple[int, ...]
#: sizes dimensions are drawn from: primes, and the neighbours of powers of two and of the summation trees' widths
DIMS = (
    0, 1, 2, 3, 5, 7, 11, 13, 17, 31, 32, 33, 61, 64, 65, 127, 128, 129, 251, 255, 256, 257, 509, 513, 1021, 1023, 1024, 1025,
    2039, 2049, 4093, 4097, 8191, 16381, 16384, 16385, 32771, 65521, 65537, 131071, 262147, 524287, 1048573, 2097143,
)  # fmt: skip
#: lengths that models have: widths, heads, vocabularies, sides of images and of their patches
MODELS = (
    7, 10, 12, 14, 28, 48, 49, 50, 56, 77, 80, 96, 100, 112, 144, 160, 192, 196, 197, 224, 240, 320, 384, 400, 576, 640, 768, 784,
    1000, 1152, 1280, 1500, 1536, 1728, 2560, 2880, 3072, 3584, 5120, 6144, 7168, 10240, 11008, 13824, 14336, 30522, 32000, 50257,
    50304, 128256, 151936,
)  # fmt: skip
#: of aligned cases, by turns: what divides their lengths; 1 stands for the lengths of models as they are
STEPS = (16, 64, 4, 32, 8, 64, 16, 1)
#: lengths beyond the counters and the tables of scans and sums: two that are aligned, and two that are not
LONG = (8209, 8192 + 64, 65539, 65536 + 64)
#: the same for references that are not known
LONG_OF_USERS = (2053, 2048 + 64)
#: the numbers that people write for a parameter
WRITTEN = (0.0, 1.0, 2.0, 0.5, -1.0, 3.0, -0.5, 0.1, -2.0, 1e-5, 4.0, 0.25)
#: what numbers meet in any kernel: the ends of 16, 31, 32 and 63 bits, and of the integers that a float32 holds
LIMITS = (2**16, INTEGERS, 2**31, 2**32, 2**63)


@lru_cache(maxsize=4096)
def _logarithm(n: int) -> float:
    return float(np.log(n))


@lru_cache(maxsize=4096)
def _aligned(step: int, low: int, high: int) -> list[int]:
    """The powers of two and the lengths of models in [low, high] that the step divides, and its small multiples; with a step
    that has none there, those of the largest power of two that has one."""
    found = {
        n for n in (*(1 << k for k in range(int(high).bit_length())), *MODELS) if low <= n <= high and n % step == 0
    }
    found |= {n for n in (3 * step, 5 * step, 6 * step, 7 * step) if step > 1 and low <= n <= high}
    return sorted(found) if found or step == 1 else _aligned(step // 2, low, high)


@lru_cache(maxsize=4096)
def _divisors(n: int) -> list[int]:
    """The divisors of n up to 4096."""
    return [k for k in range(1, min(n, 4096) + 1) if n % k == 0]


class Draw:
    """What a row's ``draw(d)`` draws its dimensions and parameters with.

    The products of the drawn sizes are kept near the budget, and a case beyond it is drawn again. Sizes that were drawn
    are remembered: later ones differ from them, or in aligned cases may equal them.

    Parameters
    ----------
    rng : numpy.random.Generator
        What everything is drawn with.
    budget : int
        The number of elements that the case's arrays may have together.
    empty : bool, default False
        Whether sizes may be 0. It is decided once per case, since empty cases fit every budget and would win the
        redraws.
    axes : int, default 0
        Not 0: all sizes are near the budget's root of this degree (blocks), rather than spread over all magnitudes.
    paired : bool, default True
        Whether sizes meet in one array, so that their products count.
    edges : sequence of int
        Where there are any, sizes and integers are drawn next to them.
    step : int, default 0
        Not 0: sizes are aligned, this divides them, and some are equal. Otherwise they are distinct and most of them
        prime.
    turn : int, default 0
        Counts the cases of an operation: parameters that people write take turns.

    Examples
    --------
    A row whose second length is at most its first:

    >>> from tlspec.drawn import Draw, generator
    >>> def draw(d):
    ...     m = d.dim(1)
    ...     return {"m": m, "k": d.integer(1, m)}
    >>> values = draw(Draw(generator("mine", 1), budget=1024))
    >>> 1 <= values["k"] <= values["m"]
    True
    """

    def __init__(
        self, rng: np.random.Generator, budget: int, *, empty: bool = False, axes: int = 0, paired: bool = True,
        edges: Sequence[int] = (), step: int = 0, turn: int = 0,
    ):  # fmt: skip
        self.rng = rng
        self.budget = budget
        self.empty = empty
        self.axes = axes
        self.paired = paired
        self.edges = edges
        self.step = step
        self.turn = turn
        self._used: list[int] = []

    def edge(self, low: int, high: int, edges: Sequence[int] = ()) -> int | None:
        """A number next to an edge, or to a small multiple of one.

        Parameters
        ----------
        low, high : int
            Both ends are included.
        edges : sequence of int
            The edges; those of the draw where it is empty.

        Returns
        -------
        int or None
            None where a search finds none in [low, high].
        """
        for _ in range(12):
            b, k = self.choice(edges or self.edges), self.choice((1, 1, 1, 2, 3))
            e = 0 if self.step else self.choice((-1, 0, 1))
            n = b * k + e if self.rng.random() < 0.7 else (b + e) * k
            if low <= n <= high:
                return int(n)
        return None

    def factors(self, n: int, count: int) -> list[int]:
        """Numbers with a given product.

        Parameters
        ----------
        n : int
            The product, at least 1.
        count : int
            How many numbers.

        Returns
        -------
        list of int
            In random order.
        """
        out = []
        for _ in range(count - 1):
            out.append(self.choice(_divisors(n)))
            n //= out[-1]
        out.append(n)
        self.rng.shuffle(out)
        return [int(k) for k in out]

    def aligned(self, low: int, high: int) -> int | None:
        """A size of an aligned case. A third of them equal one that was drawn already; larger ones are likelier.

        Parameters
        ----------
        low, high : int
            Both ends are included.

        Returns
        -------
        int or None
            None where the sizes of the case are not aligned, or where none lies in [low, high].
        """
        if not self.step:
            return None
        known = [n for n in self._used if max(low, 1) <= n <= high]
        if known and self.rng.random() < 0.35:
            return int(self.choice(known))
        choices = _aligned(self.step, max(low, 1), high)
        if not choices:
            return None
        return int(self.choice(choices[len(choices) // 2 :] if self.rng.random() < 0.5 else choices))

    def sizes(self, high: float) -> list[int]:
        """The lengths that sizes are drawn from.

        Parameters
        ----------
        high : float
            The largest.

        Returns
        -------
        list of int
            Those of :data:`DIMS` up to `high`, 0 only where the case may be empty; [1] where there is none.
        """
        return [n for n in DIMS if n <= high and (n or self.empty)] or [1]

    def dim(self, low: int = 0, high: int | None = None) -> int:
        """One size; pairs of sizes multiply to at most the budget.

        It differs from those already drawn, unless the case is aligned.

        Parameters
        ----------
        low : int, default 0
            The least; it holds where the budget asks for less.
        high : int, optional
            The largest.

        Returns
        -------
        int
            In [low, high]; 0 only where the case may be empty.
        """
        cap = max(low, self.budget // (max([1, *self._used]) if self.paired else 2 if self.edges else 3))
        if high is not None:
            cap = min(cap, high)
        if self.axes:
            cap = max(low, min(cap, int(1.5 * self.budget ** (1 / self.axes))))
        if self.edges and self.rng.random() < 0.8 and (near := self.edge(max(low, 1), cap)) is not None:
            self._used.append(near)
            return near
        least = max(low, int(cap / 8)) if self.axes else low
        size = 0 if self.step and self.empty and low == 0 and self.rng.random() < 0.3 else self.aligned(least, cap)
        if size is not None:
            self._used.append(size)
            return size
        choices = [n for n in DIMS if low <= n <= cap and (n or self.empty)] or [low]
        choices = [n for n in choices if n not in self._used] or choices
        u = self.rng.random()
        if u < 0.3 and choices[0] == 0:
            n = 0
        elif u < 0.06 and 1 in choices:
            n = 1
        elif u < 0.25 and choices[-1] > 65535:
            n = int(self.rng.choice([k for k in choices if k > 65535]))
        else:
            bottom, top = np.log(max(choices[0], 1)), np.log(max(choices[-1], 1) + 1)
            # without company the larger sizes are the interesting ones
            share = self.rng.random() if self._used and self.paired else max(self.rng.random(), self.rng.random())
            if self.axes:
                bottom = max(top - 2, bottom)
            target = bottom + (top - bottom) * share
            n = min((k for k in choices if k > 0), key=lambda k: abs(_logarithm(k) - target), default=choices[0])
        self._used.append(n)
        return n

    def rank(self, low: int = 1, high: int = 8) -> int:
        """A number of axes; ranks of 2 and 3 are likelier.

        Parameters
        ----------
        low, high : int
            Both ends are included.

        Returns
        -------
        int
            In [low, high].
        """
        weights = np.array([1.0 / (1 + abs(r - 2.5)) for r in range(low, high + 1)])
        return int(self.rng.choice(np.arange(low, high + 1), p=weights / weights.sum()))

    def dims(self, rank: int | None = None, budget: int | None = None) -> list[int]:
        """A list of lengths, such as spatial axes, in random order.

        Parameters
        ----------
        rank : int, optional
            How many; drawn unless given.
        budget : int, optional
            What their product is at most; the draw's unless given.

        Returns
        -------
        list of int
            One length per axis.
        """
        rank = self.rank() if rank is None else rank
        left = max(1, (self.budget if budget is None else budget) // 4)
        out: list[int] = []
        if self.edges and rank and self.rng.random() < 0.5 and (near := self.edge(1, 2 * left)) is not None:
            return self.factors(near, rank)
        for i in range(rank):
            cap = left if i == rank - 1 else max(1, int(left ** self.rng.uniform(0, 1)))
            if self.step and self.step ** (rank - i) <= left:
                cap = max(cap, self.step)
            choices = [n for n in DIMS if 1 <= n <= cap]
            choices = [n for n in choices if n not in out or n == 1] or [1]
            weights = np.array([n**0.5 for n in choices])
            n = int(self.rng.choice(choices, p=weights / weights.sum()))
            if self.step:
                n = self.aligned(1, cap) or n
            if self.edges and self.rng.random() < 0.6:
                n = self.edge(1, cap) or n
            if self.empty and self.rng.random() < 0.4:
                n = 0
            out.append(n)
            self._used += [n] * (self.step > 0)
            left //= max(n, 1)
        self.rng.shuffle(out)
        return out

    def lengths(self, lists: int) -> list[int]:
        """The lengths of the elements of lists: some of no or of one number, and one that takes most of the budget.

        Parameters
        ----------
        lists : int
            How many lists of these lengths the call has together.

        Returns
        -------
        list of int
            Of 1, 3, 17 or 100 elements; of 0 too where the case may be empty.
        """
        count = self.choice([1, 3, 17, 100, *([0] if self.empty else [])])
        left = max(1, self.budget // lists)
        if self.step and (n := self.aligned(1, left // max(count, 1))) is not None:  # all equal, or multiples of one
            return [n if n * count > left // 2 else n * self.choice((1, 1, 2)) for _ in range(count)]
        cap = max(1, left // (2 * max(count, 1)))
        choices = [n for n in DIMS if n <= cap]
        out = [0 if self.rng.random() < 0.1 else int(self.rng.choice(choices)) for _ in range(count)]
        if count:
            at = int(self.rng.integers(count))
            room = left - sum(out) + out[at]
            out[at] = (self.edges and self.edge(1, room)) or int(
                self.rng.choice([n for n in DIMS if n <= max(room, 0)][-4:])
            )
        return out

    def integer(self, low: int, high: int) -> int:
        """An integer; those next to edges and the limits of number types are drawn more often.

        Parameters
        ----------
        low, high : int
            Both ends are included.

        Returns
        -------
        int
            In [low, high].
        """
        if self.edges and high - low > 64 and self.rng.random() < 0.5:
            near = self.edge(low, high, LIMITS if self.rng.random() < 0.5 else ())
            if near is not None:
                return near
        return int(self.rng.integers(low, high, endpoint=True))

    def real(self, low: float, high: float) -> float:
        """A real, equally distributed.

        Parameters
        ----------
        low, high : float
            The ends of the interval.

        Returns
        -------
        float
            Rounded to float32.
        """
        return float(np.float32(self.rng.uniform(low, high)))

    def written(self, default: float | None, low: float, high: float) -> float:
        """A parameter: every other case has a drawn real, those between the default and what people write, in turn.

        Parameters
        ----------
        default : float or None
            Its default, None where it has none.
        low, high : float
            The ends of the interval, which are among the numbers.

        Returns
        -------
        float
            In [low, high], or the default; rounded to float32.
        """
        turn, odd = divmod(self.turn, 2)
        if not odd:
            return self.real(low, high)
        numbers = [] if default is None else [default, default]
        numbers += [n for n in (*WRITTEN, low, high) if low <= n <= high]
        return float(np.float32(numbers[turn % len(numbers)]))

    def choice(self, items: Sequence[Any]) -> Any:
        """One of several items, all equally likely.

        Parameters
        ----------
        items : sequence
            At least one item.

        Returns
        -------
        object
            The item.
        """
        return items[int(self.rng.integers(len(items)))]

    def indices(self, k: int, n: int, outside: bool = False) -> np.ndarray:
        """Indices into the rows of an array: random ones, repeats, the first and the last row.

        Parameters
        ----------
        k : int
            How many indices.
        n : int
            How many rows.
        outside : bool, default False
            Some indices are n and 2^32 - 1, which lie outside.

        Returns
        -------
        numpy.ndarray
            uint32, of shape (k,).
        """
        out = self.rng.integers(0, max(n, 1), size=k, dtype=np.uint32)
        style = self.rng.random(k)
        if n > 0:
            out[style < 0.15] = 0
            out[(style >= 0.15) & (style < 0.3)] = n - 1
            out[(style >= 0.3) & (style < 0.4)] = self.rng.integers(n)
        if outside:
            out[(style >= 0.4) & (style < 0.5)] = n
            out[(style >= 0.5) & (style < 0.55)] = 2**32 - 1
            if n == 0:
                out[style >= 0.55] = self.rng.integers(2**31)
        if self.edges:
            near = [m + e for b in self.edges for m in range(b, min(n, 64 * b) + 1, b) for e in (-1, 0, 1) if m + e < n]
            where = style > 0.75
            if near:
                out[where] = self.rng.choice(np.array(near, np.uint32), size=int(where.sum()))
        return out

    def matrix_strides(self, batch: int, rows: int, columns: int) -> Strides:
        """Strides of several matrices along the batch, rows and columns, one of the last two being 1.

        The layouts are contiguous, transposed, with room behind each row, one matrix for all, the rows of all matrices
        in turn, and rows that overlap.

        Parameters
        ----------
        batch : int
            How many matrices.
        rows, columns : int
            The shape of each.

        Returns
        -------
        tuple of int
            Three strides, in elements.
        """
        lengths, strides = [rows, columns], [0, 1]
        if across := self.integer(0, 1):
            lengths.reverse()
        length, room = lengths[1], self.choice((0, 0, 1, 3, 4, 8, self.integer(0, 64)))
        kind = self.choice(("apart", "apart", "apart", "in turn", "shared", "overlapping"))
        strides[0] = {"in turn": batch * (length + room), "overlapping": self.integer(0, length)}.get(
            kind, length + room
        )
        apart = lengths[0] * strides[0] + self.choice((0, 0, 1, 4))
        between = {"in turn": length + room, "shared": 0}.get(kind, apart)
        return (between, *(strides[::-1] if across else strides))

    def head_strides(self, batch: int, heads: int, rows: int, width: int) -> Strides:
        """Strides of rows along the batch, heads and rows, as attention takes them.

        The layouts are head after head, heads of a row side by side, alone or with those of two more arrays, samples of
        a row side by side, one head for all, one sample for all; with room or not.

        Parameters
        ----------
        batch : int
            How many samples.
        heads : int
            Heads of a sample.
        rows : int
            Rows of a head.
        width : int
            Elements of a row, which lie side by side.

        Returns
        -------
        tuple of int
            Three strides, in elements.
        """
        room = self.choice((0, 0, 0, 1, 4, self.integer(0, 9)))
        kind = self.choice(("heads", "rows", "rows", "packed", "samples", "one head", "one sample"))
        if kind in ("rows", "packed"):
            row = heads * width * (3 if kind == "packed" else 1) + room
            return rows * row, width, row
        if kind == "samples":
            sample = heads * width + room
            return sample, width, batch * sample
        row = width + room
        head = 0 if kind == "one head" else rows * row
        return 0 if kind == "one sample" else heads * rows * row, head, row
