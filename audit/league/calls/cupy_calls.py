"""The calls of CuPy: NumPy's, and special functions."""

from typing import Any

from audit.league.calls import numpy_calls

COMPOSED = numpy_calls.COMPOSED
IN_PLACE = numpy_calls.IN_PLACE
FLOAT32 = numpy_calls.FLOAT32

LEFT_OUT = {"conv, pool, attention": "CuPy has none"}


def calls() -> dict[str, Any]:
    import cupy
    from cupyx.scipy import special

    more = {
        "sigmoid": special.expit,
        "erf": special.erf,
        "softmax": special.softmax,
        "log_softmax": special.log_softmax,
    }
    named = {
        name: (lambda f: lambda x: f(x, axis=1))(f) if "softmax" in name else (lambda f: lambda x: f(x))(f)
        for name, f in more.items()
    }
    return {
        **numpy_calls.calls(cupy), **named,
        "logsumexp": lambda x, axes: special.logsumexp(x, axis=numpy_calls.over(axes)),
    }  # fmt: skip
