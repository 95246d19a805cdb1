"""``make abi`` refuses a wrong row by one sentence that says what to do, writes nothing then, and shows no traceback."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codegen import new
from codegen.kernel_sources import missing_kernels
from tests import ROOT
from tlspec import registry
from tlspec.bounds import ulp
from tlspec.registry import Op, check, op
from tlspec.validation import row_problems

ROW = '''

@op("x[*]; c: float -> out[*]", bound=ulp(2), checks=[check("c", "c > 0")])
def stretch(x, c):
    """Product with a positive scalar.

    out = c · x

    Shapes: x and out alike, any shape.
    """
    return c * x


@stretch.vjp("g -> gx")
def stretch_vjp(g, c):
    """gx = c · g."""
    return c * g
'''
LINES = "TL_UNARY_P(stretch, P * A)\nTL_UNARY_P(stretch_bwd, P * A)\n"
VJP = ROW[ROW.index("@stretch.vjp") :]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the generator reads and writes."""
    root = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__", "build")
    for folder in ("tlspec", "codegen", "native", "docs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    shutil.copytree(ROOT / "tlrt/_operations", root / "tlrt/_operations", ignore=ignored)
    for file in ("kernels.py", "_pytorch_names.py"):
        shutil.copy(ROOT / "tlrt" / file, root / "tlrt")
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def generate(root: Path, row: str, lines: str = LINES, family: str = "elementwise") -> subprocess.CompletedProcess[str]:
    """Runs ``make abi`` where a family has one more row, and puts the family back."""
    rows, kernels = root / f"tlspec/ops/{family}.py", root / "native/src/formula/elementwise.def"
    before = rows.read_text(), kernels.read_text()
    rows.write_text(before[0] + row)
    kernels.write_text(before[1] + lines)
    try:
        return subprocess.run([sys.executable, "-B", "-m", "codegen"], cwd=root, capture_output=True, text=True)
    finally:
        rows.write_text(before[0])
        kernels.write_text(before[1])


#: what to put in the place of what in ROW, and a part of the sentence about it
WRONG_ROWS = {
    "no gradient": (VJP, "", "neither a gradient nor a reason: add @stretch.vjp"),
    "gradient and reason": ("bound=ulp(2),", 'bound=ulp(2), no_vjp="none",', "a gradient and a reason for none"),
    "number as bound": ("bound=ulp(2)", "bound=1e-6", "bound: got 1e-06, expected one of tlspec.bounds"),
    "misnamed input": ("def stretch(x, c)", "def stretch(y, c)", "the reference takes (y, c), but the signature says (x)"),
    "undefined name": ("return c * g", "return d * g", "the reference of the gradient uses d, which is no parameter"),
    "misnamed argument of a bound": (
        "bound=ulp(2)", "bound=ulp(2, floor=lambda y: 0 * y)", "no case of it can be computed (TypeError",
    ),
    "unknown name in a check": ('"c > 0"', '"c > low"', "names low: it may use c, n"),
    "unknown function in a shape": ("-> out[*]", "-> out[log(n)]", "the shape of out calls log: it may call rank, drop"),
    "unknown status": ('"c > 0"', '"c > 0", "RANGE"', "has the status 'RANGE': it is one of SHAPE"),
    "no sentence": ("scalar.\n", "scalar\n", "does not begin with one sentence"),
    "gradient without docstring": ('    """gx = c · g."""\n', "", "the gradient has no docstring"),
}  # fmt: skip
#: the same, for rows that cannot be registered
UNLOADABLE_ROWS = {
    "gradient that reads nothing of the row": ('"g -> gx"', '"dy -> gx"', "the VJP reads ['dy']"),
    "not Python": ("bound=ulp(2),", "bound=ulp(2", "SyntaxError"),
    "twice": ("def stretch(x, c)", "def add(x, c)", "operation add is registered twice"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_ROWS)
def test_a_wrong_row_has_a_problem(case: str) -> None:
    old, new, message = WRONG_ROWS[case]
    assert ROW.count(old) == 1
    module = {"__name__": "tlspec.ops.elementwise", "op": op, "check": check, "ulp": ulp}
    exec(ROW.replace(old, new), module)
    problems = row_problems(module["stretch"])
    assert len(problems) == 1 and message in problems[0] and "\n" not in problems[0], problems
    assert problems[0].startswith("tlspec/ops/elementwise.py: stretch: ")


@pytest.mark.parametrize("case", ["no gradient", *UNLOADABLE_ROWS])
def test_a_wrong_row_is_refused(copy: Path, case: str) -> None:
    old, new, message = {**WRONG_ROWS, **UNLOADABLE_ROWS}[case]
    assert ROW.count(old) == 1
    done = generate(copy, ROW.replace(old, new))
    assert done.returncode == 1 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and message in done.stderr, done.stderr
    assert done.stderr.startswith("tlspec/ops/elementwise.py:")
    assert "stretch" not in (copy / "native/include/torchlean_cuda_ops.h").read_text()


def test_a_row_without_kernels_is_refused(copy: Path) -> None:
    first = "native/src/formula/elementwise.def: stretch: neither it nor native/src/cpu/elementwise"
    done = generate(copy, ROW, "")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 4, "two kernels on two devices"
    assert done.stderr.startswith(first) and "add a line for stretch" in done.stderr
    row = (
        ROW.replace("x[*]; c: float -> out[*]", "x[n]; c: float -> out[n]")
        .replace("stretch", "widen")
        .replace("ulp(2)", "exact()")
    )
    done = generate(copy, row, "", "reduce")
    prototype = "int32_t tl_cuda_widen_bwd(tl_context *ctx, const float *g, int64_t n, float c, float *gx)"
    assert f"reduce.cu: widen_bwd: it has no CUDA kernel: write {prototype}" in done.stderr
    assert "reduce.c: widen: it has no CPU kernel: write int32_t tl_cpu_widen(" in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_an_unfilled_skeleton_is_refused(copy: Path) -> None:
    """Of a gather of rows, the places of the row and of four kernels."""
    files = new.write("pick", "index", "mat[rows, cols] -> out[rows]", copy)
    assert files[0] == "tlspec/ops/index.py" and len(files) == 3
    done = subprocess.run([sys.executable, "-B", "-m", "codegen"], cwd=copy, capture_output=True, text=True)
    for file in files:  # as they were
        shutil.copy(ROOT / file, copy / file)
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and len(lines) == 13 and done.stdout == ""
    assert all(
        line.startswith(tuple(f"{f}:" for f in files)) and line.endswith(": write what TODO stands for")
        for line in lines
    )


def test_rows_are_sound(row: Op) -> None:
    assert row_problems(row) == []


def test_every_row_has_its_kernels() -> None:
    assert registry.ops() and missing_kernels() == []
