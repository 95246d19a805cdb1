"""Operations that draw random numbers, each with the next key of a counter: sessions have them, tapes do not."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from tlrt._binding import convert
from tlrt._binding.arguments import is_number
from tlrt._operations.base import Ref, atomic
from tlrt._operations.elementwise import ElementwiseOperations
from tlrt._operations.index import IndexOperations
from tlrt._operations.shaped import Indices
from tlrt.errors import ArgumentError, ArgumentTypeError, refusal


class RandomOperations(ElementwiseOperations[Ref], IndexOperations[Ref]):
    """Draws, and what is made of them."""

    def _draw(self, name: str, shape: Sequence[int] | int, *parameters: float) -> Ref:
        """Records the registry's draw `name` in that shape."""
        raise NotImplementedError

    @atomic
    def rand_uniform(self, shape: Sequence[int] | int) -> Ref:
        """Uniform numbers in [0, 1): exact multiples of 2^-24.

        Parameters
        ----------
        shape : int or sequence of int
            The sizes of the axes.

        Returns
        -------
        tensor
            Without a gradient.

        See Also
        --------
        tlrt.kernels.rand_uniform : The function of buffers, from a key.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.rand_uniform((2, 2)).numpy().round(4))
        [[0.4279 0.2939]
         [0.7858 0.9366]]
        """
        return self._draw("rand_uniform", shape)

    @atomic
    def rand_normal(self, shape: Sequence[int] | int, mean: float = 0.0, std: float = 1.0) -> Ref:
        """Normal numbers, by Box and Muller.

        Parameters
        ----------
        shape : int or sequence of int
            The sizes of the axes.
        mean : float, default 0.0
            The mean.
        std : float, default 1.0
            The standard deviation, 0 or more.

        Returns
        -------
        tensor
            Without a gradient.

        See Also
        --------
        tlrt.kernels.rand_normal : The function of buffers, from a key.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.rand_normal(3).numpy().round(4))
        [-0.3547  0.64    1.8467]
        """
        return self._draw("rand_normal", shape, mean, std)

    @atomic
    def bernoulli_mask(self, shape: Sequence[int] | int, keep: float) -> Ref:
        """A mask that is 1 with a probability, else 0.

        Parameters
        ----------
        shape : int or sequence of int
            The sizes of the axes.
        keep : float
            Probability of a 1.

        Returns
        -------
        tensor
            Without a gradient.

        See Also
        --------
        tlrt.kernels.bernoulli_mask : The function of buffers, from a key.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.bernoulli_mask(6, 0.5).numpy())
        [1. 1. 0. 0. 1. 0.]
        """
        return self._draw("bernoulli_mask", shape, keep)

    @atomic
    def multinomial(self, weights: Ref, n: int = 1) -> Indices:
        """Different places of the last axis, drawn one after the other.

        Parameters
        ----------
        weights : tensor
            Shape (…, classes): the probabilities are in proportion to the weights left; not negative, and at least n of
            a row positive.
        n : int, default 1
            Number of places.

        Returns
        -------
        Indices
            Shape (…, n).

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.multinomial(s.const([[0, 1, 0]]), 1).numpy())
        [[1]]
        """
        weights = cast(Ref, cast(Any, self).detach(weights))
        uniform = self.rand_uniform(self.shape(weights))
        # of independent exponential times at these rates, the first; a uniform number of 0 would give a time of 0
        times = self.clamp(self.neg(self.log1p(self.neg(uniform))), 2.0**-25, np.inf)
        return self.topk(self.div(weights, times), n)[1]

    def dropout(self, x: Ref, p: float) -> Ref:
        """Drops each element with a probability and scales the others by 1/(1 - p).

        Parameters
        ----------
        x : tensor
            Any shape.
        p : float
            Probability, from 0 to below 1.

        Returns
        -------
        tensor
            The shape of x.

        Raises
        ------
        ArgumentError
            p is out of range.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.dropout(s.full(6, 1), 0.5).numpy())
        [2. 2. 0. 0. 2. 0.]
        """
        if not is_number(p):
            raise refusal(ArgumentTypeError, "dropout", "p", convert.type_name(p), "a number")
        if not 0 <= p < 1:
            raise refusal(ArgumentError, "dropout", "p", p, "0 <= p < 1")
        return x if p == 0 else self._dropped(x, p)

    @atomic
    def _dropped(self, x: Ref, p: float) -> Ref:
        return self.scale(self.mul(x, self.bernoulli_mask(self.shape(x), 1 - p)), 1 / (1 - p))
