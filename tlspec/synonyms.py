"""Synonyms: operations that are another operation on rearranged arguments, bit for bit.

A synonym has a name, a signature and the preconditions that its refusals speak of. All else follows from the operation that it
forwards to: its entry points run that operation's kernels, and its reference, gradient and bounds are computed by that
operation's on the arrays in their shapes there.
"""

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tlspec.bounds import Bound, call_reference, chained
from tlspec.case import as_tuple, shape_of
from tlspec.entries import composition_arguments
from tlspec.expressions import evaluate, names_in
from tlspec.registry import Check, Drawing, Forward, Op, Vjp, register_row
from tlspec.signature import Signature

__all__ = ["synonym"]


def synonym(
    of: Op, text: str, arguments: str = "", *, order: str | None = None, checks: Sequence[Check] = (),
    draw: Callable[..., dict[str, Any]] | None = None, example: Mapping[str, Any] | None = None, torch: str = "",
    meanings: Mapping[str, str] | None = None, paths: Sequence[dict[str, Any]] = (),
) -> Callable[[Callable[[], None]], Op]:  # fmt: skip
    """Registers another name for an operation; the decorated function gives the name and the first sentence of its documentation.

    Parameters
    ----------
    of : Op
        The operation that it forwards to.
    text : str
        The synonym's signature.
    arguments : str
        Arrays, dimensions and parameters of the operation from the synonym's: "x=vec, dims=[rows, cols], axis=0". One that is
        not here is the synonym's of the same name, or has its default; an array that is None is left out.
    order, checks, draw, example, torch, meanings, paths
        As for :func:`tlspec.registry.op`, where `meanings` is `arguments`.

    Returns
    -------
    callable
        Makes the :class:`tlspec.registry.Op`. It raises ValueError where an argument of the operation is not given.
    """

    def register(function: Callable[[], None]) -> Op:
        signature = Signature.parse(text, order)
        forward = _forward(of, signature, arguments)
        row = Op(
            name=function.__name__, family=function.__module__.rpartition(".")[2], text=text, signature=signature,
            reference=of.reference, bound=of.bound, contract=replace(of.contract, checks=tuple(checks), laws=()),
            drawing=Drawing(draw=draw, data=of.drawing.data, paths=tuple(paths)),
            doc=_documentation(function, forward, signature, arguments),
            source=of.source, torch=torch, arguments=meanings or {}, example=example or {}, no_vjp=of.no_vjp, forward=forward,
        )  # fmt: skip
        if of.vjp_rule is not None:
            row.vjp_rule = _rule(of, forward, arguments)
        for which in ("forward", "vjp") if of.vjp_rule is not None else ("forward",):
            call = _Call(row, which)
            row.formulas[which] += [call.reference(f) for f in of.formulas[which]]
            reference, bound = call.reference(of.reference_of(which)), call.bound(of.bound_of(which))
            if which == "forward":
                row.reference, row.bound = reference, bound
            else:
                row.vjp_rule = replace(row.rule, reference=reference, bound=bound)
        register_row(function, row)
        return row

    return register


def _forward(of: Op, signature: Signature, text: str) -> Forward:
    given = {k.arg or "": ast.unparse(k.value) for k in ast.parse(f"f({text})", mode="eval").body.keywords}  # type: ignore[attr-defined]
    sizes = [d.lstrip("*") for d in of.signature.dims]
    known = {d.lstrip("*") for d in signature.dims} | {p.name for p in signature.params}
    defaults = {p.name: p.default for p in of.signature.params if p.default is not None}
    wanted = [*sizes, *(p.name for p in of.signature.params)]
    arguments = {n: given.get(n, n if n in known else defaults.get(n, n)) for n in wanted}
    names = {a.name for a in signature.inputs + signature.outputs}
    arrays = {a.name: given.get(a.name, a.name) for a in of.signature.inputs + of.signature.outputs}
    wrong = [n for n, expression in arguments.items() if not names_in(expression) <= known]
    wrong += [n for n, name in arrays.items() if name not in names and name != "None"]
    wrong += [n for n in given if n not in arguments | arrays]
    if wrong:
        raise ValueError(f"a synonym of {of.name} has no {', '.join(wrong)}: {text!r} on {sorted(known | names)}")
    return Forward(of, arguments, {n: None if name == "None" else name for n, name in arrays.items()})


def _documentation(function: Callable[[], None], forward: Forward, signature: Signature, arguments: str) -> str:
    arrays = [forward.arrays[a.name] or "None" for a in forward.of.signature.inputs]
    plain = {n: e for n, e in forward.arguments.items() if n != e and n in arguments}
    call = ", ".join([*arrays, *(f"{n} = {e}" for n, e in plain.items())])
    shapes = ", ".join(f"{a.name} ({', '.join(a.dims)})" for a in signature.inputs + signature.outputs)
    formula = f"{signature.outputs[0].name} = {forward.of.name}({call})"
    return f"{inspect.getdoc(function)}\n\n{formula}\n\nShapes: {shapes}."


def _rule(of: Op, forward: Forward, arguments: str) -> Vjp:
    """The rule by the synonym's names, with the reference and the bound still the operation's."""
    rule = of.rule
    names = {n: forward.name_of(n) for n in (*rule.reads, *rule.gives)}
    kept = [n for n in rule.gives if names[n] is not None]

    def via(k: Any, *reads: Any, **values: Any) -> Any:
        known = {n: evaluate(e, values) for n, e in forward.arguments.items() if names_in(e) <= values.keys()}
        gradients = as_tuple(rule.via(k, *reads, **composition_arguments(of, known)))  # type: ignore[misc]
        found = tuple(g for g, n in zip(gradients, rule.gives, strict=True) if n in kept)
        return found if len(found) > 1 else found[0]

    order = [
        inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for n in ("k", *(names[n] or "" for n in rule.reads))
    ]
    via.__signature__ = inspect.Signature([*order, inspect.Parameter("values", inspect.Parameter.VAR_KEYWORD)])  # type: ignore[attr-defined]
    return replace(
        rule, reads=tuple(names[n] or "" for n in rule.reads), gives=tuple(names[n] or "" for n in kept),
        via=None if rule.via is None else via, each=tuple(s for s, n in zip(rule.each, rule.gives, strict=False) if n in kept),
        doc=f"The gradient of {of.name}.", trees=tuple(names[n] or "" for n in rule.trees if n in kept),
    )  # fmt: skip


class _Call:
    """Calls of a synonym, or of its gradient, as calls of the operation."""

    def __init__(self, row: Op, which: str) -> None:
        assert row.forward is not None
        self.which, self.forward, self.of = which, row.forward, row.forward.of
        self.signature, self.target = row.signature_of(which), self.of.signature_of(which)
        read = {d for a in self.signature.inputs if not a.optional for d in a.dims}
        sizes = [d.lstrip("*") for d in self.signature.dims if d not in read]
        self.names = [*(a.name for a in self.signature.inputs), *sizes, *(p.name for p in self.signature.params)]
        #: where the operation's results are among those of the synonym
        own = [o.name for o in self.signature.outputs]
        self.places = [own.index(n) if (n := row.forward.name_of(o.name)) in own else None for o in self.target.outputs]

    def _sizes(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The dimensions that the shapes of the arrays say."""
        found: dict[str, Any] = {}
        for a in self.signature.inputs:
            shape = () if arrays.get(a.name) is None else np.shape(arrays[a.name])
            if a.elementwise:
                found["n"] = int(np.prod(shape, dtype=object))
            elif shape or not a.dims:
                rest = len(shape) - len(a.dims) + 1
                at = 0
                for item in a.dims:
                    step = rest if item.startswith("*") else 1
                    if item.lstrip("*").isidentifier():
                        found[item.lstrip("*")] = list(shape[at : at + step]) if item.startswith("*") else shape[at]
                    at += step
        return found

    def values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The operation's dimensions and parameters."""
        found = {n: evaluate(e, values) for n, e in self.forward.arguments.items()}
        return {**found, **({"n": values["n"]} if self.target.elementwise else {})}

    def arrays(self, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """The operation's arrays, in their shapes there."""
        found: dict[str, Any] = {}
        for a in self.target.inputs:
            array = arrays.get(self.forward.name_of(a.name) or "")
            found[a.name] = None if array is None else array.reshape(shape_of(a, values))
        return found

    def results(self, results: Any, values: Mapping[str, Any]) -> list[Any]:
        """The synonym's results, in their shapes."""
        found: list[Any] = [None] * len(self.signature.outputs)
        for result, place, o in zip(results, self.places, self.target.outputs, strict=True):
            if place is not None:
                result = np.broadcast_to(result, shape_of(o, self.values(values))) if np.ndim(result) == 0 else result
                found[place] = result.reshape(shape_of(self.signature.outputs[place], values))
        return found

    def reference(self, of: Callable[..., Any]) -> Callable[..., Any]:
        """A reference of the operation's as one of the synonym's."""

        def reference(*arrays: Any, **values: Any) -> Any:
            given = {**dict(zip(self.names, arrays, strict=False)), **values}
            known = {**self._sizes(given), **{n: v for n, v in given.items() if n in self.names}}
            there = self.values(known)
            found = self.results(as_tuple(call_reference(of, self.arrays(given, there), there)), known)
            return tuple(found) if len(found) > 1 else found[0]

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        reference.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in self.names])  # type: ignore[attr-defined]
        return reference

    def bound(self, of: Bound) -> Bound:
        """The operation's bound as the synonym's."""
        if of.cuda_peak is not None:
            raise ValueError(f"{self.of.name}: a synonym of a bound with a peak on CUDA")
        contract, reference = self.of.contract, self.of.reference_of(self.which)

        def mapped(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(_: Any, outputs: Sequence[Any], inputs: Mapping[str, Any], params: Mapping[str, Any]) -> list[Any]:
                known = {**self._sizes(inputs), **params}
                there = self.values(known)
                results = []
                for o, place in zip(self.target.outputs, self.places, strict=True):
                    shape = shape_of(o, there)
                    results.append(np.zeros(shape) if place is None else outputs[place].reshape(shape))
                found = function(reference, results, self.arrays(inputs, there), there)
                spread = [np.broadcast_to(f, r.shape) for f, r in zip(found, results, strict=True)]
                return self.results(spread, known)

            return call

        chain = None
        if not contract.same_bits and contract.reproducible:
            trees = self.of.rule.trees if self.which == "vjp" else ()
            chain = chained(of, [i for i, o in enumerate(self.target.outputs) if o.name in trees])
            fixed = chain.fixed and mapped(chain.fixed)
            chain = replace(chain, function=mapped(chain.function), fixed=fixed, height=None, chain=None)
        return replace(of, function=mapped(of.function), fixed=of.fixed and mapped(of.fixed), height=None, chain=chain)
