"""Algebraic laws, as data that rows name: ``laws=[commutative("a", "b"), adjoint("x"), ...]``.

A law is checked twice: on the reference in float64 and on every device in float32. It states equations between results of the
operation (and of its VJP, or of another operation) on related inputs. An exact law holds bit for bit on a device. Any other
law holds within the sum of the tolerances that the bound gives to the results it compares; on the reference the same sum is
scaled from the unit roundoff of float32 to that of float64. So no tolerance is chosen here either.

======================================  ===================================================================================
constructor                             law
======================================  ===================================================================================
``commutative("a", "b")``               f(a, b) = f(b, a), exact
``associative("a", "b")``               f(f(a, b), c) = f(a, f(b, c)), exact; for selections such as max
``idempotent("x")``                     f(f(x)) = f(x), exact
``odd("x")``, ``even("x")``             f(-x) = -f(x), f(-x) = f(x), exact
``identity("b", -0.0)``                 f(a, -0.0) = a, exact: the named operand is filled with the value, the other returned
``homogeneous("x", degree=1)``          f(2^k·x) = 2^(k·degree)·f(x), exact where nothing over- or underflows
``linear("x")``                         f(2x + 3z) = 2f(x) + 3f(z), jointly in the named inputs, the others fixed
``adjoint("x")``                        <f(x), y> = <x, fᵀ(y)> with fᵀ the row's VJP; f linear in x, the others fixed
``involution(again)``                   f(f(x)) = x, exact; `again` maps the first call's dimensions and parameters, by keyword,
                                        to a dict of those of the second that differ: ``lambda rows, cols: {"rows": cols, ...}``
``inverse("other", again)``             other(f(x)) = x, exact; `again` gives all dimensions and parameters of the second call
``equation(text, function)``            anything else; see :func:`equation`
======================================  ===================================================================================

Inputs of laws that are not exact are multiples of 2^-6, so that the combinations they form are exact in float32.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tlspec import registry
from tlspec.bounds import U, call_named, spacing
from tlspec.case import Case, cotangent_names, shape_of
from tlspec.registry import Op

__all__ = ["Claim", "Law", "Value", "World", "adjoint", "associative", "check", "commutative", "equation", "even",
           "homogeneous", "idempotent", "identity", "inverse", "involution", "linear", "odd"]  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A result in some world.

    Parameters
    ----------
    array : numpy.ndarray
        The result.
    tolerance : numpy.ndarray
        How far it may be from the real result.
    """

    array: np.ndarray
    tolerance: np.ndarray


@dataclass(frozen=True)
class Claim:
    """Two arrays that a law says are equal.

    Parameters
    ----------
    left : numpy.ndarray
        One.
    right : numpy.ndarray
        The other.
    tolerance : numpy.ndarray, float or None
        How far they may be apart; None for bit for bit, any NaN equal to any NaN.
    """

    left: np.ndarray
    right: np.ndarray
    tolerance: np.ndarray | float | None

    def worst(self, signed_zeros: bool = True) -> tuple[float, str]:
        """The worst discrepancy.

        Parameters
        ----------
        signed_zeros : bool, default True
            Whether exact claims tell zeros of different signs apart.

        Returns
        -------
        share : float
            Of the tolerance; inf where the claim is exact, or exceeded without bound.
        where : str
            The element, and both numbers.
        """
        left, right = np.asarray(self.left), np.asarray(self.right)
        if left.shape != right.shape:
            return np.inf, f"shapes {left.shape} and {right.shape}"
        if not left.size:
            return 0.0, ""
        with np.errstate(all="ignore"):
            same = (left == right) | (np.isnan(left) & np.isnan(right))
            if self.tolerance is None:
                if signed_zeros:
                    same &= np.isnan(left) | (np.signbit(left) == np.signbit(right))
                share = np.where(same, 0.0, np.inf)
            else:
                gap = np.abs(left.astype(np.float64) - right.astype(np.float64))
                share = np.where(same, 0.0, gap / np.asarray(self.tolerance, np.float64))
                share = np.where(np.isnan(share), np.inf, share)
        at = np.unravel_index(int(np.argmax(share)), share.shape)
        index = ", ".join(str(int(i)) for i in at)
        return float(share[at]), f"[{index}]: {left[at]!r} and {right[at]!r}"


class World(Protocol):
    """Where results come from: the reference in float64, or a device in float32.

    Parameters
    ----------
    *args : object
        As its class takes them.
    **kwargs : object
        As its class takes them.
    """

    name: str

    def results(self, case: Case) -> list[np.ndarray]:
        """The outputs of a case.

        Parameters
        ----------
        case : Case
            One call.

        Returns
        -------
        list of numpy.ndarray
            One for each output.
        """
        ...

    def tolerances(self, case: Case) -> list[np.ndarray]:
        """How far each output may be from the real result.

        Parameters
        ----------
        case : Case
            One call.

        Returns
        -------
        list of numpy.ndarray
            One for each output.
        """
        ...


class Spec:
    """The reference. Its roundings are 2^-29 of float32's, twice for good measure of the functions it calls."""

    name = "spec"

    def results(self, case: Case) -> list[np.ndarray]:
        return list(case.real[0])

    def tolerances(self, case: Case) -> list[np.ndarray]:
        scale = 2 * 2.0**-53 / U
        return [(t + spacing(o)) * scale for o, t in _allowed(case)]


def _allowed(case: Case) -> list[tuple[np.ndarray, np.ndarray]]:
    """Reference and distance of a float32 result from the real one: the tolerance, at least half a spacing."""
    return [(o, np.maximum(t, spacing(o) / 2)) for o, t in zip(*case.real, strict=True)]


class Device:
    """A device; `run` computes a case's outputs there."""

    def __init__(self, name: str, run: Callable[[Case], list[Any]]):
        self.name = name
        self.run = run

    def results(self, case: Case) -> list[np.ndarray]:
        return list(self.run(case))

    def tolerances(self, case: Case) -> list[np.ndarray]:
        return [t for _, t in _allowed(case)]


def _filled(shape: tuple[int, ...], data: str, *key: object) -> np.ndarray:
    """Numbers of a data class, drawn by a key."""
    from tlspec.draw.data import fill, generator  # not at import, as rows name laws and what computes imports rows

    return fill(generator(*key), shape, data, extremes=False)


class Calls:
    """What a law computes with: the row's case, and calls of operations in one world."""

    def __init__(self, world: World, case: Case):
        self.world, self.case, self.op = world, case, case.op

    @property
    def inputs(self) -> dict[str, Any]:
        return dict(self.case.inputs)

    def fresh(self, name: str, salt: str) -> np.ndarray:
        """Another array like the input `name`, drawn from the same class."""
        like = self.case.inputs[name]
        assert like is not None
        return _filled(like.shape, self.case.data, "law", self.op.name, self.case.seed, self.case.data, name, salt)

    def __call__(
        self, inputs: Mapping[str, Any] | None = None, *, values: Mapping[str, Any] | None = None, op: str | None = None
    ) -> Value:
        """The first output of the row's operation on the case's inputs, with `inputs` put in their place and `values` in the
        place of dimensions and parameters; or of another operation `op`, which takes only what is given."""
        return self.many(inputs, values=values, op=op)[0]

    def many(
        self, inputs: Mapping[str, Any] | None = None, *, values: Mapping[str, Any] | None = None, op: str | None = None
    ) -> list[Value]:
        """All outputs of such a call."""
        if op is not None:
            return self._value(_case(registry.get(op), self.case, inputs or {}, values or {}, {}, "forward"))
        arrays = {**self.case.inputs, **(inputs or {})}
        return self._value(_case(self.op, self.case, arrays, {**self.case.values, **(values or {})}, {}, "forward"))

    def vjp(self, cotangents: Mapping[str, Any], inputs: Mapping[str, Any] | None = None) -> dict[str, Value]:
        """The row's VJP on the case's inputs: gradient name to value."""
        case = _case(self.op, self.case, {**self.case.inputs, **(inputs or {})}, self.case.values, cotangents, "vjp")
        return dict(zip((a.name for a in case.signature.outputs), self._value(case), strict=True))

    def _value(self, case: Case) -> list[Value]:
        arrays, tolerances = self.world.results(case), self.world.tolerances(case)
        return [Value(a, t) for a, t in zip(arrays, tolerances, strict=True)]


def _case(
    row: Op, like: Case, inputs: Mapping[str, Any], values: Mapping[str, Any], cotangents: Mapping[str, Any], which: str
) -> Case:
    dims = {n: values[n] for n in row.signature.sizes}
    params = {p.name: values[p.name] for p in row.signature.params}
    arrays: dict[str, Any] = {}
    for a in row.signature.inputs:
        x = inputs.get(a.name)
        arrays[a.name] = x if x is None or a.elementwise else np.reshape(x, shape_of(a, values))
    # "law" keeps the integer mode's zero tolerance out
    return Case(row, which, like.seed, "law", like.size, dims, params, arrays, dict(cotangents))


@dataclass(frozen=True)
class Law:
    """A named law.

    Parameters
    ----------
    name : str
        Its kind.
    text : str
        Its formula.
    state : callable
        Yields the claims that it makes about one case in one world.
    data : tuple of str
        The data classes of the cases it is checked on.
    """

    name: str
    text: str
    state: Callable[[Calls], Iterator[Claim]]
    #: the data classes of the cases it is checked on
    data: tuple[str, ...]

    def __str__(self) -> str:
        return self.text


def check(law: Law, world: World, case: Case, *, signed_zeros: bool = True) -> tuple[float, str]:
    """Checks a law on one case in one world.

    Parameters
    ----------
    law : Law
        The law.
    world : World
        Where results come from.
    case : Case
        The case.
    signed_zeros : bool, default True
        Whether exact laws tell zeros of different signs apart.

    Returns
    -------
    share : float
        The worst discrepancy as a share of its tolerance: at most 1 where the law holds, 0 for an exact law that holds.
    where : str
        The element, and both numbers.
    """
    worst: tuple[float, str] = (0.0, "")
    for claim in law.state(Calls(world, case)):
        found = claim.worst(signed_zeros)
        if found[0] > worst[0]:
            worst = found
    return worst


EXACT = ("normal", "special")
ROUNDED = ("grid",)


def _exact(name: str, text: str, pairs: Callable[[Calls], Iterable[tuple[np.ndarray, np.ndarray]]]) -> Law:
    """A law of pairs that are equal bit for bit."""
    return Law(name, text, lambda f: (Claim(left, right, None) for left, right in pairs(f)), EXACT)


def commutative(a: str = "a", b: str = "b") -> Law:
    """f(a, b) = f(b, a), bit for bit.

    Parameters
    ----------
    a : str, default 'a'
        The first input.
    b : str, default 'b'
        The second input.

    Returns
    -------
    Law
        The law.
    """
    text, swapped = f"f({a}, {b}) = f({b}, {a})", {a: b, b: a}
    return _exact("commutative", text, lambda f: [(f().array, f({n: f.inputs[m] for n, m in swapped.items()}).array)])


def associative(a: str = "a", b: str = "b") -> Law:
    """f(f(a, b), c) = f(a, f(b, c)), bit for bit: for operations that select.

    Parameters
    ----------
    a : str, default 'a'
        The first input.
    b : str, default 'b'
        The second input.

    Returns
    -------
    Law
        The law.
    """

    def pairs(f: Calls) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        x, y, z = f.inputs[a], f.inputs[b], f.fresh(a, "z")
        yield f({a: f().array, b: z}).array, f({a: x, b: f({a: y, b: z}).array}).array

    return _exact("associative", f"f(f({a}, {b}), c) = f({a}, f({b}, c))", pairs)


def idempotent(x: str = "x") -> Law:
    """f(f(x)) = f(x), bit for bit.

    Parameters
    ----------
    x : str, default 'x'
        The input.

    Returns
    -------
    Law
        The law.
    """
    return _exact("idempotent", f"f(f({x})) = f({x})", lambda f: [(f({x: (once := f().array)}).array, once)])


def odd(x: str = "x") -> Law:
    """f(-x) = -f(x), bit for bit.

    Parameters
    ----------
    x : str, default 'x'
        The input.

    Returns
    -------
    Law
        The law.
    """
    return _exact("odd", f"f(-{x}) = -f({x})", lambda f: [(f({x: -f.inputs[x]}).array, -f().array)])


def even(x: str = "x") -> Law:
    """f(-x) = f(x), bit for bit.

    Parameters
    ----------
    x : str, default 'x'
        The input.

    Returns
    -------
    Law
        The law.
    """
    return _exact("even", f"f(-{x}) = f({x})", lambda f: [(f({x: -f.inputs[x]}).array, f().array)])


def identity(name: str, value: float) -> Law:
    """The operation returns its other operand, bit for bit, when one holds a number everywhere.

    Parameters
    ----------
    name : str
        The input that holds it.
    value : float
        The number.

    Returns
    -------
    Law
        The law.
    """

    def pairs(f: Calls) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        other = next(x for k, x in f.inputs.items() if k != name and x is not None)
        yield f({name: np.full_like(f.inputs[name], value)}).array, other

    return _exact("identity", f"f(..., {name} = {value!r}) = the other operand", pairs)


def homogeneous(*names: str, degree: int = 1) -> Law:
    """f(2^k·x) = 2^(k·degree)·f(x), bit for bit, jointly in the named inputs.

    Scaling by powers of two commutes with every rounding as long as nothing over- or underflows.

    Parameters
    ----------
    *names : str
        Inputs of the row; "x" unless given.
    degree : int, default 1
        The degree.

    Returns
    -------
    Law
        The law.
    """
    names = names or ("x",)

    def state(f: Calls) -> Iterator[Claim]:
        base = f().array
        for k in (-3, 2):
            scaled = {n: np.ldexp(f.inputs[n], k) for n in names}
            yield Claim(f(scaled).array, np.ldexp(base, k * degree), None)

    return Law("homogeneous", f"f(2^k·({', '.join(names)})) = 2^({degree}k)·f", state, ("normal",))


def linear(*names: str) -> Law:
    """f(2x + 3z) = 2f(x) + 3f(z), jointly in the named inputs, the others fixed.

    Parameters
    ----------
    *names : str
        Inputs of the row; "x" unless given.

    Returns
    -------
    Law
        The law.
    """
    names = names or ("x",)

    def state(f: Calls) -> Iterator[Claim]:
        x = {n: f.inputs[n] for n in names if f.inputs[n] is not None}  # an optional one may be left out
        z = {n: f.fresh(n, "z") for n in x}
        combined = {n: (2 * x[n] + 3 * z[n]).astype(np.float32) for n in x}
        one, two, both = f(), f(z), f(combined)
        right = 2 * one.array.astype(np.float64) + 3 * two.array.astype(np.float64)
        yield Claim(both.array, right, both.tolerance + 2 * one.tolerance + 3 * two.tolerance + _double(right, 2))

    return Law("linear", f"f(2x + 3z) = 2f(x) + 3f(z) in {', '.join(names)}", state, ROUNDED)


def adjoint(*names: str) -> Law:
    """<f(x), y> = <x, fᵀ(y)>, with fᵀ the row's VJP and x the named inputs together, in which f is linear.

    Nothing is claimed where they have no elements: a mean of none is NaN.

    Parameters
    ----------
    *names : str
        Inputs of the row; "x" unless given.

    Returns
    -------
    Law
        The law.
    """
    names = names or ("x",)

    def state(f: Calls) -> Iterator[Claim]:
        if not any(np.size(f.inputs[n]) for n in names if f.inputs[n] is not None):
            return
        outs = f.many()
        ys: dict[str, np.ndarray] = {}
        for i, (cot, out) in enumerate(zip(cotangent_names(f.op), outs, strict=True)):
            ys[cot] = _filled(out.array.shape, f.case.data, "adjoint", f.op.name, f.case.seed, i)
        gradients = f.vjp(ys)
        left = right = slack = 0.0
        for y, out in zip(ys.values(), outs, strict=True):
            left += _dot(out.array, y)
            slack += _dot(out.tolerance, np.abs(y)) + _slack(out.array, y)
        for n in (n for n in names if f.inputs[n] is not None):
            x, grad = f.inputs[n], gradients[f"g{n}"]
            right += _dot(grad.array, x)
            slack += _dot(grad.tolerance, np.abs(x)) + _slack(grad.array, x)
        yield Claim(np.array(left), np.array(right), np.array(slack))

    return Law("adjoint", f"<f({', '.join(names)}), y> = <{', '.join(names)}, fᵀ(y)>", state, ROUNDED)


def involution(again: Callable[..., Mapping[str, Any]] | None = None, x: str = "x") -> Law:
    """f(f(x)) = x, bit for bit.

    Parameters
    ----------
    again : callable, optional
        Gives the dimensions and parameters of the second call that differ.
    x : str, default 'x'
        The input.

    Returns
    -------
    Law
        The law.
    """

    def pairs(f: Calls) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        start = f.inputs[x]
        values = dict(call_named(again, f.case.values)) if again is not None else {}
        yield np.reshape(f({x: f().array}, values=values).array, start.shape), start

    return _exact("involution", f"f(f({x})) = {x}", pairs)


def inverse(other: str, again: Callable[..., Mapping[str, Any]] | None = None, x: str = "x") -> Law:
    """other(f(x)) = x, bit for bit.

    Parameters
    ----------
    other : str
        The other operation.
    again : callable, optional
        Gives all dimensions and parameters of the second call; those of the first unless given.
    x : str, default 'x'
        The input.

    Returns
    -------
    Law
        The law.
    """

    def pairs(f: Calls) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        start = f.inputs[x]
        values = f.case.values if again is None else call_named(again, f.case.values)
        first = registry.get(other).signature.inputs[0].name
        yield np.reshape(f({first: f().array}, values=values, op=other).array, start.shape), start

    return _exact("inverse", f"{other}(f({x})) = {x}", pairs)


def equation(text: str, function: Callable[..., Any], *, exact: bool = True) -> Law:
    """A law of a row's own.

    For example ``equation("f(f(x)) = f(x)", lambda f, x: [(f({"x": f().array}), f())])``.

    Parameters
    ----------
    text : str
        Its formula.
    function : callable
        ``function(f, **inputs, **values)``, of those that it names, returns or yields pairs of :class:`Value` or arrays
        that are equal. `f` calls the row's operation, or another by name.
    exact : bool, default True
        Bit for bit; else within the sum of the two tolerances.

    Returns
    -------
    Law
        The law.
    """

    def state(f: Calls) -> Iterator[Claim]:
        known = {**f.inputs, **f.case.values}
        names = list(inspect.signature(function).parameters)[1:]
        for left, right in function(f, **{n: known[n] for n in names if n in known}):
            one = left.array if isinstance(left, Value) else np.asarray(left)
            two = right.array if isinstance(right, Value) else np.asarray(right)
            if exact:
                yield Claim(one, two, None)
            else:
                slack = sum((v.tolerance for v in (left, right) if isinstance(v, Value)), np.zeros(one.shape))
                yield Claim(one, two, slack)

    return Law("equation", text, state, EXACT if exact else ROUNDED)


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.dot(np.ravel(a).astype(np.float64), np.ravel(b).astype(np.float64)))


def _slack(a: np.ndarray, b: np.ndarray) -> float:
    """The rounding error of :func:`_dot`."""
    return a.size * 2.0**-53 * _dot(np.abs(a), np.abs(b))


def _double(a: np.ndarray, roundings: int) -> np.ndarray:
    """The error of a few float64 roundings at `a`."""
    return roundings * 2.0**-53 * np.abs(a)
