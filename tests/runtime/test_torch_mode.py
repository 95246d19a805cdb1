"""Unmodified models under tlrt.torch.reproducible: right results, the same bits whatever the threads and SIMD variant, and a
report of what was computed where."""

import re
from typing import Any

import numpy as np
import pytest

from tests import DEVICES, ROOT
from tests.runtime.torch_cases import drawn, mode, place, torch
from tlrt._binding.library import load
from tlrt.verify.run import cpu_settings, cpu_variants

routes = pytest.importorskip("tlrt.torch.routes")
nn, F = torch.nn, torch.nn.functional
aten = torch.ops.aten


class Net(nn.Module):
    """One layer of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 16, padding_idx=0)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm, self.groups, self.batch = nn.LayerNorm(16), nn.GroupNorm(2, 8), nn.BatchNorm2d(8)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.conv, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, groups=8)
        self.back = nn.ConvTranspose2d(8, 4, 2, stride=2)

    def forward(self, tokens: Any, image: Any) -> Any:
        x = self.words(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        x = x + F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)[:, 0]
        y = F.silu(self.groups(F.max_pool2d(F.relu(self.batch(self.conv(image))), 3, 2)))
        y = F.avg_pool2d(self.back(self.deep(y)), 2)
        z = torch.tanh(y.mean(dim=(2, 3))) / 3.0 + torch.logsumexp(y.flatten(2), 2)
        return (
            F.cross_entropy(x.flatten(0, 1), tokens.flatten(), ignore_index=0)
            + F.mse_loss(z, torch.ones_like(z))
            + x.std()
        )


def net(device: str) -> Any:
    model = Net()
    with torch.no_grad():
        for seed, p in enumerate(model.parameters()):
            p.copy_(drawn(seed, *p.shape) * 0.3)
    return model.to(device)


def inputs(device: str) -> tuple[Any, Any]:
    tokens = torch.from_numpy(np.random.default_rng(1).integers(0, 11, (3, 9)))
    return tokens.to(device), drawn(2, 3, 3, 17, 17).to(device)


def gradients(device: str, under: bool, dtype: Any = torch.float32) -> tuple[Any, list[Any], Any]:
    model = net(device).to(dtype)
    tokens, image = inputs(device)
    if not under:
        loss = model(tokens, image.to(dtype))
        loss.backward()
        return loss.detach(), [p.grad for p in model.parameters()], None
    with mode.reproducible() as report:
        loss = model(tokens, image)
        loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()], report


def content(loss: Any, grads: list[Any]) -> bytes:
    return b"".join(x.detach().cpu().numpy().tobytes() for x in [loss, *grads])


@pytest.mark.parametrize("device", DEVICES)
def test_results_are_right(device: str) -> None:
    """Closer to float64 than a few roundings of float32, in relative norm."""
    loss, grads, report = gradients(place(device), True)
    exact, expected, _ = gradients(place(device), False, torch.float64)
    assert abs(loss.item() - exact.item()) <= 2e-6 * abs(exact.item())
    size = sum(x.square().sum() for x in expected) ** 0.5  # the bias before a batch norm has the gradient 0
    for mine, theirs in zip(grads, expected, strict=True):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm() + 1e-7 * size
    assert report.coverage == 1 and report.left == ()
    text = str(report)
    assert "convolution_backward" in text and "100% of the work is reproducible" in text


def test_bits_depend_on_no_setting() -> None:
    known, threads = content(*gradients("cpu", True)[:2]), torch.get_num_threads()
    for variant in cpu_variants():
        with cpu_settings(variant, 1):
            assert content(*gradients("cpu", True)[:2]) == known
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert content(*gradients("cpu", True)[:2]) == known
    finally:
        torch.set_num_threads(threads)


def test_the_librarys_threads_are_its_own_outside() -> None:
    library = load().lib
    before = library.torchlean_cuda_threads()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with mode.reproducible():
            torch.exp(drawn(1, 4))
            assert library.torchlean_cuda_threads() == 3
        assert library.torchlean_cuda_threads() == before
    finally:
        torch.set_num_threads(threads)


#: what a program may have set, how it is set, and to what
SETTINGS: dict[str, Any] = {
    "fast path": (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, (False, True)),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled, (False, True)),
    "determinism": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, (False, True)),
    "autograd threads": (torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled, (False, True)),
    "threads": (torch.get_num_threads, torch.set_num_threads, (1, 2)),
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, ("highest", "medium")),
    "flash": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, (False, True)),
    "mkldnn": (lambda: torch.backends.mkldnn.enabled, torch.backends.mkldnn.set_flags, (False, True)),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_a_program_has_its_settings_again(name: str) -> None:
    """Whatever it had set, after a block, one within another, and one that ends by an error."""
    get, put, values = SETTINGS[name]
    before = get()
    try:
        for value in values:
            put(value)
            with pytest.raises(ZeroDivisionError), mode.reproducible(), mode.reproducible():
                F.scaled_dot_product_attention(*3 * [torch.ones(1, 2, 3)])
                raise ZeroDivisionError
            assert get() == value
    finally:
        put(before)


@pytest.mark.cuda
def test_bits_are_those_of_the_cpu() -> None:
    assert content(*gradients("cuda:0", True)[:2]) == content(*gradients("cpu", True)[:2])


def through_descent(device: str) -> bytes:
    """A gradient through three steps of a descent, which are gradients themselves."""
    w, y = (drawn(seed, 6, 6).to(device).requires_grad_() for seed in (1, 2))
    with mode.reproducible(strict=True):
        for _ in range(3):
            energy = torch.tanh(y @ w).square().sum() + (y * w).sin().sum()
            y = y - 0.1 * torch.autograd.grad(energy, y, create_graph=True)[0]
        return bytes(torch.autograd.grad((y.square() + (y * w).sin()).sum(), w)[0].cpu().numpy())


@pytest.mark.cuda
def test_bits_of_second_gradients_are_those_of_the_cpu() -> None:
    """Also of those that are taken later in a program (`findings/torch-second-gradients-by-thread.sh`)."""
    assert {through_descent(device) for device in ("cpu", *3 * ["cuda:0"])} == {through_descent("cpu")}


def test_labels_that_are_all_ignored_give_no_gradient() -> None:
    x = drawn(3, 6, 6).requires_grad_()
    with mode.reproducible(strict=True):
        F.cross_entropy(x, torch.full((6,), -100)).backward()
    assert torch.equal(x.grad, torch.zeros(6, 6))


def test_gradients_that_nobody_wants_are_none() -> None:
    x, w = drawn(1, 1, 2, 5, 5), drawn(2, 3, 2, 3, 3)
    with mode.reproducible(strict=True):
        rest = [3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False] * 3
        assert aten.convolution_backward(F.conv2d(x, w), x, w, *rest) == (None, None, None)


def test_tensors_without_memory_have_shapes_alone() -> None:
    with mode.reproducible(strict=True) as report:
        x = torch.ones(3, device="meta") / torch.tensor(2.0)
        assert x.is_meta and x.exp().shape == (3,) and (x @ torch.ones(3, 2, device="meta")).shape == (2,)
    assert report.here == {}


CASES: dict[str, Any] = {
    "in place": lambda x: x.clone().exp_(),
    "out": lambda x: torch.mm(x, x, out=torch.empty(6, 6)),
    "alpha": lambda x: torch.add(x, x, alpha=0.3),
    "rsub": lambda x: 1.5 - x,
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.7),
    "addcdiv": lambda x: torch.addcdiv(x, x, x.abs() + 1, value=0.7),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None], beta=0.5, alpha=2),
    "addmv": lambda x: torch.addmv(x[0], x, x[1]),
    "dot": lambda x: torch.dot(x[0], x[1]),
    "var": lambda x: torch.var(x, 1, correction=0),
    "sum": lambda x: x[None].sum((0, 2), keepdim=True),
    "mean of all": lambda x: x.mean(),
    "norm": lambda x: torch.linalg.vector_norm(x, 3, dim=0),
    "cumsum": lambda x: x.cumsum(0),
    "powers": lambda x: x.abs() ** 1.7 + 2.0**x + x.abs() ** x,
    "atan2": lambda x: torch.atan2(x, x.t()),
    "columns": lambda x: x[:, [0, 0, 2]] + aten.index_put(x, [None, torch.tensor([0, 0, -1])], x[:, :3], True)[:, :3],
    "one element": lambda x: aten.index_put(x, [torch.tensor(1), torch.tensor(-1)], x[0, 0], True),
    "axes taken whole": lambda x: x.view(2, 3, 6)[:, torch.tensor([0, 0]), torch.tensor([[1], [1]])],
    "an axis taken whole in between": lambda x: x.view(2, 3, 6)[torch.tensor([0, 0, 1]), :, torch.tensor([1, 1, 5])],
    "powers of a number": lambda x: 2.0**x + torch.pow(3.0, x[0]),
    "softmax of columns": lambda x: x.softmax(0) + x.log_softmax(0),
    "attention of one tensor": lambda x: F.scaled_dot_product_attention(*3 * [x.view(1, 2, 3, 6)]),
    "keys and values that follow from queries": lambda x: (lambda q: F.scaled_dot_product_attention(q, q * 2, q.exp()))(
        x.view(1, 2, 3, 6)),
    "rms norm by what follows from its rows": lambda x: F.rms_norm(x, (6,), x.mean(0)) + F.rms_norm(x[0], (6,), x[0]),
    "nll of images": lambda x: F.nll_loss(x.view(1, 6, 2, 3), torch.tensor([[[0, 5, 1], [2, 3, 4]]]), weight=x[0].detach().abs()),
    "classes along an inner axis": lambda x: F.cross_entropy(x.view(2, 3, 6), torch.tensor([[0, 1, 2, 2, 1, 0]] * 2),
                                                             x[0, :3].detach(), ignore_index=1, reduction="none",
                                                             label_smoothing=0.1)
                                             + F.cross_entropy(x.view(2, 3, 2, 3), torch.tensor([[[0, 1, 2], [2, 1, 0]]] * 2)),
    "softmax of what is masked": lambda x: torch.ops.aten._safe_softmax(x.masked_fill(x[:, :1] > 0, -torch.inf), 1),
    "sums by negative axes": lambda x: x[None].sum((-1,), keepdim=True) + x[None].mean((0, -1), keepdim=True),
    "no weight and no chance": lambda x: F.nll_loss(x - torch.inf, torch.zeros(6).long(), 0 * x[0].detach(), reduction="sum"),
    "norms without a sum": lambda x: torch.linalg.vector_norm(x, torch.inf, 1)
                                     + torch.linalg.vector_norm(x[None], -torch.inf, (0, -1)),
    "numbers without axes": lambda x: x[0, 0].mean(0) + x[1, 1].softmax(0) + x[2, 2].sum(-1) + torch.linalg.vector_norm(x[3, 3]),
    "no elements": lambda x: of_no_elements(x),
    "sums and products with factors": lambda x: torch.cat([
        add(y, *of, beta=beta, alpha=alpha).flatten() for beta in (0, 0.5, 1) for alpha in (1, 2) for add, of, ys in (
            (torch.addmm, (x, x), (x[0], x[:, :1], x)), (torch.addmv, (x, x[0]), (x[1], x[1, 1])),
            (torch.addr, (x[0], x[1]), (x[2], x)), (torch.addbmm, (x[None], x[None]), (x[0], x)),
            (torch.baddbmm, (x[None], x[None]), (x[0], x[None]))) for y in ys]),
    "dropout of none and of all": lambda x: torch.cat([
        drop(x, p, training) for drop in (F.dropout, F.dropout1d, F.alpha_dropout, F.feature_alpha_dropout)
        for p, training in ((0.0, True), (1.0, True), (0.5, False))]),
    "layer norm of data": lambda x: F.layer_norm(x.detach(), (6,), x[0], x[1]),
    "batch norm of data": lambda x: F.batch_norm(x.detach(), x[0].detach(), x[1].detach().abs() + 1, x[2], x[3]),
}  # fmt: skip


def of_no_elements(x: Any) -> Any:
    none, images, index = x[:0], x[:0, None, None], torch.tensor([0])
    found = [none.softmax(0), x[:, :0].log_softmax(1).sum(1), F.layer_norm(none, (6,)), F.linear(x[:, :0], x[:, :0]),
             F.conv2d(images, x[:1, None, None]), F.group_norm(images, 1), F.avg_pool2d(images, (1, 2)),
             none.index_add(1, index, none[:, :1])]  # fmt: skip
    return torch.stack([y.sum() for y in found])


@pytest.mark.parametrize("case", CASES)
def test_routes_compute_what_pytorch_means(case: str) -> None:
    x = drawn(3, 6, 6)
    expected = CASES[case](x)
    leaf = x.clone().requires_grad_(case != "out")
    with mode.reproducible(strict=True):
        found = CASES[case](leaf)
        if found.requires_grad:
            found.backward(drawn(4, *found.shape))
    assert torch.allclose(found.detach(), expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    if found.requires_grad:
        again = x.clone().requires_grad_()
        CASES[case](again).backward(drawn(4, *found.shape))
        assert torch.allclose(leaf.grad, again.grad, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("case", [c for c in CASES if c not in ("out", "no elements")])
def test_penalties_on_gradients_are_right(case: str) -> None:
    def penalty(x: Any) -> Any:
        y = CASES[case](x.requires_grad_())
        (g,) = torch.autograd.grad(y, x, drawn(4, *y.shape).to(y), create_graph=True)
        (second,) = torch.autograd.grad(g.square().sum(), x, allow_unused=True) if g.requires_grad else (None,)
        return torch.zeros_like(x) if second is None else second

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the others are differentiated once
        exact = penalty(drawn(3, 6, 6).double())
    with mode.reproducible(strict=True):
        found = penalty(drawn(3, 6, 6))
    assert torch.allclose(found.to(exact), exact, rtol=1e-4, atol=1e-4, equal_nan=True), (found, exact)


ROUNDED: dict[str, Any] = {
    "add": lambda lib, x, y: x + y,
    "sub": lambda lib, x, y: x - y,
    "mul": lambda lib, x, y: x * y,
    "div": lambda lib, x, y: x / y,
    "reciprocal": lambda lib, x, y: 1 / x if lib is np else torch.reciprocal(x),
    "sqrt": lambda lib, x, y: lib.sqrt(abs(x)),
    "rsqrt": lambda lib, x, y: 1 / np.sqrt(abs(x)) if lib is np else torch.rsqrt(abs(x)),
    "floor_divide": lambda lib, x, y: x // y,
    "add with a scalar": lambda lib, x, y: x + lib.float32(0.1) if lib is np else x + 0.1,
    "div by a scalar": lambda lib, x, y: x / np.float32(3) if lib is np else x / 3,
    "leaky_relu": lambda lib, x, y: np.where(x > 0, x, x * np.float32(0.1)) if lib is np else F.leaky_relu(x, 0.1),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", ROUNDED)
def test_operators_that_are_determined_round_correctly(case: str, device: str) -> None:
    x, y = drawn(1, 1 << 16), drawn(2, 1 << 16)
    with mode.reproducible(strict=True):
        found = ROUNDED[case](torch, x.to(place(device)), y.to(place(device)))
    expected = ROUNDED[case](np, x.numpy(), y.numpy())
    assert found.cpu().numpy().tobytes() == expected.astype("<f4").tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_ranges_of_fractions(dtype: Any) -> None:
    for start, end, step in ((0.1, 4.0, 0.3), (0.5, 9.0, 1.0), (1.0, -1.0, -0.3), (0.0, 0.0, 0.1)):
        expected = start + step * np.arange(np.ceil((end - start) / step))
        with mode.reproducible(strict=True):
            assert torch.equal(torch.arange(start, end, step, dtype=dtype), torch.from_numpy(expected).to(dtype))


def test_dropout_that_is_on_is_computed() -> None:
    x, found = drawn(1, 64, 64), []
    with mode.reproducible(strict=True):
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            found.append(F.dropout(x, 0.25))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    kept = found[0] != 0
    assert 0.7 < kept.float().mean() < 0.8 and torch.equal(found[0][kept], (x * torch.tensor(1.0).div(0.75))[kept])


def test_the_documents_code_runs() -> None:
    pages = "".join((ROOT / page).read_text("utf-8") for page in ("README.md", "docs/torch.md"))
    blocks = re.findall(r"^```py\n(.*?)^```", pages, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, {})
