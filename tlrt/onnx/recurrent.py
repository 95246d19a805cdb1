"""Recurrent cells over sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tlrt.onnx.graph import Host, Node, NotExpressible, Run, Tensor, operator

#: activations -> what their alpha and beta are called in the operator of that name, or the function itself
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "Softsign": (), "Softplus": (), "LeakyRelu": ("alpha",), "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"),
}  # fmt: skip


class _Activations:
    """The functions of each direction, as attributes name them; alphas and betas belong to those that take one, in order."""

    def __init__(
        self, run: Run, names: Any, default: Sequence[str], directions: int, alphas: Any, betas: Any, clip: Any
    ) -> None:
        given = list(names or [*default] * directions)
        values = {"alpha": list(alphas or ()), "beta": list(betas or ())}
        self._functions = [self._one(run, name.capitalize(), values, clip) for name in given]
        self._count = len(default)

    def of(self, direction: int) -> list[Callable[[Tensor], Tensor]]:
        return self._functions[direction * self._count : (direction + 1) * self._count]

    def _one(
        self, run: Run, name: str, values: dict[str, list[float]], clip: float | None
    ) -> Callable[[Tensor], Tensor]:
        op = next((o for o in (*_PARAMETERS, "Affine", "ScaledTanh") if o.capitalize() == name), None)
        if op is None:
            raise NotExpressible(f"the activation {name}")
        wanted = _PARAMETERS.get(op, ("alpha", "beta"))
        said = {n: values[n].pop(0) for n in wanted if values[n]}

        def call(x: Tensor) -> Tensor:
            x = x if clip is None else x.clamp(-clip, clip)
            a, b = said.get("alpha", 1.0), said.get("beta", 1.0 if op == "ScaledTanh" else 0.0)
            if op == "Affine":
                return x * a + b
            if op == "ScaledTanh":
                return (x * b).tanh() * a
            return run.call(Node(op, ["x"], ["y"], said), [x])[0]

        return call


def _recur(
    run: Run, x: Tensor, r: Tensor, lengths: Host, states: list[Tensor], direction: str, layout: int,
    cell: Callable[[int], Callable[..., list[Tensor]]],
) -> list[Tensor]:  # fmt: skip
    """Runs the cell of each direction over time: all first states, (time, directions, batch, hidden), and the last of each.
    Behind the end of a sequence they are 0, and the last states are those at its end."""
    s, swap = run.session, (1, 0, 2)
    x = x.permute(swap) if layout else x
    zeros = s.zeros((r.shape[0], x.shape[1], r.shape[2]))
    starts = [zeros if h is None else h.permute(swap) if layout else h for h in states]
    ended = None if lengths is None else np.arange(x.shape[0])[:, None, None] >= lengths[:, None]
    histories, lasts = [], []
    for d in range(r.shape[0]):
        order = -1 if direction == "reverse" or d == 1 else 1
        step, now, seen = cell(d), [h[d] for h in starts], []
        for t in range(x.shape[0])[::order]:
            after = step(x[t], *now)
            if ended is not None and ended[t].any():
                over = run.tensor(np.broadcast_to(ended[t], after[0].shape))
                seen.append(after[0].masked_fill(over, 0.0))
                now = [s.where(over, old, new) for old, new in zip(now, after)]
            else:
                seen.append(after[0])
                now = after
        histories.append(s.stack(seen[::order]) if seen else s.zeros((0, *zeros.shape[1:])))
        lasts.append(now)
    y, *last = s.stack(histories, 1), *(s.stack(list(column)) for column in zip(*lasts))
    return [y.permute((2, 0, 1, 3)), *(h.permute(swap) for h in last)] if layout else [y, *last]


@operator("RNN")
def rnn(
    run: Run, x: Tensor, w: Tensor, r: Tensor, b: Tensor = None, lengths: Host = None, first: Tensor = None, *,
    hidden_size: int | None = None, direction: str = "forward", layout: int = 0, activations: Any = None,
    activation_alpha: Any = None, activation_beta: Any = None, clip: float | None = None,
) -> Any:  # fmt: skip
    chosen = _Activations(run, activations, ["Tanh"], r.shape[0], activation_alpha, activation_beta, clip)

    def cell(d: int) -> Any:
        wd, rd, bias = w[d].transpose2d(), r[d].transpose2d(), 0.0 if b is None else sum(b[d].split(r.shape[2]))
        (f,) = chosen.of(d)
        return lambda now, h: [f(now @ wd + h @ rd + bias)]

    return _recur(run, x, r, lengths, [first], direction, layout, cell)


@operator("GRU")
def gru(
    run: Run, x: Tensor, w: Tensor, r: Tensor, b: Tensor = None, lengths: Host = None, first: Tensor = None, *,
    hidden_size: int | None = None, direction: str = "forward", layout: int = 0, linear_before_reset: int = 0,
    activations: Any = None, activation_alpha: Any = None, activation_beta: Any = None, clip: float | None = None,
) -> Any:  # fmt: skip
    n = r.shape[2]
    chosen = _Activations(run, activations, ["Sigmoid", "Tanh"], r.shape[0], activation_alpha, activation_beta, clip)

    def cell(d: int) -> Any:
        wd, rd = w[d].transpose2d(), r[d].transpose2d()
        wb, rb = (run.session.zeros(6 * n) if b is None else b[d]).split(3 * n)
        f, g = chosen.of(d)

        def step(now: Tensor, h: Tensor) -> list[Tensor]:
            a, c = now @ wd + wb, h @ rd + rb
            z, reset = f(a[:, : 2 * n] + c[:, : 2 * n]).split(n, 1)
            again = reset * c[:, 2 * n :] if linear_before_reset else (reset * h) @ rd[:, 2 * n :] + rb[2 * n :]
            return [(1 - z) * g(a[:, 2 * n :] + again) + z * h]

        return step

    return _recur(run, x, r, lengths, [first], direction, layout, cell)


@operator("LSTM")
def lstm(
    run: Run, x: Tensor, w: Tensor, r: Tensor, b: Tensor = None, lengths: Host = None, first: Tensor = None,
    memory: Tensor = None, peepholes: Tensor = None, *, hidden_size: int | None = None, direction: str = "forward",
    layout: int = 0, input_forget: int = 0, activations: Any = None, activation_alpha: Any = None, activation_beta: Any = None,
    clip: float | None = None,
) -> Any:  # fmt: skip
    n, defaults = r.shape[2], ["Sigmoid", "Tanh", "Tanh"]
    chosen = _Activations(run, activations, defaults, r.shape[0], activation_alpha, activation_beta, clip)

    def cell(d: int) -> Any:
        wd, rd, bias = w[d].transpose2d(), r[d].transpose2d(), 0.0 if b is None else sum(b[d].split(4 * n))
        pi, po, pf = (run.session.zeros(3 * n) if peepholes is None else peepholes[d]).split(n)
        gate, candidate, out = chosen.of(d)

        def step(now: Tensor, h: Tensor, c: Tensor) -> list[Tensor]:
            i, o, f, g = (now @ wd + h @ rd + bias).split(n, 1)
            opened = gate(i + pi * c)
            kept = 1 - opened if input_forget else gate(f + pf * c)
            c_next = kept * c + opened * candidate(g)
            return [gate(o + po * c_next) * out(c_next), c_next]

        return step

    return _recur(run, x, r, lengths, [first, memory], direction, layout, cell)
