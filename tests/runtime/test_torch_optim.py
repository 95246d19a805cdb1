"""Optimisers under tlrt.torch.reproducible: each class of torch.optim, over lists of tensors, one by one and fused, with gradient
clipping and scaling."""

import inspect
import itertools
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests import DEVICES
from tests.runtime.torch_cases import drawn, mode, place, torch

nn = torch.nn

OPTIONS: dict[str, dict[str, Any]] = {
    "Adadelta": {"weight_decay": 0.1},
    "Adagrad": {"lr_decay": 0.1, "eps": 0.1},
    "Adam": {"amsgrad": True, "weight_decay": 0.1, "betas": (0.5, 0.75), "eps": 0.1},
    "AdamW": {},
    "Adamax": {},
    "ASGD": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "lr": 0.01},
}
#: PyTorch's two forms are not the same sums
OTHER_ORDER = {"ASGD"}


def trained(
    kind: str, device: str = "cpu", steps: int = 4, dtype: Any = torch.float32, block: bool = True, **options: Any
) -> list[Any]:
    """The weights after some steps on a quadratic form of them."""
    weights = [drawn(i, n, 5).to(place(device), dtype).requires_grad_() for i, n in enumerate((3, 1, 8))]
    optimizer = getattr(torch.optim, kind)(weights, **OPTIONS[kind] | options)

    def run() -> None:
        for step in range(steps):
            for i, w in enumerate(weights):
                w.grad = (w.detach() * 2 + drawn(10 * step + i, *w.shape).to(w)) * 0.5
            optimizer.step()

    if not block:
        run()
        return [w.detach() for w in weights]
    with mode.reproducible(strict=True) as report:
        run()
    assert report.left == () and report.coverage == 1
    return [w.detach() for w in weights]


def equal(a: list[Any], b: list[Any]) -> bool:
    return all(torch.equal(x.cpu(), y.cpu()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", OPTIONS)
def test_lists_and_loops_give_the_same_weights(kind: str, device: str) -> None:
    loop, lists = (trained(kind, device, foreach=how) for how in (False, True))
    assert kind in OTHER_ORDER or equal(loop, lists)
    assert equal(trained(kind, device), lists if device == "cuda" else loop)
    if device == "cuda":
        assert equal(loop, trained(kind, "cpu"))
    exact = trained(kind, dtype=torch.float64, block=False, foreach=False)
    for mine, theirs in zip([*loop, *lists], [*exact, *exact], strict=True):
        assert (mine.cpu().double() - theirs).abs().max() <= 2.0**-19 * theirs.abs().max()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_fused_steps_are_right(kind: str, device: str) -> None:
    try:
        found = trained(kind, device, fused=True)
    except RuntimeError as refused:
        if "supported devices" not in str(refused):
            raise
        pytest.skip(f"PyTorch has no fused {kind} on {device}")
    if device == "cuda":
        assert equal(found, trained(kind, "cpu", fused=True))
    for mine, theirs in zip(found, trained(kind, dtype=torch.float64, block=False, foreach=False), strict=True):
        assert (mine.cpu().double() - theirs).abs().max() <= 2.0**-20 * theirs.abs().max()
    if kind == "SGD":
        assert equal(found, trained(kind, device, foreach=False))


@pytest.mark.parametrize("how", ["fused", "foreach"])
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "Adagrad", "NAdam", "RAdam", "Adamax", "ASGD"])
def test_each_parameter_counts_its_own_steps(kind: str, how: str) -> None:
    """A parameter without a gradient in the first steps is trained as if they had not been."""
    if how not in inspect.signature(getattr(torch.optim, kind)).parameters:
        pytest.skip("there is no such form")

    def train(late: int) -> Any:
        weights = [drawn(i, 3, 5).requires_grad_() for i in range(2)]
        optimizer = getattr(torch.optim, kind)(weights, **OPTIONS[kind] | {how: True})
        for step in range(late, 6):
            for i, w in enumerate(weights):
                w.grad = drawn(10 * step + i, 3, 5) if i == 0 or step >= 3 else None
            optimizer.step()
        return weights[1].detach()

    with mode.reproducible(strict=True):
        assert torch.equal(train(0), train(3))


@st.composite
def options_of(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """The optimiser's switches, and its momentum, dampening and weight decay, each at 0 half of the time."""
    known = inspect.signature(getattr(torch.optim, kind)).parameters
    numbers = {
        n: draw(st.sampled_from((0.0, 0.25, 0.0, 0.5))) for n in ("momentum", "dampening", "weight_decay") if n in known
    }
    names = ("nesterov", "amsgrad", "maximize", "centered", "decoupled_weight_decay")
    return {**numbers, **{n: draw(st.booleans()) for n in names if n in known}}


@pytest.mark.parametrize("kind", OPTIONS)
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_options_mean_what_they_mean_in_pytorch(kind: str, data: st.DataObject) -> None:
    options = data.draw(options_of(kind))
    forms = [{"foreach": False}, {"foreach": True}]
    forms += [{"fused": True}] if "fused" in inspect.signature(getattr(torch.optim, kind)).parameters else []
    try:
        exact = trained(kind, dtype=torch.float64, block=False, foreach=False, **options)
    except ValueError:  # options that PyTorch refuses together
        assume(False)
    for mine, theirs in zip(trained(kind, **data.draw(st.sampled_from(forms)), **options), exact, strict=True):
        assert (mine.double() - theirs).abs().max() <= 2.0**-19 * theirs.abs().max()


def test_narrow_weights_and_a_rate_that_is_a_tensor() -> None:
    for kind in ("Adam", "AdamW", "SGD"):
        found = trained(kind, dtype=torch.bfloat16, fused=True)
        assert all(w.dtype == torch.bfloat16 for w in found)
        assert equal(
            trained(kind, fused=True, lr=torch.tensor(0.01, dtype=torch.float64)), trained(kind, fused=True, lr=0.01)
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", OPTIONS)
def test_narrow_weights_are_the_same_everywhere(kind: str, device: str) -> None:
    """Numbers of the host are not rounded to the weights' type: neither in lists of weights nor by a GPU."""
    lists = kind not in OTHER_ORDER | {"Adagrad"}  # whose lists round a product that its loop does not
    for dtype in (torch.bfloat16, torch.float16):
        found = trained(kind, device, dtype=dtype, foreach=lists)
        assert equal(found, trained(kind, dtype=dtype, foreach=False))


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_gradients_are_clipped(norm: float) -> None:
    def clipped(dtype: Any, **how: Any) -> list[Any]:
        weights = [nn.Parameter(drawn(i, 4, 5).to(dtype)) for i in range(3)]
        for w in weights:
            w.grad = w.detach() * 3
        total = nn.utils.clip_grad_norm_(weights, 1.0, norm, **how)
        return [total, *(w.grad for w in weights)]

    with mode.reproducible(strict=True):
        found, loop = clipped(torch.float32), clipped(torch.float32, foreach=False)
    assert equal(found, loop)
    for mine, theirs in zip(found, clipped(torch.float64), strict=True):
        assert (mine.double() - theirs).abs().max() <= 2.0**-21 * theirs.abs().max()


def test_values_are_clipped() -> None:
    w = nn.Parameter(drawn(1, 4, 5))
    w.grad = w.detach() * 3
    with mode.reproducible(strict=True):
        nn.utils.clip_grad_value_([w], 0.5)
    assert torch.equal(w.grad, (w.detach() * 3).clamp(-0.5, 0.5))


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_scaled(fused: bool) -> None:
    """An overflow skips its step, and the scale is that of PyTorch."""

    def run() -> tuple[Any, list[float]]:
        w = nn.Parameter(drawn(1, 4, 5))
        optimizer = torch.optim.SGD([w], lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", 2.0**10, growth_factor=3.0, backoff_factor=0.25, growth_interval=2)
        scales = []
        for step in range(10):  # after the overflow the scale grows more than once
            optimizer.zero_grad()
            loss = w.square().sum() * (torch.inf if step == 2 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return w.detach(), scales

    expected = run()
    with mode.reproducible(strict=True):
        found = run()
    assert found[1] == expected[1] and torch.allclose(found[0], expected[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("number", [None, torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shapes", [((2, 5), (3,), ()), ((1,),), ((4, 0), (65, 65), (7,), (2, 3, 2))], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_one_wrong_gradient_of_several_skips_the_step(device: str, shapes: Any, fused: bool, number: Any) -> None:
    """Whichever it is and wherever in it the number stands, whether gradients are unscaled before the step or by it."""
    places = [(i, j) for i, n in enumerate(map(math.prod, shapes)) for j in range(0, n, max(n - 1, 1))]
    for (wrong, element), unscaled in itertools.product(places, (False, True)):
        weights = [nn.Parameter(drawn(i, *s).to(place(device))) for i, s in enumerate(shapes)]
        optimizer = torch.optim.SGD(weights, lr=0.5, fused=fused)
        scaler = torch.amp.GradScaler(device, init_scale=4.0)
        scaler.scale(weights[0])  # makes the scale
        expected = [w.detach() * (number is not None) for w in weights]  # 0 = w - 0.5 * (8 * w / 4)
        for w in weights:
            w.grad = 8 * w.detach()
        if number is not None:
            weights[wrong].grad.view(-1)[element] = number
        with mode.reproducible(strict=True):
            if unscaled:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert equal(weights, expected) and scaler.get_scale() == (4.0 if number is None else 2.0)


@pytest.mark.parametrize("kind", ["Adagrad", "Adam", "AdamW", "SGD"])
def test_a_skipped_step_leaves_weights_and_states(kind: str) -> None:
    """Every state of the optimiser, so that the next step is as if there had been no overflow."""
    weights = [nn.Parameter(drawn(i, 4, 5)) for i in range(2)]
    amsgrad = {"amsgrad": True} if "Adam" in kind else {}
    optimizer = getattr(torch.optim, kind)(weights, **OPTIONS[kind] | amsgrad, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def kept() -> list[Any]:
        states = [x.clone() for w in weights for x in optimizer.state[w].values() if isinstance(x, torch.Tensor)]
        return [*(w.detach().clone() for w in weights), *states]

    with mode.reproducible(strict=True):
        for factor in (1.0, torch.inf):
            before = kept()
            optimizer.zero_grad()
            scaler.scale(sum(w.square().sum() for w in weights) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert len(before) > len(weights) and equal(kept(), before)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("overflow", [0.0, 1.0])
def test_a_skipped_step_leaves_the_gradient_scaled(overflow: float, maximize: bool) -> None:
    def run() -> list[Any]:
        w, g, momentum = (drawn(i, 4, 5) for i in range(3))
        torch._fused_sgd_(
            [w], [g], [momentum], weight_decay=0.0, momentum=0.9, lr=0.1, dampening=0.25, nesterov=False, maximize=maximize,
            is_first_step=False, grad_scale=torch.tensor(4.0), found_inf=torch.tensor(overflow),
        )  # fmt: skip
        return [w, g, momentum]

    with mode.reproducible(strict=True):
        found = run()
    for mine, theirs in zip(found, run(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-6, atol=0)


def test_fifty_steps_give_the_same_weights_again() -> None:
    """Dropout, clipping and AdamW as they come."""

    def run() -> list[Any]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters())
        x, labels = drawn(1, 12, 8), torch.arange(12) % 4
        for _ in range(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    with mode.reproducible(strict=True) as report:
        first = run()
    assert report.left == () and report.coverage == 1
    with mode.reproducible(strict=True):
        assert equal(first, run())
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with mode.reproducible(strict=True):
            assert equal(first, run())
    finally:
        torch.set_num_threads(before)


def test_a_scale_does_not_grow_to_infinity() -> None:
    scale, tracker = torch.tensor([2.0**127]), torch.zeros(1, dtype=torch.int32)
    with mode.reproducible(strict=True):
        torch._amp_update_scale_(scale, tracker, torch.zeros(1), 2.0, 0.5, 1)
    assert scale == 2.0**127 and tracker == 0
