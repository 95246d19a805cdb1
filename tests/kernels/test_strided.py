"""Operations on strided operands: in reproducible contexts the bits of the same operation on contiguous copies."""

import numpy as np
import pytest

import tlrt
from tests import DEVICES, path_seeds
from tlrt import errors, kernels
from tlrt.verify.edges import with_edges
from tlrt.verify.run import Runtime
from tlspec import registry
from tlspec.draw.cases import EDGES, PATH, Case, draw_case
from tlspec.ops.attention import laid, seen
from tlspec.strides import strided


@pytest.fixture(params=DEVICES)
def reproducible(request: pytest.FixtureRequest) -> tlrt.Device:
    return tlrt.device(request.param, math="reproducible")


def product_cases(device: tlrt.Device) -> list[Case]:
    row = with_edges(registry.get("bmm_strided"))
    drawn = [
        draw_case(row, seed, data, size)
        for seed in range(25)
        for data in ("normal", "wide")
        for size in ("small", EDGES)
    ]
    return drawn + [draw_case(row, seed, "normal", PATH) for seed in path_seeds(row, device)]


def contiguous_product(device: tlrt.Device, case: Case) -> np.ndarray:
    """The product of contiguous copies; with a bias, of one matrix after the other."""
    batch, m, n, p = (case.values[k] for k in ("batch", "m", "n", "p"))
    a, b = (
        np.ascontiguousarray(
            strided(case.inputs[x], shape, [case.values[f"{x.lower()}_{s}"] for s in ("batch", "row", "col")])
        )
        for x, shape in (("A", (batch, m, n)), ("B", (batch, n, p)))
    )
    bias, put = case.inputs["bias"], device.buffer
    if bias is None:
        return kernels.bmm(put(a), put(b), batch, m, n, p).numpy((batch, m, p))
    rows = [kernels.linear(put(b[t].T), put(a[t]), put(bias), p, n, m).numpy((m, p)) for t in range(batch)]
    return np.array(rows, np.float32).reshape(batch, m, p)


@pytest.mark.operations("bmm_strided")
def test_products_have_the_bits_of_contiguous_ones(reproducible: tlrt.Device) -> None:
    runtime = Runtime(reproducible.name, math="reproducible")
    seen = set()
    for case in product_cases(reproducible):
        if case.dims["batch"] > 300 and case.inputs["bias"] is not None:
            continue
        (found,) = runtime.run(case)
        assert found.tobytes() == contiguous_product(reproducible, case).tobytes(), (case.line, case.values)
        seen |= {(case.inputs["bias"] is None, name) for name in case.classes}
    assert len(seen) > 24


@pytest.mark.operations("bmm_strided")
def test_a_product_reads_no_element_behind_the_end(reproducible: tlrt.Device) -> None:
    """The last element that is read is the buffer's last; one row, column or product more is refused."""
    a, b = np.arange(1, 24, dtype=np.float32), np.arange(1, 32, dtype=np.float32)
    sizes = {"a_size": 23, "b_size": 31, "batch": 2, "m": 3, "p": 4, "n": 2}
    strides = {"a_batch": 12, "a_row": 1, "a_col": 8, "b_batch": 16, "b_row": 11, "b_col": 1}
    put = [reproducible.buffer(x) for x in (a, b)]
    expected = strided(a, (2, 3, 2), (12, 1, 8)) @ strided(b, (2, 2, 4), (16, 11, 1))
    np.testing.assert_array_equal(kernels.bmm_strided(*put, **sizes, **strides).numpy((2, 3, 4)), expected)
    for name, more in {"m": 4, "p": 5, "batch": 3, "n": 3}.items():
        with pytest.raises(errors.ShapeError, match="every element that is read"):
            kernels.bmm_strided(*put, **{**sizes, name: more}, **strides)
    far = 2**32 - 1  # sums of these pass 64 bits
    for name in ("a_batch", "a_col", "b_batch", "b_row"):
        with pytest.raises(errors.ShapeError, match="every element that is read"):
            kernels.bmm_strided(*put, **{**sizes, "batch": far, "n": far}, **{**strides, name: far})
    for name in ("a_row", "b_col"):
        with pytest.raises(errors.ArgumentError, match=f"{name[0]}_row or {name[0]}_col to be 1"):
            kernels.bmm_strided(*put, **sizes, **{**strides, name: 2})
    for name in ("a_col", "b_row"):
        with pytest.raises(errors.ArgumentError, match=f"{name} not 0"):
            kernels.bmm_strided(*put, **sizes, **{**strides, name: 0})


PREFIXES = {"Q": "q", "K": "k", "V": "v", "y": "y", "g": "g"}
GROUPED = ["batch", "heads", "queries", "d", "kv_heads", "keys", "width", "mask_mode", "mask_batch", "mask_heads", "mask_queries",
           "before", "after", "offset", "scale"]  # fmt: skip


def contiguous_attention(device: tlrt.Device, case: Case) -> list[np.ndarray]:
    """The results of the same attention on contiguous copies, in the order of memory that the case says."""
    values = case.values
    arrays = {
        name: device.buffer(np.ascontiguousarray(seen(PREFIXES[name], x, values)))
        for name, x in case.inputs.items()
        if name in PREFIXES
    }
    mask = case.inputs["mask"]
    options = {**{n: values[n] for n in GROUPED}, "mask": None if mask is None else device.buffer(mask)}
    if case.op.name == "attention_strided":
        made = [kernels.grouped_attention(**arrays, **options)]
    else:
        made = list(kernels.grouped_attention_bwd(**arrays, **options))
    shapes = [case.shape(a) for a in case.signature.outputs]
    return [laid(b.numpy(s), values["by_rows"] >> i & 1) for i, (b, s) in enumerate(zip(made, shapes, strict=True))]


@pytest.mark.operations("attention_strided", "attention_strided_gradients")
@pytest.mark.parametrize("name", ["attention_strided", "attention_strided_gradients"])
def test_attention_has_the_bits_of_contiguous_arrays(reproducible: tlrt.Device, name: str) -> None:
    runtime, row = Runtime(reproducible.name, math="reproducible"), registry.get(name)
    cases = [draw_case(row, seed, data, "small") for seed in range(40) for data in ("normal", "special")]
    cases += [draw_case(row, seed, "normal", PATH) for seed in range(len(row.drawing.paths))]
    layouts = set()
    for case in cases:
        for i, (found, want) in enumerate(
            zip(runtime.run(case), contiguous_attention(reproducible, case), strict=True)
        ):
            same = np.isnan(found) & np.isnan(want) | (found.view(np.uint32) == want.view(np.uint32))
            assert same.all(), (case.line, i, case.values)
        layouts.add(
            (case.values["by_rows"], case.values["kv_heads"] == case.values["heads"], case.values["q_head"] == 0)
        )
    assert len(layouts) > 6


@pytest.mark.operations("attention_strided")
def test_attention_reads_no_element_behind_the_end(reproducible: tlrt.Device) -> None:
    """Of heads in a packed array; one row, head or sample more is refused, and so are strides whose sums pass 64 bits."""
    rng = np.random.default_rng(5)
    size = dict.fromkeys(("q_size", "k_size", "v_size"), 108 + 2 * 4 + 2 * 36 + 4)
    sizes = {"batch": 2, "heads": 3, "kv_heads": 3, "queries": 3, "keys": 3, "width": 4, "d": 4, "mask_mode": 0}
    strides = {f"{p}_{axis}": n for p in "qkv" for axis, n in (("batch", 108), ("head", 4), ("row", 36))}
    q, k, v = (reproducible.buffer(rng.standard_normal(n).astype(np.float32)) for n in size.values())
    call = {**size, **sizes, **strides}
    assert np.isfinite(kernels.attention_strided(q, k, v, **call).numpy()).all()
    far = 2**32 - 1
    for more in ({"queries": 4}, {"batch": 3}, {"keys": 4}, {"heads": 6}, {"d": 5}, {"q_row": 37}, {"k_batch": 109},
                 {"q_batch": far}, {"batch": far, "q_batch": far, "k_batch": 0, "v_batch": 0, "q_row": far}):  # fmt: skip
        with pytest.raises(errors.ShapeError, match="every element that is read"):
            kernels.attention_strided(q, k, v, **{**call, **more})
    none = reproducible.buffer(np.zeros(0, np.float32))
    empty = {**call, **dict.fromkeys(size, 0), "batch": 0}
    assert kernels.attention_strided(none, none, none, **empty).numpy().size == 0
    with pytest.raises(errors.ArgumentError, match="by_rows"):
        kernels.attention_strided(q, k, v, **call, by_rows=2)
