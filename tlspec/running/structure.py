"""Functions that move elements, ask for shapes, or look at values alone."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tlspec.running.array import FUNCTIONS, ErrorArray, certain, chosen_error, model_of, operand, value_of

#: functions of one array that move its elements and compute nothing
MOVING = (
    "reshape", "transpose", "swapaxes", "moveaxis", "rollaxis", "expand_dims", "squeeze", "ravel", "broadcast_to", "flip",
    "fliplr", "flipud", "roll", "tile", "repeat", "take", "take_along_axis", "pad", "split", "array_split", "tril", "triu",
    "copy", "diagonal", "diag", "rot90", "delete", "atleast_1d", "atleast_2d", "atleast_3d", "resize", "real", "imag",
)  # fmt: skip
#: functions that join the arrays of a list
JOINING = ("concatenate", "stack", "vstack", "hstack", "dstack", "column_stack", "block")


def moving(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function on the values and on the errors; the numbers that np.pad fills in are rounded constants."""
    fills = function in (np.pad, np.resize)

    def rule(x: ErrorArray, *args: Any, **kwargs: Any) -> Any:
        args, plain = certain(args), dict(kwargs)
        if "constant_values" in kwargs:
            plain["constant_values"] = chosen_error(x.model, kwargs["constant_values"])
        value, error = function(x.value, *args, **kwargs), function(x.error, *args, **plain)
        if isinstance(value, (list, tuple)):
            return [ErrorArray(v, e, x.model) for v, e in zip(value, error, strict=True)]
        of = None if fills or x.sum_of is None else x.sum_of.moved(lambda a: function(a, *args, **kwargs))
        return ErrorArray(value, error, x.model, of)

    return rule


def joining(function: Callable[..., Any]) -> Callable[..., Any]:
    def nested(x: Any, of: Callable[[Any], Any]) -> Any:
        return [nested(y, of) for y in x] if isinstance(x, (list, tuple)) else of(x)

    def rule(arrays: Any, *args: Any, **kwargs: Any) -> Any:
        m = model_of(arrays)
        value, error = (
            function(nested(arrays, of), *args, **kwargs) for of in (value_of, lambda x: chosen_error(m, x))
        )
        return ErrorArray(value, error, m)

    return rule


def of_values(pick: Any) -> Callable[..., Any]:
    def rule(x: ErrorArray, *args: Any, **kwargs: Any) -> Any:
        if np.any(x.error):
            raise TypeError(f"numpy.{pick.__name__} depends on rounding")
        return pick(x.value, *args, **kwargs)

    return rule


def lexsort(keys: Any, axis: int = -1) -> Any:
    return np.lexsort(tuple(certain(k) for k in keys), axis)


def made_like(make: Any) -> Callable[..., Any]:
    def rule(x: Any, *args: Any, **kwargs: Any) -> Any:
        made = make(value_of(x), *(value_of(a) for a in args), **{k: value_of(a) for k, a in kwargs.items()})
        if made.dtype.kind not in "fc":
            return made
        fill = kwargs.get("fill_value", args[0] if make is np.full_like and args else 0.0)
        model = model_of(x, fill)
        return ErrorArray(made, np.broadcast_to(operand(model, fill)[1], made.shape), model)

    return rule


def sorted_rows(x: ErrorArray, axis: int | None = -1, **options: Any) -> ErrorArray:
    """No element of a sorted row moves by more than the largest error of the row."""
    value = np.sort(x.value, axis, **options)
    return ErrorArray(
        value, np.broadcast_to(np.max(x.error, axis=axis, keepdims=axis is not None), value.shape), x.model
    )


def truth(f: Any) -> Callable[..., Any]:
    def rule(x: Any, *args: Any, **kwargs: Any) -> Any:
        if np.any(x.error):
            low, high = f(x.value & ~(x.error != 0), *args, **kwargs), f(x.value | (x.error != 0), *args, **kwargs)
            return ErrorArray(f(x.value, *args, **kwargs), low != high, x.model) if np.any(low != high) else high
        return f(x.value, *args, **kwargs)

    return rule


FUNCTIONS.update(
    {
        **{n: moving(getattr(np, n)) for n in MOVING},
        **{n: joining(getattr(np, n)) for n in JOINING},
        "sliding_window_view": moving(np.lib.stride_tricks.sliding_window_view),
        "append": lambda x, y, axis=None: np.concatenate(
            [np.ravel(x), np.ravel(y)] if axis is None else [x, y], axis or 0
        ),
        "argmax": of_values(np.argmax),
        "argmin": of_values(np.argmin),
        "argsort": of_values(np.argsort),
        "nonzero": of_values(np.nonzero),
        "sort": sorted_rows,
        "count_nonzero": of_values(np.count_nonzero),
        "lexsort": lexsort,
        "any": truth(np.any),
        "all": truth(np.all),
        "shape": lambda x: x.shape,
        "ndim": lambda x: x.ndim,
        "size": lambda x, axis=None: np.size(x.value, axis),
        "result_type": lambda *xs: np.result_type(*(value_of(x) for x in xs)),
        "iscomplexobj": lambda x: np.iscomplexobj(x.value),
        "zeros_like": made_like(np.zeros_like),
        "ones_like": made_like(np.ones_like),
        "empty_like": made_like(np.empty_like),
        "full_like": made_like(np.full_like),
    }
)
