"""One call for a test to make: its arguments as arrays of a library, and the check of its results."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tlspec import arrays, formats, registry
from tlspec.arrays import Arrays
from tlspec.draw.cases import Case
from tlspec.judge.arithmetic import arithmetic
from tlspec.judge.checking import address_of, case_at
from tlspec.judge.kernel import Kernel
from tlspec.judge.runner import Failure, plain_of
from tlspec.judge.trial import Trial, quantised
from tlspec.registry import Op


class Example:
    """A case in a number format. Its arguments are attributes and items by the row's names, ``case.arguments`` are inputs and
    then parameters in order; ``case.check(result)`` raises AssertionError with what is wrong and how to repeat it."""

    def __init__(
        self, op: Op | str, case: Case | str, *, dtype: Any = "float32", out_dtype: Any = None, array: str | Arrays = "numpy",
        **assumed: Any,
    ):  # fmt: skip
        row = registry.get(op) if isinstance(op, str) else op
        self._format, self._library = formats.get(dtype), arrays.get(array)
        self._out = self._format if out_dtype is None else formats.get(out_dtype)
        drawn = case_at(row, case) if isinstance(case, str) else case
        self.address = address_of(drawn)
        self._trial = Trial(quantised(drawn, self._format), self._out, arithmetic(self._format, **assumed))
        self._kernel = Kernel(self.check, self._library, self._trial.case, lambda f, values: None)
        call = self._kernel.prepare(self._trial.case, self._format, self._out)
        made = {n: self._library.put(x, dtype) for n, (dtype, x) in call.arrays.items()}
        self._values: Mapping[str, Any] = {**made, **call.scalars}

    @property
    def arguments(self) -> list[Any]:
        """Inputs, then parameters, in the row's order."""
        case = self._trial.case
        return [self._values[n] for n in (*case.arguments, *(p.name for p in case.op.signature.params))]

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in self._values:
            return self._values[name]
        raise AttributeError(f"{self._trial.case.name} has no argument {name!r}; it has {', '.join(self._values)}")

    def check(self, *results: Any) -> None:
        """Compares the results, one for each output. Raises AssertionError."""
        __tracebackhide__ = True
        trial = self._trial
        found = list(results[0]) if len(results) == 1 and isinstance(results[0], (tuple, list)) else list(results)
        problems = []
        if len(found) != len(trial.names):
            problems = [f"got {len(found)} results, expected {len(trial.names)}: {', '.join(trial.names)}"]
        else:
            try:
                plain = [
                    plain_of(self._library, n, r, s) for n, r, s in zip(trial.names, found, trial.shapes, strict=True)
                ]
                numbers = [
                    self._kernel.numbers(n, r, s, self._out)
                    for n, r, s in zip(trial.names, plain, trial.shapes, strict=True)
                ]
                outcomes = trial.compare([np.asarray(x) for x in numbers])
                problems = [c.explain(n) for n, c in zip(trial.names, outcomes, strict=True) if not c.ok]
            except Failure as failure:
                problems = [str(failure)]
        if problems:
            text = "\n".join(problems)
            raise AssertionError(
                f"{trial.case.name}, {self._format.name}:\n{text}\nrepeat: pytest --tlspec-repro='{self.address}'"
            )

    def __repr__(self) -> str:
        kind = f"dtype={self._format.name!r}, array={self._library.name!r}"
        return f"Example({self._trial.case.op.name!r}, {self.address!r}, {kind})"
