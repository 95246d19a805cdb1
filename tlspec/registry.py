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

__all__ = ["FAMILIES", "Array", "Check", "Contract", "Drawing", "Forward", "Op", "Param", "Signature", "Vjp", "check",
           "families", "get", "op", "operations", "ops"]  # fmt: skip

#: Families in the order of every listing. A family is a module of ``tlspec.ops`` and a file stem in ``native/src``.
FAMILIES = ("elementwise", "reduce", "shape", "index", "linalg", "softmax", "norm", "loss", "conv", "pool", "attention",
            "scan", "spectral", "random", "optim", "fingerprint")  # fmt: skip

#: how contexts compute sums of products, by the number that C has for it
MATH = ("fast", "reproducible")


@dataclass(frozen=True)
class Check:
    """A precondition beyond lengths: an expression that must hold. :func:`check` makes one.

    Parameters
    ----------
    name : str
        The argument that a refusal blames.
    expression : str
        A Python expression over dimensions, parameters, host arrays and :mod:`tlspec.shapes`, true of what is accepted.
    status : str
        The code that the C library refuses with: "ARGUMENT", "SHAPE" and so on.
    say : str, optional
        What the message says is expected, where the expression itself does not read well.
    """

    name: str
    expression: str
    status: str
    say: str | None = None


def check(name: str, expression: str, status: str = "ARGUMENT", say: str | None = None) -> Check:
    """A row's precondition.

    Parameters
    ----------
    name : str
        The argument that a refusal blames.
    expression : str
        A Python expression that must hold. It may use ``rank(dims)`` and the functions of :mod:`tlspec.shapes`.
    status : str, default 'ARGUMENT'
        The code that the C library refuses with.
    say : str, optional
        What the message says is expected, in place of the expression.

    Returns
    -------
    Check
        For the `checks` of :func:`op`.

    Raises
    ------
    SyntaxError
        The expression is not Python.

    Examples
    --------
    >>> from tlspec.registry import check
    >>> print(check("beta", "beta != 0.0").status)
    ARGUMENT
    """
    ast.parse(expression, mode="eval")
    return Check(name, expression, status, say)


@dataclass(frozen=True, kw_only=True)
class Contract:
    """What an operation demands of its arguments and promises of its results, beyond its signature and its bound.

    Parameters
    ----------
    checks : tuple of Check
        Preconditions; the first that fails refuses a call.
    laws : tuple of tlspec.laws.Law
        Algebraic laws that results keep.
    same_bits : bool, default True
        CPU and CUDA give the same bits.
    cuda : str, default 'own'
        What computes it on CUDA: "own" kernel or the library's name.
    reproducible : bool, default True
        CPU and CUDA give the same bits in reproducible contexts.
    """

    checks: tuple[Check, ...] = ()
    laws: tuple[Any, ...] = ()
    same_bits: bool = True
    cuda: str = "own"
    reproducible: bool = True


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How the cases of an operation are drawn.

    Parameters
    ----------
    draw : callable, optional
        Draws dimensions and parameters: ``draw(d)`` with a :class:`tlspec.draw.draws.Draw` returns a dictionary. What
        it leaves out is drawn too. An array may be a function of the other values, called when these are settled.
    paths : tuple of dict
        Dimensions and parameters that reach kernels which drawn sizes seldom do, such as a GPU's for large problems.
        Verify and the tests try each. A value may be a function of a numpy Generator.
    classes : dict
        Geometry classes: name to predicate over dimensions, parameters and arrays by their names. Cases of the size
        "edges" aim at them, and verify fails where its default cases miss one.
    lengths : dict
        Lengths that kernels step through and no array has alone, such as the terms of a sum over several axes: name to
        function of dimensions and parameters.
    work : callable, optional
        The multiply-adds of the reference, a function of dimensions and parameters, where they are many more than the
        elements. It limits drawn sizes.
    nonnegative : tuple of str
        Inputs that are squares or norms: drawn as absolute values, except among special ones.
    data : tuple of str, optional
        Data classes of :mod:`tlspec.draw.data` that the row is drawn with; those of its bound's kind unless given.
    fixed : dict
        Dimensions and parameters that have one value in every case.
    """

    draw: Callable[..., dict[str, Any]] | None = None
    paths: tuple[dict[str, Any], ...] = ()
    classes: Classes = field(default_factory=dict)
    lengths: Lengths = field(default_factory=dict)
    work: Callable[..., int] | None = None
    nonnegative: tuple[str, ...] = ()
    data: tuple[str, ...] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Vjp:
    """The vector-Jacobian product of an operation.

    Parameters
    ----------
    reads : tuple of str
        Names of the inputs, outputs and cotangents that it reads, in C's order.
    gives : tuple of str
        Names of the gradients: "gA" is that of input A.
    reference : callable
        The float64 reference.
    bound : Bound
        The error bound of the gradients.
    via : callable, optional
        Composes the VJP from other operations, where it has no kernel of its own: ``f(k, *reads, **values)`` with
        dimensions and parameters as values, and k a namespace that has every operation as a function.
    each : tuple of str
        Suffixes of further entry points that compute one gradient each: ("q", "k", "v").
    doc : str
        The reference's docstring.
    trees : tuple of str
        Gradients that are float32 sums in reproducible contexts, too.
    """

    reads: tuple[str, ...]
    gives: tuple[str, ...]
    reference: Callable[..., Any]
    bound: Bound
    via: Callable[..., Any] | None = None
    each: tuple[str, ...] = ()
    doc: str = ""
    trees: tuple[str, ...] = ()


@dataclass(frozen=True)
class Forward:
    """How a synonym calls the operation that it is another name of; :func:`tlspec.synonyms.synonym` makes one.

    Parameters
    ----------
    of : Op
        The operation.
    arguments : mapping
        Its dimensions and parameters as expressions of the synonym's.
    arrays : mapping
        Its inputs and outputs: the name of the synonym's, None for one that is left out.
    """

    of: "Op"
    arguments: Mapping[str, str]
    arrays: Mapping[str, str | None]

    def name_of(self, name: str) -> str | None:
        """The synonym's name of an array of the operation or of its gradient.

        Parameters
        ----------
        name : str
            "x", "g" or "gx".

        Returns
        -------
        str or None
            None for an array that the synonym has not.
        """
        if name in self.arrays or name == "g":
            return self.arrays.get(name, name)
        prefix = "g_" if name.startswith("g_") else "g"
        array = self.arrays[name.removeprefix(prefix)]
        return None if array is None else prefix + array


@dataclass(kw_only=True, eq=False)
class Op:
    """One row of the registry. Rows are compared by identity. A call computes the operation in float64.

    Parameters
    ----------
    name : str
        The operation's name.
    family : str
        The module of :mod:`tlspec.ops` that registers it.
    text : str
        The signature as it is written; the grammar stands in :mod:`tlspec.signature`.
    signature : Signature
        What the text says.
    reference : callable
        The float64 reference.
    bound : Bound
        The error bound of the results.
    contract : Contract
        What is demanded and promised.
    drawing : Drawing
        How cases are drawn.
    doc : str
        The reference's docstring.
    source : str
        Where the formula comes from.
    torch : str
        PyTorch's name of it within torch, of a function that takes the inputs and then the parameters:
        "nn.functional.mish".
    arguments : mapping
        What an argument is, by its name, where :data:`tlspec._documentation.ARGUMENTS` says something else or nothing.
    example : mapping
        Dimensions, parameters and arrays of the example in the documentation, where those of :mod:`codegen.examples` do
        not do.
    vjp_rule : Vjp, optional
        The gradient, which :meth:`vjp` declares.
    no_vjp : str, optional
        Why there is none.
    fwd : bool, default False
        The forward's exported C name ends in "_fwd".
    forward : Forward, optional
        Of a synonym, which is no row of :func:`ops`: the operation that it calls.
    formulas : dict
        Other formulas for the same, by "forward" and "vjp": a kernel that follows one of them has its errors.

    Examples
    --------
    >>> from tlspec import registry
    >>> matmul = registry.get("matmul")
    >>> matmul.text
    'A[m, n], B[n, p] -> out[m, p]'
    >>> matmul([[1, 2]], [[3], [4]])
    array([[11.]])
    """

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
    torch: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)
    vjp_rule: Vjp | None = None
    no_vjp: str | None = None
    fwd: bool = False
    forward: Forward | None = None
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
        """Declares another formula for the same results, one in common use whose rounding errors are other than the
        reference's. The judge allows the largest of all.

        Parameters
        ----------
        which : str
            "forward" or "vjp".

        Returns
        -------
        callable
            Decorates a function of the reference's arguments, and returns it.
        """

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
        """Declares the VJP on its float64 reference.

        The reference is called with the arrays named on the left and, by keyword, the row's parameters that it asks
        for. It returns the gradients named on the right.

        Parameters
        ----------
        text : str
            What it reads and gives: "A, B, g -> gA, gB". "g" is the cotangent, "g_x" that of output x where there are
            several.
        bound : Bound, optional
            The error bound of the gradients; the row's unless given.
        trees : sequence of str
            Gradients that are float32 sums in reproducible contexts, too.
        via : callable, optional
            Composes the VJP from other operations, see :class:`Vjp`.
        each : sequence of str
            Suffixes of entry points that compute one gradient each, as many as there are gradients.

        Returns
        -------
        callable
            Decorates the reference, and returns it.

        Raises
        ------
        ValueError
            The row has lists, or the text names what the row does not have.
        """
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
        """The row as contexts of a mode compute it.

        Parameters
        ----------
        math : str
            "fast" or "reproducible".

        Returns
        -------
        Op
            The row itself, or one with the bounds of reproducible contexts and the same bits on CPU and CUDA.
        """
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
        """The name of an entry point.

        Parameters
        ----------
        which : str
            "forward" or "vjp".

        Returns
        -------
        str
            The row's name, for a VJP with "_bwd".
        """
        return self.name if which == "forward" else f"{self.name}_bwd"

    def bound_of(self, which: str) -> Bound:
        """The error bound of a direction.

        Parameters
        ----------
        which : str
            "forward" or "vjp".

        Returns
        -------
        Bound
            The row's own, or that of its VJP.

        Raises
        ------
        ValueError
            For "vjp", where the row has none.
        """
        return self.bound if which == "forward" else self.rule.bound

    def signature_of(self, which: str) -> Signature:
        """The signature of a direction.

        Parameters
        ----------
        which : str
            "forward" or "vjp".

        Returns
        -------
        Signature
            The row's own, or that of its VJP.

        Raises
        ------
        ValueError
            For "vjp", where the row has none.
        """
        return self.signature if which == "forward" else self.vjp_signature

    def reference_of(self, which: str) -> Callable[..., Any]:
        """The float64 reference of a direction.

        Parameters
        ----------
        which : str
            "forward" or "vjp".

        Returns
        -------
        callable
            The row's own, or that of its VJP.

        Raises
        ------
        ValueError
            For "vjp", where the row has none.
        """
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
    """Registers the decorated float64 reference as an operation.

    The reference gets the inputs as float64 arrays in their declared shapes, then by keyword those parameters and
    output-only dimensions that it names. It returns the output, a tuple where there are several.

    Parameters
    ----------
    text : str
        The signature; the grammar stands in :mod:`tlspec.signature`.
    bound : Bound
        The error bound of the results.
    order : str, optional
        The dimensions, where C has them in another order than that of first appearance.
    same_bits : bool, default True
        CPU and CUDA give the same bits.
    cuda : str, default 'own'
        What computes it on CUDA: "own" kernel or the library's name.
    reproducible : bool, optional
        CPU and CUDA give the same bits in reproducible contexts; as `same_bits` unless given.
    checks : sequence of Check
        Preconditions, see :func:`check`.
    laws : sequence of tlspec.laws.Law
        Algebraic laws that results keep.
    draw : callable, optional
        Draws dimensions and parameters: ``draw(d)`` with a :class:`tlspec.draw.draws.Draw` returns a dictionary. What
        it leaves out is drawn too. An array may be a function of the other values, called when these are settled.
    paths : sequence of dict
        Dimensions and parameters that reach kernels which drawn sizes seldom do, such as a GPU's for large problems.
        Verify and the tests try each. A value may be a function of a numpy Generator.
    classes : dict, optional
        Geometry classes: name to predicate over dimensions, parameters and arrays by their names. Cases of the size
        "edges" aim at them, and verify fails where its default cases miss one. Those of the signature unless given.
    lengths : dict, optional
        Lengths that kernels step through and no array has alone, such as the terms of a sum over several axes: name to
        function of dimensions and parameters.
    work : callable, optional
        The multiply-adds of the reference, a function of dimensions and parameters, where they are many more than the
        elements. It limits drawn sizes.
    nonnegative : sequence of str
        Inputs that are squares or norms: drawn as absolute values, except among special ones.
    data : sequence of str, optional
        Data classes of :mod:`tlspec.draw.data` that the row is drawn with; those of its bound's kind unless given.
    source : str
        Where the formula comes from.
    torch : str
        PyTorch's name of it within torch, see :class:`Op`.
    arguments : mapping, optional
        What an argument is, by its name, for the documentation.
    example : mapping, optional
        Dimensions, parameters and arrays of the documentation's example.
    no_vjp : str, optional
        Why there is no VJP.
    fwd : bool, default False
        The forward's exported C name ends in "_fwd".

    Returns
    -------
    callable
        Makes the :class:`Op` of a reference. It raises ValueError for a name that the module registered before.
    """

    def register(function: Callable[..., Any]) -> Op:
        name = function.__name__.rstrip("_")
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
        register_row(function, row)
        return row

    return register


def register_row(function: Callable[..., Any], row: Op) -> None:
    """Puts a row, or a synonym, among those of the module of a function. Raises ValueError for a name that it has."""
    rows: dict[str, Op] = function.__globals__.setdefault(_ROWS, {})
    if row.name in rows:
        raise ValueError(f"operation {row.name} is registered twice")
    rows[row.name] = row


def _documentation(function: Callable[..., Any]) -> str:
    """The docstring with a blank line before each of its labelled paragraphs."""
    return re.sub(r"\n+(?=Shapes: |Special values|Errors)", "\n\n", inspect.getdoc(function) or "")


def families() -> tuple[str, ...]:
    """The families that have a module.

    Returns
    -------
    tuple of str
        Their names, in the order of every listing.
    """
    return tuple(f for f in FAMILIES if importlib.util.find_spec(f"tlspec.ops.{f}") is not None)


@cache
def _modules() -> tuple[ModuleType, ...]:
    """The families' modules, imported."""
    with _lock:
        return tuple(importlib.import_module(f"tlspec.ops.{family}") for family in families())


def operations() -> tuple[Op, ...]:
    """The rows of the registry and their synonyms: whatever has an entry point.

    Returns
    -------
    tuple of Op
        In listing order, each once.

    Raises
    ------
    ValueError
        Two families register the same name.
    """
    rows = tuple(row for module in _modules() for row in vars(module).get(_ROWS, {}).values())
    if len({r.name for r in rows}) < len(rows):
        known = [r.name for r in rows]
        raise ValueError(f"operation {next(n for n in known if known.count(n) > 1)} is registered twice")
    return rows


def ops(names: str | Sequence[str] | None = None) -> tuple[Op, ...]:
    """The rows of the registry; a synonym is none, but is found by its whole name.

    Parameters
    ----------
    names : str or sequence of str, optional
        Operation names, family names and ``*`` patterns, as text separated by commas; all rows unless given.

    Returns
    -------
    tuple of Op
        In listing order, each once.

    Raises
    ------
    KeyError
        For a name that is no operation, family or pattern of one.
    ValueError
        Two families register the same name.

    Examples
    --------
    >>> from tlspec import registry
    >>> [row.name for row in registry.ops("softmax, matm*")]
    ['matmul', 'softmax', 'log_softmax']
    """
    every = operations()
    rows = tuple(row for row in every if row.forward is None)
    if names is None:
        return rows
    wanted = names.split(",") if isinstance(names, str) else list(names)
    chosen: dict[str, Op] = {}
    for want in (w.strip() for w in wanted):
        pattern = re.compile(re.escape(want).replace(r"\*", ".*"))
        hits = [r for r in rows if pattern.fullmatch(r.name) or r.family == want] or [
            r for r in every if r.name == want
        ]
        if not hits:
            close = difflib.get_close_matches(want, [r.name for r in every] + list(FAMILIES))
            hint = f"; did you mean {', '.join(close)}?" if close else ""
            raise KeyError(f"no operation or family {want!r}{hint}")
        chosen.update((r.name, r) for r in hits)
    return tuple(r for r in every if r.name in chosen)


def get(name: str) -> Op:
    """The row of one operation.

    Parameters
    ----------
    name : str
        The operation's name.

    Returns
    -------
    Op
        The row.

    Raises
    ------
    KeyError
        For any other name, also that of a family or a pattern.

    Examples
    --------
    >>> from tlspec import registry
    >>> print(registry.get("exp").family)
    elementwise
    """
    for module in _modules():
        if row := vars(module).get(_ROWS, {}).get(name):
            return row
    ops(name)  # says what is near
    raise KeyError(f"no operation {name!r}")
