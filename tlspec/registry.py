"""The registry: one row per operation.

The decorator :func:`op` on a reference function is the only place where an operation's signature is written. From the
row come the C declaration and its argument checks, the kernel prototypes, the Python function, the documentation, the
drawn test cases, the verify run and the benchmark rows.

Signature grammar
-----------------
``INPUTS [; PARAMETERS] -> OUTPUTS``, each a comma-separated list.

Inputs
    ``A[batch, m, n]``   a device buffer of ``batch*m*n`` float32, row-major
    ``x[*]``             an elementwise operand: any shape; its length is not passed
    ``x[*dims]``         a buffer whose shape is the dimension list ``dims`` (rank at most 8)
    ``mask?[n, n]``      a buffer that may be left out (NULL in C, None in Python)
    ``indices: u32[k]``  a host array of uint32; ``A: f64[m, n]`` a host array of float64
    ``ps: list[count]``  `count` device buffers (``torchlean_buffer *const *`` in C, a sequence in Python), each of its own
                         length; all lists of a row have one `count`, and elements of one index have one length
Parameters
    ``c: float``         crosses as double, rounded to float32 once on entry; ``eps: float = 1e-6`` has a default
    ``axis: u32``        an unsigned integer below 2^32; ``seed: u64`` likewise below 2^64
    ``axis_map: dims``   a list of at most 8 unsigned integers (pointer and length in C)
Outputs
    ``out[rows, n // 2 + 1]``      integer expressions over dimensions and parameters
    ``out[*drop(dims, axis)]``     a function of :mod:`tlspec.shapes`, named the same in C
    ``out: f64[m, p]``             a host array the caller supplies
    ``ps_out: list[count]``        a list of outputs of the lengths of the input lists; each may be the input of its index, as
                                   the operation is elementwise; a row has either lists or other outputs

In C the order is: inputs, dimensions in order of first appearance (or as ``order="rows, cols"`` says), parameters, outputs.
A dimension list is a pointer and a rank. A VJP has the signature ``"A, B, g -> gA, gB"``: each name on the left is an input, an
output, or ``g`` (``g_NAME`` where there are several outputs), each name on the right is ``g`` and an input; shapes follow from
the operation's own.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tlspec.bounds import Bound

__all__ = ["FAMILIES", "Array", "Check", "Op", "Param", "Signature", "Vjp", "check", "families", "get", "op", "ops"]

#: Families in the order of every listing. A family is a module of ``tlspec.ops`` and a file stem in ``native/src``.
FAMILIES = (
    "elementwise", "reduce", "shape", "index", "linalg", "softmax", "norm", "loss", "conv", "pool", "attention", "scan",
    "spectral", "random", "optim",
)  # fmt: skip

#: Names no argument may have: C keywords the grammar could meet, and names the generated code uses itself.
RESERVED = frozenset({"call", "int", "float", "double", "const", "register", "restrict", "return", "status", "inline"})


@dataclass(frozen=True)
class Array:
    """A buffer or host array of a signature."""

    name: str
    dims: tuple[str, ...]
    kind: str = "f32"  # f32: device buffer; list: device buffers; u32, f64: host array
    optional: bool = False

    @property
    def elementwise(self) -> bool:
        return self.dims == ("*",)

    @property
    def host(self) -> bool:
        return self.kind in ("u32", "f64")

    @property
    def listed(self) -> bool:
        return self.kind == "list"

    @property
    def spelled(self) -> str:
        """The number of elements as the error message and the header spell it: ``batch*m*n``."""
        if self.elementwise:
            return "n"
        parts = [f"product({d[1:]})" if d.startswith("*") else d for d in self.dims]
        return "*".join(f"({p})" if re.search(r"[ +\-/]", p) and len(parts) > 1 else p for p in parts) or "1"


@dataclass(frozen=True)
class Param:
    """A scalar or list parameter of a signature."""

    name: str
    kind: str  # float, u32, u64, dims
    default: str | None = None


@dataclass(frozen=True)
class Check:
    """A precondition beyond lengths: a Python expression over dimensions and parameters that must hold."""

    name: str
    expression: str
    status: str
    say: str | None = None


def check(name: str, expression: str, status: str = "ARGUMENT", say: str | None = None) -> Check:
    """A row's precondition. `name` is the argument to blame, `status` the code refused with, `say` replaces the expression
    in the message. The expression may use ``rank(dims)`` and the functions of :mod:`tlspec.shapes`."""
    ast.parse(expression, mode="eval")
    return Check(name, expression, status, say)


@dataclass(frozen=True)
class Signature:
    inputs: tuple[Array, ...]
    params: tuple[Param, ...]
    outputs: tuple[Array, ...]
    #: names of dimensions and dimension lists ("*dims") in C order: first appearance in inputs, then in outputs
    dims: tuple[str, ...]

    @property
    def elementwise(self) -> bool:
        return any(a.elementwise for a in self.inputs)

    @property
    def buffers(self) -> tuple[Array, ...]:
        return tuple(a for a in self.inputs if a.kind == "f32")

    @property
    def lists(self) -> tuple[Array, ...]:
        """The lists among the inputs."""
        return tuple(a for a in self.inputs if a.listed)

    @property
    def sizes(self) -> tuple[str, ...]:
        """What sizes a case: the dimensions, and with lists the lengths of their elements. A case holds a list as one array,
        its elements end to end."""
        return (*(d.lstrip("*") for d in self.dims), *(["lengths"] if self.lists else []))

    @property
    def needs_context(self) -> bool:
        """True when no input buffer tells the context, so the caller passes it; a list may be empty and tells none."""
        return not any(not a.optional for a in self.buffers)

    @staticmethod
    def parse(text: str, order: str | None = None) -> Signature:
        """Reads a signature; `order` lists the dimensions where C wants another order than that of first appearance."""
        left, arrow, right = text.partition("->")
        if not arrow:
            raise ValueError(f"signature has no '->': {text!r}")
        inputs_text, _, params_text = left.partition(";")
        inputs = tuple(_parse_array(t) for t in _split(inputs_text))
        params = tuple(_parse_param(t) for t in _split(params_text))
        outputs = tuple(_parse_array(t) for t in _split(right))
        if not outputs:
            raise ValueError(f"signature has no output: {text!r}")
        param_names = {p.name for p in params}
        dims: dict[str, None] = {}
        for array in inputs + outputs:
            for item in array.dims:
                bare = item[1:] if item.startswith("*") else item
                if item != "*" and bare.isidentifier() and bare not in param_names:
                    dims.setdefault(item)
        names = (
            [a.name for a in inputs]
            + [d.lstrip("*") for d in dims]
            + [p.name for p in params]
            + [a.name for a in outputs]
        )
        if clash := {n for n in names if names.count(n) > 1} | (RESERVED & set(names)):
            raise ValueError(f"names used twice or reserved: {sorted(clash)} in {text!r}")
        if order is not None:
            listed = tuple(_split(order))
            if sorted(listed) != sorted(dims):
                raise ValueError(f"order {order!r} is no permutation of the dimensions {list(dims)} of {text!r}")
            dims = dict.fromkeys(listed)
        lists = [a for a in inputs + outputs if a.listed]
        if lists and (len({a.dims for a in lists}) > 1 or not lists[0].dims or any(a.optional for a in lists)):
            raise ValueError(f"lists have one dimension, the same for all, and are not optional: {text!r}")
        if lists and (not lists[0].dims[0].isidentifier() or "lengths" in names):
            raise ValueError(f"a list's dimension is a name, and `lengths` is taken: {text!r}")
        if any(o.listed for o in outputs) and not (all(o.listed for o in outputs) and any(a.listed for a in inputs)):
            raise ValueError(f"outputs are all lists or none, and lists of outputs need lists of inputs: {text!r}")
        if any(a.elementwise for a in inputs) and dims:
            raise ValueError(f"[*] and named dimensions do not mix: {text!r}")
        return Signature(inputs, params, outputs, tuple(dims))


def _split(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for i, ch in enumerate(text):
        depth += (ch in "[(") - (ch in "])")
        if ch == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    if text[start:].strip():
        yield text[start:].strip()


_ARRAY = re.compile(r"^(?P<name>[A-Za-z]\w*)(?P<opt>\?)?(?:\s*:\s*(?P<kind>u32|f64|list))?\s*\[(?P<dims>.*)\]$")
_PARAM = re.compile(r"^(?P<name>[A-Za-z]\w*)\s*:\s*(?P<kind>float|u32|u64|dims)(?:\s*=\s*(?P<default>.+))?$")


def _parse_array(text: str) -> Array:
    m = _ARRAY.match(text)
    if not m:
        raise ValueError(f"not an array: {text!r}")
    dims = tuple(_split(m["dims"]))
    return Array(m["name"], dims, m["kind"] or "f32", bool(m["opt"]))


def _parse_param(text: str) -> Param:
    m = _PARAM.match(text)
    if not m:
        raise ValueError(f"not a parameter: {text!r}")
    return Param(m["name"], m["kind"], m["default"])


@dataclass
class Vjp:
    """The vector-Jacobian product of an operation."""

    reads: tuple[str, ...]  # names of inputs, outputs, and cotangents, in the C order
    gives: tuple[str, ...]  # "gA": the gradient of input A
    reference: Callable[..., Any]
    bound: Bound
    #: composes the VJP from other operations (no kernel of its own): f(k, *reads, **dims and params) with k a namespace
    #: that has every operation as a function
    via: Callable[..., Any] | None = None
    #: suffixes of further entry points that compute one gradient each: ("q", "k", "v")
    each: tuple[str, ...] = ()
    doc: str = ""


@dataclass
class Op:
    """One row of the registry."""

    name: str
    family: str
    text: str
    signature: Signature
    reference: Callable[..., Any]
    bound: Bound
    #: CPU and CUDA give the same bits
    same_bits: bool = True
    #: what computes it on CUDA: "own" kernel or the library's name
    cuda: str = "own"
    checks: tuple[Check, ...] = ()
    #: draws dimensions and parameters: draw(d) -> dict, d a :class:`tlspec.cases.Draw`; what it leaves out is drawn there
    draw: Callable[..., dict[str, Any]] | None = None
    #: dimensions and parameters that reach kernels which drawn sizes seldom do (a GPU's, for larger problems); verify and
    #: the tests try each. A value may be a function of a numpy Generator
    paths: tuple[dict[str, Any], ...] = ()
    #: inputs that are squares or norms, drawn as absolute values except among special ones
    nonnegative: tuple[str, ...] = ()
    #: value classes of tlspec.cases the row is drawn with; None is the default of its bound
    data: tuple[str, ...] | None = None
    laws: tuple[Any, ...] = ()
    #: benchmark sizes: dictionaries of dimensions and parameters ("n" for elementwise rows); an input's name with an interval
    #: (low, high) makes that input uniform where N(0, 1) would not do
    bench: tuple[dict[str, Any], ...] = ()
    #: floating-point operations of one call, f(dimensions by name), where they and not the bytes may set the floor
    flops: Callable[..., float] | None = None
    #: the same computation in NumPy and PyTorch for the benchmark: arguments by name out of np or torch, inputs,
    #: dimensions, parameters; torch_vjp gets the cotangent g as well. A function that returns a function has prepared what a
    #: model keeps between calls, and what it returned is timed
    numpy: Callable[..., Any] | None = None
    torch: Callable[..., Any] | None = None
    torch_vjp: Callable[..., Any] | None = None
    source: str = ""
    no_vjp: str | None = None
    vjp_rule: Vjp | None = None
    doc: str = ""
    order: int = field(default=0)
    #: the forward's exported C name ends in "_fwd"
    fwd: bool = False

    @property
    def stem(self) -> str:
        """What the exported C names of the row begin with."""
        return (
            f"torchlean_cuda_buffer_{self.name}"
            if self.signature.buffers or self.outputs_on_device
            else f"torchlean_cuda_{self.name}"
        )

    @property
    def symbol(self) -> str:
        """The forward's exported C name."""
        return self.stem + "_fwd" * self.fwd

    @property
    def outputs_on_device(self) -> bool:
        return any(not o.host for o in self.signature.outputs)

    def vjp(
        self, text: str, *, bound: Bound | None = None, via: Callable[..., Any] | None = None, each: Sequence[str] = ()
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declares the VJP on its float64 reference, which is called with the arrays named on the left and the row's
        parameters it asks for by keyword, and returns the gradients named on the right."""
        if self.signature.lists:
            raise ValueError(f"{self.name}: a row with lists has no VJP")
        left, _, right = text.partition("->")
        reads, gives = tuple(_split(left)), tuple(_split(right))
        inputs = {a.name for a in self.signature.inputs}
        outputs = {a.name for a in self.signature.outputs}
        cotangents = {"g"} if len(outputs) == 1 else {f"g_{o}" for o in outputs}
        if bad := [r for r in reads if r not in inputs | outputs | cotangents]:
            raise ValueError(f"{self.name}: the VJP reads {bad}, which are no inputs, outputs or cotangents")
        if bad := [r for r in gives if not (r.startswith("g") and r[1:] in inputs)]:
            raise ValueError(f"{self.name}: the VJP gives {bad}, which are no gradients of inputs")
        if each and len(each) != len(gives):
            raise ValueError(f"{self.name}: {len(each)} suffixes for {len(gives)} gradients")

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.vjp_rule = Vjp(
                reads, gives, function, bound or self.bound, via, tuple(each), inspect.getdoc(function) or ""
            )
            return function

        return register

    @property
    def rule(self) -> Vjp:
        """The VJP. Raises ValueError where the row has none."""
        if self.vjp_rule is None:
            raise ValueError(f"{self.name} has no VJP: {self.no_vjp}")
        return self.vjp_rule

    def entry(self, which: str) -> str:
        """The name of the entry point that computes "forward" or "vjp"."""
        return self.name if which == "forward" else f"{self.name}_bwd"

    def bound_of(self, which: str) -> Bound:
        """The bound of "forward" or "vjp"."""
        return self.bound if which == "forward" else self.rule.bound

    def signature_of(self, which: str) -> Signature:
        """The signature of "forward" or "vjp"."""
        return self.signature if which == "forward" else self.vjp_signature

    def reference_of(self, which: str) -> Callable[..., Any]:
        """The float64 reference of "forward" or "vjp"."""
        return self.reference if which == "forward" else self.rule.reference

    @property
    def vjp_signature(self) -> Signature:
        """The signature of the VJP's own entry point, ``<op>_bwd``."""
        rule, sig = self.rule, self.signature
        arrays = {a.name: a for a in sig.inputs + sig.outputs}
        for o in sig.outputs:
            cot = "g" if len(sig.outputs) == 1 else f"g_{o.name}"
            arrays[cot] = Array(cot, ("*",) if sig.elementwise else o.dims, o.kind)
        inputs = tuple(Array(arrays[r].name, arrays[r].dims, arrays[r].kind, arrays[r].optional) for r in rule.reads)
        gives = tuple(Array(o, arrays[o[1:]].dims, "f32", len(rule.gives) > 1) for o in rule.gives)
        return Signature(inputs, sig.params, gives, sig.dims)


_OPS: dict[str, Op] = {}


def op(
    text: str,
    *,
    bound: Bound,
    order: str | None = None,
    same_bits: bool = True,
    cuda: str = "own",
    checks: Sequence[Check] = (),
    draw: Callable[..., dict[str, Any]] | None = None,
    paths: Sequence[dict[str, Any]] = (),
    nonnegative: Sequence[str] = (),
    data: Sequence[str] | None = None,
    laws: Sequence[Any] = (),
    bench: Sequence[dict[str, Any]] = (),
    flops: Callable[..., float] | None = None,
    numpy: Callable[..., Any] | None = None,
    torch: Callable[..., Any] | None = None,
    torch_vjp: Callable[..., Any] | None = None,
    source: str = "",
    no_vjp: str | None = None,
    fwd: bool = False,
) -> Callable[[Callable[..., Any]], Op]:
    """Registers the decorated float64 reference as an operation; see the module's docstring for `text`.

    The reference gets the inputs as float64 arrays in their declared shapes, then by keyword those parameters and
    output-only dimensions that it names, and returns the output (a tuple where there are several).
    """

    def register(function: Callable[..., Any]) -> Op:
        name = function.__name__.rstrip("_")
        if name in _OPS:
            raise ValueError(f"operation {name} is registered twice")
        row = Op(
            name, function.__module__.rpartition(".")[2], text, Signature.parse(text, order), function, bound, same_bits, cuda,
            tuple(checks), draw, tuple(paths), tuple(nonnegative), None if data is None else tuple(data), tuple(laws), tuple(bench), flops, numpy, torch, torch_vjp,
            source, no_vjp, None, inspect.getdoc(function) or "", len(_OPS), fwd,
        )  # fmt: skip
        _OPS[name] = row
        return row

    return register


def families() -> tuple[str, ...]:
    """The families that have a module, in listing order."""
    return tuple(f for f in FAMILIES if importlib.util.find_spec(f"tlspec.ops.{f}") is not None)


def ops(names: str | Sequence[str] | None = None) -> tuple[Op, ...]:
    """All rows in listing order, or those named: operation names, family names and ``*`` patterns, comma-separated."""
    for family in families():
        importlib.import_module(f"tlspec.ops.{family}")
    rows = sorted(_OPS.values(), key=lambda r: (FAMILIES.index(r.family), r.order))
    if names is None:
        return tuple(rows)
    wanted = names.split(",") if isinstance(names, str) else list(names)
    chosen: dict[str, Op] = {}
    for want in (w.strip() for w in wanted):
        pattern = re.compile(re.escape(want).replace(r"\*", ".*"))
        hits = [r for r in rows if pattern.fullmatch(r.name) or r.family == want]
        if not hits:
            import difflib

            close = difflib.get_close_matches(want, [r.name for r in rows] + list(FAMILIES))
            raise KeyError(
                f"no operation or family {want!r}" + (f"; did you mean {', '.join(close)}?" if close else "")
            )
        chosen.update((r.name, r) for r in hits)
    return tuple(r for r in rows if r.name in chosen)


def get(name: str) -> Op:
    """The row of one operation."""
    return next(r for r in ops(name) if r.name == name)
