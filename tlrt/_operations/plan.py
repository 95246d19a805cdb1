"""Plans: how a tape calls an operation of the registry on shaped buffers, and its vector-Jacobian product.

A row of the registry says how many elements each buffer has as a function of dimensions; a tape knows shapes. A plan is the
row with the dimensions read from the shapes once: the result's shape, the arguments after the buffers, and which buffers
the VJP reads. Plans are cached by operation, shapes and parameters, so a step of a training loop finds them made.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tlrt.errors import ArgumentError, ArgumentTypeError, ShapeError, refusal
from tlspec import registry
from tlspec.case import shape_of
from tlspec.entries import arguments_of, composition_arguments
from tlspec.expressions import evaluate

Shape = tuple[int, ...]


@lru_cache(maxsize=1)
def _rows() -> dict[str, registry.Op]:
    return {r.name: r for r in registry.operations()}


class _ArrayRead:
    """A placeholder for an array that a VJP reads, while its composition is traced; `place` is its place in the pool."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


class _DelayedCall:
    """One call of a composed VJP, to be made when its result is needed."""

    __slots__ = ("arguments", "function", "keywords")

    def __init__(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.function = function
        self.arguments = arguments
        self.keywords = keywords

    def run(self, pool: Sequence[Any]) -> Any:
        """The result, with the arrays in place of their placeholders."""
        given = [
            pool[a.place] if type(a) is _ArrayRead else a.run(pool) if type(a) is _DelayedCall else a
            for a in self.arguments
        ]
        return self.function(*given, **self.keywords)


class _Trace:
    """``tlrt.kernels`` for tracing: a call gives a :class:`_DelayedCall`."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._kernels, name)
        return lambda *arguments, **keywords: _DelayedCall(function, arguments, keywords)


class Plan:
    """One operation on buffers of given shapes.

    Device buffers are called parents, in the order of the row's inputs, None where an optional one is left out; host arrays
    (indices, labels) come beside them by name. What the VJP reads is taken from a pool: the parents' buffers, the result,
    the cotangent, the host arrays."""

    __slots__ = ("_back_function", "_back_keywords", "_back_optional", "_back_reads", "_back_tail", "_calls", "_function",
                 "_inputs", "_keywords", "_optional", "_plain", "_tail", "gives", "name", "partial", "row", "shape",
                 "shares", "values")  # fmt: skip

    def __init__(self, kernels: Any, row: registry.Op, values: dict[str, Any], shape: Shape) -> None:
        self.name = row.name
        self.row = row
        #: dimensions and parameters by name
        self.values = values
        self.shape = shape
        sig = row.signature
        place = {a.name: i for i, a in enumerate(sig.buffers)}
        self._function = getattr(kernels, row.name)
        self._inputs = [(a.name, place.get(a.name, -1)) for a in sig.inputs if not a.optional]
        self._optional = [(a.name, place[a.name]) for a in sig.inputs if a.optional]
        self._plain = not self._optional and all(i >= 0 for _, i in self._inputs)
        self._tail, self._keywords = _arguments(row.name, values)
        rule = row.vjp_rule
        #: places of the parents that the VJP has gradients for, in its order
        self.gives: list[int] = [] if rule is None else [place[give[1:]] for give in rule.gives]
        #: whether there are parents it has none for
        self.partial = len(self.gives) < len(place)
        #: one call per gradient, of a VJP composed of other operations
        self._calls: list[_DelayedCall] | None = None
        #: whether a gradient may share the storage of the cotangent
        self.shares = False
        if rule is None:
            return
        pool = {**place, sig.outputs[0].name: len(place), "g": len(place) + 1}
        pool.update(
            {a.name: len(place) + 2 + i for i, a in enumerate(a for a in sig.inputs if a.host or a.kind == "index")}
        )
        if rule.via is not None:
            reads = [_ArrayRead(pool[r]) for r in rule.reads]
            made = rule.via(_Trace(kernels), *reads, **composition_arguments(row, values))
            self._calls = list(made) if isinstance(made, tuple) else [made]
            self.shares = any(call.function is kernels.share for call in self._calls)
            return
        optional = {a.name for a in sig.inputs if a.optional}
        self._back_reads = [pool[r] for r in rule.reads if r not in optional]
        self._back_optional = [(r, pool[r]) for r in rule.reads if r in optional]
        self._back_tail, self._back_keywords = _arguments(f"{row.name}_bwd", values)
        self._back_function = getattr(kernels, f"{row.name}_bwd")

    def run(self, buffers: Sequence[Any], hosts: Mapping[str, Any] | None) -> Any:
        """The operation's result, a new buffer."""
        if self._plain:
            return self._function(*buffers, *self._tail, **self._keywords)
        arguments = [buffers[i] if i >= 0 else hosts[name] for name, i in self._inputs]  # type: ignore[index]
        extra = {name: buffers[i] for name, i in self._optional if buffers[i] is not None}
        return self._function(*arguments, *self._tail, **self._keywords, **extra)

    def vjp(self, pool: Sequence[Any], needs: Sequence[bool]) -> list[tuple[int, Any]]:
        """The VJP: (place of the parent, its gradient, a new buffer) for each parent that `needs` one; no other is computed."""
        gives = self.gives
        if self._calls is not None:
            made: list[tuple[int, Any]] = []
            try:
                for place, call in zip(gives, self._calls, strict=True):
                    if needs[place]:
                        made.append((place, call.run(pool)))
            except BaseException:
                for _, gradient in made:
                    gradient.release()
                raise
            return made
        arguments = [pool[i] for i in self._back_reads]
        extra = self._back_keywords
        if self._back_optional:
            extra = {**extra, **{name: pool[i] for name, i in self._back_optional}}
        if len(gives) == 1:
            return [(gives[0], self._back_function(*arguments, *self._back_tail, **extra))]
        want = [needs[i] for i in gives]
        if all(want):
            found = self._back_function(*arguments, *self._back_tail, **extra)
            return list(zip(gives, found, strict=True))
        found = self._back_function(*arguments, *self._back_tail, **extra, want=want)
        return [(place, gradient) for place, gradient in zip(gives, found, strict=True) if gradient is not None]


def _arguments(entry: str, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function of ``tlrt.kernels`` after its buffers: positional ones and by keyword."""
    after = [a for a in arguments_of(entry) if a.kind not in ("device", "buffer", "index", "u32", "f64")]
    return tuple(values[a.of] for a in after if not a.keyword), {a.name: values[a.of] for a in after if a.keyword}


def make_plan(
    kernels: Any, name: str, shapes: Sequence[Shape | None], extra: Sequence[Any], lengths: Mapping[str, int]
) -> Plan:
    """The plan of operation `name` on parents of these shapes.

    `extra` holds the row's parameters in their order, then the dimensions and dimension lists that only the outputs have;
    `lengths` the lengths of the host arrays. Raises ShapeError where the shapes do not fit the row's signature."""
    row = _rows()[name]
    sig = row.signature
    values: dict[str, Any] = {}
    read = {d for a in sig.inputs if a.kind != "index" for d in a.dims}
    free = [d for d in sig.dims if d not in read]
    names = [p.name for p in sig.params] + [d.lstrip("*") for d in free]
    if len(extra) > len(names):
        raise refusal(ArgumentError, name, "", f"{len(extra)} parameters", ", ".join(names) or "none")
    values.update(zip(names, extra, strict=False))
    for p in sig.params:
        if p.name not in values:
            if p.default is None:
                raise ArgumentError(f"{name}: {p.name}: missing", op=name)
            values[p.name] = float(p.default) if p.kind == "float" else int(p.default)
        elif p.kind == "float" and (isinstance(values[p.name], (str, bytes)) or hasattr(values[p.name], "session")):
            raise refusal(ArgumentTypeError, name, p.name, type(values[p.name]).__name__, "a number")
    if len(shapes) != len(sig.buffers):
        raise refusal(ArgumentError, name, "", f"{len(shapes)} tensors", len(sig.buffers))
    shape: Shape | None = None
    for array, got in zip(sig.buffers, shapes, strict=True):
        if got is None:
            if not array.optional:
                raise ArgumentError(f"{name}: {array.name}: missing", op=name)
        elif array.elementwise:
            if shape is not None and got != shape:
                raise refusal(ShapeError, name, array.name, f"shape {got}", shape)
            shape = got
        else:
            _read_dimensions(name, array, got, values)
    for array in sig.inputs:
        if array.host and len(array.dims) == 1 and array.dims[0].isidentifier():
            known = values.setdefault(array.dims[0], lengths[array.name])
            if known != lengths[array.name]:
                expected = f"{array.dims[0]} = {known}"
                raise refusal(ShapeError, name, array.name, f"{lengths[array.name]} elements", expected)
    out = sig.outputs[0]
    if not out.elementwise:
        # one element is a scalar; for what the row's checks refuse there is a shape, too, and the operation raises
        shape = () if out.dims == ("1",) else shape_of(out, values)
    assert shape is not None
    return Plan(kernels, row, values, shape)


def _read_dimensions(op: str, array: registry.Array, got: Shape, values: dict[str, Any]) -> None:
    """Reads the array's dimensions off a shape, or compares them where they are known."""
    dims = array.dims
    declared = f"({', '.join(dims)})"
    star = next((i for i, d in enumerate(dims) if d.startswith("*")), None)
    fixed = len(dims) - (star is not None)
    if len(got) < fixed or (star is None and len(got) > fixed):
        raise refusal(ShapeError, op, array.name, f"shape {got}", declared)
    pairs: list[tuple[str, Any]] = []
    if star is None:
        pairs = list(zip(dims, got, strict=True))
    else:
        after = len(dims) - star - 1
        end = len(got) - after
        pairs = [
            *zip(dims[:star], got[:star], strict=True),
            (dims[star][1:], list(got[star:end])),
            *zip(dims[star + 1 :], got[end:], strict=True),
        ]
    for name, size in pairs:
        if not name.isidentifier():
            wanted = evaluate(name, values)
        elif name in values:
            wanted = values[name]
        else:
            values[name] = size
            continue
        if wanted != size:
            raise refusal(ShapeError, op, array.name, f"shape {got}", f"{declared} with {name} = {wanted}")
