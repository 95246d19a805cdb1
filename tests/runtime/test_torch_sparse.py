"""Operators on sparse tensors in a block. Operands and results are dense, as others are."""

from typing import Any

import pytest

from tests.runtime.torch_cases import check_route, drawn

torch = pytest.importorskip("torch")
mode = pytest.importorskip("tlrt.torch.mode")
F = torch.nn.functional

#: where the entries of a list are: two of them at one place, and one place of each row empty
PLACES = torch.tensor([[0, 1, 0, 1, 3, 2, 3, 3], [2, 0, 2, 3, 1, 1, 0, 1]])


def listed(x: Any) -> Any:
    """A matrix of 4 x 4 with duplicates, of the first numbers of x."""
    return torch.sparse_coo_tensor(PLACES, x.flatten()[:8], (4, 4))


def rows(x: Any) -> Any:
    """A list of rows, two of them at one place."""
    return torch.sparse_coo_tensor(torch.tensor([[0, 2, 1, 2]]), x, (4, 4))


def batches(x: Any) -> Any:
    return torch.sparse_coo_tensor(
        torch.cat([torch.tensor([[0, 1, 0, 1, 0, 1, 1, 0]]), PLACES]), x.flatten()[:8], (2, 4, 4)
    )


def stored(x: Any) -> Any:
    """The dense matrix of what is stored, and 0 elsewhere."""
    return x.coalesce().to_dense() if x.layout == torch.sparse_coo else x.to_dense()


#: of two tensors (4, 4)
ROUTES: dict[str, Any] = {
    "duplicates": lambda x, y: listed(x).coalesce().values() * y[0, 0],
    "duplicates in a dense matrix": lambda x, y: listed(x).to_dense() * y,
    "rows in a dense matrix": lambda x, y: rows(x).to_dense() * y,
    "torch.sparse.mm": lambda x, y: torch.sparse.mm(listed(x), y),
    "@": lambda x, y: listed(x) @ y,
    "a vector": lambda x, y: listed(x) @ y[0],
    "transposed": lambda x, y: listed(x).t() @ y,
    "into a sum": lambda x, y: torch.sparse.addmm(y, listed(x), y, beta=0.5, alpha=2.0),
    "of two": lambda x, y: stored(torch.sparse.mm(listed(x), listed(y))),
    "a sum": lambda x, y: stored(listed(x) + listed(y)),
    "a sum of sorted ones": lambda x, y: stored(listed(x).coalesce() + listed(y.t().contiguous()).coalesce()),
    "to a dense one": lambda x, y: torch.add(y, listed(x), alpha=-0.5),
    "a softmax": lambda x, y: stored(torch.sparse.softmax(listed(x), 1)) * y,
    "a softmax of columns": lambda x, y: stored(torch.sparse.log_softmax(listed(x), 0)) * y,
    "a softmax in rows": lambda x, y: stored(torch.sparse.softmax(rows(x), 1)) * y,
    "sums of rows": lambda x, y: stored(torch.sparse.sum(listed(x), 1)) * y[0],
    "products by element": lambda x, y: stored(listed(x).coalesce() * 3) * y,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ROUTES)
def test_lists_of_entries(case: str) -> None:
    check_route(ROUTES[case], [drawn(1, 4, 4), drawn(2, 4, 4)], order=1, one=False)


#: of two tensors (4, 4), without gradients of PyTorch's own
COMPRESSED: dict[str, Any] = {
    "rows": lambda x, y: x.relu().to_sparse_csr() @ y,
    "columns": lambda x, y: x.relu().to_sparse_csc() @ y,
    "behind a dense matrix": lambda x, y: x @ y.relu().to_sparse_csr(),
    "a vector": lambda x, y: torch.addmv(x[0], x.relu().to_sparse_csr(), y[0], beta=2.0, alpha=0.5),
    "into a sum": lambda x, y: torch.addmm(x, x.relu().to_sparse_csr(), y, beta=2.0, alpha=0.5),
    "of two": lambda x, y: stored(x.relu().to_sparse_csr() @ y.relu().to_sparse_csr()),
    "a sum": lambda x, y: stored(torch.add(x.relu().to_sparse_csr(), y.relu().to_sparse_csr(), alpha=0.5)),
    "to a dense one": lambda x, y: y + x.relu().to_sparse_csr(),
    "sampled": lambda x, y: stored(torch.sparse.sampled_addmm(x.relu().to_sparse_csr(), x, y, beta=0.5, alpha=2.0)),
    "batches": lambda x, y: torch.bmm(batches(x), y.expand(2, 4, 4)),
    "with a list of rows": lambda x, y: stored(torch.hspmm(listed(x), y)),
    "out": lambda x, y: torch.mm(listed(x), y, out=torch.empty(4, 4, dtype=y.dtype)),
    "in place": lambda x, y: y.clone().add_(listed(x)),
    "nothing": lambda x, y: torch.sparse_coo_tensor(PLACES[:, :0], x[0, :0], (4, 4)) @ y,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", COMPRESSED)
def test_compressed_rows(case: str) -> None:
    x, y = drawn(1, 4, 4), drawn(2, 4, 4)
    check_route(lambda *operands: COMPRESSED[case](*(v.detach() for v in operands)), [x, y], order=1, one=False)


@pytest.mark.filterwarnings("ignore")
def test_a_narrow_type_is_rounded_once() -> None:
    x, y = drawn(1, 4, 4).bfloat16(), drawn(2, 4, 4).bfloat16()
    with mode.reproducible(strict=True):
        found = [listed(x) @ y, listed(x).to_dense()]
        wide = [listed(x.float()) @ y.float(), listed(x.float()).to_dense()]
    assert all(f.dtype == torch.bfloat16 and torch.equal(f, w.bfloat16()) for f, w in zip(found, wide, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_what_has_no_route_is_in_the_report() -> None:
    with mode.reproducible() as report:
        y = listed(drawn(1, 4, 4).double()) @ drawn(2, 4, 4).double()
    assert report.left == ("addmm",) and torch.equal(y, listed(drawn(1, 4, 4).double()) @ drawn(2, 4, 4).double())
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
