"""Layers of torch.nn with drawn options in a block: results, gradients, and what the layer keeps, beside float64."""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests import DEVICES
from tests.runtime.torch_cases import ROUNDINGS, drawn, mode, place, torch
from tlspec.drawn import generator

FLAG = (False, True)
X, Y, WORDS, IMAGE = drawn(1, 6, 5), drawn(2, 6, 5), torch.tensor([1, 1, 5, 2, 0, 5, 1, 6]), drawn(5, 2, 4, 7, 6)
#: what layers of ranks 1, 2 and 3 take
RANKS = {1: drawn(4, 2, 4, 9), 2: IMAGE, 3: drawn(6, 2, 4, 4, 5, 4)}
SIGNS, LABELS, WEIGHTS = torch.tensor([1, -1, 1, 1, -1, 1]), torch.tensor([0, 4, 2, 2, 1, 3]), (None, drawn(3, 5).abs())
UNIT, SHARES, COLUMN, BAGS = X.sigmoid(), Y.sigmoid(), SIGNS[:, None].expand(6, 5), torch.tensor([0, 3, 3, 5, 8])
REDUCED, EPS, LAST = {"reduction": ("mean", "sum", "none")}, {"eps": (1e-6, 0.1)}, {"normalized_shape": (6, (7, 6))}
LOSS = {**REDUCED, "weight": WEIGHTS}
TABLE = {"num_embeddings": (7,), "embedding_dim": (4,), "max_norm": (None, 1.0, 0.5), "norm_type": (2.0, 1.0, 3.0, torch.inf),
         "padding_idx": (None, 1, -2), "scale_grad_by_freq": FLAG}  # fmt: skip
#: bags divide a word's gradient by its own count; PyTorch 2.11 to 2.13 on a CPU take another word's from the third word on
_WORDS = torch.ones(3, 1, requires_grad=True)
torch.nn.functional.embedding_bag(
    torch.tensor([0, 1, 1, 2]), _WORDS, torch.tensor([0]), mode="sum", scale_grad_by_freq=True
).backward()
BAG = {**TABLE, "scale_grad_by_freq": FLAG if _WORDS.grad[2] == 1 else (False,), "include_last_offset": FLAG}
BATCH = {**EPS, "num_features": (4,), "momentum": (0.1, 0.5, None), "affine": FLAG, "track_running_stats": FLAG,
         "training": FLAG}  # fmt: skip
STATES = {"input_size": (9,), "hidden_size": (5,), "num_layers": (1, 2), "bias": FLAG, "batch_first": FLAG,
          "bidirectional": FLAG, "dropout": (0.0, 1.0), "training": FLAG}  # fmt: skip
CONV = {"in_channels": (4,), "out_channels": (8,), "dilation": (1, 2), "groups": (1, 2, 4), "bias": FLAG}
PADDINGS = {"padding": (0, 1, 2, "same", "valid"), "padding_mode": ("zeros", "reflect", "replicate", "circular")}
#: a layer -> its inputs, and the values of each of its options
LAYERS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Embedding": ((WORDS,), TABLE), "LayerNorm": ((IMAGE,), {**LAST, **EPS, "elementwise_affine": FLAG, "bias": FLAG}),
    "EmbeddingBag": ((WORDS, BAGS), {**BAG, "mode": ("sum", "mean", "max")}),
    "EmbeddingBag of weighted words": ((WORDS, BAGS, drawn(8, 8)), {**BAG, "mode": ("sum",)}),
    "RMSNorm": ((IMAGE,), {**LAST, "eps": (None, 0.1), "elementwise_affine": FLAG}),
    "GroupNorm": ((IMAGE,), {**EPS, "num_groups": (1, 2, 4), "num_channels": (4,), "affine": FLAG}),
    "LocalResponseNorm": ((IMAGE,), {"size": (1, 2, 3), "alpha": (1e-4, 0.5), "beta": (0.75, 0.5), "k": (1.0, 2.0)}),
    "CrossEntropyLoss": ((X, LABELS), {**LOSS, "ignore_index": (-100, 2), "label_smoothing": (0.0, 0.1, 1.0)}),
    "NLLLoss": ((X, LABELS), {**LOSS, "ignore_index": (-100, 2)}),
    "BCELoss": ((UNIT, SHARES), LOSS), "BCEWithLogitsLoss": ((X, SHARES), {**LOSS, "pos_weight": WEIGHTS}),
    "MultiMarginLoss": ((X, LABELS), {**LOSS, "p": (1, 2), "margin": (1.0, 0.3)}),
    "MultiLabelSoftMarginLoss": ((X, (Y > 0).float()), LOSS), "L1Loss": ((X, Y), REDUCED), "MSELoss": ((X, Y), REDUCED),
    "SmoothL1Loss": ((X, Y), {**REDUCED, "beta": (1.0, 0.0, 0.3)}), "HuberLoss": ((X, Y), {**REDUCED, "delta": (1.0, 0.3)}),
    "KLDivLoss": ((X, SHARES), {"reduction": ("mean", "sum", "none", "batchmean"), "log_target": FLAG}),
    "PoissonNLLLoss": ((UNIT, Y.abs()), {**REDUCED, **EPS, "log_input": FLAG, "full": FLAG}),
    "GaussianNLLLoss": ((X, Y, UNIT), {**REDUCED, "full": FLAG, "eps": (1e-6, 0.5)}),
    "HingeEmbeddingLoss": ((X, COLUMN), {**REDUCED, "margin": (1.0, 0.2)}), "SoftMarginLoss": ((X, COLUMN), REDUCED),
    "CosineEmbeddingLoss": ((X, Y, SIGNS), {**REDUCED, "margin": (0.0, -0.3, 0.4)}),
    "MarginRankingLoss": ((X[:, 0], Y[:, 0], SIGNS), {**REDUCED, "margin": (0.0, 0.4)}),
    "TripletMarginLoss": ((X, Y, Y.flip(0)), {**REDUCED, **EPS, "margin": (1.0, 3.0), "p": (2.0, 1.0, 3.0), "swap": FLAG}),
    "CosineSimilarity": ((X, Y), {"dim": (1, 0), "eps": (1e-8, 3.0)}), "LSTM": ((RANKS[1],), {**STATES, "proj_size": (0, 3)}),
    "PairwiseDistance": ((X, Y), {**EPS, "p": (2.0, 1.0, 3.0, torch.inf), "keepdim": FLAG}),
    "Linear": ((X,), {"in_features": (5,), "out_features": (3,), "bias": FLAG}),
    "Bilinear": ((X, Y), {"in1_features": (5,), "in2_features": (5,), "out_features": (3,), "bias": FLAG}),
    "RNN": ((RANKS[1],), {**STATES, "nonlinearity": ("tanh", "relu")}), "GRU": ((RANKS[1],), STATES),
    "Unfold": ((IMAGE,), {"kernel_size": (2, (3, 2)), "dilation": (1, (2, 1)), "padding": (0, (0, 1)), "stride": (1, (2, 3))}),
    "GLU": ((IMAGE,), {"dim": (-1, 1, 3)}), "PReLU": ((IMAGE,), {"num_parameters": (1, 4)}),
    "GELU": ((X,), {"approximate": ("none", "tanh")}), "LeakyReLU": ((X,), {"negative_slope": (0.01, 0.0, 1.5), "inplace": FLAG}),
    "Hardtanh": ((X,), {"min_val": (-1.0, 0.1), "max_val": (1.0, 0.7), "inplace": FLAG}),
    "Softplus": ((X,), {"beta": (1.0, 4.0, 0.3), "threshold": (20.0, 0.5)}),
    "Threshold": ((X,), {"threshold": (0.0, 0.4), "value": (0.0, 7.0), "inplace": FLAG}),
    **dict.fromkeys(("ELU", "CELU"), ((X,), {"alpha": (1.0, 0.3), "inplace": FLAG})),
    **dict.fromkeys(("Hardshrink", "Softshrink"), ((X,), {"lambd": (0.5, 0.0, 1.2)})),
    **dict.fromkeys(("Softmax", "Softmin", "LogSoftmax"), ((X,), {"dim": (0, 1, -1)})),
    **dict.fromkeys(("ReLU", "ReLU6", "SELU", "SiLU", "Mish", "Hardsigmoid", "Hardswish"), ((X * 3,), {"inplace": FLAG})),
    "CTCLoss": ((drawn(9, 9, 4, 5), torch.tensor([[1, 1, 3], [3, 2, 4], *[[2, 2, 3]] * 2]), torch.tensor([9, 2, 0, 0]),
                 torch.tensor([3, 3, 1, 0])),
                {**REDUCED, "blank": (0, 1), "zero_infinity": FLAG}),
    "MultiheadAttention": ((drawn(7, 2, 4, 8), *[drawn(8, 2, 4, 8)] * 2), {
        "embed_dim": (8,), "num_heads": (1, 4), "bias": FLAG, "add_bias_kv": FLAG, "add_zero_attn": FLAG, "batch_first": FLAG}),
    "Upsample": ((IMAGE,), {
        "scale_factor": (2, 1.5, (0.5, 2.5)), "mode": ("nearest", "bilinear", "bicubic"), "align_corners": (None, *FLAG)}),
}  # fmt: skip
for n, x in RANKS.items():  # some options differ by axis
    size, stride, padding = (a[:n] for a in ((3, 2, 3), (2, 3, 1), (0, 1, 1)))
    window = {"kernel_size": (2, 3, size), "stride": (1, 2, stride), "padding": (0, 1, padding)}
    average = {"count_include_pad": FLAG, **({"divisor_override": (None, 3)} if n > 1 else {})}
    LAYERS |= {
        f"AvgPool{n}d": ((x,), {**window, **average, "ceil_mode": FLAG}),
        f"MaxPool{n}d": ((x,), {**window, "ceil_mode": FLAG, "dilation": (1, 2), "return_indices": FLAG}),
        f"LPPool{n}d": ((x.abs(),), {"norm_type": (1, 2, 3.0), "kernel_size": (2, 3), "stride": (None, 1), "ceil_mode": FLAG}),
        f"Conv{n}d": ((x,), {**window, **CONV, **PADDINGS}),
        f"ConvTranspose{n}d": ((x,), {**window, **CONV, "output_padding": (0, 1)}),
        f"BatchNorm{n}d": ((x,), BATCH), f"InstanceNorm{n}d": ((x,), BATCH),
    }  # fmt: skip


def computed(layer: Any, inputs: list[Any], dtype: Any, penalty: bool, trained: bool, first: int = 0) -> list[Any]:
    """The results, the gradients of those from `first` on along drawn directions, those of a penalty on these, and what the layer
    keeps afterwards."""
    leaves = [x.to(dtype, copy=True).requires_grad_(trained) if x.is_floating_point() else x for x in inputs]
    results = [y for y in torch.utils._pytree.tree_leaves(layer(*[x.clone() for x in leaves])) if y is not None]
    heads, wanted = ([x for x in xs if x.requires_grad] for xs in (results, (*leaves, *layer.parameters())))
    heads = heads[first % max(len(heads), 1) :]
    along = [drawn(90 + i, *y.shape).to(y) for i, y in enumerate(heads)]
    gradients = torch.autograd.grad(heads, wanted, along, allow_unused=True, create_graph=penalty) if heads else ()
    loss = [g.square().sum() for g in gradients if penalty and g is not None and g.requires_grad]
    second = torch.autograd.grad(sum(loss), wanted, allow_unused=True) if loss else ()
    return [y.detach() for y in (*results, *gradients, *second, *layer.state_dict().values()) if y is not None]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small are no work for two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", LAYERS)
def test_options_of_layers_mean_what_they_mean_in_pytorch(name: str, device: str, thorough: bool) -> None:
    """Each value of an option several times, in an order that is drawn for each option; inputs and some parameters are frozen now
    and then. What PyTorch refuses is passed over."""
    inputs, options = LAYERS[name]
    placed = [x.to(place(device)) for x in inputs]
    draw, count = generator("options", name), (100 if thorough else 16) * max(map(len, options.values()))
    orders = [[v[i] for _ in range(count) for i in draw.permutation(len(v))][:count] for v in options.values()]
    agreed = 0
    for turn, values in enumerate(zip(*orders, strict=True)):
        chosen = dict(zip(options, values, strict=True))
        training = chosen.pop("training", True)
        try:
            layer = getattr(torch.nn, name.split()[0])(**chosen).train(training)
            for i, p in enumerate(layer.parameters()):
                p.data.copy_(drawn(50 + i, *p.shape))
                p.requires_grad_(turn % 2 == 0 or bool(draw.integers(2)))
            how = turn % 3 == 0, turn % 4 != 1, int(draw.integers(3))
            exact = computed(copy.deepcopy(layer).double(), list(inputs), torch.float64, *how)
        except (ValueError, RuntimeError):
            continue
        with mode.reproducible(strict=True):
            found = computed(layer.to(place(device)), placed, torch.float32, *how)
        size = max(float(x.nan_to_num(0, 0, 0).abs().max()) for x in (*inputs, *exact) if x.numel())
        for mine, theirs in zip(found, exact, strict=True):
            slack = ROUNDINGS * 2.0**-24 * size if theirs.is_floating_point() else 0
            assert torch.allclose(mine.to(theirs), theirs, rtol=0, atol=slack, equal_nan=True), (chosen, mine, theirs)
        agreed += 1
    assert 2 * agreed > count


class Mixed(torch.nn.Module):
    """A layer between numbers rounded to a narrow type, which it takes in a type of its own."""

    def __init__(self, layer: Any, kind: Any, taken: Any) -> None:
        super().__init__()
        self.layer, self.kind, self.taken = layer, kind, taken

    def forward(self, *inputs: Any) -> Any:
        y = self.layer(*(x.to(self.kind).to(self.taken) if x.is_floating_point() else x for x in inputs))
        return y.to(self.kind).float()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_layers_in_float32_take_narrow_inputs(kind: Any, device: str) -> None:
    """All is computed as of widened inputs. Results and inputs' gradients are rounded; parameters' gradients are not."""
    agreed = set()
    for name, (inputs, options) in LAYERS.items():
        draw, placed = generator("narrow inputs", name), [x.to(place(device)) for x in inputs]
        for _ in range(6):
            chosen = {k: v[draw.integers(len(v))] for k, v in options.items()}
            training = chosen.pop("training", True)
            try:
                layer = getattr(torch.nn, name.split()[0])(**chosen).train(training)
                for i, p in enumerate(layer.parameters()):
                    p.data.copy_(drawn(50 + i, *p.shape))
                if not list(layer.parameters()):
                    continue
                computed(Mixed(copy.deepcopy(layer), kind, kind), list(inputs), torch.float32, False, True)
            except (ValueError, RuntimeError):
                continue
            with mode.reproducible(strict=True):
                mixed = [Mixed(copy.deepcopy(layer), kind, t).to(place(device)) for t in (kind, torch.float32)]
                found, expected = (computed(m, placed, torch.float32, False, True) for m in mixed)
            assert len(found) == len(expected) and all(map(torch.equal, found, expected)), (name, chosen)
            agreed.add(name)
    assert agreed >= {"LayerNorm", "GroupNorm", "RMSNorm", "BatchNorm1d", "BatchNorm2d", "InstanceNorm3d"}


#: products that are added to an operand: the shapes of the factors, and those that the operand may have
SUMS_WITH_PRODUCTS: dict[str, tuple[list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    "addmm": ([(2, 5), (5, 3)], [(3,), (2, 3), (2, 1), ()]), "addmv": ([(2, 5), (5,)], [(2,), (1,), ()]),
    "addr": ([(2,), (3,)], [(3,), (2, 3), ()]), "addbmm": ([(4, 2, 5), (4, 5, 3)], [(3,), (2, 3)]),
    "baddbmm": ([(4, 2, 5), (4, 5, 3)], [(3,), (2, 3), (4, 2, 3), (4, 1, 1)]),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS_WITH_PRODUCTS)
def test_factors_of_sums_with_products_count(name: str) -> None:
    """Each beta with each alpha; where beta is 0 the operand does not count, NaN or not."""
    factors, shapes = SUMS_WITH_PRODUCTS[name]
    a, b = (drawn(k, *shape) for k, shape in enumerate(factors))
    for shape, beta, alpha in itertools.product(shapes, (0, 1, 0.5), (0, 1, -2)):
        x = drawn(3, *shape) if beta else torch.full(shape, torch.nan)
        expected = getattr(torch, name)(x.double(), a.double(), b.double(), beta=beta, alpha=alpha)
        for kind, slack in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
            with mode.reproducible(strict=name != "addbmm" or kind == torch.float32):
                found = getattr(torch, name)(x.to(kind), a.to(kind), b.to(kind), beta=beta, alpha=alpha)
            assert torch.allclose(found.double(), expected, rtol=slack, atol=slack), (shape, beta, alpha)


#: reductions of a tensor over axes, with and without these
OVER: dict[str, Any] = {
    "sum": torch.sum, "mean": torch.mean, "logsumexp": torch.logsumexp, "nansum": torch.nansum, "amax": torch.amax,
    **{f"norm {p}": lambda x, dim, keepdim, p=p: torch.linalg.vector_norm(x, p, dim, keepdim)
       for p in (0, 0.5, 1, 2, 3, torch.inf, -torch.inf, -1)},
    **{f"{f.__name__} {c}": lambda x, dim, keepdim, f=f, c=c: f(x, dim, correction=c, keepdim=keepdim)
       for f in (torch.var, torch.std, torch.var_mean, torch.std_mean) for c in (None, 0, 2, 99)},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OVER)
def test_reductions_over_axes(name: str) -> None:
    """Any of three, counted from the first or the last, kept or not; of infinities and of one number, too."""
    x = drawn(1, 2, 3, 4).index_fill(0, torch.tensor(0), -torch.inf if name == "logsumexp" else 0.5)
    for dim, keepdim, kind in itertools.product(
        [None, 0, -1, (1,), (0, 2), (-1, -2), (0, -2, 2)], FLAG, (torch.float32, torch.float64)
    ):
        for of in (x.to(kind), x[1, 2, 3].to(kind)):
            over: Any = dim if of.dim() else None if dim is None else -1
            over = tuple(range(of.dim())) if over is None and name in ("logsumexp", "amax") else over
            with mode.reproducible(strict=True):
                found = OVER[name](of, dim=over, keepdim=keepdim)
            torch.testing.assert_close(found, OVER[name](of, dim=over, keepdim=keepdim), equal_nan=True)
