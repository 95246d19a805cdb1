"""How every public method of Operations is called, and what it computes, in NumPy.

A :class:`Call` has the shapes of its operands, the call on a tape with their ids, and the same computation on float64 arrays,
written from the method's own description: with NumPy where it is a rearrangement or a composition, with the row's reference
where the method is a row of the registry under another calling convention.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tlrt import Tape
from tlspec import registry
from tlspec.drawn import draw_case, generator

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    shapes: tuple[Shape, ...]
    call: Callable[..., int]
    computes: Callable[..., Any]
    #: operands above 0
    positive: bool = False

    def operands(self, name: str) -> list[np.ndarray]:
        """float32 operands of distinct magnitudes between 0.5 and 1.5: away from kinks at 0 and from ties."""
        rng = generator("tape", name, str(self.shapes))
        out = []
        for shape in self.shapes:
            n = int(np.prod(shape))
            sign = 1.0 if self.positive else np.where(rng.random(n) < 0.5, -1.0, 1.0)
            out.append((sign * (0.5 + (rng.permutation(n) + 0.25) / max(n, 1))).astype(np.float32).reshape(shape))
        return out


#: a mask over leading axes
EVEN = np.array([[True, False], [False, True], [True, False]])


#: indices along axis 1
ALONG = np.array([[[0, 2], [1, 1], [0, -1], [2, 0]], [[2, 2], [2, 2], [1, 0], [0, 1]]])


def scattered_along(x: Any, values: Any) -> Any:
    out, (o, _, c) = x.copy(), np.indices(ALONG.shape)
    np.add.at(out, (o, ALONG, c), values)
    return out


def row(name: str, **parameters: Any) -> Callable[..., Any]:
    """The reference of a row with these parameters."""
    reference = registry.get(name).reference
    return lambda *arrays: reference(*arrays, **parameters)


def norm(x: Any, gamma: Any, beta: Any, eps: float) -> Any:
    d = x - x.mean(axis=-1, keepdims=True)
    return gamma * d / np.sqrt((d * d).mean(axis=-1, keepdims=True) + np.float64(np.float32(eps))) + beta


def groups_norm(x: Any, groups: int, eps: float = 1e-5) -> Any:
    return norm(x.reshape(len(x), groups, -1), 1.0, 0.0, eps).reshape(x.shape)


def channels_map(x: Any, center: Any, slope: Any, shift: Any) -> Any:
    c, a, b = (v.reshape(-1, *(1,) * (x.ndim - 2)) for v in (center, slope, shift))
    return (x - c) * a + b


def spectral2d(x: Any, w_re: Any, w_im: Any) -> Any:
    m1, m2 = len(w_re) // 2, w_re.shape[1]
    spectrum = np.fft.rfft2(x)
    kept = np.zeros((len(x), w_re.shape[3], *spectrum.shape[2:]), complex)
    for k in range(-m1, m1):
        kept[:, :, k, :m2] = np.einsum("bcj,jco->boj", spectrum[:, :, k, :m2], w_re[k] + 1j * w_im[k])
    return np.fft.irfft2(kept, s=x.shape[2:])


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attend(q: Any, k: Any, v: Any, scale: float, allowed: Any = None, fill: float = -np.inf, bias: Any = 0.0) -> Any:
    s = q @ k.swapaxes(-1, -2) * np.float64(np.float32(scale)) + np.where(np.isinf(bias), 0.0, bias)
    if allowed is None:
        return softmax(s) @ v
    none = ~allowed.any(axis=-1, keepdims=True)
    w = softmax(np.where(allowed, s, np.where(none, 0.0, fill)))
    return (w if np.isfinite(fill) else np.where(none, 0.0, w)) @ v


def heads_of(x: Any, heads: int) -> Any:
    return x.reshape(*x.shape[:-1], heads, -1).swapaxes(-2, -3)


def mha(heads: int, allowed: Any = None, fill: float = -np.inf) -> Callable[..., Any]:
    def f(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
        q, k, v = (heads_of(x @ w, heads) for w in (wq, wk, wv))
        y = attend(q, k, v, q.shape[-1] ** -0.5, allowed, fill).swapaxes(-2, -3)
        return y.reshape(*x.shape[:-1], -1) @ wo

    return f


def of(name: str, computes: Any, *shapes: tuple[Shape, ...], positive: bool = False, **named: Any) -> list[Call]:
    """A method on operands of each of these shapes."""
    return [Call(s, lambda t, *ids: getattr(t, name)(*ids, **named), computes, positive) for s in shapes]


def one(name: str, computes: Any = None, positive: bool = False, shape: Shape = (3, 5), **named: Any) -> list[Call]:
    """A method of one operand."""
    return of(name, computes or row(name), (shape,), positive=positive, **named)


def two(name: str, computes: Any) -> list[Call]:
    """A method of two operands, of equal shapes and of shapes that are broadcast."""
    shapes = [((3, 5), (3, 5)), ((2, 1, 4), (3, 1)), ((), (2, 3)), ((5,), (3, 5)), ((2, 0), (1, 1))]
    return of(name, computes, *shapes)


def reductions() -> dict[str, list[Call]]:
    """Reductions over one axis, axes apart and all; max and min of one operand and of two."""
    powers = lambda p: lambda x, over, keep: (np.abs(x) ** p).sum(axis=over, keepdims=keep) ** (1 / p)
    plain = lambda f, **more: lambda x, over, keep: f(x, axis=over, keepdims=keep, **more)
    lse = lambda x, over, keep: np.log(np.exp(x).sum(axis=over, keepdims=keep))
    kinds: dict[str, list[tuple[Any, dict[str, Any]]]] = {
        "sum": [(plain(np.sum), {})], "mean": [(plain(np.mean), {})], "prod": [(plain(np.prod), {})], "logsumexp": [(lse, {})],
        **{n: [(plain(getattr(np, n)), {})] for n in ("amax", "amin", "max", "min")},
        "var": [(plain(np.var, ddof=c), {"correction": c}) for c in (0, 1)], "std": [(plain(np.std), {})],
        "norm": [(powers(p), {"p": p}) for p in (1, 2.0, 3.5)],
        "vector_norm": [(lambda x, over, keep: abs(x).max(axis=over, keepdims=keep), {"p": np.inf})],
    }  # fmt: skip
    calls = {}
    for name, ways in kinds.items():
        calls[name] = [
            one(name, lambda x, f=f, a=a, k=k: f(x, a, k), name == "prod", shape, axis=a, keepdims=k, **extra)[0]
            for f, extra in ways for shape, a, k in (
                ((3, 2, 4), None, False), ((3, 2, 4), 1, True), ((3, 2, 4), (0, -1), False), ((2, 3, 4), (0, -1), False))
        ]  # fmt: skip
    return {n: c + (two(n, getattr(np, f"{n}imum")) if n in ("max", "min") else []) for n, c in calls.items()}


def pools(name: str, *beta: float) -> list[Call]:
    """The three forms of a pool."""
    ref = {"beta": beta[0]} if beta else {}
    flat = {"kernel_h": 2, "kernel_w": 3, "stride_h": 2, "stride_w": 1}
    if name.endswith("2d_pad"):
        r = row(name[:-4], **flat, padding_h=1, padding_w=0, **ref)
        batch = row(name[:-4], **flat, padding_h=1, padding_w=1, **ref)
        each = lambda x: np.stack([batch(i) for i in x])
        return [
            Call(((2, 5, 7),), lambda t, x: getattr(t, name)(x, (2, 3), (2, 1), (1, 0), *beta), r),
            Call(((3, 2, 5, 7),), lambda t, x: getattr(t, name)(x, (2, 3), (2, 1), 1, *beta), each),
        ]
    if name.endswith("2d"):
        r = row(name, **flat, padding_h=0, padding_w=0, **ref)
        return [Call(((2, 5, 7),), lambda t, x: getattr(t, name)(x, (2, 3), (2, 1), *beta), r)]
    lists = row(name, kernel=[3], stride=[2], padding=[1], **ref)
    volume = row(name, kernel=[2, 2, 2], stride=[1, 1, 1], padding=[0, 0, 0], **ref)
    return [
        Call(((2, 9),), lambda t, x: getattr(t, name)(x, (3,), (2,), (1,), *beta), lists),
        Call(((2, 3, 4, 3),), lambda t, x: getattr(t, name)(x, 2, 1, 0, *beta, rank=3), volume),
    ]


def convolutions(name: str) -> list[Call]:
    """One image and a batch, numbers and lists; conv takes weights (out, in, …), the transpose (in, out, …)."""
    base = name.removesuffix("2d")
    transposed = base == "conv_transpose"
    w2 = (3, 2, 3, 2) if transposed else (2, 3, 3, 2)
    b2 = (2,)
    f = lambda stride, padding: lambda w, b, x: row(base, stride=stride, padding=padding)(x, w, b)
    single = lambda stride, padding: lambda w, b, x: f(stride, padding)(w, b, x[np.newaxis])[0]
    call = lambda stride, padding: lambda t, w, b, x: getattr(t, name)(w, b, x, stride, padding)
    calls = [
        Call((w2, b2, (3, 5, 6)), call((2, 1), (1, 0)), single([2, 1], [1, 0])),
        Call((w2, b2, (2, 3, 5, 6)), call(2, 1), f([2, 2], [1, 1])),
    ]
    # three groups of two channels, another padding after than before, and no bias
    lists = {"stride": [2, 1], "dilation": [1, 2], "padding_low": [0, 1], "padding_high": [1, 0]}
    extra = {"output_padding": [1, 0]} if transposed else {}
    given = {"stride": (2, 1), "dilation": (1, 2), "groups": 3, **extra}
    shared = row(f"{base}_grouped", **lists, **extra)
    whole = lambda w, x: shared(x.reshape(2, 3, 2, 5, 6), w.reshape(3, 2, 2, 2, 2), None)
    flat = lambda w, x: (lambda y: y.reshape(2, 6, *y.shape[3:]))(whole(w, x))
    grouped = lambda t, w, x: getattr(t, name)(w, None, x, padding=((0, 1), (1, 0)), **given)
    calls.append(Call(((6, 2, 2, 2), (2, 6, 5, 6)), grouped, flat))
    if name == base:
        w1 = (3, 2, 3) if transposed else (2, 3, 3)
        calls += [Call((w1, b2, (3, 7)), call(1, 1), single([1], [1]))]
    return calls


def einsums(subscripts: str, shapes: tuple[Shape, ...]) -> list[Call]:
    call = lambda t, *ids: t.einsum(subscripts, *ids)
    return [Call(shapes, call, lambda *arrays: np.einsum(subscripts, *arrays))]


def grouped_attentions() -> list[Call]:
    """Two heads of queries to a head of keys, with and without a mask, and one without heads."""
    mask = generator("grouped").random((2, 1, 3, 5)) < 0.6
    mask[..., 0] = True
    shapes, flat = ((2, 4, 3, 6), (2, 2, 5, 6), (2, 2, 5, 7)), ((2, 3, 6), (2, 5, 6), (2, 5, 7))
    late = np.arange(5) <= np.arange(3)[:, None] + 2

    def f(allowed: Any = None, bias: Any = 0.0) -> Callable[..., Any]:
        return lambda q, k, v, b=bias: attend(
            q, *(np.repeat(x, q.shape[1] // x.shape[1], 1) if q.ndim == 4 else x for x in (k, v)), 6**-0.5, allowed,
            bias=b,
        )  # fmt: skip

    made = lambda *how, **more: lambda t, *ids: t.scaled_dot_product_attention(*ids, *how, **more)
    return [
        Call(shapes, made(), f()),
        Call(shapes, made(mask), f(mask)),
        Call(flat, made(causal=True, offset="end"), f(late)),
        Call(((3, 6), (5, 6), (5, 4)), made(), f()),
        Call(((2, 3, 6), (5, 6), (1, 5, 4)), made(), f()),
        Call(((3, 1, 2, 3, 6), (2, 1, 5, 6), (5, 4)), made(), f()),
        Call(((2, 4, 3, 6),) * 3, made(causal=True), f(np.tri(3, dtype=bool))),
        Call(
            shapes,
            lambda t, *ids: t.scaled_dot_product_attention(*ids, t.leaf(mask, "mask", False), mask_mode="hard"),
            f(mask),
        ),
        Call((*shapes, (4, 1, 5)), lambda t, *ids: made()(t, *(-1 if x is None else x for x in ids)), f()),
    ]


def attentions(name: str, n: int = 4, d: int = 3) -> list[Call]:
    """Every mask mode, on booleans, numbers and tensors; the mask blocks one row entirely."""
    mask = generator("mask").random((2, n, n)) < 0.6
    mask[0, 1] = False
    mask[:, 0] = True
    far = np.where(mask, 0.0, -np.inf)
    bias = far + generator("bias").standard_normal((n, n)).astype(np.float32)
    qkv = ((2, n, d),) * 3
    tri = np.tri(n, dtype=bool)
    f = lambda scale, *how, **more: lambda q, k, v: attend(q, k, v, scale, *how, **more)
    c = lambda t: t.leaf(mask, "mask", False)
    added = lambda q, k, v, b: attend(q, k, v, d**-0.5, bias=b)
    return [
        Call(qkv, lambda t, q, k, v: getattr(t, name)(q, k, v), f(d**-0.5)),
        Call(qkv, lambda t, q, k, v: getattr(t, name)(q, k, v, c(t), 1, 0.5), f(0.5, mask, -1000.0)),
        Call(qkv, lambda t, q, k, v: getattr(t, name)(q, k, v, c(t), "hard"), f(d**-0.5, mask)),
        Call(qkv, lambda t, q, k, v: getattr(t, name)(q, k, v, mask), f(d**-0.5, mask)),
        Call(qkv, lambda t, q, k, v: getattr(t, name)(q, k, v, bias), f(d**-0.5, mask, bias=bias)),
        Call(qkv, lambda t, q, k, v: getattr(t, name)(q, k, v, t.leaf(far, "mask", False)), f(d**-0.5, mask)),
        Call((*qkv, (n, n)), lambda t, *ids: getattr(t, name)(*(-1 if x is None else x for x in ids)), added),
        Call((*qkv, (2, 1, n)), lambda t, *ids: getattr(t, name)(*ids, "additive"), added),
        Call(qkv, lambda t, q, k, v: getattr(t, name)(q, k, v, mask_mode=3, scale=-2.0), f(-2.0, tri)),
    ]


def multi_head(n: int = 4) -> list[Call]:
    mask = generator("heads").random((n, n)) < 0.6
    mask[1] = False
    shapes = ((n, 5), (5, 6), (5, 6), (5, 6), (6, 3))
    batch = ((3, n, 5), *shapes[1:])
    calls = []
    for flash in (True, False):
        call = lambda t, *ids, flash=flash, **named: t.multi_head_attention(*ids, 2, use_flash=flash, **named)
        calls += [
            Call(shapes, call, mha(2)),
            Call(batch, lambda t, *ids, call=call: call(t, *ids, mask=mask), mha(2, mask, -1000.0)),
            Call(batch, lambda t, *ids, call=call: call(t, *ids, mask=np.where(mask, 0.0, -np.inf)), mha(2, mask)),
            Call(batch, lambda t, *ids, call=call: call(t, *ids, causal=True), mha(2, np.tri(n, dtype=bool))),
        ]
    return calls


def scattered(x: Any, values: Any, places: list[int]) -> Any:
    out = np.array(x)
    for v, i in zip(values, places, strict=True):
        if i < len(x):
            out[i] += v
    return out


def picked(x: Any, places: Any) -> Any:
    return np.stack([x[i] if i < len(x) else np.zeros(x.shape[1:]) for i in places])


def nll(logits: Any, labels: Any) -> Any:
    p = np.log(softmax(logits)).reshape(-1, logits.shape[-1])
    return -p[np.arange(len(p)), np.ravel(labels)].mean()


#: labels, some of which are ignored, and weights of their classes
SOME = np.array([[0, -100, 3], [1, 2, -100]])
WEIGHTS = np.array([0.5, 2.0, 0.25, 1.5])


def entropy(
    x: Any, labels: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0,
    axis: int = -1,
) -> Any:  # fmt: skip
    """Written from the documentation of torch.nn.CrossEntropyLoss."""
    p = -np.log(softmax(np.moveaxis(x, axis, -1))).reshape(-1, x.shape[axis])
    w = np.ones(x.shape[axis]) if weight is None else weight
    y = np.ravel(labels)
    counts = y != ignore_index
    own = np.where(counts, w[y % len(w)], 0.0)
    plain, smooth = own * p[np.arange(len(y)), y % len(w)], np.where(counts, (w * p).mean(axis=1), 0.0)
    loss = (1 - label_smoothing) * plain + label_smoothing * smooth
    return {"mean": loss.sum() / own.sum(), "sum": loss.sum(), "none": loss.reshape(labels.shape)}[reduction]


def smoothed(shape: Shape, **options: Any) -> Call:
    """Cross-entropy with options; with the classes on axis 1 where that has as many as there are weights."""
    labels = SOME if "ignore_index" not in options else np.abs(SOME) % 4
    labels, options = labels.reshape(2, 3), options if shape[-1] == len(WEIGHTS) else {**options, "axis": 1}
    return Call((shape,), lambda t, x: t.cross_entropy(x, labels, **options), lambda x: entropy(x, labels, **options))


def huber(a: Any, b: Any, delta: float) -> Any:
    d = np.abs(a - b)
    return np.where(d <= delta, d * d / 2, delta * (d - delta / 2))


def bce(x: Any, t: Any, p: Any = 1.0) -> Any:
    return -(p * t * -np.log1p(np.exp(-x)) + (1 - t) * -np.log1p(np.exp(x)))


f32 = lambda c: float(np.float32(c))
#: masks of 0 and 1, by shape
MASK = {s: 1.0 * (generator("mask", str(s)).random(s) < 0.5) for s in ((3, 5), (5,), (2, 3, 1))}


def chosen(mask: Shape, a: Shape, b: Shape) -> list[Call]:
    """where, with a mask that no gradient goes to."""
    call = lambda t, a, b: t.where(t.leaf(MASK[mask], "mask", False), a, b)
    return [Call((a, b), call, lambda a, b: np.where(MASK[mask], a, b))]


LABELS = [[0, 3, 1], [2, 2, 0]]
#: indices, of which one is out of range
PLACES, ROWS = [0, 9, 0, 4], [1, 1, 8]

#: every public method of Operations
CALLS: dict[str, list[Call]] = {
    "add": two("add", lambda a, b: a + b),
    "sub": two("sub", lambda a, b: a - b),
    "mul": two("mul", lambda a, b: a * b),
    "div": two("div", lambda a, b: a / b),
    "axpy": of("axpy", lambda a, b: a + f32(0.3) * b, ((3, 5), (3, 5)), c=0.3),
    "scale": one("scale", lambda x: -f32(1.7) * x, c=-1.7),
    "neg": one("neg", np.negative),
    "abs": one("abs", np.abs),
    "sqrt": one("sqrt", np.sqrt, True),
    "square": one("square", np.square),
    "clamp": one("clamp", lambda x: np.clip(x, -0.75, 0.875), lo=-0.75, hi=0.875),
    "relu": one("relu", lambda x: np.maximum(x, 0)),
    "exp": one("exp", np.exp),
    "log": one("log", np.log, True),
    "inv": one("inv", lambda x: 1 / x),
    "safe_log": [
        *one("safe_log", lambda x: np.log(np.logaddexp(0, x) + f32(1e-6))),
        *one("safe_log", lambda x: np.log(np.logaddexp(0, x) + f32(0.01)), eps=0.01),
    ],
    "sigmoid": one("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    "tanh": [*one("tanh", np.tanh), *one("tanh", np.tanh, shape=()), *one("tanh", np.tanh, shape=(0, 3))],
    "softplus": one("softplus", lambda x: np.logaddexp(0, x)),
    "silu": one("silu", lambda x: x / (1 + np.exp(-x))),
    "gelu": [
        *one("gelu", lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
        *one("gelu", row("gelu_erf"), approximate="none"),
    ],
    "eq": two("eq", lambda a, b: 1.0 * (a == b)),
    "ne": two("ne", lambda a, b: 1.0 * (a != b)),
    "lt": two("lt", lambda a, b: 1.0 * (a < b)),
    "le": two("le", lambda a, b: 1.0 * (a <= b)),
    "gt": two("gt", lambda a, b: 1.0 * (a > b)),
    "ge": two("ge", lambda a, b: 1.0 * (a >= b)),
    "where": chosen((3, 5), (3, 5), (3, 5)) + chosen((5,), (3, 1), ()) + chosen((2, 3, 1), (3, 1), (5,)),
    "masked_fill": [
        Call((x,), lambda t, x, m=m: t.masked_fill(x, t.leaf(MASK[m], "mask", False), 0.7),
             lambda x, m=m: np.where(MASK[m], f32(0.7), x)) for m, x in (((3, 5), (3, 5)), ((5,), (3, 5)), ((2, 3, 1), (2, 3, 4)))
    ],
    "log1p": one("log1p", np.log1p, True),
    "pow_scalar": one("pow_scalar", lambda x: x**1.5, positive=True, p=1.5),
    "pow": of("pow", np.power, ((3, 5), (3, 5)), ((2, 1, 4), (3, 1)), positive=True),
    "reduce_sum": [
        *one("reduce_sum", np.sum),
        *one("reduce_sum", np.sum, shape=()),
        *one("reduce_sum", lambda x: x.sum(1), shape=(2, 3, 4), axis=1),
        *one("reduce_sum", lambda x: x.sum(0), shape=(2, 3, 4), axis=-3),
    ],
    "reduce_mean": [*one("reduce_mean", np.mean), *one("reduce_mean", lambda x: x.mean(2), shape=(2, 3, 4), axis=2)],
    **reductions(),
    "cumsum": [*one("cumsum", lambda x: x.cumsum(1), axis=1), *one("cumsum", lambda x: x.cumsum(0), shape=(70, 2), axis=-2)],
    "cumprod": [*one("cumprod", lambda x: x.cumprod(1), axis=1), *one("cumprod", lambda x: x.cumprod(0), shape=(5, 2), axis=0)],
    "reduce_sum_axis0": one("reduce_sum_axis0", lambda x: x.sum(0)),
    "reduce_sum_axis1": one("reduce_sum_axis1", lambda x: x.sum(1)),
    "reduce_max_axis0": one("reduce_max_axis0", lambda x: x.max(0)),
    "reduce_max_axis1": one("reduce_max_axis1", lambda x: x.max(1)),
    "reshape": [
        Call(((3, 4),), lambda t, x: t.reshape(x, (2, -1, 3)), lambda x: x.reshape(2, 2, 3)),
        Call(((3, 4),), lambda t, x: t.reshape(x, 12), np.ravel),
        Call(((1,),), lambda t, x: t.reshape(x, ()), np.squeeze),
    ],
    "flatten": [*one("flatten", np.ravel, shape=(2, 3, 4)), *one("flatten", np.ravel, shape=())],
    "transpose2d": one("transpose2d", np.transpose),
    "swap_adjacent_at_depth": [
        *one("swap_adjacent_at_depth", lambda x: x.swapaxes(1, 2), shape=(2, 3, 4, 5), depth=1),
        *one("swap_adjacent_at_depth", lambda x: x, shape=(2, 3), depth=1),
        *one("swap_adjacent_at_depth", lambda x: x, shape=(2, 3), depth=-1),
    ],
    "transpose3d_bca": one("transpose3d_bca", lambda x: x.transpose(1, 2, 0), shape=(2, 3, 4)),
    "transpose3d_cab": one("transpose3d_cab", lambda x: x.transpose(2, 0, 1), shape=(2, 3, 4)),
    "transpose3d_acb": one("transpose3d_acb", lambda x: x.transpose(0, 2, 1), shape=(2, 3, 4)),
    "permute": [
        *one("permute", lambda x: x.transpose(2, 0, 3, 1), shape=(2, 3, 4, 5), axes=(2, 0, 3, 1)),
        *one("permute", lambda x: x, shape=(2, 3), axes=(0, 1)),
    ],
    "broadcast_to": [
        Call(((3,),), lambda t, x: t.broadcast_to(x, (4, 3)), lambda x: np.broadcast_to(x, (4, 3))),
        Call(((3,),), lambda t, x: t.broadcast_to(x, (3, 3), [0, 1]), lambda x: np.broadcast_to(x, (3, 3))),
        Call(((3,),), lambda t, x: t.broadcast_to(x, (3, 3), [1, 0]), lambda x: np.broadcast_to(x[:, None], (3, 3))),
        Call(((3,),), lambda t, x: t.broadcast_to(x, (3, 5), [1, 0]), lambda x: np.broadcast_to(x[:, None], (3, 5))),
        Call(((),), lambda t, x: t.broadcast_to(x, (2, 3)), lambda x: np.broadcast_to(x, (2, 3))),
        Call(((2, 1),), lambda t, x: t.broadcast_to(x, (2, 1)), lambda x: x),
        Call(((2, 1),), lambda t, x: t.broadcast_to(x, (4, 2, 3)), lambda x: np.broadcast_to(x, (4, 2, 3))),
    ],
    "broadcast_vec_to_rows": one("broadcast_vec_to_rows", lambda x: np.tile(x, (4, 1)), shape=(3,), rows=4),
    "broadcast_vec_to_cols": one("broadcast_vec_to_cols", lambda x: np.tile(x[:, None], 4), shape=(3,), cols=4),
    "concat1d": of("concat1d", lambda *xs: np.concatenate(xs), ((3,), (4,))),
    "concat_vectors": of("concat_vectors", lambda *xs: np.concatenate(xs), ((3,), (0,))),
    "slice1d": one("slice1d", lambda x: x[2:5], shape=(7,), start=2, len=3),
    "concat_dim0": of("concat_dim0", lambda *xs: np.concatenate(xs), ((3, 2, 2), (1, 2, 2)), ((3,), (2,))),
    "slice_range0": [
        *one("slice_range0", lambda x: x[1:3], shape=(4, 2, 3), start=1, len=2),
        *one("slice_range0", lambda x: x[1:3], shape=(4,), start=1, len=2),
    ],
    "concat": [
        Call(((2, 3, 2), (2, 1, 2), (2, 4, 2)), lambda t, *xs: t.concat(xs, -2), lambda *xs: np.concatenate(xs, 1)),
        Call(((2, 3), (0, 3)), lambda t, *xs: t.concat(xs), lambda *xs: np.concatenate(xs)),
        Call(((2, 3), (2, 4)), lambda t, *xs: t.concat(xs, 1), lambda *xs: np.concatenate(xs, 1)),
    ],
    "concat_rows": of("concat_rows", lambda *xs: np.concatenate(xs, 1), ((2, 3), (2, 4))),
    "stack": [
        Call(((2, 3),) * 3, lambda t, *xs: t.stack(xs, 1), lambda *xs: np.stack(xs, 1)),
        Call(((2, 3),) * 2, lambda t, *xs: t.stack(xs, -1), lambda *xs: np.stack(xs, -1)),
        Call(((),) * 3, lambda t, *xs: t.stack(xs), lambda *xs: np.stack(xs)),
    ],
    "split": [
        Call(((3, 5),), lambda t, x: t.split(x, 2, 1)[-1], lambda x: x[:, 4:]),
        Call(((3, 5),), lambda t, x: t.split(x, (1, 0, 2))[2], lambda x: x[1:]),
    ],
    "chunk": [Call(((3, 5),), lambda t, x: t.chunk(x, 2, 1)[-1], lambda x: x[:, 3:])],
    "pad": [
        *one("pad", lambda x: np.pad(x, ((1, 0), (2, 3))), shape=(2, 3), widths=((1, 0), (2, 3))),
        *one("pad", lambda x: np.pad(x, 1, constant_values=2), shape=(2, 3), widths=1, value=2.0),
    ],
    "flip": [*one("flip", np.flip, shape=(2, 3)), *one("flip", lambda x: x[:, ::-1], shape=(2, 3), axes=-1)],
    "roll": [
        *one("roll", lambda x: np.roll(x, -1, 1), shape=(2, 3), shift=-1, axis=1),
        *one("roll", lambda x: x, shape=(2, 3), shift=3, axis=1),
    ],
    "tile": [
        *one("tile", lambda x: np.tile(x, (2, 1, 3)), shape=(2, 3), reps=(2, 1, 3)),
        *one("tile", lambda x: np.tile(x, 2), shape=(4, 2, 3), reps=2),
        *one("tile", lambda x: x, shape=(2, 3), reps=()),
        *one("tile", lambda x: np.tile(x, (2, 1, 3, 2, 2, 2)), shape=(2, 3, 1, 2, 1), reps=(2, 1, 3, 2, 2, 2)),
    ],
    "repeat": one("repeat", lambda x: np.repeat(x, 3, 1), shape=(2, 3, 2), times=3, axis=1),
    "index": [
        *one("index", lambda x: x[1:, None, ..., ::-2], shape=(3, 2, 5), key=np.s_[1:, None, ..., ::-2]),
        *one("index", lambda x: x[:, -1], shape=(3, 2, 5), key=np.s_[:, -1]),
        *one("index", lambda x: x[[2, 0, -1, 2]], shape=(3, 2, 5), key=[2, 0, -1, 2]),
        *one("index", lambda x: x[EVEN], shape=(3, 2, 5), key=EVEN),
    ],
    "gather_scalar": one("gather_scalar", lambda x: x[2], shape=(5,), i=2),
    "gather_row": one("gather_row", lambda x: x[1], i=1),
    "gather_scalar_nat": [
        *one("gather_scalar_nat", lambda x: x[4], shape=(5,), i=4),
        *one("gather_scalar_nat", lambda x: 0 * x[0], shape=(5,), i=5),
    ],
    "gather_vec_nat": one("gather_vec_nat", lambda x: picked(x, [0, 7, 2, 2]), shape=(5,), indices=[0, 7, 2, 2]),
    "gather_rows_nat": one("gather_rows_nat", lambda x: picked(x, [2, 9, 2]), indices=[2, 9, 2]),
    "embedding": [
        *one("embedding", lambda x: picked(x, [2, 0, 2, 1]).reshape(2, 2, 5), indices=[[2, 0], [2, 1]]),
        *one("embedding", lambda x: picked(x, [2, 0]), indices=[2, 0]),
        *one("embedding", lambda x: x[1], indices=1),
    ],
    "indices": [Call(((3, 5),), lambda t, x: t.take(x, t.indices([1, 0, 2, 9])), lambda x: picked(x, [1, 0, 2, 9]))],
    "one_hot": [Call((), lambda t: t.one_hot([[1, 0, -1]], 5), lambda: np.eye(5)[[[1, 0, 4]]])],
    "argmax": [
        Call(((3, 5),), lambda t, x: t.take_along(x, t.argmax(x, 0, True), 0), lambda x: x.max(0, keepdims=True)),
        Call(((3, 5),), lambda t, x: t.take(t.flatten(x), t.argmax(x)), lambda x: x.max()),
    ],
    "argmin": [Call(((3, 5),), lambda t, x: t.take_along(x, t.argmin(x, -1, keepdims=True)), lambda x: x.min(1, keepdims=True))],
    "topk": [
        Call(((3, 5),), lambda t, x: t.topk(x, 2)[0], lambda x: np.sort(x)[:, :2:-1]),
        Call(((3, 5, 2),), lambda t, x: t.topk(x, 2, 1)[0], lambda x: np.sort(x, 1)[:, :2:-1]),
        Call(((3, 5),), lambda t, x: t.topk(x, 3, 0, largest=False)[0], lambda x: np.sort(x, 0)),
    ],
    "take": [
        *one("take", lambda x: x[[2, 0, 2]], indices=[2, 0, -1]),
        *one("take", lambda x: x[:, :, [[1], [4]]], shape=(2, 3, 5), indices=[[1], [-1]], axis=-1),
        *one("take", lambda x: x[:, 1], shape=(2, 3, 5), indices=1, axis=1),
    ],
    "take_along": one("take_along", lambda x: np.take_along_axis(x, ALONG, 1), shape=(2, 3, 2), indices=ALONG, axis=1),
    "scatter_add_along": of("scatter_add_along", scattered_along, ((2, 3, 2), (2, 4, 2)), indices=ALONG, axis=1),
    "tril": [*one("tril", np.tril), *one("tril", lambda x: np.tril(x, -2), shape=(2, 4, 3), k=-2)],
    "triu": [*one("triu", np.triu), *one("triu", lambda x: np.triu(x, 1), shape=(2, 4, 3), k=1)],
    "scatter_add_vec": [
        *of("scatter_add_vec", lambda x, v: scattered(x, [v], [3]), ((5,), ()), i=3),
        *of("scatter_add_vec", lambda x, v: scattered(x, v, [0]), ((5,), (1,)), i=0),
    ],
    "scatter_add": of("scatter_add", lambda x, v: scattered(x, v, PLACES), ((5,), (4,)), indices=PLACES),
    "scatter_add_row": of("scatter_add_row", lambda x, v: scattered(x, [v], [2]), ((3, 4), (4,)), i=2),
    "scatter_add_rows": of("scatter_add_rows", lambda x, v: scattered(x, v, ROWS), ((3, 4), (3, 4)), indices=ROWS),
    "matmul": of(
        "matmul", np.matmul, ((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((3, 0), (0, 2)), ((3,), (3,)),
        ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (5, 3, 4)), ((5, 2, 3), (3,)), ((3,), (5, 3, 4)), ((5, 2, 3), (1, 3, 4)),
        ((1, 2, 3), (5, 3, 4)), ((6, 1, 2, 3), (5, 3, 4)), ((6, 5, 2, 3), (5, 3, 4)), ((0, 2, 3), (1, 3, 4)),
        ((6, 5, 2, 3), (3, 4)), ((1, 1, 2, 3), (6, 5, 3, 1)), ((4, 2, 0), (4, 0, 3)),
    ),
    "bmm": of("bmm", np.matmul, ((2, 3, 4), (2, 4, 5))),
    "linear": [
        Call(((4, 3), (4,), s), lambda t, w, b, x: t.linear(w, -1 if b is None else b, x), lambda w, b, x: x @ w.T + b)
        for s in ((3,), (5, 3), (2, 5, 3))
    ],
    "mse_loss": of("mse_loss", lambda a, b: ((a - b) ** 2).mean(), *((s, s) for s in ((7,), (2, 3), ()))),
    "l1_loss": of("l1_loss", lambda a, b: np.abs(a - b).sum(), ((2, 3), (2, 3)), reduction="sum"),
    "huber_loss": of("huber_loss", lambda a, b: huber(a, b, 0.75).mean(), ((7,), (7,)), ((2, 3), (2, 3)), delta=0.75),
    "smooth_l1_loss": [
        *of("smooth_l1_loss", lambda a, b: huber(a, b, 0.5) / 0.5, ((7,), (7,)), beta=0.5, reduction="none"),
        *of("smooth_l1_loss", lambda a, b: np.abs(a - b).mean(), ((7,), (7,)), beta=0),
    ],
    "binary_cross_entropy_with_logits": [
        *of("binary_cross_entropy_with_logits", lambda x, t: bce(x, t).mean(), ((2, 3), (2, 3))),
        *of("binary_cross_entropy_with_logits", lambda x, t: bce(x, t).sum(), ((7,), (7,)), reduction="sum"),
        Call(
            ((2, 3), (2, 3)),
            lambda t, x, y: t.binary_cross_entropy_with_logits(x, y, WEIGHTS[:3], "sum", WEIGHTS[2:, None]),
            lambda x, y: (WEIGHTS[:3] * bce(x, y, WEIGHTS[2:, None])).sum(),
        ),
    ],
    "kl_div": [
        *of("kl_div", lambda x, t: (t * (np.log(t) - x)).mean(), ((2, 3), (2, 3)), positive=True),
        *of("kl_div", lambda x, t: (t * (np.log(t) - x)).sum() / len(x), ((2, 3), (2, 3)), positive=True, reduction="batchmean"),
        *of("kl_div", lambda x, t: np.exp(t) * (t - x), ((2, 3), (2, 3)), log_target=True, reduction="none"),
    ],
    "cross_entropy": [
        *[smoothed(shape, **options) for shape in ((2, 3, 4), (2, 4, 3)) for options in (
            {"ignore_index": 1}, {"label_smoothing": 0.25, "reduction": "sum"}, {"weight": WEIGHTS, "label_smoothing": 0.5},
            {"weight": WEIGHTS, "ignore_index": 3, "reduction": "none"}, {"weight": WEIGHTS},
        )],
        *one("cross_entropy", lambda x: nll(x, LABELS), shape=(2, 3, 4), labels=LABELS),
        *one("cross_entropy", lambda x: nll(x, [2]), shape=(4,), labels=2),
    ],
    "softmax": [
        *[c for s in ((3, 5), (5,), (2, 3, 4)) for c in one("softmax", softmax, shape=s)],
        *one("softmax", np.ones_like, shape=()),
    ],
    "log_softmax": [c for s in ((3, 5), (5,), (2, 3, 4)) for c in one("log_softmax", lambda x: np.log(softmax(x)), shape=s)],
    "layer_norm": of(
        "layer_norm", lambda *a: norm(*a, 1e-3), *((s, (4,), (4,)) for s in ((3, 4), (4,), (2, 3, 4))), eps=1e-3,
    ),
    "rms_norm": of(
        "rms_norm", lambda x, g: g * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3),
        *((s, (4,)) for s in ((3, 4), (4,), (2, 3, 4))), eps=1e-3,
    ),
    "channel_affine": of(
        "channel_affine", channels_map, *((s, (3,), (3,), (3,)) for s in ((2, 3), (2, 3, 4), (2, 3, 2, 2)))
    ),
    "group_norm": [
        *of("group_norm", lambda x: groups_norm(x, 2), ((2, 4, 3),), groups=2),
        *of("group_norm", lambda x: groups_norm(x, 2, 0.5), ((2, 4, 3),), groups=2, eps=0.5),
        Call(
            ((2, 4, 3), (4,), (4,)),
            lambda t, x, g, b: t.group_norm(x, 2, g, b),
            lambda x, g, b: channels_map(groups_norm(x, 2), 0 * g, g, b),
        ),
    ],
    "instance_norm": [
        *of("instance_norm", lambda x: groups_norm(x, 3), ((2, 3, 5),)),
        *of("instance_norm", lambda x: groups_norm(x, 3, 0.5), ((2, 3, 5),), eps=0.5),
        *of("instance_norm", lambda x, g, b: channels_map(groups_norm(x, 3), 0 * g, g, b), ((2, 3, 2, 2), (3,), (3,))),
    ],
    "batchnorm_channel_first": of(
        "batchnorm_channel_first",
        lambda x, g, b: norm(x.reshape(2, 12), g[:, None], b[:, None], 1e-6).reshape(x.shape), ((2, 3, 4), (2,), (2,)),
    ),
    "conv": convolutions("conv"),
    "conv2d": convolutions("conv2d"),
    "conv_transpose": convolutions("conv_transpose"),
    "conv_transpose2d": convolutions("conv_transpose2d"),
    "max_pool": pools("max_pool"),
    "max_pool2d": pools("max_pool2d"),
    "max_pool2d_pad": pools("max_pool2d_pad"),
    "avg_pool": pools("avg_pool"),
    "avg_pool2d": pools("avg_pool2d"),
    "avg_pool2d_pad": pools("avg_pool2d_pad"),
    "smooth_max_pool": pools("smooth_max_pool", 0.5),
    "smooth_max_pool2d": pools("smooth_max_pool2d", -2.0),
    "smooth_max_pool2d_pad": pools("smooth_max_pool2d_pad", 3.0),
    "flash_attention": attentions("flash_attention"),
    "attention": attentions("attention"),
    "multi_head_attention": multi_head(),
    "scaled_dot_product_attention": grouped_attentions(),
    "einsum": einsums("ijk,ilk->ijl", ((2, 3, 4), (2, 5, 4))) + einsums("ij,jk,kl", ((2, 3), (3, 4), (4, 2)))
    + einsums("...ab,...bc->...ca", ((2, 1, 3, 4), (5, 4, 2))) + einsums("iij,k->j", ((3, 3, 4), (5,)))
    + einsums("ab,ab->", ((3, 4), (3, 4))) + einsums("i,j->ji", ((3,), (4,))) + einsums("abc->cab", ((2, 3, 4),))
    + einsums("abcd->dbca", ((2, 3, 4, 5),)) + einsums("ij,ij->ij", ((1, 4), (3, 1))) + einsums("ba", ((2, 3),))
    + einsums("i,i,i->i", ((4,), (4,), (1,))) + einsums("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5)))
    + einsums("ii", ((4, 4),)) + einsums("ij,k", ((2, 0), (3,))) + einsums("iji,ij->i", ((3, 2, 3), (3, 2)))
    + einsums("iiji->ij", ((3, 3, 2, 3),)) + einsums("iijj", ((2, 2, 3, 3),)),
    "rotary": [
        *one("rotary", row("rotary", base=1e4, start=0, halves=0), shape=(2, 3, 4)),
        *one("rotary", row("rotary", base=100.0, start=5, halves=1), shape=(2, 3, 4), base=100.0, start=5, halves=True),
    ],
    "sinusoidal": one("sinusoidal", row("sinusoidal", base=1e4, start=2), shape=(2, 3, 4), start=2),
    "rfft1d_packed": one("rfft1d_packed", lambda x: np.stack([(f := np.fft.rfft(x)).real, f.imag], -1), shape=(2, 7)),
    "irfft1d_packed": one("irfft1d_packed", lambda s: np.fft.irfft(s[..., 0] + 1j * s[..., 1], 6), shape=(2, 4, 2), n=6),
    "spectral_conv1d_rfft": of(
        "spectral_conv1d_rfft", row("spectral_conv1d_rfft"), ((6, 2), (3, 2, 2), (3, 2, 2)),
    ),
    "spectral_conv2d": of(
        "spectral_conv2d", spectral2d, *(
            ((batch, inputs, *sizes), *((2 * m1, m2, inputs, outputs),) * 2) for batch, inputs, outputs, sizes, m1, m2 in (
                (2, 3, 2, (4, 4), 2, 3), (1, 2, 1, (4, 2), 1, 1), (3, 2, 2, (7, 9), 3, 5), (3, 4, 1, (8, 6), 4, 4),
                (1, 1, 2, (2, 1), 1, 1), (1, 3, 2, (16, 15), 3, 2), (1, 2, 2, (1, 4), 0, 2), (3, 2, 2, (4, 4), 1, 0),
                (0, 2, 1, (4, 4), 1, 1),
            )
        ),
    ),
}  # fmt: skip


def call_of_row(op: registry.Op) -> Call:
    """The call of a method that takes a row's operands and then its parameters."""
    case = draw_case(op, 0, "normal", "small")
    parameters = {p.name: case.params[p.name] for p in op.signature.params}
    sizes = {dim: 2 + i for i, dim in enumerate(op.signature.dims)}
    shapes = tuple(
        (3, 5) if a.elementwise else tuple(int(d) if d.isdigit() else sizes[d] for d in a.dims)
        for a in op.signature.inputs
    )
    return Call(shapes, lambda t, *ids: getattr(t, op.name)(*ids, *parameters.values()), row(op.name, **parameters))


# a row without a line above is called by its signature
CALLS |= {r.name: [call_of_row(r)] for r in registry.operations() if r.name not in CALLS and hasattr(Tape, r.name)}

#: a method that is no row's -> the rows that it is made of
COMPOSED = {
    "sum": ("reduce_sum", "reduce_sum_axis"), "mean": ("reduce_mean",), "std": ("var",),
    "cumprod": ("selective_scan_diag_var",), "norm": ("vector_norm",),
    "neg": ("scale",), "square": ("mul",), "permute": ("transpose3d_bca",), "concat_vectors": ("concat1d",),
    "scaled_dot_product_attention": ("grouped_attention", "flash_attention"), "einsum": ("bmm", "matmul", "reduce_sum_axis"),
    "concat": ("concat_rows",), "stack": ("concat_rows",), "split": ("slice_axes",), "chunk": ("slice_axes",),
    "pad": ("pad_axes",), "flip": ("slice_axes",), "roll": ("slice_axes", "concat_rows"), "tile": ("broadcast_to",),
    "repeat": ("broadcast_to",), "indices": ("take_axis",), "one_hot": ("scatter_add_axis",), "take": ("take_axis",),
    "take_along": ("take_axis",), "scatter_add_along": ("scatter_add_axis",), "tril": ("where",), "triu": ("where",),
    "index": ("slice_axes", "gather_rows"),
    "concat_dim0": ("concat1d",), "slice_range0": ("slice1d",), "gather_scalar": ("gather_vec",),
    "gather_row": ("gather_rows",), "gather_scalar_nat": ("gather_vec",), "gather_vec_nat": ("gather_vec",),
    "gather_rows_nat": ("gather_rows",), "embedding": ("gather_rows",), "scatter_add_vec": ("scatter_add",),
    "max_pool2d_pad": ("max_pool2d",), "avg_pool2d_pad": ("avg_pool2d",),
    "smooth_max_pool2d_pad": ("smooth_max_pool2d",), "attention": ("flash_attention",),
    "multi_head_attention": ("flash_attention", "matmul"), "gt": ("lt",), "ge": ("le",),
    "spectral_conv2d": ("matmul", "bmm", "concat_rows"),
}  # fmt: skip
#: (method, place) of operands that may be left out
OPTIONAL = {(name, 1) for name in ("conv", "conv2d", "conv_transpose", "conv_transpose2d")}
#: methods whose result is piecewise constant, so that it never requires a gradient
STEPS = {*(r.name for r in registry.ops("elementwise") if r.vjp_rule is None), "gt", "ge"}
#: (method, number of the call) of every call, marked with the rows it concerns
CALLED = [
    pytest.param((name, i), marks=pytest.mark.operations(*COMPOSED.get(name, (name,))), id=f"{name}-{i}")
    for name, calls in CALLS.items()
    for i in range(len(calls))
]
