"""Two operations are added to a copy of the tree by the steps of CONTRIBUTING.md alone, an elementwise one with a gradient and a
reduction, and are then on tapes and sessions, in the benchmark, and pass verify and the tests that their names choose."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import ROOT, python_path
from tests.repo.tree import files

pytestmark = [
    pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine"),
    pytest.mark.skipif("asan" in os.environ.get("TORCHLEAN_CUDA_LIBRARY", ""), reason="builds of its own"),
]

HARD_SILU_ROW = '''

@op("x[*] -> out[*]", bound=ulp(3), source="Howard et al., Searching for MobileNetV3, 2019")
def hard_silu(x):
    """Piecewise quadratic approximation of silu.

    out = x · min(max(x + 3, 0), 6) / 6

    Shapes: x and out alike, any shape; an empty x gives an empty out.
    Special values: NaN stays NaN; x <= -3, -inf too, gives -0; inf gives inf."""
    return np.where(x <= -3, -0.0, np.where(x >= 3, x, np.clip(x, -3, 3) * (np.clip(x, -3, 3) + 3) / 6))


@hard_silu.vjp("x, g -> gx")
def hard_silu_vjp(x, g):
    """gx = 0 where x <= -3, g where x >= 3, else g · (2x + 3) / 6."""
    return np.where(x <= -3, 0.0, np.where(x >= 3, g, g * ((2 * np.clip(x, -3, 3) + 3) / 6)))
'''
HARD_SILU_FORMULA = """
TL_UNARY(hard_silu, A <= -3.0f ? -0.0f : A >= 3.0f ? A : A * ((A + 3.0f) / 6.0f))
TL_BINARY(hard_silu_bwd, A <= -3.0f ? 0.0f : A >= 3.0f ? B : B * (fmaf(2.0f, A, 3.0f) / 6.0f))
"""
HARD_SILU_BENCHMARK = """
BENCHMARKS["hard_silu"] = Benchmark(sizes=[MEDIUM], torch=lambda torch, x: torch.nn.functional.hardswish(x))
"""
MEAN_ROW = '''

@op(
    "x[rows, cols] -> out[rows]",
    bound=tree(lambda cols: tree_height(cols) + 1, peak=lambda x: np.abs(x).sum(axis=1)),
    checks=[check("cols", "cols > 0", "SHAPE", say="cols > 0, since an empty row has no mean")],
    laws=[linear("x"), adjoint("x"), homogeneous("x")],
    source="native/src/formula/sum_tree.h, native/src/formula/count.h",
)
def reduce_mean_axis1(x):
    """Mean across the columns of a matrix, one for each row.

    out[i] = (Σ_j x[i, j]) / cols, by the row tree, then one division.

    Shapes: x (rows, cols), out (rows).
    Special values: IEEE 754; a sum beyond the float32 range makes the mean infinite.
    Errors: SHAPE if cols = 0."""
    return x.mean(axis=1)


@reduce_mean_axis1.vjp("g -> gx", bound=exact())
def reduce_mean_axis1_vjp(g, rows, cols):
    """gx[i, j] = g[i] / cols, one IEEE division."""
    return np.broadcast_to(g[:, None] / cols, (rows, cols))
'''
MEAN_KERNELS = """
int32_t tl_{target}_reduce_mean_axis1(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{{
    tl_dims dims;
    dims.rank = 2;
    dims.d[0] = rows;
    dims.d[1] = cols;
    return tl_{target}_reduce_mean(ctx, x, &dims, 1, out);
}}

int32_t tl_{target}_reduce_mean_axis1_bwd(tl_context *ctx, const float *g, int64_t rows, int64_t cols, float *gx)
{{
    tl_dims dims;
    dims.rank = 2;
    dims.d[0] = rows;
    dims.d[1] = cols;
    return tl_{target}_reduce_mean_bwd(ctx, g, &dims, 1, gx);
}}
"""
MEAN_BENCHMARK = """
BENCHMARKS["reduce_mean_axis1"] = Benchmark(
    sizes=[{"rows": 4096, "cols": 4096}],
    numpy=lambda np, x: np.mean(x, axis=1),
    torch=lambda torch, x: torch.mean(x, dim=1),
)
"""
#: operation -> file -> what is written at its end by hand, and nothing else
ADDED = {
    "hard_silu": {
        "tlspec/ops/elementwise.py": HARD_SILU_ROW,
        "native/src/formula/elementwise.def": HARD_SILU_FORMULA,
        "bench/operations/elementwise.py": HARD_SILU_BENCHMARK,
    },
    "reduce_mean_axis1": {
        "tlspec/ops/reduce.py": MEAN_ROW, "native/src/cpu/reduce.c": MEAN_KERNELS.format(target="cpu"),
        "native/src/cuda/reduce.cu": MEAN_KERNELS.format(target="cuda"), "bench/operations/reduce.py": MEAN_BENCHMARK,
    },
}  # fmt: skip
#: operation -> the most files that may be edited by hand
FILES = {"hard_silu": 3, "reduce_mean_axis1": 4}

#: on a tape, on a session and through the methods of tensors: the value and the gradient
USED = """
import numpy as np
import tlrt

x = np.array([[-4.0, -1.0, 0.5], [1.0, 2.0, 5.0]], np.float32)
inside = np.where(x <= -3, 0, np.where(x >= 3, 1, (2 * x + 3) / 6))
expected = {
    "hard_silu": (x * np.clip(x + 3, 0, 6) / 6, inside),
    "reduce_mean_axis1": (x.mean(axis=1), np.full((2, 3), 1 / 3)),
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

    def run(self, *command: str, **environment: str) -> str:
        """Runs a command in the copy, which must succeed; what it prints."""
        inherited = {k: v for k, v in os.environ.items() if k not in ("TORCHLEAN_CUDA_LIBRARY", "OPS")}
        done = subprocess.run(
            command, cwd=self.folder,
            env={**inherited, "PYTHONPATH": python_path(self.folder), "PYTHONDONTWRITEBYTECODE": "1", **environment},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-4000:]}"
        return done.stdout


@pytest.mark.parametrize("operation", ADDED)
def test_few_files_are_written_by_hand(operation: str) -> None:
    assert len(ADDED[operation]) <= FILES[operation]
    named = (ROOT / "CONTRIBUTING.md").read_text()
    family = "elementwise" if operation == "hard_silu" else "reduce"
    for file in ADDED[operation]:
        assert file in named or file.replace(family, "FAMILY") in named, f"CONTRIBUTING.md does not name {file}"


def can_compile_cuda() -> bool:
    """Whether nvcc, cuBLAS and cuFFT are there, in the toolkit or from their PyPI packages."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include/cublas_v2.h"
    packages = find_spec("nvidia") is not None and find_spec("nvidia.cu13") is not None
    return shutil.which("nvcc") is not None and (toolkit.exists() or packages)


def test_operations_are_added_by_the_documented_steps(tmp_path: Path) -> None:
    """In one test, so that one worker compiles one copy. A command that fails says which."""
    copy = Copy(tmp_path / "tree")
    for path in files():
        target = copy.folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    built = Path("native/build/cpu")
    shutil.copytree(ROOT / built, copy.folder / built)
    for texts in ADDED.values():
        for file, text in texts.items():
            path = copy.folder / file
            path.write_text(path.read_text() + text)
    copy.run(sys.executable, "-m", "codegen")
    copy.run(sys.executable, "-m", "bench.results")
    said = copy.run("make", "-C", "native", "-j2")
    compiled = set(re.findall(r"^  CC    (\S+)", said, re.M))
    others = {p for p in compiled if not re.match(r"(src/cpu|generated)/(elementwise|reduce)|src/core/library", p)}
    assert compiled and not others, "only the objects of their families are compiled again"
    copy.run(sys.executable, "-c", USED)
    copy.run(sys.executable, "-m", "tlrt", "verify", "--ops", ",".join(ADDED), "--device", "cpu", "--variants")
    # the tests that their names choose and that need no further build
    chosen = ["tests/spec", "tests/kernels", "tests/runtime", "tests/verify", "tests/bench"]
    chosen += ["tests/repo/test_generated.py", "tests/repo/test_layout.py", "tests/repo/test_promised.py"]
    # plain assertions, since to rewrite those of so many files takes longer than the tests
    words = ["-x", "-q", "-p", "no:cacheprovider", "--assert=plain"]
    copy.run(sys.executable, "-m", "pytest", *words, *chosen, OPS=",".join(ADDED))
    # for one virtual architecture, and not optimised, which takes seconds; `make cuda` builds them all
    if can_compile_cuda():
        objects = [f"build/cuda/obj/cuda/{family}.o" for family in ("elementwise", "reduce")]
        options = ["CUDA_ARCHS=compute_80", "QUICK=1", f"PYTHON={sys.executable}"]
        copy.run("make", "-C", "native", "-j2", *objects, *options)
