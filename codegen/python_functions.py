"""``tlrt/kernels.py``: one documented, typed function per entry point.

Its arguments are those of :func:`tlspec.entries.arguments`, then ``want`` (a VJP of several gradients) and ``out``.
"""

from __future__ import annotations

import ast
import re

from codegen.docstrings import function_docstring, renamed_arguments, takes_want
from codegen.text import BANNER, call_text
from tlspec.entries import Argument, Entry, all_entries, arguments, inferred
from tlspec.signature import Array

WIDTH = 120
INTRODUCTION = """\
Arguments are device buffers, then dimensions, then scalars. A buffer has no shape: the dimensions say how its elements
are read, row-major. `out` is a buffer of exactly the result's length that is overwritten; without it one is made. Operations
on lists take sequences of buffers, and everything else by keyword; they work on all of them at once.

Every function raises ArgumentTypeError for a wrong Python type, ShapeError where a length does not fit its shape,
SizeOverflowError for dimensions whose product needs 2^32 or more, DeviceMismatchError for buffers of different devices,
AliasError where `out` is an input (elementwise operations allow it), ReleasedError for a released buffer, OutOfMemoryError, and
leaves `out` untouched then. A section `Raises` holds what an operation refuses besides; its VJP refuses the same.

Examples are run by a test, after ``import numpy as np``, ``import tlrt``, ``from tlrt import kernels`` and
``cpu = tlrt.device("cpu")``.

Ctrl-C (SIGINT) ends a long call on the CPU at once. If its handler raises, nothing is made and `out` holds anything; if the
handler returns, the call is made again. Calls with an input in `out`, optimisers' steps among them, run to their end, and so
do those of other threads than the main one."""
#: the functions that are no operation's
SHARE_AND_PACK = '''\
def share(x: Buffer) -> Buffer:
    """A second handle to the storage of a buffer; see :meth:`Buffer.share`.

    Parameters
    ----------
    x : Buffer
        Any length.

    Returns
    -------
    Buffer
        The other handle; the storage goes when both are released.

    Examples
    --------
    >>> x = cpu.buffer([1, 2])
    >>> y = kernels.share(x)
    >>> x.release()
    >>> print(y.numpy())
    [1. 2.]
    """
    try:
        return x.share()
    except AttributeError as error:
        raise _refusal(share, error, locals()) from None


def pack(xs: Sequence[Buffer]) -> Sequence[Buffer]:
    """The same buffers as a tuple that remembers their handles.

    Pass it where a list is taken, in `out` too: the call costs the same in Python for one buffer and for a hundred.

    Parameters
    ----------
    xs : sequence of Buffer
        Buffers of one device.

    Returns
    -------
    sequence of Buffer
        A tuple.

    Examples
    --------
    >>> print(kernels.global_norm(kernels.pack([cpu.buffer([3]), cpu.buffer([4])])).numpy())
    [5.]
    """
    try:
        return _pack(xs)
    except _WRONG as error:
        raise _refusal(pack, error, locals()) from None
'''


def _result(e: Entry) -> str:
    if any(o.host for o in e.outputs):
        return "npt.NDArray[np.float64]"
    if len(e.outputs) == 1:
        return "list[Buffer]" if e.outputs[0].listed else _class(e.outputs[0])
    if e.outputs[0].listed:
        return f"tuple[{', '.join(['list[Buffer]'] * len(e.outputs))}]"
    one = "Buffer | None" if takes_want(e) else "Buffer"
    return f"tuple[{', '.join([one] * len(e.outputs))}]"


def _class(output: Array) -> str:
    return "IndexBuffer" if output.kind == "index" else "Buffer"


def python_signature(e: Entry) -> str:
    """``def bmm(A: Buffer, …, *, out: Buffer | None = None) -> Buffer:``."""

    def one(a: Argument) -> str:
        return f"{a.name}: {a.annotation}" + ("" if a.default is None else f" = {a.default}")

    args = arguments(e)
    items = [one(a) for a in args if not a.keyword] + ["*"] + [one(a) for a in args if a.keyword]
    if any(o.host for o in e.outputs):
        items.append("out: npt.NDArray[np.float64] | None = None")
    elif e.outputs[0].listed:
        one_list = "Sequence[Buffer | None] | None"
        items.append(f"out: {one_list if len(e.outputs) == 1 else f'Sequence[{one_list}] | None'} = None")
    elif len(e.outputs) == 1:
        items.append(f"out: {_class(e.outputs[0])} | None = None")
    else:
        if takes_want(e):
            items.append("want: Sequence[bool] | None = None")
        items.append("out: Sequence[Buffer | None] | None = None")
    line = f"def {e.name}({', '.join(items)}) -> {_result(e)}:"
    if len(line) <= WIDTH:
        return line
    inner = f"    {', '.join(items)}"
    body = inner if len(inner) <= WIDTH else ",\n".join(f"    {i}" for i in items) + ","
    return f"def {e.name}(\n{body}\n) -> {_result(e)}:"


def _dims_text(a: Array, e: Entry) -> str:
    """The shape of a host array as a Python tuple of the function's locals."""
    known, names = inferred(e), {x.of: x.name for x in arguments(e)}
    parts = []
    for item in a.dims:
        if item in known:
            parts.append(f"{known[item]}_.size")
        elif item.startswith("*") and item[1:] in names:
            parts.append(f"*{names[item[1:]]}")
        else:
            for node in ast.walk(ast.parse(item, mode="eval")):
                if isinstance(node, ast.Call):
                    raise ValueError(f"{e.name}: {a.name}: the shape of a host array may not call functions")
            parts.append(re.sub(r"[A-Za-z_]\w*", lambda m: names.get(m[0], m[0]), item))
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def function(e: Entry) -> str:
    """The text of one function."""
    sig, args, known = e.signature, arguments(e), inferred(e)
    python = {a.of: a.name for a in args}
    prepare: list[str] = []
    call: list[str] = ["device._handle"] if sig.needs_context else []
    sized = set()  # dimensions that an array has given
    for a in sig.inputs:
        name = python[a.name]
        if a.listed:
            call.append(f"lists[{len([c for c in call if c.startswith('lists[')])}]")
        elif a.host:
            word, ctype = ("uint32", "_UINT32S") if a.kind == "u32" else ("float64", "_DOUBLES")
            if a.dims and known.get(a.dims[0]) == a.name and a.dims[0] not in sized:
                sized.add(a.dims[0])
                shape = ""
            else:
                shape = f", {_dims_text(a, e)}"
            prepare.append(f'{a.name}_ = _{word}("{e.name}", "{name}", {name}{shape})')
            call.append(f"_from_buffer({ctype}, {a.name}_)")
        elif a.optional:
            call.append(f"_NULL if {name} is None else {name}._handle")
        else:
            call.append(f"{name}._handle")
    for d in sig.dims:
        bare = d.lstrip("*")
        if d in known:
            of = next(a for a in sig.inputs if a.name == known[d])
            call.append(
                "count" if sig.lists else f"{python[of.name]}.size" if of.kind == "index" else f"{of.name}_.size"
            )
        elif d.startswith("*"):
            prepare.append(f"{bare}_ = _uint32_list({python[bare]})")
            call += [f"{bare}_", f"_count({bare}_)"]
        else:
            call.append(f"_index({python[bare]})")
    for p in sig.params:
        if p.kind == "dims":
            prepare.append(f"{p.name}_ = _uint32_list({python[p.name]})")
            call += [f"{p.name}_", f"_count({p.name}_)"]
        else:
            call.append(python[p.name] if p.kind == "float" else f"_index({python[p.name]})")
    if sig.lists:
        buffers = [python[a.name] for a in sig.lists]
        quoted = ", ".join(f'"{n}"' for n in buffers)
        comma = "," * (len(buffers) == 1)
        prepare += [
            f"if {' and '.join(_are_packs(buffers))}:", f"    lists, count = ({_handles(buffers)}), len({buffers[0]})",
            "else:", f'    lists, count = _lists("{e.name}", ({quoted}{comma}), ({", ".join(buffers)}{comma}))',
        ]  # fmt: skip
        if sig.needs_context:
            owner = f'_owner("{e.name}", {quoted.split(",")[0]}, {buffers[0]})'
            prepare += ["if device is None:", f"    device = {owner}"]
    first = next((python[a.name] for a in sig.buffers if not a.optional), "")
    owner = "device" if sig.needs_context else f"{first}._device"
    prepare.append(f"call = {_entry_point(e, owner)}")
    roles = {a.name: a.role for a in args if a.role != "dimension"}
    role_argument = f", {roles!r}".replace("'", '"') if roles else ""
    refuse = f"raise _refusal({e.name}, error, locals(){role_argument}) from None"
    rename = renamed_arguments(e)
    fail = f"return _again(status, {e.name}, locals(){f', {rename!r}' if rename else ''})".replace("'", '"')
    placed = [f"places[{i}]" for i in range(len(e.outputs))]
    if any(o.host for o in e.outputs):
        lines = _host_body(e, prepare, call)
    elif e.outputs[0].listed:
        quoted = ", ".join(f'"{o.name}"' for o in e.outputs) + "," * (len(e.outputs) == 1)
        single = len(e.outputs) == 1
        supplied = ["out"] if single else [f"out[{i}]" for i in range(len(e.outputs))]
        finished = f"_list_results(places, given, {owner}) if undo else given"
        lines = [
            "undo = ()",
            "try:", *[f"    {p}" for p in prepare], *_indent(_condition(supplied)),
            f"        places = ({_handles(supplied)})",
            f"        given = ({', '.join(f'[*{n}]' for n in supplied)}{',' * single})",
            "    else:",
            f'        places, given, undo = _list_slots("{e.name}", ({quoted}), {"(out,)" if single else "out"}, count)',
            *_indent(call_text("status = call", [*call, *placed], "", WIDTH - 8)),
            "    if not status:",
            f"        return {f'({finished})[0]' if single else finished}",
        ]  # fmt: skip
        undo, after = ["_exhaust(undo)"], [fail]
    elif len(e.outputs) == 1:
        lines = [
            "try:", "    slot = _take()", "except IndexError:", "    slot = _new_slot()",
            "try:", "    slot[0] = _NULL if out is None else out._handle", *[f"    {p}" for p in prepare],
            *_indent(call_text("status = call", [*call, "slot"], "", WIDTH - 8)),
            "    if out is None and not status:", f"        made = _make({_class(e.outputs[0])})",
            "        made._handle = _own(slot[0], _release)", f"        made._device = {owner}", "        out = made",
        ]  # fmt: skip
        undo = ["if out is None:", "    _release(slot[0])"]
        after = ["_give(slot)", "return out"]
    else:
        names = ", ".join(f'"{o.name}"' for o in e.outputs)
        lines = [
            f'places, given, undo, give = taken = _slots("{e.name}", ({names}), {"want" if takes_want(e) else "None"}, out)',
            "try:", *[f"    {p}" for p in prepare],
            *_indent(call_text("status = call", [*call, *placed], "", WIDTH - 8)),
            "    if not status:", f"        made = _results(places, given, {owner})",
        ]  # fmt: skip
        undo, after = ["_exhaust(undo)"], ["if status:", f"    {fail}", "give(taken)", "return made"]
    if any(o.host for o in e.outputs):
        lines += ["except _WRONG as error:", f"    {refuse}", "if status:", f"    {fail}"]
        lines += [f"return {e.outputs[0].name}_"]
    else:
        lines += ["except BaseException as error:", *[f"    {line}" for line in undo]]
        lines += ["    if not isinstance(error, _WRONG):", "        raise", f"    {refuse}"]
        single = len(e.outputs) == 1 and not e.outputs[0].listed
        lines += [*(["if status:", f"    {fail}"] if single else []), *after]
    lines = [*_run_twin(e), *lines]
    return f"{python_signature(e)}\n{function_docstring(e)}\n" + "\n".join(f"    {line}" for line in lines) + "\n"


def _run_twin(e: Entry) -> list[str]:
    """Where indices of the host are taken, the lines that call the function's twin for an index buffer."""
    index = next((a.name for a in arguments(e) if a.kind == "u32"), None)
    if index is None:
        return []
    given = ", ".join([*(f"{a.name}={a.name}" if a.keyword else a.name for a in arguments(e)), "out=out"])
    return [f"if type({index}) is IndexBuffer:", f"    return {e.name}_indexed({given})"]


def _entry_point(e: Entry, owner: str) -> str:
    """The C function as a device has it; see tlrt._binding.observer.Calls. It is looked up on a line of its own, as CPython
    specialises the lookup of an attribute, and not that of a method which the class does not have."""
    return f"{owner}._calls.{e.symbol.removeprefix('torchlean_cuda_')}"


def _are_packs(names: list[str], *count: str) -> list[str]:
    """The conditions under which lists are packs of one length, of `count` if given, as in an optimiser's step after step."""
    types, lengths = [f"type({n})" for n in names], [*(f"len({n})" for n in names), *count]
    return [" is ".join([*types, "_Pack"]), *([" == ".join(lengths)] if len(lengths) > 1 else [])]


def _condition(supplied: list[str]) -> str:
    """The line, or lines, that ask whether the lists of outputs are packs."""
    types, lengths = _are_packs(supplied, "count")
    if len(supplied) == 1:
        return f"if {types} and {lengths}:"
    return f"if (\n    type(out) is tuple and len(out) == {len(supplied)} and {types}\n    and {lengths}\n):"


def _handles(names: list[str]) -> str:
    return ", ".join(f"{n}._handles" for n in names) + "," * (len(names) == 1)


def _indent(text: str) -> list[str]:
    return [f"    {line}" for line in text.split("\n")]


def _host_body(e: Entry, prepare: list[str], call: list[str]) -> list[str]:
    if len(e.outputs) != 1:
        raise ValueError(f"{e.name}: one host output at most")
    o = e.outputs[0]
    inputs = ", ".join(f"{a.name}_" for a in e.signature.inputs if a.kind == "f64")
    made = f'{o.name}_ = _float64_out("{e.name}", "{o.name}", out, {_dims_text(o, e)}, [{inputs}])'
    whole = [*call, f"_from_buffer(_DOUBLES, {o.name}_, True)"]
    run = call_text("status = call", whole, "", WIDTH - 8)
    return ["try:", *[f"    {p}" for p in [*prepare, made]], *_indent(run)]


def python_module() -> str:
    """The text of ``tlrt/kernels.py``."""
    entries = all_entries()
    bodies = [function(e) for e in entries]
    text = "\n\n".join(bodies)
    helpers = {
        "tlrt._binding.call": ("DOUBLES", "NULL", "Pack", "UINT32S", "WRONG", "again", "count", "exhaust", "free", "from_buffer",
                       "index", "list_results",
                       "list_slots", "lists", "make", "new_slot", "own", "owner", "pack", "refusal", "release", "results",
                       "slots", "uint32_list"),
        "tlrt._binding.convert": ("float64", "float64_out", "uint32"),
    }  # fmt: skip
    imports = []
    for source, names in helpers.items():
        used = [n for n in names if re.search(rf"\b_{n}\b", text) or n in ("free", "pack")]
        if used:
            imports.append(f"from {source} import (")
            imports += [f"    {n} as _{n}," for n in used] + [")"]
    arrays = ["import numpy as np"] if "np.float64" in text else []
    arrays += ["import numpy.typing as npt"] if "npt." in text else []
    head = [
        '"""One function per operation of the C library.',
        "",
        f"{BANNER}",
        "",
        INTRODUCTION,
        '"""',
        "",
        "from __future__ import annotations",
        "",
        *(["from collections.abc import Sequence", ""] if "Sequence[" in text else []),
        *arrays, *([""] if arrays else []),
        *imports,
        "from tlrt.buffer import Buffer, IndexBuffer",
        *(["from tlrt.context import Device"] if "device: Device" in text else []),
        "",
        _all_names(entries),
        "",
        *(["_take, _give = _free.pop, _free.append"] if "_take()" in text else []),
    ]  # fmt: skip
    return "\n".join([*head, "", "", SHARE_AND_PACK, "", text])


def _all_names(entries: list[Entry]) -> str:
    names = sorted(["pack", "share", *(e.name for e in entries)])
    return "__all__ = [\n" + "".join(f'    "{n}",\n' for n in names) + "]"
