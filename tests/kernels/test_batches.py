"""A row of a batch does not see the others, however large or broken they are: rows of 1e-30, 1, 1e30, NaN and infinity side by
side give, each, what the row gives alone: the same bits where both devices do (``same_bits``), else within the bound of the row
alone. A transform that packs two rows into one complex number, a product that scales a whole tile, a mask that multiplies
instead of selecting: all fail here.

What is a batch is read off the signature and asked of the reference: a dimension that is the first of an output and of an
input, that stands nowhere else among the inputs, and rows of which the float64 reference treats one by one.
"""

import re
from dataclasses import replace
from functools import cache
from itertools import islice, product
from typing import Any

import numpy as np
import pytest

import tlrt
from tlrt.verify.run import Runtime
from tlspec import registry
from tlspec.bounds import call_reference
from tlspec.compare import compare, same_bits
from tlspec.draw.cases import Case, build_case, draw_case, generator, refused_by, shape_of
from tlspec.registry import Op

#: one factor per row, in turn; 5 is coprime to the widths of tiles and vectors, so neighbours differ everywhere
SCALES = (1e-30, 1.0, 1e30, np.nan, np.inf)
#: draws of the other dimensions
SIZES = 4
#: more than a vector of 16 lanes, and no multiple of anything
ROWS = 37


def reference(case: Case) -> list[np.ndarray]:
    """The float64 reference of a case's own arguments."""
    arguments = {
        k: x if x is None else x.astype(np.int64 if x.dtype == np.uint32 else np.float64)
        for k, x in case.arguments.items()
    }
    with np.errstate(all="ignore"):
        outs = call_reference(case.reference, arguments, case.values)
    return [np.asarray(o, np.float64) for o in (outs if isinstance(outs, tuple) else (outs,))]


def leads(array: Any, dim: str) -> bool:
    return bool(array.dims) and array.dims[0] == dim


def within(dim: str, items: tuple[str, ...]) -> bool:
    return any(re.search(rf"\b{dim}\b", item) for item in items)


def batch_of(row: Op, dim: str, which: str, data: str = "normal", pick: int = 0) -> Case | None:
    """A case with ROWS rows along `dim`, the other dimensions those of the row's draw number `pick` that is not empty; None
    where one row or that many are refused."""
    draws = (draw_case(row, seed, "normal", "small", which) for seed in range(100))
    filled = (c for c in draws if all(np.prod(size) for size in c.dims.values()))
    drawn = next(islice(filled, pick, None), None)
    if drawn is None:
        return None
    values = {**drawn.values, dim: ROWS}
    given: dict[str, Any] = {}
    for a in row.signature.inputs:  # indices, masks and coefficients a row draws itself keep what they hold
        x = drawn.inputs[a.name]
        if a.host or a.optional:
            given[a.name] = None if x is None else np.resize(x, shape_of(a, values))
    if any(refused_by(row, {**values, dim: rows, **given}) is not None for rows in (1, ROWS)):
        return None
    return build_case(row, values, given, generator("rows", row.name), data=data, which=which)


def alone(case: Case, dim: str, i: int) -> Case:
    """Row i of a case, as a case of one row. A VJP that reads an output gets the batch's, not one computed anew."""

    def cut(arrays: dict[str, Any]) -> dict[str, Any]:
        return {k: x[i : i + 1] if k in sliced and x is not None else x for k, x in arrays.items()}

    sliced = {a.name for a in (*case.op.signature.inputs, *case.signature.inputs) if leads(a, dim)}
    one = replace(case, dims={**case.dims, dim: 1}, inputs=cut(case.inputs), cotangents=cut(case.cotangents))
    vars(one)["arguments"] = cut(case.arguments)
    return one


def batch_dimension(row: Op, which: str) -> tuple[str, tuple[int, ...]] | None:
    """The entry's batch dimension and the outputs that have it, or None."""
    return _batch_dimension(row.name, which)


@cache
def _batch_dimension(name: str, which: str) -> tuple[str, tuple[int, ...]] | None:
    row = registry.get(name)
    sig = row.signature_of(which)
    if sig.lists:  # their tensors have lengths of their own; the laws split them
        return None
    for dim in (d for d in row.signature.dims if not d.startswith("*")):
        outputs = tuple(j for j, o in enumerate(sig.outputs) if leads(o, dim) and not within(dim, o.dims[1:]))
        elsewhere = any(within(dim, a.dims[leads(a, dim) :]) for a in sig.inputs)
        carries = any(leads(a, dim) and not a.host and not a.optional for a in sig.inputs)
        if not outputs or elsewhere or not carries:
            continue
        for data, pick in product(
            ("normal", "integers"), range(SIZES)
        ):  # small integers have ties; indices may miss all rows
            whole = batch_of(row, dim, which, data, pick)
            if whole is None:
                outputs = ()
                break
            all_rows = reference(whole)
            for i in (0, ROWS // 2, ROWS - 1):
                one = reference(alone(whole, dim, i))
                outputs = tuple(
                    j
                    for j in outputs
                    if np.allclose(one[j], all_rows[j][i : i + 1], rtol=1e-9, atol=1e-9, equal_nan=True)
                )
        if outputs:
            return dim, outputs
    return None


def test_batches_are_found() -> None:
    """Every operation whose first output and an input begin with a dimension named batch is one, but for statistics over
    the batch, and so are rows of a matrix."""
    named = [
        r
        for r in registry.ops()
        if leads(r.signature.outputs[0], "batch")
        and any(leads(a, "batch") for a in r.signature.inputs)
        and r.name != "batch_norm_stats"
    ]
    assert named and [r.name for r in named if (batch_dimension(r, "forward") or ("",))[0] != "batch"] == []
    families = {r.family for r in registry.ops() if batch_dimension(r, "forward") is not None}
    assert {"softmax", "norm", "pool", "conv", "spectral", "linalg", "attention"} <= families


def faults(row: Op, which: str, runtime: Runtime) -> list[str]:
    """What rows of other magnitudes do to a row, each operand scaled in turn, at several sizes of a row."""
    dim, outputs = batch_dimension(row, which)
    wrong: list[str] = []
    for pick in range(SIZES):
        clean = batch_of(row, dim, which, pick=pick)
        for a in clean.signature.inputs:
            x = clean.arguments[a.name]
            if not leads(a, dim) or a.host or a.optional or x is None:
                continue
            scale = np.resize(np.array(SCALES, np.float32), ROWS).reshape(-1, *[1] * (x.ndim - 1))
            mixed = replace(clean)
            with np.errstate(all="ignore"):
                vars(mixed)["arguments"] = {**clean.arguments, a.name: x * scale}
            whole = runtime.run(mixed)
            for i in range(2 * len(SCALES)):
                one = alone(mixed, dim, i)
                own = runtime.run(one)
                for j in outputs:
                    mine, lone = whole[j], own[j]
                    result = same_bits(mine[i : i + 1], lone)
                    if not result.ok and not row.contract.same_bits:
                        e = one.expected
                        result = compare(mine[i : i + 1], e.outputs[j], e.tolerances[j], signed_zeros=e.signed_zeros)
                    if not result.ok:
                        where = f"{clean.name} {clean.values}, {a.name}, row {i} times {SCALES[i % len(SCALES)]:g}"
                        wrong.append(f"{where}: {result.explain(clean.signature.outputs[j].name)}")
    return wrong


@pytest.mark.only(where=lambda row, which: batch_dimension(row, which) is not None)
def test_a_row_does_not_see_the_others(entry: tuple[Op, str], runtime: Runtime) -> None:
    wrong = faults(*entry, runtime)
    assert not wrong, "\n" + "\n".join(wrong[:10])


def test_rows_packed_in_pairs_are_caught() -> None:
    """The plain way to transform real rows two at a time, as x[0] + i·x[1], leaks rounding errors, NaN and infinities."""

    class Packed:
        def __getattr__(self, name: str) -> Any:
            return rfft if name == "rfft1d_packed" else getattr(tlrt.kernels, name)

    def rfft(x: tlrt.Buffer, batch: int, n: int) -> tlrt.Buffer:
        rows = np.resize(x.numpy().reshape(batch, n), (batch + batch % 2, n))
        with np.errstate(all="ignore"):
            Z = np.fft.fft(rows[::2] + 1j * rows[1::2], axis=1).astype(np.complex64)
            mirror = np.roll(Z[:, ::-1], 1, axis=1).conj()
            pairs = np.stack([(Z + mirror) / 2, (Z - mirror) / 2j], axis=1).reshape(-1, n)[:batch, : n // 2 + 1]
        return tlrt.Buffer.from_numpy(np.ascontiguousarray(pairs, np.complex64).view(np.float32).ravel(), x.device)

    wrong = faults(registry.get("rfft1d_packed"), "forward", Runtime("cpu", kernels=Packed()))
    assert {"1e-30", "1"} <= {factor for line in wrong for factor in re.findall(r" times (\S+):", line)}
