"""tlspec: what each operation and its gradient mean, in float64 NumPy, and a judge for kernels that compute them.

``tlspec.check(my_softmax, "softmax")`` checks a kernel (:mod:`tlspec.judge`), ``tlspec.check_task`` one to a task of another
project's format (:mod:`tlspec.judge.adapters`), and ``tlspec.invariance`` says what the bits of a function depend on
(:mod:`tlspec.judge.invariants`). ``tlspec.ops.softmax.softmax(x)`` is the meaning of
an operation, called on arrays; ``tlspec.registry`` holds one row per operation and ``tlspec.ops`` the references,
``tlspec.references`` those that this project has no kernel of.

``tlspec.running`` derives tolerances from a reference; ``tlspec.formats`` has the number formats, ``tlspec.arrays`` the arrays of
other libraries. ``tlspec.signature`` is the grammar of signatures, ``tlspec.validation`` what a sound row is. ``tlspec.bounds``
has the float32 error bounds, ``tlspec.draw`` the drawn test cases, ``tlspec.laws`` the algebraic laws. ``tlspec.entries`` gives
the entry points of the C ABI that the rows determine, ``tlspec.declarations`` the hash that a library is known by.

Names are imported when they are first asked for, so that ``import tlspec`` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tlspec.judge import Report as Report
    from tlspec.judge import check as check
    from tlspec.judge.adapters import check_task as check_task
    from tlspec.judge.invariants import invariance as invariance
    from tlspec.pytest_plugin import cases as cases
    from tlspec.running import ErrorArray as ErrorArray

#: where the names of the package are defined
_NAMES = {
    "check": "tlspec.judge",
    "invariance": "tlspec.judge.invariants",
    "check_task": "tlspec.judge.adapters",
    "Report": "tlspec.judge",
    "ErrorArray": "tlspec.running",
    "cases": "tlspec.pytest_plugin",
}
_MODULES = (
    "arrays",
    "bounds",
    "classes",
    "compare",
    "data",
    "draw",
    "drawn",
    "formats",
    "judge",
    "laws",
    "ops",
    "references",
    "registry",
    "running",
    "strategies",
)

__all__ = ["ErrorArray", "Report", "__version__", "check", "check_task", "invariance"]

#: the version of the specification and the judge, which are released apart from the library
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"tlspec.{name}")
    raise AttributeError(f"module 'tlspec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES, *_MODULES])
