"""PyTorch's calls for rows of models: those of :mod:`bench.operations`, and gradients that these have no call for."""

from collections.abc import Callable, Mapping
from typing import Any

from bench.measure import Subject, as_tuple
from tlspec.bounds import call_named


def _backward(name: str, *arguments: str) -> Callable[..., Any]:
    """A call of an ATen operator with these arrays and numbers."""

    def peer(torch: Any, **given: Any) -> Any:
        function, values = getattr(torch.ops.aten, name), [given[a] if isinstance(a, str) else a for a in arguments]
        return lambda: function(*values)

    return peer


def _relu(torch: Any, x: Any, g: Any) -> Any:
    return torch.ops.aten.threshold_backward(g, x, 0)


def _softplus(torch: Any, x: Any, g: Any) -> Any:
    return torch.ops.aten.softplus_backward(g, x, 1, 20)


def _mse(torch: Any, yhat: Any, target: Any, g: Any) -> Any:
    backward, upstream = torch.ops.aten.mse_loss_backward, g[0]
    return lambda: backward(upstream, yhat, target, 1)


def _rows(torch: Any, x: Any, indices: Any) -> Any:
    """Of one list of indices for all."""
    places = indices.flatten()
    return lambda: torch.index_select(x, 1, places)


def _rows_backward(torch: Any, g: Any, indices: Any, outer: int, n: int) -> Any:
    places = indices.flatten()
    if outer == 1:
        return lambda: torch.ops.aten.embedding_dense_backward(g[0], places, n, -1, False)
    return lambda: g.new_zeros((outer, n, g.shape[2])).index_put_([None, places], g, True)


def _add_rows(torch: Any, x: Any, values: Any, indices: Any) -> Any:
    places = indices.flatten()
    return lambda: torch.index_add(x, 1, places, values)


def _avg_pool(torch: Any, g: Any, channels: int, spatial: Any, kernel: Any, stride: Any, padding: Any) -> Any:
    backward, x = getattr(torch.ops.aten, f"avg_pool{len(kernel)}d_backward"), g.new_empty((1, channels, *spatial))
    return lambda: backward(g[None], x, kernel, stride, padding, False, True, None)


def _lstm(torch: Any, device: str, x: Any, a: Any, c: Any) -> Any:
    if device == "cpu":  # PyTorch has no operator of one step there
        from bench.operations.scan import BENCHMARKS

        step = BENCHMARKS["lstm_cell"].torch
        assert step is not None
        return lambda: step(torch, x, a, c)
    given, state = x.flatten(1), a.flatten(1)
    return lambda: torch.ops.aten._thnn_fused_lstm_cell(given, state, c)


def _lstm_backward(torch: Any, device: str, gates: Any, c: Any, cell: Any, g_cell: Any, g_hidden: Any) -> Any:
    if device != "cpu":
        work = gates.flatten(1)
        backward = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
        return lambda: backward(g_hidden, g_cell, c, cell, work, True)

    def backward_of_step() -> Any:
        i, f, g, o = gates.unbind(1)
        t = cell.tanh()
        dc = g_cell + g_hidden * o * (1 - t * t)
        di, df, dg, do = dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g), g_hidden * t * o * (1 - o)
        return torch.stack([di, df, dg, do], 1), dc * f

    return backward_of_step


#: by operation and which of its calls
PEERS: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("relu", "vjp"): _relu, ("softplus", "vjp"): _softplus, ("mse_loss", "vjp"): _mse,
    ("sigmoid", "vjp"): _backward("sigmoid_backward", "g", "out"),
    ("hardswish", "vjp"): _backward("hardswish_backward", "g", "x"),
    ("take_axis", "forward"): _rows, ("take_axis", "vjp"): _rows_backward,
    ("scatter_add_axis", "forward"): _add_rows, ("avg_pool", "vjp"): _avg_pool,
    ("lstm_cell", "forward"): _lstm, ("lstm_cell", "vjp"): _lstm_backward,
}  # fmt: skip


def _differentiated(subject: Subject, torch: Any, place: str, tensors: Mapping[str, Any]) -> Callable[[], Any]:
    """PyTorch's own gradient of its forward, which has run before."""
    forward = subject.op.signature
    leaves = {a.name: tensors[a.name].detach().requires_grad_() for a in forward.inputs
              if a.name in tensors and a.kind == "f32"}  # fmt: skip
    given = {"torch": torch, "device": place, **subject.names, **{a.name: None for a in forward.inputs if a.optional},
             **tensors, **leaves}  # fmt: skip
    function = subject.benchmark.torch
    assert function is not None, f"{subject.op.name}: no call of PyTorch's"
    outs = call_named(function, given)
    outs = as_tuple(outs() if callable(outs) else outs)
    names = {a.name for a in forward.inputs} | {a.name for a in forward.outputs}
    above = [tensors[a.name] for a in subject.signature.inputs if a.name not in names]
    above = [g.reshape(y.shape) for g, y in zip(above, outs, strict=False)]
    wanted = list(leaves.values())
    return lambda: torch.autograd.grad(outs[: len(above)], wanted, above, retain_graph=True)


def call(subject: Subject, torch: Any, place: str, tensors: Mapping[str, Any]) -> Callable[[], Any]:
    """PyTorch's call for a row with these inputs, to be made more than once."""
    function = PEERS.get((subject.op.name, subject.which))
    if function is None:
        function = subject.benchmark.torch if subject.which == "forward" else subject.benchmark.torch_vjp
    if function is None and subject.which == "vjp":
        return _differentiated(subject, torch, place, tensors)
    assert function is not None, f"{subject.op.name}: no call of PyTorch's"
    return subject.call_torch(function, torch, place, tensors)
