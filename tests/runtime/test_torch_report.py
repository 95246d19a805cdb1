"""What the report of a block says is true: whatever PyTorch computes itself is named, and strict refuses it."""

import threading
from typing import Any

import numpy as np
import pytest

from tests.runtime.torch_cases import drawn, mode, torch
from tlrt.errors import UnavailableError

shim = pytest.importorskip("tlrt.torch.shim")
nn, F = torch.nn, torch.nn.functional


def model(dtype: Any = torch.float32) -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(dtype)


def step(of: Any, x: Any) -> None:
    of(x).float().square().mean().backward()


def refused(compute: Any) -> None:
    with pytest.raises(UnavailableError, match="expected one with a route"), mode.reproducible(strict=True):
        compute()


def test_functions_of_float64_without_a_route_are_left() -> None:
    x, weight = drawn(1, 3, 8, 8).double(), drawn(2, 8, 8, 1).double().requires_grad_()
    with mode.reproducible() as report:
        F.group_norm(F.conv1d(x, weight), 2).square().mean().backward()
    assert {name.removesuffix("_backward") for name in report.left} == {"convolution", "native_group_norm"}
    assert {"mean", "pow"} <= set(report.here) and 0 < report.coverage < 1
    assert "100%" not in str(report)
    refused(lambda: F.conv1d(x, weight))


@torch.library.custom_op("tlrt_tests::decomposed", mutates_args=())
def decomposed(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvals(x).abs() * 2


LEFT: dict[str, Any] = {
    "complex powers": (lambda: torch.ones(4, dtype=torch.complex64) ** 1.5, "pow"),
    "an operator of somebody else": (lambda: decomposed(drawn(1, 4, 4)), "_linalg_eigvals"),
    "one that returns nothing": (
        lambda: torch._fused_adam_(
            *[[drawn(1, 4).double()]] * 4,
            [],
            [torch.ones(())],
            lr=0.1,
            beta1=0.9,
            beta2=0.99,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        ),
        "_fused_adam_",
    ),
    "decompositions": (lambda: torch.linalg.eig(drawn(1, 4, 4)), "linalg_eig"),
    "higher derivatives": (lambda: torch.polygamma(2, drawn(1, 4).double()), "polygamma"),
    "special functions": (lambda: torch.special.bessel_j0(drawn(1, 4)), "special_bessel_j0"),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_is_named(case: str) -> None:
    compute, name = LEFT[case]
    with mode.reproducible() as report:
        compute()
    assert name in report.left and report.coverage < 1 and "100%" not in str(report) and "100%" not in repr(report)
    refused(compute)


def test_little_that_is_left_is_no_whole() -> None:
    with mode.reproducible() as report:
        for _ in range(3):
            drawn(1, 64, 64) @ drawn(2, 64, 64)
        torch.special.bessel_j0(drawn(3, 1))
    assert 0.999 < report.coverage < 1 and "99.99%" in str(report)
    with mode.reproducible() as report:
        for here, work in ((1, 1 << 60), (0, 1)):
            shim.load().tlrt_torch_note(b"some", here, work)
    assert 0.999 < report.coverage < 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_are_computed(dtype: Any) -> None:
    """Each operator is that of float32 on the widened operands, rounded once."""
    of, x = model(dtype), drawn(1, 3, 8).to(dtype)
    with mode.reproducible(strict=True) as report:
        step(of, x)
        y = F.linear(x, of[0].weight, of[0].bias)
        expected = F.linear(x.float(), of[0].weight.float(), of[0].bias.float()).to(dtype)
    assert report.left == () and report.coverage == 1 and torch.equal(y, expected)
    assert all(p.grad.dtype == dtype for p in of.parameters())


def test_autocast_is_computed() -> None:
    of, x = model(), drawn(1, 3, 8)
    with mode.reproducible(strict=True) as report, torch.autocast("cpu", torch.bfloat16):
        y = of(x)
        y.float().square().mean().backward()
    assert y.dtype == torch.bfloat16 and report.left == () and of[0].weight.grad.dtype == torch.float32


def test_inference_mode_has_the_bits_of_no_grad() -> None:
    of, x = model(), drawn(1, 3, 8)
    with torch.inference_mode(), mode.reproducible(strict=True) as report:
        found = of(x)
    with torch.no_grad(), mode.reproducible(strict=True) as other:
        assert torch.equal(found, of(x))
    assert report.here == other.here and report.here["addmm"].work == 2 * 3 * 16 * (8 + 4)


def test_integers_divided_by_a_number_are_divided() -> None:
    x = torch.arange(1, 1000)
    with mode.reproducible(strict=True):
        assert torch.equal(x / 49, torch.from_numpy(x.numpy().astype(np.float32) / np.float32(49)))


def test_products_of_integers_are_exact_and_not_counted() -> None:
    a = torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    with mode.reproducible(strict=True) as report:
        found = torch._int_mm(a, a.t().contiguous())
    assert torch.equal(found, (a.int() @ a.int().t())) and report.here == {}


def test_work_of_products_is_counted_wherever_it_is_done() -> None:
    a, b = drawn(1, 5, 7), drawn(2, 7, 3)
    with mode.reproducible() as report:
        a @ b
        a.cdouble() @ b.cdouble()
    assert report.here["mm"].work == report.remaining["mm"].work == 2 * 5 * 7 * 3 and report.coverage == 0.5
    with mode.reproducible() as report:
        a.cfloat() @ b.cfloat()
        F.scaled_dot_product_attention(a[None], b.T[None], b.T[None])
    assert report.here["mm"].work == 8 * 5 * 7 * 3 and report.here["scaled_dot_product_attention"].work == 4 * 5 * 7 * 3


def test_other_threads_compute_as_ever() -> None:
    """A thread beside the block, and one that is started in it, are outside of it."""
    x, found = drawn(1, 64, 64), {}

    def compute(name: str) -> None:
        found[name] = torch.tanh(x @ x)

    compute("before")
    ready, done = threading.Event(), threading.Event()

    def beside() -> None:
        ready.wait()
        compute("beside")
        done.set()

    other = threading.Thread(target=beside)
    other.start()
    with mode.reproducible(strict=True) as report:
        ready.set()
        done.wait()
        started = threading.Thread(target=compute, args=("inside",))
        started.start()
        started.join()
        assert report.here == {}
        compute("block")
        assert report.here["mm"].calls == 1
    other.join()
    assert torch.equal(found["beside"], found["before"]) and torch.equal(found["inside"], found["before"])


def test_subnormal_numbers_are_kept() -> None:
    """Whatever torch.set_flush_denormal says outside, in each thread that works; afterwards each thread does as before."""
    x = torch.full((1 << 18,), 2.0**-130)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        before = x * 2
        assert before[0] == 0  # of this thread; those that PyTorch made earlier may keep them
        with mode.reproducible(strict=True):
            found = [x * 2, x + x, x.neg().exp() * 2.0**-130]
            with mode.reproducible():
                pass
            found.append(x * 4)
        again = x * 2
    finally:
        torch.set_flush_denormal(False)
    assert [y.unique().tolist() for y in found] == [[2.0**-129], [2.0**-129], [2.0**-130], [2.0**-128]]
    assert torch.equal(again, before)


def _coo(x: Any) -> Any:
    """Each number twice."""
    places = torch.tensor([[0, 1, 0, 1], [2, 0, 2, 0]])
    return torch.sparse_coo_tensor(places, x.flatten()[:4], (3, 3))


def _nested(x: Any) -> Any:
    return torch.nested.nested_tensor([x, x[:2]])


#: operators whose kernels for sparse and nested tensors are loops of PyTorch's
LOOPS: dict[str, Any] = {
    "sums of duplicates in float64": lambda x: _coo(x.double()).coalesce(),
    "a product of duplicates in float64": lambda x: _coo(x.double()) @ x.double(),
    "a product of compressed rows in float64": lambda x: x.double().to_sparse_csr() @ x.double(),
    "a norm": lambda x: F.layer_norm(_nested(x), (3,), x[0], x[1]),
}
#: and those that are made of operators on the numbers
MADE: dict[str, Any] = {
    "a softmax": lambda x: torch.softmax(_nested(x), -1),
    "a layer": lambda x: F.linear(_nested(x), x),
    "a copy": lambda x: torch.nested.to_padded_tensor(_nested(x), 0.0),
    "places": lambda x: x.to_sparse().indices(),
    "a multiple": lambda x: 2 * x.to_sparse(),
    "a product by element": lambda x: _nested(x) * _nested(x),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", [*LOOPS, *MADE])
def test_operators_on_sparse_and_nested_tensors_are_in_the_report(case: str) -> None:
    x = drawn(1, 3, 3)
    with mode.reproducible() as report:
        (LOOPS | MADE)[case](x)
    assert bool(report.left) == (case in LOOPS) and (report.coverage < 1) == (case in LOOPS)
    if case in LOOPS:
        refused(lambda: LOOPS[case](x))
