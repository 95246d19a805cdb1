"""Recurrent cells over sequences; an LSTM without peepholes is nn.LSTM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from audit.onnx_nodes.graph import Host, NotExpressible, Run, Tensor, operator
from tlrt import nn


def _recur(
    run: Run, x: Tensor, states: list[Tensor], shape: tuple[int, int], direction: str, layout: int,
    cells: list[Callable[[Tensor, list[Tensor]], list[Tensor]]],
) -> list[Tensor]:  # fmt: skip
    """Runs a cell for each direction over time: all first states, (time, directions, batch, hidden), and the last of each."""
    s = run.session
    x = x.permute((1, 0, 2)) if layout else x
    ways, hidden = shape
    starts = [
        s.zeros((ways, x.shape[1], hidden)) if h is None else h.permute((1, 0, 2)) if layout else h for h in states
    ]
    histories, lasts = [], []
    for d, cell in enumerate(cells):
        backward = direction == "reverse" or d == 1
        now, seen = [h[d] for h in starts], []
        for t in range(x.shape[0])[:: -1 if backward else 1]:
            now = cell(x[t], now)
            seen.append(now[0])
        histories.append(s.stack(seen[::-1] if backward else seen))
        lasts.append(now)
    results = [s.stack(histories, 1), *(s.stack(list(column)) for column in zip(*lasts))]
    if layout:
        results = [results[0].permute((2, 0, 1, 3)), *(r.permute((1, 0, 2)) for r in results[1:])]
    return results


def _plain(lengths: Host, x: Tensor, layout: int) -> None:
    if lengths is not None and (lengths != x.shape[layout]).any():
        raise NotExpressible("sequences of several lengths")


@operator("RNN")
def rnn(
    run: Run, x: Tensor, w: Tensor, r: Tensor, b: Tensor = None, lengths: Host = None, first: Tensor = None, *,
    hidden_size: int, direction: str = "forward", layout: int = 0, activations: Any = (),
) -> Any:  # fmt: skip
    _plain(lengths, x, layout)
    if any(a != b"Tanh" for a in activations):
        raise NotExpressible("activations of RNN")

    def cell(d: int) -> Any:
        def step(now: Tensor, states: list[Tensor]) -> list[Tensor]:
            sums = now @ w[d].transpose2d() + states[0] @ r[d].transpose2d()
            return [(sums if b is None else sums + b[d, :hidden_size] + b[d, hidden_size:]).tanh()]

        return step

    cells = [cell(d) for d in range(w.shape[0])]
    return _recur(run, x, [first], (w.shape[0], hidden_size), direction, layout, cells)


@operator("GRU")
def gru(
    run: Run, x: Tensor, w: Tensor, r: Tensor, b: Tensor = None, lengths: Host = None, first: Tensor = None, *,
    hidden_size: int, direction: str = "forward", layout: int = 0, linear_before_reset: int = 0,
) -> Any:  # fmt: skip
    _plain(lengths, x, layout)
    n = hidden_size

    def cell(d: int) -> Any:
        wd, rd = w[d].transpose2d(), r[d].transpose2d()
        zeros = run.session.zeros(3 * n)
        wb, rb = (zeros, zeros) if b is None else b[d].split(3 * n)

        def step(now: Tensor, states: list[Tensor]) -> list[Tensor]:
            h = states[0]
            a, c = now @ wd + wb, h @ rd + rb
            z, reset = (a[:, :n] + c[:, :n]).sigmoid(), (a[:, n : 2 * n] + c[:, n : 2 * n]).sigmoid()
            again = reset * c[:, 2 * n :] if linear_before_reset else (reset * h) @ rd[:, 2 * n :] + rb[2 * n :]
            return [(1 - z) * (a[:, 2 * n :] + again).tanh() + z * h]

        return step

    cells = [cell(d) for d in range(w.shape[0])]
    return _recur(run, x, [first], (w.shape[0], n), direction, layout, cells)


@operator("LSTM")
def lstm(
    run: Run, x: Tensor, w: Tensor, r: Tensor, b: Tensor = None, lengths: Host = None, first: Tensor = None,
    memory: Tensor = None, peepholes: Tensor = None, *, hidden_size: int, direction: str = "forward", layout: int = 0,
) -> Any:  # fmt: skip
    _plain(lengths, x, layout)
    n = hidden_size
    if peepholes is None and direction != "reverse" and (first is None) == (memory is None):
        return _as_layer(run, x, w, r, b, None if first is None else [first, memory], n, layout)

    def cell(d: int) -> Any:
        wd, rd = w[d].transpose2d(), r[d].transpose2d()
        bias = run.session.zeros(4 * n) if b is None else b[d, : 4 * n] + b[d, 4 * n :]
        pi, po, pf = [run.session.zeros(n)] * 3 if peepholes is None else peepholes[d].split(n)

        def step(now: Tensor, states: list[Tensor]) -> list[Tensor]:
            h, c = states
            i, o, f, g = (now @ wd + h @ rd + bias).split(n, 1)
            c_next = (f + pf * c).sigmoid() * c + (i + pi * c).sigmoid() * g.tanh()
            return [(o + po * c_next).sigmoid() * c_next.tanh(), c_next]

        return step

    cells = [cell(d) for d in range(w.shape[0])]
    return _recur(run, x, [first, memory], (w.shape[0], n), direction, layout, cells)


def _as_layer(
    run: Run, x: Tensor, w: Tensor, r: Tensor, b: Tensor, states: list[Tensor] | None, n: int, layout: int
) -> list[Tensor]:  # fmt: skip
    """The LSTM by the layer, whose gates come in the order i, f, g, o, where ONNX has i, o, f, g."""
    s, name, ways = run.session, "onnx.lstm", w.shape[0]
    layer = nn.LSTM(s, w.shape[2], n, name=name, bias=b is not None, bidirectional=ways == 2)
    try:
        parts = {"weight_ih": run.host(w), "weight_hh": run.host(r)}
        if b is not None:
            parts |= {"bias_ih": run.host(b)[:, : 4 * n], "bias_hh": run.host(b)[:, 4 * n :]}
        order = np.arange(4 * n).reshape(4, n)[[0, 2, 3, 1]].reshape(-1)
        ends = ("_l0", "_l0_reverse")
        layer.load_state_dict({part + ends[d]: v[d][order] for part, v in parts.items() for d in range(ways)})
        swap = (1, 0, 2)
        x, states = (x.permute(swap), states and [h.permute(swap) for h in states]) if layout else (x, states)
        y, last = layer(x, states)
        y = y.reshape((*y.shape[:2], ways, n))
        if layout:
            return [y.permute((1, 0, 2, 3)), *(h.permute(swap) for h in last)]
        return [y.permute((0, 2, 1, 3)), *last]
    finally:
        s.parameters.drop(name)
