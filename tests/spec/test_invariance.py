"""Invariance: what the bits of a function depend on is found on planted dependences, and the first operator is named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tlspec
from tlspec.__main__ import main
from tlspec.judge.invariants import AXES, Axis, Invariance

X = "x[batch, 24]"


def invariance(function: Any, *inputs: Any, axes: Any = None, **words: Any) -> Any:
    return tlspec.invariance(function, *inputs, axes=[axes] if isinstance(axes, str) else axes, **words)


def centred(x: np.ndarray) -> np.ndarray:
    """The mean is that of the batch."""
    return x - x.mean(axis=0, keepdims=True)


def by_place(x: np.ndarray) -> np.ndarray:
    return x + np.arange(len(x), dtype=np.float32)[:, None]


def in_blocks_of_four(x: np.ndarray) -> np.ndarray:
    """Whole blocks of 4 rows are added up in another order than what is left over."""
    whole = len(x) // 4 * 4
    tail = np.zeros((len(x) - whole,), np.float32)
    for j in range(x.shape[1]):
        tail += x[whole:, j]
    return np.concatenate([x[:whole].sum(axis=1), tail])[:, None]


def in_halves(x: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Another order of sums for batches of these sizes."""
    halves = x.reshape(len(x), 2, -1).sum(axis=2).sum(axis=1) if len(x) in sizes else x.sum(axis=1)
    return halves[:, None]


def deduplicated(x: np.ndarray) -> np.ndarray:
    """A sample that equals the one before has another last bit."""
    again = np.append(False, (x[1:] == x[:-1]).all(axis=1))[:, None]
    return np.where(again, np.nextafter(x, np.float32(np.inf)), x)


class Counting:
    """Every second call has another last bit."""

    calls = 0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        self.calls += 1
        return np.nextafter(x, np.float32(np.inf)) if self.calls % 2 else x.copy()


def leaking(x: np.ndarray) -> np.ndarray:
    """0 times the other samples: nothing but for NaN."""
    return x + 0 * np.roll(x, 1, axis=0)


def by_strides(x: np.ndarray) -> np.ndarray:
    return x * np.float32(1 + 2.0**-20) if x.flags.c_contiguous else x * np.float32(1)


@pytest.mark.parametrize(
    ("axis", "function"),
    [("batch", in_blocks_of_four), ("batch", by_place), ("neighbours", centred), ("neighbours", leaking),
     ("neighbours", deduplicated), ("batch", lambda x: in_halves(x, (64,))), ("batch", lambda x: in_halves(x, (8, 16))),
     ("repeat", Counting()),
     ("layout", by_strides), ("layout", lambda x: x.sum(axis=1, keepdims=True))],  # NumPy adds along strides in another order
)  # fmt: skip
def test_a_planted_dependence_is_found(axis: str, function: Any) -> None:
    found = invariance(function, X, axes=axis)
    assert found.verdict == "varies" and found[axis].differing and found[axis].first, found


@pytest.mark.parametrize("length", [1, 5, 48])
def test_every_length_of_a_sequence_is_compared(length: int) -> None:
    def function(x: np.ndarray) -> np.ndarray:
        return x + np.float32(x.shape[1] == length and len(x) > 1)

    found = invariance(function, "x[batch, seq]", axes="batch")["batch"]
    assert (found.trials, found.differing) == (3 * 133, 133) and f"{length} positions" in found.first


@pytest.mark.parametrize("function", [np.tanh, lambda x: np.ascontiguousarray(x).sum(axis=1, keepdims=True)])
def test_an_invariant_function_has_no_finding(function: Any) -> None:
    found = invariance(function, X)
    assert found.ok, found
    assert {a.name for a in found.axes if a.trials} >= {"repeat", "batch", "neighbours", "layout"}
    assert [a.name for a in found.axes] == list(AXES)


def test_padding_reads_what_the_mask_leaves_out() -> None:
    text = "x[batch, seq, 3], mask: bool[batch, seq]"

    def masked(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.add.accumulate(np.where(mask[..., None], x, 0), axis=1)[:, -1]

    assert invariance(masked, text, axes="padding").ok
    assert not invariance(lambda x, mask: x.mean(axis=1), text, axes="padding").ok
    assert "mask" in invariance(lambda x: x, "x[batch, seq, 3]", axes="padding")["padding"].left_out


def test_padding_of_a_causal_function() -> None:
    text = "x[batch, seq]"
    assert invariance(lambda x: np.add.accumulate(x, axis=1), text, axes="padding", causal=True).ok
    assert not invariance(lambda x: x + x[:, -1:], text, axes="padding", causal=True).ok


def running(x: np.ndarray, state: Any) -> Any:
    """Sums so far, one position after the other."""
    total = np.zeros(len(x), np.float32) if state is None else state
    out = np.empty_like(x)
    for t in range(x.shape[1]):
        total = total + x[:, t]
        out[:, t] = total
    return out, total


def summed_first(x: np.ndarray, state: Any) -> Any:
    """Each piece is summed before the earlier ones are added."""
    out = np.add.accumulate(x, axis=1) + (0 if state is None else state[:, None])
    return out, out[:, -1]


def test_chunking_with_a_step() -> None:
    assert invariance(np.tanh, "x[batch, seq]", axes="chunking", step=running).ok
    found = invariance(np.tanh, "x[batch, seq]", axes="chunking", step=summed_first)
    assert found["chunking"].differing, found
    assert "step" in invariance(np.tanh, "x[batch, seq]", axes="chunking")["chunking"].left_out


def test_the_sample_of_an_example_is_like_it() -> None:
    seen: list[Any] = []

    def function(x: np.ndarray, table: np.ndarray, at: np.ndarray) -> np.ndarray:
        seen.append((x.dtype, x.shape[1:], table.shape, int(at.max())))
        return x + table[at]

    found = invariance(
        function, np.ones((3, 4), np.float16), np.ones((5, 4), np.float16), np.array([4, 0, 2]), axes="batch"
    )
    assert found.ok and {s[:3] for s in seen} == {(np.dtype("float16"), (4,), (5, 4))} and max(s[3] for s in seen) == 4


KERNEL = """
import os
import numpy as np

def plain(x):
    return np.tanh(x)

def by_process(x):
    return x + np.float32(hash("salt") % 1000)

def by_threads(x):
    return x + np.float32(os.environ["OMP_NUM_THREADS"])
"""


def test_another_process_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL)
    where = ["invariance", "--inputs", X, "--axes", "restart"]
    assert main([where[0], f"{tmp_path}/kernel.py:plain", *where[1:], "--json", f"{tmp_path}/out.json"]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["axes"][0]["trials"] == 3
    for kernel in ("by_process", "by_threads"):
        assert main([where[0], f"{tmp_path}/kernel.py:{kernel}", *where[1:]]) == 1
        assert "another process" in capsys.readouterr().out
    alone = [where[0], f"{tmp_path}/kernel.py:plain", *where[1:3], "--axes", "device"]
    assert main(alone) == 1, "there is one device, so nothing could be tried"


@pytest.mark.parametrize(
    ("inputs", "said"),
    [("x[64, 3]", "expected one, as in x[batch, 64]"), ("x: index[batch]", "x: index[batch] < N"), ("x: f16[batch]",
        "the kind f16"),
     ("x[batch]; eps: float", "eps: got no value"), ("batch", "expected NAME[AXES]")],
)  # fmt: skip
def test_wrong_inputs_are_explained(inputs: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        invariance(np.tanh, inputs)
    assert said in str(error.value)


def test_a_report_says_what_was_varied() -> None:
    """Each field in its place, and a verdict of the axes that it has."""
    report = Invariance("kernel", "float32", "numpy", "module:block", notes=["a note"], seconds=1.26)
    report.axes = [Axis("batch", 133, 2, first="out of sample 1", operation="second: aten::mean"), Axis("repeat", 3),
                   Axis("device", left_out="there is no GPU"), Axis("layout", 4, 1, first="with gaps")]  # fmt: skip
    assert str(report).splitlines() == [
        "kernel, float32, numpy arrays; within module:block", "", "varied  bits       trials  differing",
        "batch   differs       133          2", "repeat  same            3", "device  not tried",
        "layout  differs         4          1", "", "batch: out of sample 1",
        "    first operation that differs: second: aten::mean", "", "layout: with gaps",
        "    first operation that differs: not known", "", "not tried: device: there is no GPU", "note: a note", "",
        "varies: 140 trials in 1.3 s",
    ]  # fmt: skip
    for first, end, verdict in ((0, 4, "varies"), (1, 3, "invariant"), (2, 3, "not tried"), (0, 0, "not tried")):
        part = replace(report, axes=report.axes[first:end])
        document = json.loads(part.json())
        assert (part.verdict, part.ok, document["verdict"]) == (verdict, verdict == "invariant", verdict)
        assert [a["verdict"] for a in document["axes"]] == ["differs", "same", "not tried", "differs"][first:end]


def test_wrong_arguments_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="axes: got 'batches'"):
        invariance(np.tanh, X, axes="batches")
    assert main(["invariance", "numpy:no_such_function", "--inputs", X]) == 2
    assert "no function or class no_such_function" in capsys.readouterr().err
    with pytest.raises(AssertionError, match="varies"):
        invariance(centred, X, axes="neighbours").assert_ok()


# ---- PyTorch

torch = pytest.importorskip("torch")


class Mixing(torch.nn.Module):  # type: ignore[misc, name-defined]
    """The second of its parts takes the mean over the batch."""

    class Mean(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.sub(x, x.mean(dim=0, keepdim=True))

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = torch.nn.ReLU(), self.Mean(), torch.nn.Tanh()

    def forward(self, x: Any) -> Any:
        return self.third(self.second(self.first(x)))


@pytest.mark.parametrize("axis", ["neighbours", "batch"])
def test_the_first_operator_is_named(axis: str) -> None:
    found = invariance(Mixing(), X, axes=axis)[axis]
    assert found.differing and found.operation.startswith("second: aten::"), found


def layers(count: int = 1) -> Any:
    """Layers of a transformer, in operators of PyTorch."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
    return torch.nn.TransformerEncoder(layer, count, enable_nested_tensor=False).eval()


def test_products_of_the_cpu_depend_on_the_batch() -> None:
    """PyTorch's own products of one row and of several differ on most processors; where they do an operator is named."""
    found = invariance(torch.nn.Linear(256, 256), "x[batch, 256]", axes="batch")["batch"]
    assert found.trials == 133
    assert found.operation.startswith(("aten::addmm", "aten::linear")) if found.differing else not found.operation


def test_a_reproducible_block_is_invariant() -> None:
    shim = pytest.importorskip("tlrt.torch")
    try:
        with shim.reproducible():
            pass
    except Exception as error:
        pytest.skip(f"no block here: {error}")
    found = invariance(layers(), "x[batch, seq, 64]", within="tlrt.torch:reproducible", axes=["repeat", "batch", "neighbours",
        "threads"],
                       lengths={"seq": 9})  # fmt: skip
    assert found.ok, found
    with shim.reproducible(strict=True), torch.no_grad():  # no operator of a whole layer, which has no route
        layers()(torch.ones(1, 2, 64))
    assert torch.backends.mha.get_fastpath_enabled()


class Cached(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Causal attention of one head that keeps keys and values."""

    def forward(self, x: Any, past_key_values: Any = None, use_cache: bool = False) -> Any:
        k = x if past_key_values is None else torch.cat([past_key_values, x], dim=1)
        scores = (x[:, :, None] * k[:, None]).sum(-1)
        later = torch.arange(k.shape[1])[None] > torch.arange(x.shape[1])[:, None] + k.shape[1] - x.shape[1]
        weights = scores.masked_fill(later, float("-inf")).double().softmax(-1)
        made = (weights[..., None] * k[:, None].double()).cumsum(2)[:, :, -1].float()

        class Output(tuple):
            past_key_values = k

        return Output((made,))


def test_chunking_of_a_module_with_a_cache() -> None:
    found = invariance(Cached(), "x[batch, seq, 8]", axes="chunking", lengths={"seq": 6})["chunking"]
    assert found.trials == 8, found
