"""A part of an input gives the part of the result that it gives in company, bit for bit, along every dimension of which results
are one by one: elements, rows, columns, channels. So what is computed at the end of a vector, a tile or a task, by the kernel of
small problems or that of large ones, rounds alike.

Which dimensions these are is read off the signature and asked of the float64 reference: those that an output has, and that every
input has once or not at all.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tlrt
from tests.kernels.test_errors import has_kernel
from tlrt.verify.run import Runtime
from tlspec.bounds import COLUMN_CHUNK, LEAF
from tlspec.compare import compare, same_bits
from tlspec.draw.cases import Case, build_case, draw_case, generator, refused_by
from tlspec.registry import Array, Op


def axis_of(array: Array, dim: str) -> int | None:
    """Where an array has the dimension; None where it has not, or not by itself."""
    return list(array.dims).index(dim) if list(array.dims).count(dim) == 1 else None


def cut(case: Case, dim: str, part: slice) -> Case | None:
    """The case of a part of a dimension; None where an array has it otherwise than as one axis, or not at all."""
    sig = case.signature
    arrays = [*case.op.signature.inputs, *sig.inputs, *sig.outputs]
    named = [a for a in arrays if any(dim in item for item in a.dims)]
    if any(axis_of(a, dim) is None or a.host or a.listed for a in named):
        return None
    axes = {a.name: axis_of(a, dim) for a in named}

    def take(values: dict[str, np.ndarray | None]) -> dict[str, np.ndarray | None]:
        return {
            k: x
            if x is None or k not in axes
            else np.ascontiguousarray(np.moveaxis(np.moveaxis(x, axes[k], 0)[part], 0, axes[k]))
            for k, x in values.items()
        }

    count = len(range(*part.indices(case.dims[dim])))
    one = replace(case, dims={**case.dims, dim: count}, inputs=take(case.inputs), cotangents=take(case.cotangents))
    vars(one)["arguments"] = take(case.arguments)
    return one


def elements(case: Case, part: slice) -> Case:
    """The case of a part of the elements of an elementwise operation."""

    def take(values: dict[str, np.ndarray | None]) -> dict[str, np.ndarray | None]:
        return {k: None if x is None else x[part] for k, x in values.items()}

    one = replace(case, inputs=take(case.inputs), cotangents=take(case.cotangents))
    vars(one)["arguments"] = take(case.arguments)
    return one


def parts(case: Case) -> Iterator[tuple[str, slice, Case, list[int | None]]]:
    """Every dimension with a part of it, the case of that part, and the axis along which each output is cut. A part has two
    elements or more: sums over one column go another way."""
    if case.op.signature.elementwise:
        n = case.shape(case.signature.outputs[0])[0]
        for part in (slice(1, -1), slice(n - 2, None)):
            yield "n", part, elements(case, part), [0] * len(case.signature.outputs)
        return
    for dim, n in case.dims.items():
        if not isinstance(n, int) or n < 4:
            continue
        for part in (slice(1, -1), slice(n - 2, None)):
            one = cut(case, dim, part)
            if one is not None and refused_by(case.op, {**one.values, **one.inputs}) is None:
                yield dim, part, one, [axis_of(o, dim) for o in case.signature.outputs]


def wrong(case: Case, runtime: Runtime) -> list[str]:
    """What differs, over all dimensions and parts."""
    found, whole = [], runtime.run(case)
    reference = case.expected.outputs
    for dim, part, one, axes in parts(case):
        alone = runtime.run(one)
        for j, axis in enumerate(axes):
            if axis is None:
                continue
            pick = (slice(None),) * axis + (part,)
            own = one.expected
            if not np.allclose(own.outputs[j], reference[j][pick], rtol=1e-9, atol=1e-9, equal_nan=True):
                continue  # a sum over the dimension's elements, or of what depends on them
            result = same_bits(whole[j][pick], alone[j])
            if not result.ok and not case.op.contract.same_bits and runtime.name != "cpu":
                result = compare(np.ascontiguousarray(whole[j][pick]), own.outputs[j], own.tolerances[j])
            if not result.ok:
                found.append(
                    f"{case.name} {case.values}: {dim}[{part}]: {result.explain(case.signature.outputs[j].name)}"
                )
    return found


def rounds(row: Op, which: str) -> bool:
    """Whether the bits are not those of the reference, and an index does not choose among the elements of a dimension."""
    exact = row.bound_of(which).kind in ("exact", "moved", "ordered")
    return has_kernel(row, which) and not exact and not any(a.kind == "u32" for a in row.signature.inputs)


@pytest.mark.only(where=rounds)
def test_a_part_gives_its_part(entry: tuple[Op, str], runtime: Runtime) -> None:
    row, which = entry
    for size, seeds in (("small", range(6)), ("medium", range(2))):
        for seed in seeds:
            found = wrong(draw_case(row, seed, "normal", size, which), runtime)
            assert not found, "\n".join(found[:10])


def has_rows(row: Op, which: str) -> bool:
    """Whether the first dimension is one of rows that are computed one by one; a mean over them is not."""
    leads = {a.dims[:1] for a in row.signature_of(which).outputs}
    if row.family not in ("softmax", "norm", "loss") or row.name in ("batch_norm_stats", "cross_entropy"):
        return False
    return row.signature.dims[:1] in leads & {("rows",), ("batch",)}


@pytest.mark.only(where=has_rows)
def test_many_long_rows_are_what_they_are_among_few(entry: tuple[Op, str], runtime: Runtime) -> None:
    """Beyond two sizes at once: rows of more than a leaf, in more chunks than a few."""
    row, which = entry
    if runtime.name != "cpu" and not row.contract.same_bits:
        pytest.skip("bits of CUDA's own")
    [first, *others, last] = row.signature.dims
    drawn = draw_case(row, 2, "normal", "small", which).params
    values = {**drawn, first: 4, **dict.fromkeys(others, 1), last: LEAF + 5}
    labels = {a.name: np.arange(4, dtype=np.uint32) for a in row.signature.inputs if a.kind == "u32"}
    few = build_case(row, values, labels, generator("rows", row.name), which=which)
    times = 2 * COLUMN_CHUNK + 1  # eight chunks of rows, and four rows more
    many = {
        a.name: x if x is None or axis_of(a, first) is None else np.tile(x, (times, *[1] * (x.ndim - 1)))
        for a in few.signature.inputs
        for x in [few.arguments[a.name]]
    }
    whole = runtime.run(replace(few, dims={**few.dims, first: 4 * times}, given=many))
    for array, mine, alone in zip(few.signature.outputs, whole, runtime.run(few), strict=True):
        if axis_of(array, first) == 0:
            assert (mine.reshape(times, -1).view(np.uint32) == alone.reshape(-1).view(np.uint32)).all(), array.name


@pytest.mark.parametrize("name", ["tanh", "matmul", "softmax", "layer_norm", "selective_scan_diag"])
def test_a_last_bit_at_an_end_is_seen(name: str) -> None:
    """The last element of a vector, row or column, as another way than the others' would round it."""

    class Other:
        def __getattr__(self, entry: str) -> Any:
            kernel = getattr(tlrt.kernels, entry)
            return (lambda *a, **k: spoil(kernel(*a, **k))) if entry == name else kernel

    def spoil(out: tlrt.Buffer) -> tlrt.Buffer:
        bits = out.numpy().view(np.uint32)
        bits[-1:] ^= len(bits) > 4
        return tlrt.Buffer.from_numpy(bits.view(np.float32), out.device)

    cases = [draw_case(name, seed, "normal", "small") for seed in range(6)]
    assert any(wrong(case, Runtime("cpu", kernels=Other())) for case in cases)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm"])
def test_equal_columns_give_equal_results(name: str, runtime: Runtime) -> None:
    """Whichever lane, tail or leaf computes them, though a row is a sum over its columns."""
    for seed, size in itertools.product(range(6), ("small", "medium")):
        case = draw_case(name, seed, "normal", size)
        for x in case.inputs.values():
            if x is not None:
                x[..., -1:] = x[..., :1]
        (out,) = runtime.run(case)
        assert out is not None and same_bits(out[..., -1:], out[..., :1]).ok, case.values
