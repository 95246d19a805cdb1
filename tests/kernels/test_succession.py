"""Calls in succession: what a kernel keeps from one call must not be what the next call, of a length next to it, takes."""

import numpy as np
import pytest

from tests.kernels.test_conv import demand_bounds
from tlrt.verify.run import Runtime
from tlspec.draw.cases import draw_case
from tlspec.judge.shrink import resized
from tlspec.registry import Op


def test_a_call_that_is_repeated_changes_no_counter(runtime: Runtime, entry: tuple[Op, str]) -> None:
    """After a few calls all memory is there, and what a kernel keeps is found again. All of it is collected and made anew."""
    cases = [draw_case(entry[0].name, seed=seed, data="normal", size="small", which=entry[1]) for seed in (2, 3)]
    found = []
    for case in cases * 3:
        for _ in range(3):
            runtime.run(case)
        memory = runtime.device.memory()
        found.append((memory.live_bytes, memory.live_buffers, memory.cached_bytes))
        runtime.run(case)
        memory = runtime.device.memory()
        assert found[-1] == (memory.live_bytes, memory.live_buffers, memory.cached_bytes)
        runtime.device.collect()
        assert runtime.device.memory().cached_bytes == 0
    assert found[2:4] == found[4:]


def test_calls_of_neighbouring_lengths(runtime: Runtime, entry: tuple[Op, str]) -> None:
    op, which = entry
    if op.signature.lists:
        pytest.skip("lengths of lists are not of one array")
    case = draw_case(op.name, seed=2, data="normal", size="small", which=which)
    for name, value in case.values.items():
        if name not in op.signature.sizes or not isinstance(value, int) or (name == "n" and op.signature.elementwise):
            continue
        near = [resized(case, {**case.values, name: max(value + by, 0)}) for by in (1, 0, -1, 0)]
        for turn in near:
            if turn is not None:
                demand_bounds(turn, runtime, f"{op.name} {which}, {name} {turn.values[name]} after another")


def test_calls_of_neighbouring_parameters(runtime: Runtime, entry: tuple[Op, str]) -> None:
    op, which = entry
    case = draw_case(op.name, seed=2, data="normal", size="small", which=which)
    for name in [p.name for p in op.signature.params if isinstance(case.values[p.name], (int, float))]:
        value = case.values[name]
        other = value - 1 if value > 2**16 else value + 1
        for changed in (float(np.float32(1.5 * value + 0.25)) if isinstance(value, float) else other, value):
            turn = resized(case, {**case.values, name: changed})
            if turn is not None:
                demand_bounds(turn, runtime, f"{op.name} {which}, {name} {changed} after another")
