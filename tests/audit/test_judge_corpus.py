"""The corpus of defects that measures the judge."""

import numpy as np
import pytest

from audit.judge.defects import FORMATS, in_format, judged
from audit.judge.kernels import DEFECTS, RIGHT
from tlspec import registry

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
NAMES = {row.name for row in registry.ops()}


def test_the_corpus_is_large_enough() -> None:
    assert len({(d.op, d.which, d.name) for d in DEFECTS}) == len(DEFECTS) >= 60
    assert len({d.op for d in DEFECTS}) >= 20
    assert {d.op for d in DEFECTS} <= {op for op, _ in RIGHT} <= NAMES
    assert len(FORMATS) == 3


@pytest.mark.parametrize("kernel", sorted(RIGHT), ids=lambda key: "-".join(key))
def test_right_kernels_pass(kernel: tuple[str, str]) -> None:
    report = judged(*kernel, RIGHT[kernel], "float32", 6)
    assert report.verdict == "pass", report


@pytest.mark.parametrize("name", [
    "zeros", "a copy of the input", "an earlier result", "results share memory", "the last elements are not written",
    "strides are ignored", "an input is overwritten", "eps outside the root", "inputs in TF32", "the kernel is flipped",
    "one key of the future", "NaN is passed over", "the last term is left out",
])  # fmt: skip
def test_defects_are_caught(name: str) -> None:
    for defect in (d for d in DEFECTS if d.name == name):
        assert judged(defect.op, defect.which, defect.kernel, "float32", 18).verdict == "fail", defect.op


def test_kernels_of_other_formats_compute_in_float32_and_round_once() -> None:
    x = np.linspace(-2, 2, 9).astype(np.float16)
    assert in_format(np.exp, "float16")(x).dtype == np.float16
    assert np.array_equal(in_format(np.exp, "float16")(x), np.exp(x.astype(np.float32)).astype(np.float16))
