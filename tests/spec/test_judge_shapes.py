"""Lengths that are given: the kernel runs whole, and a sample of its results is compared."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from tests.spec import address_in
from tlspec import arrays, registry
from tlspec.__main__ import _numbers, main
from tlspec.case import shape_of
from tlspec.draw.cases import draw_case, refused_by, shape_case
from tlspec.formats import FORMATS
from tlspec.judge import check
from tlspec.judge.blocks import blocks_of
from tlspec.judge.kernel import Kernel
from tlspec.judge.recorded import dimensions, recorded
from tlspec.judge.shrink import lengths_of
from tlspec.references import references

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
FLOAT32 = FORMATS["float32"]
NONE = {"small": 0, "medium": 0, "edges": 0, "large": 0}
LARGE = {"rows": 2048, "cols": 4096}


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=1, keepdims=True)


def test_a_kernel_that_is_wrong_at_one_length_alone() -> None:
    def wrong(x: np.ndarray) -> np.ndarray:
        return softmax(x) * np.float32(1.001 if x.shape == (2048, 4096) else 1)

    assert check(wrong, "softmax", cases={"medium": 6, "edges": 8}, sensitive=False, repeats=50).ok
    report = check(wrong, "softmax", shapes=[LARGE], cases=NONE, sensitive=False, fail_fast=True)
    assert report.verdict == "fail"
    address = address_in(report.findings[0])
    assert address == "0:normal:shape; rows=2048, cols=4096"
    assert check(wrong, "softmax", case=address).verdict == "fail"
    right = check(softmax, "softmax", shapes=LARGE, cases=NONE, data="normal", sensitive=False)
    assert right.ok
    assert (
        right.sampled[0].startswith("rows=2048, cols=4096, normal: ") and " of 8388608 results in " in right.sampled[0]
    )
    assert "at given shapes, compared:" in str(right)


def test_the_sample_has_tiles_rows_and_columns_and_both_ends() -> None:
    case = shape_case(registry.get("matmul"), "forward", {"m": 1500, "n": 64, "p": 2500})
    places = [where for _, (where,) in blocks_of(case)]
    seen = np.zeros((1500, 2500), bool)
    for place in places:
        seen[place] = True
    assert seen[0, 0] and seen[-1, -1]
    assert seen.all(axis=0).any() and seen.all(axis=1).any(), "a whole column and a whole row"
    assert seen.mean() < 0.5
    for part, (place,) in blocks_of(case):
        whole = case.inputs["A"][place[0]].astype(np.float64) @ case.inputs["B"][:, place[1]]
        assert np.allclose(part.wide["A"] @ part.wide["B"], whole)


@pytest.mark.parametrize("op", [*registry.ops(), *references()], ids=lambda op: op.name)
def test_a_case_has_the_lengths_and_parameters_that_are_given(op: registry.Op) -> None:
    """Its arrays, and the call of the kernel; elements and the arrays of a list have one length."""
    sized = [a for a in op.signature.inputs if not (a.listed or a.elementwise)]
    defaults = {p.name: float(p.default) for p in op.signature.params if p.kind == "float" and p.default is not None}
    for seed in range(4):
        given = lengths_of(draw_case(op, seed, None, "small"))
        given |= {"mask_mode": 0} if "mask_mode" in given else {}
        others = given | {n: (v + 1) / 2 for n, v in defaults.items() if given[n] == v}
        given = given if refused_by(op, others) else others
        case = shape_case(op, "forward", given, seed=seed + 1)
        kernel = Kernel(lambda *arguments: None, arrays.get("numpy"), case)
        scalars = kernel.prepare(case, FLOAT32, FLOAT32).scalars
        for name in given.keys() & case.values.keys():
            assert case.values[name] == given[name] == scalars[name], name
        for a in sized:
            x = case.inputs[a.name]
            assert x is None or x.shape == shape_of(a, given), a.name


def test_the_judge_takes_little_memory_beside_the_kernel() -> None:
    own = 2 * 4 * 2048 * 4096
    tracemalloc.start()
    check(lambda x: np.maximum(x, 0), "relu", shapes={"n": 2048 * 4096}, cases=NONE, data="normal")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most <= 2 * own + 2**27, f"{most / own:.2f} times the kernel's own"  # blocks on four threads come on top


def test_lengths_are_checked() -> None:
    with pytest.raises(ValueError, match="softmax: shapes: got rows=3; expected rows, cols: cols is missing"):
        check(softmax, "softmax", shapes=[{"rows": 3}])
    with pytest.raises(ValueError, match="depth is not one"):
        check(softmax, "softmax", shapes=[{"rows": 3, "cols": 4, "depth": 1}])


@pytest.mark.parametrize("lengths", [[], [9], [9, 4], [1, 2, 3]], ids=str)
def test_lists_of_any_length_on_the_command_line(lengths: list[int]) -> None:
    assert _numbers(f"rows=4096, spatial={lengths},eps=1e-5") == {"rows": 4096, "spatial": lengths, "eps": 1e-5}
    for wrong in ("9", "rows", "rows=", "rows=[1", "rows=open(1)", "f()", ""):
        with pytest.raises(ValueError):
            _numbers(wrong)


def test_shapes_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    (tmp_path / "kernels.py").write_text("import numpy as np\ndef relu(x):\n    return np.maximum(x, 0)\n")
    words = ["check", f"{tmp_path}/kernels.py:relu", "--op", "relu", "--cases", "2", "--shapes", "n=3000000"]
    assert main(words) == 0
    assert "n=3000000, normal: " in capsys.readouterr().out


def test_calls_of_a_program_are_recorded() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.LayerNorm(96), torch.nn.Softmax(-1))
    x = torch.zeros(5, 7, 48)
    several = [{"rows": rows, "cols": 96} for rows in (35, 7)]  # each once
    assert recorded(lambda: [model(part) for part in (x, x[0], x)], registry.get("softmax")) == several
    (linear,) = recorded(lambda: model(x), registry.get("linear"))
    assert linear == {"outputs": 96, "inputs": 48, "batch": 35}
    assert recorded(lambda: (x @ x.mT, x @ x.mT), registry.get("bmm")) == [{"batch": 5, "m": 7, "n": 48, "p": 7}]
    f, a, b, y = torch.nn.functional, torch.ones(3, 4), torch.ones(4, 5), torch.ones(2, 3, 4, 5)
    heads = {"batch": 2, "heads": 3, "queries": 6, "d": 5, "kv_heads": 3, "keys": 4, "width": 5, "scale": 0.5}
    given = (
        (torch.ones(2, 3, 6, 5), y, y, torch.ones(1, 1, 6, 4)),
        {"mask_batch": 1, "mask_heads": 1, "mask_queries": 6},
    )
    eps = [{"rows": 24, "cols": 5, "eps": e} for e in (0.25, 0.5)]
    for op, function, wanted in (
        ("matmul", lambda: torch.mm(a, b, out=torch.ones(3, 5)), [{"m": 3, "n": 4, "p": 5}]),
        ("layer_norm", lambda: [f.layer_norm(y, [5], b[0], b[0], eps=each["eps"]) for each in eps], eps),
        ("flash_attention", lambda: f.scaled_dot_product_attention(y, key=y, value=y), [{"batch": 6, "n": 4, "d": 5}]),
        ("grouped_attention", lambda: f.scaled_dot_product_attention(*given[0], scale=0.5), [heads | given[1]]),
    ):
        assert recorded(function, registry.get(op)) == wanted, op
    with pytest.raises(ValueError, match="no call of gelu .*called were .*linear"):
        recorded(lambda: model(x), registry.get("gelu"))
    report = check(softmax, "softmax", shapes=lambda: model(x), cases={**NONE, "small": 2})
    assert report.ok and report.sampled[0] == "rows=35, cols=96, normal: all results"


def test_dimensions_of_shapes_that_do_not_fit() -> None:
    assert dimensions(registry.get("matmul"), [(3, 4), (5, 6)]) is None
    assert dimensions(registry.get("matmul"), [(3, 4), (4, 6)]) == {"m": 3, "n": 4, "p": 6}
    assert dimensions(registry.get("relu"), [(3, 4)]) == {"n": 12}
