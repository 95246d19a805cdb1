"""``native/generated``: per family the prototypes of its kernels and the table of its CPU kernels, and what joins the families.

A row changes the files of its family alone, so that the kernels of the others are not compiled again.
"""

from codegen.prototypes import kernel_entries, kernel_parameters
from codegen.text import BANNER, call_text
from tlspec import registry


def family_header(family: str) -> str:
    """``FAMILY.h``: a function type per kernel, which its CPU and its CUDA function have in common."""
    guard, names = f"TL_{family.upper()}_KERNELS_H", [e.kernel for e in kernel_entries(family)]
    out = [
        f"/* Kernels of the {family} family on both devices; core/kernel.h says what holds for each kernel.\n * {BANNER} */",
        f"#ifndef {guard}", f"#define {guard}", "", '#include "core/kernel.h"', "",
        "#ifdef TL_VARIANT", *(f"#define tl_cpu_{n} TL_V(tl_cpu_{n})" for n in names), "#endif", "",
        "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
    ]  # fmt: skip
    for e in kernel_entries(family):
        out.append(call_text(f"typedef int32_t tl_{e.kernel}_kernel", kernel_parameters(e.signature), ";"))
        out.append(f"tl_{e.kernel}_kernel tl_cpu_{e.kernel}, tl_cuda_{e.kernel};")
    out += ["", "/* The CPU kernels of one SIMD variant. */", f"struct tl_{family}_kernels {{"]
    out += [f"    tl_{n}_kernel *{n};" for n in names]
    return "\n".join([*out, "};", "", "#ifdef __cplusplus", "}", "#endif", "#endif", ""])


def family_table(family: str) -> str:
    """``FAMILY_table.c``: compiled once per SIMD variant, like the kernels."""
    out = [
        f"/* The CPU kernels of the {family} family in one SIMD variant: this file is compiled once per variant.",
        f" * {BANNER} */", f'#include "{family}.h"', "",
        f"const struct tl_{family}_kernels TL_V(tl_cpu_{family}_kernels) = {{",
    ]  # fmt: skip
    out += [f"    .{e.kernel} = tl_cpu_{e.kernel}," for e in kernel_entries(family)]
    return "\n".join([*out, "};", ""])


def cpu_kernels_header() -> str:
    """``cpu_kernels.h``: the families' tables of one SIMD variant."""
    tables = [f"    const struct tl_{f}_kernels *{f};" for f in registry.families()]
    return "\n".join([
        f"/* The CPU kernels of all families in one SIMD variant. {BANNER} */",
        "#ifndef TL_CPU_KERNELS_H", "#define TL_CPU_KERNELS_H", "",
        "struct tl_cpu_kernels {", *tables, "};", "", "#endif", "",
    ])  # fmt: skip


def cpu_kernels_source() -> str:
    """``cpu_kernels.c``: compiled once per SIMD variant; it changes with the set of families alone."""
    families = registry.families()
    return "\n".join([
        "/* The families' tables of one SIMD variant: this file is compiled once per variant.",
        f" * {BANNER} */", '#include "cpu_kernels.h"', "", '#include "core/kernel.h"', "",
        *(f"extern const struct tl_{f}_kernels TL_V(tl_cpu_{f}_kernels);" for f in families), "",
        "const struct tl_cpu_kernels TL_V(tl_cpu_kernels) = {",
        *(f"    .{f} = &TL_V(tl_cpu_{f}_kernels)," for f in families), "};", "",
    ])  # fmt: skip
