"""Timing: what one call takes, the floor it stands on, and how far a result is from float64."""

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import tlrt
from bench.operations import benchmark_of
from tlrt import kernels
from tlrt.verify.run import Runtime, counterpart
from tlspec import registry
from tlspec.bounds import bind_named, call_named, call_reference
from tlspec.drawn import evaluate, shape_of
from tlspec.entries import arguments_of
from tlspec.registry import Array, Op, Signature

#: elements above which the float64 reference is not computed for the error columns
REFERENCE_LIMIT = 2**25
#: and operations, a matrix product of 2048³
REFERENCE_FLOPS = 2.0**34
#: bytes below which a GPU's L2 cache may hold the operands (60 MB on an H200)
CACHE_BYTES = 60e6


@dataclass
class Timing:
    """Milliseconds per call: median, and the spread between the first and third quartiles."""

    median: float
    spread: float
    repeats: int


@dataclass
class Row:
    op: str
    size: str
    device: str
    ours_ms: float
    spread_ms: float
    floor_ms: float
    floor_share: float
    bytes: int
    flops: float
    in_cache: bool
    error: float | None
    peers: dict[str, dict[str, float | None]]
    #: how the context computed, one of tlspec.registry.MATH
    math: str


def device_of(name: str | None, math: str | None = None) -> tlrt.Device:
    """The device of that name, computing in this mode; without a name the first GPU, else the CPU."""
    return tlrt.device(name or ("cuda" if any(d.startswith("cuda") for d in tlrt.devices()) else "cpu"), math=math)


def summarise(samples: Sequence[float]) -> Timing:
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    return Timing(statistics.median(ordered), ordered[-1 - quarter] - ordered[quarter], len(ordered))


def time_host(call: Callable[[], Any], budget: float = 0.4, pause: float = 0.25) -> Timing:
    """Times `call` by the host clock: one warm-up, then samples of enough calls to last about a millisecond, until the
    budget in seconds is spent (at least 5). The pause before lets other libraries' worker threads, which spin for a while
    after their last call, go to sleep."""
    time.sleep(pause)
    call()
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-7)
    inner = max(1, int(1e-3 / once))
    samples: list[float] = []
    end = time.perf_counter() + budget
    while len(samples) < 5 or (time.perf_counter() < end and len(samples) < 200):
        start = time.perf_counter()
        for _ in range(inner):
            call()
        samples.append((time.perf_counter() - start) / inner * 1e3)
    return summarise(samples)


def time_marks(
    call: Callable[[], Any], record: Callable[[int], Any], elapsed: Callable[[], float], budget: float = 0.3
) -> Timing:
    """Times `call` by marks in the device's stream. record(0) and record(1) bracket a sample, elapsed() reads it."""
    for _ in range(3):
        call()
    record(0)
    call()
    record(1)
    once = max(elapsed(), 1e-3)
    inner = max(1, min(200, int(2.0 / once)))
    samples: list[float] = []
    end = time.perf_counter() + budget
    while len(samples) < 7 or (time.perf_counter() < end and len(samples) < 100):
        record(0)
        for _ in range(inner):
            call()
        record(1)
        samples.append(elapsed() / inner)
    return summarise(samples)


def operand_bytes(
    sig: Signature, names: Mapping[str, Any], given: Collection[str] = (), want: Sequence[bool] | None = None
) -> int:
    """Bytes of a call's inputs and outputs, of the optional inputs those that are given: what it must move at least."""
    arrays = [a for a in sig.inputs if not a.optional or a.name in given]
    arrays += [a for a, wanted in zip(sig.outputs, want or [True] * len(sig.outputs), strict=True) if wanted]
    return sum((8 if a.kind == "f64" else 4) * math.prod(shape_of(a, names)) for a in arrays)


def draw_inputs(
    sig: Signature, names: Mapping[str, Any], seed: int = 1, given: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Standard normal float32 data, uniform data where the size gives an input's name an interval (low, high); float64 for
    f64 arrays, uniform indices below `rows` or `n` for index arrays, labels below `cols`, a mask of as many 0 as 1. Optional
    inputs that are not given are left out. Past a few million elements the data repeats: drawing more would take longer than the
    benchmark."""
    rng = np.random.default_rng(seed)
    out: dict[str, np.ndarray] = {}
    for a in sig.inputs:
        if a.optional and a.name not in given:
            continue
        shape = shape_of(a, names)
        if a.kind in ("u32", "index"):
            limit = names["cols"] if a.name == "labels" else names.get("rows", names.get("n", 1))
            out[a.name] = rng.integers(0, limit, size=shape, dtype=np.uint32)
        elif a.kind == "f64":
            out[a.name] = rng.standard_normal(shape)
        else:
            n = math.prod(shape)
            drawn = min(n, 2**22 + 1)
            if a.name in names:
                low, high = names[a.name]
                x = (low + (high - low) * rng.random(drawn)).astype(np.float32)
            elif a.name == "mask":
                x = rng.integers(0, 2, size=drawn).astype(np.float32)
            else:
                x = rng.standard_normal(drawn, dtype=np.float32)
            out[a.name] = (x if n == drawn else np.resize(x, n)).reshape(shape)
    return out


def as_reference(x: np.ndarray) -> np.ndarray:
    """Float32 data as the float64 reference takes it; host arrays as they are."""
    return x.astype(np.float64) if x.dtype == np.float32 else x


def as_tuple(results: Any) -> tuple[Any, ...]:
    """The results of a call that returns one or a tuple."""
    return results if isinstance(results, tuple) else (results,)


def largest_error(results: Any, references: Any, fetch: Callable[[Any], Any], strict: bool = True) -> float:
    """The largest rms error of results, each brought to NumPy by `fetch`; unless `strict`, references may have none."""
    pairs = zip(as_tuple(results), as_tuple(references), strict=strict)
    return max(rms_error(fetch(result), reference) for result, reference in pairs)


def rms_error(got: Any, reference: Any) -> float:
    """‖got - reference‖ / ‖reference‖ over the elements where the reference is finite."""
    if np.iscomplexobj(got):  # a packed spectrum is pairs of real numbers
        got = np.ascontiguousarray(got).view(np.asarray(got).real.dtype)
    g, r = np.asarray(got, np.float64).ravel(), np.asarray(reference, np.float64).ravel()
    finite = np.isfinite(r)
    if not finite.all():
        g, r = g[finite], r[finite]
    return float(np.linalg.norm(g - r) / max(np.linalg.norm(r), 1e-300))


class Subject:
    """One operation at one size: the inputs, drawn when first asked for, and the call on our side and on each peer's. `given`
    names the optional inputs that it has, `want` the gradients that are made where not all are."""

    def __init__(
        self,
        op: Op,
        size: Mapping[str, Any],
        which: str,
        given: Collection[str] = (),
        want: Sequence[bool] | None = None,
    ):
        self.op, self.which, self.size, self.benchmark = op, which, size, benchmark_of(op.name)
        self.given, self.want = given, want
        self.signature = op.signature_of(which)
        defaults = {p.name: evaluate(p.default, {}) for p in self.signature.params if p.default is not None}
        self.names: dict[str, Any] = {**defaults, **size}
        self.bytes = operand_bytes(self.signature, self.names, given, want)
        self.flops = float(call_named(self.benchmark.flops, self.names)) if self.benchmark.flops else 0.0
        if which == "vjp":
            self.flops *= len(self.signature.outputs) if want is None else sum(want)

    @property
    def torch_bytes(self) -> float:
        """What PyTorch's call may write out besides its results."""
        count = self.benchmark.torch_bytes
        return float(call_named(count, self.names)) if count else 0.0

    @cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        drawn = draw_inputs(self.signature, self.names, given=self.given)
        for name in self.op.drawing.nonnegative:
            np.abs(drawn[name], out=drawn[name])
        return drawn

    @property
    def label(self) -> str:
        """Dimensions and parameters; intervals of drawn data are none."""
        drawn = {a.name for a in self.signature.inputs}

        def one(v: Any) -> str:
            if isinstance(v, (list, tuple)) and len(v) > 8 and len(set(v)) == 1:
                return f"{len(v)}x{one(v[0])}"
            if isinstance(v, (list, tuple)):
                return "(" + ",".join(map(one, v)) + ")"
            if isinstance(v, int) and v >= 4096 and v & (v - 1) == 0:
                return f"2^{v.bit_length() - 1}"
            return f"{v:g}" if isinstance(v, float) else str(v)

        return " ".join(f"{k}={one(v)}" for k, v in self.names.items() if k not in drawn)

    def ours(self, device: tlrt.Device, own_indices: bool = False) -> Callable[[], Any]:
        """Our call; with `own_indices` indices are on the device already, as those of PyTorch are."""
        runtime = Runtime(device.name, upload=lambda array: tlrt.Buffer.from_numpy(array, device))
        runtime.device = device  # this one and not the process's own of that name
        self.settle_outputs(runtime)
        on_host = {a.name for a in self.signature.inputs if a.host and not (own_indices and a.kind == "u32")}
        placed = {k: v if k in on_host else runtime.upload_array(self.array(k), v) for k, v in self.inputs.items()}
        for a in self.signature.lists:
            placed[a.name] = kernels.pack(runtime.upload_list(self.inputs[a.name], self.names["lengths"]))
        name = self.op.entry(self.which)
        known = {**self.names, **placed, "": device}
        keywords = {a.name: known[a.of] for a in arguments_of(name) if a.of in known}
        if self.want is not None:
            keywords["want"] = self.want
        function = getattr(runtime.kernels, name)
        if any(o.listed for o in self.signature.outputs):  # in place, as steps are made
            lists = tuple(placed[counterpart(o)] for o in self.signature.outputs)
            keywords["out"] = lists if len(lists) > 1 else lists[0]
        return lambda: function(**keywords)

    def settle_outputs(self, runtime: Runtime) -> None:
        """A VJP that reads the forward's output gets that of its own inputs, not random numbers."""
        read = [o for o in self.op.signature.outputs if o.name in self.inputs]
        if self.which == "forward" or not read:
            return
        sig = self.op.signature
        if any(a.name not in self.inputs for a in sig.inputs if not a.optional):  # reads the output alone: any will do
            return
        values = {a.name: self.inputs.get(a.name) for a in sig.inputs}
        arrays = {a.name: a for a in sig.inputs}
        placed = {
            k: v if v is None or arrays[k].host else runtime.upload_array(arrays[k], v) for k, v in values.items()
        }
        results = runtime.call(self.op.name, placed, self.names)
        for output, result in zip(sig.outputs, as_tuple(results), strict=True):
            if output.name in self.inputs:
                self.inputs[output.name] = result.numpy().reshape(self.inputs[output.name].shape)

    def array(self, name: str) -> Array:
        return next(a for a in self.signature.inputs if a.name == name)

    def reference(self) -> Any:
        inputs = {
            a.name: as_reference(self.inputs[a.name]) if a.name in self.inputs else None for a in self.signature.inputs
        }
        with np.errstate(all="ignore"):
            return call_reference(self.op.reference_of(self.which), inputs, self.names)

    def numpy(self) -> Callable[[], Any] | None:
        function = self.benchmark.numpy
        if function is None or self.which != "forward":
            return None
        values = {"np": np, **self.names, **self.inputs}
        return lambda: call_named(function, values)

    def torch(self, torch: Any, place: str) -> Callable[[], Any] | None:
        """PyTorch's call. A baseline that returns a function has made what a model keeps between calls (tables, what a
        forward saves for its backward), and only what it returned is timed."""
        function = self.benchmark.torch if self.which == "forward" else self.benchmark.torch_vjp
        if function is None:
            return None
        tensors = {
            k: torch.from_numpy(v.astype(np.int64) if v.dtype == np.uint32 else v).to(place)
            for k, v in self.inputs.items()
        }
        return self.call_torch(function, torch, place, tensors)

    def call_torch(
        self, function: Callable[..., Any], torch: Any, place: str, tensors: Mapping[str, Any]
    ) -> Callable[[], Any]:
        """A baseline's call with these inputs."""
        absent = {a.name: None for a in self.signature.inputs if a.optional}
        want = self.want or [True] * len(self.signature.outputs)
        arguments = {"torch": torch, "device": place, "want": want, **self.names, **absent, **tensors}
        first = call_named(function, arguments)
        return first if callable(first) else bind_named(function, arguments)


def fixed_subjects(names: Sequence[str] | None, limit: float) -> Iterator[Subject]:
    """The benchmark's own sizes of the named operations and of their gradients, those whose operands fit the limit in bytes."""
    for op in registry.ops(names) if names else registry.operations():
        benchmark = benchmark_of(op.name)
        for which in ("forward", "vjp"):
            if which == "vjp" and (benchmark.torch_vjp is None or op.vjp_rule is None or op.vjp_rule.via is not None):
                continue
            subjects = (Subject(op, size, which) for size in benchmark.sizes)
            yield from (s for s in subjects if s.bytes <= limit)


def import_torch(device: tlrt.Device) -> Any:
    """PyTorch, set to plain float32 and to our number of threads; None where it is not installed for the device."""
    try:
        import torch
    except ImportError:
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if not device.is_cuda:
        torch.set_num_threads(tlrt.threads())
    elif not torch.cuda.is_available():
        return None
    return torch
