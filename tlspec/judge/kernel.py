"""A kernel under test: how its function is called with a case's arguments, and what it returns.

Arguments go by name where the function's parameters are names of the row: inputs, dimensions, parameters of the operation, of a
gradient also outputs and cotangents. Otherwise inputs and then parameters go by position, as many as the function takes. A
string of names says another order (``"x, axis"``, by keyword ``"x, dim=axis"``); an adapter does all else.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tlspec.arrays import Arrays
from tlspec.drawn import Case
from tlspec.formats import FORMATS, Format

Adapter = Callable[[Callable[..., Any], Mapping[str, Any]], Any]


class Failure(Exception):
    """What a kernel did wrong, besides numbers."""


@dataclass(frozen=True)
class Call:
    """The arguments of one call, made for the kernel's library, and the outputs that it is to write, with their canaries."""

    values: dict[str, Any]
    outputs: dict[str, Any]
    unchanged: dict[str, Callable[[], bool]]


class Kernel:
    """A function on arrays of one library."""

    def __init__(
        self, function: Callable[..., Any], arrays: Arrays, case: Case, arguments: str | Adapter | None = None, out: str = "auto"
    ):  # fmt: skip
        self.function, self.arrays = function, arrays
        sig = case.signature
        self.inputs = [a.name for a in sig.inputs]
        self.outputs = [a.name for a in sig.outputs]
        params = [p.name for p in case.op.signature.params]
        dims = [d.lstrip("*") for d in case.op.signature.dims]
        extra = [a.name for a in (*case.op.signature.inputs, *case.op.signature.outputs) if a.name not in self.inputs]
        self.known = {*self.inputs, *params, *dims, *extra}
        self.adapter: Adapter | None = arguments if callable(arguments) else None
        self.positional: list[str] = []
        self.keywords: dict[str, str] = {}
        writable = arrays.mutable and out != "returned"
        if isinstance(arguments, str):
            self._read(arguments)
        elif self.adapter is None:
            self._infer([*self.inputs, *params], writable)
        taken = {*self.positional, *self.keywords.values()}
        self.written = [o for o in self.outputs if o in taken and o not in self.inputs]
        if self.written and not arrays.mutable:
            raise ValueError(
                f"{arrays.name}: arrays cannot be written, so the kernel cannot take {', '.join(self.written)}"
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

    def _infer(self, order: Sequence[str], writable: bool) -> None:
        """Names where all that the function demands are known, else positions."""
        try:
            parameters = list(inspect.signature(self.function).parameters.values())
        except (TypeError, ValueError):  # a compiled function: all of them
            self.positional = list(order)
            return
        plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        known = self.known | (set(self.outputs) if writable else set())
        demanded = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if named and all(p.name in known and p.kind is not p.POSITIONAL_ONLY for p in demanded):
            self.keywords = {p.name: p.name for p in named if p.name in known}
            missing = [n for n in self.inputs if n not in self.keywords]
            if len(missing) < len(self.inputs) or not self.inputs:
                return
            self.keywords = {}
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            self.positional = list(order)
        else:
            self.positional = list(order)[: len(plain)]

    @property
    def taken(self) -> set[str]:
        """The names that the function gets; all of them with an adapter."""
        return {*self.positional, *self.keywords.values()} if self.adapter is None else {*self.known}

    def prepare(self, case: Case, format: Format, results: Format, *, strided: bool = False) -> Call:
        """The arguments of a case as arrays of the library."""
        arrays = {**case.inputs, **case.cotangents, **case.arguments}
        values: dict[str, Any] = {}
        for name, x in arrays.items():
            if x is None:
                values[name] = None
            elif x.dtype.kind == "f":
                values[name] = self.arrays.make(x, format, strided=strided and self.arrays.mutable)
            else:
                values[name] = self.arrays.integers(x)
        for name, value in case.values.items():
            values[name] = [int(v) for v in value] if isinstance(value, (list, tuple, np.ndarray)) else value
        outputs, unchanged = {}, {}
        for array in case.signature.outputs:
            if array.name in self.written:
                outputs[array.name], unchanged[array.name] = self.arrays.empty_poisoned(case.shape(array), results)
        return Call(values, outputs, unchanged)

    def __call__(self, call: Call) -> list[Any]:
        """The results, one for each output. Raises Failure where there are too few."""
        try:
            with np.errstate(all="ignore"):
                return self._called(call, {**call.values, **call.outputs})
        except SystemExit as end:
            raise Failure(f"the kernel ended the program with status {end.code!r}, expected results") from None

    def _called(self, call: Call, values: dict[str, Any]) -> list[Any]:
        if self.adapter is not None:
            returned = self.adapter(self.function, values)
        else:
            given = [values[n] for n in self.positional]
            while given and given[-1] is None:  # an optional argument at the end
                given.pop()
            keywords = {k: values[n] for k, n in self.keywords.items() if values[n] is not None or n in self.inputs}
            returned = self.function(*given, **keywords)
        if returned is None and self.written:
            returned = [call.outputs[n] for n in self.outputs]
        if isinstance(returned, Mapping):
            returned = [returned.get(n) for n in self.outputs]
        found = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        if len(found) != len(self.outputs) or any(r is None for r in found):
            raise Failure(f"returned {len(found)} results, expected {len(self.outputs)}: {', '.join(self.outputs)}")
        return found

    def numbers(self, name: str, result: Any, shape: tuple[int, ...], format: Format) -> np.ndarray:
        """A result's numbers in its shape. Raises Failure for another format or shape."""
        try:
            got = self.arrays.format_of(result)
        except TypeError:
            got = None  # truth values and indices
        if got is not None and got.name != FORMATS[format.container].name:
            raise Failure(f"{name}: a result in {got.name}, expected {format.container}")
        found = tuple(self.arrays.shape(result))
        if found != shape and (found, shape) != ((), (1,)):  # a number stands for the one element of a result
            raise Failure(f"{name}: a result of shape {found}, expected {shape}")
        return self.arrays.numbers(result).reshape(shape)
