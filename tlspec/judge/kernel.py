"""A kernel under test: how its function is called with a case's arguments, and what it returns.

Arguments go by name where the function's parameters are names of the row: inputs, dimensions, parameters of the operation, of a
gradient also outputs and cotangents. Otherwise inputs and then parameters go by position, as many as the function takes. A
string of names says another order (``"x, axis"``, by keyword ``"x, dim=axis"``); an adapter does all else.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tlspec.arrays import Arrays, patterns_of, whole_patterns_of
from tlspec.draw.cases import Case
from tlspec.formats import FORMATS, Format
from tlspec.judge.apart import Here, Runs
from tlspec.judge.runner import Answer, Failure, Parameters, Plain, Request
from tlspec.signature import WHOLE

#: layouts in which the arrays of elementwise operations have two axes
MATRICES = ("rows", "transposed", "inner", "channels", "mixed")

Adapter = Callable[[Callable[..., Any], Mapping[str, Any]], Any]


class Kernel:
    """A function on arrays of one library, in this process or, as `function` says, in another."""

    def __init__(
        self, function: Callable[..., Any] | Runs, arrays: Arrays | None, case: Case,
        arguments: str | Adapter | None = None,
    ):  # fmt: skip
        adapter = arguments if callable(arguments) else None
        if callable(function):
            assert arrays is not None
            self.runs: Runs = Here(function, adapter, arrays)
        else:
            self.runs = function
        sig = case.signature
        self.declared = {a.name: a for a in (*case.op.signature.inputs, *case.op.signature.outputs, *sig.outputs)}
        self.over = {o.name: o.over for o in sig.outputs if o.over}
        self.inputs = [a.name for a in sig.inputs]
        self.outputs = [a.name for a in sig.outputs]
        params = [p.name for p in case.op.signature.params]
        dims = [d.lstrip("*") for d in case.op.signature.dims]
        extra = [a.name for a in (*case.op.signature.inputs, *case.op.signature.outputs) if a.name not in self.inputs]
        self.known = {*self.inputs, *params, *dims, *extra}
        self.adapter: Adapter | None = adapter
        self.positional: list[str] = []
        self.keywords: dict[str, str] = {}
        if isinstance(arguments, str):
            self._read(arguments)
        elif self.adapter is None:
            self._infer(self.runs.parameters, [*self.inputs, *params])
        taken = {*self.positional, *self.keywords.values()}
        self.written = [o for o in self.outputs if o in taken and o not in self.inputs]
        if self.written and not self.runs.mutable:
            raise ValueError(
                f"{self.runs.name}: arrays cannot be written, so the kernel cannot take {', '.join(self.written)}"
            )

    def _read(self, text: str) -> None:
        for item in (t.strip() for t in text.split(",")):
            keyword, _, name = item.rpartition("=")
            name = name.strip()
            if name not in self.known | set(self.outputs):
                raise ValueError(f"arguments={text!r}: {name} is none of {', '.join(sorted(self.known))}")
            if keyword:
                self.keywords[keyword.strip()] = name
            else:
                self.positional.append(name)

    def _infer(self, parameters: Parameters | None, order: Sequence[str]) -> None:
        """Names where all that the function demands are known, else positions. What cannot be written need not be given."""
        if parameters is None:  # a compiled function: all of them
            self.positional = list(order)
            return
        kinds = inspect.Parameter
        by_keyword = (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
        known = self.known | set(self.outputs)
        results = set() if self.runs.mutable else set(self.outputs) - set(self.inputs)
        named = [name for name, kind, needed in parameters if kind in by_keyword and (needed or name not in results)]
        demanded = [
            (name, kind)
            for name, kind, needed in parameters
            if needed and kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
        ]
        if named and all(name in known and kind != kinds.POSITIONAL_ONLY for name, kind in demanded):
            self.keywords = {name: name for name in named if name in known}
            missing = [n for n in self.inputs if n not in self.keywords]
            if len(missing) < len(self.inputs) or not self.inputs:
                return
            self.keywords = {}
        if any(kind == kinds.VAR_POSITIONAL for _, kind, _ in parameters):
            self.positional = list(order)
        else:
            plain = [k for _, k, _ in parameters if k in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
            self.positional = list(order)[: len(plain)]

    @property
    def taken(self) -> set[str]:
        """The names that the function gets; all of them with an adapter."""
        return {*self.positional, *self.keywords.values()} if self.adapter is None else {*self.known}

    def prepare(
        self, case: Case, format: Format, results: Format, *, layout: str = "", shared: bool = False, garbage: int | None = None,
    ) -> Request:  # fmt: skip
        """The call with the arguments of a case. With a seed `garbage` the outputs that the kernel writes hold drawn numbers."""
        given: dict[str, Any] = {**case.inputs, **case.cotangents, **case.arguments}
        scalars: dict[str, Any] = {n: None for n, x in given.items() if x is None}
        for name, value in case.values.items():
            scalars[name] = [int(v) for v in value] if isinstance(value, (list, tuple, np.ndarray)) else value
        outputs = {a.name: a for a in case.signature.outputs}
        written = {n: WHOLE.get(outputs[n].kind) or outputs[n].format(results).container for n in self.written}
        shapes = {n: case.shape(a) for n, a in outputs.items()}
        arrays = {n: self._patterns(n, x, format) for n, x in given.items() if x is not None}
        if case.op.signature.elementwise and layout in MATRICES:  # which one axis cannot be
            (n,) = next(iter(shapes.values()))
            rows = next(r for r in range(max(math.isqrt(n), 1), 0, -1) if n % r == 0)
            shapes = dict.fromkeys(shapes, (rows, n // rows))
            arrays = {n: (t, x.reshape(rows, -1) if x.ndim == 1 else x) for n, (t, x) in arrays.items()}
        return Request(
            arrays, scalars, shapes, written, self.over,
            self.positional, self.keywords, self.inputs, layout if self.runs.mutable else "", shared, garbage,
        )  # fmt: skip

    def _patterns(self, name: str, x: np.ndarray, format: Format) -> tuple[str, np.ndarray]:
        """The type and the bit patterns of an argument: a number has the array's own format, else that of the call."""
        if x.dtype.kind == "f":
            own = self.declared[name].format(format) if name in self.declared else format
            return own.container, patterns_of(x, own)
        if x.dtype.kind == "b":
            return "bool", x.view(np.uint8)
        kind = "int64" if x.dtype == np.uint32 else x.dtype.name
        return kind, whole_patterns_of(x, kind)

    def __call__(self, request: Request, *, hold: bool = False) -> Answer:
        """What the kernel returns and leaves behind. Raises Failure, or NotImplementedError."""
        return self.runs.call(replace(request, hold=hold))

    def numbers(self, name: str, result: Plain, shape: tuple[int, ...], format: Format) -> np.ndarray:
        """A result's numbers in its shape. Raises Failure for another format or shape."""
        array = self.declared[name]
        indices = array.kind in ("u32", "index")
        wanted = "integers" if indices else WHOLE.get(array.kind) or array.format(format).container
        if result.dtype in FORMATS if indices else result.dtype not in (wanted, "bool", "uint8"):  # truth values
            raise Failure(f"{name}: a result in {result.dtype}, expected {wanted}")
        if result.patterns is None:
            raise Failure(f"{name}: a result of shape {result.shape}, expected {shape}")
        return numbers_of(result).reshape(shape)


def numbers_of(result: Plain) -> np.ndarray:
    """The elements of an array: float32 in its own type, others as float64."""
    assert result.patterns is not None
    if result.dtype == "float32":
        return result.patterns.view(np.float32)
    if result.dtype in FORMATS:
        return FORMATS[result.dtype].decode(result.patterns)
    return result.patterns.view(np.dtype(result.dtype)).astype(np.float64)
