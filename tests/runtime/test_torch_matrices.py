"""Matrices in a block: solutions, decompositions, singular values and eigenvalues, in float32 and float64."""

import itertools
from typing import Any

import pytest

from tests import DEVICES
from tests.runtime.torch_cases import check_route, derivatives, drawn, mode, place, torch

pytest.importorskip("tlrt.torch.routes.base")


@pytest.mark.parametrize("n", [5, 16, 37])
def test_triangular_systems(n: int) -> None:
    a, b = drawn(1, 2, n, n) + 4 * torch.eye(n), drawn(2, 2, n, 3)
    for upper, unit, left in itertools.product((False, True), repeat=3):

        def solve(m: Any, y: Any, upper: bool = upper, unit: bool = unit, left: bool = left) -> Any:
            return torch.linalg.solve_triangular(m, y if left else y.mT, upper=upper, unitriangular=unit, left=left)

        check_route(solve, [a, b], one=False)
        if left:
            check_float64(lambda m, y, solve=solve: solve(m[:1], y[0]) + solve(m[:, None], y).sum(0), [a, b])


def test_decompositions() -> None:
    for rows, columns in ((5, 3), (4, 4), (3, 5), (1, 1)):
        for k in (0, 1):
            check_route(
                lambda x, k=k: torch.linalg.qr(x)[k],
                [drawn(rows, 2, rows, columns) + 4 * torch.eye(rows, columns)],
                one=False,
            )
    for how in ("complete", "r"):
        check_route(lambda x, how=how: torch.linalg.qr(x.detach(), how)[1], [drawn(1, 5, 3)], one=False)
    with mode.reproducible(strict=True):
        assert torch.equal(torch.linalg.qr(torch.zeros(4, 2))[0], torch.eye(4, 2))
    for rows, columns in ((5, 3), (4, 4)):
        check_route(
            lambda x: torch.linalg.householder_product(*torch.geqrf(x.detach())),
            [drawn(1, 2, rows, columns)],
            one=False,
        )
        check_route(torch.linalg.householder_product, list(torch.geqrf(drawn(1, 2, rows, columns))), one=False)
    sizes = torch.tensor([0.0, 0.01, 1.0, 3.0])[:, None, None]
    check_route(torch.linalg.matrix_exp, [drawn(1, 4, 3, 3) * sizes], one=False)
    check_float64(torch.linalg.matrix_exp, [drawn(1, 4, 3, 3) * sizes])
    check_float64(torch.linalg.matrix_exp, [7.9 * torch.eye(3)])
    with mode.reproducible(strict=True):
        assert torch.equal(
            torch.linalg.matrix_exp(drawn(1, 4, 3, 3) * sizes)[1], torch.linalg.matrix_exp(drawn(1, 4, 3, 3)[1] * 0.01)
        )
    for upper in (False, True):
        check_route(
            lambda x, upper=upper: torch.linalg.cholesky(x @ x.mT + 5 * torch.eye(4, dtype=x.dtype), upper=upper),
            [drawn(1, 2, 4, 4)],
            one=False,
        )
    falling = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, 2.0, -3.0]))])
    with mode.reproducible(strict=True):
        assert torch.linalg.cholesky_ex(falling)[1].tolist() == [0, 3]
        with pytest.raises(torch.linalg.LinAlgError, match="leading minor of order 3"):
            torch.linalg.cholesky(falling)


#: what tells the place at which a matrix fails
PLACES: dict[str, Any] = {
    "Cholesky": torch.linalg.cholesky_ex,
    "Cholesky of the upper triangle": lambda a, **how: torch.linalg.cholesky_ex(a, upper=True, **how),
    "LU": torch.linalg.lu_factor_ex,
    "solutions": lambda a, **how: torch.linalg.solve_ex(a, a, **how),
    "solutions by rows": lambda a, **how: torch.linalg.solve_ex(a, a, left=False, **how),
    "inverses": torch.linalg.inv_ex,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", PLACES)
def test_the_place_at_which_a_matrix_fails(case: str, dtype: Any) -> None:
    """It is PyTorch's for each matrix of a batch, as are exchanged rows, with every choice of signs and zeros of exact pivots."""
    low = torch.tensor([[1, 0, 0, 0], [0.5, 1, 0, 0], [0.25, -0.25, 1, 0], [0, -0.5, 0.5, 1]], dtype=dtype)
    diagonal = torch.tensor([*itertools.product((1.0, 0.0, -1.0), repeat=4)], dtype=dtype).view(3, 27, 4)
    for a in (low @ diagonal.diag_embed() @ low.mT, low * diagonal[:, :, None], (low * diagonal[:, :, None]).mT):
        with mode.reproducible(strict=True):
            found = PLACES[case](a)
        expected = PLACES[case](a)
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True) if not y.is_floating_point())
        assert {*expected.info.flatten().tolist()} == {0, 1, 2, 3, 4}
        with mode.reproducible(), pytest.raises(RuntimeError):
            PLACES[case](a, check_errors=True)
    lost = torch.where(torch.eye(4).diag_embed().bool(), torch.nan, torch.eye(4)).to(
        dtype
    )  # each has one NaN, on its diagonal
    if "Cholesky" in case:
        with mode.reproducible(strict=True):
            assert PLACES[case](lost).info.tolist() == [1, 2, 3, 4]


SYSTEMS: dict[str, Any] = {
    "columns": lambda a, b: torch.linalg.solve(a, b),
    "one side for all": lambda a, b: torch.linalg.solve(a, b[0]),
    "vectors": lambda a, b: torch.linalg.solve(a[0], b[0, :, 0]),
    "a vector for each": lambda a, b: torch.linalg.solve(a, b[..., 0]),
    "rows": lambda a, b: torch.linalg.solve(a, b.mT, left=False),
    "factors of one for all": lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a[:1]), b),
    "factors of the transpose": lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, adjoint=True),
    "factors, and rows": lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b.mT, left=False, adjoint=True),
    "lower and upper factors": lambda a, b: torch.linalg.lu(a)[1] + torch.linalg.lu(a)[2],
    "tall factors": lambda a, b: torch.linalg.lu(torch.cat([a, b], -1).mT)[1],
    "wide factors": lambda a, b: torch.linalg.lu(torch.cat([a, b], -1))[2],
    "inverses": lambda a, b: torch.linalg.inv(a),
    "determinants": lambda a, b: torch.linalg.det(a),
    "their logarithms": lambda a, b: torch.linalg.slogdet(a)[1],
    "their signs": lambda a, b: torch.linalg.slogdet(a)[0] + torch.linalg.slogdet(a[:, :3, :3])[0] * torch.linalg.det(a),
    "factors of Cholesky": lambda a, b: torch.cholesky_solve(b[0], torch.linalg.cholesky(a @ a.mT)),
    "inverses of Cholesky": lambda a, b: torch.cholesky_inverse(torch.linalg.cholesky(a @ a.mT, upper=True), upper=True)
    + torch.cholesky_inverse(torch.linalg.cholesky(a @ a.mT)),
}  # fmt: skip


def check_float64(compute: Any, operands: list[Any], order: int = 1) -> None:
    """Values and derivatives beside PyTorch's."""
    given = [x.double() for x in operands]
    expected = derivatives(compute, given, order)
    with mode.reproducible(strict=True):
        found = derivatives(compute, given, order)
    for mine, exact in zip(found, expected, strict=True):
        assert mine.dtype == torch.float64 and torch.allclose(mine, exact, 1e-11, 1e-11 * float(exact.abs().max()))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("case", SYSTEMS)
def test_systems_of_equations(case: str, by_rows: bool, order: int) -> None:
    a, b = drawn(1, 2, 5, 5) + 4 * torch.eye(5), drawn(2, 2, 5, 3)
    a = a.flip(-1) if by_rows else a.flip(-1).mT.contiguous().mT  # rows change places
    check_route(lambda a, b: SYSTEMS[case](a, b) + 0 * b.sum(), [a, b], order, one=False)
    check_float64(lambda a, b: SYSTEMS[case](a, b) + 0 * b.sum(), [a, b], order)


def test_singular_and_large_matrices() -> None:
    """Several threads at a batch of large matrices disturb one another in PyTorch."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with mode.reproducible(strict=True):
            identity = torch.eye(160).repeat(2, 1, 1)
            assert torch.equal(torch.linalg.inv(identity.flip(-1)), identity.flip(-1))
            assert torch.linalg.det(torch.ones(2, 2)) == 0
            assert torch.linalg.slogdet(torch.tensor([[0.0, 1.0], [1.0, 0.0]])) == (-1.0, 0.0)
            for f in (torch.linalg.inv, lambda x: torch.linalg.solve(x, x)):
                with pytest.raises(torch.linalg.LinAlgError, match="singular"):
                    f(torch.ones(2, 2))
            for f in (torch.linalg.inv, torch.linalg.det, lambda x: torch.linalg.solve(x, x)):
                with pytest.raises(RuntimeError, match="must be batches of square matrices"):
                    f(torch.ones(2, 3))
    finally:
        torch.set_num_threads(before)


#: singular values and vectors, of a matrix: what does not depend on the signs of vectors
SPECTRA: dict[str, Any] = {
    "singular values": torch.linalg.svdvals,
    "singular vectors": lambda a: torch.linalg.svd(a, full_matrices=False)[0].square() + torch.linalg.svd(a, False)[1].sum(),
    "vectors on the right": lambda a: torch.linalg.svd(a, full_matrices=False)[2].abs(),
    "inverses of Moore and Penrose": torch.linalg.pinv,
    "nuclear norms": lambda a: torch.linalg.matrix_norm(a, "nuc"),
    "greatest factors": lambda a: torch.linalg.matrix_norm(a, 2) + torch.linalg.cond(a),
    "eigenvalues": lambda a: torch.linalg.eigvalsh(a @ a.mT),
    "eigenvectors": lambda a: torch.linalg.eigh(a @ a.mT + a[..., :1] * a[..., :1].mT)[1].square(),
    "the upper triangle": lambda a: torch.linalg.eigh(a @ a.mT, UPLO="U")[0],
    "least squares": lambda a: torch.linalg.lstsq(a, a[..., :2] ** 2).solution,
}  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 2, 3, 3), (5, 4), (2, 3, 5), (1, 1)])
@pytest.mark.parametrize("case", SPECTRA)
def test_spectra(case: str, shape: tuple[int, ...]) -> None:
    a = (
        drawn(1, *shape)
        + 2 * torch.eye(*shape[-2:])
        + torch.diag(torch.arange(shape[-2]) / 2.0) @ torch.eye(*shape[-2:])
    )
    is_exact = case not in ("eigenvectors", "eigenvalues", "the upper triangle") or shape[-1] >= shape[-2]
    compute = SPECTRA[case] if is_exact else lambda a: SPECTRA[case](a.mT)
    check_route(compute, [a], 1, one=False)
    check_float64(compute, [a])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_singular_vectors_are_orthogonal(dtype: Any, full: bool, device: str) -> None:
    """Of matrices without full rank, too, with equal singular values, and with numbers of very different sizes."""
    few = drawn(3, 9, 3) @ drawn(4, 3, 8)
    hollow = drawn(5, 6, 4) * torch.tensor([1.0, 1.0, 0.0, 1.0])
    graded = torch.diag(10.0 ** -torch.arange(12)) @ torch.linalg.qr(drawn(6, 12, 12))[0]
    given = [drawn(1, 7, 5), drawn(2, 3, 8), few, few.T, hollow, torch.zeros(4, 3), torch.ones(5, 5), torch.eye(6),
             graded, 1e30 * drawn(7, 20, 9), 1e-30 * drawn(8, 9, 20), drawn(9, 1, 1), drawn(9, 6, 1), drawn(9, 1, 6),
             drawn(9, 258, 1)]  # fmt: skip
    unit = 2.0**-23 if dtype == torch.float32 else 2.0**-48
    for a in given:
        a = a.to(dtype).to(place(device))
        with mode.reproducible(strict=True):
            u, s, v = torch.linalg.svd(a, full_matrices=full)
        plain = torch.linalg.svd(a, full_matrices=full)
        assert [t.shape for t in (u, s, v)] == [t.shape for t in plain] and s.sort(descending=True)[0].equal(s)
        u, s, v, a = (t.double() for t in (u, s, v, a))
        for q in (u, v.mT):
            assert (q.mT @ q - torch.eye(q.shape[1], dtype=torch.float64, device=q.device)).abs().max() <= unit
        again = (u[:, : len(s)] * s) @ v[: len(s)]
        assert (again - a).abs().max() <= unit * a.norm()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eigenvectors_are_orthogonal(dtype: Any, device: str) -> None:
    a = drawn(1, 3, 9, 9)
    a = torch.stack([*(a + a.mT), torch.eye(9), -torch.ones(9, 9), torch.zeros(9, 9)])[None].to(dtype).to(place(device))
    with mode.reproducible(strict=True):
        values, vectors = torch.linalg.eigh(a)
        assert torch.equal(values, torch.linalg.eigvalsh(a))
    unit = 2.0**-22 if dtype == torch.float32 else 2.0**-47
    values, vectors, a = values.double(), vectors.double(), a.double()
    assert torch.equal(values, values.sort(-1)[0])
    assert (a @ vectors - vectors * values[..., None, :]).abs().max() <= unit * 9
    assert (vectors.mT @ vectors - torch.eye(9, dtype=torch.float64, device=a.device)).abs().max() <= unit


def spectra(a: Any) -> list[Any]:
    return [*torch.linalg.svd(a), *torch.linalg.eigh(a @ a.mT), *torch.linalg.lstsq(a + 9 * torch.eye(6).to(a), a)[:1]]


@pytest.mark.parametrize("device", DEVICES)
def test_a_matrix_is_decomposed_as_if_it_were_alone(device: str) -> None:
    a = drawn(1, 5, 6, 6)
    a[1] = torch.eye(6)  # which is orthogonal from the start
    a[2, :, 3:] = 0.0  # and one of rank 3
    with mode.reproducible(strict=True):
        together = spectra(a.to(place(device)))
        for i in range(5):
            for whole, one, on_cpu in zip(together, spectra(a[i].to(place(device))), spectra(a[i]), strict=True):
                assert torch.equal(whole[i], one) and torch.equal(one.cpu(), on_cpu)


def test_least_squares() -> None:
    """Each driver's results; a matrix that may have no full rank is PyTorch's for those that find it."""
    for shape in ((4, 4), (2, 7, 3), (3, 6)):
        a, b = drawn(1, *shape), drawn(2, *shape[:-1], 2)
        for driver in (None, "gels", "gelsy", "gelsd", "gelss"):
            with mode.reproducible(strict=True):
                found = torch.linalg.lstsq(a, b, driver=driver)
            for mine, theirs in zip(found, torch.linalg.lstsq(a, b, driver=driver), strict=True):
                assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
                assert torch.allclose(mine, theirs, 1e-4, 1e-4)
    with mode.reproducible() as report:
        found = torch.linalg.lstsq(torch.ones(4, 3), torch.ones(4, 1))
    assert (
        report.left == ("linalg_lstsq",)
        and torch.allclose(found.solution, torch.full((3, 1), 1 / 3))
        and found.rank == 1
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_triangle_is_read(dtype: Any) -> None:
    """Whatever stands in the other one."""
    a = drawn(1, 2, 4, 4).to(dtype)
    for how in ({}, {"UPLO": "L"}, {"UPLO": "U"}, {"UPLO": "u"}):
        half = a.triu() if how.get("UPLO", "L").upper() == "U" else a.tril()
        with mode.reproducible(strict=True):
            found = torch.linalg.eigvalsh(a, **how)
        torch.testing.assert_close(found, torch.linalg.eigvalsh(half + half.mT - half * torch.eye(4)))
    for upper in (False, True):
        b = a + 9 * torch.eye(4)
        half = b.triu() if upper else b.tril()
        with mode.reproducible(strict=True):
            found = torch.linalg.cholesky(b, upper=upper)
            x = torch.cholesky_solve(
                a, found + (torch.ones(4, 4).tril(-1) if upper else torch.ones(4, 4).triu(1)), upper=upper
            )
        whole = half + half.mT - half * torch.eye(4)
        torch.testing.assert_close(found, torch.linalg.cholesky(whole, upper=upper))
        torch.testing.assert_close(x, torch.linalg.solve(whole, a))


def test_matrices_that_are_left() -> None:
    """Not finite, which PyTorch refuses, and large ones; factors without pivots; and those whose rank a bound decides."""
    a = drawn(1, 4, 3)
    with pytest.raises(RuntimeError, match="pivot"), mode.reproducible():
        torch.linalg.lu(drawn(1, 3, 3), pivot=False)
    with mode.reproducible() as report:
        torch.linalg.lstsq(a, a, rcond=0.5)
    assert report.left == ("linalg_lstsq",)
    with mode.reproducible(), pytest.raises(torch.linalg.LinAlgError, match="leading minor of order 1"):
        torch.linalg.cholesky_ex(
            torch.stack([torch.eye(3), -torch.eye(3), torch.diag(torch.tensor([1.0, 2.0, -3.0]))]), check_errors=True
        )
    for compute in (torch.linalg.svd, torch.linalg.eigh):
        with pytest.raises(torch.linalg.LinAlgError, match="failed to converge"), mode.reproducible():
            compute(torch.full((3, 3), torch.nan))
    with mode.reproducible() as report:
        torch.linalg.svdvals(torch.ones(257, 257))
    assert report.left == ("_linalg_svd",)
    with mode.reproducible(strict=True):
        assert torch.linalg.svd(torch.zeros(2, 0, 3), full_matrices=False)[1].shape == (2, 0)
