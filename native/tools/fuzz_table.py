"""Writes fuzz_table.h for the hostile-call driver (tests/native/fuzz_abi.c): every generated entry point of the C ABI.

Of each entry point it gives the kinds of its arguments, a function that calls it, a function that computes the lengths of its
arrays from its dimensions (the expressions of the row), and cases drawn by ``tlspec.drawn`` that must be accepted.

``python native/tools/fuzz_table.py FILE [CASES]``
"""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from codegen.entry_points import array_length
from tlspec import entries
from tlspec.drawn import Case, data_classes, draw_case
from tlspec.entries import Entry

#: how an argument is read out of a value of the driver, by kind
READ = {
    "CONTEXT": "CONTEXT_AT({i})", "BUFFER": "BUFFER_AT({i})", "OPTIONAL": "BUFFER_AT({i})",
    "INDEX": "BUFFER_AT({i})", "LIST_IN": "LIST_AT({i})",
    "U32S": "U32S_AT({i})", "F64S": "F64S_AT({i})", "DIM": "DIM_AT({i})", "DIMS": "DIMS_AT({i})", "FLOAT": "FLOAT_AT({i})",
    "U64": "U64_AT({i})", "OUT": "OUT_AT({i})", "OUT_OPTIONAL": "OUT_AT({i})",
    "OUT_INDEX": "OUT_AT({i})", "OUT_LIST": "OUT_LIST_AT({i})",
    "OUT_F64S": "F64S_AT({i})",
}  # fmt: skip


def kinds(e: Entry) -> list[tuple[str, str]]:
    """Kind and name of each argument in the order of C; a dimension list is one argument."""
    sig = e.signature
    out = [("CONTEXT", "context")] if sig.needs_context else []
    for a in sig.inputs:
        plain = "OPTIONAL" if a.optional else "BUFFER"
        out.append(({"f32": plain, "index": "INDEX", "list": "LIST_IN", "u32": "U32S", "f64": "F64S"}[a.kind], a.name))
    out += [("DIMS" if d.startswith("*") else "DIM", d.lstrip("*")) for d in sig.dims]
    out += [({"dims": "DIMS", "u32": "DIM", "u64": "U64", "float": "FLOAT"}[p.kind], p.name) for p in sig.params]
    for a in e.outputs:
        plain = "OUT_OPTIONAL" if a.optional and e.only is None else "OUT"
        out.append(({"f32": plain, "index": "OUT_INDEX", "list": "OUT_LIST", "f64": "OUT_F64S"}[a.kind], a.name))
    return out


def lengths(e: Entry) -> list[str]:
    """The body of the function that computes n[i], the elements of array argument i."""
    sig, at = e.signature, {name: i for i, (_, name) in enumerate(kinds(e))}
    expressions, helpers = [], []
    for a in (*sig.inputs, *e.outputs):
        if a.elementwise:
            first = next(x for x in sig.inputs if x.elementwise)
            expressions.append(f"n[{at[a.name]}] = v[{at[first.name]}].length;")
        elif a.kind == "list":
            expressions.append(f"n[{at[a.name]}] = {a.dims[0]}_;")
        else:
            _, count, declarations = array_length(e, a)
            helpers += declarations
            expressions.append(f"n[{at[a.name]}] = {count};")
    text = " ".join(helpers + expressions)
    locals_ = []
    for kind, name in kinds(e):
        if not re.search(rf"\b{name}_\b", text):
            continue
        if kind == "DIMS":
            locals_.append(f"const tl_dims {name}_ = fuzz_dims(&v[{at[name]}]);")
        elif kind in ("DIM", "U64"):
            locals_.append(f"const uint64_t {name}_ = v[{at[name]}].u;")
    return locals_ + helpers + expressions


def words(e: Entry, case: Case) -> list[int]:
    """A case as 64-bit words, argument by argument; fuzz_abi.c reads them back."""
    values: dict[str, Any] = {**case.dims, **case.params}
    arrays = case.arguments
    lists = values.get("lengths")
    out: list[int] = []
    for kind, name in kinds(e):
        if kind in ("BUFFER", "INDEX"):
            x = arrays.get(name)
            out.append(int(np.size(x)) if x is not None else 0)
        elif kind == "OPTIONAL":
            out.append(int(arrays.get(name) is not None))
        elif kind in ("LIST_IN", "OUT_LIST"):
            out += [len(lists or ()), *map(int, lists or ())]
        elif kind == "U32S":
            x = np.asarray(arrays[name]).ravel()
            out += [x.size, *map(int, x)]
        elif kind == "DIM":
            out.append(int(values[name]))
        elif kind == "DIMS":
            out += [len(values[name]), *map(int, values[name])]
        elif kind == "U64":
            out.append(int(values[name]))
        elif kind == "FLOAT":
            out.append(struct.unpack("<Q", struct.pack("<d", float(values[name])))[0])
    return out


def cases(e: Entry, count: int) -> list[list[int]]:
    """`count` drawn cases of the entry point, small ones."""
    which = "forward" if e.kernel == e.op.name else "vjp"
    out = []
    for seed in range(4 * count):
        case = draw_case(e.op, seed, data_classes(e.op, which)[0], "small", which)
        found = words(e, case)
        if len(found) <= 4000 and (not out or found not in out):
            out.append(found)
        if len(out) == count:
            break
    return out


def table(count: int) -> str:
    out = ["/* Written by tools/fuzz_table.py from the registry. */"]
    rows = []
    for e in entries.all_entries():
        arguments = kinds(e)
        calls = ", ".join(READ[k].format(i=i) for i, (k, _) in enumerate(arguments))
        out.append(f"static int32_t run_{e.name}(fuzz_value *v)\n{{\n    return {e.symbol}({calls});\n}}\n")
        out.append(f"static void size_{e.name}(const fuzz_value *v, uint64_t *n)\n{{")
        out += [f"    {line}" for line in lengths(e)]
        out.append("    (void)v;\n    (void)n;\n}\n")
        drawn = cases(e, count)
        flat = [w for case in drawn for w in (len(case), *case)]
        out.append(f"static const uint64_t cases_{e.name}[] = {{{', '.join(f'{w}u' for w in flat)}}};")
        listed = ", ".join(f'{{FUZZ_{k}, "{n}"}}' for k, n in arguments)
        elementwise = int(e.signature.elementwise or any(k == "OUT_LIST" for k, _ in arguments))
        rows.append(
            f'    {{"{e.symbol}", run_{e.name}, size_{e.name}, cases_{e.name}, {len(drawn)}, {elementwise}, '
            f"{len(arguments)}, {{{listed}}}}},"
        )
    out += ["static const fuzz_entry fuzz_entries[] = {", *rows, "};"]
    return "\n".join(out) + "\n"


def main() -> None:
    target = Path(sys.argv[1])
    text = table(int(sys.argv[2]) if len(sys.argv) > 2 else 16)
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
