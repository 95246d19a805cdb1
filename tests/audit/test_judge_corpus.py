"""The corpus of defects that measures the judge."""

import ast
import shutil

import numpy as np
import pytest

from audit.judge import compiled, defects, launched, page, trivial
from audit.judge.defects import FORMATS, in_format, judged
from audit.judge.kernels import DEFECTS, LENGTHS, RIGHT
from tests import ROOT
from tlspec import registry

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
NAMES = {row.name for row in registry.operations()}


def test_the_corpus_is_large_enough() -> None:
    assert len({(d.op, d.which, d.name) for d in DEFECTS}) == len(DEFECTS) >= 60
    assert len({d.op for d in DEFECTS}) >= 20
    assert {d.op for d in DEFECTS} <= {op for op, _ in RIGHT} <= NAMES
    assert len(FORMATS) == 3
    assert set(compiled.DEFECTS) | set(launched.DEFECTS) <= NAMES
    assert sum(map(len, compiled.DEFECTS.values())) >= 20 and len(compiled.DEFECTS) >= 10
    assert sum(map(len, launched.DEFECTS.values())) >= 15 and len(launched.DEFECTS) >= 6
    assert {(op, name) for op, names in compiled.DEFECTS.items() for name in names} >= compiled.FINE


@pytest.mark.parametrize("kernel", sorted(RIGHT), ids=lambda key: "-".join(key))
def test_right_kernels_pass(kernel: tuple[str, str]) -> None:
    report = judged(*kernel, RIGHT[kernel], "float32", 4)
    assert report.verdict == "pass", report


CAUGHT = [
    "zeros", "a copy of the input", "an earlier result", "results share memory", "the last elements are not written",
    "strides are ignored", "an input is overwritten", "eps outside the root", "inputs in TF32", "the kernel is flipped",
    "one key of the future", "NaN is passed over", "the last term is left out",
    *(f"wrong where {where}" for where in LENGTHS), "wrong where channels are multiples of 8",
]  # fmt: skip


@pytest.mark.parametrize("name", CAUGHT)
def test_defects_are_caught(name: str) -> None:
    """In every other operation of a choice of dimensions, from which the judge draws lengths; the campaign tries them all."""
    own = list({registry.get(d.op).signature.dims: d for d in DEFECTS if d.name == name}.values())
    for defect in own[CAUGHT.index(name) % min(len(own), 2) :: 2]:
        assert judged(defect.op, defect.which, defect.kernel, "float32", 9).verdict == "fail", defect.op


def test_kernels_of_other_formats_compute_in_float32_and_round_once() -> None:
    x = np.linspace(-2, 2, 9).astype(np.float16)
    assert in_format(np.exp, "float16")(x).dtype == np.float16
    assert np.array_equal(in_format(np.exp, "float16")(x), np.exp(x.astype(np.float32)).astype(np.float16))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
@pytest.mark.parametrize(("op", "dtype"), [
    *((op, "float32") for op in compiled.DEFECTS if op != "matmul"),  # which takes longest
    ("gelu", "float16"),
])  # fmt: skip
def test_kernels_in_c_pass_and_their_defects_are_caught(op: str, dtype: str) -> None:
    own = [k for k in compiled.kernels() if k.op == op]
    large = int(op in ("add", "reduce_sum_axis1"))  # the campaign has a large case of each
    assert [k.name for k in own][:1] == [""] and own[0].judge(dtype, 6, large).verdict == "pass"
    # of the others one, whose turn it is; the campaign tries them all
    wrong = own[1 + len(op) % (len(own) - 1)]
    assert dtype not in wrong.formats or wrong.judge(dtype, 8, 0).verdict == "fail", wrong.name


def test_every_kernel_in_triton_is_launched_by_a_function_of_its_name() -> None:
    tree = ast.parse((ROOT / "audit/judge/triton_kernels.py").read_text())
    found = {node.name: [a.arg for a in node.args.args] for node in tree.body if isinstance(node, ast.FunctionDef)}
    for op in launched.DEFECTS:
        sig = registry.get(op).signature
        names = [*(a.name for a in sig.inputs), *(p.name for p in sig.params), *(a.name for a in sig.outputs), "defect"]
        assert found[op] == names
        assert f"_{op}" in found


def test_languages_that_are_not_here_are_left_out_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled, "compiler", lambda: None)
    monkeypatch.setattr(launched, "present", lambda: False)
    monkeypatch.setattr(defects, "RIGHT", {("exp", "forward"): RIGHT["exp", "forward"]})
    monkeypatch.setattr(defects, "DEFECTS", [d for d in DEFECTS if d.op == "exp"][:2])
    assert defects.main(["--dtypes", "float32", "--cases", "12", "--no-trivial", "--workers", "1"]) == 0
    shown = capsys.readouterr().out
    assert "left out: kernels in C, which need a C compiler" in shown
    assert "left out: kernels in Triton, which need a GPU" in shown


def test_the_page_quotes_the_evidence() -> None:
    assert (page.ROOT / page.PAGE).read_text("utf-8") == page.page(), "stale: run `python -m audit.judge.page`"


def test_kernels_that_compute_nothing_are_caught() -> None:
    assert all(trivial.caught(registry.get("reduce_sum"), name) for name in trivial.KERNELS)
    right = registry.get("broadcast_vec_to_rows")
    assert {name for name in trivial.KERNELS if not trivial.caught(right, name)} == {"its first input"}
