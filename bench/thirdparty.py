"""``python -m bench.thirdparty``: kernels of other projects, results and gradients, held to what PyTorch's operators compute in
float64.

Each entry is a reference in operators of PyTorch, whose errors are tracked (:mod:`tlspec.judge.adapters.tracked`), and a call
of the library. FlagGems replaces the operators themselves. A library that is not installed is left out. Triton's kernels need
a GPU, or TRITON_INTERPRET=1, which computes bfloat16 wrongly.
"""

import argparse
import importlib
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from audit.environment import commit, now
from tlrt._terminal import Progress
from tlrt.verify.documents import format_command, write_document
from tlrt.verify.report import describe_versions
from tlspec.draw.data import generator
from tlspec.judge.adapters import check_function

#: rows and columns of the cases: odd, one row, aligned, beyond a block
SIZES = ((3, 7), (1, 33), (64, 128), (33, 1025), (16, 4096))
FORMATS = ("float32", "bfloat16", "float16")
#: findings of each line that are kept
KEPT = 2


@dataclass(frozen=True)
class Entry:
    """A reference, and the shapes of its inputs: of each argument a text over r, c and constants. `index` arguments are below
    their number."""

    reference: Callable[..., Any]
    shapes: tuple[str, ...]
    gradients: bool = True
    index: tuple[tuple[int, str], ...] = ()
    #: probabilities, their logarithms, or positive numbers instead of normal ones, by argument
    kinds: tuple[tuple[int, str], ...] = ()


def _torch() -> Any:
    return importlib.import_module("torch")


def expressions() -> dict[str, Entry]:
    """Operators of PyTorch that compilers and libraries replace."""
    torch = _torch()
    F = torch.nn.functional
    x, xy, row = ("r, c",), ("r, c", "r, c"), ("r, c", "c")
    entries = {
        **{f.__name__: Entry(f, x) for f in (torch.exp, torch.tanh, torch.sigmoid, torch.sin, torch.cos, torch.erf, torch.abs,
            torch.neg,
                                             torch.relu, F.silu, F.elu, F.softplus, F.hardswish, F.mish)},
        **{f.__name__: Entry(f, x, kinds=((0, "positive"),)) for f in (torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal)},
        **{f.__name__: Entry(f, xy) for f in (torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, F.mse_loss)},
        "div": Entry(torch.div, xy, kinds=((1, "positive"),)), "pow": Entry(torch.pow, xy, kinds=((0, "positive"),)),
        "gelu": Entry(F.gelu, x), "gelu_tanh": Entry(lambda x: F.gelu(x, approximate="tanh"), x),
        "softmax": Entry(lambda x: torch.softmax(x, -1), x), "log_softmax": Entry(lambda x: torch.log_softmax(x, -1), x),
        "softmax_columns": Entry(lambda x: torch.softmax(x, 0), x),
        "sum": Entry(lambda x: x.sum(1), x), "sum_all": Entry(torch.sum, x), "sum_columns": Entry(lambda x: x.sum(0), x),
        "mean": Entry(lambda x: x.mean(1), x), "amax": Entry(lambda x: x.amax(1), x, gradients=False),
        "var": Entry(lambda x: x.var(1, correction=0), x), "prod": Entry(lambda x: torch.prod(x, 1), x, gradients=False),
        "logsumexp": Entry(lambda x: torch.logsumexp(x, 1), x), "cumsum": Entry(lambda x: x.cumsum(1), x),
        "vector_norm": Entry(lambda x: torch.linalg.vector_norm(x, dim=1), x), "argmax": Entry(lambda x: x.argmax(1), x,
            gradients=False),
        "layer_norm": Entry(lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b), ("r, c", "c", "c")),
        "rms_norm": Entry(lambda x, w: F.rms_norm(x, x.shape[1:], w, 1e-5), row),
        "group_norm": Entry(lambda x, w, b: F.group_norm(x, 2, w, b), ("r, 4, c", "4", "4")),
        "mm": Entry(torch.mm, ("r, c", "c, r")), "bmm": Entry(torch.bmm, ("3, r, c", "3, c, r")), "mv": Entry(torch.mv, row),
        "addmm": Entry(torch.addmm, ("r", "r, c", "c, r")), "linear": Entry(F.linear, ("r, c", "13, c", "13")),
        "cross_entropy": Entry(F.cross_entropy, ("r, c", "r"), index=((1, "c"),)),
        "embedding": Entry(lambda w, at: F.embedding(at, w), ("r, c", "c"), index=((1, "r"),)),
        "gather": Entry(lambda x, at: torch.gather(x, 1, at), ("r, c", "r, c"), index=((1, "c"),)),
        "index_select": Entry(lambda x, at: torch.index_select(x, 0, at), ("r, c", "c"), index=((1, "r"),)),
        "where": Entry(lambda x, y: torch.where(x > 0, x, y), xy), "clamp": Entry(lambda x: torch.clamp(x, -0.5, 0.5), x),
        "attention": Entry(F.scaled_dot_product_attention, ("1, 2, r, 64",) * 3),
        "causal_attention": Entry(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), ("1, 2, r, 64",) * 3),
    }  # fmt: skip
    return entries


def _compiled() -> dict[str, tuple[Entry, Callable[..., Any]]]:
    torch = _torch()
    torch._dynamo.config.recompile_limit = 1000
    return {name: (e, torch.compile(e.reference)) for name, e in expressions().items()}


def _flaggems() -> dict[str, tuple[Entry, Callable[..., Any]]]:
    """The operators of PyTorch, replaced for the rest of the process."""
    importlib.import_module("flag_gems").enable()
    return {name: (e, e.reference) for name, e in expressions().items()}


def _liger() -> dict[str, tuple[Entry, Callable[..., Any]]]:
    torch = _torch()
    F, liger = torch.nn.functional, importlib.import_module("liger_kernel.transformers.functional")
    known = expressions()

    def ops(name: str) -> Any:
        return importlib.import_module(f"liger_kernel.ops.{name}")

    def rms(x: Any, w: Any) -> Any:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w

    def llama(x: Any, w: Any) -> Any:
        """The normalised numbers are rounded to the format of w first."""
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)).to(w.dtype) * w

    def add_rms(x: Any, y: Any, w: Any) -> Any:
        return rms(x + y, w), x + y

    def poly(x: Any, w: Any, b: Any) -> Any:
        def normal(y: Any) -> Any:
            return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)

        return w[0] * normal(x * x * x) + w[1] * normal(x * x) + w[2] * normal(x) + b

    def rope(q: Any, k: Any, angle: Any) -> Any:
        cos, sin = (torch.cat([f(angle), f(angle)], -1)[None, None] for f in (torch.cos, torch.sin))
        turned = [torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1) for x in (q, k)]
        return q * cos + turned[0] * sin, k * cos + turned[1] * sin

    def liger_rope(q: Any, k: Any, angle: Any) -> Any:
        cos, sin = (torch.cat([f(angle), f(angle)], -1)[None] for f in (torch.cos, torch.sin))
        return ops("rope").LigerRopeFunction.apply(q, k, cos, sin)

    def jsd(q: Any, p: Any) -> Any:
        mean = 0.5 * (q.exp() + p.exp())
        return (0.5 * (p.exp() * (p - mean.log()) + q.exp() * (q - mean.log()))).sum() / q.shape[0]

    smoothed = Entry(lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), ("r, c", "r"), index=((1, "c"),))
    fused = Entry(lambda x, w, y: F.cross_entropy(x @ w.T, y), ("r, c", "29, c", "r"), index=((2, "29"),))
    x, xy, row, logs = ("r, c",), ("r, c", "r, c"), ("r, c", "c"), ((0, "log_probs"), (1, "log_probs"))
    return {
        "swiglu": (Entry(lambda a, b: F.silu(a) * b, xy), ops("swiglu").LigerSiLUMulFunction.apply),
        "geglu": (Entry(lambda a, b: F.gelu(a, approximate="tanh") * b, xy), liger.liger_geglu),
        "rms_norm": (Entry(rms, row), lambda x, w: liger.liger_rms_norm(x, w, 1e-6, 0.0, "gemma", False)),
        "rms_norm, llama": (Entry(llama, row), lambda x, w: liger.liger_rms_norm(x, w, 1e-6, 0.0, "llama", False)),
        "fused_add_rms_norm": (Entry(add_rms, ("r, c", "r, c", "c")),
                               lambda x, y, w: ops("fused_add_rms_norm").LigerFusedAddRMSNormFunction.apply(x, y, w, 1e-6, 0.0,
                                   "gemma", False)),
        "layer_norm": (known["layer_norm"], lambda x, w, b: liger.liger_layer_norm(x, w, b, 1e-5)),
        "group_norm": (known["group_norm"], lambda x, w, b: liger.liger_group_norm(x, w, b, 4, 2, 1e-5)),
        "softmax": (known["softmax"], ops("softmax").LigerSoftmaxFunction.apply),
        # the loss writes its gradient over the logits, as its documentation says
        "cross_entropy": (known["cross_entropy"], lambda x, y: liger.liger_cross_entropy(x * 1, y)),
        "cross_entropy, smoothed": (smoothed, lambda x, y: liger.liger_cross_entropy(x * 1, y, label_smoothing=0.1)),
        "fused_linear_cross_entropy": (fused, lambda x, w, y: liger.liger_fused_linear_cross_entropy(x, w, y)),
        "kl_div": (Entry(lambda q, p: F.kl_div(q, p.detach(), reduction="batchmean"), xy, kinds=((0, "log_probs"), (1, "probs"))),
                   lambda q, p: liger.liger_kl_div(q, p.detach(), reduction="batchmean")),
        "jsd": (Entry(lambda q, p: jsd(q, p.detach()), xy, kinds=logs), lambda q, p: liger.liger_jsd(q, p.detach())),
        "tvd": (Entry(lambda p, q: 0.5 * (p - q.detach()).abs().sum() / p.shape[0], xy, kinds=((0, "probs"), (1, "probs"))),
                lambda p, q: liger.liger_tvd(p, q.detach(), reduction="batchmean")),
        "relu_squared": (Entry(lambda x: torch.relu(x).square(), x), liger.liger_relu_squared),
        "dyt": (Entry(lambda x, a, g, b: torch.tanh(a * x) * g + b, ("r, c", "1", "c", "c")), ops("dyt").LigerDyTFunction.apply),
        "poly_norm": (Entry(poly, ("r, c", "3", "1")), lambda x, w, b: ops("poly_norm").LigerPolyNormFunction.apply(x, w, b,
            1e-6, False)),
        "rope": (Entry(rope, ("2, 3, r, 64", "2, 1, r, 64", "r, 32"), gradients=False), liger_rope),
    }  # fmt: skip


def _attention(package: str) -> dict[str, tuple[Entry, Callable[..., Any]]]:
    """Attention of (batch, rows, heads, width), which both packages take."""
    torch = _torch()

    def reference(causal: bool) -> Callable[..., Any]:
        def run(q: Any, k: Any, v: Any) -> Any:
            heads = (x.transpose(1, 2) for x in (q, k, v))
            return torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=causal).transpose(1, 2)

        return run

    if package == "flash_attn":
        flash = importlib.import_module("flash_attn").flash_attn_func
        calls = {False: flash, True: lambda q, k, v: flash(q, k, v, causal=True)}
    else:
        ops = importlib.import_module("xformers.ops")
        lower = importlib.import_module("xformers.ops.fmha.attn_bias").LowerTriangularMask
        calls = {
            False: ops.memory_efficient_attention,
            True: lambda q, k, v: ops.memory_efficient_attention(q, k, v, attn_bias=lower()),
        }
    return {
        ("causal_" * causal + "attention"): (Entry(reference(causal), ("2, r, 3, 64",) * 3), call)
        for causal, call in calls.items()
    }


#: what is judged, in this order: FlagGems last, as it stays in the process
LIBRARIES: dict[str, tuple[str, Callable[[], dict[str, tuple[Entry, Callable[..., Any]]]]]] = {
    "compile": ("torch", _compiled), "liger": ("liger_kernel", _liger), "flash_attn": ("flash_attn",
        lambda: _attention("flash_attn")),
    "xformers": ("xformers", lambda: _attention("xformers")), "flaggems": ("flag_gems", _flaggems),
}  # fmt: skip
#: what is known of the arithmetic: Triton's functions are the GPU's intrinsics
WORDS: dict[str, dict[str, Any]] = {name: {"ulp": "fast", "flush": True} for name in LIBRARIES}


def inputs_of(entry: Entry, device: str, dtype: str) -> Callable[[int], Sequence[Any]]:
    """The arguments of a case: the sizes in turn."""
    torch = _torch()
    indices, kinds = dict(entry.index), dict(entry.kinds)

    def make(case: int) -> list[Any]:
        r, c = SIZES[case % len(SIZES)]
        given = []
        for i, text in enumerate(entry.shapes):
            shape = [int(n) if n.isdigit() else {"r": r, "c": c}[n] for n in text.split(", ")]
            rng = generator("thirdparty", case, i, text)
            if i in indices:
                high = int(indices[i]) if indices[i].isdigit() else {"r": r, "c": c}[indices[i]]
                given.append(torch.from_numpy(rng.integers(0, high, shape)).to(device))
                continue
            x = torch.from_numpy(rng.standard_normal(shape))
            kind = kinds.get(i, "")
            x = {
                "positive": lambda x: x.abs() + 0.125,
                "probs": lambda x: x.softmax(-1),
                "log_probs": lambda x: x.log_softmax(-1),
            }.get(kind, lambda x: x)(x)
            given.append(x.to(device, getattr(torch, dtype)))
        return given

    return make


def judge(library: str, kernel: str, entry: Entry, call: Callable[..., Any], dtype: str, device: str) -> dict[str, Any]:
    """One line: a kernel in a format."""
    line = {"library": library, "kernel": kernel, "dtype": dtype, "device": device}
    # on other numbers a probability is none, and the root of a negative number is NaN on both sides
    data = ("own",) if entry.kinds else ("own", "integers")
    words = {"gradients": entry.gradients, "cases": len(SIZES), "data": data, **WORDS[library]}
    make = inputs_of(entry, device, dtype)
    try:
        report = check_function(call, entry.reference, make, **words)
        if report.verdict == "fail" and dtype != "float32":
            # a formula of a gradient reads the result, or a statistic, that the forward pass has rounded to the format
            results = check_function(call, entry.reference, make, **{**words, "gradients": False})
            again = check_function(call, entry.reference, make, intermediate=dtype, **words)
            report = report if "fail" in (results.verdict, again.verdict) else again
    except Exception as error:
        return {
            **line,
            "verdict": "none",
            "share": 0.0,
            "cases": 0,
            "assumed": "",
            "findings": [f"{type(error).__name__}: {error}"[:300]],
        }
    return {
        **line, "verdict": report.verdict, "share": report.share, "cases": sum(r.cases for r in report.rows),
        "blind": sum(r.blind for r in report.rows), "failed": sum(r.failed for r in report.rows), "repeats": report.repeats,
        "assumed": report.assumptions, "seconds": round(report.seconds, 2),
        "findings": [f"{f.kind}: {f.text} [{f.repeat.rpartition(' ')[2]}]"[:400] for f in report.findings[:KEPT]],
    }  # fmt: skip


def table(lines: Sequence[dict[str, Any]]) -> str:
    """A kernel's verdict and worst share of the tolerance in each format, and its findings."""
    formats = list(dict.fromkeys(line["dtype"] for line in lines))
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for line in lines:
        shown = f"{line['verdict']} {line['share']:.2g}" if line["verdict"] == "pass" else line["verdict"]
        cells.setdefault((line["library"], line["kernel"]), {})[line["dtype"]] = shown
    text = [f"{'library':12s}{'kernel':28s}" + "".join(f"{f:14s}" for f in formats)]
    text += [
        f"{lib:12s}{name:28s}" + "".join(f"{found.get(f, ''):14s}" for f in formats)
        for (lib, name), found in cells.items()
    ]
    for line in lines:
        text += [f"{line['library']} {line['kernel']} {line['dtype']}: {each}" for each in line["findings"]]
    return "\n".join(t.rstrip() for t in text)


def main(argv: Sequence[str]) -> int:
    """Status 0: a finding is the library's."""
    p = argparse.ArgumentParser(prog="python -m bench.thirdparty", description="Judges kernels of other projects.")
    p.add_argument("--libraries", metavar="NAMES", help=f"of {', '.join(LIBRARIES)} (default: all that are installed)")
    p.add_argument("--kernels", metavar="NAMES", help="these alone, comma-separated")
    p.add_argument("--dtypes", metavar="NAMES", default=",".join(FORMATS))
    p.add_argument("--device", help="cuda or cpu (default: cuda if there is one)")
    p.add_argument("--json", metavar="FILE", help="write the evidence")
    args = p.parse_args(argv)
    chosen = args.libraries.split(",") if args.libraries else list(LIBRARIES)
    if unknown := [n for n in chosen if n not in LIBRARIES]:
        p.error(f"--libraries: got {unknown[0]!r}, expected {', '.join(LIBRARIES)}")
    torch = _torch()
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    warnings.simplefilter("ignore")
    lines: list[dict[str, Any]] = []
    versions: dict[str, str] = {}
    started, start = now(), time.monotonic()
    for name in (n for n in LIBRARIES if n in chosen):
        package, make = LIBRARIES[name]
        try:
            module = importlib.import_module(package)
            kernels = make()
        except Exception as error:
            print(f"left out: {name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        versions[package] = str(getattr(module, "__version__", "") or _version(package))
        wanted = args.kernels.split(",") if args.kernels else list(kernels)
        pairs = [(k, d) for k in kernels if k in wanted for d in args.dtypes.split(",")]
        with Progress(len(pairs), "kernels") as progress, np.errstate(all="ignore"):
            for kernel, dtype in pairs:
                lines.append(judge(name, kernel, *kernels[kernel], dtype, device))
                progress.advance(1, f"{name} {kernel} {dtype}")
    if args.json:
        document = {"command": format_command(["python", "-m", "bench.thirdparty", *argv]), "started": started,
            "commit": commit(),
                    "versions": {**describe_versions(), **versions}, "device": torch.cuda.get_device_name() if device == "cuda"
                        else "CPU",
                    "rows": lines}  # fmt: skip
        write_document(Path(args.json), document)
    print(table(lines))
    print(f"{len(lines)} lines in {time.monotonic() - start:.0f} s")
    return 0


def _version(package: str) -> str:
    import importlib.metadata

    for name in (package, package.replace("_", "-")):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
