"""The calls of CuPy: NumPy's, and special functions."""

from typing import Any

from audit.league.calls import numpy_calls

COMPOSED = numpy_calls.COMPOSED
ENDS_THE_PROCESS = numpy_calls.ENDS_THE_PROCESS
IN_PLACE = numpy_calls.IN_PLACE
FLOAT32 = numpy_calls.FLOAT32

LEFT_OUT = {"conv, pool, attention": "CuPy has none"}


def calls() -> dict[str, Any]:
    import cupy
    from cupyx.scipy import special

    return {
        **numpy_calls.calls(cupy), "sigmoid": lambda x: special.expit(x), "erf": lambda x: special.erf(x),
        "softmax": lambda x: special.softmax(x, axis=1), "log_softmax": lambda x: special.log_softmax(x, axis=1),
        "logsumexp": lambda x, axes: special.logsumexp(x, axis=numpy_calls.over(axes)),
    }  # fmt: skip
