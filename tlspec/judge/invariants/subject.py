"""What is called: a function or a module, with its arrays, in its block of code and its number of threads."""

import contextlib
import copy
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tlspec.arrays import Arrays
from tlspec.formats import FORMATS, Format
from tlspec.judge.invariants.samples import Slot, laid_out

#: the seed of PyTorch's own draws, before each call and before a module is built
SEED = 20240229


@dataclass
class Result:
    """One array of a result: the bits, and what they mean."""

    name: str
    patterns: np.ndarray
    format: Format | None

    def numbers(self) -> np.ndarray:
        return self.format.decode(self.patterns) if self.format else self.patterns.astype(np.float64)


@dataclass
class Subject:
    """A function of arrays that is to give the same bits."""

    function: Callable[..., Any]
    library: Arrays
    format: Format
    slots: Sequence[Slot]
    params: Mapping[str, Any] = field(default_factory=dict)
    #: makes the block of code in which each call is made
    within: Callable[[], Any] | None = None

    @property
    def torch(self) -> Any:
        """PyTorch, where its tensors are used; else None."""
        return self.library.module if self.library.library == "torch" else None

    def arrays(self, values: Sequence[np.ndarray], layout: str = "") -> list[Any]:
        """The numbers as arrays of the library."""
        made = []
        for slot, x in zip(self.slots, values, strict=True):
            if slot.kind == "float":
                made.append(laid_out(self.library, x, slot.format or self.format, layout))
            else:
                made.append(self.library.bools(x) if slot.kind == "bool" else self.library.integers(x))
        return made

    def call(self, values: Sequence[np.ndarray], layout: str = "") -> Callable[[], Any]:
        """A call on arrays that are made once."""
        given = self.arrays(values, layout)
        return lambda: self.inside(lambda: self.function(*given, **self.params))

    def inside(self, call: Callable[[], Any]) -> Any:
        with contextlib.ExitStack() as stack:
            if self.torch is not None:
                self.torch.manual_seed(SEED)
                stack.enter_context(self.torch.no_grad())
            if self.within is not None:
                stack.enter_context(self.within())
            with np.errstate(all="ignore"):
                made = call()
            self.library.synchronize()
        return made

    def on(self, library: Arrays) -> "Subject":
        """The same on another device: a copy of a module, and of a function itself."""
        function = self.function
        if hasattr(function, "named_modules"):
            function = copy.deepcopy(function).to(library.device)  # type: ignore[attr-defined]
        return Subject(function, library, self.format, self.slots, self.params, self.within)


def results_of(library: Arrays, returned: Any) -> list[Result]:
    """The arrays of what was returned: one, a sequence, or a mapping of them; what is no array is left out."""
    found: list[Result] = []

    def add(name: str, x: Any) -> None:
        if isinstance(x, Mapping):
            for key, each in x.items():
                add(f"{name}.{key}" if name else str(key), each)
        elif isinstance(x, (tuple, list)):
            for i, each in enumerate(x):
                add(f"{name or 'out'}{i}", each)
        elif hasattr(x, "dtype") and hasattr(x, "shape"):
            dtype = library._adopt(x)[2]
            found.append(Result(name or "out", library.bits(x).reshape(library.shape(x)), FORMATS.get(dtype)))

    add("", returned)
    if not found:
        raise ValueError(f"invariance: got a result of type {type(returned).__name__}, expected arrays")
    return found


def part_of_batch(sample: int) -> Callable[[tuple[int, ...], Any], Any]:
    """The part of a larger array that belongs to one sample, given the shape that it has alone: along the one axis whose length
    differs the batch is the outer one of two."""

    def part(alone: tuple[int, ...], whole: Any) -> Any:
        if len(alone) != len(whole.shape):
            return None
        axes = [i for i, (a, b) in enumerate(zip(alone, whole.shape, strict=True)) if a != b]
        if len(axes) != 1 or not alone[axes[0]] or whole.shape[axes[0]] % alone[axes[0]]:
            return None
        n = alone[axes[0]]
        return whole[(slice(None),) * axes[0] + (slice(sample * n, (sample + 1) * n),)]

    return part


def first_part(alone: tuple[int, ...], whole: Any) -> Any:
    """The first elements along each axis, as many as the smaller array has."""
    if len(alone) != len(whole.shape) or any(a > b for a, b in zip(alone, whole.shape, strict=True)):
        return None
    return whole[tuple(slice(n) for n in alone)]


def difference(one: Sequence[Result], other: Sequence[Result], part: Callable[..., Any]) -> tuple[str, int]:
    """What differs between the results of one call and the parts of another's, "" where nothing does; and how many arrays were
    compared, as some of them have no such part."""
    compared = 0
    for a, b in zip(one, other, strict=True):
        whole = b.patterns if a.patterns.shape == b.patterns.shape else part(a.patterns.shape, b.patterns)
        if whole is None:
            continue
        compared += 1
        wrong = a.patterns != whole
        if wrong.any():
            x, y = a.numbers(), Result(b.name, whole, b.format).numbers()
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            step = a.format.spacing(np.maximum(np.abs(x), np.abs(y))) if a.format else np.ones(x.shape)
            with np.errstate(all="ignore"):
                ulp = np.where(wrong, np.abs(x - y) / step, 0.0)
            worst = float(np.max(ulp[np.isfinite(ulp)], initial=0.0))
            where = f"{a.name}[{', '.join(map(str, at))}]"
            many = f"{int(wrong.sum())} of {wrong.size} elements, at most {worst:.3g} ulp"
            text = f"{where}: {float(x[at])!r} and {float(y[at])!r}; {many}"
            return text, compared
    return "", compared


def built(found: Any) -> Any:
    """The function or module of a name: a class of modules, or a function without parameters, is called for it."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return found
    if hasattr(found, "named_modules") and not isinstance(found, type):
        return found
    if isinstance(found, type) or not parameters:
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(SEED)
        return found()
    return found
