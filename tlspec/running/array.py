"""Arrays that carry errors. The modules beside this one register what NumPy's functions do to them."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tlspec.formats import FORMATS, Format
from tlspec.running.model import Model, granularity, representable

#: by the name of a ufunc, with its method if it is not called: rule(model, *operands)
UFUNCS: dict[str, Callable[..., Any]] = {}
#: by the name of any other function: rule(*arguments)
FUNCTIONS: dict[str, Callable[..., Any]] = {}
#: functions that make an array, called with like=
CREATION = frozenset({"zeros", "ones", "empty", "full", "array", "asarray", "arange", "eye", "tri"})


def value_of(x: Any) -> Any:
    """The value of an array, plain or with an error.

    Parameters
    ----------
    x : ErrorArray or array_like
        The array.

    Returns
    -------
    numpy.ndarray
        Its value.
    """
    return x.value if isinstance(x, ErrorArray) else x


def error_of(x: Any) -> Any:
    """The error of an array.

    Parameters
    ----------
    x : ErrorArray or array_like
        The array.

    Returns
    -------
    numpy.ndarray
        Zeros for a plain one.
    """
    return x.error if isinstance(x, ErrorArray) else np.zeros(np.shape(x))


@dataclass(frozen=True)
class Sum:
    """What a sum was made of, so that another one added to it gives a sum of all their terms, whose order is not known either."""

    terms: int
    size: (
        Any  #: the sum of the terms' absolute values and errors, without infinities: beyond the range they may meet one
    )
    brought: Any  #: the sum of the terms' errors
    step: float  #: a power of two that divides all terms; 0 where they have errors, infinite without terms

    def error(self, m: Model) -> Any:
        """The sum's error where none overflows: what its terms bring, and the additions' own."""
        exact = self.size <= 2.0 ** min(m.sum_precision, m.precision) * self.step
        error = np.where(exact, 0.0, m.sum_error(self.terms) * self.size)
        return self.brought + error + (self.terms * m.flushed if m.flushed else 0.0)

    def plus(self, other: "Sum") -> "Sum":
        step = min(self.step, other.step)
        return Sum(self.terms + other.terms, self.size + other.size, self.brought + other.brought, step)

    def moved(self, f: Callable[[Any], Any]) -> "Sum":
        return Sum(self.terms, f(self.size), f(self.brought), self.step)


class ErrorArray(NDArrayOperatorsMixin):
    """Values with bounds on their errors; a Boolean one says where it may be wrong. See :mod:`tlspec.running.array`.

    Parameters
    ----------
    value : array_like
        The values.
    error : array_like, default 0.0
        Bounds on their errors, broadcast to the values.
    model : Model, optional
        The arithmetic; float32 with any order of sums unless given.
    sum_of : Sum, optional
        Of a sum that no other operation has touched: its terms.
    """

    __slots__ = ("error", "model", "sum_of", "value")
    __array_priority__ = 1000

    def __init__(self, value: Any, error: Any = 0.0, model: Model | None = None, sum_of: Sum | None = None):
        self.value = np.asarray(value)
        if self.value.dtype.kind in "iu":
            self.value = self.value.astype(np.float64)
        self.model = model or Model()
        #: of a sum that no other operation has touched
        self.sum_of = sum_of
        self.error = np.broadcast_to(np.asarray(error), self.value.shape)

    # ---- what an array has

    shape = property(lambda self: self.value.shape)
    ndim = property(lambda self: self.value.ndim)
    size = property(lambda self: self.value.size)
    dtype = property(lambda self: self.value.dtype)
    T = property(lambda self: self.transpose())
    real = property(lambda self: self._like(self.value.real, self.error), lambda self, x: self._set_real(x))
    imag = property(lambda self: self._like(self.value.imag, self.error), lambda self, x: self._set_imag(x))

    def _like(self, value: Any, error: Any) -> "ErrorArray":
        return ErrorArray(value, error, self.model)

    def _set_real(self, x: Any) -> None:
        self.value.real = value_of(x)
        self.error = self.error + error_of(x)

    def _set_imag(self, x: Any) -> None:
        self.value.imag = value_of(x)
        self.error = self.error + error_of(x)

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        return f"ErrorArray({self.value!r}, error={self.error!r})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError("an ErrorArray would lose its errors: make the array with like=, as in np.zeros(shape, like=x)")

    def __bool__(self) -> bool:
        if np.any(self.error):
            raise TypeError("the truth of a comparison depends on rounding")
        return bool(self.value)

    def __float__(self) -> float:
        raise TypeError("an ErrorArray would lose its errors as a float")

    def __getitem__(self, index: Any) -> "ErrorArray":
        index = certain(index)
        moved = self.sum_of and self.sum_of.moved(lambda a: a[index])
        return ErrorArray(self.value[index], self.error[index], self.model, moved)

    def __setitem__(self, index: Any, x: Any) -> None:
        if not self.error.flags.writeable:
            self.error = self.error.copy()
        if not self.value.flags.writeable:
            self.value = self.value.copy()
        index = certain(index)
        self.value[index], self.error[index] = value_of(x), chosen_error(self.model, x)
        if self.sum_of is not None:
            part = as_sum(self.model, x)
            size, brought = np.array(self.sum_of.size), np.array(self.sum_of.brought)
            size[index], brought[index] = part.size, part.brought
            self.sum_of = Sum(max(self.sum_of.terms, part.terms), size, brought, min(self.sum_of.step, part.step))

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """The array in another type of numbers: one rounding where it is narrower.

        Parameters
        ----------
        dtype : dtype
            The type.
        copy : bool, default True
            As NumPy's; always a new array.

        Returns
        -------
        ErrorArray or numpy.ndarray
            Without errors where the type has none.

        Raises
        ------
        TypeError
            The conversion depends on rounding.
        """
        target = np.dtype(dtype)
        kind, narrower = target.kind, FORMATS.get(target.name)
        if narrower is not None and narrower.precision < self.model.precision and self.dtype.kind == "f":
            return self.cast(narrower)
        if kind in "fc" or kind == self.dtype.kind:
            return self._like(self.value.astype(np.complex128) if kind == "c" else self.value, self.error)
        if np.any(self.error):
            raise TypeError(f"a conversion to {target} depends on rounding")
        return self.value.astype(dtype)

    def cast(self, format: Format) -> "ErrorArray":
        """The numbers of a format: one rounding, which every implementation does too.

        It is monotone, so what lies within the error lies between the roundings of the ends, and is the same number but near a
        tie.

        Parameters
        ----------
        format : Format
            A number format (:mod:`tlspec.formats`).

        Returns
        -------
        ErrorArray
            The rounded numbers and what their errors become.
        """
        value = format.round(self.value)
        with np.errstate(all="ignore"):
            above, below = (np.abs(format.round(self.value + s * self.error) - value) for s in (1, -1))
            error = np.where(self.error == 0, 0.0, np.maximum(above, below))
        unsure = np.isnan(error) | (np.isinf(value) & (self.error > 0) & np.isfinite(self.value))
        return self._like(value, np.where(unsure, np.where(np.isnan(self.value), 0.0, np.inf), error))

    def copy(self) -> "ErrorArray":
        """A copy of the numbers and of their errors.

        Returns
        -------
        ErrorArray
            Of the same model.
        """
        return self._like(self.value.copy(), self.error.copy())

    def conj(self) -> "ErrorArray":
        """The complex conjugates.

        Returns
        -------
        ErrorArray
            With the same errors.
        """
        return self._like(self.value.conj(), self.error)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        name = f"{ufunc.__name__}.{method}" if method != "__call__" else ufunc.__name__
        rule = UFUNCS.get(name)
        out = kwargs.pop("out", None)
        if rule is None or any(k not in ("axis", "keepdims", "dtype", "initial", "where") for k in kwargs):
            raise TypeError(f"running error analysis does not know numpy.{name}({', '.join(kwargs)})")
        model = next(x.model for x in (*inputs, *(out or ())) if isinstance(x, ErrorArray))
        with np.errstate(all="ignore"):
            result = rule(model, *inputs, **kwargs)
        if out is not None and isinstance(out[0], ErrorArray):
            out[0].value, out[0].error, out[0].sum_of = result.value, result.error, result.sum_of
            return out[0]
        if out is not None:
            raise TypeError(f"numpy.{name} writes into a plain array, which would lose the errors")
        return result

    def __array_function__(self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = name_of(function)
        if name in CREATION:  # np.zeros(shape, like=x) and its family
            known = next((a for a in args if isinstance(a, ErrorArray)), None)
            if known is not None:
                return known
            made = function(*args, **kwargs)
            empty = Sum(0, np.zeros(made.shape), np.zeros(made.shape), np.inf) if name in ("zeros", "empty") else None
            return ErrorArray(made, operand(self.model, made)[1] if empty is None else 0.0, self.model, empty)
        with np.errstate(all="ignore"):
            rule = FUNCTIONS.get(name)
            if rule is None:
                raise TypeError(f"running error analysis does not know numpy.{name}")
            return rule(*args, **kwargs)


def reach(x: Any) -> float:
    """The largest absolute value of a real array; NaN where it has one, and 0 without elements."""
    if not x.size:
        return 0.0
    if 0 in x.strides:  # one of what is broadcast
        x = x[tuple(slice(1) if step == 0 else slice(None) for step in x.strides)]
    return max(float(np.maximum.reduce(x, axis=None)), -float(np.minimum.reduce(x, axis=None)))


def operand(m: Model, x: Any) -> tuple[Any, Any]:
    """Value and error of an operand: a constant is rounded, and what lies beyond the largest finite number is lost."""
    if not isinstance(x, ErrorArray):
        value = np.asarray(x)
        value = value.astype(np.float64) if value.dtype.kind in "iub" else value
        return value, np.where(representable(value, m.precision), 0.0, m.unit * np.abs(value))
    if x.value.dtype.kind == "f" and reach(x.value) + reach(x.error) < m.overflow:
        return x.value, x.error
    return overflowed(m, x.value, x.error, (np.abs(x.value) + x.error >= m.overflow) & np.isfinite(x.value))


def chosen_error(m: Model, x: Any) -> Any:
    """The error of what is chosen or moved: an array's own, and that of a constant's rounding."""
    return x.error if isinstance(x, ErrorArray) else operand(m, x)[1]


def overflowed(m: Model, value: Any, error: Any, beyond: Any) -> tuple[Any, Any]:
    """Value and error where numbers `beyond` the largest finite one are unknown or, if the model says so, infinite."""
    if not np.any(beyond):
        return value, error
    if m.infinite:
        beyond = beyond & (np.abs(value) >= m.overflow) if m.infinite == "must" else beyond
        infinity = np.inf if np.iscomplexobj(value) else np.copysign(np.inf, value)
        return np.where(beyond, infinity, value), np.where(beyond, 0.0, error)
    return value, np.where(beyond, np.inf, error)


def finite_size(value: Any, error: Any) -> Any:
    """How large numbers may be that are no infinities."""
    return np.where(np.isinf(value), 0.0, np.abs(value) + error)


def beyond(m: Model, size: Any) -> Any:
    """Where a sum of terms of that size altogether may overflow, in some order."""
    return np.isfinite(size) & (1.001 * size >= m.overflow)


def as_sum(m: Model, x: Any) -> Sum:
    """An operand as a sum: of one term unless it is one already."""
    if isinstance(x, ErrorArray) and x.sum_of is not None:
        return x.sum_of
    v, d = operand(m, x)
    return Sum(1, finite_size(v, d), d, 0.0 if np.any(d) else granularity(v, m.precision, m.exact))


def method(name: str) -> Callable[..., Any]:
    def call(self: ErrorArray, *args: Any, **kwargs: Any) -> Any:
        return getattr(np, name)(self, *args, **kwargs)

    call.__name__ = name
    call.__doc__ = f"""The result of :func:`numpy.{name}`, with its error.

    Parameters
    ----------
    *args : object
        As NumPy's function takes them after the array.
    **kwargs : object
        As NumPy's function takes them.

    Returns
    -------
    ErrorArray or numpy.ndarray
        An array without an error where the result is exact, as indices are.
    """
    return call


for _each in ("sum", "prod", "mean", "max", "min", "cumsum", "cumprod", "argmax", "argmin", "swapaxes", "squeeze", "ravel", "any",
              "all", "repeat", "take", "clip", "argsort", "round"):  # fmt: skip
    setattr(ErrorArray, _each, method(_each))


def transpose(self: ErrorArray, *axes: Any) -> Any:
    """The array with its axes reordered, as numpy.transpose.

    Parameters
    ----------
    *axes : int
        A permutation; reversed unless given.

    Returns
    -------
    ErrorArray
        With its error.
    """
    return np.transpose(self, axes[0] if len(axes) == 1 else axes or None)


def reshape(self: ErrorArray, *shape: Any) -> Any:
    """The array in another shape, as numpy.reshape.

    Parameters
    ----------
    *shape : int
        The sizes, of which one may be -1.

    Returns
    -------
    ErrorArray
        With its error.
    """
    return np.reshape(self, shape[0] if len(shape) == 1 else shape)


ErrorArray.transpose = transpose  # type: ignore[attr-defined]
ErrorArray.reshape = reshape  # type: ignore[attr-defined]


def name_of(function: Any) -> str:
    module = getattr(function, "__module__", "") or ""
    return f"{'fft.' if 'fft' in module else ''}{function.__name__}"


def certain(index: Any) -> Any:
    """An index without errors."""
    if isinstance(index, tuple):
        return tuple(certain(i) for i in index)
    if isinstance(index, ErrorArray):
        if np.any(index.error):
            raise TypeError("a selection depends on rounding; np.where can take both ways")
        return index.value
    return index


def model_of(*xs: Any) -> Model:
    for x in xs:
        if isinstance(x, ErrorArray):
            return x.model
        if isinstance(x, (list, tuple)) and x:
            with contextlib.suppress(TypeError):
                return model_of(*x)
    raise TypeError("no ErrorArray among the operands")
