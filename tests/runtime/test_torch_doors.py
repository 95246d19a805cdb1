"""Ways into a block that are not plain calls on plain tensors, and operators that need no route."""

import warnings
from typing import Any

import pytest

from tests.runtime.torch_cases import drawn, mode, torch

determined = pytest.importorskip("tlrt.torch.routes.determined")
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
}  # fmt: skip


def last(x: Any) -> Any:
    return x[:, :2, :, None].repeat(1, 1, 1, 2).permute(0, 2, 1, 3).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("case", STRIDES)
def test_results_have_pytorchs_strides(case: str) -> None:
    x = drawn(1, 2, 3, 4)
    expected = STRIDES[case](x)
    with mode.reproducible():
        assert STRIDES[case](x).shape == expected.shape


DOORS: dict[str, Any] = {
    "labels of uint8": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2], dtype=torch.uint8)),
    "jacrev": lambda x: torch.func.jacrev(torch.tanh)(x),
    "jacrev of gelu": lambda x: torch.func.jacrev(F.gelu)(x),
    "hessian": lambda x: torch.func.hessian(lambda a: torch.tanh(a).sum())(x[0]),
    "vmap": lambda x: torch.func.vmap(lambda a: F.scaled_dot_product_attention(*3 * [a]))(x.expand(2, 1, 2, 3, 3)),
    "vmap of index_add": lambda x: torch.func.vmap(lambda a: a.index_add(0, torch.tensor([0, 0]), a[:2]))(x),
    "out of another shape": lambda x: torch.exp(x, out=torch.empty(0)) + torch.mm(x, x, out=torch.empty(0)),
    "a sum into out": lambda x: torch.sum(x, 0, out=torch.empty(0)),
    "scatter_add into out": lambda x: torch.scatter_add(x, 0, torch.tensor([[0, 0, 1]]), x, out=torch.empty(0)),
    "topk into out": lambda x: torch.topk(x, 2, out=(torch.empty(0), torch.empty(0, dtype=torch.long)))[0],
    "avg_pool into out": lambda x: aten.avg_pool2d.out(x[None], [2, 2], [1, 1], [0, 0], True, out=torch.empty(0)),
    "sparse": lambda x: torch.sparse.mm(x.relu().to_sparse(), x) + torch.sparse.sum(x.to_sparse(), 0).to_dense(),
    "csr": lambda x: x.relu().to_sparse_csr() @ x,
    "nested": lambda x: torch.nested.to_padded_tensor(F.relu(torch.nested.nested_tensor([x, x[:2]])), 0.0),
    "powers of mixed types": lambda x: x.abs().pow(torch.tensor([1, 2, 3])) + x.abs().double() ** x.abs(),
    "powers of whole numbers": lambda x: torch.tensor([1, 2, 3]) ** x + torch.tensor([2, 3, 4]) ** 2,
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
    """Each is drawn with small operands; those whose arguments fit are run, and none is named as left."""
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
                try:
                    operator(*given)
                except Exception:
                    continue
            assert report.left == (), operator
            ran.add(name)
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
    assert (report.left == ()) == (case != "add_ of float64"), report


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


def test_masks_are_drawn_here() -> None:
    masks = []
    for dtype in (torch.float32, torch.bool, torch.int64):
        torch.manual_seed(7)
        with mode.reproducible(strict=True):
            masks.append(torch.empty(50, dtype=dtype).bernoulli_(0.5))
    assert torch.equal(masks[0], masks[1].float()) and torch.equal(masks[0], masks[2].float())


REFUSED: dict[str, Any] = {
    "an input larger than a product": lambda x: torch.addmm(torch.ones(2, 4, 4), x, x),
    "an input larger than a batch": lambda x: torch.baddbmm(torch.ones(2, 4, 4), x[None], x[None]),
    "a matrix beside a vector": lambda x: torch.addmv(torch.ones(4, 4), x, x[0]),
    "float32 into integers": lambda x: torch.exp(x, out=torch.empty(4, 4, dtype=torch.int32)),
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
    cases = [
        torch.atan,
        torch.asin,
        torch.exp2,
        lambda a: torch.atan2(a, a),
        lambda a: a**a,
        lambda a: torch.atan2(a[:, :1], a),
    ]
    cases.append(lambda a: torch.exp(a.T[:, 1:]))
    for case in cases:
        with mode.reproducible():
            found = case(x)
        assert found.stride() == case(x).stride()
