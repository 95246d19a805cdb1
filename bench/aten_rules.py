"""Which of this library's operations an ATen operator's call is, and its row: the rules of :mod:`bench.trace`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.models import ModelRow

#: operators that move and compute nothing, or fill small memory
NOTHING = frozenset((
    "view", "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "squeeze", "detach", "alias", "empty",
    "empty_like", "empty_strided", "new_empty", "new_zeros", "new_empty_strided", "new_ones", "zeros", "zeros_like", "ones",
    "ones_like", "full", "full_like", "scalar_tensor", "arange", "split", "split_with_sizes", "as_strided", "_unsafe_view",
    "unbind", "lift_fresh", "view_as_real", "view_as_complex", "_reshape_alias", "narrow", "_to_copy", "tril", "resolve_conj",
    "_conj",
))  # fmt: skip

Size = dict[str, Any]


class Recorder(TorchDispatchMode):
    """The rows of the calls that run while it is entered, in their order, and the names of what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[ModelRow] = []
        self.left: Counter[str] = Counter()

    def add(
        self, op: str, size: Size, which: str = "forward", given: Sequence[str] = (), want: Sequence[bool] | None = None
    ) -> bool:
        """Notes a call, unless it has nothing to compute."""
        if all(v != 0 for k, v in size.items() if k in ("n", "m", "p", "rows", "cols", "batch")):
            self.rows.append(ModelRow.of(op, size, which, sorted(given), want))
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        rule = RULES.get(name)
        if not (rule and rule(self, args, kwargs or {}, out)) and name.rstrip("_") not in NOTHING:
            self.left[name] += 1
        return out


# ---- rules: each notes the rows of one operator's call, or is false where no operation computes it -----------------------------

Rule = Callable[[Recorder, Sequence[Any], Mapping[str, Any], Any], bool]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _is_real(*tensors: Any) -> bool:
    return all(isinstance(t, torch.Tensor) and t.dtype == torch.float32 for t in tensors)


def extent(t: Any) -> int:
    """Elements from the first to the last that a tensor reaches."""
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0


def _readable(t: Any, inner: int) -> Any:
    """A matrix of a batch as bmm_strided reads it, or as a copy would lie."""
    dense = t.stride(1) == 1 or t.stride(2) == 1 or min(t.shape[1:]) <= 1
    return t if dense and (t.shape[inner] <= 1 or t.stride(inner) != 0) else torch.empty(t.shape, device="meta")


def product(rec: Recorder, a: Any, b: Any, biased: bool) -> bool:
    """A product of batches of matrices."""
    a, b = _readable(a, 2), _readable(b, 1)
    size = {
        "batch": a.shape[0],
        "m": a.shape[1],
        "n": a.shape[2],
        "p": b.shape[2],
        "a_size": extent(a),
        "b_size": extent(b),
    }
    for name, t in (("a", a), ("b", b)):
        size |= {f"{name}_{axis}": s if n > 1 or axis != "batch" else 0
                 for axis, s, n in zip(("batch", "row", "col"), t.stride(), t.shape, strict=True)}  # fmt: skip
    return rec.add("bmm_strided", size, given=["bias"] if biased else [])


@rule("mm")
def _mm(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    return _is_real(out) and product(rec, args[0][None], args[1][None], False)


@rule("addmm")
def _addmm(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    return args[0].dim() == 1 and not kwargs and _is_real(out) and product(rec, args[1][None], args[2][None], True)


@rule("bmm")
def _bmm(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    return _is_real(out) and product(rec, *args, False)


def _groups(x: Any, w: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, more: Any, groups: int) -> Any:
    """The operation and its size of a convolution."""
    rank = x.dim() - 2
    lists = {"stride": stride, "dilation": dilation, "padding_low": padding, "padding_high": padding}
    lists |= {"output_padding": more} if transposed else {}
    size = {
        "batch": x.shape[0], "groups": groups, "in_channels": x.shape[1] // groups,
        "out_channels": w.shape[1] if transposed else w.shape[0] // groups, "spatial": list(x.shape[2:]),
        "kernel": list(w.shape[2:]), **{k: list(v) if len(v) == rank else list(v) * rank for k, v in lists.items()},
    }  # fmt: skip
    return "conv_transpose_grouped" if transposed else "conv_grouped", size


@rule("convolution")
def _convolution(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    x, w, b, *rest = args
    op, size = _groups(x, w, *rest)
    return rec.add(op, size, given=[] if b is None else ["b"])


@rule("convolution_backward")
def _convolution_backward(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    _, x, w, _, *rest, want = args
    op, size = _groups(x, w, *rest)
    return rec.add(op, size, "vjp", want=want)


def _vectors(gamma: Any, beta: Any = None) -> list[str]:
    return [name for name, t in (("gamma", gamma), ("beta", beta)) if t is not None]


@rule("native_layer_norm")
def _layer_norm(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    x, shape, gamma, beta, eps = args
    cols = math.prod(shape)
    return rec.add(
        "layer_norm_stats", {"rows": x.numel() // cols, "cols": cols, "eps": eps}, given=_vectors(gamma, beta)
    )


@rule("native_layer_norm_backward")
def _layer_norm_backward(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    _, x, shape, _, _, gamma, _, want = args
    cols = math.prod(shape)
    size = {"rows": x.numel() // cols, "cols": cols, "eps": 1e-5}
    return rec.add("layer_norm_stats", size, "vjp", _vectors(gamma), want)


def _channels(x: Any, eps: float) -> Size:
    return {"batch": x.shape[0], "channels": x.shape[1], "positions": math.prod(x.shape[2:]), "eps": eps}


@rule("native_batch_norm")
def _batch_norm(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    x, gamma, beta, _, _, training, _, eps = args
    return bool(training) and rec.add("batch_norm_stats", _channels(x, eps), given=_vectors(gamma, beta))


@rule("native_batch_norm_backward")
def _batch_norm_backward(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    _, x, gamma, _, _, _, _, training, eps, want = args
    return bool(training) and rec.add("batch_norm_stats", _channels(x, eps), "vjp", _vectors(gamma), want)


def _group_sizes(batch: int, channels: int, positions: int, groups: int) -> Size:
    return {"batch": batch, "groups": groups, "channels": channels // groups, "positions": positions, "eps": 1e-5}


@rule("native_group_norm")
def _group_norm(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    _, gamma, beta, *sizes, _ = args
    return rec.add("group_norm_stats", _group_sizes(*sizes), given=_vectors(gamma, beta))


@rule("native_group_norm_backward")
def _group_norm_backward(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    _, _, _, _, gamma, *sizes, want = args
    return rec.add("group_norm_stats", _group_sizes(*sizes), "vjp", _vectors(gamma), want)


def _rows(x: Any, axis: int) -> Size | None:
    cols = x.shape[-1] if x.dim() else 1
    return {"rows": x.numel() // cols, "cols": cols} if axis in (-1, x.dim() - 1) and _is_real(x) else None


def _row_rule(op: str, which: str, axis_at: int) -> Rule:
    def note(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
        size = _rows(args[0], args[axis_at])
        return size is not None and rec.add(op, size, which)

    return note


RULES |= {
    "_softmax": _row_rule("softmax", "forward", 1), "_safe_softmax": _row_rule("softmax", "forward", 1),
    "_softmax_backward_data": _row_rule("softmax", "vjp", 2),
    "_log_softmax": _row_rule("log_softmax", "forward", 1),
    "_log_softmax_backward_data": _row_rule("log_softmax", "vjp", 2),
}  # fmt: skip

#: elementwise operators of one tensor, and gradients by a cotangent and a tensor
ONE = {"relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "silu": "silu", "exp": "exp", "log": "log", "sqrt": "sqrt",
       "abs": "abs", "sin": "sin", "cos": "cos", "erf": "erf", "hardswish": "hardswish", "reciprocal": "inv",
       "softplus": "softplus"}  # fmt: skip
ONE_BACKWARD = {"threshold_backward": "relu", "sigmoid_backward": "sigmoid", "tanh_backward": "tanh", "silu_backward": "silu",
                "softplus_backward": "softplus", "hardswish_backward": "hardswish"}  # fmt: skip
TWO = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "maximum": "max", "minimum": "min"}


def _elementwise_rule(op: str, which: str = "forward") -> Rule:
    def note(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
        return _is_real(out) and rec.add(op, {"n": out.numel()}, which)

    return note


for _name, _op in ONE.items():
    RULES[_name] = RULES[f"{_name}_"] = _elementwise_rule(_op)
RULES |= {name: _elementwise_rule(op, "vjp") for name, op in ONE_BACKWARD.items()}


def _gelu_rule(which: str) -> Rule:
    def note(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
        return rec.add("gelu" if kwargs.get("approximate") == "tanh" else "gelu_erf", {"n": out.numel()}, which)

    return note


RULES |= {"gelu": _gelu_rule("forward"), "gelu_backward": _gelu_rule("vjp")}


def _number(value: Any) -> float | None:
    """What a number is, or a tensor of one element, whose value does not matter."""
    if isinstance(value, torch.Tensor):
        return 0.5 if value.numel() == 1 else None
    return float(value)


def _two_rule(op: str) -> Rule:
    def note(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
        if not _is_real(out):
            return False
        a, b = args[0], args[1]
        for x, y in ((a, b), (b, a)):
            c = _number(y)
            if c is not None and isinstance(x, torch.Tensor) and x.numel() == out.numel():
                return op in ("mul", "div") and rec.add("scale", {"n": out.numel(), "c": c})
        if a.shape != b.shape:
            return False
        alpha = kwargs.get("alpha", 1)
        if alpha != 1:
            return op == "add" and rec.add("axpy", {"n": out.numel(), "c": float(alpha)})
        return rec.add(op, {"n": out.numel()})

    return note


for _name, _op in TWO.items():
    RULES[_name] = RULES[f"{_name}_"] = _two_rule(_op)


@rule("neg", "neg_")
def _neg(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    return _is_real(out) and rec.add("scale", {"n": out.numel(), "c": -1.0})


@rule("pow")
def _pow(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    if isinstance(args[1], torch.Tensor) or not _is_real(out):
        return False
    return rec.add("pow_scalar", {"n": out.numel(), "p": float(args[1])})


@rule("mse_loss")
def _mse(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    return out.dim() == 0 and rec.add("mse_loss", {"n": args[0].numel()})


@rule("mse_loss_backward")
def _mse_backward(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    return args[0].dim() == 0 and rec.add("mse_loss", {"n": out.numel()}, "vjp", want=(True, False))


def _merged(x: Any, axes: Sequence[int]) -> tuple[list[int], list[int]]:
    """A shape whose neighbouring axes of one kind are one, and which of its axes are reduced."""
    reduced = {a % x.dim() for a in axes} if axes else set(range(x.dim()))
    dims: list[int] = []
    marks: list[bool] = []
    for i, n in enumerate(x.shape):
        if n == 1 and x.dim() > 1:
            continue
        if marks and marks[-1] == (i in reduced):
            dims[-1] *= n
        else:
            dims.append(n)
            marks.append(i in reduced)
    return dims, [k for k, mark in enumerate(marks) if mark]


@rule("sum", "mean")
def _sum(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    if not _is_real(args[0]):
        return False
    dims, axes = _merged(args[0], args[1] if len(args) > 1 and args[1] else ())
    for axis in reversed(axes):
        rec.add("reduce_sum_axis", {"dims": list(dims), "axis": axis})
        dims = [1 if k == axis else n for k, n in enumerate(dims)]
    return True


@rule("amax")
def _amax(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    if not _is_real(args[0]):
        return False
    dims, axes = _merged(args[0], args[1] if len(args) > 1 else ())
    return rec.add("amax", {"dims": dims, "axes": sum(1 << k for k in axes)}) if axes else False


@rule("cumsum")
def _cumsum(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    axis = args[1] % max(out.dim(), 1)
    return _is_real(out) and rec.add("cumsum", {"dims": list(out.shape), "axis": axis, "reverse": 0})


def _take(x: Any, axis: int, count: int) -> Size:
    """Rows along an axis, of one list of indices for all."""
    shape = x.shape
    return {"outer": math.prod(shape[:axis]), "n": shape[axis], "inner": math.prod(shape[axis + 1 :]), "io": 1, "k": count,
            "ii": 1}  # fmt: skip


@rule("embedding")
def _embedding(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    return rec.add("take_axis", _take(args[0], 0, args[1].numel()))


@rule("embedding_dense_backward")
def _embedding_backward(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    return rec.add("take_axis", _take(out, 0, args[1].numel()), "vjp")


@rule("index_select")
def _index_select(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    return _is_real(out) and rec.add("take_axis", _take(args[0], args[1], args[2].numel()))


@rule("index_add", "index_add_")
def _index_add(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    return _is_real(out) and rec.add("scatter_add_axis", _take(out, args[1], args[2].numel()))


def _only(indices: Sequence[Any]) -> tuple[int, Any] | None:
    """The axis and the indices where there is one list of them."""
    found = [(i, t) for i, t in enumerate(indices) if t is not None and t.dtype in (torch.int64, torch.int32)]
    return found[0] if len(found) == 1 and sum(t is not None for t in indices) == 1 else None


@rule("index")
def _index(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    found = _only(args[1])
    return found is not None and _is_real(out) and rec.add("take_axis", _take(args[0], found[0], found[1].numel()))


@rule("index_put", "index_put_", "_index_put_impl_")
def _index_put(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    found, summed = _only(args[1]), len(args) > 3 and args[3]
    if found is None or not summed or not _is_real(out):
        return False
    return rec.add("take_axis", _take(out, found[0], found[1].numel()), "vjp")


def _pool(args: Sequence[Any], x: Any) -> Size:
    """Of a pool without dilation and rounding up."""
    kernel, stride, padding = [*args, [], [0]][:3] if len(args) == 1 else [*args, [0]][:3]
    lists = [list(v) * (2 // len(v)) for v in (kernel, stride or kernel, padding)]
    return {"channels": x.shape[0] * x.shape[1], "spatial": list(x.shape[2:]),
            **dict(zip(("kernel", "stride", "padding"), lists, strict=True))}  # fmt: skip


@rule("max_pool2d_with_indices")
def _max_pool(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    return rec.add("max_pool", _pool(args[1:4], args[0]))


@rule("max_pool2d_with_indices_backward")
def _max_pool_backward(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    return rec.add("max_pool", _pool(args[2:5], args[1]), "vjp")


@rule("avg_pool2d")
def _avg_pool(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    return rec.add("avg_pool", _pool(args[1:4], args[0]))


@rule("avg_pool2d_backward")
def _avg_pool_backward(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    return rec.add("avg_pool", _pool(args[2:5], args[1]), "vjp")


@rule("_fft_r2c")
def _rfft(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    x, axes = args[0], args[1]
    n = x.shape[axes[-1]]
    rec.left["_fft_c2c"] += len(axes) - 1
    return rec.add("rfft1d_packed", {"batch": x.numel() // n, "n": n})


@rule("_fft_c2r")
def _irfft(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    axes, n = args[1], args[3]
    rec.left["_fft_c2c"] += len(axes) - 1
    return rec.add("irfft1d_packed", {"batch": out.numel() // n, "n": n})


@rule("clone")
def _clone(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    """A copy that swaps two groups of neighbouring axes."""
    x = args[0]
    if not (_is_real(x) and out.is_contiguous() and extent(x) == x.numel()):
        return False
    axes = [i for i in range(x.dim()) if x.shape[i] > 1]
    order = sorted(axes, key=lambda i: -x.stride(i))  # as they lie in memory
    runs: list[list[int]] = []
    for place in (order.index(i) for i in axes):
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    lying = sorted(range(len(runs)), key=lambda k: runs[k])
    dims = [math.prod(x.shape[order[p]] for p in runs[k]) for k in lying]
    for depth in range(len(runs) - 1):
        swapped = list(range(len(runs)))
        swapped[depth], swapped[depth + 1] = swapped[depth + 1], swapped[depth]
        if lying == swapped:
            return rec.add("swap_adjacent_at_depth", {"dims": dims, "depth": depth})
    return False


@rule("cat")
def _cat(rec: Recorder, args: Sequence[Any], kwargs: Any, out: Any) -> bool:
    parts, axis = [t for t in args[0] if t.numel()], (args[1] if len(args) > 1 else 0) % max(out.dim(), 1)
    if len(parts) != 2 or not _is_real(*parts):
        return False
    rows, inner = math.prod(out.shape[:axis]), math.prod(out.shape[axis + 1 :])
    return rec.add("concat_rows", {"rows": rows, "n": parts[0].shape[axis] * inner, "m": parts[1].shape[axis] * inner})
