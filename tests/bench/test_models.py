"""Rows of models: how a step is traced, the file, which rows are chosen, and the figures."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tlrt
from bench import models
from bench.__main__ import main
from bench.beside_worker import bind, lay
from bench.models import ModelRow, Table, figure, load, plan_of
from tlrt.verify.documents import read_document
from tlspec.case import refused_by

ADD, RELU = ModelRow.of("add", {"n": 64}), ModelRow.of("relu", {"n": 32}, "vjp")
BIASED = ModelRow.of("conv_grouped", {"batch": 1, "groups": 1, "in_channels": 2, "out_channels": 3, "spatial": [4, 4],
    "kernel": [3, 3], "stride": [1, 1], "dilation": [1, 1], "padding_low": [1, 1], "padding_high": [1, 1]}, "vjp",
    want=(False, True, True))  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table of two models, in place of the file's."""
    calls = {("one", 1): {0: 3, 1: 1}, ("one", 8): {0: 1}, ("two", 1): {1: 2, 2: 1}}
    table = Table([ADD, RELU, BIASED], calls, {"one": {}, "two": {"cat": 1}})
    monkeypatch.setattr(models, "load", lambda: table)
    return table


def _is_call(row: ModelRow) -> bool:
    """Whether the operation takes these dimensions, parameters and optional inputs."""
    subject = row.subject
    optional = {a.name: [1.0] if a.name in row.given else None for a in subject.signature.inputs if a.optional}
    return refused_by(subject.op, {**subject.names, **optional}) is None


# ---- the file --------------------------------------------------------------------------------------------------------------


def test_the_file_is_small_and_its_rows_are_calls() -> None:
    table = load()
    assert models.FILE.stat().st_size <= 300_000
    assert {batch for _, batch in table.calls} == set(models.BATCHES) and len(table.models) >= 14
    assert set().union(*table.calls.values()) == set(range(len(table.rows)))
    for row in table.rows:
        assert _is_call(row), row


def _kinds() -> list[ModelRow]:
    """The smallest row of each operation, with each choice of optional inputs and gradients."""
    found: dict[Any, ModelRow] = {}
    for row in load().rows:
        kind = row.op, row.which, row.given, row.want
        work = row.subject.bytes + row.subject.flops / 10
        if kind not in found or work < found[kind].subject.bytes + found[kind].subject.flops / 10:
            found[kind] = row
    return list(found.values())


@pytest.mark.parametrize("kind", _kinds(), ids=lambda r: "-".join([r.op, r.which, *r.given, str(r.want or "")]))
def test_a_row_of_each_kind_runs_as_pytorch_does(kind: ModelRow) -> None:
    """The sides give as many results of as many elements each."""
    torch = pytest.importorskip("torch")
    from bench import model_peers

    plan, device, subject = plan_of(kind.subject), tlrt.device("cpu"), kind.subject
    buffers, indices = lay(plan, device)
    tensors = models.tensors_of(plan, buffers, indices, torch, "cpu")
    ours = bind(plan, buffers, device)()
    theirs = model_peers.call(subject, torch, "cpu", tensors)()
    ours = [b for b in (ours if isinstance(ours, tuple) else (ours,)) if b is not None]
    theirs = [t for t in (theirs if isinstance(theirs, (tuple, list)) else (theirs,)) if t is not None]
    if subject.op.name != "lstm_cell" or subject.which == "forward":  # whose two gradients of gates are one in PyTorch
        assert [len(b) for b in ours] == [t.numel() * (2 if t.is_complex() else 1) for t in theirs]


# ---- the trace ---------------------------------------------------------------------------------------------------------------


def test_a_step_is_traced() -> None:
    torch = pytest.importorskip("torch")
    from bench.trace import trace

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.line = (
                torch.nn.Conv2d(3, 4, 3, 2, 1),
                torch.nn.LayerNorm(4),
                torch.nn.Linear(4, 6),
            )

        def forward(self, x: Any) -> Any:
            x = self.norm(self.conv(x).flatten(2).transpose(1, 2))
            heads = x.unflatten(2, (2, 2)).transpose(1, 2)
            x = (
                torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
                .transpose(1, 2)
                .flatten(2)
            )
            return self.line(torch.relu(x).mean(1))

    with torch.device("meta"):
        net, x, labels = Net(), torch.empty(5, 3, 8, 8), torch.empty(5, dtype=torch.int64)
    rec = trace(net, lambda model: torch.nn.functional.cross_entropy(model(x), labels))
    found = Counter((row.op, row.which) for row in rec.rows)
    for name in ("conv_grouped", "layer_norm_stats", "relu", "cross_entropy"):
        assert found[name, "forward"] == found[name, "vjp"] == 1, name
    assert found["attention_strided", "forward"] == found["attention_strided_gradients", "forward"] == 1
    assert found["bmm_strided", "forward"] == 3  # the layer, and the gradients of its input and its weights
    of = {(row.op, row.which): row for row in rec.rows}
    conv = of["conv_grouped", "vjp"]
    assert conv.want == (False, True, True) and dict(conv.items)["batch"] == 5 and dict(conv.items)["spatial"] == (8, 8)
    attention = dict(of["attention_strided", "forward"].items)
    assert (attention["heads"], attention["queries"], attention["d"], attention["after"]) == (2, 16, 2, 0)
    assert (attention["q_batch"], attention["q_head"], attention["q_row"]) == (64, 2, 4)
    product = next(row for row in rec.rows if row.op == "bmm_strided")
    assert (
        product.given == ("bias",)
        and {"m": 5, "n": 4, "p": 6, "b_row": 1, "b_col": 4}.items() <= dict(product.items).items()
    )
    assert all(map(_is_call, rec.rows))


# ---- choice and figures ------------------------------------------------------------------------------------------------------


def test_a_figure_is_weighted_by_time() -> None:
    """Not the mean of ratios: a row counts as often as it is called, and as long as it takes."""
    assert figure({0: 3, 1: 1, 2: 9}, {0: (1.0, 2.0), 1: (10.0, 5.0)}) == pytest.approx((3 * 2 + 5) / (3 * 1 + 10))
    assert figure({2: 1}, {0: (1.0, 2.0)}) is None


def test_the_command(small: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "models.jsonl"
    assert main(["--device", "cpu", "--models", "--batches", "1", "--math", "both", "--json", str(file)]) == 0
    document = read_document(file)
    assert {(f["model"], f["math"]) for f in document["models"]} == {
        (m, a) for m in ("one", "two") for a in ("fast", "reproducible")
    }
    assert {(r["op"], r["math"]) for r in document["rows"]} >= {
        ("conv_grouped_bwd", "reproducible"),
        ("relu_bwd", "fast"),
    }
    assert all(r["ratio"] == pytest.approx(r["torch_ms"] / r["ours_ms"]) for r in document["rows"])
    text = capsys.readouterr().out
    assert "weighted by time" in text and "elementwise" in text and document["failed"] == []
