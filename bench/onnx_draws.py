"""Drawn graphs of one node: every operator that tlrt has, with drawn attributes and operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.onnx_standard import CELL_FUNCTIONS

Array = np.ndarray
SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.2e-38, 3.4e38, -3.4e38, 1, -1, 0.5, -0.5, 2, 3, 1e20,
                    -1e20, 89.2, -89.2, 1e-6, 2.5, -1.5], np.float32)  # fmt: skip
OPSETS = (13, 15, 17, 18, 20, 21, 22, 23, 24)
INTS = ("int64", "int32", "uint8", "int8", "uint32")


@dataclass
class Drawn:
    """A node: its operands, None for one left out, its attributes, and how many outputs it has."""

    op: str
    operands: list[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 18


#: how an operator with windows may pad by itself
AUTO_PADS = ("SAME_UPPER", "SAME_LOWER", "VALID")


class Draw:
    """Random choices, by name."""

    def __init__(self, seed: Any) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.pick(OPSETS))

    def pick(self, values: Sequence[Any]) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def flag(self) -> int:
        return int(self.rng.integers(2))

    def shape(self, least: int = 1, most: int = 4, high: int = 5) -> tuple[int, ...]:
        return tuple(int(n) for n in self.rng.integers(1, high + 1, int(self.rng.integers(least, most + 1))))

    def floats(self, *shape: int, special: bool = False) -> Array:
        x = self.rng.standard_normal(shape).astype(np.float32) * np.float32(self.pick((1, 1, 3, 30)))
        return np.where(self.rng.random(shape) < 0.3, self.rng.choice(SPECIAL, shape), x) if special else x

    def ints(self, *shape: int, kind: str = "int64", low: int = -9, high: int = 10) -> Array:
        """Small whole numbers of a type, sometimes all moved by a power of two that float32 or float64 cannot count from."""
        info = np.iinfo(kind)
        x = self.rng.integers(max(low, info.min), high, shape)
        if self.flag() and info.bits > 16 and low < 0:
            x = x + self.pick((2**24, 2**30, 2**53 if info.bits > 32 else 2**24))
        return x.astype(kind)

    def wide(self, *shape: int, kind: str) -> Array:
        """Whole numbers of all sizes, up to half of the type's greatest."""
        bits = np.iinfo(kind).bits - 2
        return (self.rng.integers(-(2**bits), 2**bits, shape) >> self.rng.integers(0, bits, shape)).astype(kind)

    def extremes(self, *shape: int) -> Array:
        """Whole numbers of any type, with its least and greatest among them."""
        kind = self.pick(INTS)
        info = np.iinfo(kind)
        return np.where(self.rng.random(shape) < 0.4, self.rng.choice(np.array([0, info.min, info.max], kind), shape),
                        self.ints(*shape, kind=kind))  # fmt: skip

    def bools(self, *shape: int) -> Array:
        return self.rng.random(shape) < 0.5

    def any(self, *shape: int, special: bool = True) -> Array:
        """Of a type that most operators take."""
        kind = self.pick(("float", "float", *INTS[:2], "bool"))
        return self.floats(*shape, special=special) if kind == "float" else (
            self.bools(*shape) if kind == "bool" else self.ints(*shape, kind=kind))  # fmt: skip

    def maybe(self, **attributes: Any) -> dict[str, Any]:
        return {n: v for n, v in attributes.items() if self.flag()}

    def axis(self, rank: int) -> int:
        return int(self.rng.integers(-rank, rank))

    def pair(self, make: Callable[..., Array]) -> tuple[Array, Array]:
        """Two operands whose shapes broadcast."""
        shape = self.shape()
        other = tuple(self.pick((n, n, 1)) for n in shape)[int(self.rng.integers(len(shape))) :]
        first, second = make(*shape), make(*other)
        return (first, second) if self.flag() else (second, first)


def _unary(d: Draw, op: str) -> Drawn:
    if op in ("Not", "BitwiseNot"):
        return Drawn(op, [d.bools(*d.shape()) if op == "Not" else d.ints(*d.shape(), kind=d.pick(INTS))])
    if op in ("Abs", "Neg", "Sign") and d.flag():
        return Drawn(op, [d.ints(*d.shape(), kind=d.pick(("int64", "int32", "int8")))])
    attributes = d.maybe(approximate="tanh") if op == "Gelu" else {}
    return Drawn(op, [d.floats(*d.shape(), special=True)], attributes, opset=20)


def _activation(d: Draw, op: str) -> Drawn:
    names = {"IsInf": ("detect_negative", "detect_positive"), "Selu": ("alpha", "gamma"), "HardSigmoid": ("alpha", "beta"),
             "Shrink": ("bias", "lambd")}.get(op, ("alpha",))  # fmt: skip
    values = {n: d.flag() if op == "IsInf" else float(d.pick((0.1, 0.5, 1.0, 1.5))) for n in names if d.flag()}
    if op == "Shrink" and d.flag():
        return Drawn(op, [d.ints(*d.shape(), kind="int32", low=-2, high=3)], dict.fromkeys(values, 1.0))
    return Drawn(op, [d.floats(*d.shape(), special=True)], values, opset=max(d.opset, 24 if op == "Swish" else 13))


def _binary(d: Draw, op: str) -> Drawn:
    if op in ("And", "Or", "Xor"):
        return Drawn(op, [*d.pair(d.bools)])
    if op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"):
        kind = d.pick(("uint8", "uint32")) if op == "BitShift" else d.pick(INTS)
        a, b = d.pair(lambda *s: d.ints(*s, kind=kind, low=0))
        if op == "BitShift":  # by the width of the type, too
            a, b = np.iinfo(kind).max - a, np.where(b < 5, b, np.iinfo(kind).bits - 7 + b % 9).astype(kind)
        return Drawn(op, [a, b], {"direction": d.pick(("LEFT", "RIGHT"))} if op == "BitShift" else {})
    kind = d.pick(("float", "int64", "int32"))
    make = d.wide if op in ("Div", "Mod") else d.ints
    a, b = d.pair(lambda *s: d.floats(*s, special=True) if kind == "float" else make(*s, kind=kind))
    if op in ("Div", "Mod") and kind != "float":
        b = np.where(b == 0, 7, b).astype(b.dtype)
    attributes = {"fmod": int(kind == "float" or d.flag())} if op == "Mod" else {}
    if op == "Pow" and kind != "float":
        a, b = (a % 8).astype(kind), (b % (21 if kind == "int64" else 6)).astype(d.pick((kind, "uint8", "uint32")))
    elif op == "Pow" and d.flag():
        b = d.ints(*b.shape, low=-5, high=6) % 7
    if op == "PRelu":
        made = d.pick((lambda *s: d.floats(*s, special=True), lambda *s: d.ints(*s, kind="int32", high=9)))
        a, b = made(*(s := d.shape(2))), made(*s[1:])
    return Drawn(op, [a, b], attributes)


def _several(d: Draw, op: str) -> Drawn:
    special = op in ("Max", "Min")
    kind = d.pick(INTS)
    make = (lambda *s: d.ints(*s, kind=kind)) if special and d.flag() else (lambda *s: d.floats(*s, special=special))
    first, second = d.pair(make)
    return Drawn(op, d.pick(([first, second], [second], [first, second, first])))


def _reduction(d: Draw, op: str) -> Drawn:
    shape = d.shape()
    whole = op not in ("ReduceLogSum", "ReduceLogSumExp") and d.flag()
    x = d.ints(*shape, kind=d.pick(INTS[:2]), high=9) % 1000 if whole else d.floats(*shape)
    x = np.abs(x) if op == "ReduceLogSum" else x
    x = x > 0 if op in ("ReduceMax", "ReduceMin") and d.opset >= 20 and d.rng.random() < 0.3 else x
    axes = sorted({int(a) for a in d.rng.integers(0, len(shape), 2)})
    attributes = d.maybe(keepdims=d.flag())
    if op == "ReduceSum" or d.opset >= 18:
        given = [np.asarray(axes)] if d.flag() else []
        return Drawn(op, [x, *given], attributes | d.maybe(noop_with_empty_axes=d.flag()), opset=d.opset)
    return Drawn(op, [x], attributes | d.maybe(axes=axes), opset=d.opset)


def _arg(d: Draw, op: str) -> Drawn:
    x = d.floats(*d.shape()).round() if d.flag() else d.extremes(*d.shape())  # with ties
    return Drawn(op, [x], d.maybe(axis=d.axis(x.ndim), keepdims=0, select_last_index=1))


def _along(d: Draw, op: str) -> Drawn:
    x = d.floats(*d.shape()) * np.float32(d.pick((0, 1, 1, 1)))
    extra = {"p": d.pick((1, 2))} if op == "LpNormalization" else {}
    return Drawn(op, [x], d.maybe(axis=d.axis(x.ndim), **extra), opset=d.opset)


def _norm(d: Draw, op: str) -> Drawn:
    x = d.floats(*d.shape(3, 4))
    channels = x.shape[1]
    if op == "LayerNormalization":
        axis = int(d.rng.integers(1, x.ndim))
        extra = [d.floats(*x.shape[axis:]) for _ in range(1 + d.flag())]
        return Drawn(op, [x, *extra], {"axis": axis} | d.maybe(epsilon=1e-3), opset=17)
    if op == "RMSNormalization":
        return Drawn(op, [x, d.floats(*x.shape[-1:])], {"axis": -1} | d.maybe(epsilon=1e-3), opset=23)
    scale, bias = d.floats(channels), d.floats(channels)
    if op == "BatchNormalization":
        return Drawn(op, [x, scale, bias, d.floats(channels), d.floats(channels) ** 2], d.maybe(epsilon=1e-2), opset=15)
    if op == "GroupNormalization":
        groups = d.pick([g for g in range(1, channels + 1) if channels % g == 0])
        old = d.flag()
        ends = [t[:groups] for t in (scale, bias)] if old else [scale, bias]
        return Drawn(op, [x, *ends], {"num_groups": groups}, opset=18 if old else 21)
    if op == "InstanceNormalization":
        return Drawn(op, [x, scale, bias], d.maybe(epsilon=1e-3))
    return Drawn(op, [d.floats(2, 3, 4, 3)], d.maybe(axes=d.pick(([1], [0, 1, 2, 3], [2, -1]))))


def _moving(d: Draw, op: str) -> Drawn:
    """Operators that only move elements, and take every type."""
    x = d.any(*(shape := d.shape()))
    rank, axis = len(shape), d.axis(len(shape))
    n = shape[axis]

    def some(*s: int) -> Array:
        return d.rng.integers(-n, n, s)

    made: dict[str, Callable[[], tuple[list[Any], dict[str, Any]]]] = {
        "Transpose": lambda: ([x], d.maybe(perm=[int(p) for p in d.rng.permutation(rank)])),
        "Reshape": lambda: ([x, np.array([-1 if k == axis % rank else d.pick((0, m)) for k, m in enumerate(shape)])], {}),
        "Flatten": lambda: ([x], d.maybe(axis=int(d.rng.integers(-rank, rank + 1)))),
        "Squeeze": lambda: ([x[None, :, None]], {}) if d.flag() else ([x[None], np.array([0])], {}),
        "Unsqueeze": lambda: ([x, np.array([0, -1])], {}),
        "Expand": lambda: ([x, np.array([2, *(1 if d.flag() else m for m in shape)])], {}),
        "Tile": lambda: ([x, d.rng.integers(0, 3, rank)], {}),
        "Concat": lambda: ([x, x[::-1], x], {"axis": axis}),
        "Slice": lambda: ([x, *(d.rng.integers(-4, 5, (2, rank)))[:, : d.pick((1, rank))]], {}) if d.flag() else (
            [x, some(1) * 2, some(1) * 2, np.array([axis]), np.array([d.pick((1, 2, -1, -2))])], {}),
        "Gather": lambda: ([x, some(*d.shape(0, 2))], {"axis": axis}),
        "GatherElements": lambda: ([x, some(*shape)], {"axis": axis}),
        "GatherND": lambda: _gather_nd(d),
        "Compress": lambda: ([x, d.bools(n)], {"axis": axis}) if d.flag() else ([x, d.bools(x.size)], {}),
        "Trilu": lambda: ([d.any(*d.shape(2, 3)), *([np.asarray(d.pick((-1, 0, 1)))] if d.flag() else [])],
                          d.maybe(upper=d.flag())),
        "Identity": lambda: ([x], {}), "Size": lambda: ([x], {}),
        "Shape": lambda: ([x], d.maybe(start=d.axis(rank), end=d.axis(rank))),
        "Split": lambda: ([x, np.array([1, n - 1])], {"axis": axis}) if n > 1 and d.flag() else (
            [x], {"axis": axis, "num_outputs": d.pick([k for k in range(1, n + 1) if -(-n // k) * (k - 1) < n])}),
        "Where": lambda: ([d.bools(*shape), x, x[::-1].copy()], {}),
        "ReverseSequence": lambda: ([d.any(4, 3, 2), d.rng.integers(1, 5, 3)], {"time_axis": 0, "batch_axis": 1}) if d.flag()
        else ([d.any(3, 4, 2), d.rng.integers(1, 5, 3)], {"time_axis": 1, "batch_axis": 0}),
        "DepthToSpace": lambda: ([d.any(2, 8, 2, 3)], {"blocksize": 2} | d.maybe(mode="CRD")),
        "SpaceToDepth": lambda: ([d.any(2, 3, 4, 6)], {"blocksize": 2}),
        "NonZero": lambda: ([d.any(*d.shape(0))], {}),
        "EyeLike": lambda: ([d.pick((d.floats, d.ints))(3, 4)], d.maybe(k=d.pick((-1, 1)), dtype=d.pick((1, 7)))),
        "Unique": lambda: ([d.pick((np.float32, np.int64))(d.rng.integers(0, 2, (4, 3)))],
                           d.maybe(sorted=0, axis=d.pick((0, 1, -1)))),
        "ConstantOfShape": lambda: ([np.asarray(shape)], {}),
    }  # fmt: skip
    operands, attributes = made[op]()
    return Drawn(op, operands, attributes, 4 if op == "Unique" else attributes.get("num_outputs", 1))


def _gather_nd(d: Draw) -> tuple[list[Any], dict[str, Any]]:
    """Indices of some of the axes behind those that both operands have."""
    shape = d.shape(1, 4)
    same = int(d.rng.integers(min(len(shape), 3)))
    inner = shape[same : same + int(d.rng.integers(1, len(shape) - same + 1))]
    index = np.stack([d.rng.integers(-n, n, (*shape[:same], 3)) for n in inner], -1)
    return [d.any(*shape), index], {"batch_dims": same} if same else {}


def _pad(d: Draw, op: str) -> Drawn:
    x = d.floats(*d.shape(2, 4), special=True) if d.flag() else d.ints(*d.shape(2, 3))
    mode, some = d.pick(("constant", "reflect", "edge")), np.sort(d.rng.permutation(x.ndim)[: d.pick((1, x.ndim))])
    widths = np.asarray([d.pick((0, 1) if n > 1 else (0,)) for n in [x.shape[a] for a in some] * 2])
    widths = np.where((x.shape[some[0]] > 2) & (d.rng.random(widths.shape) < 0.3), -widths, widths)
    extra: list[Any] = [np.asarray(d.pick((0, 2)), x.dtype) if d.flag() else None]
    extra += [some - d.pick((0, x.ndim))] if len(some) < x.ndim or d.flag() else []
    return Drawn(op, [x, widths, *(extra if extra[-1] is not None else [])], {"mode": mode})


def _scatter(d: Draw, op: str) -> Drawn:
    shape = d.shape(1, 4, 4)
    draw = d.floats if d.flag() else d.ints
    x, updates = draw(*shape), draw(*shape)
    attributes = d.maybe(reduction=d.pick(("add", "mul", "max", "min")))
    if op == "ScatterElements":
        axis, fewer = d.axis(len(shape)), tuple(slice(int(d.rng.integers(n // 2, n + 1))) for n in shape)
        n = shape[axis]
        index = np.argsort(d.rng.random(shape), axis) if "reduction" not in attributes else d.rng.integers(0, n, shape)
        return Drawn(op, [x, (index - d.pick((0, n)))[fewer], updates[fewer]], {"axis": axis} | attributes)
    depth = int(d.rng.integers(1, len(shape) + 1))
    n = math.prod(shape[:depth])
    chosen = (d.rng.integers(0, n, 9) if attributes else d.rng.permutation(n))[: d.pick((0, 3, 9, 9))]
    index = np.stack(np.unravel_index(chosen, shape[:depth]), -1) - d.pick((0, np.array(shape[:depth])))
    return Drawn(op, [x, index, draw(len(chosen), *shape[depth:])], attributes)


def _sequence(d: Draw, op: str) -> Drawn:
    """Range, OneHot, CumSum, TopK, Clip, Cast, Dropout, Einsum."""
    x = d.floats(*(shape := d.shape(1, 3)))
    axis = d.axis(len(shape))
    if op == "Range":
        ends = d.pick((0, -2)), d.pick((5, 7, -3)), d.pick((1, 2, -2))
        kind = d.pick((np.int64, np.int32, np.float32))
        return Drawn(op, [np.asarray(e * (0.75 if kind == np.float32 else 1), kind) for e in ends])
    if op == "OneHot":
        values = d.floats(2, special=True) if d.flag() else d.ints(2)
        return Drawn(op, [d.rng.integers(-7, 8, shape), np.asarray(5), values], d.maybe(axis=axis))
    if op == "CumSum":
        x = x if d.flag() else d.ints(*shape, kind=d.pick(INTS[:2]))
        return Drawn(op, [x, np.asarray(axis, d.pick(INTS[:2]))], d.maybe(exclusive=1, reverse=1))
    if op == "TopK":
        x = x.round() if d.flag() else d.extremes(*shape)
        k = int(d.rng.integers(0, shape[axis] + 1))
        return Drawn(op, [x, np.array([k])], {"axis": axis} | d.maybe(largest=d.flag()), 2)
    if op == "Clip":
        x = d.floats(*shape, special=True) if d.flag() else d.ints(*shape, kind=d.pick(INTS[:2]))
        return Drawn(op, [x, *(np.asarray(v, x.dtype) for v in d.pick(((-1, 2), (3,), (2, -1), ())))])
    if op == "Cast":
        x, kind = d.any(*shape, special=False), d.pick((1, 6, 7, 9, 3))
        return Drawn(op, [np.clip(x, -99, 99) if x.dtype == np.float32 else x], {"to": kind})
    if op == "CastLike":
        return Drawn(op, [d.ints(*shape, high=99) % 99, d.any(2)], opset=15)
    if op == "CumProd":
        x = x if d.flag() else d.ints(*shape, kind=d.pick(INTS[:2]))
        return Drawn(op, [x, np.asarray(axis)], d.maybe(exclusive=1, reverse=1), opset=26)
    if op == "Dropout":
        return Drawn(op, [x, np.asarray(0.5, np.float32)], {}, 2)
    draw = d.floats if d.flag() else d.ints
    a, b = draw(3, 4), draw(4, 5)
    return Drawn(
        op, [a, b], {"equation": d.pick(("ij,jk->ik", "ij,jk->ki", "ij, jk -> i", "ij,jk->j", "...j,jk->...k"))}
    )


def _resize(d: Draw, op: str) -> Drawn:
    x = d.floats(1, 2, *(int(n) for n in d.rng.integers(1, 6, d.pick((1, 2)))))
    mode = d.pick(("nearest", "linear", "cubic"))
    attributes = {"mode": mode} | d.maybe(coordinate_transformation_mode=d.pick(
        ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")))  # fmt: skip
    attributes |= d.maybe(nearest_mode=d.pick(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")))
    attributes |= {"antialias": 1} if mode != "nearest" and d.rng.random() < 0.2 else {}
    attributes |= d.maybe(cubic_coeff_a=-0.5, exclude_outside=1) if mode == "cubic" else {}
    sizes = [int(n) for n in d.rng.integers(1, 9, x.ndim - 2)]
    if d.flag():
        return Drawn(op, [x, None, None, np.asarray([1, 2, *sizes])], attributes, opset=19)
    scales = [d.pick((0.5, 0.75, 1, 1.2, 1.5, 2, 3)) for _ in sizes]
    return Drawn(op, [x, None, np.asarray([1, 1, *scales], np.float32)], attributes, opset=19)


def _grid_sample(d: Draw, op: str) -> Drawn:
    sizes = d.pick(((4, 5), (1, 3), (3, 2)))
    x, grid = d.floats(2, 2, *sizes), (d.rng.random((2, 3, 4, 2)) * 3 - 1.5).astype(np.float32)
    attributes = d.maybe(mode=d.pick(("linear", "nearest", "cubic")), align_corners=d.flag())
    return Drawn(op, [x, grid], attributes | d.maybe(padding_mode=d.pick(("zeros", "border", "reflection"))), opset=20)


def _affine_grid(d: Draw, op: str) -> Drawn:
    samples, rank = d.pick((1, 2)), d.pick((2, 3))
    sizes = [samples, 2, *(int(n) for n in d.rng.integers(1, 5, rank))]
    return Drawn(op, [d.floats(samples, rank, rank + 1), np.array(sizes)], d.maybe(align_corners=d.flag()), opset=20)


def _window(d: Draw, op: str) -> Drawn:
    """Convolutions and pools."""
    rank = d.pick((1, 2, 3))
    x = d.floats(2, 4, *(int(n) for n in d.rng.integers(*((5, 9) if rank < 3 else (5, 7)), rank)))
    if op.startswith("Global"):
        return Drawn(op, [x], d.maybe(p=d.pick((1, 2))) if op == "GlobalLpPool" else {})
    if op == "LRN":
        return Drawn(op, [x], {"size": d.pick((1, 3, 5))} | d.maybe(alpha=0.1, beta=0.5, bias=2.0))
    kernel = [int(n) for n in d.rng.integers(1, 4, rank)]
    attributes = d.maybe(strides=[d.pick((1, 2)) for _ in kernel])
    if op in ("Conv", "ConvTranspose"):
        group = d.pick((1, 2))
        attributes |= {"group": group} | d.maybe(dilations=[d.pick((1, 2)) for _ in kernel])
        attributes |= d.pick(({}, {"pads": [d.pick((0, 1, 2)) for _ in kernel * 2]}, {"auto_pad": d.pick(AUTO_PADS)}))
        if op == "ConvTranspose":
            attributes.pop("auto_pad", None)
            strides, dilations = [d.pick((1, 2, 3)) for _ in kernel], attributes.get("dilations", [1] * rank)
            attributes["strides"] = strides
            if d.rng.random() < 0.7:
                attributes["output_padding"] = [d.pick(range(max(pair))) for pair in zip(strides, dilations)]
            else:  # the padding follows from a shape
                attributes.pop("pads", None)
                attributes["output_shape"] = [n * s for n, s in zip(x.shape[2:], strides)]
                kernel = [max(k, s) for k, s in zip(kernel, strides)]
        w = d.floats(*((4, 4 // group) if op == "Conv" else (4, 3)), *kernel)
        extra = [d.floats(4 if op == "Conv" else 3 * group)] if d.flag() else []
        return Drawn(op, [x, w, *extra], attributes | d.maybe(kernel_shape=kernel), opset=d.opset)
    attributes |= {"kernel_shape": kernel} | d.pick(({}, {"auto_pad": d.pick(AUTO_PADS)}, {
        "pads": [d.pick(range(min(2, k))) for k in kernel * 2]}))  # fmt: skip
    attributes |= d.maybe(count_include_pad=d.flag()) if op == "AveragePool" else {}
    attributes |= d.maybe(p=d.pick((1, 2, 3))) if op == "LpPool" else {}
    attributes |= d.maybe(storage_order=1) if op == "MaxPool" else {}
    if "auto_pad" not in attributes and (op == "MaxPool" or d.opset >= 19):
        attributes |= d.maybe(ceil_mode=d.flag(), dilations=[d.pick((1, 2)) for _ in kernel])
    return Drawn(
        op, [x], attributes, 1 + d.flag() if op == "MaxPool" else 1, max(d.opset, 22 if op == "LpPool" else 13)
    )


def _product(d: Draw, op: str) -> Drawn:
    m, k, n = (int(v) for v in d.rng.integers(1, 7, 3))
    if op == "Gemm":
        ta, tb = d.flag(), d.flag()
        make = d.pick((d.floats, d.floats, lambda *s: d.ints(*s, low=0)))
        a, b = make(*((k, m) if ta else (m, k))), make(*((n, k) if tb else (k, n)))
        c = [make(*d.pick(((n,), (m, n), (m, 1), ())))] if d.flag() else []
        factors = d.maybe(alpha=0.5, beta=2.0) if a.dtype == np.float32 else {}
        return Drawn(op, [a, b, *c], {"transA": ta, "transB": tb} | factors)
    make = d.floats if d.flag() else d.ints
    batch = d.shape(0, 2, 3)
    return Drawn(op, [make(*batch, m, k), make(*batch[int(d.rng.integers(len(batch) + 1)) :], k, n)])


def _regions(d: Draw, op: str) -> Drawn:
    low = d.rng.random((2, 6, 2)).astype(np.float32)
    boxes = np.concatenate([low, low + d.rng.random((2, 6, 2)).astype(np.float32)], -1)
    if op == "RoiAlign":
        sizes = d.maybe(output_height=2, output_width=3, sampling_ratio=2, spatial_scale=0.5)
        sizes |= d.maybe(coordinate_transformation_mode=d.pick(("half_pixel", "output_half_pixel")))
        return Drawn(op, [d.floats(2, 3, 6, 5), boxes[0] * 4, d.rng.integers(0, 2, 6)], sizes)
    scores = d.rng.random((2, 3, 6)).round(1).astype(np.float32)  # with ties, some of them at the limit
    limits = [np.array([d.pick((0, 1, 3))]), np.array([d.pick((0.0, 0.5))], np.float32), np.array([0.3], np.float32)]
    given = [limit if d.rng.random() < 0.8 else None for limit in limits[: int(d.rng.integers(1, 4))]]
    if d.flag():
        return Drawn(op, [boxes, scores, *given], {"center_point_box": 1})
    turned = np.where(d.bools(2, 6, 1), np.roll(boxes, 2, -1), boxes)  # the other corners first
    return Drawn(op, [turned, scores, *given])


def _attention(d: Draw, op: str) -> Drawn:
    keys, heads = d.pick((3, 5)), d.pick((1, 2, 4))
    q, k, v = (d.floats(2, h, n, 4) / 30 for h, n in ((4, 3), (heads, keys), (heads, keys)))
    shape = d.pick(((3, keys), (4, 3, keys), (2, 1, 3, keys)))
    mask = d.pick((None, d.bools(*shape) | (np.arange(keys) == 0), d.floats(*shape)))
    attributes = d.maybe(scale=d.pick((0.0, 0.5)), softcap=2.0, is_causal=1)
    if mask is None:
        attributes |= d.maybe(left_window_size=d.pick((0, 1, 2)), right_window_size=d.pick((0, 1, 2)))
    more: list[Any] = []
    if mask is None:
        before = d.flag()  # what was kept of earlier keys, or how many keys each sample has
        more = [d.floats(2, heads, 2, 4) / 30 for _ in "kv"] if before else [None, None, np.array([keys, keys - 1])]
        more = more if d.flag() else []
    if d.flag():  # heads side by side in rows
        q, k, v = (t.transpose(0, 2, 1, 3).reshape(2, t.shape[2], -1) for t in (q, k, v))
        attributes |= {"q_num_heads": 4, "kv_num_heads": heads}
    return Drawn(op, [q, k, v, mask, *more], attributes, opset=25)


def _loss(d: Draw, op: str) -> Drawn:
    x, more = (
        d.floats(4, 5, *(rest := d.shape(0, 2))),
        d.maybe(reduction=d.pick(("none", "sum", "mean")), ignore_index=2),
    )
    return Drawn(op, [x, d.rng.integers(0, 5, (4, *rest)), *([np.abs(d.floats(5)) + 0.1] if d.flag() else [])], more)


def _recurrent(d: Draw, op: str) -> Drawn:
    gates, n, k = {"RNN": 1, "GRU": 3, "LSTM": 4}[op], 3, 4
    direction = d.pick(("forward", "reverse", "bidirectional"))
    ways = 1 + (direction == "bidirectional")
    operands: list[Any] = [d.floats(5, 2, k) / 30, d.floats(ways, gates * n, k) / 30, d.floats(ways, gates * n, n) / 30]
    operands.append(d.floats(ways, 2 * gates * n) / 30 if d.flag() else None)
    operands.append(np.asarray([5, d.pick((5, 3))], np.int32) if d.flag() else None)
    operands += [d.floats(ways, 2, n) / 30 if d.flag() else None for _ in range(1 + (op == "LSTM"))]
    attributes = {"hidden_size": n, "direction": direction} | d.maybe(clip=0.5)
    attributes |= d.maybe(linear_before_reset=d.flag()) if op == "GRU" else {}
    if op == "LSTM":
        operands.append(d.floats(ways, 3 * n) / 30 if d.flag() else None)
        attributes |= d.maybe(input_forget=d.flag())
    if d.flag():  # functions with an alpha and a beta of their own each
        names = [d.pick([*CELL_FUNCTIONS]) for _ in range(ways * {"RNN": 1, "GRU": 2, "LSTM": 3}[op])]
        counts = [CELL_FUNCTIONS[name][0] for name in names]
        factors = [[d.pick((0.1, 0.5, 1.5)) for c in counts if c > k] for k in (0, 1)]
        given = {"activations": names, "activation_alpha": factors[0], "activation_beta": factors[1]}
        attributes |= {name: value for name, value in given.items() if value}
    return Drawn(op, operands, attributes, 3 if op == "LSTM" else 2, 14)


_FAMILIES: dict[Callable[[Draw, str], Drawn], str] = {
    _unary: "Not BitwiseNot Gelu Abs Neg Exp Log Sqrt Reciprocal Floor Ceil Round Sign Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh "
            "Asinh Acosh Atanh "
            "Sigmoid Erf Softplus Softsign Relu HardSwish Mish IsNaN",
    _activation: "LeakyRelu Elu Selu Celu ThresholdedRelu HardSigmoid Shrink IsInf Swish",
    _binary: "Add Sub Mul Div Mod Pow PRelu Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor BitwiseAnd BitwiseOr "
             "BitwiseXor BitShift",
    _several: "Max Min Sum Mean", _arg: "ArgMax ArgMin", _along: "Softmax LogSoftmax Hardmax LpNormalization",
    _reduction: "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
                "ReduceSumSquare",
    _norm: "LayerNormalization RMSNormalization BatchNormalization GroupNormalization InstanceNormalization "
           "MeanVarianceNormalization",
    _moving: "Transpose Reshape Flatten Squeeze Unsqueeze Expand Tile Concat Slice Gather GatherElements GatherND Compress Trilu "
             "Identity Shape Size Split Where ReverseSequence DepthToSpace SpaceToDepth NonZero EyeLike Unique ConstantOfShape",
    _pad: "Pad", _scatter: "ScatterElements ScatterND", _resize: "Resize", _grid_sample: "GridSample",
    _affine_grid: "AffineGrid",
    _sequence: "Range OneHot CumSum TopK Clip Cast CastLike CumProd Dropout Einsum", _product: "Gemm MatMul",
    _window: "Conv ConvTranspose MaxPool AveragePool LpPool LRN GlobalAveragePool GlobalMaxPool GlobalLpPool",
    _regions: "NonMaxSuppression RoiAlign", _attention: "Attention",
    _loss: "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss", _recurrent: "RNN GRU LSTM",
}  # fmt: skip
#: operators -> what draws a node
DRAWN = {op: function for function, names in _FAMILIES.items() for op in names.split()}


def draw(op: str, seed: Any) -> Drawn:
    """The node of an operator and a seed."""
    return DRAWN[op](Draw(seed), op)
