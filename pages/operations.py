"""One page per operation, made from its row and the evidence files; pages of families, and an index of all."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from audit.environment import ROOT
from audit.markdown import format_share, table
from bench import results
from pages import figures, sources
from tlrt import Session, kernels
from tlrt.verify.verifier import directions
from tlspec import entries, registry
from tlspec._documentation import describe_argument, read_documentation
from tlspec.declarations import declarations
from tlspec.entries import EXCEPTIONS
from tlspec.registry import Op

#: what a family has in common
FAMILIES = {
    "elementwise": "Functions of each element alone, and of pairs of elements.",
    "reduce": "Sums, means, maxima and minima.",
    "shape": "Copies, transpositions, slices and repetitions: nothing is computed.",
    "index": "Reading and writing at places that indices give.",
    "linalg": "Products of matrices.",
    "softmax": "Softmax and its logarithm.",
    "norm": "Normalisation of rows and channels.",
    "loss": "Losses.",
    "conv": "Convolutions and transposed convolutions.",
    "pool": "Maxima and means over windows.",
    "attention": "Attention and the positions that it is told.",
    "scan": "Recurrences along an axis.",
    "spectral": "Fourier transforms and products in the frequency domain.",
    "random": "Random numbers, a function of a key alone.",
    "optim": "Steps of optimisers.",
    "fingerprint": "Numbers that say whether two arrays have the same bits.",
}
#: what an argument of a Python function is
KINDS = {
    "device": "device", "buffer": "float32 buffer", "index": "uint32 buffer", "list": "list of float32 buffers",
    "u32": "integers on the host", "f64": "float64 array on the host", "dim": "size", "dims": "list of sizes",
    "float": "float", "int": "integer",
}  # fmt: skip
INDEX = """\
# Operations

Every operation has one row in the specification (`tlspec`), and its page is made from this row and from the files of
measured runs. A page gives the formula, the arguments, special values, errors, the gradient, the error bound, what is
promised, and what was measured.

All numbers are plain numbers without a unit: angles are in radians, logarithms are natural, indices count from 0,
probabilities are parts of 1. Arrays are row-major. In formulas, `u` is 2⁻²⁴, the largest relative error of one rounding to
float32; `h` is the height of a summation tree; `λ` is 7.5; `M` is the same expression with absolute values; `g` is the
gradient of the loss with respect to the output, and `gx` the one with respect to `x`."""


def escape(text: str) -> str:
    """Plain text as Markdown. Entities stand for what Python's Markdown takes no backslash before, and for the bars of tables."""
    escaped = re.sub(r"([\\`*_\[\]#])", r"\\\1", " ".join(text.split()))
    return re.sub(r"[&<>|~]", lambda m: f"&#{ord(m[0])};", escaped)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def is_formula(paragraph: str) -> bool:
    """Whether a paragraph of a docstring begins with a formula: a name, perhaps with indices, and what it equals."""
    return bool(re.match(r"[\w' ,{}|‖]*(\[[^\]]*\])?(, [\w]+(\[[^\]]*\])?)* *(=|~) ", paragraph))


@dataclass
class Material:
    """What pages are made from: summaries by file, and measurements by operation and direction."""

    summaries: results.Summaries
    measured: Mapping[str, Mapping[str, figures.Measurement]]

    @cached_property
    def prototypes(self) -> dict[str, str]:
        """C declarations by symbol."""
        text = declarations((ROOT / "native/include/torchlean_cuda_ops.h").read_text(encoding="utf-8"))
        return {m[1]: line for line in text.splitlines() if (m := re.search(r"\b(torchlean_cuda_\w+)\(", line))}


def title(which: str) -> str:
    return "forward" if which == "forward" else "gradient"


def c_text(prototype: str, width: int = 100) -> str:
    """A declaration on lines that are not too long."""
    head, _, rest = prototype.partition("(")
    lines, line = [], head + "("
    for part in rest.split(", "):
        if len(line) + len(part) + 2 > width:
            lines.append(line.rstrip())
            line = "    "
        line += part + ", "
    return "\n".join([*lines, line[:-2]])


def _annotation(annotation: Any) -> str:
    """An annotation as the documentation of a call shows it."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return re.sub(r"~?\bRef\b", "Tensor", text.replace("npt.", ""))


def python_text(name: str, function: Any, width: int = 90) -> str:
    """A function with its arguments, one a line where one line is too short."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    parts: list[str] = []
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        kind = "" if p.annotation is p.empty else f": {_annotation(p.annotation)}"
        stars = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        parts.append(f"{stars}{p.name}{kind}{'' if p.default is p.empty else f' = {p.default!r}'}")
    line = f"{name}({', '.join(parts)})"
    return line if len(line) <= width else f"{name}(\n    " + ",\n    ".join(parts) + ",\n)"


def formula_section(row: Op) -> list[str]:
    doc = read_documentation(row.doc)
    page = [escape(doc.summary), "", "## Formula", ""]
    for paragraph in doc.formula:
        page += ["```text", paragraph, "```", ""] if is_formula(paragraph) else [escape(paragraph), ""]
    if not doc.formula:
        page += ["The sentence above says all.", ""]
    for label, text in doc.labelled.items():
        page += [f"## {label}", "", escape(text), ""]
    return page


def checks_section(row: Op, heading: bool) -> list[str]:
    """What a call is refused for, beyond lengths that do not fit."""
    checks = row.contract.checks
    page = [] if heading else ["## Errors", ""]
    page += ["A buffer whose length does not fit its shape is refused with `ShapeError`.", ""]
    if checks:
        rows = [
            (code(c.name), escape(c.say or c.expression), code(EXCEPTIONS.get(c.status, "TorchleanError")))
            for c in checks
        ]
        page += [*table(("argument", "must hold", "otherwise"), rows), ""]
    return page


def call_section(row: Op, material: Material) -> list[str]:
    """How the operation is called from Python and from C."""
    page = ["## How to call it", ""]
    own = list(entries.entries(row))
    method = getattr(Session, row.name, None)
    if method is not None:
        page += ["On a session, with tensors that know their shapes and gradients:", ""]
        page += ["```py", python_text(f"session.{row.name}", method), "```", ""]
    page += ["On buffers, from `tlrt.kernels`:", "", "```py"]
    page += [python_text(e.name, getattr(kernels, e.name)) for e in own]
    page += ["```", "", 'For example, after `cpu = tlrt.device("cpu")`:', "", "```pycon"]
    page += [inspect.getdoc(getattr(kernels, row.name)).partition("Examples\n--------\n")[2]]  # type: ignore[union-attr]
    page += ["```", "", "From C, from `torchlean_cuda_ops.h`:", "", "```c"]
    page += [c_text(material.prototypes[e.symbol]) for e in own if e.symbol in material.prototypes]
    page += ["```", "", "The arguments of the forward function:", ""]
    rows = []
    for a in entries.arguments(own[0]):
        wide = a.role == "wide"
        kind = "integer below 2⁶⁴" if wide else "index" if a.role == "index" else KINDS[a.kind]
        meaning = escape(describe_argument(own[0], a))
        rows.append((code(a.name), kind, meaning, "may be left out" if a.default == "None" else code(a.default or "")))
    page += [*table(("argument", "what it is", "shape and meaning", "default"), rows), ""]
    outs = [
        (code(o.name), escape("that of the operands" if o.elementwise else ", ".join(o.dims) or "1"))
        for o in row.signature.outputs
    ]
    return [*page, *table(("result", "shape"), outs), ""]


def gradient_section(row: Op) -> list[str]:
    page = ["## Gradient", ""]
    rule = row.vjp_rule
    if rule is None:
        return [*page, f"There is none: {escape(row.no_vjp or 'the row gives no reason')}.", ""]
    for paragraph in rule.doc.split("\n\n"):
        page += ["```text", paragraph, "```", ""] if is_formula(paragraph) else [escape(paragraph), ""]
    made = "It is composed of other operations." if rule.via is not None else f"The function is `{row.name}_bwd`."
    reads, gives = ", ".join(map(code, rule.reads)), ", ".join(map(code, rule.gives))
    return [*page, f"{made} It reads {reads} and gives {gives}.", ""]


def promise_section(row: Op) -> list[str]:
    """The bound, and in which mode which bits agree."""
    contract = row.contract
    reproducible = row.in_math("reproducible")
    rows = []
    for which in directions(row):
        plain, chain = row.bound_of(which).text, reproducible.bound_of(which).text
        same = "the same bits" if contract.same_bits else "within the bound"
        again = "the same bits" if contract.reproducible else "within the bound"
        rows.append((title(which), code(plain), same, code(chain), again))
    head = ("function", "error bound", "CPU and CUDA", "error bound, reproducible", "CPU and CUDA, reproducible")
    page = ["## What is promised", "", *table(head, rows), ""]
    page += ["The same inputs on the same device with the same library give the same bits, in both modes."]
    by = "a kernel of this library" if contract.cuda == "own" else contract.cuda
    page += [f"On CUDA it is computed by {by}.", ""]
    laws = list(dict.fromkeys(str(getattr(law, "text", law)) for law in contract.laws))
    if laws:
        page += ["Laws that results are held to:", "", *(f"- {code(law)}" for law in laws), ""]
    if row.source:
        page += [f"Sources: {escape(row.source)}.", ""]
    return page


def evidence_section(row: Op, material: Material) -> list[str]:
    """What the summaries say of the operation and of its gradient."""
    lines = [
        (title(which), *found)
        for which in directions(row)
        for found in results.entry_rows(row.entry(which), material.summaries)
    ]
    page = ["## What was measured", ""]
    if not lines:
        return [*page, "No summary holds a measurement under the bound that the row has now.", ""]
    page += ["A figure whose bound has changed since is left out. Worst figures are rounded up.", ""]
    return [*page, *table(("function", "tried", "outcome", "file"), lines), ""]


def figure_section(row: Op, material: Material) -> list[str]:
    """The distribution of errors on this machine's CPU."""
    page = ["## Errors on the CPU", ""]
    for which, m in material.measured.get(row.name, {}).items():
        name = row.entry(which)
        text = figures.sentence(m, name)
        if m["figure"]:
            page += [f"<figure>{m['figure']}<figcaption>{text}</figcaption></figure>", ""]
        else:
            page += [text.replace("_", "\\_"), ""]
    return [*page, "Measured when this page was built, on cases drawn from fixed seeds.", ""]


def time_section(row: Op, material: Material) -> list[str]:
    lines = []
    for which in directions(row):
        for device, size, *rest in results.entry_times(row.entry(which), material.summaries):
            lines.append([title(which), escape(size), device, *rest])
    page = ["## Time", ""]
    if not lines:
        return [*page, "No summary holds a time of this operation.", ""]
    head = ["function", "size", "on", "ms", "share of floor", "times faster than PyTorch", "than NumPy", "file"]
    for i in [i for i in (6, 5, 4) if not any(line[i] for line in lines)]:
        del head[i]
        lines = [[*line[:i], *line[i + 1 :]] for line in lines]
    return [
        *page,
        *table(head, lines),
        "",
        "[Speed](../docs/results.md) says what the floor is and how times were taken.",
        "",
    ]


def operation_page(row: Op, material: Material) -> str:
    """The page of an operation."""
    formula = formula_section(row)
    named = any(line.startswith("## ") and "rrors" in line for line in formula)
    page = [f"# {row.name}".replace("_", "\\_"), "", f"Family: [{row.family}]({row.family}/index.md)", "", *formula]
    page += checks_section(row, named) + call_section(row, material) + gradient_section(row) + promise_section(row)
    page += evidence_section(row, material) + figure_section(row, material) + time_section(row, material)
    return sources.unescape_pipes("\n".join(page))


def worst_share(row: Op, material: Material) -> str:
    """The closest that drawn cases of the forward function came to its bound, over all summaries that hold the bound of now."""
    found = [
        x
        for name, s in results.of_campaign(material.summaries, "verify").items()
        for r in s["rows"]
        if r["entry"] == row.name and "-reproducible" not in name and r["bound"] == row.bound.text
        for x in r["share"].values()
    ]
    return format_share(max(found)) if found else ""


def list_of(rows: Sequence[Op], material: Material, prefix: str) -> list[str]:
    lines = []
    for row in rows:
        summary = escape(read_documentation(row.doc).summary)
        bits = "always" if row.contract.same_bits else "reproducible" if row.contract.reproducible else "no"
        name = row.name.replace("_", "\\_")
        lines.append(
            (
                f"[{name}]({prefix}{row.name}.md)",
                summary,
                code(row.bound.text),
                bits,
                worst_share(row, material),
            )
        )
    return table(
        ("operation", "what it is", "error bound", "same bits on CPU and CUDA", "worst share of the bound"), lines
    )


def family_page(family: str, rows: Sequence[Op], material: Material) -> str:
    head = [f"# {family.capitalize()}", "", FAMILIES.get(family, ""), ""]
    note = "*Worst share of the bound*: of the forward function, over the drawn cases of all committed files."
    return sources.unescape_pipes("\n".join([*head, *list_of(rows, material, "../"), "", note, ""]))


def pages(material: Material, chosen: Sequence[Op] | None = None) -> dict[str, str]:
    """All pages by their paths in the site."""
    rows = registry.operations() if chosen is None else tuple(chosen)
    found = {f"operations/{row.name}.md": operation_page(row, material) for row in rows}
    index = [INDEX, ""]
    for family in registry.families():
        own = [row for row in rows if row.family == family]
        if own:
            found[f"operations/{family}/index.md"] = family_page(family, own, material)
            index += [
                f"## {family.capitalize()}",
                "",
                f"{FAMILIES.get(family, '')} [All with their bounds]({family}/index.md)",
                "",
            ]
            index += [" · ".join(f"[{row.name.replace('_', '&#95;')}]({row.name}.md)" for row in own), ""]
    found["operations/index.md"] = "\n".join(index)
    return found


def navigation() -> list[Any]:
    """The operations in the tree of pages, by family."""
    tree: list[Any] = ["operations/index.md"]
    for family in registry.families():
        own = [{row.name: f"operations/{row.name}.md"} for row in registry.operations() if row.family == family]
        tree.append({family.capitalize(): [f"operations/{family}/index.md", *own]})
    return tree
