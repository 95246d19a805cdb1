"""A block takes the operands that PyTorch takes, gives results of its types, and refuses what it refuses."""

import copy
import zlib
from typing import Any

import numpy as np
import pytest

from tests import DEVICES
from tests.runtime.torch_cases import ROUNDINGS, derivatives, drawn, mode, place, torch
from tlspec.drawn import generator

routes = pytest.importorskip("tlrt.torch.routes.base")
determined = pytest.importorskip("tlrt.torch.routes.determined")
in_boxes = pytest.importorskip("tlrt.torch.routes.boxes")
nn, F = torch.nn, torch.nn.functional
aten = torch.ops.aten

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
FORMS = ("fits", "small", "meta", "strided", "over an operand", "is an operand")
#: what draws, what takes complex numbers or operands of other shapes, and layers, which take other types of weights than PyTorch
OTHER = (
    "_fft_",
    "_pdist_backward",
    "norm",
    "dropout",
    "bernoulli",
    "normal",
    "multinomial",
    "rrelu",
    "rnn",
    "lstm",
    "gru",
    "amp_",
)


def operators() -> list[Any]:
    """The operators that have a kernel in a block and make new tensors, apart from other ways to call them."""
    with mode.reproducible():
        pass
    found = []
    for name in sorted(n for n in routes.operator_names() if n.startswith("aten::") and routes.has_kernel(n)):
        packet, _, overload = name.removeprefix("aten::").partition(".")
        operator = getattr(getattr(aten, packet), overload or "default")
        written = any(a.alias_info is not None and a.alias_info.is_write for a in operator._schema.arguments)
        if not written and not any(word in packet for word in OTHER):
            found.append(operator)
    return found


def operand(argument: Any, k: int) -> Any:
    """A small operand for an argument of a schema, or None."""
    kind, name = str(argument.type), argument.name
    if "dtype" in name:
        return torch.float32
    if "Tensor" in kind:
        if any(word in name for word in ("index", "indices", "target", "offsets")):
            return torch.zeros(4, dtype=torch.long)
        return drawn(k, 4, 4).abs() + 0.1
    return {"List[int]": [1, 1], "int": 1, "float": 0.5, "number": 0.5, "bool": False, "str": "none"}.get(kind)


def given(operator: Any) -> list[Any]:
    return [operand(a, k) for k, a in enumerate(operator._schema.arguments) if not a.has_default_value()]


def outcome(operator: Any, operands: list[Any], **others: Any) -> Any:
    """The types and shapes of the results, or that it raises."""
    try:
        return [(x.dtype, x.shape) for x in routes.tensors_of(routes._listed(operator(*operands, **others)))]
    except (RuntimeError, ValueError, IndexError, TypeError):
        return "raises"


def both(operator: Any, operands: list[Any], **others: Any) -> tuple[Any, Any]:
    def again() -> tuple[list[Any], dict[str, Any]]:
        copies = {n: [x.clone() for x in v] if isinstance(v, tuple) else v for n, v in others.items()}
        return [x.clone() if isinstance(x, torch.Tensor) else x for x in operands], copies

    copied, more = again()
    expected = outcome(operator, copied, **more)
    copied, more = again()
    with mode.reproducible():
        return expected, outcome(operator, copied, **more)


@pytest.mark.filterwarnings("ignore")
def test_mixed_types_are_taken_as_pytorch_takes_them() -> None:
    tried, wrong = set(), []
    for operator in operators():
        rng = np.random.default_rng(zlib.crc32(str(operator).encode()))
        operands = given(operator)
        floats = [k for k, x in enumerate(operands) if isinstance(x, torch.Tensor) and x.is_floating_point()]
        if len(floats) < 2 or outcome(operator, operands) == "raises":
            continue
        tried.add(operator._schema.name)
        for _ in range(6):
            for k in floats:
                shape = () if rng.random() < 0.2 and "backward" not in operator._schema.name else (4, 4)
                operands[k] = drawn(k, *shape).abs().to(DTYPES[rng.integers(len(DTYPES))])
            for k, argument in enumerate(operator._schema.arguments[: len(operands)]):
                if argument.name == "input_dtype":  # that of softmax's operand, which gradients have
                    operands[k] = operands[floats[0]].dtype
            expected, found = both(operator, operands)
            if expected != found:
                kinds = [operands[k].dtype for k in floats]
                wrong.append(f"{operator}: of {kinds} got {found}, expected {expected}")
    assert not wrong, "\n".join(wrong)
    assert len(tried) > 30, sorted(tried)


@pytest.mark.filterwarnings("ignore")
def test_numbers_made_of_integers_are_in_the_report() -> None:
    tried = set()
    for operator in operators():
        name = operator._schema.name.removeprefix("aten::")
        operands = [x.long() + 1 if isinstance(x, torch.Tensor) else x for x in given(operator)]
        made = outcome(operator, operands)
        if name in determined.DETERMINED or made == "raises" or not any(kind.is_floating_point for kind, _ in made):
            continue
        with mode.reproducible() as report:
            assert outcome(operator, operands) == made, operator
        assert report.here or report.left, operator
        tried.add(name)
    assert len(tried) > 30, sorted(tried)


@pytest.mark.filterwarnings("ignore")
def test_results_are_written_where_pytorch_writes_them() -> None:
    """Into a target of the right form, a small one, one of float64 or float16 or of integers, one on the meta device, and one
    that lies over an operand by a part of it."""
    tried, wrong = set(), []
    for operator in operators():
        operands = given(operator)
        made = outcome(operator, operands)
        if made == "raises" or len(made) != 1 or made[0][0] != torch.float32:
            continue
        for twin in routes._twins(operator):
            outs = [a.name for a in twin._schema.arguments if a.is_out]
            if len(outs) != 1:
                continue
            tried.add(operator._schema.name)
            shape = made[0][1]
            for case in (*FORMS, *DTYPES[1:], torch.int64):
                runs = []
                for block in (False, True):
                    values = [x.clone() if isinstance(x, torch.Tensor) else x for x in operands]
                    first = next(k for k, x in enumerate(values) if isinstance(x, torch.Tensor))
                    memory = torch.zeros(40)
                    if case == "over an operand":
                        if values[first].shape != (4, 4) or shape != (4, 4):
                            continue
                        values[first] = memory[:16].view(4, 4).copy_(values[first])
                        target = memory[1:17].view(4, 4)
                    elif case == "is an operand" and values[first].shape != shape:
                        continue  # PyTorch resizes what it has yet to read
                    elif case == "is an operand":
                        target = values[first]
                    elif case == "strided":
                        target = torch.zeros(*shape, 2)[..., 0]
                    else:
                        target = torch.zeros(
                            0 if case == "small" else shape,
                            dtype=case if isinstance(case, torch.dtype) else torch.float32,
                            device="meta" if case == "meta" else "cpu",
                        )
                    if block:
                        with mode.reproducible():
                            found = outcome(twin, values, **{outs[0]: target})
                    else:
                        found = outcome(twin, values, **{outs[0]: target})
                    runs.append((found, None if found == "raises" else target.to("meta").stride()))
                if runs and runs[0] != runs[1]:
                    wrong.append(f"{twin} {case}: got {runs[1]}, expected {runs[0]}")
    assert not wrong, "\n".join(wrong)
    assert len(tried) > 60, sorted(tried)


TYPED: dict[str, Any] = {
    "sum": lambda x, t: x.sum(0, dtype=t), "sum of all": lambda x, t: x.sum(dtype=t), "mean": lambda x, t: x.mean(1, dtype=t),
    "prod": lambda x, t: x.prod(0, dtype=t), "cumsum": lambda x, t: x.cumsum(0, dtype=t),
    "cumprod": lambda x, t: x.cumprod(1, dtype=t), "nansum": lambda x, t: x.nansum(0, dtype=t),
    "norm": lambda x, t: x.norm(2, 0, dtype=t), "vector norm": lambda x, t: torch.linalg.vector_norm(x, dtype=t),
    "softmax": lambda x, t: x.softmax(0, dtype=t), "log_softmax": lambda x, t: x.log_softmax(1, dtype=t),
}  # fmt: skip


@pytest.mark.parametrize("case", TYPED)
def test_results_have_the_type_that_is_asked_for(case: str) -> None:
    for given_type in DTYPES[:3]:
        x = (drawn(1, 4, 4).abs() + 0.5).to(given_type)
        for wanted in (None, torch.float32, given_type):
            expected = TYPED[case](x, wanted)
            with mode.reproducible(strict=True) as report:
                found = TYPED[case](x, wanted)
            assert found.dtype == expected.dtype and report.left == (), (given_type, wanted)
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_numbers_that_integers_do_not_hold_become_0(kind: Any) -> None:
    """Both ends of a type's range, and what is cut off to lie inside."""
    info = torch.iinfo(kind)
    ends = [float(info.min), float(info.max), info.max + 1.0, info.min - 1.0, info.min - 0.5, info.max + 0.5]
    for real in (torch.float32, torch.float64):
        x = torch.tensor([*ends, -0.5, 3.7, torch.nan, torch.inf, -torch.inf], dtype=real)
        with mode.reproducible(strict=True):
            found = x.to(kind)
        expected = [int(v) if np.isfinite(v) and info.min <= int(v) <= info.max else 0 for v in x.tolist()]
        assert found.tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_count_in_place(dtype: Any) -> None:
    x, y, z = (drawn(k, 4, 4).to(dtype) for k in (1, 2, 3))
    with mode.reproducible(strict=True):
        pairs = [
            (x.clone().add_(y, alpha=0.3), torch.add(x, y, alpha=0.3)),
            (x.clone().sub_(y, alpha=0.3), torch.sub(x, y, alpha=0.3)),
            (x.clone().addcmul_(y, z, value=0.3), torch.addcmul(x, y, z, value=0.3)),
            (x.clone().addcdiv_(y, z, value=0.3), torch.addcdiv(x, y, z, value=0.3)),
            (x.clone().lerp_(y, 0.3), torch.lerp(x, y, 0.3)), (x.clone().lerp_(y, z), torch.lerp(x, y, z)),
        ]  # fmt: skip
        for mine, other in pairs:
            assert torch.equal(mine, other) and not torch.equal(mine, x)
        torch.testing.assert_close(pairs[1][0], x - (0.3 * y.double()).to(dtype))
        ends = [torch.lerp(1000 * x, y, w) for w in (1.0, torch.ones_like(x), 0.0, torch.zeros_like(x))]
    assert all(torch.equal(a, b) for a, b in zip(ends, (y, y, 1000 * x, 1000 * x), strict=True))


def test_a_result_over_its_operand_is_that_of_the_operand() -> None:
    x = drawn(1, 6, 6)
    with mode.reproducible(strict=True):
        for compute in (
            torch.exp,
            torch.tan,
            lambda a, **k: torch.cumsum(a, 0, **k),
            lambda a, **k: torch.mm(x, x, **k),
        ):
            y = x.clone()
            assert torch.equal(compute(y, out=y), compute(x))


REFUSED: dict[str, Any] = {
    "an integer target in place": lambda x: torch.ones(4, 4, dtype=torch.long).pow_(x),
    "a label out of range": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 4])),
    "a quotient of integers": lambda x: torch.addcdiv(x, x.long(), x.long()),
    "a mask of another type": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], x.half()),
    "a mask of another shape": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], x[:, :3].contiguous() > 0),
    "keys of another length": lambda x: F.scaled_dot_product_attention(x[None], x[None, :, :3], x[None]),
    "a bias of another type": lambda x: F.linear(x[None], x, x[0].half()),
    "a histogram to infinity": lambda x: torch.histc(x, 4, 0, torch.inf),
    "a histogram of infinity": lambda x: torch.histc(x / 0, 4),
    "a histogram that falls": lambda x: torch.histc(x, 4, 3, 1),
    "another triangle": lambda x: torch.linalg.eigvalsh(x, "x"),
    "other factors": lambda x: torch.linalg.qr(x, "x"),
    "a driver of a GPU": lambda x: torch.linalg.svd(x, driver="gesvd"),
    "bags of more than is there": lambda x: F.embedding_bag(torch.tensor([1, 2]), x, torch.tensor([0, 3])),
    "a negative spread": lambda x: torch.normal(x, -1.0),
    "chances beyond 1": lambda x: torch.bernoulli(x.abs() + 1),
    "chances that are no numbers": lambda x: x.clone().bernoulli_(x * torch.nan),
    "distances by a negative power": lambda x: torch.cdist(x, x, -1.0),
    "more times than scores": lambda x: F.ctc_loss(x[:, None], torch.ones(1, 1).long(), (5,), (1,)),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_of_pytorchs_kind(case: str) -> None:
    with pytest.raises((RuntimeError, IndexError)) as plain:
        REFUSED[case](drawn(8, 4, 4))
    with mode.reproducible(strict=True), pytest.raises(plain.type):
        REFUSED[case](drawn(8, 4, 4))


def test_values_without_keys_are_refused() -> None:
    x = drawn(2, 1, 6, 6)
    with mode.reproducible(), pytest.raises(RuntimeError, match="a value for each key"):
        F.scaled_dot_product_attention(x, x[:, :4], x)


SAMPLES: dict[str, Any] = {
    "a layer over an input with gaps": lambda x: F.linear(x.transpose(0, 1), w(5, 6), w(5)).transpose(0, 1),
    "a layer over a part": lambda x: F.linear(x[:, 1:3], w(5, 6), w(5)),
    "attention to shared keys": lambda x: F.scaled_dot_product_attention(x, w(1, 7, 6), w(1, 7, 6)),
    "attention of heads to shared keys": lambda x: F.scaled_dot_product_attention(x[:, None], w(1, 2, 7, 6), w(1, 2, 7, 6)),
    "distances": lambda x: torch.cdist(x.flatten(1), w(9, 24)),
    "an encoder layer": lambda x: encoder()(x),
    "sums over many axes": lambda x: x.view(-1, 2, 2, 1, 1, 2, 1, 3, 1, 1).transpose(1, 5).sum((1, 3, 5, 7, 9)),
}  # fmt: skip


def w(*shape: int) -> Any:
    return drawn(3, *shape)


def encoder() -> Any:
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), 1).eval()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(w(*p.shape) * 0.3)
    return layer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", SAMPLES)
def test_a_sample_has_the_same_bits_in_every_batch(case: str) -> None:
    x = drawn(4, 40, 4, 6)
    with mode.reproducible(strict=True) as report, torch.no_grad():
        whole = SAMPLES[case](x)
        for size in (1, 3, 27):
            assert torch.equal(SAMPLES[case](x[:size]), whole[:size]), size
    assert report.left == ()
    expected = SAMPLES[case](x.double()) if case.startswith("sums") else SAMPLES[case](x)
    torch.testing.assert_close(whole, expected.to(whole.dtype), rtol=2**-18, atol=2**-18)


def test_softmax_is_wide_where_it_is_asked_to_be() -> None:
    """On a GPU softmax(x, dtype=float32) of float16 is one operator, whose gradient is float16."""
    x, g = drawn(5, 3, 9), drawn(6, 3, 9)
    for forward, backward in (
        (aten._softmax, aten._softmax_backward_data),
        (aten._log_softmax, aten._log_softmax_backward_data),
    ):
        with mode.reproducible(strict=True):
            y = forward(x.half(), 1, True)
            assert torch.equal(y, forward(x.half().float(), 1, False)) and y.dtype == torch.float32
            gx = backward(g, y, 1, torch.float16)
            assert torch.equal(gx, backward(g, y, 1, torch.float32).half()) and gx.dtype == torch.float16


def test_what_pytorch_makes_of_its_own_loops_is_named() -> None:
    with mode.reproducible() as report:
        torch.kaiser_window(8)
        torch.linalg.eig(drawn(1, 4, 4))
    assert report.left == ("kaiser_window", "linalg_eig") and report.coverage < 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_fake_quantisation(dtype: Any, device: str) -> None:
    """The numbers of PyTorch on a CPU, numbers midway between levels among them."""
    x = torch.cat([9 * drawn(1, 3, 4, 500), torch.arange(-999, 1000).repeat(3, 4, 1) / 64], -1).to(dtype)
    scales, zeros = torch.tensor([0.1, 0.2, 0.03, 1 / 32]), torch.tensor([1, 2, 0, -3], dtype=torch.int32)
    of_tensors = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    for compute in (
        lambda x, s, z: aten.fake_quantize_per_tensor_affine_cachemask(x, 0.037, 3, 0, 255),
        # on a GPU PyTorch has it of float32 alone
        lambda x, s, z: of_tensors(x if x.device.type == "cpu" else x.float(), s[:1], z[0], z[2] + 1, -8, 7),
        lambda x, s, z: of_tensors(x.float(), s[0], z[:1], z[2], -8, 7),
        lambda x, s, z: aten.fake_quantize_per_channel_affine_cachemask(x, s, z, 1, -128, 127),
        lambda x, s, z: aten.fake_quantize_per_channel_affine_cachemask(x.mT, s, z + 3, 2, 0, 15),
    ):
        with mode.reproducible(strict=True):
            found = compute(*(t.to(place(device)) for t in (x, scales, zeros)))
        for mine, theirs in zip(found, compute(x, scales, zeros), strict=True):
            assert torch.equal(mine.cpu().to(theirs.dtype), theirs) and mine.stride() == theirs.stride()
    leaf = x.clone().requires_grad_()
    with mode.reproducible(strict=True):
        torch.fake_quantize_per_tensor_affine(leaf, 0.0625, 0, -100, 99).sum().backward()
    assert torch.equal(leaf.grad, ((leaf * 16).round().clamp(-100, 99) == (leaf * 16).round()).to(dtype))
    for outside in (-1, 256):
        with pytest.raises(RuntimeError, match="between `quant_min`"), mode.reproducible():
            torch.fake_quantize_per_tensor_affine(x, 0.1, outside, 0, 255)
        with pytest.raises(RuntimeError, match="between `quant_min`"), mode.reproducible():
            torch.fake_quantize_per_channel_affine(x.float(), scales, torch.tensor([1, outside, 3, 4]).int(), 1, 0, 255)
    with mode.reproducible() as report:
        torch.fake_quantize_per_channel_affine(x.float(), scales, scales, 1, 0, 255)
    assert report.left == ("fake_quantize_per_channel_affine_cachemask",)


def test_autocast_does_not_reach_into_operators() -> None:
    x = drawn(1, 6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16), mode.reproducible(strict=True):
        found = torch.mm(x, x, out=torch.empty(6, 6))
        wide, root = torch.cdist(x, x), torch.linalg.matrix_exp(x)
    with mode.reproducible():
        assert torch.equal(found, x @ x) and torch.equal(wide, torch.cdist(x, x))
        assert torch.equal(root, torch.linalg.matrix_exp(x))


def test_tangents_pass_through_attention() -> None:
    import torch.autograd.forward_ad as forward

    x, t = drawn(1, 1, 5, 4), drawn(2, 1, 5, 4)
    with mode.reproducible(strict=True), forward.dual_level():
        dual = forward.make_dual(x, t)
        found = forward.unpack_dual(F.scaled_dot_product_attention(dual, dual, dual)).tangent
    _, expected = torch.func.jvp(
        lambda a: torch.softmax(a @ a.mT / 2, -1) @ a, (x.double(),), (t.double(),)
    )  # 2: the root of the length
    assert ((found - expected).abs() <= 64 * 2.0**-24 * expected.abs().max()).all()


# ---- other libraries' operators, and blocks in compiled functions ------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_without_eps(dtype: Any) -> None:
    x = torch.full((1, 4), 1e-3, dtype=dtype)
    with mode.reproducible(strict=True):
        found = F.rms_norm(x, (4,))
    torch.testing.assert_close(found, F.rms_norm(x, (4,)))


@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_keep_their_type(dtype: Any, momentum: float | None) -> None:
    for axes in (0, 1, 2, 3):
        layer = [nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d][axes](4, momentum=momentum).to(dtype)
        plain = copy.deepcopy(layer)
        if axes % 2:  # views of other memory
            memory = torch.cat([torch.zeros(5), torch.ones(4)]).to(dtype)
            columns = torch.tensor([0.0, 1.0]).repeat(4, 1).to(dtype)
            layer.running_mean, layer.running_var = (memory[1:5], memory[5:]) if axes == 1 else columns.T
            plain.running_mean, plain.running_var = (t.clone() for t in (layer.running_mean, layer.running_var))
        for seed in (1, 2):
            x = (drawn(seed, 6, 4, *[3] * axes) * 5 + 2).to(dtype)
            with mode.reproducible(strict=True):
                layer(x)
            plain(x)
        for (label, mine), (_, theirs) in zip(layer.named_buffers(), plain.named_buffers(), strict=True):
            torch.testing.assert_close(mine, theirs, msg=label)


def overlap(a: Any, b: Any) -> float:
    sides = np.maximum(0, np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]))
    return sides.prod() / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - sides.prod())


def test_boxes_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision's nms: of boxes that overlap the one with the highest score, of equal ones the first."""
    rng = np.random.default_rng(3)
    corners = rng.uniform(0, 20, (60, 2, 2)).astype(np.float32)
    boxes = np.concatenate([corners.min(1), corners.max(1)], 1)
    scores = rng.integers(0, 9, 60).astype(np.float32)
    for threshold in (0.1, 0.5, 0.9):
        kept: list[int] = []
        for i in np.argsort(-scores, kind="stable"):
            if all(overlap(boxes[i].astype(float), boxes[k].astype(float)) <= threshold for k in kept):
                kept.append(i)
        with mode.reproducible(strict=True):
            assert in_boxes.nms(torch.from_numpy(boxes), torch.from_numpy(scores), threshold).tolist() == kept
            with monkeypatch.context() as patch:
                patch.setattr(in_boxes, "_PAIRS", 7 * 60)
                assert in_boxes.nms(torch.from_numpy(boxes), torch.from_numpy(scores), threshold).tolist() == kept
    for x, y in ((boxes[:, :3], scores), (boxes, scores[:-1]), (boxes[0], scores)):
        with pytest.raises(NotImplementedError):
            in_boxes.nms(torch.from_numpy(x), torch.from_numpy(y), 0.5)


def test_no_boxes() -> None:
    x = drawn(1, 2, 3, 4, 5)
    with mode.reproducible(strict=True):
        assert in_boxes.nms(torch.empty(0, 4), torch.empty(0), 0.5).shape == (0,)
        assert in_boxes.roi_align(x, torch.empty(0, 5), 1.0, 2, 3, -1).shape == (0, 3, 2, 3)
        gx = in_boxes.roi_align_backward(torch.empty(0, 3, 2, 3), torch.empty(0, 5), 1.0, 2, 3, *x.shape, -1, False)
    assert gx.shape == x.shape and not gx.any()


def sampled(image: Any, y: float, x: float) -> Any:
    """An image (channels, height, width) between its elements; nothing further out than one of them."""
    _, height, width = image.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return np.zeros(len(image))
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    i, j = int(y), int(x)
    below, right = min(i + 1, height - 1), min(j + 1, width - 1)
    upper = image[:, i, j] * (1 - (x - j)) + image[:, i, right] * (x - j)
    lower = image[:, below, j] * (1 - (x - j)) + image[:, below, right] * (x - j)
    return upper * (1 - (y - i)) + lower * (y - i)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("samples", [2, -1])
def test_images_in_boxes(samples: int, aligned: bool) -> None:
    """torchvision's roi_align: means of samples in each bin; its gradient is the adjoint."""
    rng = np.random.default_rng(4)
    images, bins, scale = drawn(4, 2, 3, 9, 11), (3, 4), 0.5
    corners = np.sort(rng.uniform(-3, 24, (7, 2, 2)), 1).reshape(7, 4)
    boxes = np.concatenate([rng.integers(0, 2, (7, 1)), corners], 1).astype(np.float32)
    expected = np.zeros((7, 3, *bins))
    for k, (image, *corner) in enumerate(boxes.astype(float)):
        x1, y1, x2, y2 = (c * scale - 0.5 * aligned for c in corner)
        sides = np.array([y2 - y1, x2 - x1]) if aligned else np.maximum([y2 - y1, x2 - x1], 1)
        step = sides / bins
        counts = [samples] * 2 if samples > 0 else [int(n) for n in np.ceil(step)]
        for i, j in np.ndindex(*bins):
            for m, n in np.ndindex(*counts):
                y, x = y1 + (i + (m + 0.5) / counts[0]) * step[0], x1 + (j + (n + 0.5) / counts[1]) * step[1]
                expected[k, :, i, j] += sampled(images.double().numpy()[int(image)], y, x)
        expected[k] /= max(np.prod(counts), 1)
    arguments = (torch.from_numpy(boxes), scale, *bins)
    with mode.reproducible(strict=True):
        found = in_boxes.roi_align(images, *arguments, samples, aligned)
        g = drawn(5, *found.shape)
        gx = in_boxes.roi_align_backward(g, *arguments, *images.shape, samples, aligned)
    # weights of a place are as exact as the place: some 24 of 2^-24
    assert (np.abs(found.double().numpy() - expected) <= 2 * ROUNDINGS * 24 * 2.0**-24).all()
    products = (found.double() * g).sum() - (images.double() * gx).sum()
    assert abs(float(products)) <= ROUNDINGS * 2.0**-24 * float((found.abs().double() * g.abs()).sum())


def test_a_block_begins_in_a_compiled_function() -> None:
    def inner(x: Any) -> Any:
        with mode.reproducible(strict=True) as report:
            y = torch.exp(x @ x)
        return y * 2, report.coverage

    x = drawn(1, 3, 3)
    expected, _ = inner(x)
    for compute in (torch.compile(inner, backend="eager"), torch.compile(lambda a: inner(a), backend="eager")):
        found, coverage = compute(x + 0)
        assert torch.equal(found, expected) and coverage == 1


SEEN = torch.tensor([[True, False, True, True], [True, True, False, True], [True, True, True, True]])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_of_operands_of_any_form(dtype: Any) -> None:
    """Any memory, leading axes, heads, lengths, masks and scales, which are drawn; two derivatives by all, a mask among them."""
    draw = generator("attention", str(dtype))

    def one_of(*values: Any) -> Any:
        return values[draw.integers(len(values))]

    for turn in range(36 if dtype == torch.float32 else 10):
        heads = [4, *one_of((4, 4), (4, 4), (2, 2), (2, 2), (1, 1), (2, 4), (4, 2))]
        lead, order = one_of((), (3,), (3,), (2, 3)), 1 + turn % 3 // 2
        forms = [(*(one_of(n, n, 1) if k else n for n in lead), h) for k, h in enumerate(heads)]
        given = []
        for k, (form, rows, width) in enumerate(zip(forms, (3, 5, 5), (6, 6, one_of(6, 6, 4)), strict=True)):
            by_rows = one_of(True, False)  # the heads of a row lie side by side
            x = drawn(k, *form[:-1], *((rows, form[-1]) if by_rows else (form[-1], rows)), width).to(dtype)
            given.append(x.transpose(-2, -3) if by_rows else x)
        added = drawn(turn, *[one_of(n, 1) for n in (*lead, 4, 3, 5)][draw.integers(len(lead) + 2) :]).to(dtype)
        mask = one_of(None, added, added > -0.5)
        how: dict[str, Any] = {"scale": one_of(None, 0.3), "is_causal": mask is None and one_of(True, False)}
        how["enable_gqa"] = heads != [4, 4, 4]
        given += [added] if mask is added else []
        kept = one_of(lambda t: t, torch.Tensor.detach)

        def compute(q: Any, k: Any, v: Any, own: Any = None, mask: Any = mask, how: Any = how, kept: Any = kept) -> Any:
            return F.scaled_dot_product_attention(q, k, v, mask if own is None else kept(own), **how).transpose(-2, -3)

        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            expected = derivatives(compute, [x.double() for x in given], order)
        with mode.reproducible(strict=True):
            found = derivatives(compute, given, order)
        for mine, exact in zip(found, expected, strict=True):
            slack = 2 * ROUNDINGS * 2.0**-24 * max(1.0, float(exact.nan_to_num().abs().max()))
            assert torch.allclose(mine.double(), exact, rtol=0, atol=slack, equal_nan=True)


@pytest.mark.parametrize("mask", [None, SEEN, SEEN.float() * 0.5], ids=["none", "boolean", "added"])
def test_attention_with_dropout(mask: Any) -> None:
    """It is softmax, dropout and a product, with the mask as everywhere."""
    q, k, v = drawn(1, 1, 2, 3, 5), drawn(2, 1, 2, 4, 5), drawn(3, 1, 2, 4, 5)
    with mode.reproducible(strict=True):
        torch.manual_seed(3)
        found = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.4)
        torch.manual_seed(3)
        scores = q @ k.transpose(-1, -2) / 5**0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        expected = F.dropout(scores.softmax(-1), 0.4) @ v
    assert (found == 0).sum() == (expected == 0).sum()
    assert (found - expected).abs().max() <= ROUNDINGS * 2.0**-24 * expected.abs().max()


NUMBER = 0.1234567
ON_NUMBERS: dict[str, Any] = {
    "x + n": lambda x: x + NUMBER,
    "x - n": lambda x: x - NUMBER,
    "n - x": lambda x: NUMBER - x,
    "x * n": lambda x: x * NUMBER,
    "x / n": lambda x: x / NUMBER,
    "x + 257": lambda x: x + 257,
    "one element + n": lambda x: x[7] + NUMBER,
    "add_": lambda x: x.clone().add_(NUMBER),
    "sub_": lambda x: x.clone().sub_(NUMBER),
    "mul_": lambda x: x.clone().mul_(NUMBER),
    "div_": lambda x: x.clone().div_(NUMBER),
    "x + a tensor of the host": lambda x: x + torch.tensor(NUMBER),
    "x + a tensor of the device": lambda x: x + torch.tensor(NUMBER, device=x.device),
    "a tensor of the device * x": lambda x: torch.tensor(NUMBER, device=x.device) * x,
    "mul_ by a tensor of the device": lambda x: x.clone().mul_(torch.tensor(NUMBER, device=x.device)),
    "a tensor of the device / x": lambda x: torch.tensor(NUMBER, device=x.device) / x,
    "x / a tensor of the device": lambda x: x / torch.tensor(NUMBER, device=x.device),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ON_NUMBERS)
def test_a_number_beside_a_narrow_type_is_float32(name: str, device: str) -> None:
    """Processors round it to the narrow type in some operators, and GPUs in others."""
    for dtype in (torch.bfloat16, torch.float16):
        x = (drawn(0, 4096) * drawn(1, 4096).mul(3).exp2()).to(dtype).to(device)
        with mode.reproducible(strict=True):
            found, once = ON_NUMBERS[name](x), ON_NUMBERS[name](x.float()).to(dtype)
        assert found.dtype == dtype
        assert torch.equal(found, once)
