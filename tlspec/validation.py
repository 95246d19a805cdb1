"""What is wrong with a row, each in one sentence that says what to do. ``make abi`` refuses a registry that has any of it."""

import builtins
import dis
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

from tlspec.bounds import Bound
from tlspec.draw.cases import draw_case
from tlspec.entries import EXCEPTIONS
from tlspec.expressions import functions_in, names_in
from tlspec.registry import Op
from tlspec.shapes import FUNCTIONS


def row_problems(row: Op) -> list[str]:
    """What is wrong with a row; nothing for one that is sound."""
    found = [*_gradient_problems(row), *_bound_problems(row), *_reference_problems(row), *_check_problems(row),
             *_docstring_problems(row)]  # fmt: skip
    found = found or [*_case_problems(row)]
    return [f"tlspec/ops/{row.family}.py: {row.name}: {problem}" for problem in found]


def _gradient_problems(row: Op) -> Iterator[str]:
    if row.vjp_rule is None and not row.no_vjp:
        yield f'it has neither a gradient nor a reason: add @{row.reference.__name__}.vjp(...) below it, or no_vjp="why"'
    if row.vjp_rule is not None and row.no_vjp:
        yield "it has a gradient and a reason for none: remove no_vjp"


def _bound_problems(row: Op) -> Iterator[str]:
    bounds: dict[str, Any] = {"bound": row.bound}
    if row.vjp_rule is not None and row.vjp_rule.bound is not row.bound:
        bounds["bound of the gradient"] = row.vjp_rule.bound
    for name, bound in bounds.items():
        if not isinstance(bound, Bound):
            yield f"{name}: got {bound!r}, expected one of tlspec.bounds, such as exact(), ulp(1) or tree(height)"


def _reference_problems(row: Op) -> Iterator[str]:
    inputs = [a.name for a in row.signature.inputs]
    yield from _function_problems(row, "the reference", row.reference, inputs)
    if row.vjp_rule is None:
        return
    yield from _function_problems(row, "the reference of the gradient", row.vjp_rule.reference, row.vjp_rule.reads)
    if row.vjp_rule.via is not None:
        yield from _function_problems(row, "the composition `via`", row.vjp_rule.via, ["k", *row.vjp_rule.reads])


def _size_names(row: Op) -> list[str]:
    """The dimensions and parameters that references and checks may name."""
    names = [
        *row.signature.sizes, *(["n"] if row.signature.elementwise else []), *(p.name for p in row.signature.params),
    ]  # fmt: skip
    return list(dict.fromkeys(names))


def _function_problems(row: Op, what: str, function: Callable[..., Any], arrays: Sequence[str]) -> Iterator[str]:
    parameters = inspect.signature(function).parameters.values()
    choices = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty]  # of a formula
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p not in choices]
    first, rest = names[: len(arrays)], names[len(arrays) :]
    if first != list(arrays):
        yield f"{what} takes ({', '.join(names)}), but the signature says ({', '.join(arrays)}) first: name them alike"
    elif unknown := [n for n in rest if n not in _size_names(row)]:
        known = ", ".join(_size_names(row)) or "none"
        yield f"{what} takes {', '.join(unknown)}, which the signature does not have: its dimensions and parameters are {known}"
    elif undefined := sorted(_undefined_names(function)):
        yield f"{what} uses {', '.join(undefined)}, which is no parameter and not defined in its module: take it as a parameter"


def _undefined_names(function: Callable[..., Any]) -> set[str]:
    """The global names that a function reads and nobody defines."""
    if not inspect.isfunction(function):
        return set()

    def read(code: CodeType) -> Iterator[str]:
        yield from (i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL")
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from read(constant)

    return {n for n in read(function.__code__) if n not in function.__globals__ and not hasattr(builtins, n)}


def _check_problems(row: Op) -> Iterator[str]:
    sig = row.signature
    known = {*_size_names(row), *(a.name for a in sig.inputs if a.host or a.optional)}
    for c in row.contract.checks:
        what = f"check {c.expression!r}"
        if c.name not in known:
            yield f"{what} blames {c.name}, which is no argument: its first argument is one of {', '.join(sorted(known))}"
        if unknown := sorted(names_in(c.expression) - known):
            yield f"{what} names {', '.join(unknown)}: it may use {', '.join(sorted(known))}"
        if unknown := sorted(functions_in(c.expression) - FUNCTIONS.keys()):
            yield f"{what} calls {', '.join(unknown)}: it may call {', '.join(FUNCTIONS)}"
        if c.status not in EXCEPTIONS:
            yield f"{what} has the status {c.status!r}: it is one of {', '.join(EXCEPTIONS)}"
    for a in sig.inputs + sig.outputs:
        for item in a.dims:
            if item != "*" and (unknown := sorted(functions_in(item.lstrip("*")) - FUNCTIONS.keys())):
                yield f"the shape of {a.name} calls {', '.join(unknown)}: it may call {', '.join(FUNCTIONS)}"


def _docstring_problems(row: Op) -> Iterator[str]:
    parts = [" ".join(part.split()) for part in row.doc.split("\n\n")]
    if not row.doc.strip() or not row.doc.splitlines()[0].endswith("."):
        yield "the docstring does not begin with one sentence on a line of its own: write it, with a full stop"
        return
    if row.vjp_rule is not None and not row.vjp_rule.doc:
        yield 'the gradient has no docstring: write its formula, such as "gx = g · out."'
    at = [i for i, part in enumerate(parts) if part.startswith("Shapes: ")]
    if len(at) != 1:
        yield f"the docstring has {len(at)} paragraphs 'Shapes: ...': write one, after the formula"
        return
    later = [i for i, part in enumerate(parts) if part.startswith(("Special values", "Errors"))]
    if at[0] < 2 or any(i < at[0] for i in later):
        yield "the docstring's order is sentence, formula, 'Shapes:', 'Special values:', 'Errors:': move what is elsewhere"
    words = set(re.findall(r"\w+", parts[at[0]]))
    if missing := [a.name for a in row.signature.inputs + row.signature.outputs if a.name not in words]:
        yield f"the paragraph 'Shapes:' does not name {', '.join(missing)}: give the shape"


def _case_problems(row: Op) -> Iterator[str]:
    """A misnamed argument of a bound, a draw or a peak shows when a case is drawn and its result bounded."""
    for which in ("forward", "vjp") if row.vjp_rule is not None else ("forward",):
        try:
            _ = draw_case(row, 0, None, "small", which).expected
        except Exception as error:
            what = "reference, bound and draw" if which == "forward" else "gradient and its bound"
            yield (
                f"no case of it can be computed ({type(error).__name__}: {error}): compare the argument names of {what} with "
                "the signature"
            )
            return
