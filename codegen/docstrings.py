"""Docstrings in NumPy's style, made from rows: of the functions of buffers, and of the methods of sessions, tapes and tensors."""

import re
import textwrap
from collections.abc import Iterable, Iterator

from codegen.examples import buffer_example, method_example
from codegen.methods import Method
from tlspec._documentation import describe_argument, read_documentation, rest_of_shapes, shape_phrase
from tlspec.entries import EXCEPTIONS, Argument, Entry, arguments, checks_of, entries
from tlspec.registry import Op
from tlspec.signature import Array

WIDTH = 120
TYPES = {
    "device": "Device", "buffer": "Buffer", "index": "IndexBuffer", "list": "sequence of Buffer", "u32": "array_like of int",
    "f64": "array_like of float", "dim": "int", "int": "int", "dims": "sequence of int", "float": "float",
}  # fmt: skip

#: what a dimension is that has no phrase of its own
SIZES = "sizes of axes"


def sentence(phrase: str) -> str:
    """A phrase as a sentence; a name at its begin stays as it is."""
    first = phrase.split(" ")[0].rstrip(",;:")
    capital = phrase[:1].upper() if first == "a" or (first.isalpha() and len(first) > 1) else phrase[:1]
    return f"{capital}{phrase[1:]}{'' if phrase.endswith('.') else '.'}"


def section(title: str, lines: Iterable[str]) -> list[str]:
    """A section, after an empty line; nothing where it has no lines."""
    body = list(lines)
    return ["", title, "-" * len(title), *body] if body else []


def entries_of(items: Iterable[tuple[str, str, str]], width: int) -> Iterator[str]:
    """The lines of a list of (name, type, phrase); neighbours of one type and phrase share an entry."""
    grouped: list[tuple[list[str], str, str]] = []
    for name, kind, phrase in items:
        if grouped and grouped[-1][1:] == (kind, phrase):
            grouped[-1][0].append(name)
        else:
            grouped.append(([name], kind, phrase))
    for names, kind, phrase in grouped:
        if phrase == SIZES and kind == "int" and len(names) == 1:
            phrase = "size of an axis"
        yield f"{', '.join(names)} : {kind}" if names[0] else kind
        yield from textwrap.wrap(sentence(phrase), width, initial_indent="    ", subsequent_indent="    ")


def quoted(lines: Iterable[str], indent: str) -> str:
    """The lines as a docstring in the source."""
    text = "\n".join(lines).strip()
    quote = 'r"""' if "\\" in text else '"""'
    body = textwrap.indent(text, indent).lstrip().replace('"""', "'''")
    return f'{indent}{quote}{body}\n{indent}"""'


def type_of(a: Argument) -> str:
    """An argument's type, and its default."""
    kind = TYPES[a.kind]
    return kind if a.default is None else f"{kind}, optional" if a.default == "None" else f"{kind}, default {a.default}"


def renamed_arguments(e: Entry) -> dict[str, str]:
    """The arguments whose name in Python is another than in the row."""
    return {a.of: a.name for a in arguments(e) if a.of and a.of != a.name}


def takes_want(e: Entry) -> bool:
    """Whether a function may leave out some of its results."""
    return e.only is None and len(e.outputs) > 1 and all(o.optional for o in e.outputs)


def _parameters(e: Entry) -> Iterator[tuple[str, str, str]]:
    given = arguments(e)
    for a in (*(a for a in given if not a.keyword), *(a for a in given if a.keyword)):
        phrase = describe_argument(e, a)
        yield a.name, type_of(a), phrase or (SIZES if a.kind in ("dim", "dims") else "a number of the formula")
    if takes_want(e):
        yield "want", "sequence of bool, optional", "which gradients to compute, all by default; the others are None"
    if e.outputs[0].host:
        yield "out", "numpy.ndarray, optional", "overwritten with the result"
    elif e.outputs[0].listed:
        several = "for each result a list, or None" if len(e.outputs) > 1 else "a list"
        yield "out", "sequence, optional", f"{several}, of a Buffer or None for each element, which may be the input's"
    elif len(e.outputs) > 1:
        yield "out", "sequence of (Buffer or None), optional", "a buffer to overwrite for each result"
    else:
        yield "out", f"{_kind(e.outputs[0])}, optional", "overwritten with the result"


def _kind(a: Array) -> str:
    return (
        "numpy.ndarray"
        if a.host
        else "IndexBuffer"
        if a.kind == "index"
        else "list of Buffer"
        if a.listed
        else "Buffer"
    )


def _returns(e: Entry) -> Iterator[tuple[str, str, str]]:
    for o in e.outputs:
        phrase = (
            "the length of the inputs"
            if o.elementwise
            else "as long as the lists given"
            if o.listed
            else shape_phrase(o)
        )
        yield o.name, _kind(o) + " or None" * takes_want(e), phrase


def raises(e: Entry) -> Iterator[tuple[str, str, str]]:
    """What a forward function raises beyond what all functions do."""
    refused: dict[str, list[str]] = {}
    expected: dict[str, list[str]] = {}
    if e.signature.lists:
        if len(e.signature.lists) > 1:
            refused["ShapeError"] = ["Lists differ in length, or buffers of one place do."]
        if e.signature.needs_context:
            refused["ArgumentError"] = ["An empty list without a device."]
    if any(a.kind == "u32" for a in arguments(e)):
        refused["IndexOutOfRangeError"] = ["An index is below 0, or 2^32 and more."]
    for c in checks_of(e):
        expected.setdefault(EXCEPTIONS.get(c.status, "TorchleanError"), []).append(
            f"{c.say or c.expression} ({c.name})"
        )
    for kind in dict.fromkeys([*refused, *expected]):
        wanted = "; ".join(dict.fromkeys(expected.get(kind, [])))
        yield "", kind, " ".join([*refused.get(kind, []), *([f"Expected: {wanted}."] if wanted else [])])


def _notes(row: Op) -> list[str]:
    doc = read_documentation(row.doc)
    found = [rest_of_shapes(doc, row.signature.inputs + row.signature.outputs)]
    found += [f"{label}: {text}" for label, text in doc.labelled.items() if label.startswith("Special")]
    return [line for text in found if text for line in ("", *textwrap.wrap(" ".join(text.split()), WIDTH - 8))][1:]


def function_docstring(e: Entry) -> str:
    """The docstring of an entry point's function of buffers."""
    text = e.doc
    for old, new in renamed_arguments(e).items():
        # `out` in the text is an input; no output of the entry has its name
        text = re.sub(rf"\b{old}\b", new, text)
    doc = read_documentation(text)
    forward = e.name == e.op.name
    lines = [doc.summary]
    if e.indexed:
        of = e.name.removesuffix("_indexed")
        lines = [f"The function {of}, with indices in an index buffer.", "", f"See :func:`{of}`."]
    elif e.only is not None:
        lines += ["", f"See :func:`{e.op.name}_bwd`."]
    else:
        lines += [line for paragraph in doc.formula for line in ("", *paragraph.splitlines())]
    lines += section("Parameters", entries_of(_parameters(e), WIDTH - 8))
    lines += section("Returns", entries_of(_returns(e), WIDTH - 8))
    if forward:
        lines += section("Raises", entries_of(raises(e), WIDTH - 8))
        lines += section("Notes", _notes(e.op))
        lines += section("References", textwrap.wrap(e.op.source, WIDTH - 8))
        lines += section("Examples", buffer_example(e))
    return quoted(lines, "    ")


def method_shape(m: Method, a: Array) -> str:
    """What a method says of the shape of an operand or of its result."""
    if m.is_pair:
        return "broadcast with the other operand, as NumPy does"
    if a.elementwise or m.is_reduction:
        return "any shape" if a in m.row.signature.inputs else shape_phrase(a)
    if m.is_by_rows and len(a.dims) > 1:
        return "shape (…, cols)"
    return shape_phrase(a)


def method_docstring(m: Method) -> str:
    """The docstring of a method of tapes and sessions that forwards to a row."""
    row, sig = m.row, m.row.signature
    forward = next(iter(entries(row)))
    own = {a.of: a for a in arguments(forward)}
    doc = read_documentation(row.doc)
    lines = [doc.summary, "", *doc.formula[0].splitlines()]
    items = []
    for a in sig.inputs:
        kind = "tensor or float" if m.is_pair else "tensor"
        meaning = describe_argument(forward, own[a.name]).partition("; ")[2]
        items.append((a.name.lower(), kind, "; ".join(filter(None, [method_shape(m, a), meaning]))))
    for p in m.parameters:
        kind = "int" if p.kind == "u32" else "float"
        phrase = describe_argument(forward, own[p.name]) or "size of an axis of the result"
        items.append((p.name, f"{kind}, default {p.default}" if p.default else kind, phrase))
    out = sig.outputs[0]
    result = (
        "the common shape of the operands"
        if m.is_pair
        else "the shape of x"
        if out.elementwise
        else method_shape(m, out)
    )
    lines += section("Parameters", entries_of(items, WIDTH - 12))
    lines += section("Returns", entries_of([("", "tensor", result)], WIDTH - 12))
    lines += section("Raises", entries_of(raises(forward), WIDTH - 12))
    lines += section("See Also", [f"tlrt.kernels.{row.name} : The function of buffers, with special values."])
    lines += section("Examples", method_example(m))
    return quoted(lines, "        ")
