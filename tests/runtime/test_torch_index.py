"""Indices, scatters and sorts in a block: every result is defined, whatever is named twice or ties."""

import contextlib
import itertools
from typing import Any

import pytest

from tests.runtime.torch_cases import check_route, drawn, mode, torch

F = torch.nn.functional
aten = torch.ops.aten


def L(*values: Any) -> Any:
    return torch.tensor(values)


ROWS = L(0, 2, 2, 0, 3)
PLACES = torch.tensor([[0, 2, 2, 1], [3, 2, 0, 1], [0, 0, 2, 1]])

#: of tensors (5, 4) and (5, 4)
SUMS: dict[str, Any] = {
    "scatter_add": lambda x, v: x.scatter_add(0, PLACES, v[:3]),
    "scatter_add of columns": lambda x, v: x.scatter_add(-1, PLACES[:, :3] % 4, v[:3, :3]),
    "scatter_add with one index for each row": lambda x, v: x.scatter_add(0, ROWS[:, None].expand(5, 4), v),
    "scatter_add in place": lambda x, v: x.clone().scatter_add_(0, PLACES, v[:3]),
    "scatter_add of fewer than the values": lambda x, v: x.detach().scatter_add(0, PLACES[:, :3], v.detach()),
    "scatter_add of numbers": lambda x, v: x[0, 0].scatter_add(0, torch.tensor(0), v[0, 0]),
    "scatter by add": lambda x, v: x.detach().scatter(0, PLACES, v.detach(), reduce="add"),
    "scatter by multiply": lambda x, v: x.detach().scatter(0, PLACES, v.detach(), reduce="multiply"),
    "scatter a number by add": lambda x, v: x.detach().scatter(0, PLACES, 1.5, reduce="add"),
    "index_add": lambda x, v: x.index_add(0, ROWS, v),
    "index_add of columns": lambda x, v: x.index_add(1, ROWS[:4] % 4, v, alpha=0.3),
    "index_add in place": lambda x, v: x.clone().index_add_(0, ROWS, v, alpha=0.3),
    "index_add of few rows": lambda x, v: x.clone().index_add_(0, L(3, 3), v[:2], alpha=0.3),
    "index_add with int32": lambda x, v: x.index_add(0, ROWS.int(), v),
    "index_put": lambda x, v: x.index_put((ROWS, L(0, -1, 3, 0, 1)), v[:, 0], accumulate=True),
    "index_put of rows": lambda x, v: x.index_put((L(0, 4, -1, 0),), v[:4], accumulate=True),
    "index_put of columns": lambda x, v: aten.index_put(x, [None, L(0, 2, -2)], v[:, :3], True),
    "index_put of a mask": lambda x, v: x.index_put((ROWS > 0,), v[:3], accumulate=True),
    "index_put with a mask beside": lambda x, v: x.index_put((ROWS > 0, L([1], [-3])), v[:2, :3], accumulate=True),
    "index_put around an axis": lambda x, v: aten.index_put(
        x[None].repeat(2, 1, 1), [L(0, 0, 1), None, L(1, 1, 2)], v[:, :3].T, True),
    "index_put of a number": lambda x, v: x.index_put((ROWS, ROWS), v[0, 0], accumulate=True),
    "put": lambda x, v: x.put(L(3, 3, -1, 19), v[0], accumulate=True),
    "put of one": lambda x, v: x.put(L(-3), v[0, :1], accumulate=True),
    "index_put around two axes": lambda x, v: aten.index_put(
        x.view(5, 2, 2), [None, L(1, 0, 1), None], v[:, :3, None].expand(5, 3, 2), True),
    "gather": lambda x, v: x.gather(0, PLACES) * v[:3],
    "take": lambda x, v: x.take(L(3, 3, -1, 19)) * v[0],
    "index": lambda x, v: x[[0, 0, 2]] * v[:3],
    "index_select": lambda x, v: x.index_select(1, L(1, 1, 3)) * v[:, :3],
    "repeat_interleave": lambda x, v: x.repeat_interleave(L(1, 0, 2, 1, 1), 0) * v,
    "as_strided": lambda x, v: x.as_strided((4, 4), (1, 2)) * v[:4],
    "unfold": lambda x, v: x.unfold(0, 3, 1) * v[:3, :, None],
    "bincount": lambda x, v: torch.bincount(ROWS, v[:, 0].detach(), 7).to(v.dtype),
}  # fmt: skip
for how in ("sum", "mean", "prod", "amax", "amin"):
    for include in (True, False):
        SUMS[f"scatter_reduce {how} {include}"] = lambda x, v, how=how, include=include: x.scatter_reduce(
            0, PLACES, v[:3], how, include_self=include
        )
        if how != "sum":
            SUMS[f"index_reduce {how} {include}"] = lambda x, v, how=how, include=include: x.index_reduce(
                0, ROWS, v, how, include_self=include
            )
#: the last of equal indices writes
WRITES: dict[str, Any] = {
    "index_put": lambda x, v: x.index_put((L(0, 2, -5, 2), L(0, 1, 0, -3)), v[0]),
    "index_put of rows": lambda x, v: x.index_put((ROWS,), v),
    "index_put of columns": lambda x, v: aten.index_put(x, [None, L(0, 2, -2)], v[:, :3]),
    "index_copy": lambda x, v: x.index_copy(0, ROWS, v),
    "index_copy of columns": lambda x, v: x.index_copy(1, L(1, 1, 0), v[:, :3]),
    "scatter": lambda x, v: x.scatter(0, PLACES, v[:3]),
    "scatter of columns": lambda x, v: x.scatter(1, PLACES % 4, v[:3]),
    "scatter of fewer than the values": lambda x, v: x.detach().scatter(0, PLACES[:, :3], v.detach()),
    "put": lambda x, v: x.put(L(3, 3, -17, 19), v[0]),
    "index_fill": lambda x, v: x.index_fill(0, ROWS, 2.0) * v,
    "masked_scatter": lambda x, v: x.masked_scatter(x.detach() > 0, v),
    "scatter a number": lambda x, v: x.scatter(0, PLACES, 2.0) * v,
    "max_unpool": lambda x, v: F.max_unpool1d(x[None], L(0, 1, 3, 2).expand(1, 5, 4), 2, output_size=(8,))[0, :, :4] * v,
    "max_unpool3d": lambda x, v: F.max_unpool3d(
        x.view(1, 1, 5, 2, 2), torch.arange(20).flip(0).view(1, 1, 5, 2, 2) * 2, 2, output_size=(10, 4, 4))[0, 0, :5, 1, :] * v,
    "_unique": lambda x, v: aten._unique(ROWS.to(x), False)[0] * v[0, :3],
    "sort": lambda x, v: x.sort(0)[0] * v,
    "topk": lambda x, v: x.topk(2, 1, largest=False)[0] * v[:, :2],
    "kthvalue": lambda x, v: x.kthvalue(2, 0)[0] * v[0],
    "median": lambda x, v: x.median(1)[0] * v[:, 0] + x.nanmedian(1)[0],
    "mode": lambda x, v: x.mode(1)[0] * v[:, 0],
    "cummax": lambda x, v: x.cummax(0)[0] * v,
}  # fmt: skip


@pytest.mark.parametrize("case", SUMS)
def test_sums_at_indices(case: str) -> None:
    check_route(SUMS[case], [drawn(1, 5, 4), drawn(2, 5, 4)])


@pytest.mark.parametrize("case", WRITES)
def test_writes_and_choices(case: str) -> None:
    check_route(WRITES[case], [drawn(1, 5, 4), drawn(2, 5, 4)])


#: what works along one axis, of a tensor and the axis
ALONG: dict[str, Any] = {
    **{name: lambda x, a, name=name: getattr(x, name)(a) for name in (
        "sort", "argsort", "median", "nanmedian", "mode", "cummax", "cummin", "max", "min", "argmax", "argmin", "cumsum",
        "cumprod", "logcumsumexp", "softmax", "log_softmax", "logsumexp", "sum", "mean", "prod", "var", "std", "unbind")},
    "unfold": lambda x, a: x.unfold(a, 2, 1), "unfold with gaps": lambda x, a: x.unfold(a, 1, 2), "glu": lambda x, a: F.glu(
        torch.cat([x, x.exp()], a), a), "trapezoid": lambda x, a: torch.trapezoid(x, dim=a),
    "topk": lambda x, a: x.topk(2, a), "kthvalue": lambda x, a: x.kthvalue(2, a, True),
    "diff": lambda x, a: x.diff(dim=a), "norm": lambda x, a: torch.linalg.vector_norm(x, 3, a), "flip": lambda x, a: x.flip(a),
    "index_select": lambda x, a: x.index_select(a, L(1, 0, 1)), "index_add": lambda x, a: x.index_add(a, L(1), x.narrow(a, 0, 1)),
    "index_copy": lambda x, a: x.index_copy(a, L(1), x.narrow(a, 0, 1)), "gather": lambda x, a: x.gather(a, (x > 0).long()),
    "scatter_add": lambda x, a: x.scatter_add(a, (x > 0).long(), x),
    **{f"{how} at places": lambda x, a, how=how: x.scatter_reduce(a, (x.narrow(a, 0, 1) > 0).long(), x.narrow(a, 0, 1), how)
       + x.index_reduce(a, L(1), x.narrow(a, 0, 1), how) for how in ("prod", "mean")},
    "repeat": lambda x, a: x.repeat_interleave(L(2), a),
    "renorm": lambda x, a: x.renorm(2, a, 1.0), "normalize": lambda x, a: F.normalize(x, dim=a),
}  # fmt: skip


@pytest.mark.parametrize("case", ALONG)
def test_each_axis_of_three_is_pytorchs(case: str) -> None:
    """Counted from the first and from the last; values, places, their order of axes, and gradients."""
    forms = ((2, 3, 4), torch.float32), ((3, 4, 4), torch.float32), ((2, 3, 4), torch.float64)
    for (shape, kind), axis in itertools.product(forms, range(-3, 3)):
        runs = []
        for block in (mode.reproducible(), contextlib.nullcontext()):
            x = drawn(7, *shape).to(kind).requires_grad_()
            with block:
                results = ALONG[case](x, axis)
                ends = [y for y in (results if isinstance(results, tuple) else (results,)) if y.requires_grad]
                along = [drawn(8, *y.shape).to(kind) for y in ends]
                runs.append((results, torch.autograd.grad(ends, x, along) if ends else ()))
        torch.testing.assert_close(*runs)


@pytest.mark.parametrize("dim", range(3))
@pytest.mark.parametrize("repeated", [c for n in range(4) for c in itertools.combinations(range(3), n)], ids=str)
def test_an_index_that_repeats_is_that_of_all_its_numbers(dim: int, repeated: tuple[int, ...]) -> None:
    """Along any of its axes, of stride 0 or of length 1."""
    x, v = drawn(1, 3, 4, 5), drawn(2, 3, 4, 5)
    index = torch.arange(60).view(3, 4, 5) * 7 % x.shape[dim]
    for axis in repeated:
        index = index.narrow(axis, 0, 1)
    index = index.expand(3, 4, 5)
    calls = [
        lambda i: x.scatter_add(dim, i, v),
        lambda i: x.gather(dim, i),
        lambda i: x.scatter(dim, i, v),
        lambda i: x.scatter_reduce(dim, i, v, "mean"),
        lambda i: torch.autograd.grad(y.gather(dim, i), y, v)[0],
    ]
    with mode.reproducible(strict=True):
        y = x.clone().requires_grad_()
        assert all(torch.equal(call(index), call(index.contiguous())) for call in calls)


def test_any_axes_may_be_indexed() -> None:
    """Every choice of indexed axes among four, by indices that broadcast and by a mask: read, written, and added to."""
    x, columns = drawn(1, 3, 4, 3, 4), (L(0, 2), L([1], [0]), torch.tensor([True, False, True]), L(1))
    for chosen in itertools.product((False, True), repeat=4):
        places = [c if is_chosen else None for c, is_chosen in zip(columns, chosen, strict=True)]
        if not any(chosen):
            continue
        wanted = aten.index(x, places)
        v = drawn(2, *wanted.shape)
        for compute in (
            lambda p=places: aten.index(x, p),
            lambda p=places, v=v: aten.index_put(x, p, v, False),
            lambda p=places, v=v: aten.index_put(x, p, v, True),
            lambda p=places, v=v: aten.index_put_(x.clone(), p, v[..., :1], True),
        ):
            with mode.reproducible(strict=True):
                found = compute()
            torch.testing.assert_close(found, compute(), msg=str(chosen))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_the_last_of_equal_indices_writes(kind: Any) -> None:
    index = torch.randint(0, 50, (4000,), generator=torch.Generator().manual_seed(0))
    values = (torch.arange(4000) % 251).to(kind)
    expected = torch.zeros(50, dtype=kind)
    for i, v in zip(index.tolist(), values, strict=True):
        expected[i] = v
    target = torch.zeros(50, dtype=kind)
    with mode.reproducible(strict=True):
        found = [
            target.index_put((index,), values), target.scatter(0, index, values), target.put(index, values),
            target.index_copy(0, index, values), target.clone().index_put_((index - 50,), values),
            target.clone().scatter_(0, index, values), target.clone().index_copy_(0, index, values),
        ]  # fmt: skip
    assert all(torch.equal(f, expected) for f in found)


def test_few_rows_of_a_large_tensor_are_written_without_a_copy() -> None:
    cache, rows = torch.zeros(200_000, 64), torch.ones(2, 64)
    with torch.profiler.profile(profile_memory=True) as profile, mode.reproducible(strict=True):
        cache.index_copy_(0, L(5, 5), rows)
        cache[L(6, 6)] = rows
        cache.index_add_(0, L(7, 7), rows)
        cache.index_put_((L(8, 8),), rows, accumulate=True)
    assert cache[5:9, 0].tolist() == [1, 1, 2, 2] and cache.sum() == 6 * 64
    assert sum(max(e.cpu_memory_usage, 0) for e in profile.events()) < cache.nbytes / 100


WRONG: dict[str, Any] = {
    "scatter_add": lambda z: z.scatter_add(1, L([4]), torch.ones(1, 1)),
    "scatter_add of a negative index": lambda z: z.scatter_add(1, L([0], [-1]), torch.ones(2, 1)),
    "scatter_add of more than the values": lambda z: z.scatter_add(1, L([0, 1]), torch.ones(1, 1)),
    "index_add": lambda z: z.index_add(0, L(2**32), torch.ones(1, 3)),
    "index_add of a negative index": lambda z: z.index_add(0, L(-1), torch.ones(1, 3)),
    "index_add in place": lambda z: z.index_add_(0, L(2), torch.ones(1, 3)),
    "index_add of another shape": lambda z: z.index_add(0, L(0, 1), torch.ones(1, 3)),
    "index_put": lambda z: z.index_put((L(0, 0), L(4, 4)), torch.ones(2), accumulate=True),
    "index_put that writes": lambda z: z.index_put((L(0, 0), L(4, 4)), torch.ones(2)),
    "index_put of another shape": lambda z: z.index_put((L(0, 0),), torch.ones(2, 2)),
    "index_put of a mask": lambda z: z.index_put((torch.ones(3, dtype=torch.bool),), torch.ones(3, 3)),
    "index_copy": lambda z: z.index_copy(0, L(0, 2), torch.ones(2, 3)),
    "index_reduce": lambda z: z.index_reduce(0, L(0, -1), torch.ones(2, 3), "mean"),
    "scatter": lambda z: z.scatter(1, L([0, 3]), torch.ones(1, 2)),
    "scatter_reduce": lambda z: z.scatter_reduce(1, L([0, 3]), torch.ones(1, 2), "mean"),
    "put": lambda z: z.put(L(0, 6), torch.ones(2)),
    "put that adds": lambda z: z.put(L(0, -7), torch.ones(2), accumulate=True),
    "an axis": lambda z: z.index_add(2, L(0), torch.ones(1, 3)),
    "topk": lambda z: z.topk(4),
    "kthvalue": lambda z: z.kthvalue(0),
    "multinomial": lambda z: torch.multinomial(z, 1),
    "random_": lambda z: z.random_(3, 3),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_errors_are_pytorchs(case: str) -> None:
    with pytest.raises(Exception) as plain:
        WRONG[case](torch.zeros(2, 3))
    with pytest.raises(plain.type), mode.reproducible():
        WRONG[case](torch.zeros(2, 3))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64])
def test_equal_elements_keep_their_order(kind: Any) -> None:
    x = torch.randint(-2, 3, (4, 1000), generator=torch.Generator().manual_seed(1)).to(kind)
    if kind != torch.int64:
        x[0, 5:900:3], x[1] = -torch.nan, torch.nan
    for descending in (False, True):
        expected = x.sort(dim=1, descending=descending, stable=True)[1]
        with mode.reproducible(strict=True):
            assert torch.equal(x.sort(1, descending)[1], expected) and torch.equal(x.argsort(1, descending), expected)
            values, places = x.topk(700, 1, largest=descending)
        assert torch.equal(places, expected[:, :700]) and torch.equal(
            values.nan_to_num(), x.gather(1, places).nan_to_num()
        )
    ascending = x.sort(dim=1, stable=True)[1]
    with mode.reproducible(strict=True):
        found = x.kthvalue(100, 1, keepdim=True)[1], x.median(1)[1], x.nanmedian(1)[0], x.mode(1)[0]
        into = torch.median(x, 1, out=(torch.empty(0, dtype=kind), torch.empty(0, dtype=torch.long)))
    assert torch.equal(found[0], ascending[:, 99:100])
    assert torch.equal(into[1], found[1])
    assert torch.equal(x.gather(1, found[1][:, None]).nan_to_num(), x.median(1)[0][:, None].nan_to_num())
    if kind != torch.int64:
        assert found[1][:2].tolist() == [5, 0]
    assert torch.equal(found[2].nan_to_num(), x.nanmedian(1)[0].nan_to_num())
    assert torch.equal(found[3][2:], x.mode(1)[0][2:])


def test_modes_stand_last() -> None:
    with mode.reproducible(strict=True):
        values, places = L([3, 1, 3, 1, 2], [2, 2, 2, 0, 0]).mode(1)
        single = torch.tensor(4.0).mode(), torch.tensor(4.0).median(0), torch.tensor(4.0).kthvalue(1)
    assert values.tolist() == [1, 2] and places.tolist() == [3, 2]
    assert all(v == 4 and i == 0 and v.shape == i.shape == () for v, i in single)
