"""Benchmark rows of the core: transfers between host and device, and the cost of one call on one element."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tlrt
from bench.measure import Row, Timing, time_host
from tlrt import kernels

TRANSFER = 2**26  # elements: 256 MiB


def rows(device: tlrt.Device, torch: Any) -> Iterator[Row]:
    """Host to device and back from ordinary (pageable) NumPy memory, then one-element calls by the host clock."""
    host = np.random.default_rng(1).standard_normal(TRANSFER, dtype=np.float32)
    buffer = tlrt.Buffer.from_numpy(host, device)
    place = "cpu" if not device.is_cuda else "cuda"

    def finish(call: Callable[[], Any]) -> Callable[[], Any]:
        """`call`, then wait for the device."""
        return (lambda: (call(), device.synchronize())) if device.is_cuda else call

    def torch_finish(call: Callable[[], Any]) -> Callable[[], Any]:
        return (lambda: (call(), torch.cuda.synchronize())) if device.is_cuda else call

    def row(name: str, size: str, ours: Timing, other: Timing | None, moved: int) -> Row:
        peers: dict[str, dict[str, float | None]] = {}
        if other is not None:
            ratio = other.median / ours.median
            peers["torch"] = {"ms": other.median, "spread_ms": other.spread, "ratio": ratio, "error": None}
        return Row(name, size, device.name, ours.median, ours.spread, 0.0, 0.0, moved, 0.0, False, None, peers,
                   device.math)  # fmt: skip

    if device.is_cuda:
        up = time_host(finish(lambda: tlrt.Buffer.from_numpy(host, device).release()))
        down = time_host(lambda: buffer.numpy())
        up_torch = down_torch = None
        if torch is not None:
            tensor = torch.from_numpy(host).to(place)
            up_torch = time_host(torch_finish(lambda: torch.from_numpy(host).to(place)))
            down_torch = time_host(lambda: tensor.cpu())
            del tensor
        yield row("host to device", "256 MiB pageable", up, up_torch, 4 * TRANSFER)
        yield row("device to host", "256 MiB pageable", down, down_torch, 4 * TRANSFER)
    buffer.release()

    a = tlrt.Buffer.from_numpy(np.ones(1, np.float32), device)
    out = tlrt.Buffer.from_numpy(np.ones(1, np.float32), device)
    calls = 2000

    def burst(call: Callable[[], Any]) -> Callable[[], Any]:
        """Many calls, then wait: the rate at which one thread can submit."""

        def run() -> None:
            for _ in range(calls):
                call()

        return run

    def per_call(t: Timing) -> Timing:
        return Timing(t.median / calls, t.spread / calls, t.repeats)

    other = other_out = None
    if torch is not None:
        t = torch.ones(1, device=place)
        result = torch.ones(1, device=place)
        with torch.no_grad():
            other = per_call(time_host(torch_finish(burst(lambda: torch.add(t, t)))))
            other_out = per_call(time_host(torch_finish(burst(lambda: torch.add(t, t, out=result)))))
    ours = per_call(time_host(finish(burst(lambda: kernels.add(a, a)))))
    yield row("one call, new output", "add, 1 element", ours, other, 12)
    ours = per_call(time_host(finish(burst(lambda: kernels.add(a, a, out=out)))))
    yield row("one call, output given", "add, 1 element", ours, other_out, 12)
