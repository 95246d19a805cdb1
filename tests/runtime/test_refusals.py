"""What sessions, tapes and the specification refuse that no other test asks for: each with its words, changing nothing."""

import gc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

import tlrt
from tests import unchanged_memory
from tests.runtime.operation_calls import CALLED, CALLS
from tlrt import Session, kernels, nn, optim, spec
from tlrt import tape as tape_module
from tlrt._foreign import results
from tlrt._operations.plan import make_plan
from tlrt.differential import compare
from tlrt.errors import ArgumentError
from tlrt.tape import AnyBuffer, Tape
from tlrt.verify.run import Runtime
from tlspec import registry
from tlspec.drawn import draw_case
from tlspec.entries import all_entries

#: words of the refusal -> a call of a session
REFUSED: dict[str, Callable[[Any], Any]] = {
    r"attention: mask: got \(2, 3\), expected \(1, 2, 2\)": lambda s: attend(s, s.zeros((2, 3))),
    r"^flash_attention: mask: got zeros and ones, expected booleans \(True": lambda s:
        attend(s, s.const([[1, 0], [1, 1]])),
    r"^flash_attention: mask: got zeros and ones, expected boo": lambda s: attend(s, np.tri(2)),
    r"^flash_attention: mask: got dtype int64, expected booleans": lambda s: attend(s, [[1, 0], [1, 1]]),
    r"^flash_attention: mask: got dtype <U1, expected booleans": lambda s: attend(s, [["a"]]),
    r"^flash_attention: mask: got NaN or inf, expected finite": lambda s: attend(s, [[0.0, np.nan]]),
    r"^flash_attention: mask: got NaN or inf": lambda s: attend(s, s.const([[0.0, np.inf]])),
    r"^flash_attention: mask: got other float64 values, expected zeros and ones": lambda s:
        attend(s, [[0.0, -np.inf]], "hard"),
    r"^flash_attention: mask: got dtype bool, expected floats": lambda s: attend(s, [[True, False]], "additive"),
    r"^flash_attention: mask: got one with mask_mode 'causal', expected none": lambda s:
        attend(s, [[True, False]], "causal"),
    r"^flash_attention: mask: got none, expected one": lambda s: attend(s, None, "additive"),
    r"^flash_attention: mask_mode: got 'soft', expected 'fill' or 'hard'": lambda s: attend(s, None, "soft"),
    r"multi_head_attention: mask: got shape \(3, 3\) of int64": lambda s: heads(s, 2, mask=np.ones((3, 3), int)),
    r"multi_head_attention: mask: got zeros and ones": lambda s: heads(s, 2, mask=np.tri(3)),
    "attention: mask_mode: got 4, expected 0, 1, 2 or 3": lambda s:
        s.attention(*(s.zeros((1, 2, 3)),) * 3, mask_mode=4),
    r"multi_head_attention: wk, wv: got shapes \(4, 2\) and \(4, 4\)": lambda s:
        s.multi_head_attention(s.zeros((3, 4)), s.zeros((4, 4)), s.zeros((4, 2)), s.zeros((4, 4)), s.zeros((4, 4)), 2),
    "multi_head_attention: heads: got 3, expected a divisor of 4": lambda s: heads(s, 3),
    "multi_head_attention: causal: got True with a mask": lambda s:
        heads(s, 2, mask=np.ones((3, 3), bool), causal=True),
    r"multi_head_attention: mask: got shape \(2, 3\) of bool": lambda s: heads(s, 2, mask=np.ones((2, 3), bool)),
    "cross_entropy: logits: got a scalar": lambda s: s.cross_entropy(s.const(1.0), 0),
    r"^slice_range0: start \+ len: got 0 \+ -1": lambda s: s.slice_range0(s.zeros(6), 0, -1),
    r"^reshape: shape: got \(-2, -3\), expected 6 elements": lambda s: s.reshape(s.zeros(6), (-2, -3)),
    r"^masked_fill: mask: got shape \(2, 3\), expected one that broadcasts to \(1, 3\)": lambda s:
        s.masked_fill(s.zeros((1, 3)), s.zeros((2, 3)), 1.0),
    r"^where: mask: got shape \(2, 2\), expected one that broadcasts with \(2, 3\)": lambda s:
        s.where(s.zeros((2, 2)), *(s.zeros((2, 3)),) * 2),
    r"slice_range0: x: got a scalar": lambda s: s.slice_range0(s.const(1.0), 0, 1),
    "max_pool2d.*: got 3 entries, expected 2": lambda s: s.max_pool2d(s.zeros((1, 1, 4, 4)), (2, 2, 2), 1),
    r"max_pool: x: got shape \(2, 4, 8, 8\), expected rank=2 with a batch or rank=3 without": lambda s:
        s.max_pool(s.zeros((2, 4, 8, 8)), 2, 2),
    r"avg_pool: x: got shape \(2, 4, 8\), expected rank=1 with a batch or rank=2 without": lambda s:
        s.avg_pool(s.zeros((2, 4, 8)), 2, 2),
    r"smooth_max_pool: stride: got 2 entries, expected 1": lambda s:
        s.smooth_max_pool(s.zeros((2, 4, 8)), 2, (2, 2), rank=1),
    "param: name: got 3, expected a name": lambda s: s.param([1.0], 3),
    "clip_grad_norm: parameters: got str, expected Parameter": lambda s: s.clip_grad_norm(1.0, ["w"]),
    "clip_grad_norm: parameters: got .*'w'.*, expected those of the last backward": lambda s:
        s.clip_grad_norm(1.0, s.param([1.0], "w")),
    r"^zeros: shape: got \(-1,\), expected sizes of 0 or more": lambda s: s.zeros(-1),
    r"^full: shape: got \(-2, -1\), expected sizes of 0 or more": lambda s: s.full((-2, -1), 1.0),
    r"^zeros: shape: got \(65536, 65536\) with 4294967296 elements, expected fewer": lambda s: s.zeros((2**16, 2**16)),
    r"^rand_normal: shape: got \(-1,\), expected sizes of 0 or more": lambda s: s.rand_normal(-1, 0.0, 1.0),
    "^capture: tensor: got one of another session, expected one of this": lambda s: capture_of_another_session(s),
    "^Sequential: layer 0: got OfItsOwn with parameters, expected a subclass of nn.Layer": lambda s:
        nn.Sequential(OfItsOwn(s)),
    "copy: got False": lambda s: np.asarray(s.nat_vec([1]), copy=False),
    "AnyBuffer: copy: got False": lambda s: np.asarray(s.zeros(1).value, copy=False),
    r"attention: mask: got None, expected \(1, 2, 2\)": lambda s: s.attention(*(s.zeros((1, 2, 3)),) * 3, mask_mode=1),
    "scaled_dot_product_attention: mask_mode: got 'soft', expected 'additive' or 'hard'": lambda s:
        s.scaled_dot_product_attention(*(s.zeros((1, 2, 3)),) * 3, mask=np.ones((2, 2), bool), mask_mode="soft"),
    "scaled_dot_product_attention: mask: got other float64 values": lambda s:
        s.scaled_dot_product_attention(*(s.zeros((1, 2, 3)),) * 3, mask=np.full((2, 2), 2.0), mask_mode="hard"),
    r"conv: b: got shape \(3,\), expected \(2,\)": lambda s:
        s.conv(s.zeros((2, 1, 3)), s.zeros(3), s.zeros((1, 2, 5)), groups=2),
    r"conv: padding: got \(\(1,\),\), expected 1 pairs": lambda s: pad(s, ((1,),)),
    r"conv: padding: got \(\(1, 1, 1\),\), expected 1 pairs": lambda s: pad(s, ((1, 1, 1),)),
    "conv_transpose: groups: got 2, expected a divisor of in_channels 3 of w and of the 4 channels of x": lambda s:
        s.conv_transpose(s.zeros((3, 2, 3)), None, s.zeros((1, 4, 5)), groups=2),
    r"conv: padding: got \(\(1, 1\), \(1, 1\)\), expected 1 pairs": lambda s: pad(s, ((1, 1), (1, 1))),
    "conv: padding: got 'same' with stride": lambda s: pad(s, "same", stride=2),
    r"tril: x: got shape \(3,\), expected two axes": lambda s: s.tril(s.zeros(3)),
    r"triu: x: got shape \(\), expected two axes": lambda s: s.triu(s.const(1.0)),
    "one_hot: n: got -1, expected 0 or more": lambda s: s.one_hot([0], -1),
    r"argmax: x: got shape \(2, 0\), expected an axis": lambda s: s.argmax(s.zeros((2, 0)), 1),
    r"argmin: x: got shape \(0,\), expected an axis": lambda s: s.argmin(s.zeros(0)),
    r"take_along: indices: got shape \(3, 2\), expected \(2, 3\)": lambda s:
        s.take_along(s.zeros((2, 3)), np.zeros((3, 2), int), 1),
    r"take_along: indices: got shape \(2,\), expected \(2, 3\)": lambda s: s.take_along(s.zeros((2, 3)), [0, 0], 1),
    r"item: indices: got shape \(2,\), expected one index": lambda s: s.argmax(s.zeros((2, 3)), 1).item(),
    "len: indices: got a single one, expected at least one axis": lambda s: len(s.argmax(s.zeros((2, 3)))),
    "chunk: chunks: got 0, expected at least 1": lambda s: s.chunk(s.zeros(2), 0),
    r"tile: reps: got \(1, -1\), expected none negative": lambda s: s.tile(s.zeros(2), (1, -1)),
    "repeat: times: got -1, expected none negative": lambda s: s.repeat(s.zeros(2), -1, 0),
    "concat: tensors: got int, expected a list of tensors": lambda s: s.concat(3, 0),
    "concat: tensors: got none, expected at least one": lambda s: s.concat([], 0),
    "stack: tensors: got none, expected at least one": lambda s: s.stack((), 0),
    "split: sizes: got 0, expected at least 1": lambda s: s.split(s.zeros(2), 0),
    "MultiHeadAttention: kv_heads: got 3, expected a divisor of 4": lambda s:
        nn.MultiHeadAttention(s, 8, 4, kv_heads=3, name="m"),
    "MultiHeadAttention: kv_heads: got 0, expected a divisor of 4": lambda s:
        nn.MultiHeadAttention(s, 8, 4, kv_heads=0, name="m"),
    "SGD: parameters: got those of several sessions": lambda s:
        optim.SGD([{"params": [s.param([1.0], "a")]}, {"params": [Session(s.device).param([1.0], "a")]}], 0.1),
    r"spectral_conv2d: w_re: got shape \(3, 2, 2, 3\) .*expected \(2·m1, m2, 2, out\)": lambda s: spectral(s, (3, 2)),
    r"spectral_conv2d: w_re: got shape \(6, 2, 2, 3\) .*, 2·m1 <= 4": lambda s: spectral(s, (6, 2)),
    r"spectral_conv2d: w_re: got shape \(2, 4, 2, 3\) .* and m2 <= 3$": lambda s: spectral(s, (2, 4)),
    r"spectral_conv2d: w_im: got shape \(2, 1, 2, 3\), expected \(2, 2, 2, 3\)": lambda s: spectral(s, (2, 2), (2, 1)),
    "BatchNorm: momentum: got -0.5, expected 0 <= momentum <= 1": lambda s: nn.BatchNorm(s, 2, name="n", momentum=-0.5),
    "Dropout: p: got -0.5, expected 0 <= p < 1": lambda s: nn.Dropout(-0.5),
    r"LayerNorm: x: got shape \(2, 4, 3\), expected \(…, 3, 4\)": lambda s:
        nn.LayerNorm(s, (3, 4), name="n")(s.zeros((2, 4, 3))),
    "TransformerBlock: norm: got 'batch', expected 'layer' or 'rms'": lambda s:
        nn.TransformerBlock(s, 4, 2, name="t", norm="batch"),
    r"LSTM: states: got tuple, expected \(h_0, c_0\)": lambda s:
        nn.LSTM(s, 2, 3, name="l")(s.zeros((1, 2)), (s.zeros((1, 3)),) * 3),
    "conv_transpose: padding: got 'same' with stride": lambda s:
        s.conv_transpose(s.zeros((2, 2, 3)), None, s.zeros((2, 5)), padding="same"),
    r"index: key: got booleans of shape \(3, 2\), expected \(2, 3\)": lambda s: s.zeros((2, 3))[np.ones((3, 2), bool)],
    r"index: key: got 0 indices, 2 \.\.\.": lambda s: s.zeros((2, 3))[..., ...],
    "topk: k: got -1, expected 0 <= k <= 3": lambda s: s.topk(s.zeros(3), -1),
    "max: axis: got 0, expected no axis where there are two tensors": lambda s: s.max(s.zeros(2), s.zeros(2), axis=0),
    "min: axis: got None, expected no axis": lambda s: s.min(s.zeros(2), s.zeros(2), keepdims=True),
    "^len: got a scalar tensor, expected at least one axis": lambda s: len(s.const(1.0)),
    "cross_entropy: ignore_index: got 0, expected 3 or more, as the labels are read in place": lambda s:
        s.cross_entropy(s.zeros((2, 3)), s.argmax(s.zeros((2, 3)), 1), ignore_index=0),
    "^max_pool: x: got shape": lambda s: s.max_pool(s.zeros(3), (), (), rank=0),
}  # fmt: skip

#: the same, with all that is expected instead
REFUSED |= {
    r"max_pool2d: x: .*expected 3 axes, or 4 with a batch$": lambda s: s.max_pool2d(s.zeros((4, 4)), 2, 1),
    r"conv: x: .*expected 3 axes, or 4 with a batch$": lambda s: s.conv(s.zeros((1, 1, 2, 2)), None, s.zeros((2, 2))),
    r"conv: w: .*expected two axes of channels and at least one of space$": lambda s: s.conv(s.zeros((2, 2)), None, s.zeros(2)),
    r"conv: padding: .*, expected \"valid\", \"same\" for conv with a stride of 1, or numbers$": lambda s: pad(s, "full"),
    r"concat: .*expected \(2, 3\) but for axis 1$": lambda s: s.concat([s.zeros((2, 3)), s.zeros((3, 3))], 1),
    r"index: key: got 3 indices, 0 \.\.\., expected at most 2 indices and one \.\.\.$": lambda s: s.zeros((2, 3))[0, 0, 0],
    r"pad: .*expected one \(before, after\) for each of 2 axes, none negative$": lambda s: s.pad(s.zeros((2, 3)), [1, -1]),
    r"slice_range0: start \+ len: got 1 \+ 3, expected at most 3, neither of them negative$": lambda s: s.slice_range0(
        s.zeros((3, 2)), 1, 3),
    r"w_re: .*expected \(2·m1, m2, 3, out\), 2·m1 <= 5 and m2 <= 4$": lambda s: s.spectral_conv2d(
        s.zeros((2, 3, 5, 7)), *(s.zeros((2, 5, 3, 2)),) * 2),
    r"Conv: groups: got 2, expected a divisor of 3 and 4 channels$": lambda s: nn.Conv(s, 3, 4, 1, groups=2, name="c"),
    r"MaxPool: x: got .*, expected \(batch, channels, height, width\), or rank=1 for \(batch, channels, length\), 2 for one "
    r"image$": lambda s: nn.MaxPool(2)(s.zeros((2, 4, 8))),
    r"SpectralConv1d: x: .*expected \(batch, grid, 4\), grid//2 \+ 1 >= 3$": lambda s: nn.SpectralConv1d(s, 4, 3, name="l")(
        s.zeros((2, 3, 4))),
    r"GroupNorm: x: .*expected \(batch, 4, spatial…\)$": lambda s: nn.GroupNorm(s, 2, 4, name="n")(s.zeros((3, 2))),
    r"warmup, decay: got 3, 4, expected 0 or more each, together at most total = 6$": lambda s: (
        nn.schedules.warmup_stable_decay(0, peak=1.0, total=6, warmup=3, decay=4)),
}  # fmt: skip


class OfItsOwn:
    """What can be called and holds a parameter, but is no layer."""

    def __init__(self, s: Any) -> None:
        self.weight = s.param([1.0], "weight")

    def __call__(self, x: Any) -> Any:
        return x


def capture_of_another_session(s: Any) -> Any:
    other = Session(s.device).const([1.0])
    return s.capture(lambda x: other, [1.0])


def attend(s: Any, mask: Any, mode: Any = None) -> Any:
    return s.flash_attention(*(s.zeros((1, 2, 3)),) * 3, mask, mode)


def spectral(s: Any, modes: tuple[int, int], others: Any = None) -> Any:
    """A convolution of two channels over a grid of 4 and 5."""
    return s.spectral_conv2d(s.zeros((1, 2, 4, 5)), *(s.zeros((*m, 2, 3)) for m in (modes, others or modes)))


def pad(s: Any, padding: Any, **options: Any) -> Any:
    return s.conv(s.zeros((2, 2, 3)), None, s.zeros((1, 2, 5)), padding=padding, **options)


def heads(s: Any, count: int, **options: Any) -> Any:
    """Attention of that many heads, of width 4."""
    return s.multi_head_attention(s.zeros((3, 4)), *(s.zeros((4, 4)),) * 4, count, **options)


@pytest.mark.parametrize("said", REFUSED)
def test_refused(s: Session, said: str) -> None:
    assert_raises_regex((ValueError, TypeError, IndexError), said, REFUSED[said], s)


def test_calls_outside_a_session_are_refused_by_name(dev: tlrt.Device) -> None:
    x, row = dev.zeros(4), registry.get
    for said, call in (
        ("^mul_bwd: want: got no gradient, expected at least one of ", lambda: kernels.mul_bwd(x, x, x, want=[False] * 2)),
        *(("^order_before: stream: got .*, expected the number of a CUDA stream", partial(dev.order_before, wrong))
          for wrong in (True, "1", -1, 2**64)),
        (r"^matmul: B: got shape \(4,\), expected \(n, p\)",
         lambda: results("matmul", row("matmul").signature, {"A": (2, 4), "B": (4,)}, {})),
        ("^compare: devices: got \\('cpu', 'cpu'\\), expected one or more different", lambda: compare(len, ["cpu", "cpu"])),
        ("^compare: devices: got \\(\\), expected one or more different", lambda: compare(len, [])),
    ):  # fmt: skip
        assert_raises_regex((ValueError, TypeError), said, call)
    labels, logits = [1, 0], dev.buffer([1.0, 2.0, 3.0, 5.0])
    for call in (kernels.cross_entropy_rows, partial(kernels.cross_entropy_rows_bwd, g=dev.full(2, 1.0))):
        on_host, indexed = (call(logits, i, cols=2).numpy() for i in (labels, dev.indices(labels)))
        assert (on_host == indexed).all() and on_host.any()


def test_what_says_no_value_of_what_is_gone() -> None:
    with Session("cpu") as s:
        best, n = s.argmax(s.const([1.0, 2.0])), s.nat(7)
        assert (
            repr(n) == "NatRef(7)"
            and best == 1
            and best == np.int64(1)
            and np.all(best == (1,))
            and best not in ("1", None)
        )
        best.buffer.release()
        assert repr(best) == "Indices(released, shape=())"
        assert pad(s, "valid").shape == (1, 2, 3)


def test_results_and_numbers_of_a_session(s: Session) -> None:
    assert s.shape(3.0) == ()
    assert s.norm(s.zeros((2, 0)), np.inf, 1).numpy().tolist() == [0.0, 0.0] and s.norm(s.zeros(0), np.inf).item() == 0
    kept, n = s.capture(lambda: s.zeros(2)).outputs, s.nat(1)
    with Session(s.device) as other:
        assert_raises_regex(ValueError, "one of another session", other.relu, kept)
    s.reset()
    assert repr(n) == "NatRef(of an earlier step)"


def test_more_plans_than_are_kept(dev: tlrt.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape_module, "_PLANS", 2)
    with Tape(dev) as tape:
        for n in range(1, 6):
            assert tape.value(tape.relu(tape.leaf(np.ones(n)))).numpy().tolist() == [1.0] * n
        assert len(tape._plans) <= 2


def test_gradients_that_are_one_buffer_or_wanted_by_nobody(dev: tlrt.Device) -> None:
    with Tape(dev) as tape:
        x, still = tape.leaf(np.ones(2)), tape.leaf(np.ones(2), "still", False)
        g = AnyBuffer((2,), dev.full(2, 3.0))
        gradients: list[AnyBuffer | None] = [g, None]
        tape.add_grad(gradients, x, g)
        assert gradients[0] is not None and gradients[0].numpy().tolist() == [6.0, 6.0] and g.buffer.released
        gradients[0].release()

        def both(g: AnyBuffer) -> list[tuple[int, AnyBuffer]]:
            return [(x, g.copy()), (still, g.copy())]

        value = AnyBuffer((2,), dev.zeros(2))
        y = tape.add_node(tape_module.Node("both", value, True, (x, still), both))
        found = tape.backward_sparse(y, None, np.ones(2))
        assert list(found) == [x] and found[x].numpy().tolist() == [1.0, 1.0]
        found[x].release()
        with unchanged_memory(dev):
            said = "both: forward: got a buffer of"
            with tlrt.Device.new("cpu") as far, far.zeros(2) as foreign:
                assert_raises_regex(
                    ValueError, said, tape.unary, "both", x, (2,), (2,), lambda b: foreign, lambda b, g: g
                )
            said = "both: AnyBuffer: buffer: got 2 elements, expected 3"
            assert_raises_regex(ValueError, said, tape.unary, "both", x, (2,), (3,), lambda b: b, lambda b, g: g)
            gc.collect()


#: calls of a device that it refuses
BUFFERS: list[Callable[[Any], Any]] = [
    *(lambda d, value=value: d.buffer(value) for value in ("text", None, [1j])),
    *(lambda d, n=n: d.zeros(n) for n in (-1, 1.5, 2**32, None)),
    lambda d: d.empty("3"), lambda d: d.full(None, 1.0), lambda d: d.full(2, "1"), lambda d: d.full(2, None),
    lambda d: d.full(2, 10**400), lambda d: within(d.zeros(2), lambda b: b.fill(b"1")),
    lambda d: within(d.zeros(2), lambda b: b.numpy((3,))), lambda d: within(d.zeros(2), lambda b: b.numpy("a")),
]  # fmt: skip


def within(buffer: Any, call: Callable[[Any], Any]) -> None:
    """The call of a buffer that is released after it."""
    with buffer:
        call(buffer)


def test_the_specification_refuses_what_the_library_refuses() -> None:
    device = spec.SpecDevice()
    a, b = device.zeros(2), device.zeros(3)
    a.release(), a.release()
    assert a.released
    for said, call in (
        ("relu: got 2 positional arguments, expected 1", lambda: spec.kernels.relu(b, b)),
        ("sgd_step: device: missing", lambda: spec.kernels.sgd_step([], [])),
        ("sgd_step: lists: got lengths", lambda: spec.kernels.sgd_step([b], [device.zeros(1)])),
        ("sgd_step: out: got 2 entries, expected 1", lambda: spec.kernels.sgd_step([b], [b], out=[b, b])),
        ("rand_uniform: device: missing", lambda: spec.kernels.rand_uniform(None, 3, 1)),
        ("broadcast_to: .*: got", lambda: spec.kernels.broadcast_to(b, [3], ["3"], [0])),
    ):
        assert_raises_regex((ValueError, TypeError), said, call)
    with tlrt.Device.new("cpu") as cpu:
        for call in BUFFERS:
            with pytest.raises(tlrt.TorchleanError) as here, unchanged_memory(cpu):
                call(cpu)
            with pytest.raises(type(here.value)) as there:
                call(device)
            assert (str(there.value), there.value.op) == (str(here.value), here.value.op)
            assert str(here.value).startswith(f"{here.value.op}: ")
    other = spec.SpecDevice(np.longdouble)
    assert other.exact([0.1]).array.dtype == np.longdouble


@pytest.mark.parametrize("called", CALLED)
def test_refusals_name_their_operation(called: tuple[str, int]) -> None:
    """A method that gets something else than a tensor in any place, by its name or that of a node it records."""
    name, call = called[0], CALLS[called[0]][called[1]]
    with Session("spec") as s:
        operands: list[Any] = [s.const(a) for a in call.operands(name)]
        s.leaf = lambda array, *_: s.const(array)  # type: ignore[attr-defined]
        call.call(s, *operands)
        names = "|".join({name, *(node.name for node in s.tape.nodes)})
        for place in range(len(operands)):
            wrong = [*operands[:place], "text", *operands[place + 1 :]]
            with pytest.raises(tlrt.TorchleanError, match=rf"^({names}): tensor: got str, expected Tensor") as caught:
                call.call(s, *wrong)
            assert caught.value.op and str(caught.value).startswith(f"{caught.value.op}: ")


def test_a_row_refuses_other_parameters_and_operands() -> None:
    """Before any operand is looked at: text, bytes and tensors as numbers, one parameter too many, one that is missing."""
    with Session("spec") as s:
        tensor = s.const(1.0)
        for row in registry.operations():
            sig = row.signature
            plan = partial(make_plan, spec.kernels, row.name)
            right = [float(p.default or 1) for p in sig.params]
            free = {d for d in sig.dims if d not in {d for a in sig.inputs if a.kind != "index" for d in a.dims}}
            said = f"^{row.name}: got {len(right) + len(free) + 1} parameters, expected "
            assert_raises_regex(ArgumentError, said, plan, (), [*right, *free, 1], {})
            for i, p in enumerate(sig.params):
                if p.kind == "float":
                    for wrong, kind in (("1", "str"), (b"1", "bytes"), (tensor, "TensorRef")):
                        said = f"^{row.name}: {p.name}: got {kind}, expected a number"
                        assert_raises_regex(TypeError, said, plan, (), [*right[:i], wrong, *right[i + 1 :]], {})
                if p.default is None:
                    assert_raises_regex(ArgumentError, f"^{row.name}: {p.name}: missing", plan, (), right[:i], {})
            count = len(sig.buffers)
            said = f"^{row.name}: got {count + 1} tensors, expected {count}"
            assert_raises_regex(ArgumentError, said, plan, [(1,)] * (count + 1), [*right, *free], {})
            if count and not sig.buffers[0].optional:
                said = f"^{row.name}: {sig.buffers[0].name}: missing"
                assert_raises_regex(ArgumentError, said, plan, [None] * count, [*right, *free], {})


def test_the_specification_has_every_gradient_alone() -> None:
    device = spec.SpecDevice()
    runtime = Runtime("spec", kernels=spec.kernels, upload=device.buffer)
    alone = [e for e in all_entries() if e.only is not None]
    assert alone
    for e in alone:
        case = draw_case(e.op, 3, "normal", "small", "vjp")
        placed = runtime.place(case)
        found = runtime.call(e.name, placed, case.values)
        expected = runtime.call(case.name, placed, case.values)[e.only]
        np.testing.assert_array_equal(found.numpy(), expected.numpy(), strict=True)


def test_an_interrupted_finalizer_of_the_specification_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """And Python reports what came in between."""
    device, said, release = spec.SpecDevice(), [], spec.SpecBuffer.release

    def interrupted(self: spec.SpecBuffer) -> None:
        monkeypatch.setattr(spec.SpecBuffer, "release", release)
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", lambda report: said.append(report.exc_type))
    buffer = device.zeros(2)
    monkeypatch.setattr(spec.SpecBuffer, "release", interrupted)
    del buffer
    assert said == [KeyboardInterrupt] and device.memory().live_buffers == 0
