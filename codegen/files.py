"""The generated files: their paths and texts."""

from codegen.binding import binding_module
from codegen.entry_points import entry_points_source
from codegen.kernel_headers import cpu_kernels_header, cpu_kernels_source, family_header, family_table
from codegen.name_hints import name_hints_module
from codegen.operations import methods_module, operation_modules
from codegen.ops_header import ops_header, version_header
from codegen.python_functions import python_module
from tlspec import registry

#: the folder that holds generated files alone
GENERATED = "native/generated"


def generated_files() -> dict[str, str]:
    """Every generated file, by its path in the repository, and its text."""
    out = {"native/include/torchlean_cuda_ops.h": ops_header(), "native/include/torchlean_cuda_version.h": version_header(),
           f"{GENERATED}/cpu_kernels.h": cpu_kernels_header(), f"{GENERATED}/cpu_kernels.c": cpu_kernels_source(),
           "tlrt/_binding/abi.py": binding_module(), "tlrt/kernels.py": python_module(),
           **operation_modules(), "tlrt/_operations/methods.py": methods_module(),
           "tlrt/_pytorch_names.py": name_hints_module()}  # fmt: skip
    for family in registry.families():
        out[f"{GENERATED}/{family}.h"] = family_header(family)
        out[f"{GENERATED}/{family}_entry_points.c"] = entry_points_source(family)
        out[f"{GENERATED}/{family}_table.c"] = family_table(family)
    return out
