"""``verify --inputs FILE.npz``: operations checked on the user's own arrays.

The file holds arrays named as an operation names its inputs; their shapes give the dimensions. Scalars, dimension lists,
parameters and dimensions that no input shows are arrays of their own name; parameters with a default may be left out. A list
is an array of all its numbers, with `lengths` for where to cut it.
Cotangents (``g``) are drawn unless the file has them. float64, integers and bool are converted to float32 once.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tlrt.errors import refusal
from tlspec.draw.cases import Case, build_case, cotangent_names, evaluate, generator, refused_by, shape_of
from tlspec.registry import Array, Op, Param
from tlspec.shapes import MOST_AXES

#: elements, and sizes of dimensions, are below it
LIMIT = 2**32


class InputError(ValueError):
    """The file does not fit the operation: says which array, what it is and what was expected."""


def cases_of(path: Path, rows: Sequence[Op], *, named: bool, seed: int = 0) -> Iterator[tuple[Op, str, list[Case]]]:
    """The cases of every row that the file fits. Rows `named` by the user must fit; else those that do not are left out."""
    arrays = _read(path)
    found = 0
    problems: list[tuple[int, str]] = []
    for row in rows:
        try:
            values, given = infer(row, arrays)
        except InputError as error:
            if named and len(rows) == 1:
                raise
            absent = sum(a.name not in arrays for a in row.signature.inputs) - sum(
                a.name in arrays for a in row.signature.inputs
            )
            problems.append((absent, str(error)))
            continue
        found += 1
        command = f"python -m tlrt verify --ops {row.name} --inputs {shlex.quote(str(path))} --seed {seed}"
        for which in ("forward", "vjp") if row.vjp_rule is not None else ("forward",):
            rng = generator(row.name, seed, "inputs")
            yield row, which, [build_case(row, values, given, rng, seed=seed, which=which, command=command)]
    if not found:
        detail = "\n  ".join(text for _, text in sorted(problems, key=lambda p: p[0])[:5])  # the nearest misses
        raise InputError(f"{path} has {', '.join(arrays) or 'no arrays'}, which fit no operation:\n  {detail}")
    if named and problems:
        raise InputError("\n  ".join(text for _, text in problems))


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file."""
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise InputError(f"{path}: got a single array (.npy), expected named arrays (.npz, numpy.savez)")
        with file:
            return {k: file[k] for k in file.files}
    except InputError:
        raise
    except OSError as error:
        raise InputError(str(error) if error.filename else f"{path}: {error}") from None
    except Exception as error:  # NumPy, zipfile and zlib each have errors of their own for a damaged file
        raise InputError(f"{path}: no .npz file that can be read ({type(error).__name__}: {error})") from None


def infer(op: Op, arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Dimensions and parameters from the arrays' shapes and the file's scalars, and the inputs in their declared shapes."""
    sig = op.signature
    values: dict[str, Any] = {}
    known = {i.lstrip("*"): i.startswith("*") for i in sig.dims}
    for name, is_list in known.items():
        if name in arrays:
            values[name] = _integers(op, name, arrays[name]) if is_list else _integer(op, name, arrays[name])
    for p in sig.params:
        values[p.name] = _parameter(op, p, arrays)
    if sig.lists:
        values |= _lengths(op, arrays)
    inputs: dict[str, np.ndarray] = {}
    absent = [a.name for a in sig.inputs if not a.optional and a.name not in arrays]
    if absent:
        raise InputError(f"{op.name}: {', '.join(absent)}: not in the file; expected {op.text}")
    for a in sig.inputs:
        if a.name in arrays:
            inputs[a.name] = _convert(op, a, arrays[a.name])
            _bind(op, a, inputs[a.name], values)
    if missing := [n for n in known if n not in values]:
        raise InputError(f"{op.name}: {', '.join(missing)}: not given by a shape; add it to the file by name")
    for name, size in [(n, v) for n in known for v in np.atleast_1d(values[n]).tolist()]:
        if size >= LIMIT:
            raise refusal(InputError, op.name, name, size, "below 2^32")
    lists = {n for n, is_list in known.items() if is_list} | {p.name for p in sig.params if p.kind == "dims"}
    for name in sorted(lists):
        if len(values[name]) > MOST_AXES:
            raise refusal(InputError, op.name, name, f"{len(values[name])} axes", f"at most {MOST_AXES}")
    if (check := refused_by(op, {**{a.name: inputs.get(a.name) for a in sig.inputs}, **values})) is not None:
        raise InputError(f"{op.name}: {check.name}: expected {check.say or check.expression}")
    for a in sig.inputs + sig.outputs:
        if not a.elementwise and (n := math.prod(shape_of(a, values))) >= LIMIT:
            raise InputError(f"{op.name}: {a.name}: [{', '.join(a.dims)}] has {n} elements, expected fewer than 2^32")
    given: dict[str, Any] = {a.name: None for a in sig.inputs if a.optional}
    length = None
    for a in sig.inputs:
        if a.name not in inputs:
            continue
        x = inputs[a.name]
        if a.elementwise:
            length = x.size if length is None else length
            if x.size != length:
                raise refusal(InputError, op.name, a.name, f"{x.size} elements", f"{length}, as the other operands")
            given[a.name] = x.reshape(-1)
            continue
        shape = shape_of(a, values)
        if x.size != int(np.prod(shape, dtype=np.int64)) or (x.ndim > 1 and x.shape != shape):
            raise refusal(InputError, op.name, a.name, f"shape {x.shape}", f"{list(a.dims)} = {shape}")
        given[a.name] = x.reshape(shape)
    if length is not None:
        values["n"] = length
    for name, out in cotangent_names(op).items():
        if name in arrays and op.vjp_rule is not None:
            g = _convert(op, Array(name, out.dims, out.kind), arrays[name])
            shape = (length,) if length is not None else shape_of(out, values)
            if g.size != int(np.prod(shape, dtype=np.int64)):
                raise refusal(InputError, op.name, name, f"shape {g.shape}", shape)
            given[name] = g.reshape(shape)
    return values, given


def _lengths(op: Op, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The lengths of a list's elements, which the file holds end to end: those in the file, else one element of all."""
    first, count = op.signature.lists[0], op.signature.lists[0].dims[0]
    if "lengths" in arrays:
        lengths = _integers(op, "lengths", arrays["lengths"])
    else:
        lengths = [arrays[first.name].size] if first.name in arrays else []
    if count in arrays and (got := _integer(op, count, arrays[count])) != len(lengths):
        raise refusal(InputError, op.name, count, got, f"{len(lengths)}, as there are lengths")
    return {"lengths": lengths, count: len(lengths)}


def _bind(op: Op, a: Array, x: np.ndarray, values: dict[str, Any]) -> None:
    """Reads dimensions off the shape of one input."""
    if a.elementwise or a.listed:
        return
    stars = [i for i, d in enumerate(a.dims) if d.startswith("*")]
    if not stars and x.ndim != len(a.dims):
        if all(is_known(d, values) for d in a.dims):
            return  # flat, with its dimensions in the file
        raise refusal(InputError, op.name, a.name, f"shape {x.shape}", f"{len(a.dims)} axes [{', '.join(a.dims)}]")
    items = list(a.dims)
    sizes: list[Any] = list(x.shape)
    if stars:
        at, rest = stars[0], len(items) - 1
        if x.ndim < rest:
            raise refusal(InputError, op.name, a.name, f"shape {x.shape}", f"[{', '.join(a.dims)}]")
        sizes = [*x.shape[:at], list(x.shape[at : x.ndim - (rest - at)]), *x.shape[x.ndim - (rest - at) :]]
        name = items[at][1:]
        if name in values and len(values[name]) != len(sizes[at]) and math.prod(values[name]) == x.size:
            return  # flat, with its list in the file
    for item, size in zip(items, sizes, strict=True):
        name = item.lstrip("*")
        if not name.isidentifier():
            continue
        if name in values and values[name] != size:
            raise refusal(InputError, op.name, a.name, f"shape {x.shape}: {name} = {size}", f"{name} = {values[name]}")
        values[name] = size


def is_known(expression: str, values: Mapping[str, Any]) -> bool:
    """Whether all names of an expression are known."""
    try:
        evaluate(expression.lstrip("*"), values)
    except NameError:
        return False
    return True


def _convert(op: Op, a: Array, x: np.ndarray) -> np.ndarray:
    if x.dtype.kind not in "fiub" or x.dtype.itemsize > 8 or x.dtype == np.float16:
        raise refusal(InputError, op.name, a.name, f"dtype {x.dtype}", "float32, float64, integers or bool")
    if a.kind in ("u32", "index"):
        if x.dtype.kind not in "iu" or (x.size and (int(x.min()) < 0 or int(x.max()) >= 2**32)):
            raise InputError(f"{op.name}: {a.name}: expected integers in [0, 2^32)")
        return np.ascontiguousarray(x.astype(np.uint32))
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(x.astype(np.float64 if a.kind == "f64" else np.float32))


def _integer(op: Op, name: str, x: np.ndarray, bits: int = 32) -> int:
    if x.size != 1 or x.dtype.kind not in "iu":
        raise refusal(InputError, op.name, name, f"{x.dtype} of shape {x.shape}", "one integer")
    return _in_range(op, name, int(x.reshape(())), bits)


def _integers(op: Op, name: str, x: np.ndarray) -> list[int]:
    # an empty list comes as float64
    if x.ndim > 1 or (x.dtype.kind not in "iu" and x.size):
        raise refusal(InputError, op.name, name, f"{x.dtype} of shape {x.shape}", "a list of integers")
    return [_in_range(op, name, int(v), 32) for v in x.reshape(-1)]


def _in_range(op: Op, name: str, value: int, bits: int) -> int:
    if not 0 <= value < 2**bits:
        raise refusal(InputError, op.name, name, value, f"an integer in [0, 2^{bits})")
    return value


def _parameter(op: Op, p: Param, arrays: Mapping[str, np.ndarray]) -> Any:
    if p.name not in arrays:
        if p.default is None:
            raise InputError(f"{op.name}: {p.name}: not in the file, and it has no default; expected {op.text}")
        return float(np.float32(float(p.default))) if p.kind == "float" else int(p.default)
    x = arrays[p.name]
    if p.kind == "dims":
        return _integers(op, p.name, x)
    if p.kind != "float":
        return _integer(op, p.name, x, 64 if p.kind == "u64" else 32)
    if x.size != 1 or x.dtype.kind not in "fiub":
        raise refusal(InputError, op.name, p.name, f"{x.dtype} of shape {x.shape}", "one number")
    return float(np.float32(x.reshape(())))
