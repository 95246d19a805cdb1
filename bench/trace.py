"""``python -m bench.trace``: takes the operations of models' training steps out of PyTorch, and writes ``bench/model_rows.json``.

Each model runs forward and backward on PyTorch's meta device, which has shapes and strides and no memory, so that batch 64 costs
no more than batch 1. Every call of an ATen operator that one of this library's operations computes becomes a row: the operation,
whether it is its gradient, dimensions and parameters as :mod:`bench.operations` has them, the optional inputs that are given and
the gradients that are wanted. Equal rows of a model are one row and a count. Attention, cross entropy, recurrent layers and
spectral convolutions are taken whole, before PyTorch takes them apart. Rows of more than :data:`MOST_BYTES` stand for themselves
as rows of a smaller batch and a larger count. What no operation computes is listed by name and count; views and empty memory are
not.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from bench.aten_rules import Recorder, Size, extent, product
from bench.models import BATCHES, FILE, ModelRow, encode, load
from bench.torch_zoo import TRACED, has_packages

#: the most bytes that a row's operands and results have together
MOST_BYTES = 5e9
#: keys before or after a query that attention reads where there is no limit
ALL = 0xFFFFFFFF


# ---- what is taken whole -----------------------------------------------------------------------------------------------


def _lying(name: str, t: Any) -> Size:
    """How (batch, heads, rows, d) lies in memory."""
    return {
        f"{name}_size": extent(t),
        **dict(zip((f"{name}_{a}" for a in ("batch", "head", "row")), t.stride(), strict=False)),
    }


def _by_rows(t: Any) -> bool:
    return t.stride(1) < t.stride(2)


class Attention(torch.autograd.Function):
    """Scaled dot-product attention of four axes, whose results lie by rows."""

    @staticmethod
    def forward(ctx: Any, rec: Recorder, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float) -> Any:
        q, k, v = (t if t.stride(3) == 1 else torch.empty(t.shape, device="meta") for t in (q, k, v))
        y = torch.empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3]), device="meta").transpose(1, 2)
        masked: Size = {"mask_mode": 0, "mask_batch": 1, "mask_heads": 1, "mask_queries": 1}
        if mask is not None:
            shape = [1] * (4 - mask.dim()) + [n if s else 1 for n, s in zip(mask.shape, mask.stride(), strict=True)]
            masked = {"mask_mode": 1 if mask.dtype == torch.bool else 2,
                      **dict(zip(("mask_batch", "mask_heads", "mask_queries"), shape, strict=False))}  # fmt: skip
        ctx.size = {
            "batch": q.shape[0], "heads": q.shape[1], "kv_heads": k.shape[1], "queries": q.shape[2], "keys": k.shape[2],
            "d": q.shape[3], "width": v.shape[3], **masked, "before": ALL, "after": 0 if causal else ALL, "offset": 0,
            "scale": scale, **_lying("q", q), **_lying("k", k), **_lying("v", v),
        }  # fmt: skip
        ctx.rec, ctx.given = rec, [] if mask is None else ["mask"]
        ctx.like = [q, k, v]
        ctx.y = y
        rec.add("attention_strided", {**ctx.size, "by_rows": 1}, given=ctx.given)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        g = grads[0] if grads[0].stride(3) == 1 else torch.empty(grads[0].shape, device="meta")
        found = [torch.empty_like(t) for t in ctx.like]
        order = sum(int(_by_rows(t)) << i for i, t in enumerate(ctx.like))
        size = {**ctx.size, **_lying("y", ctx.y), **_lying("g", g), "by_rows": order}
        ctx.rec.add("attention_strided_gradients", size, given=ctx.given)
        return None, *found, None, None, None


class CrossEntropy(torch.autograd.Function):
    """The mean over rows of logits and labels."""

    @staticmethod
    def forward(ctx: Any, rec: Recorder, logits: Any, rows: int, cols: int) -> Any:
        ctx.rec, ctx.like, ctx.size = rec, logits, {"rows": rows, "cols": cols}
        rec.add("cross_entropy", ctx.size)
        return torch.empty((), device="meta")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.rec.add("cross_entropy", ctx.size, "vjp")
        return None, torch.empty_like(ctx.like), None, None


class LstmLayer(torch.autograd.Function):
    """One layer over all steps: the inputs' products are one, and so are the weights' gradients."""

    @staticmethod
    def forward(ctx: Any, rec: Recorder, x: Any, w: Any, u: Any, *biases: Any) -> Any:
        steps, rows, units = x.shape[0], x.shape[1], u.shape[1]
        ctx.rec, ctx.like, ctx.sizes = rec, (x, w, u, *biases), (steps, rows, units)
        product(rec, x.reshape(1, steps * rows, -1), w.t()[None], bool(biases))
        h = torch.empty((rows, units), device="meta")
        for _ in range(steps):
            product(rec, h[None], u.t()[None], bool(biases))
            rec.add("lstm_cell", {"rows": rows, "units": units})
        return torch.empty((steps, rows, units), device="meta")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (steps, rows, units), (x, w, u, *biases), rec = ctx.sizes, ctx.like, ctx.rec
        g = torch.empty((rows, 4 * units), device="meta")
        for _ in range(steps):
            rec.add("lstm_cell", {"rows": rows, "units": units}, "vjp")
            product(rec, g[None], u[None], False)
        whole = torch.empty((steps * rows, 4 * units), device="meta")
        h = torch.empty((steps * rows, units), device="meta")
        product(rec, whole.t()[None], h[None], False)
        product(rec, whole.t()[None], x.reshape(1, steps * rows, -1), False)
        product(rec, whole[None], w[None], False)
        if biases:
            rec.add("reduce_sum_axis", {"dims": [steps * rows, 4 * units], "axis": 0})
        return None, *(torch.empty_like(t) for t in ctx.like)


class SpectralConv(torch.autograd.Function):
    """A truncated spectral convolution of each sample (grid, width)."""

    @staticmethod
    def forward(ctx: Any, rec: Recorder, x: Any, re: Any, im: Any) -> Any:
        ctx.rec, ctx.like = rec, (x, re, im)
        ctx.size = {"grid": x.shape[1], "width": x.shape[2], "modes": re.shape[0]}
        for _ in range(x.shape[0]):
            rec.add("spectral_conv1d_rfft", ctx.size)
        return torch.empty(x.shape, device="meta")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        for _ in range(ctx.like[0].shape[0]):
            ctx.rec.add("spectral_conv1d_rfft", ctx.size, "vjp")
        return None, *(torch.empty_like(t) for t in ctx.like)


class Whole(TorchFunctionMode):
    """Takes attention, cross entropy, recurrent layers and spectral convolutions before PyTorch takes them apart."""

    def __init__(self, rec: Recorder) -> None:
        super().__init__()
        self.rec = rec

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        taken = getattr(self, f"_{getattr(func, '__name__', '')}", None)
        found = taken(*args, **kwargs) if taken else None
        return func(*args, **kwargs) if found is None else found

    def _scaled_dot_product_attention(
        self, q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if q.dim() != 4 or (attn_mask is not None and attn_mask.requires_grad):
            return None
        return Attention.apply(self.rec, q, k, v, attn_mask, is_causal, scale or q.shape[-1] ** -0.5)

    def _cross_entropy(self, logits: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
        cols = logits.shape[1] if logits.dim() > 1 else logits.shape[0]
        return CrossEntropy.apply(self.rec, logits, logits.numel() // cols, cols)

    def _lstm(self, x: Any, state: Any, weights: Any, biased: bool, layers: int, dropout: float, train: bool,
              bidirectional: bool, batch_first: bool) -> Any:  # fmt: skip
        x, each = x.transpose(0, 1) if batch_first else x, 4 if biased else 2
        for i in range(layers):
            x = LstmLayer.apply(self.rec, x, *weights[each * i : each * i + each])
        return (x.transpose(0, 1) if batch_first else x), state[0], state[1]

    def _spectral_conv(self, x: Any, re: Any, im: Any) -> Any:
        return SpectralConv.apply(self.rec, x, re, im)


# ---- models ------------------------------------------------------------------------------------------------------------


def trace(model: Any, loss_of: Callable[[Any], Any]) -> Recorder:
    """The rows of one training step of a model on the meta device."""
    rec = Recorder()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    with torch.device("meta"), rec, Whole(rec):
        loss_of(model.train()).backward()
    return rec


def trace_model(name: str, batch: int) -> Recorder:
    """The rows of one training step of a model of the zoo."""
    with torch.device("meta"):
        model, drawn = TRACED[name]()
    inputs = {
        label: torch.empty((batch, *shape), device="meta", dtype=torch.int64 if classes else torch.float32)
        for label, (shape, classes, _) in drawn.items()
    }

    def loss_of(model: Any) -> Any:
        if "x" in inputs:
            return torch.nn.functional.cross_entropy(model(inputs["x"]), inputs["labels"])
        return model(**inputs).loss

    return trace(model, loss_of)


def counted(name: str, batch: int) -> tuple[Counter[ModelRow], Counter[str]]:
    """A model's rows and how often each is called, and what is left. A row that is too large is one of a smaller batch, more
    often: calls of the same model come in the same order whatever the batch."""
    traces = {batch: trace_model(name, batch)}
    counts: Counter[ModelRow] = Counter()
    for i, row in enumerate(traces[batch].rows):
        smaller = batch
        while row.subject.bytes > MOST_BYTES and smaller > 1:
            smaller //= 2
            if smaller not in traces:
                traces[smaller] = trace_model(name, smaller)
                assert len(traces[smaller].rows) == len(traces[batch].rows), f"{name}: other calls at batch {smaller}"
            row = traces[smaller].rows[i]
        counts[row] += batch // smaller
    return counts, traces[batch].left


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.trace", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=FILE, metavar="FILE", help="default bench/model_rows.json")
    args = parser.parse_args(argv)
    if not has_packages():
        return 1
    found = {}
    for name in TRACED:
        found[name] = {batch: counted(name, batch) for batch in BATCHES}
        rows = {batch: (len(counts), counts.total()) for batch, (counts, _) in found[name].items()}
        print(
            f"{name}: rows and calls by batch {rows}; left {dict(found[name][BATCHES[0]][1].most_common(8))}",
            flush=True,
        )
    args.out.write_text(encode(found), encoding="utf-8")
    print(f"{args.out}: {len(load(args.out).rows)} rows, {args.out.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
