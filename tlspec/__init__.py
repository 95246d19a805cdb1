"""tlspec: what each operation and its gradient mean, in float64 NumPy, and a judge for kernels that compute them.

``tlspec.check(my_softmax, "softmax")`` checks a kernel (:mod:`tlspec.judge`). ``tlspec.ops.softmax.softmax(x)`` is the meaning of
an operation, called on arrays; ``tlspec.registry`` holds one row per operation and ``tlspec.ops`` the references.

``tlspec.running`` derives tolerances from a reference; ``tlspec.formats`` has the number formats, ``tlspec.arrays`` the arrays of
other libraries. ``tlspec.signature`` is the grammar of signatures, ``tlspec.validation`` what a sound row is. ``tlspec.bounds``
has the float32 error bounds, ``tlspec.drawn`` the drawn test cases, ``tlspec.laws`` the algebraic laws. ``tlspec.entries`` gives
the entry points of the C ABI that the rows determine, ``tlspec.declarations`` the hash that a library is known by.

Names are imported when they are first asked for, so that ``import tlspec`` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tlspec.judge import Report as Report
    from tlspec.judge import check as check
    from tlspec.pytest_plugin import cases as cases
    from tlspec.running import ErrorArray as ErrorArray

#: where the names of the package are defined
_NAMES = {
    "check": "tlspec.judge",
    "Report": "tlspec.judge",
    "ErrorArray": "tlspec.running",
    "cases": "tlspec.pytest_plugin",
}
_MODULES = (
    "arrays",
    "bounds",
    "drawn",
    "classes",
    "compare",
    "data",
    "formats",
    "judge",
    "laws",
    "ops",
    "registry",
    "running",
    "strategies",
)

__all__ = ["ErrorArray", "Report", "check"]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"tlspec.{name}")
    raise AttributeError(f"module 'tlspec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES, *_MODULES])
