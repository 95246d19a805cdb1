"""``native/generated/FAMILY_entry_points.c``: the exported functions, which check their arguments and run the kernel."""

from codegen.c_expression import c_string, to_c
from codegen.prototypes import exported_prototype
from codegen.text import BANNER, call_text
from tlspec.entries import Entry, all_entries, checks_of
from tlspec.expressions import names_in
from tlspec.registry import Check
from tlspec.signature import Array, Signature

#: families whose work is linear in the sizes of their arrays, and the operation of them whose work is not
LINEAR, SORTS = ("elementwise", "index", "loss", "norm", "random", "reduce", "shape", "softmax"), "topk"
#: longest line of a function's body, which is indented by four
_WIDTH = 116


def array_length(e: Entry, a: Array) -> tuple[str, str, list[str]]:
    """The length of an array as messages write it, the C expression of it, and the declarations this needs before it."""
    if a.elementwise:
        first = next(x for x in e.signature.inputs if x.elementwise)
        return f"the length of {first.name}", "n", []
    text, factors, declarations = [], [], []
    for item in a.dims:
        if item.startswith("*") and item[1:].isidentifier():
            text.append(f"product({item[1:]})")
            factors.append(f"tl_dims_product(&{item[1:]}_)")
        elif item.startswith("*"):
            local = f"{a.name}_dims_"
            declarations.append(f"const tl_dims {local} = {to_c(item[1:], e.signature)};")
            text.append(f"product({item[1:]})")
            factors.append(f"tl_dims_product(&{local})")
        else:
            text.append(item if item.isidentifier() or item.isdigit() else f"({item})")
            factors.append(to_c(item, e.signature))
    if not factors:
        return "1", "1", []
    if len(factors) == 1 and factors[0].startswith("tl_dims_product"):
        return text[0], factors[0], declarations
    return "*".join(text), f"TL_PRODUCT({', '.join(factors)})", declarations


def entry_point(e: Entry) -> str:
    """The C text of one entry point."""
    hosts = {a.name for a in e.signature.inputs if a.host}
    checks = checks_of(e)
    # a check that reads a host array comes after the array's own, and only if nothing failed before
    late = [c for c in checks if names_in(c.expression) & hosts]
    inputs, input_arguments = _check_inputs(e)
    outputs, output_arguments = _check_outputs(e)
    family, kernel, lists = e.op.family, e.kernel, list[str]()
    if e.op.forward is None:
        arguments = ["call.ctx", *input_arguments, *_size_arguments(e.signature), *output_arguments]
    else:
        family, kernel, lists, arguments = _forwarded(e, input_arguments, output_arguments)
    body = [*_open_call(e), *_read_parameters(e, checks),
            *(_require(c, e.signature, _WIDTH) for c in checks if c not in late), *_count_lists(e.signature), *inputs,
            *("if (!call.status)\n    " + _require(c, e.signature, _WIDTH - 4).replace("\n", "\n    ") for c in late),
            *outputs, *lists, f"if ({'tl_begin_host' if all(a.host for a in e.signature.outputs) else 'tl_begin'}(&call))",
            call_text(f"    call.status = TL_KERNEL(&call, {family}, {kernel})", arguments, ";", _WIDTH),
            "return tl_end(&call);"]  # fmt: skip
    lines = "\n".join("    " + line for statement in body for line in statement.split("\n"))
    return f"{exported_prototype(e)}\n{{\n{lines}\n}}\n"


def _open_call(e: Entry) -> list[str]:
    sig = e.signature
    if sig.needs_context:
        enter = f'tl_enter_context(&call, "{e.symbol}", context);'
    else:
        first = next(a for a in sig.buffers if not a.optional)
        enter = f'tl_enter(&call, "{e.symbol}", "{first.name}", {first.name});'
    elementwise = sig.elementwise or any(a.listed for a in sig.outputs)
    linear = e.op.family in LINEAR and e.op.name != SORTS and not sig.lists
    marks = ["call.elementwise"] * elementwise + ["call.linear"] * linear
    return ["tl_call call;", enter, *([f"{' = '.join(marks)} = 1;"] if marks else [])]


def _read_parameters(e: Entry, checks: list[Check]) -> list[str]:
    """Declares the locals ``NAME_`` of dimensions and parameters that checks and lengths are computed from."""
    sig = e.signature
    used = set().union(
        *[names_in(x) for x in (e.op.forward.arguments.values() if e.op.forward else ()) if not x.isidentifier()],
        *[names_in(c.expression) for c in checks],
        *[names_in(i.lstrip("*")) for a in sig.inputs + sig.outputs for i in a.dims if i != "*" and not a.listed],
    )
    lines = []
    kinds = [(d.lstrip("*"), "dims" if d.startswith("*") else "u32") for d in sig.dims]
    for name, kind in kinds + [(p.name, p.kind) for p in sig.params]:
        if kind == "dims":
            lines.append(f'const tl_dims {name}_ = tl_read_dims(&call, "{name}", {name}, {name}_rank, 0);')
        elif kind == "float":
            lines.append(f"const float {name}_ = tl_scalar({name});")
        elif name in used:
            lines.append(f"const uint64_t {name}_ = {name};")
    return lines


def _count_lists(sig: Signature) -> list[str]:
    if not sig.lists:
        return []
    outputs, count = [a for a in sig.outputs if a.listed], sig.lists[0].dims[0]
    checks = [f'tl_host(&call, "{a.name}", {a.name}, {count});' for a in (*sig.lists, *outputs)]
    return [*checks, f"tl_lists(&call, {len(sig.lists)}, {len(outputs)}, {count});"]


def _check_inputs(e: Entry) -> tuple[list[str], list[str]]:
    """The statements that check the inputs, and what the kernel gets for them."""
    lines: list[str] = []
    arguments: list[str] = []
    first = next((a for a in e.signature.inputs if a.elementwise), None)
    for a in e.signature.inputs:
        arguments.append(a.name if a.host else f"{a.name}_")
        if a.listed:
            lines.append(f'const float *const *{a.name}_ = tl_input_list(&call, "{a.name}", {a.name});')
            continue
        text, length, declarations = array_length(e, a)
        lines += declarations
        if a.host:
            lines.append(f'tl_host(&call, "{a.name}", {a.name}, {length});')
        elif a is first:
            lines.append(f'const uint64_t n = tl_length(&call, "{a.name}", {a.name});')
            lines.append(f'const float *{a.name}_ = tl_input(&call, "{a.name}", {a.name}, "n", n);')
        else:
            check = f"const float *{a.name}_ = " + ("tl_input_optional" if a.optional else "tl_input")
            if a.kind == "index":
                check = f"const uint32_t *{a.name}_ = tl_input_index"
            lines.append(call_text(check, ["&call", f'"{a.name}"', a.name, f'"{text}"', length], ";", _WIDTH))
    return lines, arguments


def _check_outputs(e: Entry) -> tuple[list[str], list[str]]:
    """The statements that declare the outputs, and what the kernel gets for them."""
    lines: list[str] = []
    arguments: list[str] = []
    for i, a in enumerate(e.signature.outputs):
        if e.only is not None and i != e.only:
            arguments.append("NULL")
        elif a.listed:
            lines.append(f'tl_output_list(&call, "{a.name}", {a.name});')
            arguments.append(f"tl_out_list(&call, {i})")
        else:
            text, length, declarations = array_length(e, a)
            lines += declarations
            if a.host:
                lines.append(f'tl_host(&call, "{a.name}", {a.name}, {length});')
                arguments.append(a.name)
                continue
            declare = "tl_output_optional" if a.optional and e.only is None else "tl_output"
            cast, declare = ("(uint32_t *)", "tl_output_index") if a.kind == "index" else ("", declare)
            lines.append(call_text(declare, ["&call", f'"{a.name}"', a.name, f'"{text}"', length], ";", _WIDTH))
            arguments.append(f"{cast}tl_out(&call, {sum('tl_out(' in x for x in arguments)})")
    return lines, arguments


def _size_arguments(sig: Signature) -> list[str]:
    """The dimensions and parameters as the kernel gets them."""
    return [
        *(["(int64_t)n"] if sig.elementwise else []),
        *(f"&{d[1:]}_" if d.startswith("*") else d for d in sig.dims),
        *(["call.list.lengths"] if sig.lists else []),
        *({"dims": f"&{p.name}_", "float": f"{p.name}_"}.get(p.kind, p.name) for p in sig.params),
    ]


def _forwarded(e: Entry, inputs: list[str], outputs: list[str]) -> tuple[str, str, list[str], list[str]]:
    """The family and the name of the kernel that a synonym runs, the lists it makes for it, and what the kernel gets."""
    forward, sig = e.op.forward, e.signature
    assert forward is not None
    which = "forward" if e.kernel == e.op.name else "vjp"
    target = forward.of.signature_of(which)
    given = dict(zip([a.name for a in sig.inputs + sig.outputs], inputs + outputs, strict=True))
    plain = {d for d in sig.dims if not d.startswith("*")} | {p.name for p in sig.params if p.kind != "float"}
    lists = []

    def pointer(name: str) -> str:
        return given.get(forward.name_of(name) or "", "NULL")

    def size(name: str, kind: str) -> str:
        expression = forward.arguments[name]
        if kind != "dims":
            return expression if expression in plain or expression.isdigit() else to_c(expression, sig)
        if expression.isidentifier():
            return f"&{expression}_"
        lists.append(f"const tl_dims {name}_there = {to_c(expression, sig)};")
        return f"&{name}_there"

    kinds = [(d.lstrip("*"), "dims" if d.startswith("*") else "u32") for d in target.dims]
    sizes = [size(name, kind) for name, kind in kinds] + ["call.list.lengths"] * bool(target.lists)
    sizes += [size(p.name, p.kind) for p in target.params]
    arguments = [*(pointer(a.name) for a in target.inputs), *["(int64_t)n"] * target.elementwise, *sizes,
                 *(pointer(a.name) for a in target.outputs)]  # fmt: skip
    return forward.of.family, forward.of.entry(which), lists, ["call.ctx", *arguments]


def _require(c: Check, sig: Signature, width: int) -> str:
    """The statement that refuses a call which fails a check."""
    message, values = _check_message(c, sig)
    condition, status = to_c(c.expression, sig), f"TORCHLEAN_{c.status}"
    items = ["&call", condition, status, c_string(c.name), c_string(message), *values]
    return call_text("tl_require", items, ";", width)


def _check_message(c: Check, sig: Signature) -> tuple[str, list[str]]:
    """The format of a refusal's message and the values it prints."""
    kinds = {p.name: p.kind for p in sig.params}
    lists = {d[1:] for d in sig.dims if d.startswith("*")} | {n for n, k in kinds.items() if k == "dims"}
    lists |= {a.name for a in sig.inputs}
    names = [n for n in sorted(names_in(c.expression), key=c.expression.index) if n not in lists]
    got, values = [], []
    for n in names:
        if kinds.get(n) == "float":
            got.append(f"{n} = %.9g")
            values.append(f"(double){n}_")
        else:
            got.append(f"{n} = %llu")
            values.append(f"(unsigned long long){n}_")
    expected = (c.say or c.expression).replace("%", "%%")
    return (f"got {', '.join(got)}; expected {expected}" if got else f"expected {expected}"), values


def entry_points_source(family: str) -> str:
    """The text of ``FAMILY_entry_points.c``."""
    others = sorted({e.op.forward.of.family for e in all_entries(family) if e.op.forward} - {family})
    head = (
        f"/* Entry points of the {family} family: argument checks, then dispatch to the call's device.\n * {BANNER} */\n"
        f'#include "core/call.h"\n#include "core/dispatch.h"\n#include "core/shapes.h"\n'
        f'#include "generated/cpu_kernels.h"\n#include "generated/{family}.h"\n'
        + "".join(f'#include "generated/{f}.h"\n' for f in others)
    )
    return head + "".join("\n" + entry_point(e) for e in all_entries(family))
