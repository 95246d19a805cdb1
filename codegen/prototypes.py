"""The C prototypes of an entry point and of its kernel."""

from codegen.text import call_text
from tlspec.entries import Entry, all_entries
from tlspec.signature import Signature

#: the C types of an input of an exported function and of a kernel, and of a kernel's parameter, by their kinds
HOST = {"u32": "const uint32_t *", "f64": "const double *"}
EXPORTED = {"f32": "torchlean_buffer *", "index": "torchlean_buffer *", "list": "torchlean_buffer *const *", **HOST}
READ = {"f32": "const float *", "index": "const uint32_t *", "list": "const float *const *", **HOST}
PARAMETER = {"float": "float ", "u32": "int64_t ", "u64": "uint64_t ", "dims": "const tl_dims *"}


def _exported_parameters(e: Entry) -> list[str]:
    """The parameters of the exported function."""
    sig, out = e.signature, []
    if sig.needs_context:
        out.append("torchlean_context *context")
    for a in sig.inputs:
        out.append(EXPORTED[a.kind] + a.name)
    for d in sig.dims:
        out += [f"const uint32_t *{d[1:]}", f"uint32_t {d[1:]}_rank"] if d.startswith("*") else [f"uint32_t {d}"]
    for p in sig.params:
        if p.kind == "dims":
            out += [f"const uint32_t *{p.name}", f"uint32_t {p.name}_rank"]
        else:
            out.append({"float": "double ", "u32": "uint32_t ", "u64": "uint64_t "}[p.kind] + p.name)
    for a in e.outputs:
        out.append(f"double *{a.name}" if a.kind == "f64" else f"torchlean_buffer **{a.name}")
    return out


def kernel_parameters(sig: Signature) -> list[str]:
    """The parameters of a kernel: data pointers and checked 64-bit dimensions."""
    out = ["tl_context *ctx"]
    for a in sig.inputs:
        out.append(READ[a.kind] + a.name)
    if sig.elementwise:
        out.append("int64_t n")
    for d in sig.dims:
        out.append(f"const tl_dims *{d[1:]}" if d.startswith("*") else f"int64_t {d}")
    if sig.lists:
        out.append("const int64_t *lengths")
    for p in sig.params:
        out.append(PARAMETER[p.kind] + p.name)
    for a in sig.outputs:
        out.append(
            {"f32": "float *", "index": "uint32_t *", "list": "float *const *", "f64": "double *"}[a.kind] + a.name
        )
    return out


def exported_prototype(e: Entry) -> str:
    """The declaration of the exported function, without its semicolon."""
    return call_text(f"TL_API int32_t {e.symbol}", _exported_parameters(e), "")


def kernel_entries(family: str) -> list[Entry]:
    """One entry per kernel of a family; synonyms run those of others."""
    return [e for e in all_entries(family) if e.only is None and not e.indexed and e.op.forward is None]
