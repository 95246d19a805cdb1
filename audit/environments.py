"""Environments: the caller's floating-point mode changes no bit of any result, and no exception of it becomes a signal.

A child process for each mode computes drawn cases of every entry point in it, with all that goes with them on the CPU (uploads of
float32 and float64, scalars, downloads), and gives a digest of all outputs, which must be that of the default mode.
"""

import ctypes
import gc
import hashlib
import itertools
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from tlrt._terminal import Progress, format_table
from tlrt.verify.run import Runtime
from tlspec.drawn import Case, data_classes, draw_case
from tlspec.registry import ops

#: where a C library's fenv_t keeps the word of the mode, counted in 32 bits, and what is flipped in it: MXCSR's FTZ and DAZ, its
#: rounding, the masks of its exceptions (Intel SDM volume 1, 10.2.3), FPCR's FZ and RMode (Arm ARM, C5.2.8)
PLACE, FLIPS = {
    "x86_64": (7, {"flush": 0x8040, "up": 0x4000, "down": 0x2000, "to zero": 0x6000, "unmasked": 0x1F80}),
    "aarch64": (0, {"flush": 1 << 24, "up": 1 << 22, "down": 1 << 23, "to zero": 3 << 22}),
}[platform.machine()]


@contextmanager
def mode(name: str) -> Iterator[None]:
    """The calling thread computes in another mode, and so do threads it makes; "default" changes nothing. The collector waits:
    its callbacks, such as hypothesis', would compute in the mode of whoever they interrupt."""
    libm, collects = ctypes.CDLL("libm.so.6"), gc.isenabled()
    before, changed = (ctypes.c_uint32 * 64)(), (ctypes.c_uint32 * 64)()
    assert libm.fegetenv(before) == 0 and libm.fegetenv(changed) == 0
    changed[PLACE] ^= FLIPS.get(name, 0)
    gc.disable()
    assert libm.fesetenv(changed) == 0
    try:
        yield
    finally:
        libm.fesetenv(before)
        if collects:
            gc.enable()


def _cases(count: int, seed: int) -> Iterator[Case]:
    """So many drawn cases of every entry point, of all its data classes in turn."""
    for row in ops():
        for which in ("forward", "vjp") if row.vjp_rule else ("forward",):
            classes = data_classes(row, which)
            for i in range(count):
                case = draw_case(
                    row, seed + i, classes[i % len(classes)], ("small", "medium")[i // len(classes) % 2], which
                )
                _ = case.arguments  # drawn here, as NumPy computes them in the caller's mode
                yield case


def _digest(name: str, cases: list[Case]) -> tuple[int, str]:
    """The outputs of the cases, float64 uploads and scalars, computed in a mode."""
    runtime, digest = Runtime("cpu"), hashlib.sha256()
    wide = np.random.default_rng(0).standard_normal(4096) * np.exp2(np.arange(4096) % 400 - 200)
    scalars = wide[::64].tolist()
    device, kernels = runtime.device, runtime.kernels

    def compute() -> list[Any]:
        pairs = itertools.pairwise(scalars)
        return [device.buffer(wide)] + [kernels.scale(device.full(2, x), y) for x, y in pairs]

    compute()  # what is read and compiled once takes arithmetic of the interpreter's own
    for case in cases:
        runtime.run(case)
        with mode(name):
            outs = runtime.run(case)
        for out in outs:
            digest.update(b"-" if out is None else out.tobytes())
    with mode(name):
        made = compute()
    for buffer in made:
        digest.update(buffer.numpy().tobytes())
    return len(cases) + len(made), digest.hexdigest()[:32]


def _run_in_child(name: str, cases: list[Case]) -> tuple[int, str]:
    """The digest from a process of its own, or what ended that."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, "{} {}".format(*_digest(name, cases)).encode())
        except BaseException as error:
            os.write(write, f"0 {type(error).__name__}: {error}"[:500].encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        text = file.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count, _, digest = text.partition(" ")
    return (int(count), digest) if text and not status else (0, f"ended with status {status}")


def campaign(cases: int, seed: int = 0) -> dict[str, Any]:
    """So many cases of every entry point in every mode."""
    start, drawn = time.monotonic(), list(_cases(cases, seed))
    with Progress(float(len(FLIPS) + 1), "modes") as progress:
        rows = []
        for name in ("default", *FLIPS):
            count, digest = _run_in_child(name, drawn)
            rows.append({"mode": name, "cases": count, "digest": digest})
            progress.advance(1.0, name)
    failures = [
        f"{r['mode']}: {r['digest']}, expected {rows[0]['digest']}" for r in rows if r["digest"] != rows[0]["digest"]
    ]
    if not rows[0]["cases"]:
        failures.append(f"default: {rows[0]['digest']}")
    return {"seed": seed, "modes": rows, "failures": failures, "seconds": round(time.monotonic() - start, 1)}


def ok(document: Mapping[str, Any]) -> bool:
    """Whether nothing failed."""
    return not document["failures"]


def table(document: Mapping[str, Any]) -> str:
    """One line per mode."""
    text = format_table(("mode", "cases", "digest"), [(r["mode"], r["cases"], r["digest"]) for r in document["modes"]])
    return text + "".join(f"\nFAIL {f}" for f in document["failures"])
