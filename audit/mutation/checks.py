"""What may see a mutant: the checks of a source file, the cheapest first, and what each says of a copy of the tree."""

import functools
import itertools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from audit.mutation.suite import Turn, run_limited, run_pytest
from audit.scratch import Scratch
from tlspec import registry

#: seconds for one check, for a test that says nothing, and for a case of verify: one of many, and a small one
PATIENCE, SILENCE, CASE_SILENCE, SMALL_SILENCE = 1200.0, 120.0, 60.0, 20.0
#: seconds before the first test, and how many times longer than counted a test may take
START, SLOWER = 15.0, 4.0
#: more families than this concern a shared header: all operations then
FEW = 4
RUNTIME = "tests/runtime/test_"
#: a part of a file's path -> the ends of the names of tests/runtime/test_*.py, or other/test_*.py, that are about it, quickest
#: first
OWN = {
    "core/graph": "capture", "core/errors": "library", "core/device": "device", "core/pool": "buffer", "core/fork": "process",
    "core/interrupt": "interrupts", "core/memory": "copies buffer", "core/convert": "copies buffer", "core/exchange": "exchange",
    "core/threads": "device process", "core/call": "kernels/lists", "cuda/runtime/transfer": "buffer", "cuda/runtime/": "device buffer",
    "core/shapes": "kernels/shapes kernels/slices", "core/dims": "kernels/shapes kernels/slices", "core/": "core buffer device kernels copies audit/faults",
    "_binding/arguments": "tensor tape_errors", "_binding/convert": "tensor session", "_binding/capsules": "exchange", "_binding/handles": "session_lifetime", "_binding/exchange": "exchange", "tlrt/torch": "torch_ops torch_mode", "tlrt/jax": "jax", "tlrt/onnx": "onnx audit/onnx", "tlrt/_calls": "torch_ops jax",
    "_binding/": "buffer refusals library kernels scalar_types copies observer device",
    "_capture/": "capture capture_*", "_operations/": "refusals tape_errors tape_operations", "nn/layer": "state_dict", "nn/": "nn nn_layers training",
    "tape": "tape refusals session session_lifetime tape_* optim",
    "session": "refusals session_lifetime fast_kernels session accumulation tape optim checkpoint capture",
    "optim": "optim optim_groups moving_average schedules observer capture_optim", "tensor": "tensor session capture",
    "spec.py": "indices fast_kernels kernels/specification", "_binding/call": "kernels/lists", "__init__": "library",
    "_operations/contraction": "products", "_operations/linalg": "products", "_operations/choice": "indices",
    "parameter": "session session_lifetime optim capture_parameters",
    "capture": "capture capture_*", "buffer": "buffer", "context": "device", "differential": "observer",
    "ledger": "ledger ledger_audit", "tlrt/audit": "ledger_audit", "_program": "ledger_audit", "_chain": "ledger",
    "errors": "library buffer device", "spec": "refusals scalar_types session tape", "kernels": "kernels fast_kernels",
    "distributed/environment": "audit/ranks", "distributed/launch": "audit/ranks", "distributed/": "distributed_overlap distributed_nccl distributed",
    "verify/": "verify/documents verify/inputs verify/verify verify/planted_list_defects verify/planted_defects",
    "__main__": "verify/doctor",
}  # fmt: skip
#: the same for the files of tlspec: the ends of tests/spec/test_*.py and other files, quickest first
OWN_OF_SPECIFICATION = {
    "validation": "tests/repo/test_codegen_refusals.py", "signature": "registry", "entries": "registry", "expressions": "registry",
    "draw/cases": "drawn draws classes", "draw/draws": "draws classes", "draw/data": "drawn draws", "classes": "classes geometry", "bounds": "errors",
    "laws": "laws", "compare": "compare", "registry": "laws", "declarations": "geometry",
    "running/": "running judge", "judge/probe": "judge_probe judge", "judge/": "judge judge_probe judge_mutants", "__main__": "judge_arguments judge",
    "ops/": "shapes draws geometry errors laws registry",
}  # fmt: skip
#: every test in parts of a minute or two
REST = (
    "tests/spec", "tests/kernels", "tests/verify", f"{RUNTIME}[a-d]*.py", f"{RUNTIME}[e-r]*.py", f"{RUNTIME}s*.py",
    f"{RUNTIME}t*.py", "tests/audit", "tests/examples tests/bench tests/pages",
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """Words for ``python -m tlrt verify`` ("verify", or "sanitized" with a library that AddressSanitizer and
    UndefinedBehaviorSanitizer watch), pytest ("pytest"), make ("make"), modules to import ("import"), or a module that compares
    with ``--check`` what it writes ("generated"). `name` stands for words that are many; `patience` are the seconds for pytest."""

    tool: str
    words: tuple[str, ...] = ()
    ops: str = ""
    name: str = ""
    patience: float = PATIENCE

    def __str__(self) -> str:
        return self.name or " ".join(filter(None, (self.tool, *self.words, f"OPS={self.ops}" if self.ops else "")))


def family_of(file: str) -> str:
    """The family of a kernel's or specification's file by its folder or name; "" where it serves several."""
    parts = () if "/core/" in file or "/nn/" in file else Path(file).with_suffix("").parts
    names = [name.split("_")[0] for name in parts[2:]]
    return next((n for n in names if n in registry.FAMILIES), "")


def families_reached(tree: Scratch, file: str) -> str:
    """The families, as OPS has them, whose kernels are compiled from a file; "" for all."""
    if (family := family_of(file)) or "/core/" in file:
        return family
    inside, objects = file.removeprefix("native/"), tree.library.parent / "obj"
    folder = "cuda" if tree.backend == "cuda" else "cpu_*"
    found = {
        family_of(str(Path("native/src/cpu", *notes.relative_to(objects).parts[1:])))
        for notes in objects.glob(f"{folder}/**/*.d")
        if inside in notes.read_text()
    }
    return ",".join(sorted(found)) if found and "" not in found and len(found) <= FEW else ""


def named_tests(ends: str) -> list[str]:
    """The files of tests that a line of OWN names, as patterns."""
    return [
        f"tests/{folder or 'runtime'}/test_{end}.py" for folder, _, end in (e.rpartition("/") for e in ends.split())
    ]


def test_files(tree: Scratch, words: str, ops: str, *more: str) -> Iterator[Check]:
    """The check of those test files that are there; a pattern is the files that fit it."""
    found = [str(f.relative_to(tree.folder)) for w in words.split() for f in sorted(tree.folder.glob(w))]
    if found:
        yield Check("pytest", (*dict.fromkeys(found), *more), ops)


def checks(
    kind: str, file: str, tree: Scratch, reached: Iterable[tuple[tuple[str, ...], float]] = ()
) -> Iterator[Check]:
    """What may see a change of a file, the cheapest first; `reached` are the tests that are known to run the line, in parts, and how
    many seconds those take."""
    native = kind in ("c", "cuda")
    ops = families_reached(tree, file) if native else family_of(file) if kind == "specification" else ""
    device = "cuda" if kind == "cuda" else "cpu"
    chosen = ("-k", "cuda") if kind == "cuda" else ()
    of_line = (
        Check("pytest", tests, name=f"tests of the line, {k}", patience=START + SLOWER * seconds)
        for k, (tests, seconds) in enumerate(reached, 1)
    )
    if not native:
        modules = file.removesuffix(".py").removesuffix("/__init__").removesuffix("__main__").rstrip("/")
        yield Check("import", ("tlrt", modules.replace("/", ".")))
        yield from itertools.islice(of_line, 1)
    if "/core/" in file:
        yield Check("make", ("check",))
    verify = Check("verify", ("--device", device, "--trace"), ops)
    small = Check("verify", (*verify.words, "--cases", "1"), ops)
    stem = Path(file).stem.strip("_")
    own = " ".join(ends for part, ends in OWN.items() if part in file) if "tlspec" not in file else ""
    mine = " ".join(
        f"tests/{p}/test_{stem}{'' if native else '*'}.py" for p in ("spec", "verify", "kernels", "runtime")
    )
    defined = (
        [r.name for r in registry.ops(ops or None) if r.contract.reproducible and not r.contract.same_bits]
        if native and "/core/" not in file
        else []
    )
    within = kind == "python" and file.count("/") > 1 and not file.startswith(("tlrt/_", "tlrt/verify"))
    about = [*named_tests(own), mine] if within else [mine, *named_tests(own)]
    early = [*test_files(tree, " ".join(about), "", *chosen)]
    of_runtime = "cuda/runtime/" in file
    if kind == "specification":
        ends = " ".join(ends for part, ends in OWN_OF_SPECIFICATION.items() if part in file).split()
        files = " ".join(end if "/" in end else f"tests/spec/test_{end}.py" for end in ends)
        yield from test_files(tree, files if ops else f"{mine} {files}", ops)
        yield Check("generated", ("codegen",))
        yield Check("generated", ("bench.results",))
        yield from of_line
        if not ops:
            yield from test_files(tree, "tests/spec", "")
    if ops or (native and "/core/" not in file):
        if of_runtime:
            yield from early
        yield small
        if defined:
            yield (chain := Check("verify", (*small.words, "--math", "reproducible"), ",".join(defined)))
        if native:
            own_kernels = [*filter(None, [family_of(file)])]
            first = ("bits", "far_paths", "sizes", *own_kernels)
            if kind == "cuda":
                first = ("cuda_paths", *own_kernels, "far_paths", "specification", "sizes")
            yield from test_files(tree, " ".join(f"tests/kernels/test_{name}.py" for name in first), ops, *chosen)
        if kind == "c":
            yield Check("sanitized", small.words, ops)
            if defined:
                yield Check("sanitized", chain.words, chain.ops)
        if ops:
            for folder in ("kernels", "spec") if native else ("spec", "kernels"):
                yield from test_files(tree, f"tests/{folder}/*.py", ops, *chosen)
            yield verify
            yield from test_files(tree, "tests/verify/*.py tests/runtime/*.py", ops, *chosen)
        if not of_runtime:
            yield from early
    elif kind != "specification":
        yield from early
        if not native:
            yield from of_line
            yield from test_files(tree, f"{RUNTIME}defaults.py", "")
    all_cases = "/core/" not in file and (kind != "python" or any(p in file for p in ("verify/", "_binding/")))
    if all_cases and not ops:
        yield from [verify] if native else [small, verify]
    folders = bool(native and ops) * ("tests/spec", "tests/kernels", "tests/verify")
    done = folders or (kind == "specification" and not ops) * ("tests/spec",)
    for words in sorted(REST, key=lambda words: kind == "python" and not words.startswith(RUNTIME)):
        if words not in done:
            yield from test_files(tree, words, "", *chosen)
    if not all_cases:
        yield verify


@functools.cache
def sanitizers() -> list[str]:
    """The environment of a program that loads a sanitized library: leaks and stacks as in the Makefile's ``sanitize``."""
    words = [["gcc", f"-print-file-name={name}"] for name in ("libasan.so", "libubsan.so")]
    found = [subprocess.run(w, capture_output=True, text=True, check=True).stdout.strip() for w in words]
    return ["ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0", "UBSAN_OPTIONS=halt_on_error=1",
            f"LD_PRELOAD={' '.join(found)}"]  # fmt: skip


def attempt(tree: Scratch, check: Check, turn: Turn) -> tuple[str, str]:
    """("passed" | "failed" | "crashed" | "hung" | "empty", what failed)."""
    if check.tool == "pytest":
        quick = any("cuda_paths" in word for word in check.words)  # a kernel that waits for itself never ends
        return run_pytest(tree, check.words, check.ops, check.patience, CASE_SILENCE if quick else SILENCE, turn)
    command, silence = ["make", "-C", "native", f"PYTHON={sys.executable}", *check.words], CASE_SILENCE
    if check.tool in ("verify", "sanitized"):
        command = [sys.executable, "-m", "tlrt", "verify", *check.words, *(["--ops", check.ops] if check.ops else [])]
        silence = SMALL_SILENCE if check.tool == "verify" and "--cases" in check.words and check.ops else CASE_SILENCE
    elif check.tool == "generated":
        command = [sys.executable, "-m", *check.words, "--check"]
    elif check.tool == "import":
        command = [sys.executable, "-c", f"import {', '.join(check.words)}"]
    if check.tool == "sanitized":
        tree = tree.sanitized()
        made, _ = run_limited(
            tree, ["make", "-C", "native", f"PYTHON={sys.executable}", "cpu"], patience=PATIENCE, turn=turn
        )
        if made != 0:
            return "empty", ""
        command = ["env", *sanitizers(), *command]
    status, said = run_limited(tree, command, patience=PATIENCE, silence=silence, turn=turn)
    if status == 0:
        return "passed", ""
    what = ", ".join(re.findall(r"^(\S+) .* FAIL", said, re.M)[:3]) or " ".join(said.split()[-20:])
    return ("hung" if status is None else "crashed" if status < 0 else "failed"), what
