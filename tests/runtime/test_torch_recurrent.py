"""Recurrent layers under tlrt.torch.reproducible: values, gradients and second gradients beside float64, and bits that depend
on no batch."""

import itertools
from typing import Any

import pytest

from tests.runtime.torch_cases import drawn, mode, place, torch

nn = torch.nn

KINDS: dict[str, Any] = {
    "LSTM": (nn.LSTM, {}),
    "LSTM of two layers in two directions": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "LSTM without biases": (nn.LSTM, {"bias": False, "batch_first": True}),
    "LSTM with a projection": (nn.LSTM, {"proj_size": 3, "num_layers": 2, "bidirectional": True}),
    "GRU": (nn.GRU, {}),
    "GRU of two layers in two directions": (nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "GRU without biases": (nn.GRU, {"bias": False}),
    "RNN": (nn.RNN, {"num_layers": 2}),
    "RNN of relu": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
}


def made(kind: str, device: str = "cpu") -> Any:
    torch.manual_seed(3)
    cls, options = KINDS[kind]
    return cls(5, 7, **options).to(place(device))


def rows(x: Any) -> Any:
    return x.data if isinstance(x, nn.utils.rnn.PackedSequence) else x


def flat(found: Any) -> list[Any]:
    y, h = found
    return [rows(y), *(h if isinstance(h, tuple) else (h,))]


def near(mine: Any, exact: Any, roundings: float = 64) -> None:
    """Within some roundings of float32 of the largest value."""
    assert mine.shape == exact.shape
    assert (mine.double().cpu() - exact).abs().max() <= roundings * 2.0**-24 * (exact.abs().max() + 1e-3)


def results(layer: Any, x: Any, state: Any = None) -> list[Any]:
    """Outputs, and gradients of a function of all of them, with respect to the input, the states and the weights."""
    inputs = [rows(x), *(state if isinstance(state, tuple) else () if state is None else (state,))]
    found = flat(layer(x, state))
    loss = sum((y.square() * (i + 1)).sum() for i, y in enumerate(found))
    leaves = [t for t in [*inputs, *layer.parameters()] if t.requires_grad]
    return [y.detach() for y in found] + list(torch.autograd.grad(loss, leaves))


def packed(x: Any, lengths: Any) -> Any:
    return nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_of_several_lengths(kind: str) -> None:
    layer = made(kind)
    layer.batch_first = False
    x = drawn(1, 4, 4, 5)
    lengths = [2, 4, 1, 2]
    with mode.reproducible(strict=True):
        found = results(layer, packed(x, lengths))
    exact = results(layer.double(), packed(x.double(), lengths))
    for mine, theirs in zip(found, exact, strict=True):
        near(mine, theirs)
    # and a sequence of a pack has the bits that it has alone
    layer.float()
    with torch.no_grad(), mode.reproducible(strict=True):
        both, _ = nn.utils.rnn.pad_packed_sequence(layer(packed(x, lengths))[0])
        for i, n in enumerate(lengths):
            assert torch.equal(layer(x[:n, i : i + 1])[0][:, 0], both[:n, i])


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_taken(kind: str) -> None:
    layer = made(kind)
    layer.batch_first = False
    x = drawn(1, 3, 2, 5)
    lead = layer.num_layers * (1 + layer.bidirectional)
    h = drawn(2, lead, 2, layer.proj_size or 7).requires_grad_()
    state = (h, drawn(4, lead, 2, 7).requires_grad_()) if isinstance(layer, nn.LSTM) else h
    wide = torch.utils._pytree.tree_map(lambda t: t.detach().double().requires_grad_(), state)
    with mode.reproducible(strict=True):
        found = results(layer, x, state)
    for mine, theirs in zip(found, results(layer.double(), x.double(), wide), strict=True):
        near(mine, theirs)


def penalty(layer: Any, x: Any, lengths: Any) -> list[Any]:
    """The gradient of a penalty on the gradient, where the first states follow from the input."""
    given = packed(x, lengths) if lengths else x
    like = layer(given)[1]
    states = [x.mean() * torch.ones_like(h) for h in (like if isinstance(like, tuple) else (like,))]
    found = flat(layer(given, tuple(states) if isinstance(like, tuple) else states[0]))
    (g,) = torch.autograd.grad(sum((i + 1) * y.square().sum() for i, y in enumerate(found)), x, create_graph=True)
    return list(torch.autograd.grad(g.square().sum(), [x, *layer.parameters()]))


@pytest.mark.parametrize("lengths", [None, [1, 3]], ids=["whole", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_gradients_are_right(kind: str, lengths: Any) -> None:
    layer = made(kind)
    x = drawn(1, 3, 2, 5)
    with mode.reproducible(strict=True):
        found = penalty(layer, x.clone().requires_grad_(), lengths)
    for mine, theirs in zip(found, penalty(layer.double(), x.double().requires_grad_(), lengths), strict=True):
        near(mine, theirs, 256)


@pytest.mark.parametrize(
    ("cell", "bias"), list(itertools.product([nn.LSTMCell, nn.GRUCell, nn.RNNCell], [True, False]))
)
def test_cells_are_right(cell: Any, bias: bool) -> None:
    torch.manual_seed(1)
    layer, x = cell(5, 7, bias=bias), drawn(1, 3, 5)

    def run(of: Any, x: Any) -> list[Any]:
        state = None
        for _ in range(2):
            state = of(x, state)
        found = list(state) if isinstance(state, tuple) else [state]
        return [y.detach() for y in found] + list(
            torch.autograd.grad(sum(y.square().sum() for y in found), list(of.parameters()))
        )

    with mode.reproducible(strict=True) as report:
        found = run(layer, x)
    assert report.here[{nn.LSTMCell: "lstm_cell", nn.GRUCell: "gru_cell", nn.RNNCell: "rnn_tanh_cell"}[cell]].calls == 2
    for mine, theirs in zip(found, run(layer.double(), x.double()), strict=True):
        near(mine, theirs)


def test_rows_do_not_depend_on_the_batch() -> None:
    for kind in KINDS:
        layer = made(kind)
        layer.batch_first = True
        x = drawn(1, 6, 4, 5)
        with torch.no_grad(), mode.reproducible(strict=True):
            whole = layer(x)[0]
            for i in range(6):
                assert torch.equal(layer(x[i : i + 1])[0][0], whole[i])
                assert torch.equal(layer(x[i])[0], whole[i])  # without a batch


def test_work_is_counted_in_operations() -> None:
    layer, x = nn.LSTM(5, 7), drawn(1, 4, 3, 5)
    for rows, given in ((12, x), (8, packed(x, [4, 3, 1]))):
        with mode.reproducible() as report:
            layer(given)
        assert report.here["lstm"].work == 2 * rows * (28 * 5 + 28 * 7)
    with mode.reproducible() as report:
        layer.double()(x.double())
    assert not report.left and report.here["addmm"].work >= 2 * 12 * (28 * 5 + 28 * 7)
    with mode.reproducible() as report:
        torch.ones(4, 6, dtype=torch.complex128) @ torch.ones(6, 3, dtype=torch.complex128)
    assert report.coverage == 0 and report.remaining["mm"].work == 2 * 4 * 3 * 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_are_rounded_once(dtype: Any) -> None:
    """Results and last states; autocast does the same to the input, the states that are given and the weights."""
    layer, x, state = made("LSTM").to(dtype), drawn(1, 4, 3, 5).to(dtype), 2 * (drawn(2, 1, 3, 7).to(dtype),)
    with mode.reproducible(strict=True):
        runs, wide = [flat(layer(x, state))], (x.float(), 2 * (state[0].float(),))
        expected = flat(layer.float()(*wide))
        with torch.autocast("cpu", dtype):
            runs.append(flat(layer(*wide)))
            g = torch.autograd.grad(runs[1][0].sum(), layer.weight_hh_l0, retain_graph=True)
        assert torch.equal(*g, *torch.autograd.grad(runs[1][0].sum(), layer.weight_hh_l0))
    for found in runs:
        assert all(y.dtype == dtype and torch.equal(y, e.to(dtype)) for y, e in zip(found, expected, strict=True))


def test_states_of_other_types_and_sizes_are_refused() -> None:
    cell = nn.LSTMCell(5, 7)
    state = 2 * (drawn(2, 3, 7).to(torch.bfloat16),)
    with mode.reproducible(), pytest.raises(RuntimeError, match="recurrent layer: got tensors of"):
        cell(drawn(1, 3, 5), state)
    with mode.reproducible(), pytest.raises(RuntimeError, match="hx: got 1 rows, expected 3"):
        cell(drawn(1, 3, 5), 2 * (drawn(2, 1, 7),))
