"""Cases: one call of an operation or of its gradient, with everything that it takes, and what its results are compared with."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tlspec.bounds import Bound, call_named, call_reference, uncovered
from tlspec.expressions import evaluate, names_in
from tlspec.registry import Check, Op
from tlspec.signature import Array, Signature

#: the largest exactly representable run of integers
INTEGERS = 2**24


@dataclass(frozen=True)
class Expected:
    """The oracle of a case: what each output is compared with.

    Parameters
    ----------
    outputs : tuple of numpy.ndarray
        The reference's results, float64.
    tolerances : tuple of numpy.ndarray
        The absolute tolerance of each element, float64 of the same shapes; any result passes an infinite one.
    signed_zeros : bool
        The sign of a zero is part of the answer where the tolerance is 0.
    bits : tuple of numpy.ndarray or None
        The bit patterns that elements must have, see :meth:`tlspec.bounds.Bound.bits`; None where none are fixed.
    """

    outputs: tuple[np.ndarray, ...]
    tolerances: tuple[np.ndarray, ...]
    signed_zeros: bool
    bits: tuple[np.ndarray | None, ...]


@dataclass(frozen=True)
class Case:
    """One call of an operation or of its VJP, with everything it takes. :func:`tlspec.drawn.draw_case` draws one.

    Parameters
    ----------
    op : Op
        The row.
    which : str
        "forward" or "vjp".
    seed : int
        The seed it was drawn with.
    data : str
        The data class of its arrays.
    size : str
        The name of its size: one of :data:`tlspec.drawn.SIZES`, "path", "shape" or "given".
    dims : dict
        Dimensions by name; lists of them where the signature has lists.
    params : dict
        Parameters by name.
    inputs : dict of numpy.ndarray
        The row's inputs by name, float32 unless the signature says another kind; None for one that is left out.
    cotangents : dict of numpy.ndarray
        Of a VJP: one per output of the operation, see :func:`cotangent_names`.
    command : str
        The command that gives a case that was not drawn.
    given : dict of numpy.ndarray, optional
        The arrays of the call where they are not those that the fields above give.

    Examples
    --------
    >>> from tlspec.drawn import draw_case
    >>> case = draw_case("matmul", seed=3, data="normal", size="small")
    >>> print(case.line)
    python -m tlrt verify --ops matmul --seed 3 --data normal --size small --cases 1
    >>> case.expected.outputs[0].shape == (case.dims["m"], case.dims["p"])
    True
    """

    op: Op
    which: str
    seed: int
    data: str
    size: str
    dims: dict[str, Any]
    params: dict[str, Any]
    inputs: dict[str, np.ndarray | None]
    cotangents: dict[str, np.ndarray] = field(default_factory=dict)
    command: str = ""
    given: dict[str, np.ndarray | None] | None = None

    @property
    def signature(self) -> Signature:
        return self.op.signature_of(self.which)

    @property
    def bound(self) -> Bound:
        return self.op.bound_of(self.which)

    @property
    def name(self) -> str:
        """The entry point that computes it."""
        return self.op.entry(self.which)

    @property
    def values(self) -> dict[str, Any]:
        """Dimensions and parameters."""
        return {**self.dims, **self.params}

    @cached_property
    def arguments(self) -> dict[str, np.ndarray | None]:
        """The arrays the call takes, by name, in order; a VJP that reads outputs gets the rounded reference."""
        if self.given is not None:
            return self.given
        if self.which == "forward":
            return self.inputs
        known: dict[str, Any] = {**self.inputs, **self.cotangents}
        if any(r not in known for r in self.op.rule.reads):
            with np.errstate(all="ignore"):
                outs = as_tuple(call_reference(self.op.reference, spec_inputs(self.inputs), self.values))
                for array, out in zip(self.op.signature.outputs, outs, strict=True):
                    known[array.name] = np.asarray(out, np.float32)
        return {r: known[r] for r in self.op.rule.reads}

    @property
    def reference(self) -> Callable[..., Any]:
        """The reference of what it computes."""
        return self.op.reference_of(self.which)

    @property
    def wide(self) -> dict[str, Any]:
        """The arrays as the reference takes them: float64, and int64 for indices."""
        return spec_inputs(self.arguments)

    @property
    def wide_inputs(self) -> dict[str, Any]:
        """The row's inputs in the same types, which are the arguments unless a gradient is computed."""
        return spec_inputs(self.inputs)

    def _evaluated(self, arguments: Mapping[str, Any]) -> list[np.ndarray]:
        """The reference's results, in the type it gives them."""
        with np.errstate(all="ignore"):
            outs = [np.asarray(o) for o in as_tuple(call_reference(self.reference, arguments, self.values))]
        shapes = [self.shape(a) for a in self.signature.outputs]
        if [o.shape for o in outs] != shapes:
            got = [o.shape for o in outs]
            raise ValueError(f"{self.name}: the reference returned shapes {got}, the signature says {shapes}")
        return outs

    @cached_property
    def real(self) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """The float64 reference, and how far from it the bound lets a result be: what laws are about. Computed once."""
        arguments = self.wide
        outs = [o.astype(np.float64, copy=False) for o in self._evaluated(arguments)]
        return tuple(outs), tuple(self.bound.tolerance(self.reference, outs, arguments, self.values))

    @cached_property
    def expected(self) -> Expected:
        """What the result is compared with. Computed once."""
        native = _native_inputs(self.arguments)
        if self.bound.in_float32:
            outs = self._evaluated(native)
            if any(o.dtype != np.float32 for o in outs):
                raise TypeError(f"{self.name}: the reference must keep float32, it gave {[o.dtype for o in outs]}")
            bits = _optional(self.bound.bits(self.reference, outs, native, self.values), outs)
            with np.errstate(all="ignore"):
                wide = tuple(o.astype(np.float64) for o in outs)
            return Expected(wide, tuple(np.zeros(o.shape) for o in outs), True, bits)
        wide, tolerances = self.real
        bits = _optional(self.bound.bits(self.reference, wide, native, self.values), wide)
        if self.data == "integers" and self.bound.kind not in ("exact", "moved") and _integral(wide):
            return Expected(wide, tuple(np.zeros(o.shape) for o in wide), False, bits)
        return Expected(wide, tolerances, not self.bound.summed, bits)

    def expected_on(self, device: str) -> Expected:
        """What a device's result is compared with; on CUDA all but what the bound says may overflow there.

        Parameters
        ----------
        device : str
            "cpu", "cuda" or "cuda:1".

        Returns
        -------
        Expected
            The results with the device's tolerances.
        """
        peak, expected = self.bound.cuda_peak, self.expected
        if peak is None or not device.startswith("cuda"):
            return expected
        tolerances = uncovered(peak, expected.tolerances, self.wide, self.values)
        return replace(expected, tolerances=tuple(tolerances))

    def shape(self, array: Array) -> tuple[int, ...]:
        """The shape of one of the call's arrays.

        Parameters
        ----------
        array : Array
            An input or output of the case's signature.

        Returns
        -------
        tuple of int
            Its lengths; of an elementwise array those of the inputs.
        """
        if array.elementwise:
            return next(x.shape for x in self.inputs.values() if x is not None)
        return shape_of(array, self.values)

    @property
    def classes(self) -> list[str]:
        """The row's geometry classes that the case is of."""
        known = {**self.inputs, **self.values}
        if self.op.signature.elementwise:
            known["n"] = math.prod(self.shape(self.signature.outputs[0]))
        return [name for name, holds in self.op.drawing.classes.items() if call_named(holds, known)]

    @property
    def line(self) -> str:
        """The command that runs this case alone, on every device."""
        return (
            self.command
            or f"python -m tlrt verify --ops {self.op.name} --seed {self.seed} --data {self.data} --size {self.size} --cases 1"
        )


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


#: the types in which references take arrays of floats, of whole numbers and of truth values
_WIDE = {"f": np.float64, "u": np.int64, "i": np.int64, "b": np.bool_}


def spec_inputs(arrays: Mapping[str, np.ndarray | None]) -> dict[str, Any]:
    """Arrays as references take them: float64, and int64 for indices."""
    with np.errstate(invalid="ignore"):  # widening quiets a signalling NaN
        return {k: None if a is None else a.astype(_WIDE[a.dtype.kind]) for k, a in arrays.items()}


def _native_inputs(arrays: Mapping[str, np.ndarray | None]) -> dict[str, Any]:
    """Arrays for what is about their bits: as the call takes them, and int64 for indices."""
    return {k: a.astype(np.int64) if a is not None and a.dtype == np.uint32 else a for k, a in arrays.items()}


def _optional(bits: Sequence[np.ndarray] | None, outs: Sequence[np.ndarray]) -> tuple[np.ndarray | None, ...]:
    """One entry per output."""
    return (None,) * len(outs) if bits is None else tuple(bits)


def _integral(outs: Sequence[np.ndarray]) -> bool:
    return all(bool(np.all(np.abs(o) < INTEGERS) and np.all(o == np.rint(o))) for o in outs)


def shape_of(array: Array, values: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of an array for given dimensions and parameters.

    Parameters
    ----------
    array : Array
        An array of a signature.
    values : mapping
        Dimensions and parameters by name.

    Returns
    -------
    tuple of int
        Its lengths: (n,) of an elementwise array; of a list, that of its elements end to end.

    Examples
    --------
    >>> from tlspec import registry
    >>> from tlspec.drawn import shape_of
    >>> shape_of(registry.get("matmul").signature.outputs[0], {"m": 2, "n": 3, "p": 4})
    (2, 4)
    """
    if array.elementwise:
        return (int(values["n"]),)
    if array.listed:
        return (int(sum(values["lengths"])),)
    shape: list[int] = []
    for item in array.dims:
        if item.startswith("*"):
            shape += evaluate(item[1:], values)
        else:
            shape.append(evaluate(item, values))
    return tuple(int(n) for n in shape)


def refused_by(op: Op, values: Mapping[str, Any]) -> Check | None:
    """The first of a row's checks that dimensions and parameters fail.

    Parameters
    ----------
    op : Op
        The row.
    values : mapping
        Dimensions and parameters by name. Host arrays and optional inputs may be among them, None for one that is left
        out. A check that names one which is absent is passed over.

    Returns
    -------
    Check or None
        None where all checks hold.
    """
    absent = {a.name for a in op.signature.inputs if a.host or a.optional} - values.keys()
    checks = (c for c in op.contract.checks if not absent & names_in(c.expression))
    return next((c for c in checks if not evaluate(c.expression, values)), None)


def cotangent_names(op: Op) -> dict[str, Array]:
    """The names of an operation's cotangents.

    Parameters
    ----------
    op : Op
        The row.

    Returns
    -------
    dict of Array
        Cotangent name to the output it belongs to: "g", or "g_x" for output x where there are several.
    """
    outs = op.signature.outputs
    return {"g": outs[0]} if len(outs) == 1 else {f"g_{o.name}": o for o in outs}


def is_empty(case: Case) -> bool:
    """Whether a case has nothing to compute.

    Parameters
    ----------
    case : Case
        The case.

    Returns
    -------
    bool
        True where one of its lengths is 0.
    """
    return any(0 in (n if isinstance(n, list | tuple) else (n,)) for n in case.dims.values())
