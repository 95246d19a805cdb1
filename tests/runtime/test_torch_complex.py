"""Complex numbers and Fourier transforms in a block. Operands and results are pairs of real numbers, as others are."""

from typing import Any

import pytest

from tests.runtime.torch_cases import check_route, derivatives, drawn

torch = pytest.importorskip("torch")
mode = pytest.importorskip("tlrt.torch.mode")
F, fft = torch.nn.functional, torch.fft


def C(x: Any) -> Any:
    return torch.view_as_complex(x.contiguous())


def R(z: Any) -> Any:
    return torch.view_as_real(z.resolve_conj()) if z.is_complex() else z


#: of two tensors (3, 4, 2)
ROUTES: dict[str, Any] = {
    "product": lambda x, y: R(C(x) * C(y)),
    "product with real numbers": lambda x, y: R(x[..., 0] * C(y)),
    "product in place": lambda x, y: R((C(x) * 1).mul_(C(y)).mul_(2)),
    "product with numbers": lambda x, y: R((2 + 1j) * C(x) * C(y[:1])),
    "quotient": lambda x, y: R(C(x) / (C(y) + 3)),
    "quotient by real numbers": lambda x, y: R(C(x) / (y[..., 0].abs() + 1)),
    "quotient of real numbers": lambda x, y: R(x[..., 0] / (C(y) + 3)),
    "quotient in place": lambda x, y: R((C(x) * 1).div_(C(y) + 3).div_(2)),
    "reciprocal": lambda x, y: R((C(x) + 3).reciprocal()),
    "sum with a factor": lambda x, y: R(torch.sub(C(x), C(y), alpha=3).add_(C(y), alpha=0.5)),
    "size": lambda x, y: (C(x) + 3).abs(),
    "angle": lambda x, y: (C(x) + 3).angle(),
    "direction": lambda x, y: R((C(x) + 3).sgn()),
    "exponential": lambda x, y: R(C(x).exp()),
    "from angles": lambda x, y: R(torch.polar(x[..., 0].abs() + 1, y[..., 1])),
    "matrices": lambda x, y: R(C(x) @ C(y).mH),
    "batches of matrices": lambda x, y: R(C(x[:, None]) @ C(y[:, None]).mT.conj()),
    "einsum": lambda x, y: R(torch.einsum("ab,cb->bac", C(x), C(y))),
    "linear": lambda x, y: R(F.linear(C(x), C(y), C(y)[:, 0])),
    "sum": lambda x, y: R(C(x).sum() * C(y).sum(-1, keepdim=True)),
    "mean": lambda x, y: R(C(x).mean() * C(y).mean((0, -1))),
    "norm": lambda x, y: torch.linalg.vector_norm(C(x)) * torch.linalg.vector_norm(C(y), dim=-1, keepdim=True),
}


@pytest.mark.parametrize("case", ROUTES)
def test_complex_numbers(case: str) -> None:
    check_route(ROUTES[case], [drawn(1, 3, 4, 2), drawn(2, 3, 4, 2)], one=False)


@pytest.mark.parametrize("case", ROUTES)
def test_numbers_on_the_axes(case: str) -> None:
    """Parts that are 0, and both: values and gradients are PyTorch's where those are finite. Routes add 3 to some operands."""
    parts = [torch.cartesian_prod(*[torch.tensor([0.0, 1.0, -3.0])] * 2).roll(k, 0)[:8].view(2, 4, 2) for k in (0, 4)]
    expected = derivatives(ROUTES[case], [x.double() for x in parts], order=1)
    with mode.reproducible(strict=True):
        found = derivatives(ROUTES[case], parts, order=1)
    for mine, exact in zip(found, expected, strict=True):
        assert torch.equal(mine.isfinite(), exact.isfinite())
        mine, exact = (y.double().nan_to_num(0, 0, 0) for y in (mine, exact))
        assert torch.allclose(mine, exact, rtol=1e-5, atol=1e-5), (mine, exact)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("n", [2, 3, 8, 30, 35, 34])
def test_fourier_transforms(n: int, norm: str) -> None:
    """Of real and complex numbers, along one axis and several, each beside its inverse."""
    real, pairs, half = drawn(1, 3, n), drawn(2, 3, n, 2), drawn(3, 3, n // 2 + 1, 2)
    for compute, x in {
        lambda x: R(fft.rfft(x, norm=norm)): real,
        lambda x: R(fft.fft(x, norm=norm)): real,
        lambda x: R(fft.fft(C(x), norm=norm)): pairs,
        lambda x: R(fft.ifft(C(x), dim=0, norm=norm)).contiguous(): pairs,
        lambda x: fft.irfft(C(x), n, norm=norm): half,
        lambda x: fft.hfft(C(x), n, norm=norm): half,
        lambda x: R(fft.rfft2(x, norm=norm)).contiguous(): real,
        lambda x: fft.irfft2(C(x), (3, n), norm=norm).contiguous(): half,
        lambda x: R(fft.fftn(x, norm=norm)).contiguous(): real,
        lambda x: R(fft.ifftn(C(x), norm=norm)).contiguous(): pairs,
        lambda x: R(fft.fftn(torch.stack([C(x), C(x).conj()]), norm=norm)).contiguous(): pairs,
    }.items():
        check_route(compute, [x], one=False)


def test_one_number_is_its_own_transform() -> None:
    z = C(drawn(1, 3, 1, 2))
    with mode.reproducible(strict=True):
        assert all(torch.equal(f(z), z) for f in (fft.fft, fft.ifft)) and torch.equal(fft.irfft(z, 1), z.real)


def test_spectrograms() -> None:
    window = torch.hann_window(16)

    def there_and_back(x: Any) -> Any:
        of = window.to(x.dtype)
        return torch.istft(torch.stft(x, 16, 4, window=of, return_complex=True), 16, 4, window=of)

    check_route(there_and_back, [drawn(1, 2, 100)], one=False)


def test_a_row_is_transformed_as_if_it_were_alone() -> None:
    x = drawn(1, 5, 3, 30)
    with mode.reproducible(strict=True):
        whole, alone = fft.ifft2(fft.rfft2(x)), fft.ifft2(fft.rfft2(x[2:3]))
    assert torch.equal(whole[2:3], alone)


def test_drawn_complex_numbers() -> None:
    with mode.reproducible(strict=True):
        torch.manual_seed(1)
        z, u = torch.randn(4000, dtype=torch.complex64), torch.rand(4000, dtype=torch.complex64)
    for of, middle, variance in ((R(z), 0, 0.5), (R(u), 0.5, 1 / 12)):
        assert ((of.mean(0) - middle).abs() < 0.05).all() and ((of.var(0) - variance).abs() < 0.05).all()
        assert abs(float((of - middle).prod(-1).mean())) < 0.05  # the parts do not depend on each other


def test_wider_complex_numbers_are_left() -> None:
    z = C(drawn(1, 4, 2)).to(torch.complex128)
    for compute, name in (
        (lambda: z * z, "mul"),
        (lambda: z / z, "div"),
        (z.abs, "abs"),
        (lambda: fft.fft(z), "_fft_c2c"),
    ):
        with mode.reproducible() as report:
            found = compute()
        assert name in report.left and report.coverage == 0 and found.dtype in (torch.complex128, torch.float64)


def test_options_without_a_route_count() -> None:
    x, y, z = C(drawn(1, 3, 4, 2)), C(drawn(2, 4, 4, 2)), C(drawn(3, 4, 2))
    calls: list[Any] = [lambda p=p: torch.linalg.vector_norm(x, p, 1) for p in (0, 1, 3, torch.inf, -torch.inf)]
    calls += [lambda k=k: torch.addmm(z, x, y, beta=k, alpha=2.5 - k) for k in (0.5, 1, 1.5)]
    calls += [lambda f=f: f(x, 0, dtype=torch.complex128) for f in (torch.sum, torch.mean)]
    for compute in calls:
        with mode.reproducible():
            found = compute()
        torch.testing.assert_close(found, compute())


def test_errors_are_those_of_pytorch() -> None:
    with mode.reproducible():
        with pytest.raises(RuntimeError, match="can't be cast"):
            drawn(1, 3).mul_(1j * torch.ones(3))
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            C(drawn(1, 3, 4, 2)) @ C(drawn(2, 3, 4, 2))
        with pytest.raises(RuntimeError, match="Invalid number of data points"):
            fft.rfft(drawn(1, 3, 0))
