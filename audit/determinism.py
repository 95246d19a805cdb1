"""The same bits, whatever is around a call: repetitions, threads, SIMD variants, memory, the rest of the batch.

Every entry point of the registry runs on drawn cases. A result that differs in a bit from the first one fails. Batch
invariance is promised wherever no library of the vendor decides the order (``cuda="cuBLAS"`` and the like in the row), and of
what is defined in reproducible contexts there; elsewhere the outcome is reported, and does not fail.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from audit.environment import processors
from tlrt._terminal import Progress
from tlrt.verify.run import Runtime, cpu_settings, cpu_variants
from tlrt.verify.verifier import directions
from tlspec import registry
from tlspec.compare import same_bits
from tlspec.drawn import PATH, Case, cotangent_names, data_classes, draw_case
from tlspec.registry import Array, Op

#: the dimension of each operation whose entries do not depend on one another, and the fewest that the same tree sums:
#: one column alone is summed by the row tree, as its row says
BATCH: Mapping[str, tuple[str, int]] = {
    "softmax": ("rows", 1), "log_softmax": ("rows", 1), "layer_norm": ("rows", 1),
    "rms_norm": ("rows", 1), "channel_affine": ("batch", 1), "cross_entropy_rows": ("rows", 1),
    "batchnorm_channel_first": ("channels", 1), "matmul": ("m", 1), "bmm": ("batch", 1), "linear": ("batch", 1),
    "conv": ("batch", 1), "conv_transpose": ("batch", 1),
    "max_pool": ("channels", 1), "avg_pool": ("channels", 1),
    "smooth_max_pool": ("channels", 1), "flash_attention": ("batch", 1),
    "grouped_attention": ("batch", 1), "conv_grouped": ("batch", 1), "conv_transpose_grouped": ("batch", 1),
    "rotary": ("batch", 1), "sinusoidal": ("batch", 1), "selective_scan_diag": ("state", 1),
    "selective_scan_diag_var": ("state", 1), "rfft1d_packed": ("batch", 1), "irfft1d_packed": ("batch", 1),
    "gather_rows": ("cols", 1), "scatter_add_rows": ("cols", 1),
    "layer_norm_stats": ("rows", 1), "rms_norm_stats": ("rows", 1),
    "batch_norm_stats": ("channels", 1), "group_norm_stats": ("batch", 1),
}  # fmt: skip


def _axis(array: Array, name: str) -> int | None:
    """Which axis of an array the dimension is; None where it has none."""
    if array.elementwise:
        return 0
    return array.dims.index(name) if name in array.dims else None


def _cut(x: np.ndarray | None, axis: int | None, which: np.ndarray) -> np.ndarray | None:
    return x if x is None or axis is None else np.ascontiguousarray(np.take(x, which, axis=axis))


def parts(case: Case) -> Iterator[tuple[np.ndarray, Case]]:
    """Smaller and larger batches of a case's entries: which entries, and the case of these alone. The arguments are cut from
    the case's own, so that nothing but the batch differs."""
    name, fewest = ("*", 1) if case.op.signature.elementwise else BATCH[case.op.name]
    size = next(iter(case.arguments.values())).size if name == "*" else case.dims[name]  # type: ignore[union-attr]
    chosen = [np.arange(i, i + fewest) for i in sorted({0, (size - fewest) // 2, size - fewest})]
    chosen += [np.arange(size // 3, size), np.arange(size)[::-1], np.concatenate([np.arange(size)] * 2)]
    arrays = {a.name: _axis(a, name) for a in (*case.op.signature.inputs, *case.op.signature.outputs)}
    arrays |= {cot: _axis(out, name) for cot, out in cotangent_names(case.op).items()}
    for which in chosen:
        dims = dict(case.dims) if name == "*" else {**case.dims, name: int(which.size)}
        inputs = {k: _cut(x, arrays[k], which) for k, x in case.inputs.items()}
        cotangents = {
            k: np.take(x, which, axis=arrays[k] or 0) for k, x in case.cotangents.items() if arrays[k] is not None
        }
        # what a gradient reads of the forward's output is cut as well, not computed anew
        given = {k: _cut(x, arrays[k], which) for k, x in case.arguments.items()}
        yield which, replace(case, dims=dims, inputs=inputs, cotangents=cotangents, given=given)


class Determinism:
    """The campaign; `repeats` of the same call for every entry point and device, which compute as `math` says."""

    def __init__(
        self, devices: Sequence[str], repeats: int = 100, *, seed: int = 0, kernels: Any = None, math: str = "fast"
    ):
        self.devices, self.repeats, self.seed, self.math = list(devices), repeats, seed, math
        self.runtimes = {d: Runtime(d, kernels, math=math) for d in devices}
        self.variants = cpu_variants()
        self.rows: list[dict[str, Any]] = []

    def run(self, names: str | None = None) -> None:
        """Checks every entry point of the rows named."""
        work = [(op.in_math(self.math), which) for op in registry.ops(names) for which in directions(op)]
        progress = Progress(float(len(work) * len(self.devices)), "entry points")
        for op, which in work:
            for device in self.devices:
                self.rows.append(self._entry(op, which, device))
                progress.advance(1.0, self.rows[-1]["entry"])
        progress.close()

    def _cases(self, op: Op, which: str) -> list[Case]:
        """A small case for many repetitions, larger ones for few; none of them empty."""
        cases = []
        for size in ("small", "medium", "large"):
            for seed in itertools.count(self.seed):
                case = draw_case(op, seed, data_classes(op, which)[0], size, which)
                if seed > self.seed + 50 or all(np.prod(case.shape(a)) > 0 for a in case.signature.outputs):
                    cases.append(case)
                    break
        return cases

    def _entry(self, op: Op, which: str, device: str) -> dict[str, Any]:
        runtime = self.runtimes[device]
        row: dict[str, Any] = {"entry": op.entry(which), "device": device, "failures": []}
        for kind in ("repeats", "reused", "threads", "variants", "trims"):
            row[kind] = 0
        row |= {"batches": None, "batch": "no batch"}
        try:
            for case, times in zip(self._cases(op, which), (self.repeats, max(2, self.repeats // 10), 2), strict=True):
                first = runtime.run(case)
                for kind, again in self._repetitions(runtime, case, times):
                    row[kind] += 1
                    self._compare(row, kind, case, first, again)
            paths = [draw_case(op, k, data_classes(op, which)[0], PATH, which) for k in range(len(op.drawing.paths))]
            for case in paths:
                first = runtime.run(case)
                for kind in ("repeats", "reused"):
                    row[kind] += 1
                    self._compare(row, kind, case, first, runtime.run(case, poison=kind == "reused"))
            row |= self._batch(op, which, runtime, row, paths)
        except Exception as error:  # a call that raises is a finding, not the end of the run
            row["failures"].append(f"{type(error).__name__}: {error}")
        row["verdict"] = "fail" if row["failures"] else "pass"
        return row

    def _repetitions(self, runtime: Runtime, case: Case, times: int) -> Iterator[tuple[str, list[np.ndarray | None]]]:
        """The same call again, in every way that must not change a bit."""
        for _ in range(times):
            yield "repeats", runtime.run(case)
        for _ in range(max(1, times // 10)):
            yield "reused", runtime.run(case, poison=True)
        for _ in range(max(1, times // 20)):
            runtime.device.collect()
            yield "trims", runtime.run(case)
        if runtime.device.is_cuda:
            return
        most = processors()
        for threads in sorted({1, 2, 3, most, most + 1} | set(range(1, min(most, 8)))):
            with cpu_settings(threads=threads):
                yield "threads", runtime.run(case)
        for variant in self.variants:
            with cpu_settings(variant, 2):
                yield "variants", runtime.run(case)

    def _compare(
        self, row: dict[str, Any], kind: str, case: Case, first: Sequence[Any], again: Sequence[Any], fatal: bool = True
    ) -> bool:
        same = True
        for a, one, two in zip(case.signature.outputs, first, again, strict=True):
            if one is not None and two is not None and not (c := same_bits(two, one)).ok:
                same = False
                if fatal and len(row["failures"]) < 5:
                    row["failures"].append(f"{kind}: {c.explain(a.name)}; {case.line} --device {row['device']}")
        return same

    def _batch(
        self, op: Op, which: str, runtime: Runtime, row: dict[str, Any], paths: Sequence[Case]
    ) -> dict[str, Any]:
        """Entries of a batch alone, in part, in reverse order and twice over against the whole batch, on drawn cases and on
        these."""
        if (op.name not in BATCH and not op.signature.elementwise) or not op.outputs_on_device:
            return {"batches": None, "batch": "no batch"}
        defined = self.math == "reproducible" and op.contract.reproducible
        promised = op.contract.cuda == "own" or defined or not runtime.device.is_cuda
        name = "*" if op.signature.elementwise else BATCH[op.name][0]
        tried, differing = 0, 0
        cases = []
        for size in ("small", "medium"):
            for seed in range(self.seed, self.seed + 60):
                case = draw_case(op, seed, data_classes(op, which)[0], size, which)
                count = next(iter(case.arguments.values())).size if name == "*" else case.dims[name]  # type: ignore[union-attr]
                if count >= 4 and all(np.prod(case.shape(a)) > 0 for a in case.signature.outputs):
                    cases.append(case)
                    break
        for case in (*cases, *paths):
            whole = runtime.run(case)
            for chosen, part in parts(case):
                outs = runtime.run(part)
                expected = []
                for a, out in zip(case.signature.outputs, whole, strict=True):
                    axis = _axis(a, name)
                    expected.append(None if axis is None else _cut(out, axis, chosen))
                tried += 1
                differing += not self._compare(row, "batch", case, expected, outs, promised)
        word = "same bits" if not differing else f"{differing} differ" + ("" if promised else ", not promised")
        return {"batches": tried, "batch": word}

    def document(self) -> dict[str, Any]:
        """The campaign as one dictionary."""
        return {
            "repeats": self.repeats,
            "seed": self.seed,
            "math": self.math,
            "variants": self.variants,
            "entries": self.rows,
        }

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(r["verdict"] == "pass" for r in self.rows)
