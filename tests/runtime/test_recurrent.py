"""nn.LSTM and nn.GRU against recurrences in NumPy, their gradients against complex steps, and captured steps."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal, assert_raises_regex

from tlrt import Session, errors, nn, optim

KINDS: dict[str, Any] = {"LSTM": nn.LSTM, "GRU": nn.GRU}
#: options, with and without a batch
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "plain": ({}, True),
    "one sequence": ({"batch_first": True}, False),
    "batch first, without bias": ({"batch_first": True, "bias": False}, True),
    "two layers in both directions": ({"num_layers": 2, "bidirectional": True}, True),
    "three layers, batch first": ({"num_layers": 3, "batch_first": True}, True),
    "one sequence in both directions": ({"bidirectional": True}, False),
}
INPUTS, HIDDEN, BATCH, LENGTH = 2, 3, 2, 5
#: results of the two float64 programs differ by roundings: at most 20 operations per position and layer, one after the other, of
#: numbers below 4
ROUNDING = 20 * LENGTH * 3 * 4 * 2.0**-53

everywhere = pytest.mark.parametrize("kind", KINDS)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def recurrence(
    kind: str, w: dict[str, Any], x: Any, states: list[Any], layers: int, ways: int
) -> tuple[Any, list[Any]]:
    """PyTorch's definition, element by element of time; x (n, batch, inputs). Real or complex."""
    last: list[Any] = [[] for _ in states]
    for layer in range(layers):
        made = []
        for way in range(ways):
            end = f"_l{layer}" + ("_reverse" if way else "")
            now, outputs = [h[layer * ways + way] for h in states], []
            for t in range(len(x))[:: -1 if way else 1]:
                a = x[t] @ w["weight_ih" + end].T + w.get("bias_ih" + end, 0)
                b = now[0] @ w["weight_hh" + end].T + w.get("bias_hh" + end, 0)
                if kind == "LSTM":
                    i, f, g, o = np.split(a + b, 4, axis=-1)
                    c = sigmoid(f) * now[1] + sigmoid(i) * np.tanh(g)
                    now = [sigmoid(o) * np.tanh(c), c]
                else:
                    (ar, az, an), (br, bz, bn) = np.split(a, 3, axis=-1), np.split(b, 3, axis=-1)
                    z = sigmoid(az + bz)
                    now = [(1 - z) * np.tanh(an + sigmoid(ar + br) * bn) + z * now[0]]
                outputs.append(now[0])
            made.append(np.stack(outputs[::-1] if way else outputs))
            for column, h in zip(last, now, strict=True):
                column.append(h)
        x = np.concatenate(made, axis=-1)
    return x, [np.stack(column) for column in last]


def parts_of(results: Any) -> list[Any]:
    """The output and the states."""
    output, states = results
    return [output, *states] if isinstance(states, (tuple, list)) else [output, states]


def weighed(results: Any, constant: Any = np.asarray) -> Any:
    """A number to which all results contribute, each element by another weight; of tensors or arrays."""
    total: Any = 0.0
    for k, y in enumerate(parts_of(results)):
        weights = np.cos(1.0 + k + np.arange(np.prod(y.shape))).astype(np.float32).reshape(y.shape)
        total = (y * constant(weights)).sum() + total
    return total


def given(kind: str, case: str, rng: Any) -> tuple[Any, list[Any]]:
    """x and states as the layer takes them; numbers of float32."""
    options, batched = CASES[case]
    count = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    x = (BATCH, LENGTH) if options.get("batch_first") else (LENGTH, BATCH)
    shapes = [(*x, INPUTS) if batched else (LENGTH, INPUTS)]
    shapes += [(count, BATCH, HIDDEN) if batched else (count, HIDDEN)] * (2 if kind == "LSTM" else 1)
    first, *states = (rng.standard_normal(shape).astype(np.float32).astype(np.float64) for shape in shapes)
    return first, states


def by_hand(kind: str, case: str, w: dict[str, Any], x: Any, states: list[Any]) -> tuple[Any, list[Any]]:
    """The recurrence with the axes of the case."""
    options, batched = CASES[case]
    swap = batched and options.get("batch_first", False)
    x, states = (x, states) if batched else (x[:, None], [h[:, None] for h in states])
    ways = 1 + options.get("bidirectional", False)
    output, last = recurrence(kind, w, x.swapaxes(0, 1) if swap else x, states, options.get("num_layers", 1), ways)
    output, last = (output, last) if batched else (output[:, 0], [h[:, 0] for h in last])
    return output.swapaxes(0, 1) if swap else output, last


def passed(kind: str, states: list[Any]) -> Any:
    return states[0] if kind == "GRU" else tuple(states)


@everywhere
@pytest.mark.parametrize("case", CASES)
def test_outputs_states_and_gradients_are_those_of_the_recurrence(kind: str, case: str) -> None:
    rng = np.random.default_rng(4)
    with Session("spec", seed=2) as s:
        layer = KINDS[kind](s, INPUTS, HIDDEN, name="l", **CASES[case][0])
        x, states = given(kind, case, rng)
        weights = layer.state_dict()
        inputs = [s.input(a, requires_grad=True) for a in (x, *states)]
        results = layer(inputs[0], passed(kind, inputs[1:]))
        for mine, hers in zip(parts_of(results), parts_of(by_hand(kind, case, weights, x, states)), strict=True):
            assert mine.shape == hers.shape
            assert_allclose(mine.numpy(), hers, rtol=0, atol=ROUNDING)
        found = s.backward(weighed(results, s.const))
        names = ["x", *(f"state {k}" for k in range(len(states)))]
        gradients = {n: leaf.grad.numpy() for n, leaf in zip(names, inputs, strict=True)}
        gradients |= {n: found[p].numpy() for n, p in layer.named_parameters()}
    whole = {**dict(zip(names, (x, *states), strict=True)), **weights}
    for name, gradient in gradients.items():
        wanted = np.empty(gradient.shape)
        for place in np.ndindex(gradient.shape):
            moved = {n: a.astype(complex) for n, a in whole.items()}
            moved[name][place] += 1e-30j
            wanted[place] = weighed(by_hand(kind, case, moved, moved["x"], [moved[n] for n in names[1:]])).imag / 1e-30
        assert_allclose(gradient, wanted, rtol=0, atol=ROUNDING * max(1, np.abs(wanted).max()), err_msg=name)


@everywhere
def test_names_and_shapes_are_those_of_torch(kind: str) -> None:
    rows = {"LSTM": 4, "GRU": 3}[kind] * HIDDEN
    shapes: dict[str, Any] = {}
    for end, inputs in {"l0": INPUTS, "l0_reverse": INPUTS, "l1": 2 * HIDDEN, "l1_reverse": 2 * HIDDEN}.items():
        shapes |= {f"weight_ih_{end}": (rows, inputs), f"weight_hh_{end}": (rows, HIDDEN)}
        shapes |= {f"bias_ih_{end}": (rows,), f"bias_hh_{end}": (rows,)}
    with Session("cpu", seed=1) as s:
        layer = KINDS[kind](s, INPUTS, HIDDEN, 2, name="l", bidirectional=True)
        state = layer.state_dict()
        assert {n: a.shape for n, a in state.items()} == shapes and list(state) == list(shapes)
        assert list(s.parameters) == [f"l.{n}" for n in shapes]
        assert all(0 < np.abs(a).max() <= np.float32(HIDDEN**-0.5) for a in state.values())
        layer.load_state_dict({n: np.ones(shape) for n, shape in shapes.items()})
        y, last = layer(s.zeros((LENGTH, 0, INPUTS)))
        assert y.shape == (LENGTH, 0, 2 * HIDDEN) and {h.shape for h in parts_of((y, last))[1:]} == {(4, 0, HIDDEN)}


@everywhere
def test_states_go_on_and_start_at_zero(kind: str) -> None:
    with Session("spec", seed=1) as s:
        layer = KINDS[kind](s, INPUTS, HIDDEN, 2, name="l", batch_first=True)
        x = s.const(np.random.default_rng(1).standard_normal((BATCH, LENGTH, INPUTS)))
        zeros = [s.zeros((2, BATCH, HIDDEN))] * (2 if kind == "LSTM" else 1)
        whole, last = layer(x, passed(kind, zeros))
        assert_array_equal(layer(x)[0].numpy(), whole.numpy())
        first, states = layer(x[:, :2])
        rest, after = layer(x[:, 2:], states)
        parts = np.concatenate([first.numpy(), rest.numpy()], axis=1)
        for mine, hers in zip(parts_of((whole, last)), (parts, *parts_of((rest, after))[1:]), strict=True):
            assert_allclose(np.asarray(hers), mine.numpy(), rtol=0, atol=ROUNDING)


@everywhere
def test_dropout_stands_between_layers_in_training(kind: str) -> None:
    with Session("cpu", seed=1) as s:
        layer = KINDS[kind](s, INPUTS, HIDDEN, 2, name="l", dropout=0.5)
        plain = KINDS[kind](s, INPUTS, HIDDEN, 2, name="m")
        plain.load_state_dict(layer.state_dict())
        x = s.const(np.random.default_rng(1).standard_normal((LENGTH, BATCH, INPUTS)))
        assert_array_equal(layer(x)[0].numpy(), plain(x, training=True)[0].numpy())
        drawn = s.counter
        trained = layer(x, training=True)
        assert s.counter == drawn + 1
        mine, hers = (parts_of(r)[1].numpy() for r in (trained, plain(x)))
        assert_array_equal(mine[0], hers[0])  # the first layer drops nothing before it
        assert (mine[1] != hers[1]).any() and (trained[0].numpy() != 0).all()


@everywhere
def test_captured_steps_give_the_bits_of_eager_ones(kind: str) -> None:
    rng = np.random.default_rng(3)
    batches = [rng.standard_normal((BATCH, LENGTH, INPUTS)).astype(np.float32) for _ in range(3)]

    found = []
    for captured in (False, True):
        with Session("cpu", seed=1) as s:
            layer = KINDS[kind](s, INPUTS, HIDDEN, 2, name="l", batch_first=True, bidirectional=True, dropout=0.25)
            optimizer = optim.AdamW(layer.parameters(), lr=0.1)

            def step(x: Any, s: Any = s, layer: Any = layer, optimizer: Any = optimizer) -> Any:
                loss = weighed(layer(s.const(x), training=True), s.const)
                s.backward(loss)
                optimizer.step()
                return loss

            run = s.capture(step, batches[0]) if captured else step
            losses = [run(x).item() for x in batches[captured:]]
            found.append([*layer.state_dict().values(), *losses[-2:]])
            optimizer.close()
    for eager, replayed in zip(*found, strict=True):
        assert_array_equal(eager, replayed)


def test_time_grows_with_the_length_not_its_square() -> None:
    """By the elements that the gradients of cuts write, which are those of what is cut."""
    with Session("cpu", seed=1) as s:
        layer = nn.LSTM(s, INPUTS, HIDDEN, name="l")

        def written(length: int) -> int:
            layer(s.zeros((length, 1, INPUTS)))
            cuts = [n.parents[0] for n in s.tape.nodes if n.name == "slice_axes"]
            total = sum(int(np.prod(s.tape.shape(p))) for p in cuts)
            s.reset()
            return total

        assert written(128) < 2.5 * written(64)


@everywhere
def test_what_does_not_fit_is_refused(kind: str) -> None:
    with Session("cpu", seed=1) as s:
        layer, x = KINDS[kind](s, INPUTS, HIDDEN, name="l", batch_first=True), s.zeros((BATCH, LENGTH, INPUTS))
        for wrong in ((LENGTH, INPUTS + 1), (INPUTS,), (BATCH, 0, INPUTS), (0, INPUTS), (1, BATCH, LENGTH, INPUTS)):
            said = f"{kind}: x: got shape .*expected \\(batch, n, 2\\) or \\(n, 2\\) with n of 1 or more"
            assert_raises_regex(errors.ShapeError, said, layer, s.zeros(wrong))
        h, wrong_h = s.zeros((1, BATCH, HIDDEN)), s.zeros((BATCH, HIDDEN))
        said = r"h_0: got shape \(2, 3\), expected \(1, 2, 3\)"
        assert_raises_regex(errors.ShapeError, said, layer, x, passed(kind, [wrong_h, h]))
        said = r"h_0: got shape \(1, 2, 3\), expected \(1, 3\)"
        assert_raises_regex(errors.ShapeError, said, layer, s.zeros((LENGTH, INPUTS)), passed(kind, [h, h]))
        for option in ("hidden_size", "num_layers"):
            sizes = {"name": "m", "input_size": 2, "hidden_size": 2, option: 0}
            assert_raises_regex(errors.ArgumentError, f"{kind}: {option}: got 0, expected 1", KINDS[kind], s, **sizes)
        assert_raises_regex(errors.ArgumentError, "p: got 1.5", KINDS[kind], s, 2, 2, name="m", dropout=1.5)
        assert_raises_regex(errors.ArgumentTypeError, "input_size", KINDS[kind], s, "2", 2, name="m")
        if kind == "LSTM":
            assert_raises_regex(errors.ArgumentTypeError, r"states: got TensorRef, expected \(h_0, c_0\)", layer, x, h)
            assert_raises_regex(errors.ShapeError, "c_0: got shape", layer, x, (h, wrong_h))
