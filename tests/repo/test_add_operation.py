"""Two operations are added to a copy of the tree by the steps of CONTRIBUTING.md alone, an elementwise one and a reduction, and
are then on tapes and sessions, in the benchmark, and pass verify and the tests that their names choose."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT, python_path
from tests.repo.tree import files

pytestmark = [
    pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine"),
    pytest.mark.skipif("asan" in os.environ.get("TORCHLEAN_CUDA_LIBRARY", ""), reason="builds of its own"),
]

#: operation -> what `make new` is given
NEW = {"hardsigmoid": ["FAMILY=elementwise"], "row_mean": ["FAMILY=reduce", "SIGNATURE=x[rows, cols] -> out[rows]"]}
DIMS = "    tl_dims dims;\n    dims.rank = 2;\n    dims.d[0] = rows;\n    dims.d[1] = cols;\n"
#: file -> what stands in the skeleton, and what its author writes there
FILLED: dict[str, list[tuple[str, str]]] = {
    "tlspec/ops/elementwise.py": [
        ('TODO("one of tlspec/bounds.py: exact(), ulp(1), tree(height)")', "ulp(1)"),
        ("TODO: the function of PyTorch that takes the same arguments, or no such line", "nn.functional.hardsigmoid"),
        ("TODO: where the formula is published", "Howard et al., Searching for MobileNetV3, 2019"),
        ("TODO: one sentence that says what it computes.", "Piecewise linear approximation of sigmoid."),
        ("out = TODO: the formula", "out = min(max(x + 3, 0), 6) / 6"),
        ("TODO: what zeros, infinities and NaN give.", "NaN stays NaN; -inf gives 0 and inf gives 1."),
        ('raise NotImplementedError("TODO: the formula in float64 NumPy")', "return np.clip(x + 3, 0, 6) / 6"),
        ("TODO: the formula of the gradient.", "g / 6 where -3 < x < 3, else 0."),
        ('raise NotImplementedError("TODO: the gradient in float64 NumPy")', "return np.where((x > -3) & (x < 3), g / 6, 0.0)"),
    ],
    "native/src/formula/elementwise.def": [
        ("hardsigmoid, TODO", "hardsigmoid, A <= -3.0f ? 0.0f : A >= 3.0f ? 1.0f : (A + 3.0f) / 6.0f"),
        ("hardsigmoid_bwd, TODO", "hardsigmoid_bwd, A > -3.0f && A < 3.0f ? B / 6.0f : 0.0f"),
    ],
    "tlspec/ops/reduce.py": [
        ('TODO("one of tlspec/bounds.py: exact(), ulp(1), tree(height)")',
         "tree(lambda cols: axis_height(cols, 1) + 1, peak=lambda x: np.abs(x).sum(axis=1))"),
        ('    torch="TODO: the function of PyTorch that takes the same arguments, or no such line",\n',
         '    checks=[check("cols", "cols > 0", "SHAPE", say="cols > 0, since an empty row has no mean")],\n'),
        ("TODO: where the formula is published", "native/src/formula/sum_tree.h, native/src/formula/count.h"),
        ("TODO: one sentence that says what it computes.", "Mean across the columns of a matrix."),
        ("out = TODO: the formula", "out[i] = (Σ_j x[i, j]) / cols, by the row tree, then one division."),
        ("TODO: what zeros, infinities and NaN give.", "IEEE 754.\n    Errors: SHAPE if cols = 0."),
        ('raise NotImplementedError("TODO: the formula in float64 NumPy")', "return x.mean(axis=1)"),
        ('"x, g -> gx")\ndef row_mean_vjp(x, g)', '"g -> gx", bound=exact())\ndef row_mean_vjp(g, rows, cols)'),
        ("TODO: the formula of the gradient.", "g[i] / cols, one division."),
        ('raise NotImplementedError("TODO: the gradient in float64 NumPy")',
         "return np.broadcast_to(g[:, None] / cols, (rows, cols))"),
    ],
    **{
        f"native/src/{path}": [
            ("    /* TODO: write the kernel of row_mean */",
             f"{DIMS}    return tl_{device}_reduce_mean(ctx, x, &dims, 1, out);"),
            ("const float *x, const float *g, int64_t rows", "const float *g, int64_t rows"),
            ("    /* TODO: write the kernel of row_mean_bwd */",
             f"{DIMS}    return tl_{device}_reduce_mean_bwd(ctx, g, &dims, 1, gx);"),
        ]
        for device, path in (("cpu", "cpu/reduce.c"), ("cuda", "cuda/reduce/reduce.cu"))
    },
}  # fmt: skip
#: besides what `make new` writes: an elementwise operation needs nothing, as its row names PyTorch's function
BENCHMARK = """
BENCHMARKS["row_mean"] = Benchmark(
    sizes=[{"rows": 4096, "cols": 4096}], numpy=lambda np, x: np.mean(x, axis=1), torch=lambda torch, x: torch.mean(x, dim=1))
"""
#: operation -> the files that are written by hand
FILES = {
    "hardsigmoid": ["tlspec/ops/elementwise.py", "native/src/formula/elementwise.def"],
    "row_mean": [
        "tlspec/ops/reduce.py",
        "native/src/cpu/reduce.c",
        "native/src/cuda/reduce/reduce.cu",
        "bench/operations/reduce.py",
    ],
}
#: of the suite what is about every operation and needs no further build
TESTS = ["tests/spec", "tests/kernels", "tests/runtime", "tests/verify", "tests/bench", "tests/repo/test_generated.py",
         "tests/repo/test_layout.py", "tests/repo/test_imports.py", "tests/repo/test_pytorch_page.py"]  # fmt: skip

#: on a tape, on a session and through the methods of tensors: the value and the gradient
USED = """
import numpy as np
import tlrt

x = np.array([[-4.0, -1.0, 0.5], [1.0, 2.0, 5.0]], np.float32)
expected = {
    "hardsigmoid": (np.clip(x + 3, 0, 6) / 6, np.where((x > -3) & (x < 3), 1 / 6, 0)),
    "row_mean": (x.mean(axis=1), np.full((2, 3), 1 / 3)),
}
for name, (value, slope) in expected.items():
    for device in ("spec", "cpu"):
        with tlrt.Session(device) as s:
            w = s.param(x, "w")
            y = getattr(s, name)(w)
            assert np.allclose(y.numpy(), value), (name, y.numpy())
            assert np.allclose(getattr(w, name)().numpy(), value)
            s.backward(s.reduce_sum(y))
            assert np.allclose(w.grad.numpy(), slope), (name, w.grad.numpy())
    with tlrt.Tape("cpu") as tape:
        assert np.allclose(tape.value(getattr(tape, name)(tape.leaf(x))).numpy(), value)
"""


@dataclass
class Copy:
    """A copy of the source tree with the objects already compiled."""

    folder: Path

    def run(self, *command: str, status: int = 0, **environment: str) -> str:
        """Runs a command in the copy, which must end with this status; what it prints."""
        inherited = {
            k: v for k, v in os.environ.items() if k not in ("TORCHLEAN_CUDA_LIBRARY", "OPS", "PYTHONDONTWRITEBYTECODE")
        }
        done = subprocess.run(
            command, cwd=self.folder,
            env={**inherited, "PYTHONPATH": python_path(self.folder), **environment},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-4000:]}"
        return done.stdout + done.stderr

    def make(self, *words: str, **options: Any) -> str:
        return self.run("make", *words, "SYSTEM_PYTHON=1", f"PYTHON={sys.executable}", **options)

    def python(self, *words: str, **options: Any) -> str:
        return self.run(sys.executable, *words, **options)


def copy_tree(folder: Path) -> Copy:
    """The sources, and the library that is built here."""
    for path in files():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    built = Path("native/build/cpu")
    if (ROOT / built).exists():
        shutil.copytree(ROOT / built, folder / built, symlinks=True)
    return Copy(folder)


def can_compile_cuda() -> bool:
    """Whether nvcc, cuBLAS and cuFFT are there, in the toolkit or from their PyPI packages."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include/cublas_v2.h"
    packages = find_spec("nvidia") is not None and find_spec("nvidia.cu13") is not None
    return shutil.which("nvcc") is not None and (toolkit.exists() or packages)


def test_operations_are_added_by_the_documented_steps(tmp_path: Path) -> None:
    """In one test, so that one worker compiles one copy. A command that fails says which."""
    copy = copy_tree(tmp_path / "tree")
    assert len(FILES["hardsigmoid"]) <= 3 and len(FILES["row_mean"]) <= 4
    said = [copy.make("new", f"OP={name}", *words) for name, words in NEW.items()]
    written = re.findall(r"skeleton: (\S+)", "".join(said))
    assert sorted([*written, "bench/operations/reduce.py"]) == sorted(f for found in FILES.values() for f in found)
    assert sorted(FILLED) == sorted(written)
    refused = copy.make("abi", status=2).splitlines()
    for file, pairs in FILLED.items():
        path = copy.folder / file
        text = path.read_text()
        for skeleton, filled in pairs:
            assert "TODO" not in skeleton or any(line.startswith(f"{file}:") for line in refused), file
            assert text.count(skeleton) == 1, (file, skeleton)
            text = text.replace(skeleton, filled)
        path.write_text(text)
    path = copy.folder / "bench/operations/reduce.py"
    path.write_text(path.read_text() + BENCHMARK)
    copy.make("abi")
    compiled = set(re.findall(r"^  CC    (\S+)", copy.run("make", "-C", "native", "-j2", "VARIANTS=native"), re.M))
    families = r"(src/cpu|generated)/(elementwise|reduce)|src/core/(library|dispatch)"
    others = {p for p in compiled if not re.match(families, p)}
    assert compiled and not others, "only the objects of their families are compiled again"
    copy.python("-c", USED)
    copy.python("-m", "tlrt", "verify", "--ops", ",".join(NEW), "--device", "cpu")
    copy.python("-m", "tests.kernels.test_bits", *NEW)
    # plain assertions, since to rewrite those of so many files takes longer than the tests
    words = ["-x", "-q", "-p", "no:cacheprovider", "--assert=plain"]
    copy.python("-m", "pytest", *words, *TESTS, OPS=",".join(NEW))
    for tool, *arguments in (("ruff", "check", "tlspec", "bench"), ("ruff", "format", "--check", "tlspec/ops")):
        if shutil.which(tool, path=str(Path(sys.executable).parent)) is not None:
            copy.run(str(Path(sys.executable).parent / tool), *arguments)
    # for one virtual architecture, and not optimised, which takes seconds; `make cuda` builds them all
    if can_compile_cuda():
        objects = ["build/cuda/obj/cuda/elementwise.o", "build/cuda/obj/cuda/reduce/reduce.o"]
        options = ["CUDA_ARCHS=compute_80", "QUICK=1", f"PYTHON={sys.executable}"]
        copy.run("make", "-C", "native", "-j2", *objects, *options)
