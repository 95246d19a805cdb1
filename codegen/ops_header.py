"""``native/include/torchlean_cuda_ops.h``: the declarations of the operations, and the header of the version and of
the hash that a library is known by.

A declaration has one sentence, the shapes and the refusals. The whole text of an operation stands where it is read with the
most comfort, in the Python function of the same name.
"""

import textwrap
import tomllib

from codegen.prototypes import exported_prototype
from codegen.text import BANNER, ROOT, c_comment
from tlspec import registry
from tlspec.declarations import abi_hash
from tlspec.entries import Entry, all_entries, checks_of, shapes_text

_HEAD = f"""\
/* torchlean_cuda_ops.h: the operations. {BANNER}
 *
 * Parameters run: inputs, dimensions, scalars, outputs. torchlean_cuda.h says how statuses, handles and outputs behave.
 *
 * Over each declaration: one sentence, the shapes, and what is refused beyond lengths that do not fit (SHAPE) and products of
 * 2^32 or more (OVERFLOW). All arrays are row-major; `*name` stands for a dimension list; `name?` may be NULL: an input left
 * out, or the pointer of a gradient that is not wanted. Formulas, special values, empty cases and sources are in the functions
 * of the same names in Python: help(tlrt.kernels.add), or tlrt/kernels.py. */
#ifndef TORCHLEAN_CUDA_OPS_H
#define TORCHLEAN_CUDA_OPS_H

#include "torchlean_cuda.h"

#ifdef __cplusplus
extern "C" {{
#endif
"""


def ops_header() -> str:
    """The text of the header."""
    out = [_HEAD]
    for family in registry.families():
        out += [f"/* ---- {family} " + "-" * (112 - len(family)) + " */", ""]
        for e in all_entries(family):
            out += [c_comment(_summary(e)), exported_prototype(e) + ";", ""]
    out += ["#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(out)


def _summary(e: Entry) -> str:
    lines = [" ".join(e.doc.split("\n\n")[0].split()), shapes_text(e)]
    lines += [f"{c.status} unless {c.say or c.expression} ({c.name})." for c in checks_of(e)]
    wrap = textwrap.TextWrapper(116, subsequent_indent="  ", break_long_words=False)
    return "\n".join("\n".join(wrap.wrap(line)) for line in lines)


def headers() -> tuple[str, str]:
    """The texts of the two headers with declarations."""
    return (ROOT / "native/include/torchlean_cuda.h").read_text(), ops_header()


def version_header() -> str:
    """The text of ``native/include/torchlean_cuda_version.h``."""
    major, minor, patch = map(
        int, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"].split(".")
    )
    return f"""\
/* torchlean_cuda_version.h: which library these headers go with. {BANNER} */
#ifndef TORCHLEAN_CUDA_VERSION_H
#define TORCHLEAN_CUDA_VERSION_H

/* The library that is loaded says its own: torchlean_cuda_version() and torchlean_cuda_abi_hash(). */
#define TORCHLEAN_CUDA_VERSION_MAJOR {major}
#define TORCHLEAN_CUDA_VERSION_MINOR {minor}
#define TORCHLEAN_CUDA_VERSION_PATCH {patch}
#define TORCHLEAN_CUDA_VERSION {major * 10000 + minor * 100 + patch}
/* SHA-256 over the declarations of both headers. */
#define TORCHLEAN_CUDA_ABI_HASH "{abi_hash(*headers())}"

#endif
"""
