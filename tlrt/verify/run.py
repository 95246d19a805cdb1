"""Runs drawn cases on a device: what the verify command and the test suite share.

:class:`Runtime` calls operations on one device with NumPy arrays in and out and watches what a result alone does not show:
inputs keep their bits, canary buffers beside the output keep theirs, and an output filled with a NaN of known payload before
the call has no element of it left afterwards.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from tlspec.draw.cases import Case
from tlspec.entries import arguments_of, composition_arguments

#: bits of the NaN that outputs are filled with before a call
POISON = np.uint32(0x7FC0DEAD)
CANARY = np.arange(1, 65, dtype=np.float32)


class Fault(AssertionError):
    """Something a call did besides returning its result: it changed an input, wrote past its output, left elements unset."""


class Runtime:
    """Operations on one device. `kernels` is a namespace with a function per entry point, ``tlrt.kernels`` if not given;
    `upload` makes a device buffer of a float32 array; `math` is the device's."""

    def __init__(
        self,
        device: str = "cpu",
        kernels: Any = None,
        upload: Callable[[np.ndarray], Any] | None = None,
        math: str | None = None,
    ):
        self.name = device
        self.device: Any = None
        if upload is None:
            import tlrt

            self.device = tlrt.device(device, math=math)
            upload = partial(tlrt.Buffer.from_numpy, device=self.device)
        self.upload = upload
        if kernels is None:
            from tlrt import kernels
        self.kernels = kernels

    def call(self, name: str, arguments: Mapping[str, Any], values: Mapping[str, Any], **options: Any) -> Any:
        """Calls an entry point by keyword. Names are those of the signature; lengths of host arrays are left to the binding."""
        known = {**values, **arguments, "": self.device}
        keywords = {a.name: known[a.of] for a in arguments_of(name)}
        return getattr(self.kernels, name)(**keywords, **options)

    def place(self, case: Case, indexed: bool = False) -> dict[str, Any]:
        """The case's arguments as the binding takes them: device buffers, lists of them, and host arrays as they are; those of
        indices in index buffers if `indexed`."""
        out: dict[str, Any] = {}
        for array in case.signature.inputs:
            value = case.arguments[array.name]
            if value is not None and array.listed:
                out[array.name] = self.upload_list(value, case.values["lengths"])
            else:
                on_host = array.host and not (indexed and array.kind == "u32")
                out[array.name] = value if value is None or on_host else self.upload_array(array, value)
        return out

    def upload_array(self, array: Any, value: np.ndarray) -> Any:
        """A device buffer of the type that the array has in its signature; the content is a bit pattern for an output."""
        if array.kind not in ("index", "u32"):
            return self.upload(value)
        device = self.device or self.upload(np.zeros(0, np.float32)).device
        return device.indices(value.view(np.uint32))

    def upload_list(self, value: np.ndarray, lengths: Sequence[int]) -> list[Any]:
        """The elements of a list that a case holds end to end, as buffers."""
        parts = np.split(value, np.cumsum(lengths, dtype=np.int64)[:-1]) if len(lengths) else []
        return [self.upload(x) for x in parts]

    def run(
        self,
        case: Case,
        *,
        poison: bool = False,
        want: Sequence[str] | None = None,
        in_place: bool = False,
        indexed: bool = False,
    ) -> list[np.ndarray | None]:
        """The case's outputs in their declared shapes; None for a gradient not in `want`. With `poison` the outputs are
        given, filled with a NaN pattern, between canaries; with `in_place` output lists are the input lists they are named
        after, and with `indexed` host indices come in index buffers. Raises :class:`Fault`."""
        placed = self.place(case, indexed)
        outputs = case.signature.outputs
        canaries: list[Any] = []
        given: list[Any] = []
        composed = case.which == "vjp" and case.op.vjp_rule is not None and case.op.vjp_rule.via is not None
        try:
            if composed:
                rule = case.op.rule
                results = rule.via(self.kernels, *placed.values(), **composition_arguments(case.op, case.values))  # type: ignore[misc]
            else:
                options: dict[str, Any] = {}
                if in_place:
                    lists = [placed[counterpart(a)] for a in outputs]
                    options["out"] = lists[0] if len(lists) == 1 else tuple(lists)
                if poison:
                    for array in outputs:
                        canaries.append(self.upload(CANARY))
                        if array.host:
                            given.append(np.full(case.shape(array), np.nan))
                        elif want is None or array.name in want:
                            size = int(np.prod(case.shape(array), dtype=np.int64))
                            filler = np.full(size, POISON, np.uint32).view(np.float32)
                            if array.listed:
                                given.append(self.upload_list(filler, case.values["lengths"]))
                            else:
                                given.append(self.upload_array(array, filler))
                        else:
                            given.append(None)
                    canaries.append(self.upload(CANARY))
                    options["out"] = given[0] if len(given) == 1 else tuple(given)
                if want is not None:
                    options["want"] = tuple(a.name in want for a in outputs)
                results = self.call(case.name, placed, case.values, **options)
            single = not isinstance(results, tuple) and (len(outputs) == 1 or not isinstance(results, list))
            results = [results] if single else list(results)
            if len(results) != len(outputs):
                raise Fault(f"{case.name} returned {len(results)} results, expected {len(outputs)}")
            for array, mine, result in zip(outputs, given, results, strict=False):
                pairs = zip(mine, result, strict=True) if array.listed else [(mine, result)]
                if any(x is not y for x, y in pairs):
                    raise Fault(f"{array.name} is another one than was given")
            arrays = [self._fetch(case, a, r) for a, r in zip(outputs, results, strict=True)]
            written = [counterpart(a) for a in outputs] if in_place else []
            if poison and not composed:
                self._inspect(case, arrays, canaries, placed)
            else:
                self._inspect(case, [], [], {k: v for k, v in placed.items() if k not in written})
        finally:
            _release([*placed.values(), *canaries, *given])
        _release(results)
        return arrays

    def run_single(self, case: Case, suffix: str, index: int) -> list[np.ndarray | None]:
        """The outputs of the entry point that computes one gradient of a VJP alone; None for the others."""
        placed = self.place(case)
        result = self.call(f"{case.name}_{suffix}", placed, case.values)
        arrays: list[np.ndarray | None] = [None] * len(case.signature.outputs)
        arrays[index] = self._fetch(case, case.signature.outputs[index], result)
        return arrays

    def _fetch(self, case: Case, array: Any, result: Any) -> np.ndarray | None:
        if result is None:
            return None
        shape = case.shape(array)
        if array.listed:
            lengths = [len(x) for x in result]
            if lengths != list(case.values["lengths"]):
                raise Fault(f"{array.name} has elements of lengths {lengths}, expected {case.values['lengths']}")
        flat = np.asarray(result) if array.host else content(result)
        if array.kind == "index":
            flat = flat.astype(np.float64)
        if flat.size != int(np.prod(shape, dtype=np.int64)):
            raise Fault(f"{array.name} has {flat.size} elements, expected {shape}")
        return flat.reshape(shape)

    def _inspect(
        self, case: Case, outputs: list[np.ndarray | None], canaries: list[Any], placed: Mapping[str, Any]
    ) -> None:
        for array in case.signature.inputs:
            value = case.arguments[array.name]
            if value is None or array.name not in placed:
                continue
            now = placed[array.name] if array.host else content(placed[array.name])
            if not np.array_equal(_bits(now), _bits(value)):
                raise Fault(f"input {array.name} was modified")
        for canary in canaries:
            if canary.numpy().tobytes() != CANARY.tobytes():
                raise Fault("memory beside the output was overwritten")
        for spec, out in zip(case.signature.outputs, outputs, strict=False):
            if out is None or spec.host:
                continue
            stale = _bits(out) == POISON
            if stale.any():
                stale = stale.reshape(out.shape)
                where = tuple(int(i) for i in np.argwhere(stale)[0])
                raise Fault(f"{spec.name}{list(where)} was never written ({int(stale.sum())} of {out.size} elements)")


def counterpart(array: Any) -> str:
    """The input list that an output list is named after: ps for ps_out."""
    return str(array.name).removesuffix("_out")


def content(x: Any) -> np.ndarray:
    """The numbers of a buffer, or of a list of buffers end to end."""
    if not isinstance(x, list):
        return np.asarray(x.numpy())
    return np.concatenate([np.zeros(0, np.float32), *(b.numpy() for b in x)])


def _bits(x: Any) -> np.ndarray:
    """The bit patterns of an array's elements, in one row."""
    flat = np.asarray(x).reshape(-1)
    return flat.view(f"u{flat.itemsize}")


def _release(values: Sequence[Any]) -> None:
    """Releases the buffers among some values and lists of them."""
    for value in values:
        for buffer in value if isinstance(value, list) else [value]:
            if hasattr(buffer, "release"):
                buffer.release()


def device_names() -> list[str]:
    """Every device present, the CPU first.

    Returns
    -------
    list of str
        Their names.
    """
    from tlrt.context import devices

    return list(devices())


def cpu_variants() -> list[str]:
    """SIMD variants of the CPU path that this processor and build have.

    Returns
    -------
    list of str
        Such as "base" and "avx2".
    """
    from tlrt.context import set_cpu_variant
    from tlrt.errors import UnavailableError

    names = []
    for name in ("base", "avx2", "avx512"):
        try:
            set_cpu_variant(name)
        except UnavailableError:
            continue
        names.append(name)
    set_cpu_variant(None)
    return names


@contextmanager
def cpu_settings(variant: str | None = None, threads: int = 0) -> Iterator[None]:
    """A block in which the CPU path has one SIMD variant and number of threads.

    Parameters
    ----------
    variant : str or None
        None is the default.
    threads : int
        0 is the default.

    Returns
    -------
    context manager
        It sets both back.
    """
    from tlrt.context import set_cpu_variant, set_threads

    try:
        set_cpu_variant(variant)
        set_threads(threads)
        yield
    finally:
        set_cpu_variant(None)
        set_threads(0)
