"""The examples in the documentation of Python functions: a small call of each operation, and what it prints.

The numbers are those of the row's float64 reference, so an example states what the specification says. A test runs it on the
library. Sizes and contents follow from the signature; a row whose arguments must be others says so (its field `example`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen.methods import Method
from codegen.text import call_text
from tlspec.bounds import call_reference
from tlspec.case import as_tuple, shape_of
from tlspec.entries import Entry, arguments
from tlspec.registry import Op

WIDTH = 112
#: numbers that a call takes without their names
MAX_UNNAMED = 4
DECIMALS = 4
#: sizes of axes, lists of sizes and parameters by their names
SIZES: dict[str, Any] = {
    "batch": 1, "channels": 1, "heads": 1, "kv_heads": 1, "groups": 1, "in_channels": 1, "out_channels": 1, "dims":
    (2, 3), "spatial": (3, 3), "in_h": 3, "in_w": 3, "kernel_h": 2, "kernel_w": 2, "stride_h": 1, "stride_w": 1,
    "padding_h": 0, "padding_w": 0, "rows": 2, "cols": 3, "m": 2, "n": 3, "p": 2, "k": 2, "count": 1, "outer": 1,
    "inner": 1, "io": 1, "ii": 1, "height": 2, "width": 2, "kernel": (2, 2), "stride": (1, 1), "padding": (0, 0),
    "dilation": (1, 1), "padding_low": (0, 0), "padding_high": (0, 0), "output_padding": (0, 0), "outputs": 2,
    "inputs": 3, "positions": 3, "state": 2, "seq_len": 3, "units": 2, "queries": 2, "keys": 2, "d": 2, "grid": 6,
    "modes": 2, "axis": 1, "axes": 2, "reverse": 0, "root": 0, "correction": 0.0, "key": 7, "step": 1, "mask_mode":
    0, "scale": 1.0, "mask_batch": 1, "mask_heads": 1, "mask_queries": 1,
}  # fmt: skip
#: contents of arrays by their names; other arrays count 1, 2, 3, …
CONTENTS: dict[str, Callable[[int], Any]] = {
    "b": lambda n: 0.5 * np.arange(n), "gamma": lambda n: np.arange(1, n + 1), "beta": np.zeros, "h0": np.zeros,
    "center": np.zeros, "mask": lambda n: np.arange(1, n + 1) % 2, "vs": np.zeros, "ms": np.zeros, "bs": np.zeros,
    "gs": lambda n: np.arange(1, n + 1), "indices": lambda n: np.arange(n)[::-1], "labels": lambda n: np.arange(n),
    "w": np.ones, "wRe": np.ones, "wIm": np.zeros, "target": np.zeros,
}  # fmt: skip


#: contents of the operands of elementwise operations, one alone and by their places
ALONE, OPERANDS = (-2, 0, 1.5), ((-1, 2, 3), (2, 2, 0.5), (3, 1, -1))


def _content(name: str, place: int, n: int, operands: int) -> Any:
    """The numbers in an array, n of them; `operands` of an elementwise operation, 0 otherwise."""
    if operands:
        return ALONE if operands == 1 else OPERANDS[place]
    return CONTENTS[name](n) if name in CONTENTS else (place == 0) + np.arange(n)


@dataclass(frozen=True)
class Example:
    """The arguments of an operation's example, and its results as float32 or indices."""

    arrays: Mapping[str, Any]
    values: Mapping[str, Any]
    results: tuple[np.ndarray, ...]


def example_of(row: Op) -> Example:
    """The example of a row."""
    sig, given = row.signature, dict(row.example)
    values: dict[str, Any] = {}
    for p in sig.params:
        default = None if p.default is None else float(p.default) if p.kind == "float" else int(p.default)
        values[p.name] = given.get(
            p.name, default if default is not None else SIZES.get(p.name, 0.5 if p.kind == "float" else 0)
        )
    for d in sig.dims:
        bare = d.lstrip("*")
        values[bare] = given.get(bare, SIZES.get(bare, 2))
    if sig.lists:
        values["lengths"] = (len(np.ravel(given.get(sig.lists[0].name, [1, 2]))),)
    if sig.elementwise:
        values["n"] = next((np.size(given[a.name]) for a in sig.inputs if a.name in given), 3)
    arrays: dict[str, Any] = {}
    for i, a in enumerate(sig.inputs):
        if a.optional and a.name not in given:
            arrays[a.name] = None
            continue
        shape = shape_of(a, values)
        content = given.get(a.name)
        if content is None:
            n = math.prod(shape)
            content = _content(a.name, i, n, len(sig.inputs) if sig.elementwise else 0)
        kind = np.int64 if a.kind in ("u32", "index") else np.float64
        arrays[a.name] = np.asarray(content, kind).reshape(shape)
    spec = {
        n: x if x is None or x.dtype == np.int64 else x.astype(np.float32).astype(np.float64) for n, x in arrays.items()
    }
    with np.errstate(all="ignore"):
        results = as_tuple(call_reference(row.reference, spec, values))
    shaped = [
        np.asarray(r, np.int64 if o.kind == "index" else np.float64 if o.host else np.float32).reshape(shape_of(o, values))
        for r, o in zip(results, sig.outputs, strict=True)
    ]  # fmt: skip
    return Example(arrays, values, tuple(shaped))


def _number(x: Any) -> str:
    """A number as a person writes it."""
    return str(int(x)) if float(x).is_integer() else f"{float(x):g}"


def _literal(x: Any) -> str:
    if isinstance(x, (list, tuple, np.ndarray)) and np.ndim(x):
        return f"[{', '.join(map(_literal, x))}]"
    return _number(x)


def _value(x: Any) -> str:
    """A size, a list of them, or a parameter."""
    return str(tuple(x)) if isinstance(x, (tuple, list)) else str(x)


def is_exact(result: np.ndarray) -> bool:
    """Whether all numbers are short in binary, so that they are printed as they are."""
    return bool(np.all((result * 1024 == np.round(result * 1024)) | ~np.isfinite(result)))


def result_lines(result: np.ndarray) -> list[str]:
    """What is printed of a result."""
    text = str(result if is_exact(result) else result.round(DECIMALS))
    return [line or "<BLANKLINE>" for line in text.split("\n")]


def continued(text: str) -> list[str]:
    """A statement as a session of the interpreter shows it."""
    return [f">>> {line}" if i == 0 else f"... {line}" for i, line in enumerate(text.split("\n"))]


def buffer_example(e: Entry) -> list[str]:
    """The lines of the example of an operation's function of buffers."""
    row, found = e.op, example_of(e.op)
    inputs = {a.name: a for a in e.signature.inputs}
    lines: list[str] = []
    call: list[str] = []
    numbers: list[tuple[str, str]] = []
    for a in arguments(e):
        if a.kind == "device":
            call += ["cpu"] * (a.default is None)
        elif a.of not in inputs:
            if a.default is None or a.of in row.example:
                numbers.append(
                    (a.name if a.keyword or a.default is not None else "", f"{a.name}={_value(found.values[a.of])}")
                )
        elif (content := found.arrays[a.of]) is not None:
            array = inputs[a.of]
            text = _literal(content)
            if not array.host:
                made = f"cpu.{'indices' if array.kind == 'index' else 'buffer'}({text})"
                lines.append(f">>> {a.name} = {f'[{made}]' if array.listed else made}")
                text = a.name
            call.append(f"{a.name}={text}" if a.keyword else text)
    if len(numbers) > MAX_UNNAMED:
        call += [text for _, text in numbers]
    else:
        call += [text if name else text.partition("=")[2] for name, text in numbers]
    call.sort(key=lambda item: "=" in item)  # positional ones first
    outputs = e.signature.outputs
    place = 0 if outputs[0].listed else len(outputs) - 1
    result = found.results[place]
    if outputs[0].listed:
        tail = ("[0][0]" if len(outputs) > 1 else "[0]") + ".numpy()"
    elif outputs[0].host:
        tail = ""
    else:
        tail = f"[{place}]" * (place > 0) + f".numpy({'' if result.ndim == 1 else result.shape})"
    tail += "" if is_exact(result) else f".round({DECIMALS})"
    return lines + continued(call_text(f"print(kernels.{e.name}", call, f"{tail})", WIDTH - 4)) + result_lines(result)


def method_example(m: Method) -> list[str]:
    """The lines of the example of a session's method that forwards to a row."""
    found = example_of(m.row)
    inputs = m.row.signature.inputs
    lines = ['>>> s = tlrt.Session("cpu")']
    lines += [f">>> {n} = s.const({_literal(found.arrays[a.name])})" for n, a in zip(m.operands, inputs, strict=True)]
    chosen = [p for p in m.parameters if p.default is None or p.name in m.row.example]
    call = [*m.operands, *(str(found.values[p.name]) for p in chosen)]
    result = found.results[0]
    tail = ").numpy()" + ("" if is_exact(result) else f".round({DECIMALS})")
    if m.row.signature.outputs[0].dims == ("1",):
        result = result.reshape(())
    return lines + continued(f"print(s.{m.row.name}({', '.join(call)}{tail})") + result_lines(result)
