"""Ways into a block that are not plain calls on plain tensors, and operators that need no route."""

import copy
import warnings
from typing import Any

import pytest

from tests.runtime.torch_cases import drawn, mode, torch

determined = pytest.importorskip("tlrt.torch.routes.determined")
routes = pytest.importorskip("tlrt.torch.routes.base")
nn, F = torch.nn, torch.nn.functional
aten = torch.ops.aten

STRIDES: dict[str, Any] = {
    "softmax of rows": lambda x: F.softmax(x, 1).view(-1),
    "log_softmax of columns": lambda x: F.log_softmax(x, 0).view(-1),
    "exp of a transpose": lambda x: torch.exp(x[0].T).T.view(-1),
    "gelu of channels last": lambda x: F.gelu(last(x)).permute(0, 2, 3, 1).view(-1, 4),
    "convolution of channels last": lambda x: F.conv2d(last(x), torch.ones(3, 4, 1, 1)).permute(0, 2, 3, 1).view(-1, 3),
    "pool of channels last": lambda x: F.avg_pool2d(last(x), 2).permute(0, 2, 3, 1).view(-1, 4),
    "interpolation of channels last": lambda x: F.interpolate(last(x), size=3, mode="bilinear").permute(0, 2, 3, 1).view(-1, 4),
    "index_add of columns": lambda x: x.index_add(1, torch.tensor([0]), torch.ones(2, 1, 4)).view(-1),
    "scatter_add of a transpose": lambda x: x[0].T.scatter_add(0, torch.tensor([[0, 0, 1]]), torch.ones(1, 3)).view(-1),
    "sort of a transpose": lambda x: x[0].T.sort(0)[0].T.view(-1),
    "attention": lambda x: attention(x[None]).view(-1),
    "attention of heads side by side": lambda x: attention(x[None].transpose(1, 2)).transpose(1, 2).view(-1),
    "rms norm of channels last": lambda x: F.rms_norm(last(x), (2,)).permute(0, 2, 3, 1).view(-1, 4),
    "interpolation of one place of channels last": lambda x: F.interpolate(last(x)[:, :, :1, :1].contiguous(
        memory_format=torch.channels_last), size=3, mode="bilinear").permute(0, 2, 3, 1).view(-1, 4),
}  # fmt: skip


def attention(x: Any, **how: Any) -> Any:
    return F.scaled_dot_product_attention(x, x, x, **how)


def flexible(x: Any) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(x, x, x, lambda score, b, h, i, j: score + 0.1 * (i - j))


def last(x: Any) -> Any:
    return x[:, :2, :, None].repeat(1, 1, 1, 2).permute(0, 2, 1, 3).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("case", STRIDES)
def test_results_have_pytorchs_strides(case: str) -> None:
    x = drawn(1, 2, 3, 4)
    expected = STRIDES[case](x)
    with mode.reproducible():
        assert STRIDES[case](x).shape == expected.shape


def nested_layers(x: Any, layout: Any) -> Any:
    """A linear layer, dropout of all and a norm."""
    given = torch.nested.nested_tensor([x, x[:2]], layout=layout)
    y = F.linear(given, x, x[0]) + F.dropout(F.linear(given, x), 1.0)
    return torch.nested.to_padded_tensor(nn.LayerNorm(3)(y), 0.0)


def _filled(m: Any) -> Any:
    for k, p in enumerate(m.requires_grad_(False).parameters()):
        p.copy_(drawn(k, *p.shape))
    return m


DOORS: dict[str, Any] = {
    "labels of uint8": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2], dtype=torch.uint8)),
    "jacrev": lambda x: torch.func.jacrev(torch.tanh)(x),
    "jacrev of gelu": lambda x: torch.func.jacrev(F.gelu)(x),
    "hessian": lambda x: torch.func.hessian(lambda a: torch.tanh(a).sum())(x[0]),
    "vmap": lambda x: torch.func.vmap(lambda a: attention(a, is_causal=True, scale=0.3))(x.expand(2, 1, 2, 3, 3)),
    "vmap of index_add": lambda x: torch.func.vmap(lambda a: a.index_add(0, torch.tensor([0, 0]), a[:2]))(x),
    "out of another shape": lambda x: torch.exp(x, out=torch.empty(0)) + torch.mm(x, x, out=torch.empty(0)),
    "a sum into out": lambda x: torch.sum(x, 0, out=torch.empty(0)),
    "scatter_add into out": lambda x: torch.scatter_add(x, 0, torch.tensor([[0, 0, 1]]), x, out=torch.empty(0)),
    "topk into out": lambda x: torch.topk(x, 2, out=(torch.empty(0), torch.empty(0, dtype=torch.long)))[0],
    "avg_pool into out": lambda x: aten.avg_pool2d.out(x[None], [2, 2], [1, 1], [0, 0], True, out=torch.empty(0)),
    "sparse": lambda x: torch.sparse.mm(x.relu().to_sparse(), x) + torch.sparse.sum(x.to_sparse(), 0).to_dense(),
    "csr": lambda x: x.relu().to_sparse_csr() @ x,
    "nested": lambda x: torch.nested.to_padded_tensor(F.relu(torch.nested.nested_tensor([x, x[:2]])), 0.0),
    "layers on nested tensors": lambda x: nested_layers(x, torch.strided),
    "layers on jagged tensors": lambda x: nested_layers(x, torch.jagged),
    "attention with a function of its scores": lambda x: flexible(x.repeat(1, 1, 6, 6)),
    "a branch": lambda x: torch.cond(x.sum() > 0, torch.exp, torch.sin, (x,)),
    "powers of mixed types": lambda x: x.abs().pow(torch.tensor([1, 2, 3])) + x.abs().double() ** x.abs(),
    "powers of whole numbers": lambda x: torch.tensor([1, 2, 3]) ** x + torch.tensor([2, 3, 4]) ** 2,
    "sums into integers": lambda x: sum(
        f(2 * x, 0, out=torch.empty(x.shape[1:] if f is torch.sum else x.shape, dtype=torch.long)).double()
        for f in (torch.sum, torch.cumsum, torch.cumprod)),
    "a median of nothing": lambda x: x[:0].view(0, 3, 3).median(1)[0] + x[:0].view(0, 3, 3).nanmedian(1)[0],
    "a negative correction": lambda x: x.var(0, correction=-1) + x.std(0, correction=-2) + torch.std_mean(x, correction=-1)[0],
    "a negative eps": lambda x: sum(
        f(9 * x, (3,), eps=-0.01) for f in (F.layer_norm, F.rms_norm)) + F.group_norm(9 * x, 1, eps=-0.01),
    "hypotenuses of infinity": lambda x: torch.hypot(torch.tensor([torch.inf, -torch.inf, 3]), torch.tensor([torch.nan, 1, 4])),
    "logit whose bounds cross": lambda x: torch.logit(x.sigmoid(), 0.6),
    "rms norm of the negative bit": lambda x: F.rms_norm(torch._neg_view(x), (3,)),
    "batch norm of the negative bit": lambda x: F.batch_norm(torch._neg_view(x), None, None, x[0], x[1], training=True),
    "an LSTM of the negative bit": lambda x: _filled(nn.LSTM(3, 2))(torch._neg_view(x))[0],
    "attention of an imaginary part": lambda x: attention(torch.complex(x, x).conj().imag[None]),
    "counts of nothing": lambda x: torch.bincount(torch.zeros(0, dtype=torch.long), x[0, :0], 3),
    "counts of small integers": lambda x: torch.bincount(torch.tensor([1, 2, 2], dtype=torch.uint8), x[0]),
    "a mask of uint8": lambda x: x.index_put((torch.tensor([1, 0, 1], dtype=torch.uint8),), x[:2], accumulate=True),
    "atan2 of mixed types": lambda x: torch.atan2(x, torch.tensor([1, 2, 3])) + torch.atan2(x.double(), x),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", DOORS)
def test_what_runs_outside_runs_inside(case: str) -> None:
    x = drawn(2, 3, 3)
    expected = DOORS[case](x)
    with mode.reproducible():
        found = DOORS[case](x)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_labels_of_uint8(reduction: str, weighted: bool) -> None:
    """They are labels, not a mask: of as many samples as classes, too."""
    for seed, n in ((1, 3), (2, 5)):
        x = drawn(seed, n, 3).requires_grad_()
        labels = torch.randint(3, (n,), generator=torch.Generator().manual_seed(seed))
        chosen = {"weight": drawn(seed + 1, 3).abs()} if weighted else {}
        for ignored in (-100, 1):
            results = []
            for kind in (torch.int64, torch.uint8):
                with mode.reproducible(strict=True):
                    y = F.cross_entropy(x, labels.to(kind), reduction=reduction, ignore_index=ignored, **chosen)
                    results.append((y, torch.autograd.grad(y.sum(), x)[0]))
            for mine, theirs in zip(*results, strict=True):
                assert torch.equal(mine, theirs) or (mine.isnan().all() and theirs.isnan().all())


@pytest.mark.parametrize("blocked", [-1e9, torch.finfo(torch.float32).min])
def test_gradients_of_attention_where_a_large_number_blocks_a_row(blocked: float) -> None:
    """PyTorch's own kernel of the CPU makes it as many times too large as there are keys."""
    v = torch.ones(1, 1, 5, 8, requires_grad=True)
    with mode.reproducible():
        F.scaled_dot_product_attention(
            torch.zeros(1, 1, 1, 8), v.detach(), v, torch.full((1, 5), blocked)
        ).sum().backward()
    assert torch.equal(v.grad, torch.full_like(v, 0.2))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, float("inf")])
def test_transforms_of_attention_and_distances(p: float) -> None:
    """PyTorch's own gradient of cdist under vmap is another sample's."""

    def distances(a: Any) -> Any:
        return torch.cdist(a, a + 0.5, p)

    x = drawn(1, 2, 1, 1, 3, 4)
    one, each = x[0, 0, 0], x[:, 0, 0]
    with mode.reproducible(strict=True):
        assert torch.allclose(torch.func.vmap(attention)(x), attention(x[:, 0])[:, None], 1e-5, 1e-6)
        rows = torch.autograd.functional.jacobian(distances, one)
        assert torch.allclose(torch.func.jacrev(distances)(one), rows, 1e-5, 1e-6)
        assert torch.allclose(torch.func.vmap(distances)(each), distances(each), 1e-5, 1e-6)


def test_strict_takes_operators_of_nothing() -> None:
    x = drawn(1, 2, 3, 4, 5)[:0]
    with mode.reproducible(strict=True) as report:
        for y in (F.interpolate(x, size=(3, 3), mode="bilinear"), F.adaptive_avg_pool2d(x, (2, 3)), x.double().cumsum(1),
                  F.grid_sample(x, torch.zeros(0, 2, 2, 2)), torch.special.bessel_j0(x)):  # fmt: skip
            assert not y.numel()
    assert report.left == ()


def test_models_are_exported_in_the_block() -> None:
    layer, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), drawn(2, 3, 3)
    with mode.reproducible():
        program = torch.export.export(layer, (x,))
        found = program.module()(x)
    assert torch.allclose(found, layer(x), rtol=1e-5, atol=1e-6)


def test_fake_tensors_pass_through_the_block() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = drawn(2, 3, 3)
    with mode.reproducible(), FakeTensorMode(allow_non_fake_inputs=True):
        y = F.avg_pool2d(
            (x @ torch.ones(3, 3)).index_add(0, torch.zeros(1, dtype=torch.long), torch.ones(1, 3))[None], 2
        )
    assert y.shape == (1, 1, 1)


def test_a_checkpoint_is_computed_again_after_the_block() -> None:
    from torch.utils.checkpoint import checkpoint

    x = drawn(2, 3, 3).requires_grad_()
    with mode.reproducible():
        y = checkpoint(lambda a: torch.tanh(a @ a), x, use_reentrant=False)
    y.sum().backward()
    again = x.detach().clone().requires_grad_()
    torch.tanh(again @ again).sum().backward()
    assert torch.allclose(x.grad, again.grad, rtol=1e-5, atol=1e-6)


# ---- what needs no route ------------------------------------------------------------------------------------------------------


def _value(argument: Any, k: int) -> Any:
    """A small operand for an argument of a schema."""
    kind, name = str(argument.type), argument.name
    if "Tensor" in kind:
        if name in ("index", "indices", "repeats"):
            t = torch.zeros(4, dtype=torch.long)
        elif name == "mask" or name == "condition":
            t = torch.eye(4, dtype=torch.bool)
        else:
            t = drawn(k, 4, 4)
        return [t] if "List" in kind else t
    sizes = {"List[int]": [1, 1], "int": 1, "float": 0.5, "number": 0.5, "bool": False, "Optional[float]": None}
    return sizes.get(kind)


@pytest.mark.filterwarnings("ignore")
def test_operators_that_are_determined_leave_nothing() -> None:
    """Each is drawn with small operands; those whose arguments fit are run, and none is named as left. Results are those of
    float64 rounded once."""
    ran = set()
    for name in sorted(determined.DETERMINED):
        packet = getattr(aten, name, None)
        for overload in () if packet is None else packet.overloads():
            operator = getattr(packet, overload)
            arguments = operator._schema.arguments
            if any(a.is_out for a in arguments) or not any("Tensor" in str(a.type) for a in arguments):
                continue
            given = [_value(a, k) for k, a in enumerate(arguments) if not a.kwarg_only and not a.has_default_value()]
            with mode.reproducible() as report:
                wide = [x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in copy.deepcopy(given)]
                try:
                    found = operator(*given)
                except Exception:
                    continue
            assert report.left == (), operator
            ran.add(name)
            if "empty" in name or name in ("nextafter", "ldexp", "leaky_relu", "view_copy"):
                continue
            exact = operator(*wide)
            for mine, e in zip(*(routes.tensors_of(routes._listed(r)) for r in (found, exact)), strict=True):
                if mine.layout == torch.strided:
                    assert torch.equal(mine.nan_to_num(9), e.to(mine.dtype).nan_to_num(9)), operator
    assert len(ran) > 120, sorted(determined.DETERMINED - ran)


MOVES: dict[str, Any] = {
    "as_strided_": lambda x: x.as_strided_((2, 3), (6, 1)),
    "unsafe_split": lambda x: aten.unsafe_split(x, 2)[0],
    "transpose_": lambda x: x.transpose_(0, 1),
    "squeeze_ and unsqueeze_": lambda x: x.unsqueeze_(0).squeeze_(0),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.view(1, 4, 3, 3), 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x.view(1, 4, 3, 3), 2),
    "reflection pad": lambda x: F.pad(x[None], (1, 1), mode="reflect"),
    "replication pad": lambda x: F.pad(x[None], (1, 1), mode="replicate"),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "unfold of images": lambda x: F.unfold(x[None, None], 2),
    "nan_to_num": lambda x: x.nan_to_num(),
    "median": lambda x: x.median() + x.median(0)[0],
    "cummax": lambda x: x.cummax(0)[0] + x.cummin(1)[0],
    "aminmax": lambda x: x.aminmax()[0],
    "threshold": lambda x: F.threshold(x, 0.1, 20),
    "prelu": lambda x: F.prelu(x, x[0, :1]),
    "adaptive_max": lambda x: F.adaptive_max_pool2d(x[None], 2),
    "diag_embed": lambda x: x.diag_embed(),
    "fmod": lambda x: x.fmod(0.7),
}


@pytest.mark.parametrize("case", MOVES)
def test_strict_takes_what_moves_or_chooses(case: str) -> None:
    with warnings.catch_warnings(), mode.reproducible(strict=True) as report:
        warnings.simplefilter("ignore")
        found = MOVES[case](drawn(3, 6, 6))
    assert report.left == () and torch.equal(found, MOVES[case](drawn(3, 6, 6)))


def numbers() -> Any:
    return torch.tensor([1, 2, 3])


TYPES: dict[str, Any] = {
    "exp of integers": lambda x: numbers().exp(),
    "a root of booleans": lambda x: (x > 0).sqrt(),
    "powers of integers": lambda x: numbers() ** 0.3 + 2.5 ** numbers(),
    "sums of integers": lambda x: numbers().sum(dtype=torch.float32) + torch.logsumexp(numbers(), 0),
    "softmax of integers": lambda x: numbers().softmax(0, dtype=torch.float32),
    "float32 beside float16": lambda x: torch.addcmul(x, x, x.half()),
    "a loss of float16 and float32": lambda x: F.mse_loss(x.half(), x + 1),
    "add_ of float64": lambda x: x.clone().add_(x.double(), alpha=0.5),
    "trace": lambda x: x.trace(),
    "a norm over nothing": lambda x: F.layer_norm(x[:, :0], (0,)),
}


@pytest.mark.parametrize("case", TYPES)
def test_types_are_those_of_pytorch(case: str) -> None:
    expected = TYPES[case](drawn(4, 4, 4))
    with mode.reproducible() as report:
        found = TYPES[case](drawn(4, 4, 4))
    torch.testing.assert_close(found, expected, check_stride=True)
    assert report.left == (), report


def test_what_pytorch_computes_of_complex_numbers_is_named() -> None:
    c = torch.complex(drawn(5, 2, 2).double(), drawn(6, 2, 2).double())
    cases = {
        "mul_": lambda: c.clone().mul_(c), "mul": lambda: torch.mul(c, c, out=torch.empty_like(c)),
        "div_": lambda: c.clone().div_(c), "reciprocal_": lambda: c.clone().reciprocal_(), "sgn_": lambda: c.clone().sgn_(),
        "abs": lambda: torch.abs(c, out=torch.empty(2, 2).double()), "angle": lambda: c.angle(),
    }  # fmt: skip
    for name, case in cases.items():
        with mode.reproducible() as report:
            case()
        assert report.left == (name,)


REFUSED: dict[str, Any] = {
    "an input larger than a product": lambda x: torch.addmm(torch.ones(2, 4, 4), x, x),
    "an input larger than a batch": lambda x: torch.baddbmm(torch.ones(2, 4, 4), x[None], x[None]),
    "a matrix beside a vector": lambda x: torch.addmv(torch.ones(4, 4), x, x[0]),
    "float32 into integers": lambda x: torch.exp(x, out=torch.empty(4, 4, dtype=torch.int32)),
    "indices of uint8": lambda x: x.scatter_add(0, torch.zeros(1, 4, dtype=torch.uint8), x),
    "an index without axes": lambda x: x.scatter(1, torch.tensor(1), torch.ones(())),
    "gelu by another way": lambda x: F.gelu(x, approximate="sigmoid"),
    "a range that ends before it begins": lambda x: x.uniform_(2, 1),
    "a mean of integers": lambda x: x.mean(dtype=torch.long),
    "Huber without a bound": lambda x: F.huber_loss(x, -x, delta=0.0),
    "a negative bound": lambda x: F.smooth_l1_loss(x, -x, beta=-1.0),
    "labels of int32": lambda x: F.multi_margin_loss(x, torch.zeros(4, dtype=torch.int32)),
    "labels of two axes": lambda x: F.multi_margin_loss(x, torch.zeros(2, 2, dtype=torch.long)),
    "lists of labels of another shape": lambda x: F.multilabel_margin_loss(x, torch.zeros(4, 3, dtype=torch.long)),
    "a norm of no axes": lambda x: torch.native_layer_norm(x, [], None, None, 1e-5),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_pytorch_refuses_is_refused(case: str) -> None:
    with pytest.raises(RuntimeError):
        REFUSED[case](drawn(8, 4, 4))
    with mode.reproducible(), pytest.raises(RuntimeError):
        REFUSED[case](drawn(8, 4, 4))


def test_binary_functions_keep_the_strides_of_the_first_of_their_shape() -> None:
    x = drawn(9, 3, 4).abs().T
    cases = [torch.atan, torch.asin, torch.exp2, lambda a: torch.atan2(a, a), lambda a: a**a]
    cases += [lambda a: torch.atan2(a[:, :1], a), lambda a: torch.exp(a.T[:, 1:])]
    for case in cases:
        with mode.reproducible():
            found = case(x)
        assert found.stride() == case(x).stride()
