"""The methods of tapes and sessions that follow from a row's signature."""

from __future__ import annotations

from dataclasses import dataclass

from tlspec.registry import Op
from tlspec.signature import Param


@dataclass(frozen=True)
class Method:
    """A method that forwards to a row: operands by their names in lower case, then the parameters and the sizes that only the
    result has."""

    row: Op
    sizes: tuple[str, ...]

    @classmethod
    def of(cls, row: Op) -> Method | None:
        """The method of a row, None where it does not follow from the signature."""
        sig = row.signature
        read = {d for a in sig.inputs for d in a.dims}
        sizes = tuple(d for d in sig.dims if d not in read)
        has_lists = any(d.startswith("*") and d != "*" for d in sig.dims)  # then an integer is an axis
        follows = (
            (row.vjp_rule is not None or row.family == "elementwise")
            and all(a.kind == "f32" and not a.optional for a in sig.inputs)
            and bool(sig.inputs)
            and len(sig.outputs) == 1
            and not (sizes and has_lists)
            and all(p.kind == "float" or (p.kind == "u32" and p.default is None and not has_lists) for p in sig.params)
        )
        return cls(row, sizes) if follows else None

    @property
    def operands(self) -> tuple[str, ...]:
        return tuple(a.name.lower() for a in self.row.signature.inputs)

    @property
    def parameters(self) -> tuple[Param, ...]:
        """The parameters, then the sizes of the result as integers."""
        return self.row.signature.params + tuple(Param(d, "u32") for d in self.sizes)

    @property
    def has_integers(self) -> bool:
        return any(p.kind == "u32" for p in self.parameters)

    @property
    def is_pair(self) -> bool:
        """Whether two operands are broadcast to their common shape."""
        sig = self.row.signature
        return all(a.elementwise for a in sig.inputs) and len(sig.inputs) == 2 and not sig.params

    @property
    def is_by_rows(self) -> bool:
        """Whether it works along the last axis of a tensor with any number of axes."""
        sig = self.row.signature
        return sig.inputs[0].dims == ("rows", "cols") == sig.outputs[0].dims

    @property
    def is_reduction(self) -> bool:
        """Whether it reduces all elements to a scalar."""
        sig = self.row.signature
        return len(sig.inputs) == 1 and sig.inputs[0].dims == ("n",) and sig.outputs[0].dims == ("1",)

    @property
    def head(self) -> str:
        """The line with the signature."""
        kinds = {"float": "float", "u32": "int"}
        given = [f"{p.name}: {kinds[p.kind]}" + (f" = {p.default}" if p.default else "") for p in self.parameters]
        return f"def {self.row.name}({', '.join(['self', *(f'{n}: Ref' for n in self.operands), *given])}) -> Ref:"

    @property
    def call(self) -> str:
        """The expression that forwards."""
        name, operands = self.row.name, ", ".join(self.operands)
        values = [p.name if p.kind == "float" else f'integer("{name}", "{p.name}", {p.name})' for p in self.parameters]
        extra = f"({', '.join(values)}{',' * (len(values) == 1)})" if values else ""
        if self.is_pair:
            return f'self._pair("{name}", {operands})'
        if self.is_by_rows:
            return f'self._by_rows("{name}", {operands}{f", extra={extra}" if extra else ""})'
        tail = f", {extra}" if extra else ""
        if self.is_reduction:
            return f'self._reduce_all("{name}", {operands}{tail})'
        return f'self._apply("{name}", ({operands}{"," * (len(self.operands) == 1)}){tail})'
