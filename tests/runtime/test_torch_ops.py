"""The operations as PyTorch's operators: PyTorch's own checks of each, and the bits of the same calls on buffers."""

from typing import Any

import numpy as np
import pytest

from tests import DEVICES
from tests.runtime import foreign_rows
from tests.runtime.foreign_rows import bits, cases, directions, gradients_of
from tests.runtime.torch_cases import place, torch
from tlrt import _foreign, errors
from tlrt.verify.run import Runtime
from tlspec import registry
from tlspec.drawn import Case
from tlspec.registry import Op

ops = pytest.importorskip("tlrt.torch.ops")

ROWS = [registry.get(name) for name in ops.operators()]


def names(rows: list[Op]) -> Any:
    return pytest.mark.parametrize("operator", rows, ids=lambda r: r.name)


def arguments(case: Case, device: str) -> list[Any]:
    return foreign_rows.arguments(case, lambda x: torch.tensor(x, device=device))


@pytest.mark.parametrize("device", DEVICES)
@names(ROWS)
def test_bits_are_those_of_buffers(operator: Op, device: str) -> None:
    runtime = Runtime(device, math=_foreign.math())
    for case in cases(operator):
        if any(isinstance(v, float) and str(v) == "-0.0" for v in case.params.values()):
            continue  # PyTorch passes the default in the place of what equals it, 0.0 for -0.0
        found = getattr(torch.ops.torchlean, operator.name)(*arguments(case, place(device)))
        results = found if isinstance(found, tuple) else (found,)
        for mine, theirs in zip(runtime.run(case), results, strict=True):
            assert bits(mine) == bits(theirs.detach().cpu().numpy().astype(mine.dtype)), case


@pytest.mark.parametrize("device", DEVICES)
@names([r for r in ROWS if r.vjp_rule is not None])
def test_gradients_are_those_of_the_rule(operator: Op, device: str) -> None:
    """In a drawn direction, another for each result, against the row's VJP on buffers."""
    for case in cases(operator, 1):
        given = arguments(case, place(device))
        names = _foreign.names(operator.signature)[0]
        leaves = {
            n: x for n, x in zip(names, given, strict=False) if isinstance(x, torch.Tensor) and x.is_floating_point()
        }
        for leaf in leaves.values():
            leaf.requires_grad_()
        found = getattr(torch.ops.torchlean, operator.name)(*given)
        results = found if isinstance(found, tuple) else (found,)
        several = zip(results, map(torch.tensor, directions(r.detach().cpu() for r in results)), strict=True)
        pairs = [(r, g.to(r.device)) for r, g in several if r.is_floating_point()]
        torch.autograd.backward(*zip(*pairs, strict=True))
        made = gradients_of(case, device)
        for name, leaf in leaves.items():
            assert (leaf.grad is None) == (name not in made)
            assert leaf.grad is None or bits(leaf.grad.cpu().numpy().reshape(-1)) == bits(made[name].reshape(-1)), name


@pytest.mark.parametrize("kind", foreign_rows.OUTSIDE)
@names([r for r in ROWS if any(a.kind in ("u32", "index") for a in r.signature.inputs)])
def test_integers_that_32_bits_do_not_hold_are_out_of_range(operator: Op, kind: str) -> None:
    function = getattr(torch.ops.torchlean, operator.name)
    for both in foreign_rows.outside(operator, kind):
        wide, nowhere = ([torch.tensor(x) if isinstance(x, np.ndarray) else x for x in given] for given in both)
        found, wanted = [], []
        for given, results in ((wide, found), (nowhere, wanted)):
            leaves = [x.requires_grad_() for x in given if isinstance(x, torch.Tensor) and x.is_floating_point()]
            out = function(*given)
            out.sum().backward()
            grads = (leaf.grad for leaf in leaves if leaf.grad is not None)
            results += [bits(x.detach().numpy()) for x in (out, *grads)]
        assert found == wanted


def signature_of(row: Op) -> tuple[object, ...]:
    """What PyTorch traces an operator by."""
    inputs, outputs = (
        tuple((a.dims, a.kind, a.optional) for a in x) for x in (row.signature.inputs, row.signature.outputs)
    )
    return inputs, outputs, tuple(p.kind for p in row.signature.params), row.vjp_rule is None


#: the first operator of each signature
FIRST = {signature_of(row): row for row in reversed(ROWS)}


@names(ROWS)
def test_pytorchs_own_checks(operator: Op) -> None:
    [case, *_] = cases(operator, 1)
    given = [
        x.abs() + 1 if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in arguments(case, "cpu")
    ]
    if operator.vjp_rule is not None:
        given = [x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in given]
    traced = ("test_aot_dispatch_dynamic",) if operator in FIRST.values() else ()
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", *traced)
    found = torch.library.opcheck(
        getattr(torch.ops.torchlean, operator.name).default, tuple(given), test_utils=checks, raise_exception=False
    )
    assert set(found.values()) == {"SUCCESS"}, found


@names([r for r in FIRST.values() if r.vjp_rule is not None])
def test_any_memory_and_one_gradient_alone(operator: Op) -> None:
    """Memory with gaps, or that begins between two multiples of 16 bytes; each input's gradient is the same with the others."""
    given = arguments(next(iter(cases(operator, 1))), "cpu")
    leaves = [i for i, x in enumerate(given) if isinstance(x, torch.Tensor) and x.is_floating_point()]

    def run(wanted: list[int], view: Any) -> list[Any]:
        taken = [
            view(x).detach().requires_grad_(i in wanted) if isinstance(x, torch.Tensor) else x
            for i, x in enumerate(given)
        ]
        found = getattr(torch.ops.torchlean, operator.name)(*taken)
        results = [y for y in (found if isinstance(found, tuple) else (found,)) if y.is_floating_point()]
        ends = [y for y in results if y.requires_grad]
        torch.autograd.backward(ends, [torch.ones_like(y) for y in ends])
        return [bits(x.detach().numpy()) for x in results] + [
            None if taken[i].grad is None else bits(taken[i].grad.numpy()) for i in leaves
        ]

    views = [
        lambda x: torch.stack([x, x + 1], -1).to(torch.float32 if x.is_floating_point() else torch.uint32)[..., 0],
        lambda x: torch.cat([x.new_ones(1), x.flatten()])[1:].view(x.shape),
    ]
    whole = run(leaves, lambda x: x)
    assert all(run(leaves, view) == whole for view in views)
    for k, i in enumerate(leaves, -len(leaves)):
        if whole[k] is not None:
            assert run([i], lambda x: x)[k] == whole[k]


@names(ROWS)
def test_tensors_that_may_be_left_out_may_be_none(operator: Op) -> None:
    found = getattr(torch.ops.torchlean, operator.name).default._schema.arguments
    optional = {a.name for a in found if isinstance(a.type, torch.OptionalType)}
    assert optional == {a.name for a in operator.signature.inputs if a.optional}


def test_a_wrong_shape_is_named() -> None:
    with pytest.raises(Exception, match=r"matmul: B: got shape \(4, 2\), expected \(3, 2\)"):
        torch.ops.torchlean.matmul(torch.ones(2, 3), torch.ones(4, 2))
    with pytest.raises(Exception, match="add: inputs"):
        torch.ops.torchlean.add(torch.ones(2), torch.ones(3))


@names(ROWS)
def test_a_tensor_of_another_type_is_refused(operator: Op) -> None:
    """Its memory would be read as numbers of 32 bits."""
    given = arguments(next(iter(cases(operator, 1))), "cpu")
    for i, (name, x) in enumerate(zip(_foreign.names(operator.signature)[0], given, strict=False)):
        if not isinstance(x, torch.Tensor):
            continue
        expected, others = "integers", ()
        if x.is_floating_point():
            expected, others = "float32", (torch.float16, torch.int32, torch.complex64)
        for kind in (torch.float64, torch.bfloat16, *others):
            text = f"{operator.name}: {name}: got {str(kind)[6:]}, expected {expected}"
            with pytest.raises(errors.ArgumentTypeError, match=text):
                getattr(torch.ops.torchlean, operator.name)(*given[:i], x.to(kind), *given[i + 1 :])


@pytest.mark.cuda
def test_a_tensor_on_another_device_is_refused() -> None:
    x = torch.ones(3)
    for pair in ((x, x.cuda()), (x.cuda(), x)):
        with pytest.raises(errors.DeviceMismatchError, match="add: b: got a tensor on"):
            torch.ops.torchlean.add(*pair)


def test_what_the_gradient_reads_may_not_change() -> None:
    """An input that is kept, and a result."""
    x, other = torch.ones(3, requires_grad=True), torch.ones(3)
    for y, kept in ((torch.ops.torchlean.mul(x, other), other), (z := torch.ops.torchlean.exp(x), z)):
        with torch.no_grad():
            kept.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_operators_compile() -> None:
    """Under torch.compile: the graph has no break, and the bits are those of eager calls."""

    def step(x: Any, w: Any) -> Any:
        return torch.ops.torchlean.softmax(torch.ops.torchlean.matmul(x, w)).square().sum()

    x, w = torch.randn(8, 5), torch.randn(5, 3, requires_grad=True)
    expected = step(x, w)
    expected.backward()
    gradient, w.grad = w.grad, None
    found = torch.compile(step, backend="aot_eager", fullgraph=True)(x, w)
    found.backward()
    assert bits(found.detach().numpy()) == bits(expected.detach().numpy())
    assert bits(w.grad.numpy()) == bits(gradient.numpy())


def test_zeros_of_either_sign_are_two_arguments() -> None:
    """Equal numbers, of which calls keep a plan each."""
    x = torch.ones(3)
    for factor in (0.0, -0.0, 0.0):
        found = torch.ops.torchlean.scale(x, factor)
        assert torch.equal(torch.signbit(found), torch.signbit(x * factor))


def test_the_mode_is_set_for_all() -> None:
    before = _foreign.math()
    try:
        _foreign.set_math("reproducible")
        assert _foreign.math() == "reproducible"
        with pytest.raises(ValueError, match="math"):
            _foreign.set_math("exact")
    finally:
        _foreign.set_math(before)


@pytest.mark.parametrize("device", DEVICES)
@names([registry.get(n) for n in ("matmul", "linear", "conv2d", "flash_attention", "spectral_conv1d_rfft")])
def test_bits_are_those_of_the_mode_that_is_set(operator: Op, device: str) -> None:
    """Each call computes in the mode of its time, whatever earlier calls had."""
    before, found = _foreign.math(), dict[str, list[Any]]()
    try:
        for chosen in ("reproducible", "fast", "reproducible", "fast"):
            _foreign.set_math(chosen)
            results = [
                getattr(torch.ops.torchlean, operator.name)(*arguments(c, place(device))) for c in cases(operator)
            ]
            found.setdefault(chosen, []).append([bits(x.cpu().numpy()) for x in results])
    finally:
        _foreign.set_math(before)
    for chosen, runs in found.items():
        runtime = Runtime(device, math=chosen)
        assert runs == 2 * [[bits(x) for c in cases(operator) for x in runtime.run(c)]]
    assert device != "cpu" or found["fast"] != found["reproducible"]
