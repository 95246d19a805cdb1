"""The registry: one row per operation.

The decorator :func:`op` on a reference function is the only place where an operation's signature is written (grammar:
:mod:`tlspec.signature`). From the row come the C declaration and its argument checks, the kernel prototypes, the Python function,
the documentation, the drawn test cases, the verify run and the benchmark rows.
"""

import ast
import difflib
import importlib
import importlib.util
import inspect
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from types import ModuleType
from typing import Any

import numpy as np

from tlspec.bounds import Bound, chained
from tlspec.classes import Classes, Lengths, default_classes
from tlspec.signature import Array, Param, Signature, split_list

__all__ = ["FAMILIES", "Array", "Check", "Contract", "Drawing", "Op", "Param", "Signature", "Vjp", "check", "families",
           "get", "op", "ops"]  # fmt: skip

#: Families in the order of every listing. A family is a module of ``tlspec.ops`` and a file stem in ``native/src``.
FAMILIES = ("elementwise", "reduce", "shape", "index", "linalg", "softmax", "norm", "loss", "conv", "pool", "attention",
            "scan", "spectral", "random", "optim", "fingerprint")  # fmt: skip

#: how contexts compute sums of products, by the number that C has for it
MATH = ("fast", "reproducible")


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


@dataclass(frozen=True, kw_only=True)
class Contract:
    """What an operation demands of its arguments and promises of its results, beyond its signature and its bound."""

    checks: tuple[Check, ...] = ()
    #: algebraic laws of :mod:`tlspec.laws`
    laws: tuple[Any, ...] = ()
    #: CPU and CUDA give the same bits
    same_bits: bool = True
    #: what computes it on CUDA: "own" kernel or the library's name
    cuda: str = "own"
    #: CPU and CUDA give the same bits in reproducible contexts
    reproducible: bool = True


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How the cases of an operation are drawn."""

    #: draws dimensions and parameters: draw(d) -> dict, d a :class:`tlspec.draw.draws.Draw`; what it leaves out is drawn there. An array
    #: is a function of the values, called when these are settled
    draw: Callable[..., dict[str, Any]] | None = None
    #: dimensions and parameters that reach kernels which drawn sizes seldom do (a GPU's, for larger problems); verify and
    #: the tests try each. A value may be a function of a numpy Generator
    paths: tuple[dict[str, Any], ...] = ()
    #: geometry classes: name -> predicate over dimensions, parameters and arrays by their names. Cases of the size "edges" aim at
    #: them, and verify fails where its default cases reach one not at all
    classes: Classes = field(default_factory=dict)
    #: lengths that kernels step through and no array has alone, such as the terms of a sum over several axes: by name, functions of
    #: dimensions and parameters
    lengths: Lengths = field(default_factory=dict)
    #: the multiply-adds of the reference, where they are many more than the elements: a limit of drawn sizes
    work: Callable[..., int] | None = None
    #: inputs that are squares or norms, drawn as absolute values except among special ones
    nonnegative: tuple[str, ...] = ()
    #: value classes of tlspec.draw.data the row is drawn with; None is the default of its bound
    data: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
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
    #: gradients that are float32 sums in reproducible contexts, too
    trees: tuple[str, ...] = ()


@dataclass(kw_only=True, eq=False)
class Op:
    """One row of the registry. Rows are compared by identity."""

    name: str
    family: str
    text: str
    signature: Signature
    reference: Callable[..., Any]
    bound: Bound
    contract: Contract = Contract()
    drawing: Drawing = Drawing()
    doc: str = ""
    source: str = ""
    #: PyTorch's name of it within torch, of a function that takes the inputs and then the parameters: "nn.functional.mish"
    torch: str = ""
    #: what an argument is, by its name, where :data:`tlspec._documentation.ARGUMENTS` says something else or nothing
    arguments: Mapping[str, str] = field(default_factory=dict)
    #: dimensions, parameters and arrays of the example in the documentation, where those of :mod:`codegen.examples` do not do
    example: Mapping[str, Any] = field(default_factory=dict)
    vjp_rule: Vjp | None = None
    #: why there is no VJP
    no_vjp: str | None = None
    #: the forward's exported C name ends in "_fwd"
    fwd: bool = False
    #: other formulas for the same, by "forward" or "vjp": a kernel that follows one of them has its errors
    formulas: dict[str, list[Callable[..., Any]]] = field(default_factory=lambda: {"forward": [], "vjp": []})

    def __call__(self, *arrays: Any, **parameters: Any) -> Any:
        """The operation itself, in float64: inputs in order, then dimensions and parameters that the reference names, by keyword or
        in order. What is left out has its default. Raises TypeError."""
        names = list(inspect.signature(self.reference).parameters)
        if len(arrays) > len(names):
            raise TypeError(f"{self.name} takes {len(names)} arguments ({', '.join(names)}), got {len(arrays)}")
        given = dict(zip(names, arrays, strict=False))
        if wrong := [n for n in parameters if n not in names or n in given]:
            raise TypeError(f"{self.name} takes ({', '.join(names)}): got {wrong[0]} once too often")
        given |= parameters
        defaults: dict[str, Any] = {p.name: float(p.default) if p.kind == "float" else int(p.default)
                                    for p in self.signature.params if p.default is not None}  # fmt: skip
        defaults |= {a.name: None for a in self.signature.inputs if a.optional}
        if missing := [n for n in names if n not in given and n not in defaults]:
            raise TypeError(f"{self.name} takes ({', '.join(names)}): {', '.join(missing)} missing")
        for a in self.signature.inputs:
            if isinstance(given.get(a.name), (int, float, list, tuple, np.ndarray, np.generic)):
                given[a.name] = np.asarray(given[a.name], np.int64 if a.kind in ("u32", "index") else np.float64)
        return self.reference(**{n: given.get(n, defaults.get(n)) for n in names})

    @property
    def stem(self) -> str:
        """What the exported C names of the row begin with."""
        on_device = self.signature.buffers or self.outputs_on_device
        return f"torchlean_cuda_{'buffer_' if on_device else ''}{self.name}"

    @property
    def symbol(self) -> str:
        """The forward's exported C name."""
        return self.stem + "_fwd" * self.fwd

    @property
    def outputs_on_device(self) -> bool:
        return any(not o.host for o in self.signature.outputs)

    def formula(self, which: str = "forward") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declares another formula for "forward" or "vjp", of the reference's arguments: one in common use, whose rounding errors
        are other than the reference's. The judge allows the largest of all."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.formulas[which].append(function)
            return function

        return register

    def vjp(
        self,
        text: str,
        *,
        bound: Bound | None = None,
        trees: Sequence[str] = (),
        via: Callable[..., Any] | None = None,
        each: Sequence[str] = (),
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declares the VJP on its float64 reference, which is called with the arrays named on the left and the row's
        parameters it asks for by keyword, and returns the gradients named on the right."""
        if self.signature.lists:
            raise ValueError(f"{self.name}: a row with lists has no VJP")
        left, _, right = text.partition("->")
        reads, gives = tuple(split_list(left)), tuple(split_list(right))
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
                reads=reads, gives=gives, reference=function, bound=self.bound if bound is None else bound, via=via,
                each=tuple(each), doc=inspect.getdoc(function) or "", trees=tuple(trees),
            )  # fmt: skip
            return function

        return register

    def in_math(self, math: str) -> "Op":
        """The row as contexts of this mode compute it, "fast" or "reproducible"."""
        if math == "fast" or self.contract.same_bits or not self.contract.reproducible:
            return self
        rule = self.vjp_rule
        if rule is not None:
            rule = replace(rule, bound=chained(rule.bound, [i for i, g in enumerate(rule.gives) if g in rule.trees]))
        return replace(self, bound=chained(self.bound), contract=replace(self.contract, same_bits=True), vjp_rule=rule)

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

    @cached_property
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


#: the global of a module under which :func:`op` keeps the module's rows, in the order they were registered. A module whose
#: import was interrupted goes with its rows, so the next import starts from none.
_ROWS = "_registered_rows"
#: held during imports, and while the process forks: a child would wait for ever for an import of a thread that it does not have
_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def op(
    text: str, *, bound: Bound, order: str | None = None, same_bits: bool = True, cuda: str = "own",
    reproducible: bool | None = None,
    checks: Sequence[Check] = (), laws: Sequence[Any] = (), draw: Callable[..., dict[str, Any]] | None = None,
    paths: Sequence[dict[str, Any]] = (), classes: Classes | None = None, lengths: Lengths | None = None,
    work: Callable[..., int] | None = None, nonnegative: Sequence[str] = (), data: Sequence[str] | None = None,
    source: str = "", torch: str = "", arguments: Mapping[str, str] | None = None,
    example: Mapping[str, Any] | None = None, no_vjp: str | None = None, fwd: bool = False,
) -> Callable[[Callable[..., Any]], Op]:  # fmt: skip
    """Registers the decorated float64 reference as an operation; see the module's docstring for `text`.

    The reference gets the inputs as float64 arrays in their declared shapes, then by keyword those parameters and
    output-only dimensions that it names, and returns the output (a tuple where there are several). Arguments of this
    function are the fields of :class:`Op`, :class:`Contract` and :class:`Drawing`; `order` is :meth:`Signature.parse`'s."""

    def register(function: Callable[..., Any]) -> Op:
        name = function.__name__.rstrip("_")
        rows: dict[str, Op] = function.__globals__.setdefault(_ROWS, {})
        if name in rows:
            raise ValueError(f"operation {name} is registered twice")
        signature = Signature.parse(text, order)
        own = dict(default_classes(signature) if classes is None else classes)
        row = Op(
            name=name, family=function.__module__.rpartition(".")[2], text=text, signature=signature, reference=function, bound=bound,
            contract=Contract(checks=tuple(checks), laws=tuple(laws), same_bits=same_bits, cuda=cuda,
                              reproducible=same_bits if reproducible is None else reproducible),
            drawing=Drawing(
                draw=draw, paths=tuple(paths), classes=own, lengths=dict(lengths or {}), work=work, nonnegative=tuple(nonnegative),
                data=None if data is None else tuple(data),
            ),
            doc=_documentation(function), source=source, torch=torch, arguments=arguments or {}, example=example or {},
            no_vjp=no_vjp, fwd=fwd,
        )  # fmt: skip
        rows[name] = row
        return row

    return register


def _documentation(function: Callable[..., Any]) -> str:
    """The docstring with a blank line before each of its labelled paragraphs."""
    return re.sub(r"\n+(?=Shapes: |Special values|Errors)", "\n\n", inspect.getdoc(function) or "")


def families() -> tuple[str, ...]:
    """The families that have a module, in listing order."""
    return tuple(f for f in FAMILIES if importlib.util.find_spec(f"tlspec.ops.{f}") is not None)


@cache
def _modules() -> tuple[ModuleType, ...]:
    """The families' modules, imported."""
    with _lock:
        return tuple(importlib.import_module(f"tlspec.ops.{family}") for family in families())


def ops(names: str | Sequence[str] | None = None) -> tuple[Op, ...]:
    """All rows in listing order, or those named: operation names, family names and ``*`` patterns, comma-separated."""
    rows = [row for module in _modules() for row in vars(module).get(_ROWS, {}).values()]
    if len({r.name for r in rows}) < len(rows):
        known = [r.name for r in rows]
        raise ValueError(f"operation {next(n for n in known if known.count(n) > 1)} is registered twice")
    if names is None:
        return tuple(rows)
    wanted = names.split(",") if isinstance(names, str) else list(names)
    chosen: dict[str, Op] = {}
    for want in (w.strip() for w in wanted):
        pattern = re.compile(re.escape(want).replace(r"\*", ".*"))
        hits = [r for r in rows if pattern.fullmatch(r.name) or r.family == want]
        if not hits:
            close = difflib.get_close_matches(want, [r.name for r in rows] + list(FAMILIES))
            hint = f"; did you mean {', '.join(close)}?" if close else ""
            raise KeyError(f"no operation or family {want!r}{hint}")
        chosen.update((r.name, r) for r in hits)
    return tuple(r for r in rows if r.name in chosen)


def get(name: str) -> Op:
    """The row of one operation. Raises KeyError, also for a family or a pattern."""
    for module in _modules():
        if row := vars(module).get(_ROWS, {}).get(name):
            return row
    ops(name)  # says what is near
    raise KeyError(f"no operation {name!r}")
