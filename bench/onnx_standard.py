"""What the ONNX standard says where the onnx reference evaluator departs from it, and where packages are known to depart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
_MOST = float(np.finfo(np.float32).max)
#: operators -> what the text says, of a drawn node and its operands in float64
TEXT: dict[str, Callable[..., Any]] = {}
#: operators whose formula has 0 times infinity, or infinity over infinity, at an infinite operand -> the limit there
LIMITS: dict[str, Callable[[Any], Any]] = {
    "Softsign": np.sign,
    **dict.fromkeys(("HardSwish", "Mish", "Gelu"), lambda x: np.maximum(x, 0.0)),
}


def _text(function: Callable[..., Any]) -> Callable[..., Any]:
    TEXT["".join(word.capitalize() for word in function.__name__.split("_"))] = function
    return function


def _said(case: Any, **defaults: Any) -> list[Any]:
    return [case.attributes.get(n, v) for n, v in defaults.items()]


@_text
def hard_swish(case: Any, x: Array) -> Array:
    return x * np.clip(x / 6 + 0.5, 0, 1)


@_text
def gelu(case: Any, x: Array) -> Array:
    if case.attributes.get("approximate") == "tanh":
        with np.errstate(all="ignore"):  # (1 + tanh u) / 2 without its cancellation
            return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    with np.errstate(all="ignore"):
        return 0.5 * x * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2))


@_text
def clip(case: Any, x: Array, low: Array = None, high: Array = None) -> Array:
    if x.dtype.kind == "f":  # what is left out is the type's own end, which is finite
        low, high = (-_MOST if low is None else low), (_MOST if high is None else high)
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


@_text
def lp_normalization(case: Any, x: Array) -> Array:
    axis, p = _said(case, axis=-1, p=2)
    norm = (np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / p)
    return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm))


@_text
def group_normalization(case: Any, x: Array, scale: Array, bias: Array) -> Array:
    """By two passes; the evaluator has the mean of squares less the square of the mean, in float32."""
    groups, epsilon = _said(case, num_groups=0, epsilon=1e-5)
    parts = x.reshape(len(x), groups, -1)
    centred = parts - parts.mean(-1, keepdims=True)
    y = (centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + epsilon)).reshape(x.shape)
    scale, bias = (np.repeat(v, x.shape[1] // len(v)).reshape(-1, *[1] * (x.ndim - 2)) for v in (scale, bias))
    return y * scale + bias


@_text
def reduce_sum_square(case: Any, x: Array, axes: Array = None) -> Array:
    given, keep, noop = _said(case, axes=None, keepdims=1, noop_with_empty_axes=0)
    over = given if axes is None else axes.tolist()
    where = tuple(over) if over else () if noop else None
    return np.square(x).sum(where, keepdims=bool(keep), dtype=x.dtype)


@_text
def slice(case: Any, x: Array, starts: Array, ends: Array, axes: Array = None, steps: Array = None) -> Array:
    count = len(starts)
    axes, steps = np.arange(count) if axes is None else axes, np.ones(count, int) if steps is None else steps
    for first, last, axis, step in np.stack([starts, ends, axes, steps], 1).tolist():
        n = x.shape[axis]
        start, end = (v + n * (v < 0) for v in (first, last))
        start = min(max(start, 0), n if step > 0 else n - 1)
        end = min(max(end, 0), n) if step > 0 else min(max(end, -1), n - 1)
        x = np.take(x, range(start, end, step), axis)
    return x


@_text
def pad(case: Any, x: Array, widths: Array, fill: Array = None, axes: Array = None) -> Array:
    """One axis after the other; widths below 0 cut first."""
    (mode,) = _said(case, mode="constant")
    places = range(x.ndim) if axes is None else axes.tolist()
    for axis, before, after in zip(places, widths.tolist(), widths[len(places) :].tolist()):
        x = np.take(x, range(max(-before, 0), x.shape[axis] + min(after, 0)), axis)
        wide = [(0, 0)] * x.ndim
        wide[axis] = max(before, 0), max(after, 0)
        said = {"constant_values": 0 if fill is None else fill} if mode == "constant" else {}
        x = np.pad(x, wide, mode, **said)
    return x


@_text
def unique(case: Any, x: Array) -> Any:
    axis, in_order = _said(case, axis=None, sorted=1)
    keys = [tuple(row.flat) for row in (x.reshape(-1, 1) if axis is None else np.moveaxis(x, axis, 0))]
    found = sorted(dict.fromkeys(keys)) if in_order else list(dict.fromkeys(keys))
    first = [keys.index(k) for k in found]
    y = x.reshape(-1)[first] if axis is None else np.take(x, first, axis)
    return y, first, [found.index(k) for k in keys], [keys.count(k) for k in found]


@_text
def non_max_suppression(
    case: Any, boxes: Array, scores: Array, most: Array = None, iou: Array = None, least: Array = None
) -> Array:
    """One box after the other; without a limit of their number there is none."""
    (center,) = _said(case, center_point_box=0)
    limit, overlap = (0 if v is None else float(v[0]) for v in (most, iou))
    least = -np.inf if least is None else least[0]
    a, b = boxes[..., :2], boxes[..., 2:]
    low, high = (a - b / 2, a + b / 2) if center else (np.minimum(a, b), np.maximum(a, b))
    chosen: list[tuple[int, ...]] = []
    for n, c in np.ndindex(scores.shape[:2]):
        kept: list[int] = []
        for k in sorted(range(boxes.shape[1]), key=lambda k: -scores[n, c, k]):
            shared = [math.prod(np.maximum(np.minimum(high[n, k], high[n, j]) - np.maximum(low[n, k], low[n, j]), 0))
                      for j in kept]  # fmt: skip
            areas = [math.prod(high[n, j] - low[n, j]) for j in (k, *kept)]
            if len(kept) < limit and scores[n, c, k] > least and all(
                s <= overlap * (areas[0] + area - s) for s, area in zip(shared, areas[1:])
            ):  # fmt: skip
                kept.append(k)
        chosen += [(n, c, k) for k in kept]
    return np.array(chosen, np.int64).reshape(-1, 3)


@_text
def one_hot(case: Any, index: Array, depth: Array, values: Array) -> Array:
    (axis,) = _said(case, axis=-1)
    n, last = int(depth), np.moveaxis
    out = np.full((*index.shape, n), values[0])
    for place in np.ndindex(index.shape):
        if -n <= index[place] < n:
            out[(*place, int(index[place]))] = values[1]
    return last(out, -1, axis)


@_text
def l_r_n(case: Any, x: Array) -> Array:
    size, alpha, beta, bias = _said(case, size=0, alpha=1e-4, beta=0.75, bias=1.0)
    alpha, beta, bias = (float(np.float32(v)) for v in (alpha, beta, bias))
    total = np.zeros_like(x)
    for c in range(x.shape[1]):
        low, high = max(0, c - (size - 1) // 2), min(x.shape[1] - 1, c + -(-(size - 1) // 2))
        total[:, c] = np.square(x[:, low : high + 1]).sum(1)
    return x / (bias + alpha / size * total) ** beta


@_text
def global_max_pool(case: Any, x: Array) -> Array:
    return x.max(tuple(range(2, x.ndim)), keepdims=True)


@_text
def global_lp_pool(case: Any, x: Array) -> Array:
    (p,) = _said(case, p=2)
    return (np.abs(x) ** p).sum(tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)


def _windows(case: Any, sizes: tuple[int, ...]) -> list[list[list[int]]]:
    """For each axis and window, the places within the tensor that the window has."""
    kernel, rank = case.attributes["kernel_shape"], len(sizes)
    strides, dilations, pads, auto, ceil = _said(
        case, strides=[1] * rank, dilations=[1] * rank, pads=[0] * 2 * rank, auto_pad="NOTSET", ceil_mode=0
    )
    found = []
    for n, k, stride, dilation, before, after in zip(sizes, kernel, strides, dilations, pads, pads[rank:]):
        reach = (k - 1) * dilation + 1
        if auto.startswith("SAME"):
            count = -(-n // stride)
            whole = max((count - 1) * stride + reach - n, 0)
            before = whole // 2 if auto == "SAME_UPPER" else -(-whole // 2)
        else:
            left = n + before + after - reach
            count = left // stride + 1 + (1 if ceil and left % stride else 0)
            count -= (count - 1) * stride >= n + before  # one that begins in the padding behind
        places = ([o * stride - before + j * dilation for j in range(k)] for o in range(count))
        found.append([[p for p in window if 0 <= p < n] for window in places])
    return found


@_text
def lp_pool(case: Any, x: Array) -> Array:
    """Each window by itself; padding adds nothing."""
    (p,) = _said(case, p=2)
    windows = _windows(case, x.shape[2:])
    y = np.zeros((*x.shape[:2], *map(len, windows)))
    for place in np.ndindex(y.shape):
        where = np.ix_(*(starts[o] for starts, o in zip(windows, place[2:])))
        y[place] = (np.abs(x[place[:2]][where]) ** p).sum() ** (1 / p)
    return y


@_text
def max_pool(case: Any, x: Array) -> Any:
    """Each window by itself; an index is of the whole of x, without padding, of which the first or the last axis counts least."""
    (order,) = _said(case, storage_order=0)
    windows = _windows(case, x.shape[2:])
    y = np.full((*x.shape[:2], *map(len, windows)), -np.inf)
    index = np.zeros(y.shape, np.int64)
    for place in np.ndindex(y.shape):
        for at in itertools.product(*(starts[o] for starts, o in zip(windows, place[2:]))):
            if x[(*place[:2], *at)] > y[place]:
                y[place] = x[(*place[:2], *at)]
                spatial = np.ravel_multi_index(at, x.shape[2:], order="CF"[order])
                index[place] = (place[0] * x.shape[1] + place[1]) * math.prod(x.shape[2:]) + spatial
    return (y, index) if case.outputs == 2 else y


# ---- between elements


def _cubic(d: float, a: float) -> float:
    d = abs(d)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    return near if d <= 1 else a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


@_text
def resize(case: Any, x: Array, roi: Array = None, scales: Array = None, sizes: Array = None) -> Array:
    """One element after the other, of one axis after the other."""
    mode, how, nearest, a, exclude, antialias = _said(
        case, mode="nearest", coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_floor",
        cubic_coeff_a=-0.75, exclude_outside=0, antialias=0,
    )  # fmt: skip
    rounded = {"round_prefer_floor": lambda v: math.ceil(v - 0.5), "round_prefer_ceil": lambda v: math.floor(v + 0.5),
               "floor": math.floor, "ceil": math.ceil}[nearest]  # fmt: skip
    for axis in range(2, x.ndim):
        n = x.shape[axis]
        scale = sizes[axis] / n if scales is None else float(scales[axis])
        target = int(sizes[axis]) if scales is None else math.floor(n * scale)
        rows = []
        for k in range(target):
            at = (k + 0.5) / scale - 0.5
            if how == "asymmetric":
                at = k / scale
            elif how == "align_corners":
                at = k * (n - 1) / (n * scale - 1) if target > 1 else 0.0
            elif how == "pytorch_half_pixel" and target == 1:
                at = 0.0
            elif how == "half_pixel_symmetric":
                at += n / 2 * (1 - target / (n * scale))
            if mode == "nearest":
                rows.append(np.take(x, min(max(rounded(at), 0), n - 1), axis))
                continue
            wide = max(1.0, 1 / scale) if antialias else 1.0
            reach = math.ceil(2 * wide) + 1
            places = range(math.floor(at) - reach, math.floor(at) + reach + 1)
            d = [(p - at) / wide for p in places]
            weights = np.array([_cubic(v, a) if mode == "cubic" else max(1 - abs(v), 0.0) for v in d])
            if exclude:
                weights = np.array([w if 0 <= p < n else 0.0 for w, p in zip(weights, places)])
            weights = weights / weights.sum() if exclude or wide > 1 else weights
            rows.append(sum(w * np.take(x, min(max(p, 0), n - 1), axis) for w, p in zip(weights, places) if w))
        x = np.stack(rows, axis) if rows else np.take(x, range(0), axis)
    return x


@_text
def grid_sample(case: Any, x: Array, grid: Array) -> Array:
    mode, padding, align = _said(case, mode="linear", padding_mode="zeros", align_corners=0)
    out = np.zeros((*x.shape[:2], *grid.shape[1:-1]))

    def pixel(p: int, n: int) -> int | None:
        if padding == "reflection":
            low, high = (0, n - 1) if align else (-0.5, n - 0.5)
            value = float(p)
            while high > low and not low <= value <= high:
                value = 2 * low - value if value < low else 2 * high - value
            return int(value)
        return min(max(p, 0), n - 1) if padding == "border" else p if 0 <= p < n else None

    for b, *place in np.ndindex(grid.shape[:-1]):
        taps: list[list[tuple[Any, float]]] = []
        for n, g in zip(x.shape[2:], grid[(b, *place)][::-1]):
            at = (g + 1) / 2 * (n - 1) if align else ((g + 1) * n - 1) / 2
            near = range(math.floor(at) - 1, math.floor(at) + 3)
            around: list[tuple[int, float]] = [(int(np.rint(at)), 1.0)]
            if mode != "nearest":
                around = [(p, _cubic(at - p, -0.75) if mode == "cubic" else max(1 - abs(at - p), 0.0)) for p in near]
            taps.append([(pixel(p, n), w) for p, w in around])
        for chosen in itertools.product(*taps):
            if all(p is not None for p, _ in chosen):
                element = x[(b, np.s_[:], *(p for p, _ in chosen))]
                out[(b, np.s_[:], *place)] += element * math.prod(w for _, w in chosen)
    return out


@_text
def conv_transpose(case: Any, x: Array, w: Array, b: Array = None) -> Array:
    """Each element times the kernel is added where it falls, and the padding is cut off; the reference has no groups."""
    rank = x.ndim - 2
    ones, none = [1] * rank, [0] * rank
    group, strides, dilations, more = _said(case, group=1, strides=ones, dilations=ones, output_padding=none)
    pads, wanted = _said(case, pads=none * 2, output_shape=None)
    sizes = zip(x.shape[2:], w.shape[2:], strides, dilations, more)
    whole = [(n - 1) * s + (k - 1) * d + 1 + m for n, k, s, d, m in sizes]
    if wanted:
        pads = [(total - out + odd) // 2 for odd in (1, 0) for total, out in zip(whole, wanted)]
    y = np.zeros((len(x), group, w.shape[1], *whole))
    x, w = x.reshape(len(x), group, -1, *x.shape[2:]), w.reshape(group, -1, *w.shape[1:])
    for tap in np.ndindex(*w.shape[3:]):
        at = (np.s_[t * d : t * d + (n - 1) * s + 1 : s] for t, d, n, s in zip(tap, dilations, x.shape[3:], strides))
        y[(..., *at)] += np.einsum("bgi...,gio->bgo...", x, w[(..., *tap)])
    inside = (np.s_[low : n - high] for low, high, n in zip(pads, pads[rank:], whole))
    y = y.reshape(len(x), -1, *whole)[(..., *inside)]
    return y if b is None else y + b.reshape(-1, *ones)


# ---- recurrent cells, which the reference runs over whole sequences alone, and with few activations


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


#: activations -> how many of alpha and beta they take, and the function
CELL_FUNCTIONS: dict[str, tuple[int, Callable[..., Array]]] = {
    "Tanh": (0, np.tanh), "Relu": (0, lambda v: np.maximum(v, 0)), "Sigmoid": (0, _sigmoid),
    "LeakyRelu": (1, lambda v, a: np.where(v < 0, a * v, v)), "Elu": (1, lambda v, a: np.where(v < 0, a * np.expm1(v), v)),
    "HardSigmoid": (2, lambda v, a, b: np.clip(a * v + b, 0, 1)), "Affine": (2, lambda v, a, b: a * v + b),
    "ScaledTanh": (2, lambda v, a, b: a * np.tanh(b * v)), "Softsign": (0, lambda v: v / (1 + abs(v))),
    "Softplus": (0, lambda v: np.logaddexp(0, v)),
}  # fmt: skip


def _cell_functions(case: Any, ways: int) -> list[Callable[[Array], Array]]:
    """The activations of each direction after the other; alphas and betas go to those that take one, in order."""
    standard = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}[case.op]
    names, alphas, betas, clip = _said(
        case, activations=standard * ways, activation_alpha=(), activation_beta=(), clip=math.inf
    )
    left, made = [iter(alphas), iter(betas)], []
    for count, function in (CELL_FUNCTIONS[name] for name in names):
        given = [next(values) for values in left[:count]]
        made.append(lambda v, f=function, given=given: f(np.clip(v, -clip, clip), *given))
    return made


def _recurrent(
    case: Any, x: Array, w: Array, r: Array, b: Array = None, lengths: Array = None, first: Array = None,
    memory: Array = None, peepholes: Array = None,
) -> Any:  # fmt: skip
    n, way, linear, coupled = _said(case, hidden_size=0, direction="forward", linear_before_reset=0, input_forget=0)
    gates, ways, (time, batch, _) = {"RNN": 1, "GRU": 3, "LSTM": 4}[case.op], w.shape[0], x.shape
    y, last = np.zeros((time, ways, batch, n)), np.zeros((2, ways, batch, n))
    b = np.zeros((ways, 2 * gates * n)) if b is None else b
    looks = np.zeros((ways, 3, n)) if peepholes is None else peepholes.reshape(ways, 3, n)
    functions = np.reshape(_cell_functions(case, ways), (ways, -1))
    for d, k in itertools.product(range(ways), range(batch)):
        h, c = (np.zeros(n) if state is None else state[d, k] for state in (first, memory))
        gate, candidate, final = (*functions[d], None, None)[:3]
        steps = range(time if lengths is None else int(lengths[k]))
        for t in steps[::-1] if way == "reverse" or d == 1 else steps:
            a, s = w[d] @ x[t, k] + b[d, : gates * n], r[d] @ h + b[d, gates * n :]
            if case.op == "RNN":
                h = gate(a + s)
            elif case.op == "GRU":
                z, reset = gate(a[:n] + s[:n]), gate(a[n : 2 * n] + s[n : 2 * n])
                again = reset * s[2 * n :] if linear else r[d][2 * n :] @ (reset * h) + b[d, 5 * n :]
                h = (1 - z) * candidate(a[2 * n :] + again) + z * h
            else:
                i, o, f, g = np.split(a + s, 4)
                opened = gate(i + looks[d, 0] * c)
                c = (1 - opened if coupled else gate(f + looks[d, 2] * c)) * c + opened * candidate(g)
                h = gate(o + looks[d, 1] * c) * final(c)
            y[t, d, k] = h
        last[:, d, k] = h, c
    return (y, last[0], last[1])[: case.outputs]


TEXT.update(RNN=_recurrent, GRU=_recurrent, LSTM=_recurrent)

_FORMULA = "NaN where the formula has 0 times infinity or infinity over infinity; tlrt has the limit"
_LENGTHS = "sequence_lens has no effect, nor have most activations and clip"
#: who departs from the text in which operator, and how; what rounding may explain is not here
EXPLAINED: dict[tuple[str, str], str] = {
    **{(name, op): _FORMULA for name in ("onnx.reference", "onnxruntime") for op in ("Softsign", "HardSwish", "Mish", "Gelu")},
    **{("onnx.reference", op): _LENGTHS for op in ("GRU", "LSTM", "RNN")},
    ("onnx.reference", "GlobalMaxPool"): "the axes that are reduced are right for two spatial ones alone",
    ("onnx.reference", "GridSample"): "with cubic and border the place is moved to the border; others move each of 16 elements",
    ("onnx.reference", "LRN"): "as many channels are normalised as there are samples in the batch",
    ("onnx.reference", "LogSoftmax"): "-inf where the softmax rounds to 0",
    ("onnx.reference", "LpNormalization"): "with p = 1 the sum is not of absolute values",
    ("onnx.reference", "LpPool"): "a window that ends behind the padding, in ceil mode, has too large a sum",
    ("onnx.reference", "MaxPool"): "indices count within one channel, and an index in the padding is -1 or an error",
    ("onnx.reference", "OneHot"): "an index out of range is taken modulo the depth, where nothing is hot",
    ("onnx.reference", "ReduceSumSquare"): "int32 gives int64",
    ("onnx.reference", "Resize"): "with pytorch_half_pixel a length of 1.5, which gives one element, counts as more than 1",
    ("onnx.reference", "Slice"): "a falling slice that starts before the first element is empty; the standard has the first",
    ("onnx.reference", "SoftmaxCrossEntropyLoss"): "infinite where the softmax rounds to 0",
    ("onnx.reference", "Unique"): "unsorted, slices of another axis are taken from the first one",
    ("onnx.reference", "Swish"): "0 where exp(-x) overflows and the result is not 0",
    ("onnxruntime", "AffineGrid"): "with align_corners an axis of one element is at 1; the standard has -1, PyTorch 0",
    ("onnxruntime", "NonZero"): "a scalar gives a row; the standard says none",
    ("onnxruntime", "Pow"): "integers go through float64: 7 to the 20th is 1 too small",
    ("onnxruntime", "ReduceProd"): "a product of int32 beyond its range is the largest integer; others wrap",
    ("onnxruntime", "Resize"): "a coordinate that is a whole number may be rounded to below it, and floor takes another element",
    ("onnxruntime", "Shrink"): "integers go through float32",
    ("onnxruntime", "Sigmoid"): "0 below about -18",
    ("onnxruntime", "Swish"): "0 below about -18",
}  # fmt: skip
