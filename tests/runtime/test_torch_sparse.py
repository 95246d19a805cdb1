"""Operators on sparse tensors in a block. Operands and results are dense, as others are."""

from typing import Any

import pytest

from tests.runtime.torch_cases import check_route, derivatives, drawn

torch = pytest.importorskip("torch")
mode = pytest.importorskip("tlrt.torch.mode")
F = torch.nn.functional

#: where the entries of a list are: two of them at one place, and one place of each row empty
PLACES = torch.tensor([[0, 1, 0, 1, 3, 2, 3, 3], [2, 0, 2, 4, 1, 1, 0, 1]])


def listed(x: Any) -> Any:
    """A matrix of 4 x 5 with duplicates, of the first numbers of x."""
    return torch.sparse_coo_tensor(PLACES, x.flatten()[:8], (4, 5))


def rows(x: Any) -> Any:
    """A list of rows, two of them at one place."""
    return torch.sparse_coo_tensor(torch.tensor([[0, 2, 1, 2]]), x[:4], (5, 4))


def batches(x: Any) -> Any:
    return torch.sparse_coo_tensor(
        torch.cat([torch.tensor([[0, 1, 0, 1, 0, 1, 1, 0]]), PLACES]), x.flatten()[:8], (2, 4, 5)
    )


def csr(x: Any) -> Any:
    return x.relu().to_sparse_csr()


def stored(x: Any) -> Any:
    """The dense matrix of what is stored, and 0 elsewhere."""
    return x.coalesce().to_dense() if x.layout == torch.sparse_coo else x.to_dense()


#: of two tensors (4, 4) and (5, 4)
ROUTES: dict[str, Any] = {
    "duplicates": lambda x, y: listed(x).coalesce().values() * y[0, 0],
    "duplicates in a dense matrix": lambda x, y: listed(x).to_dense() * y.T,
    "duplicates in batches": lambda x, y: stored(batches(x)) * y.T,
    "rows in a dense matrix": lambda x, y: rows(x).to_dense() * y,
    "torch.sparse.mm": lambda x, y: torch.sparse.mm(listed(x), y),
    "@": lambda x, y: listed(x) @ y,
    "a vector": lambda x, y: listed(x) @ y[:, 0],
    "transposed": lambda x, y: listed(x).t() @ y[:4],
    "into a sum": lambda x, y: torch.sparse.addmm(x, listed(x), y, beta=0.5, alpha=2.0),
    "of two": lambda x, y: stored(torch.sparse.mm(listed(x), listed(y).t())),
    "a sum": lambda x, y: stored(listed(x) + listed(y)),
    "a sum of sorted ones": lambda x, y: stored(listed(x).coalesce() + listed(y.t().contiguous()).coalesce()),
    "to a dense one": lambda x, y: torch.add(y.T, listed(x), alpha=-0.5),
    "rows to a dense one": lambda x, y: torch.add(y, rows(x), alpha=-0.5),
    "a softmax": lambda x, y: stored(torch.sparse.softmax(listed(x), 1)) * y.T,
    "a softmax of columns": lambda x, y: stored(torch.sparse.log_softmax(listed(x), 0)) * y.T,
    "a softmax in rows": lambda x, y: stored(torch.sparse.softmax(rows(x), 1)) * y,
    "a softmax far below 0": lambda x, y: stored(torch.sparse.softmax(listed(-256 * x.abs()), 1)) * y.T,
    "sums of rows": lambda x, y: stored(torch.sparse.sum(listed(x), 1)) * y[0],
    "products by element": lambda x, y: stored(listed(x).coalesce() * 3) * y.T,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ROUTES)
def test_lists_of_entries(case: str) -> None:
    check_route(ROUTES[case], [drawn(1, 4, 4), drawn(2, 5, 4)], order=1, one=False)


#: of two tensors (4, 4) and (5, 4), without gradients of PyTorch's own
COMPRESSED: dict[str, Any] = {
    "rows": lambda x, y: csr(y) @ x,
    "columns": lambda x, y: y.relu().to_sparse_csc() @ x,
    "behind a dense matrix": lambda x, y: x @ csr(y.T),
    "a vector": lambda x, y: torch.addmv(y[:, 0], csr(y), x[0], beta=2.0, alpha=0.5),
    "into a sum": lambda x, y: torch.addmm(y, csr(y), x, beta=2.0, alpha=0.5),
    "into no sum": lambda x, y: torch.addmm(y * torch.nan, csr(y), x, beta=0),
    "of two": lambda x, y: stored(csr(y) @ csr(x) @ csr(y.T)),
    "of two into a sum": lambda x, y: stored(torch.addmm(csr(-y), csr(y), csr(x), beta=0.5, alpha=2.0)),
    "of a wide one and one whose last rows are empty": lambda x, y: stored(
        csr(y.T) @ csr(y.index_fill(0, torch.tensor([3, 4]), 0))
    ),
    "a sum": lambda x, y: stored(torch.add(csr(y), csr(y.flip(0)), alpha=0.5)),
    "a difference": lambda x, y: stored(torch.sub(listed(x), listed(y), alpha=0.5)) + stored(rows(x) - rows(x.T)).T,
    "to a dense one": lambda x, y: y + csr(y.flip(0)),
    "sampled": lambda x, y: stored(torch.sparse.sampled_addmm(csr(y), y, x, beta=0.5, alpha=2.0)),
    "batches": lambda x, y: torch.bmm(batches(x), torch.stack([y, y.flip(0)])),
    "with a list of rows": lambda x, y: stored(torch.hspmm(listed(x), y)),
    "out": lambda x, y: torch.mm(listed(x), y, out=torch.empty(4, 4, dtype=y.dtype)),
    "in place": lambda x, y: y.T.clone().add_(listed(x), alpha=-0.5),
    "nothing": lambda x, y: torch.sparse_coo_tensor(PLACES[:, :0], x[0, :0], (4, 5)) @ y,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", COMPRESSED)
def test_compressed_rows(case: str) -> None:
    x, y = drawn(1, 4, 4), drawn(2, 5, 4)
    check_route(lambda *operands: COMPRESSED[case](*(v.detach() for v in operands)), [x, y], order=1, one=False)


@pytest.mark.filterwarnings("ignore")
def test_results_have_pytorchs_form() -> None:
    x, y = drawn(1, 4, 4), drawn(2, 5, 4)
    calls: list[Any] = [
        lambda: listed(x) + listed(y), lambda: listed(x).coalesce() + listed(y), lambda: rows(x) + rows(y),
        lambda: listed(x).coalesce() + listed(y).coalesce(), lambda: torch.hspmm(listed(x), y),
        lambda: torch.sparse.mm(listed(x), listed(y).t()), lambda: csr(x) @ csr(x), lambda: csr(x) + csr(x.T),
        lambda: torch.sparse.softmax(rows(x), 0), lambda: torch.sparse.sampled_addmm(csr(y), y, x),
    ]  # fmt: skip
    for compute in calls:
        with mode.reproducible(strict=True):
            found = compute()
        theirs = compute()
        assert found.layout == theirs.layout and found.shape == theirs.shape
        if found.layout == torch.sparse_coo:
            assert found.sparse_dim() == theirs.sparse_dim() and found.is_coalesced() == theirs.is_coalesced()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("softmax", [torch.sparse.softmax, torch.sparse.log_softmax])
def test_a_softmax_of_an_axis_counted_from_the_last(softmax: Any) -> None:
    """PyTorch's gradient of it is another one."""

    def run(matrix: Any, axis: int) -> list[Any]:
        return derivatives(
            lambda x: stored(softmax(matrix(x), axis)) * drawn(2, 5, 4).view_as(matrix(x)), [drawn(1, 4, 4)], 1
        )

    with mode.reproducible(strict=True):
        for matrix, axis in ((listed, 0), (listed, 1), (rows, 0), (rows, 1)):
            assert all(map(torch.equal, run(matrix, axis), run(matrix, axis - 2)))


@pytest.mark.filterwarnings("ignore")
def test_work_is_that_of_what_is_stored_and_integers_are_pytorchs() -> None:
    with mode.reproducible(strict=True) as report:
        found = listed(drawn(1, 4, 4)).coalesce()
        whole = listed(torch.arange(16)).coalesce()
    assert report.here["_coalesce"].work == found._nnz() == 6
    assert torch.equal(whole.to_dense(), listed(torch.arange(16)).to_dense())


@pytest.mark.filterwarnings("ignore")
def test_products_in_parts_have_the_bits_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = drawn(1, 4, 4), drawn(2, 5, 7)
    with mode.reproducible(strict=True):
        whole = listed(x) @ y
        monkeypatch.setattr("tlrt.torch.routes.sparse._AT_ONCE", 17)
        assert torch.equal(listed(x) @ y, whole)


@pytest.mark.filterwarnings("ignore")
def test_a_narrow_type_is_rounded_once() -> None:
    x, y = drawn(1, 4, 4).bfloat16(), drawn(2, 5, 4).bfloat16()
    with mode.reproducible(strict=True):
        found = [listed(x) @ y, listed(x).to_dense()]
        wide = [listed(x.float()) @ y.float(), listed(x.float()).to_dense()]
    assert all(f.dtype == torch.bfloat16 and torch.equal(f, w.bfloat16()) for f, w in zip(found, wide, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_what_has_no_route_is_in_the_report() -> None:
    with mode.reproducible() as report:
        y = listed(drawn(1, 4, 4).double()) @ drawn(2, 5, 4).double()
    assert report.left == ("addmm",) and torch.equal(y, listed(drawn(1, 4, 4).double()) @ drawn(2, 5, 4).double())
    with mode.reproducible() as report, pytest.raises(RuntimeError, match="size"):
        listed(drawn(1, 4, 4)) @ drawn(2, 3, 4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("optimiser", ["SparseAdam", "SGD", "Adagrad"])
@pytest.mark.parametrize("layer", ["sum", "mean", "rows"])
def test_training_with_sparse_gradients(optimiser: str, layer: str) -> None:
    """Steps are those of dense gradients where these touch the same rows, and padding keeps its row."""
    index, offsets = torch.tensor([1, 4, 4, 0, 2, 4, 2]), torch.tensor([0, 2, 3])

    def train(sparse: bool) -> Any:
        torch.manual_seed(0)
        weight = torch.nn.Parameter(drawn(3, 5, 3))
        step = getattr(torch.optim, "Adam" if optimiser == "SparseAdam" and not sparse else optimiser)([weight], lr=0.1)
        for _ in range(2):
            step.zero_grad()
            if layer == "rows":
                y = F.embedding(index, weight, padding_idx=0, sparse=sparse)
            else:
                y = F.embedding_bag(index, weight, offsets, mode=layer, padding_idx=0, sparse=sparse)
            y.square().sum().backward()
            step.step()
        return weight.detach()

    with mode.reproducible(strict=True):
        sparse, dense = train(True), train(False)
    assert torch.allclose(sparse, dense, rtol=1e-5, atol=1e-6)
    assert torch.equal(sparse[[0, 3]], drawn(3, 5, 3)[[0, 3]])
