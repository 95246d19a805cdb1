"""One page per operation, made from its row and the evidence files; pages of families, and an index of all."""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from audit.environment import EVIDENCE, ROOT
from audit.evidence import Evidence, Source
from audit.figures import count_calls, format_count, format_inputs, format_share, plural
from audit.league import table as league
from audit.league.explained import explanation
from audit.league.libraries import LIBRARIES
from audit.markdown import format_figure, table
from bench import results
from pages import figures, sources
from tlrt import Session, kernels
from tlrt.verify.documents import read_document
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
    """Plain text as Markdown."""
    return re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def is_formula(paragraph: str) -> bool:
    """Whether a paragraph of a docstring begins with a formula: a name, perhaps with indices, and what it equals."""
    return bool(re.match(r"[\w' ,{}|‖]*(\[[^\]]*\])?(, [\w]+(\[[^\]]*\])?)* *(=|~) ", paragraph))


@dataclass
class Material:
    """What pages are made from: evidence, benchmarks, and measurements by operation and direction."""

    sources: Sequence[Source]
    measured: Mapping[str, Mapping[str, figures.Measurement]]

    @cached_property
    def evidence(self) -> Evidence:
        return Evidence(self.sources)

    @cached_property
    def prototypes(self) -> dict[str, str]:
        """C declarations by symbol."""
        text = declarations((ROOT / "native/include/torchlean_cuda_ops.h").read_text(encoding="utf-8"))
        return {m[1]: line for line in text.splitlines() if (m := re.search(r"\b(torchlean_cuda_\w+)\(", line))}

    @cached_property
    def timings(self) -> dict[str, list[tuple[str, str, Mapping[str, Any]]]]:
        """Benchmark rows by entry point: the run's title, its file, the row."""
        found: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
        for run in results.RUNS:
            loaded = results.load(run.file)
            for row in loaded["bench"]["rows"] if loaded else ():
                found.setdefault(row["op"], []).append((run.title.partition(",")[0], run.file, row))
        return found

    @cached_property
    def libraries(self) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
        """What the league found of other libraries, by operation: the file and its line."""
        found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
        for name in league.sources():
            for line in league.rows_of([read_document(EVIDENCE / name)]):
                found.setdefault(line["op"], []).append((name, line))
        return found


def file_link(name: str) -> str:
    return f"[{name}](../evidence/{name})"


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
        rows.append(("forward" if which == "forward" else "gradient", code(plain), same, code(chain), again))
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


def _quoted(row: Op, which: str, source: Source, found: Mapping[str, Any]) -> bool:
    """Whether the bound that a file was held to is the one that the row has now."""
    mode = "reproducible" if "--math reproducible" in source.command else "fast"
    now = row.in_math(mode).bound_of(which).text
    return found.get("bound", now) == now


def evidence_rows(row: Op, material: Material) -> Iterator[tuple[str, ...]]:
    """What every file says of the operation and of its gradient: function, what was tried, where, outcome, file."""
    ev = material.evidence
    for which in directions(row):
        name, title = row.entry(which), "forward" if which == "forward" else "gradient"
        for part in ("verify", "exhaustive", "probe", "determinism", "alarms"):
            for kind in ("cpu", "cuda"):
                for source, r in ev.index.get((part, name, kind), []):
                    if not _quoted(row, which, source, r):
                        continue
                    mode = " (reproducible)" if "--math reproducible" in source.command else ""
                    failed = "**failed**; " if r.get("verdict", "pass") != "pass" else ""
                    what, outcome = describe(part, r)
                    if what:
                        yield title, what + mode, source.label(r["device"]), failed + outcome, file_link(source.name)


def describe(part: str, r: Mapping[str, Any]) -> tuple[str, str]:
    """What a row of a part tried, and what came of it."""
    if part == "verify":
        bits = {True: "; the bits of the CPU", False: "; other bits than the CPU"}.get(r["identical"], "")
        worst = "no error" if float(r["share"]) == 0 else f"worst error {format_share(r['share'])} of the bound"
        return f"{format_count(r['cases'])} drawn cases", worst + bits
    if part == "exhaustive":
        step = "" if r["stride"] == 1 else f", every {r['stride']}th"
        most = plural(r["worst"], "spacing")
        outcome = f"at most {most} from the nearest float32; {format_count(r['misrounded'])} not the nearest"
        return f"{format_inputs(r['seen'])} inputs{step}", outcome if r["misrounded"] else "always the nearest float32"
    if part == "probe":
        if r["height"] is None:
            return "", ""
        heights = f"{r['height'] + r['extra']} roundings on the longest path, {r['declared']} in the bound"
        return f"order of a sum of {format_count(r['leaves'])}", heights
    if part == "determinism":
        batch = f"; batch: {r['batch']}" if "not promised" in str(r.get("batch")) else ""
        return f"{format_count(count_calls(r))} calls again", "the same bits" + batch
    return f"{format_count(r['comparisons'])} correct results", (
        f"{format_count(r['alarms'])} called wrong; closest {format_share(r['worst'])} of the bound"
    )


def merge_devices(lines: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Lines of one file that say the same of two devices, or of the second one its bits besides, as one line."""
    merged: list[tuple[str, ...]] = []
    for title, tried, device, outcome, file in dict.fromkeys(lines):
        for i, (*head, where, said, source) in enumerate(merged):
            if [*head, source] == [title, tried, file] and where != device and outcome.startswith(said):
                merged[i] = (title, tried, f"{where}, {device}", outcome, file)
                break
        else:
            merged.append((title, tried, device, outcome, file))
    return merged


def evidence_section(row: Op, material: Material) -> list[str]:
    lines = merge_devices(evidence_rows(row, material))
    page = ["## What was measured", ""]
    if not lines:
        return [*page, "No committed file holds a measurement under the bound that the row has now.", ""]
    page += ["A figure whose bound has changed since is left out. Worst figures are rounded up.", ""]
    return [*page, *table(("function", "tried", "on", "outcome", "file"), lines), ""]


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
        for title, file, r in material.timings.get(row.entry(which), []):
            peers = r["peers"]
            beside = [f"{format_figure(peers[p]['ratio'])}" if p in peers else "" for p in ("torch", "numpy")]
            share = f"{r['floor_share']:.2f}" if r["floor_ms"] else ""
            direction = "forward" if which == "forward" else "gradient"
            lines.append(
                (direction, escape(r["size"]), title, f"{format_figure(r['ours_ms'])}", share, *beside, file_link(file))
            )
    page = ["## Time", ""]
    if not lines:
        return [*page, "No committed file holds a time of this operation.", ""]
    head = ["function", "size", "on", "ms", "share of floor", "times faster than PyTorch", "than NumPy", "file"]
    drop = [i for i in (6, 5, 4) if not any(line[i] for line in lines)]
    for i in drop:
        del head[i]
        lines = [(*line[:i], *line[i + 1 :]) for line in lines]
    return [
        *page,
        *table(head, lines),
        "",
        "[Speed](../docs/results.md) says what the floor is and how times were taken.",
        "",
    ]


def libraries_section(row: Op, material: Material) -> list[str]:
    """How close other libraries came to the tolerance of their arithmetic."""
    by_format: dict[tuple[str, str, str], dict[str, Mapping[str, Any]]] = {}
    for file, line in material.libraries.get(row.name, []):
        by_format.setdefault((LIBRARIES[line["library"]].title, line["dtype"], file), {})[line["which"]] = line
    if not by_format:
        return []
    rows = [(title, dtype, *(league.cell(found.get(which)) for which in ("forward", "vjp")), file_link(file))
            for (title, dtype, file), found in by_format.items()]  # fmt: skip
    page = [
        "## Other libraries",
        "",
        "The worst error as a share of the tolerance that the library's own arithmetic allows.",
        "",
    ]
    page += [*table(("library", "format", "forward", "gradient", "file"), rows), ""]
    lines = [line for found in by_format.values() for line in found.values() if line["verdict"] == "fail"]
    page += [
        f"- ✗ {LIBRARIES[n].title}: {escape(why)}"
        for n, why in dict.fromkeys((x["library"], explanation(x)) for x in lines)
    ]
    return [*page, "", "[The league table](../docs/league.md) explains the marks.", ""]


def operation_page(row: Op, material: Material) -> str:
    """The page of an operation."""
    formula = formula_section(row)
    named = any(line.startswith("## ") and "rrors" in line for line in formula)
    page = [f"# {row.name}".replace("_", "\\_"), "", f"Family: [{row.family}]({row.family}/index.md)", "", *formula]
    page += checks_section(row, named) + call_section(row, material) + gradient_section(row) + promise_section(row)
    page += evidence_section(row, material) + figure_section(row, material) + time_section(row, material)
    page += libraries_section(row, material)
    return sources.unescape_pipes("\n".join(page))


def worst_share(row: Op, which: str, material: Material) -> str:
    """The closest that drawn cases came to the bound, over all files that hold the bound of now."""
    index, name = material.evidence.index, row.entry(which)
    held = [pair for kind in ("cpu", "cuda") for pair in index.get(("verify", name, kind), [])]
    found = [float(r["share"]) for source, r in held if _quoted(row, which, source, r)]
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
                worst_share(row, "forward", material),
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
    rows = registry.ops() if chosen is None else tuple(chosen)
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
        own = [{row.name: f"operations/{row.name}.md"} for row in registry.ops() if row.family == family]
        tree.append({family.capitalize(): [f"operations/{family}/index.md", *own]})
    return tree
