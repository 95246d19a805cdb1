"""References in PyTorch under running error analysis: the reference computes in float64, and beside each of its tensors stand
bounds on the errors of a kernel that computes the same.

Every operator that a reference calls passes a mode of PyTorch's dispatcher. It runs in float64, whatever number format the
reference names, and its rule (:mod:`tlspec.judge.adapters.rules`) gives the errors of its results from those of its operands.
Errors belong to the memory of a tensor, so views share them and what is written in place changes them. An operator without a
rule is taken apart by PyTorch's own decompositions; where there is none :class:`UnknownOperator` names it.

A conversion to a narrower format changes no value and adds half a spacing to the error, so that a kernel that rounds there
passes, and one that does not as well. The last one before a result is the result's own rounding, and counts once.
"""

import contextlib
import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tlspec.formats import FORMATS, Format
from tlspec.judge.adapters.rules import CONSTANT, RULES
from tlspec.judge.adapters.submission import flat
from tlspec.judge.adapters.submission import leaves as leaves
from tlspec.running import ErrorArray, Model
from tlspec.running.array import Sum, operand


class UnknownOperator(TypeError):
    """An operator that running error analysis does not know, or whose outcome depends on rounding."""


@dataclass
class Entry:
    """What is known of the memory of a tensor, element by element. `before` is the error without the last rounding to
    `format`."""

    storage: Any
    error: np.ndarray
    before: np.ndarray | None = None
    format: Format | None = None
    sum_of: Sum | None = None


@dataclass(frozen=True)
class Tracked:
    """A result: its numbers, the bounds on their errors, and the bounds without a last rounding to a format."""

    value: np.ndarray
    error: np.ndarray
    before: np.ndarray
    format: Format | None


class Tracker:
    """The errors of the tensors of one run."""

    def __init__(self, model: Model):
        self.torch = importlib.import_module("torch")
        self.model = model
        # sums of whole numbers in PyTorch's formula of a gradient may be sums of fractions in the kernel's
        self.model_of_gradients = replace(model, exact=False)
        self.entries: dict[int, Entry] = {}
        self.decompositions = importlib.import_module("torch._decomp").decomposition_table

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A block in which everything is tracked. What makes tensors without naming a format makes float64."""
        torch, tracker = self.torch, self
        base = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
        attention = importlib.import_module("torch.nn.attention")

        class Mode(base):  # type: ignore[misc, valid-type]
            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return tracker.dispatch(self, function, args, dict(kwargs or {}))

        usual, fast = torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled()
        torch.set_default_dtype(torch.float64)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with attention.sdpa_kernel(attention.SDPBackend.MATH), Mode(), np.errstate(all="ignore"):
                yield
        finally:
            torch.set_default_dtype(usual)
            torch.backends.mha.set_fastpath_enabled(fast)

    def read(self, tensor: Any) -> Any:
        """A tensor as an array that carries errors; whole numbers and truth values without any are plain."""
        if tensor.is_complex() or tensor.is_quantized or tensor.is_sparse:
            raise UnknownOperator(f"a tensor of {tensor.dtype}: running error analysis knows real numbers")
        value = tensor.detach().numpy()
        entry = self.entries.get(self._key(tensor))
        model = self.model if self.torch._C._current_autograd_node() is None else self.model_of_gradients
        if entry is None:
            return ErrorArray(value, 0.0, model) if value.dtype.kind == "f" else value
        of = entry.sum_of and entry.sum_of.moved(lambda a: _view(a, tensor))
        return ErrorArray(value, _view(entry.error, tensor), model, of)

    def result(self, tensor: Any) -> Tracked:
        """What is known of a tensor."""
        value = tensor.detach().numpy().copy()
        entry = self.entries.get(self._key(tensor))
        zero = np.zeros(value.shape)
        if entry is None:
            return Tracked(value, zero, zero, None)
        error = np.array(_view(entry.error, tensor), np.float64)
        return Tracked(
            value, error, error if entry.before is None else np.array(_view(entry.before, tensor)), entry.format
        )

    def _key(self, tensor: Any) -> int:
        return int(tensor.untyped_storage()._cdata)

    def _entry(self, tensor: Any) -> Entry:
        """The entry of a tensor's memory, which it keeps alive, so that no other tensor gets it."""
        key, storage = self._key(tensor), tensor.untyped_storage()
        if key not in self.entries:
            self.entries[key] = Entry(storage, np.zeros(storage.nbytes() // tensor.element_size()))
        return self.entries[key]

    def write(self, tensor: Any, x: Any, before: Any = None, format: Format | None = None) -> None:
        """The errors of a tensor that was computed, or written to."""
        entry = self._entry(tensor)
        error = x.error if isinstance(x, ErrorArray) else np.zeros(tuple(tensor.shape))
        whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        if whole or format is not None:
            entry.format = format if whole or entry.format in (None, format) else None
        if entry.before is not None or before is not None:
            entry.before = entry.error.copy() if entry.before is None else entry.before
            _view(entry.before, tensor)[...] = error if before is None else before
        _view(entry.error, tensor)[...] = error
        of = x.sum_of if isinstance(x, ErrorArray) else None
        entry.sum_of = None
        if whole and of is not None:
            flat = [np.zeros(entry.error.size) for _ in range(2)]
            for array, part in zip(flat, (of.size, of.brought), strict=True):
                _view(array, tensor)[...] = part
            entry.sum_of = Sum(of.terms, flat[0], flat[1], of.step)

    # ---- one operator

    def dispatch(self, mode: Any, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs an operator in float64 and writes down the errors of its results."""
        torch = self.torch
        name = function._schema.name.partition("::")[2]
        plain = name.rstrip("_") if function._schema.is_mutable and not name.startswith("__") else name
        declared = self._widen(kwargs)
        floats = [
            x
            for x in flat((args, kwargs))
            if isinstance(x, torch.Tensor) and (x.is_floating_point() or self._key(x) in self.entries)
        ]
        if name in ("_to_copy", "copy_"):
            return self._converted(name, function, args, kwargs, declared)
        if function._schema.name.startswith("aten::") and name in _LOOKING:
            self._certain(name, args)
            return function(*args, **kwargs)
        if any(r.alias_info is not None and not r.alias_info.is_write for r in function._schema.returns):
            out = function(*args, **kwargs)
            if name == "lift_fresh" and isinstance(out, torch.Tensor) and out.is_floating_point():
                self._constant(out)
            return out
        if "generator" in {a.name for a in function._schema.arguments} or name in _RANDOM:
            raise UnknownOperator(f"aten::{name} draws random numbers")
        if not floats or (plain in CONSTANT and len(floats) < 2):  # a second one would be what fills the first
            out = function(*args, **kwargs)
            for x in flat(out):
                if isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel():
                    self._constant(x, declared)
            return out
        rule = RULES.get(f"{plain}.{function._overloadname}") or RULES.get(plain)
        if rule is None:
            return self._taken_apart(mode, function, args, kwargs, plain)
        return self._ruled(rule, function, args, kwargs, plain)

    def _ruled(self, rule: Callable[..., Any], function: Any, args: Any, kwargs: dict[str, Any], name: str) -> Any:
        torch = self.torch
        keep = {k: v for k, v in kwargs.items() if k != "out" and v is not None}
        try:
            found = rule(*_mapped(args, self.read, torch), **_mapped(keep, self.read, torch))
        except UnknownOperator:
            raise
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            raise UnknownOperator(f"aten::{name}: {error}") from error
        out = function(*args, **kwargs)
        made = out if isinstance(out, (tuple, list)) else (out,)
        rules = found if isinstance(found, tuple) else (found,)
        if "batch_norm" in name and len(rules) == 5:
            made = (*made, *args[3:5])  # the running statistics, which it writes in place
        for tensor, x in itertools.zip_longest(made, rules[: len(made)]):
            if not isinstance(tensor, torch.Tensor) or not tensor.numel():
                continue
            if x is None:  # of which the rule says nothing
                shape = tuple(tensor.shape)
                self.write(tensor, ErrorArray(np.zeros(shape), np.full(shape, np.inf), self.model))
            elif tensor.is_floating_point():
                self.write(tensor, self._agreed(name, tensor, x))
            elif isinstance(x, ErrorArray) and np.any(x.error):
                self.write(tensor, x)
        return out

    def _agreed(self, name: str, tensor: Any, x: Any) -> Any:
        """The rule's array, which has what the operator computes; where sums in float64 differ in their last bits, by so much
        more of an error."""
        value = tensor.detach().numpy()
        got = np.broadcast_to(np.asarray(getattr(x, "value", x), np.float64), value.shape)
        error = np.broadcast_to(getattr(x, "error", 0.0), value.shape)
        moved = np.where((value == got) | (np.isnan(value) & np.isnan(got)), 0.0, np.abs(value - got))
        scale = np.abs(value[np.isfinite(value)]).max(initial=0.0)
        if not ((moved <= 1e-3 * error + 1e-11 * scale) | np.isinf(error)).all():
            raise UnknownOperator(f"aten::{name}: its rule does not cover these arguments")
        return (
            ErrorArray(value, error + moved, self.model, x.sum_of) if moved.any() and isinstance(x, ErrorArray) else x
        )

    def _taken_apart(self, mode: Any, function: Any, args: Any, kwargs: dict[str, Any], name: str) -> Any:
        """The operator by PyTorch's decomposition; one that writes to memory by that of the operator that returns its result."""
        table = self.decompositions
        if function in table:
            with mode:
                return table[function](*args, **kwargs)
        if function._schema.is_mutable and name != function._schema.name.partition("::")[2]:
            packet = getattr(self.torch.ops.aten, name, None)
            twin = getattr(packet, function._overloadname, None) if packet is not None else None
            if twin is not None:
                with mode:
                    args[0].copy_(twin(*args, **kwargs))
                return args[0]
        with mode:
            out = function.decompose(*args, **kwargs)
        if out is NotImplemented:
            raise UnknownOperator(f"aten::{name} has no rule and no decomposition")
        return out

    def _constant(self, tensor: Any, declared: Format | None = None) -> None:
        """Numbers that were not computed from tensors: rounded once where the format does not hold them."""
        value = tensor.detach().numpy()
        error = operand(self.model, value)[1]
        whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        if np.any(error) or declared is not None or (self._key(tensor) in self.entries):
            empty = Sum(0, np.zeros(value.shape), np.zeros(value.shape), np.inf) if whole and not value.any() else None
            self.write(tensor, ErrorArray(value, error, self.model, empty), error, declared)
        elif whole and not value.any():  # to which sums are added
            self.write(
                tensor, ErrorArray(value, 0.0, self.model, Sum(0, np.zeros(value.shape), np.zeros(value.shape), np.inf))
            )

    def _widen(self, kwargs: dict[str, Any]) -> Format | None:
        """float64 for the floating-point format that an operator is to make, and the CPU for its device; the format, where it is
        narrower than the kernel's own arithmetic."""
        dtype = kwargs.get("dtype")
        if kwargs.get("device") is not None:
            kwargs["device"] = self.torch.device("cpu")
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if dtype is None or not dtype.is_floating_point:
            return None
        kwargs["dtype"] = self.torch.float64
        format = FORMATS.get(str(dtype).removeprefix("torch."))
        return format if format is not None and format.precision < self.model.precision else None

    def _converted(self, name: str, function: Any, args: Any, kwargs: dict[str, Any], declared: Format | None) -> Any:
        """Conversions and copies: to a narrower format, whole numbers to others, or what is written into an array of a format."""
        source = args[1] if name == "copy_" else args[0]
        if not isinstance(source, self.torch.Tensor):
            return function(*args, **kwargs)
        x, before, format = self.read(source), None, None
        known = self.entries.get(self._key(source))
        if name == "copy_":
            target = self.entries.get(self._key(args[0]))
            declared = target.format if target is not None else None
            if known is None and target is None and isinstance(x, ErrorArray):
                return function(*args, **kwargs)  # no errors on either side
        if known is not None and known.before is not None:
            before, format = np.array(_view(known.before, source)), known.format
        out = function(*args, **kwargs)
        if not out.numel():
            return out
        if not out.is_floating_point():
            if source.is_floating_point() and isinstance(x, ErrorArray) and np.any(x.error):
                raise UnknownOperator(f"a conversion to {out.dtype} depends on rounding")
            return out
        if not isinstance(x, ErrorArray):
            x = ErrorArray(x, operand(self.model, x)[1], self.model)
        elif x.value.dtype.kind == "b":
            x = ErrorArray(x.value.astype(np.float64), np.asarray(x.error, np.float64), self.model)
        if declared is not None and declared != format:
            before, format = x.error, declared
            half = declared.spacing(np.abs(x.value) + np.where(np.isfinite(x.error), x.error, 0.0)) / 2
            exact = (x.error == 0) & (declared.round(np.asarray(x.value, np.float64)) == x.value) | ~np.isfinite(
                x.value
            )
            x = ErrorArray(x.value, x.error + np.where(exact, 0.0, half), self.model)
        shape = tuple(out.shape)
        moved = ErrorArray(np.broadcast_to(x.value, shape), np.broadcast_to(x.error, shape), self.model,
                           x.sum_of if x.value.shape == shape else None)  # fmt: skip
        self.write(out, moved, None if before is None else np.broadcast_to(before, shape), format)
        return out

    def _certain(self, name: str, args: Any) -> None:
        """A number that leaves the tensors must not depend on rounding."""
        for x in flat(args):
            known = self.entries.get(self._key(x)) if isinstance(x, self.torch.Tensor) else None
            if known is not None and np.any(_view(known.error, x)):
                raise UnknownOperator(f"a number of Python (aten::{name}) depends on rounding")


#: operators whose results are numbers, shapes or choices of the program
_LOOKING = frozenset(
    {"_local_scalar_dense", "item", "equal", "nonzero", "is_nonzero", "unique2", "_unique2", "masked_select"}
)
_RANDOM = frozenset(
    {"native_dropout", "rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "rrelu_with_noise"}
)


def _mapped(x: Any, read: Callable[[Any], Any], torch: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return read(x)
    if isinstance(x, dict):
        return {k: _mapped(v, read, torch) for k, v in x.items()}
    return type(x)(_mapped(v, read, torch) for v in x) if isinstance(x, (tuple, list)) else x


def _view(flat: np.ndarray, tensor: Any) -> np.ndarray:
    """The elements of a flat array that are a tensor's."""
    strides = [n * flat.itemsize for n in tensor.stride()]
    return np.lib.stride_tricks.as_strided(flat[tensor.storage_offset() :], tuple(tensor.shape), strides)


def tracked(model: Model, function: Callable[[], Any]) -> tuple[Any, Tracker]:
    """What a function returns that is tracked, and the tracker that knows the errors. Raises UnknownOperator."""
    tracker = Tracker(model)
    with tracker.running():
        return function(), tracker
