"""Recurrent cells over sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tlrt.onnx.graph import Host, NotExpressible, Run, Tensor, operator


def _recur(
    run: Run, x: Tensor, r: Tensor, lengths: Host, states: list[Tensor], direction: str, layout: int,
    cell: Callable[[int], Callable[..., list[Tensor]]],
) -> list[Tensor]:  # fmt: skip
    """Runs the cell of each direction over time: all first states, (time, directions, batch, hidden), and the last of each."""
    if lengths is not None and (lengths != x.shape[layout]).any():
        raise NotExpressible("sequences of several lengths")
    s, swap = run.session, (1, 0, 2)
    x = x.permute(swap) if layout else x
    zeros = s.zeros((r.shape[0], x.shape[1], r.shape[2]))
    starts = [zeros if h is None else h.permute(swap) if layout else h for h in states]
    histories, lasts = [], []
    for d in range(r.shape[0]):
        order = -1 if direction == "reverse" or d == 1 else 1
        step, now, seen = cell(d), [h[d] for h in starts], []
        for t in range(x.shape[0])[::order]:
            now = step(x[t], *now)
            seen.append(now[0])
        histories.append(s.stack(seen[::order]))
        lasts.append(now)
    y, *last = s.stack(histories, 1), *(s.stack(list(column)) for column in zip(*lasts))
    return [y.permute((2, 0, 1, 3)), *(h.permute(swap) for h in last)] if layout else [y, *last]


@operator("RNN")
def rnn(
    run: Run, x: Tensor, w: Tensor, r: Tensor, b: Tensor = None, lengths: Host = None, first: Tensor = None, *,
    hidden_size: int, direction: str = "forward", layout: int = 0,
) -> Any:  # fmt: skip
    def cell(d: int) -> Any:
        wd, rd, bias = w[d].transpose2d(), r[d].transpose2d(), 0.0 if b is None else sum(b[d].split(hidden_size))
        return lambda now, h: [(now @ wd + h @ rd + bias).tanh()]

    return _recur(run, x, r, lengths, [first], direction, layout, cell)


@operator("GRU")
def gru(
    run: Run, x: Tensor, w: Tensor, r: Tensor, b: Tensor = None, lengths: Host = None, first: Tensor = None, *,
    hidden_size: int, direction: str = "forward", layout: int = 0, linear_before_reset: int = 0,
) -> Any:  # fmt: skip
    n = hidden_size

    def cell(d: int) -> Any:
        wd, rd = w[d].transpose2d(), r[d].transpose2d()
        wb, rb = (run.session.zeros(6 * n) if b is None else b[d]).split(3 * n)

        def step(now: Tensor, h: Tensor) -> list[Tensor]:
            a, c = now @ wd + wb, h @ rd + rb
            z, reset = (a[:, : 2 * n] + c[:, : 2 * n]).sigmoid().split(n, 1)
            again = reset * c[:, 2 * n :] if linear_before_reset else (reset * h) @ rd[:, 2 * n :] + rb[2 * n :]
            return [(1 - z) * (a[:, 2 * n :] + again).tanh() + z * h]

        return step

    return _recur(run, x, r, lengths, [first], direction, layout, cell)


@operator("LSTM")
def lstm(
    run: Run, x: Tensor, w: Tensor, r: Tensor, b: Tensor = None, lengths: Host = None, first: Tensor = None,
    memory: Tensor = None, peepholes: Tensor = None, *, hidden_size: int, direction: str = "forward", layout: int = 0,
) -> Any:  # fmt: skip
    n = hidden_size

    def cell(d: int) -> Any:
        wd, rd, bias = w[d].transpose2d(), r[d].transpose2d(), 0.0 if b is None else sum(b[d].split(4 * n))
        pi, po, pf = (run.session.zeros(3 * n) if peepholes is None else peepholes[d]).split(n)

        def step(now: Tensor, h: Tensor, c: Tensor) -> list[Tensor]:
            i, o, f, g = (now @ wd + h @ rd + bias).split(n, 1)
            c_next = (f + pf * c).sigmoid() * c + (i + pi * c).sigmoid() * g.tanh()
            return [(o + po * c_next).sigmoid() * c_next.tanh(), c_next]

        return step

    return _recur(run, x, r, lengths, [first, memory], direction, layout, cell)
