"""Rules of PyTorch's operators: what each does to arrays that carry errors, in terms of NumPy's functions and of the rows.

A rule gets the operator's arguments, tensors as arrays, and returns its results. What computes several ways gives the largest of
their errors. Operators without a rule are taken apart by PyTorch's decompositions.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tlspec.ops import elementwise as rows
from tlspec.running import ErrorArray, inexact
from tlspec.running.array import error_of, model_of, operand, overflowed, value_of
from tlspec.running.rounding import result, stored
from tlspec.running.sums import contract

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
#: operators whose results do not depend on their tensors' numbers
CONSTANT = frozenset({
    "zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided",
    "zero", "fill",
})  # fmt: skip


def either(*ways: Any) -> Any:
    """The first array, with the errors of all: a kernel may compute any of them."""
    first, *others = ways
    error = error_of(first)
    for other in others:
        with np.errstate(invalid="ignore"):
            moved = error_of(other) + np.where(np.isfinite(first.value), np.abs(first.value - other.value), 0.0)
        error = np.maximum(error, np.where(np.isnan(moved), np.inf, moved))
    return ErrorArray(first.value, error, model_of(*ways), first.sum_of if isinstance(first, ErrorArray) else None)


def row(name: str) -> Rule:
    """A row of the specification, in all of its formulas."""
    op = getattr(rows, name)
    return lambda x: either(*(f(x) for f in (op.reference, *op.formulas["forward"])))


def lifted(x: Any, like: Any) -> Any:
    """A plain array as one that carries errors."""
    return x if isinstance(x, ErrorArray) else ErrorArray(np.asarray(x), 0.0, model_of(like))


def axes_of(dim: Any, rank: int) -> tuple[int, ...]:
    """The axes that an argument `dim` names; all where it names none."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    return tuple(d % max(rank, 1) for d in ([dim] if isinstance(dim, int) else dim)) if rank else ()


# ---- element by element


def add(a: Any, b: Any, alpha: Any = 1) -> Any:
    """A sum; an infinity that is certain, as that of a mask, stays certain."""
    b = b if alpha == 1 else alpha * b
    found = a + b
    sure = [np.isinf(value_of(x)) & (error_of(x) == 0) for x in (a, b)]
    if isinstance(found, ErrorArray) and (np.any(sure[0]) or np.any(sure[1])):
        return ErrorArray(
            found.value, np.where(np.isinf(found.value) & (sure[0] | sure[1]), 0.0, found.error), found.model
        )
    return found


def divide(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    found = a / b
    return found if rounding_mode is None else (np.trunc if rounding_mode == "trunc" else np.floor)(found)


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    found = x if min is None else np.maximum(x, min)
    return found if max is None else np.minimum(found, max)


def gelu(x: Any, approximate: str = "none") -> Any:
    return row("gelu" if approximate == "tanh" else "gelu_erf")(x)


def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return np.where(mask, value, x)


RULES |= {
    "add": add,
    "sub": lambda a, b, alpha=1: a - (b if alpha == 1 else alpha * b),
    "rsub": lambda a, b, alpha=1: b - (a if alpha == 1 else alpha * a),
    "mul": lambda a, b: a * b, "div": divide, "pow": lambda a, b: np.power(a, b), "atan2": lambda a, b: np.arctan2(a, b),
    "neg": lambda x: -x, "abs": np.abs, "reciprocal": lambda x: 1.0 / x, "rsqrt": lambda x: 1.0 / np.sqrt(x),
        "square": lambda x: x * x,
    "sqrt": np.sqrt, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": row("tanh"), "sinh": np.sinh, "cosh": np.cosh,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": row("erf"), "sigmoid": row("sigmoid"), "silu": row("silu"), "mish": row("mish"), "gelu": gelu,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": lambda x, decimals=0: np.rint(x),
    "sign": np.sign, "sgn": np.sign,
    "relu": lambda x: np.maximum(x, 0.0), "maximum": np.maximum, "minimum": np.minimum, "clamp": clamp,
    "clamp_min": lambda x, low: np.maximum(x, low), "clamp_max": lambda x, high: np.minimum(x, high),
    "where": lambda c, a, b: np.where(c, a, b) if any(isinstance(x, ErrorArray) for x in (c, a, b)) else None,
    "masked_fill": masked_fill,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or,
    "logical_not": np.logical_not, "bitwise_not": np.invert, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
}  # fmt: skip


# ---- sums, extremes, order


def summed(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return np.sum(x, axis=axes_of(dim, x.ndim), keepdims=keepdim) if x.ndim else x


def averaged(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    axes = axes_of(dim, x.ndim)
    return summed(x, dim, keepdim) / math.prod(x.shape[a] for a in axes)


def spread(x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
    """The variance, from centred numbers."""
    axes, x = axes_of(dim, x.ndim), inexact(x)
    centred = x - averaged(x, axes, True)
    return summed(centred * centred, axes, keepdim) / (
        math.prod(x.shape[a] for a in axes) - (1 if correction is None else correction)
    )


def largest(pick: Any) -> Rule:
    def rule(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return pick(x, axis=axes_of(dim, x.ndim), keepdims=keepdim) if x.ndim else x

    return rule


def with_place(pick: Any) -> Rule:
    """The largest or smallest number and where it is, which must not depend on rounding unless nobody reads it."""

    def rule(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is None:
            return pick(x)
        return pick(x, axis=dim, keepdims=keepdim), index_of(x, dim, keepdim)

    return rule


def index_of(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Indices, unsure where the numbers have errors; their own values are the operator's."""
    moved = np.any(x.error != 0, axis=dim, keepdims=keepdim and dim is not None)
    return ErrorArray(np.zeros(np.shape(moved)), np.asarray(moved, np.float64), x.model)


def ordered(x: Any, dim: int = -1, descending: bool = False) -> Any:
    found = np.sort(x, dim)
    return (np.flip(found, dim) if descending else found), ErrorArray(
        np.zeros(x.shape), (x.error != 0).astype(np.float64), x.model
    )


def topmost(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    values, places = ordered(x, dim, largest)
    first = np.arange(k)
    return np.take(values, first, dim), ErrorArray(
        np.zeros(np.take(x.value, first, dim).shape), np.take(places.error, first, dim), x.model
    )


def products_so_far(x: Any, dim: int, dtype: Any = None) -> Any:
    """1 + δ for each factor but the first, in any order."""
    value = np.cumprod(x.value, dim)
    count = np.arange(x.shape[dim]).reshape([-1 if a == dim % x.ndim else 1 for a in range(x.ndim)])
    size = np.cumprod(np.abs(x.value) + x.error, dim)
    m = x.model
    large = np.maximum.accumulate(np.cumprod(np.maximum(np.abs(x.value) + x.error, 1.0), dim), dim)
    error = (
        size
        - np.abs(value)
        + np.expm1(1.01 * np.minimum(count, 7.5 * np.sqrt(np.maximum(count, 56.25))) * m.unit) * size
    )
    return result(m, *overflowed(m, value, error + count * m.tiny * large, large >= m.overflow))


def norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    axes, size = axes_of(dim, x.ndim), np.abs(x)
    if ord in (math.inf, -math.inf):
        return (np.max if ord > 0 else np.min)(size, axis=axes, keepdims=keepdim)
    if ord == 0:
        return summed(np.not_equal(x, 0.0) * 1.0, axes, keepdim)
    if ord == 1:
        return summed(size, axes, keepdim)
    return (
        np.sqrt(summed(x * x, axes, keepdim))
        if ord == 2
        else np.power(summed(np.power(size, ord), axes, keepdim), 1.0 / ord)
    )


def exponentials(x: Any, dim: int) -> tuple[Any, Any]:
    """The shifted numbers and their exponentials, which kernels that multiply by log2(e) compute with exp2."""
    top = np.max(x, axis=dim, keepdims=True)
    finite = np.isfinite(x) & np.isfinite(top)
    doubled = np.where(finite, x, 0.0) * math.log2(math.e)
    shifted, plain = x - top, doubled - np.where(np.isfinite(top), top, 0.0) * math.log2(math.e)
    e = np.exp(shifted)
    return shifted, either(e, np.where(finite, np.exp2(plain), e))


def softmax(x: Any, dim: int, half_to_float: bool = False) -> Any:
    if not x.ndim:
        return np.exp(x - x)
    e = exponentials(x, dim)[1]
    return e / np.sum(e, axis=dim, keepdims=True)


def log_softmax(x: Any, dim: int, half_to_float: bool = False) -> Any:
    shifted, e = exponentials(x, dim)
    return shifted - np.log(np.sum(e, axis=dim, keepdims=True))


def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    axes = axes_of(dim, x.ndim)
    top = np.max(x, axis=axes, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    found = np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True)) + top
    return found if keepdim else np.squeeze(found, axes)


RULES |= {
    "sum": summed, "mean": averaged, "var": spread,
    "var_mean": lambda x, dim=None, correction=1, keepdim=False: (spread(x, dim, correction, keepdim),
                                                                  averaged(inexact(x), dim, keepdim)),
    "std": lambda x, dim=None, correction=1, keepdim=False: np.sqrt(spread(x, dim, correction, keepdim)),
    "prod": lambda x, dim=None, keepdim=False, dtype=None: np.prod(x, axis=axes_of(dim, x.ndim), keepdims=keepdim),
    "amax": largest(np.max), "amin": largest(np.min), "max": with_place(np.max), "min": with_place(np.min),
    "argmax": index_of, "argmin": index_of, "sort": ordered, "topk": topmost, "cumsum": lambda x, dim, dtype=None: np.cumsum(x,
        dim),
    "cumprod": products_so_far, "linalg_vector_norm": norm, "_softmax": softmax, "_log_softmax": log_softmax,
        "logsumexp": logsumexp,
    "any": lambda x, dim=None, keepdim=False: np.any(x, axis=axes_of(dim, x.ndim), keepdims=keepdim),
    "all": lambda x, dim=None, keepdim=False: np.all(x, axis=axes_of(dim, x.ndim), keepdims=keepdim),
}  # fmt: skip


# ---- products


def linear_map(name: str, terms: Callable[..., int]) -> Rule:
    """An operator that adds up positive multiples of its first argument's elements, so many terms at most."""

    def rule(x: Any, *args: Any, **kwargs: Any) -> Any:
        f, m = _operator(name), x.model
        v, d = operand(m, x)
        value, size, brought = (f(a, *args, **kwargs) for a in (v, np.abs(v) + d, d))
        error = brought + m.sum_error(max(terms(x, *args, **kwargs), 2) + 2) * size
        return result(m, value, error + stored(m, value, error) + m.tiny * np.ones(value.shape))

    return rule


def extremes(name: str) -> Rule:
    """An operator that picks elements of its first argument by size."""

    def rule(x: Any, *args: Any, **kwargs: Any) -> Any:
        f = _operator(name)
        value = f(x.value, *args, **kwargs)
        ends = (
            [np.abs(f(x.value + s * x.error, *args, **kwargs) - value) for s in (-1, 1)]
            if np.any(x.error)
            else [np.zeros(value.shape)]
        )
        with np.errstate(invalid="ignore"):
            return result(x.model, value, np.nan_to_num(np.max(ends, axis=0), nan=0.0, posinf=np.inf))

    return rule


def _operator(name: str) -> Callable[..., np.ndarray]:
    torch = importlib.import_module("torch")

    def call(x: np.ndarray, *args: Any, **kwargs: Any) -> np.ndarray:
        given = [
            torch.from_numpy(np.require(value_of(a), requirements=["C", "W"]))
            if isinstance(a, (np.ndarray, ErrorArray))
            else a
            for a in (x, *args)
        ]
        made = getattr(torch.ops.aten, name)(*given, **kwargs)
        found: np.ndarray = (made[0] if isinstance(made, tuple) else made).numpy()
        return found

    return call


def convolution(x: Any, w: Any, b: Any, *how: Any) -> Any:
    transposed, groups = how[3], how[5]
    m, f = model_of(x, w), _operator("convolution")
    terms = math.prod(w.shape[2:]) * (w.shape[0] // groups if transposed else w.shape[1])
    found = contract(m, lambda p, q: f(p, q, None, *how), terms, x, w)
    return found if b is None else found + np.reshape(b, (1, -1, *[1] * (found.ndim - 2)))


def convolution_backward(g: Any, x: Any, w: Any, bias: Any, *how: Any) -> Any:
    """The gradients that are asked for: sums over the outputs that an input, or a weight, has a part in."""
    *way, wanted = how
    groups, torch = way[5], importlib.import_module("torch")
    given = [torch.from_numpy(np.require(value_of(a), requirements=["C", "W"])) for a in (g, x, w)]

    def part(i: int, places: tuple[int, int], terms: int) -> Any:
        def product(p: np.ndarray, q: np.ndarray) -> np.ndarray:
            arrays = list(given)
            for at, a in zip(places, (p, q), strict=True):
                arrays[at] = torch.from_numpy(np.require(a, requirements=["C", "W"]))
            found: np.ndarray = torch.ops.aten.convolution_backward(*arrays, bias, *way, [i == k for k in range(3)])[
                i
            ].numpy()
            return found

        return contract(model_of(g, x, w), product, terms, *((g, x, w)[at] for at in places)) if wanted[i] else None

    channels = (w.shape[1] if way[3] else w.shape[0] // groups) * math.prod(w.shape[2:])
    positions = g.shape[0] * math.prod((x if way[3] else g).shape[2:])
    sums = np.sum(g, axis=(0, *range(2, g.ndim))) if wanted[2] else None
    return part(0, (0, 2), channels), part(1, (0, 1), positions), sums


def window(kernel: Any, *_: Any, **__: Any) -> int:
    return math.prod(kernel) if isinstance(kernel, Sequence) else int(kernel)


RULES |= {
    "mm": np.matmul, "bmm": np.matmul, "mv": np.matmul, "dot": lambda a, b: np.matmul(a, b), "vdot": lambda a, b: np.matmul(a, b),
    "addmm": lambda c, a, b, beta=1, alpha=1: (alpha * np.matmul(a, b) if alpha != 1 else np.matmul(a, b)) + (c if beta == 1
        else beta * c),
    "addmv": lambda c, a, b, beta=1, alpha=1: (alpha * np.matmul(a, b) if alpha != 1 else np.matmul(a, b)) + (c if beta == 1
        else beta * c),
    "convolution": convolution, "convolution_backward": convolution_backward, "_convolution": lambda *a: convolution(*a[:9]),
    **{f"avg_pool{n}d": linear_map(f"avg_pool{n}d", lambda x, kernel, *_, **__: window(kernel)) for n in (2, 3)},
    **{f"avg_pool{n}d_backward": linear_map(f"avg_pool{n}d_backward", lambda g, x, kernel, *_, **__: window(kernel))
        for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d": linear_map(f"_adaptive_avg_pool{n}d", lambda x, *_, n=n: math.prod(x.shape[-n:]))
       for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d_backward": linear_map(f"_adaptive_avg_pool{n}d_backward", lambda g, *_,
        n=n: math.prod(g.shape[-n:]))
       for n in (2, 3)},
    **{f"upsample_{kind}": linear_map(f"upsample_{kind}", lambda *_, **__: 8)
       for kind in ("linear1d", "bilinear2d", "trilinear3d")},
    **{f"max_pool{n}d_with_indices": extremes(f"max_pool{n}d_with_indices") for n in (2, 3)},
    **{f"adaptive_max_pool{n}d": extremes(f"adaptive_max_pool{n}d") for n in (2, 3)},
}  # fmt: skip
RULES["baddbmm"] = RULES["addmm"]


# ---- normalisation, from centred numbers


def _normalised(x: Any, axes: tuple[int, ...], eps: float) -> tuple[Any, Any, Any]:
    x = inexact(x)
    mean = averaged(x, axes, True)
    centred = x - mean
    root = np.sqrt(averaged(centred * centred, axes, True) + eps)
    return either(centred / root, centred * (1.0 / root)), mean, 1.0 / root


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    normal, mean, istd = _normalised(x, tuple(range(x.ndim - len(shape), x.ndim)), eps)
    return _scaled(normal, weight, bias), mean, istd


def _folded(x: Any, mean: Any, istd: Any, weight: Any, bias: Any) -> Any:
    """One multiple and one shift of a channel, as PyTorch's own kernels of groups and batches compute it."""
    slope = istd if weight is None else weight * istd
    shift = mean * slope
    return x * slope + (-shift if bias is None else bias - shift)


def _by_channel(x: Any, *arrays: Any) -> tuple[Any, ...]:
    """Arrays of the second axis, along the others."""
    return tuple(None if a is None else np.reshape(a, (1, -1, *[1] * (x.ndim - 2))) for a in arrays)


def group_norm(x: Any, weight: Any, bias: Any, n: int, c: int, hxw: int, groups: int, eps: float) -> Any:
    normal, mean, istd = _normalised(np.reshape(x, (n, groups, -1)), (2,), eps)
    weight, bias = _by_channel(x, weight, bias)
    centre, inverse = (
        np.repeat(np.reshape(a, (n, groups)), c // groups, axis=1).reshape(n, c, *[1] * (x.ndim - 2))
        for a in (mean, istd)
    )
    found = either(_scaled(np.reshape(normal, x.shape), weight, bias), _folded(x, centre, inverse, weight, bias))
    return found, np.reshape(mean, (n, groups)), np.reshape(istd, (n, groups))


def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    weight, bias = _by_channel(x, weight, bias)
    if training:
        axes = (0, *range(2, x.ndim))
        normal, centre, istd = _normalised(x, axes, eps)
        found = either(_scaled(normal, weight, bias), _folded(x, centre, istd, weight, bias))
        running = [
            None if old is None else either(old * (1 - momentum) + new * momentum, old + (new - old) * momentum)
            for old, new in ((mean, np.ravel(centre)), (var, spread(x, axes)))
        ]
        return found, np.ravel(centre), np.ravel(istd), *running
    mean, var = _by_channel(x, mean, var)
    root = np.sqrt(var + eps)
    return either(_scaled((x - mean) / root, weight, bias), _folded(x, mean, 1.0 / root, weight, bias)), None, None


RULES |= {
    "native_layer_norm": layer_norm, "native_group_norm": group_norm, "native_batch_norm": batch_norm,
    "_native_batch_norm_legit": batch_norm,
    "_native_batch_norm_legit.no_stats": lambda x, w, b, training, momentum, eps: batch_norm(x, w, b, None, None, True,
        momentum, eps),
    "_native_batch_norm_legit_no_training": lambda x, w, b, mean, var, momentum, eps: batch_norm(x, w, b, mean, var, False,
        momentum, eps),
}  # fmt: skip


# ---- moves, and sums over places


def indexed(x: Any, indices: Sequence[Any]) -> Any:
    return x[_index(indices)]


def _index(indices: Sequence[Any]) -> tuple[Any, ...]:
    known = [i for i, a in enumerate(indices) if a is not None]
    if known != list(range(known[0], known[-1] + 1)):
        raise TypeError("indices apart from each other")
    return tuple(slice(None) if a is None else value_of(_sure(a)) for a in indices)


def _sure(x: Any) -> Any:
    if isinstance(x, ErrorArray) and np.any(x.error):
        raise TypeError("a selection depends on rounding")
    return value_of(x).astype(np.int64) if isinstance(x, ErrorArray) and x.value.dtype.kind == "f" else x


def put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False, unsafe: bool = False) -> Any:
    made = lifted(x, values).copy()
    if accumulate:
        np.add.at(made, _index(indices), values)
    else:
        made[_index(indices)] = values
    return made


def along(index: Any, dim: int) -> tuple[Any, ...]:
    """The places that an index along one axis names."""
    places = list(np.indices(np.shape(index), sparse=True))
    places[dim] = value_of(_sure(index))
    return tuple(places)


def scattered(x: Any, dim: int, index: Any, values: Any) -> Any:
    made = lifted(x, values).copy()
    np.add.at(made, along(index, dim % x.ndim), values[tuple(slice(n) for n in np.shape(index))])
    return made


def placed(x: Any, dim: int, index: Any, values: Any) -> Any:
    """Values, or one number, at the places that an index names."""
    made = lifted(x, x if isinstance(x, ErrorArray) else values).copy()
    if isinstance(values, ErrorArray) and values.ndim:
        values = values[tuple(slice(n) for n in np.shape(index))]
    made[along(index, dim % x.ndim)] = values
    return made


def index_added(x: Any, dim: int, index: Any, values: Any, alpha: Any = 1) -> Any:
    made = lifted(x, values).copy()
    np.add.at(made, (*[slice(None)] * (dim % x.ndim), value_of(_sure(index))), values if alpha == 1 else alpha * values)
    return made


def padded(x: Any, pad: Sequence[int], value: Any = 0.0) -> Any:
    pairs = [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    inside = tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pairs, x.shape, strict=True))
    return np.pad(x[inside], [(max(a, 0), max(b, 0)) for a, b in pairs], constant_values=value)


def joined(arrays: Sequence[Any], dim: int = 0) -> Any:
    return np.concatenate([a for a in arrays if np.ndim(a) != 1 or np.size(a)], dim)


RULES |= {
    "clone": lambda x, memory_format=None: x, "cat": joined, "stack": lambda xs, dim=0: np.stack(xs, dim), "index": indexed,
    "index_select": lambda x, dim, at: np.take(x, _sure(at), dim), "constant_pad_nd": padded,
    "gather": lambda x, dim, at, sparse_grad=False: np.take_along_axis(x, _sure(at), dim),
    "embedding": lambda w, at, *_, **__: w[_sure(at)], "flip": lambda x, dims: np.flip(x, tuple(dims)),
    "roll": lambda x, shifts, dims=(): np.roll(x, tuple(shifts), tuple(dims) or None), "tril": lambda x, k=0: np.tril(x, k),
    "triu": lambda x, k=0: np.triu(x, k), "repeat": lambda x, n: np.tile(x, tuple(n)),
    "index_put": put, "_unsafe_index_put": put, "_index_put_impl": put, "_unsafe_index": indexed, "scatter_add": scattered,
        "scatter": placed,
    "index_add": index_added, "_reshape_copy": lambda x, shape: np.reshape(x, shape), "_unsafe_view": lambda x,
        shape: np.reshape(x, shape),
    "upsample_nearest2d": extremes("upsample_nearest2d"),
}  # fmt: skip
