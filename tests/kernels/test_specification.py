"""Every operation and every VJP on every device against the specification: drawn cases, all data classes, repetition into
poisoned outputs, subsets of gradients, SIMD variants, thread counts, both devices, laws. Large cases and the paths of rows are
left to ``make verify``."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tlrt
from tests.kernels.test_conv import demand_bounds
from tlrt.verify.report import Result
from tlrt.verify.run import Runtime
from tlrt.verify.verifier import Settings, Verifier
from tlspec import laws
from tlspec.draw.cases import PATH, Case, build_case, data_classes, draw_case, free_sizes, generator
from tlspec.judge.shrink import lengths_of, resized
from tlspec.registry import Op


def demand(row: Op, which: str, cases: list[Case], runtime: Runtime) -> None:
    """Verifies cases on a device."""
    demand_success(Verifier({runtime.name: runtime}).check(row, which, cases))


def demand_success(results: list[Result]) -> None:
    """Fails with the explanation of every failure and the line that repeats it."""
    lines = [f"{f.entry} on {f.device} ({f.kind}): {f.detail}\n    {f.line}" for r in results for f in r.failures]
    assert not lines, "\n" + "\n".join(lines)


def test_drawn_cases(entry: tuple[Op, str], runtime: Runtime) -> None:
    row, which = entry

    @given(
        seed=st.integers(0, 2**32),
        data=st.sampled_from(data_classes(row, which)),
        size=st.sampled_from(["small", "medium"]),
    )
    def check(seed: int, data: str, size: str) -> None:
        demand(row, which, [draw_case(row, seed, data, size, which)], runtime)

    check()


def test_every_data_class(entry: tuple[Op, str], runtime: Runtime) -> None:
    row, which = entry
    cases = [
        draw_case(row, seed, data, "small", which) for data in data_classes(row, which) for seed in (101, 102, 103)
    ]
    demand(row, which, cases, runtime)


def test_what_rows_are_rarely_drawn_with(entry: tuple[Op, str], runtime: Runtime) -> None:
    """Exponentials that underflow, sums that cancel, and arrays of nothing but -inf, or 0, as masks leave them."""
    row, which = entry
    for seed in range(4):
        for data in ("spread", "offset") if row.family != "scan" else ():  # products of many would overflow
            demand_bounds(draw_case(row, seed, data, "small", which), runtime, f"{data} {seed}")
        case = draw_case(row, seed, data_classes(row, which)[0], "small", which)
        drawn = {**case.inputs, **case.cotangents}
        names = [n for n, x in drawn.items() if x is not None and x.dtype == np.float32]
        for name, value in itertools.product(names[:1] + names[1:][-1:], (-np.inf, 0.0)):
            arrays = {**drawn, name: np.full_like(drawn[name], value)}  # type: ignore[arg-type]
            made = build_case(row, case.values, arrays, generator("one number"), data="special", which=which)
            demand_bounds(made, runtime, f"{name} = {value} {seed}")


@pytest.mark.cuda
@pytest.mark.only(where=lambda row, which: row.drawing.paths)
def test_paths_in_every_data_class(entry: tuple[Op, str]) -> None:
    """What verify tries in one data class each."""
    row, which = entry
    classes = data_classes(row, which)
    cases = [
        draw_case(row, i, data, PATH, which)
        for i in range(len(row.drawing.paths))
        for k, data in enumerate(classes)
        if k != i % len(classes)
    ]
    demand(row, which, cases, Runtime("cuda"))


def test_variants_and_threads_give_the_same_bits(entry: tuple[Op, str]) -> None:
    row, which = entry
    verifier = Verifier({"cpu": Runtime("cpu")}, Settings(variants=True))
    assert f"cpu_variants={verifier.variants[0]}" in tlrt.build_info()
    classes = data_classes(row, which)
    cases = [draw_case(row, 11 + i, data, "medium", which) for i, data in enumerate(classes[:3])]
    demand_success(verifier.check(row, which, cases))


@pytest.mark.only(where=lambda row, which: not row.signature.lists and len(free_sizes(row)) > 1)
def test_calls_of_exchanged_lengths_keep_apart(entry: tuple[Op, str], runtime: Runtime) -> None:
    """What a call keeps for the next one is not taken by a call with as many elements in another shape."""
    row, which = entry
    case = draw_case(row, 29, "normal", "small", which)
    lengths = {n: k for n, k in lengths_of(case).items() if n in free_sizes(row) and isinstance(k, int)}
    others = [
        resized(case, {**lengths_of(case), a: lengths[b], b: lengths[a]})
        for a, b in itertools.combinations(lengths, 2)
        if lengths[a] != lengths[b]
    ]
    demand(row, which, [each for other in others if other is not None for each in (case, other, case)], runtime)


@pytest.mark.cuda
def test_devices_agree(entry: tuple[Op, str]) -> None:
    row, which = entry
    cases = [draw_case(row, 23 + i, data, "medium", which) for i, data in enumerate(data_classes(row, which))]
    demand_success(Verifier({d: Runtime(d) for d in ("cpu", "cuda")}).check(row, which, cases))


@pytest.mark.only(where=lambda row: row.contract.laws)
def test_laws(row: Op, runtime: Runtime, thorough: bool) -> None:
    broken = []
    for law in row.contract.laws:
        for data in law.data:
            for seed in range(10 if thorough else 1):
                for world in (laws.Spec(), laws.Device(runtime.name, runtime.run)):
                    share, where = laws.check(law, world, draw_case(row, seed, data, "small"))
                    if share > 1:
                        broken.append(
                            f"{law} on {world.name}, {data}, seed {seed}: {share:.3g} of the tolerance at {where}"
                        )
    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.only(
    where=lambda row: (
        (row.family == "reduce" and row.contract.cuda == "own" and row.bound.kind == "tree") or "never -0" in row.doc
    )
)
def test_sum_of_zeros_is_plus_zero(row: Op, runtime: Runtime) -> None:
    """A sum is never -0, whatever the signs of the zeros it is of; a mean over nothing is NaN."""
    for seed in range(12):
        drawn = draw_case(row, seed, "normal", "small")
        for signs in ("minus", "mixed"):
            rng = generator("zeros", row.name, seed)
            zeros = {
                k: np.where(rng.random(x.shape) < (2 if signs == "minus" else 0.5), np.float32(-0.0), np.float32(0))
                for k, x in drawn.inputs.items()
                if x is not None
            }
            case = build_case(row, drawn.values, zeros, rng, data="structured")
            for out in (*runtime.run(case), *(x.astype(np.float32) for x in case.expected.outputs)):
                bits = out.view(np.uint32)
                assert np.all((bits == 0) | np.isnan(out)), f"{case.values}, {signs}: a zero is -0"
                assert all(x.size == 0 for x in zeros.values()) or not np.isnan(out).any()


@pytest.mark.only(where=lambda row, which: row.bound_of(which).fixed is not None)
def test_nan_payloads_are_drawn(entry: tuple[Op, str]) -> None:
    """Rows that keep bits meet NaNs of both signs, quiet and signalling, with payloads."""
    row, which = entry
    seen: set[int] = set()
    for seed in range(40):
        case = draw_case(row, seed, "special", "medium", which)
        for a in case.signature.buffers:
            x = case.arguments[a.name]
            if x is not None:
                seen.update(x.view(np.uint32)[np.isnan(x)].tolist())
    assert {(b >> 31, b >> 22 & 1) for b in seen} == {(0, 0), (0, 1), (1, 0), (1, 1)} and len(seen) > 100
