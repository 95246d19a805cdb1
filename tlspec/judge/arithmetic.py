"""What is assumed of a kernel's arithmetic when its author says no more, and the words in which more can be said.

Left to itself the judge allows sums in any order, the function errors that the documentation of CUDA and of the vector libraries
allows, and intermediate results in float32 (in float64 for a float64 kernel); sums of narrower numbers may be those of tensor
cores, which take operands of these numbers alone: the weights of an attention are rounded before they meet V. Tighter words give
tighter tolerances.

===================  =========================================================================================================
``accumulate=``      how products are summed
===================  =========================================================================================================
``"fp32"``           float32, rounded to nearest
``"fp64"``           float64
``"bf16"``, ...      any format of :mod:`tlspec.formats`, rounded to nearest
``"ampere"``         tensor cores that keep 24 bits of a sum and cut off the rest
``"hopper"``         tensor cores that keep 25 bits and cut off the rest, in float32 registers
``"tensorcore"``     the weaker of the two
``"fp8"``            8-bit tensor cores of Hopper: 14 bits, the rest cut off
``"promoted:128"``   the same for 128 terms at a time, the partial sums added in float32
``"int32"``          32-bit integers, which hold the sums of products of 8-bit ones exactly
``"probe"``          what :mod:`tlspec.judge.probe` finds, but no fewer bits than float32 or tensor cores have
===================  =========================================================================================================

Sources for tensor cores: Fasi, Higham, Mikaitis and Pranesh, PeerJ Comput. Sci. 7, 2021; Khattak and Mikaitis, arXiv:2407.18387;
DeepSeek-V3, arXiv:2412.19437, §3.3.2 (14 bits, promotion every 128 terms).

===================  =========================================================================================================
``mixed=``           words for kernels of several formats, which words of one's own replace
===================  =========================================================================================================
``"bf16"``           bfloat16 in and out, float32 inside, tensor cores: operands of products are bfloat16, intermediate ones too
``"fp16"``           the same with float16
``"fp8"``            float8_e4m3fn in, bfloat16 out; 8-bit tensor cores, promoted every 128 terms. The scales of blocks are arrays
                     of the reference in a format of their own, as in ``scale: float32[m, k]``
``"int8"``           sums of products of integers in int32, dequantised in float32; float32 out. The operands are arrays of the
                     reference, as in ``q: i8[n, k]``
===================  =========================================================================================================

===================  =========================================================================================================
``ulp=``             largest errors of elementary functions
===================  =========================================================================================================
``"documented"``     the larger of CUDA's table and of the 4 ulp that NumPy grants vector libraries; quotients 2 ulp, roots 1 ulp
``"cuda"``           CUDA's table for standard functions; quotients and roots correctly rounded
``"libm"``           1 ulp; quotients and roots correctly rounded
``"fast"``           CUDA's intrinsics: ``__expf`` and its kin, approximate quotients and roots
a number, a dict     that many ulp for all functions, or by name ("exp", "divide", ...) with "" for all others
===================  =========================================================================================================

Sources: CUDA C++ Programming Guide, "Mathematical Functions", tables of maximum ulp errors and of intrinsics; PTX ISA, div.full
and sqrt.approx (2 ulp and 1 ulp); NumPy 1.22 release notes (4 ulp for vectorised functions); SLEEF (1 ulp). CUDA counts from the
correctly rounded result, so half an ulp is added.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from tlspec import formats
from tlspec.formats import Format
from tlspec.running import Model, any_order

__all__ = ["ACCUMULATORS", "HEIGHTS", "MIXED", "ULPS", "arithmetic"]

_CUDA = {
    "exp": 2, "exp2": 2, "expm1": 1, "log": 1, "log2": 1, "log10": 2, "log1p": 1, "sin": 2, "cos": 2, "tan": 4, "arcsin": 2,
    "arccos": 2, "arctan": 2, "arctan2": 3, "sinh": 3, "cosh": 2, "tanh": 2, "arcsinh": 3, "arccosh": 4, "arctanh": 3, "power": 4,
    "erf": 2, "erfc": 4, "cbrt": 1,
}  # fmt: skip
CUDA: dict[str, Any] = {n: k + 0.5 for n, k in _CUDA.items()}

#: by the name in ``ulp=``
ULPS: dict[str, Mapping[str, Any]] = {
    "documented": {**{n: max(k, 4.0) for n, k in CUDA.items()}, "divide": 2.0, "sqrt": 1.0, "": 4.5},
    "cuda": {**CUDA, "divide": 0.5, "sqrt": 0.5, "": 4.5},
    "libm": {"divide": 0.5, "sqrt": 0.5, "": 1.0},
    # __expf(x): 2 + ⌊|1.173·x|⌋; __logf near 1 has an absolute error of 2^-21.41, sine and cosine one of 2^-21.19
    "fast": {**CUDA, "exp": lambda x: 2.5 + 1.173 * x, "log": (4.5, 2.0**-21.41), "sin": (2.5, 2.0**-21.19),
             "cos": (2.5, 2.0**-21.19),
             "divide": 2.5, "sqrt": 2.0, "power": 64.0, "": 8.0},
}  # fmt: skip

#: by the name in ``accumulate=``: bits, and whether sums are rounded to nearest
ACCUMULATORS = {"ampere": (24, False), "tensorcore": (24, False), "hopper": (25, False), "fp8": (14, False),
                "int32": (31, True)}  # fmt: skip

#: by the name in ``mixed=``: words of :func:`tlspec.check`
MIXED: dict[str, dict[str, str]] = {
    "bf16": {"dtype": "bfloat16", "accumulate": "tensorcore", "products": "bfloat16"},
    "fp16": {"dtype": "float16", "accumulate": "tensorcore", "products": "float16"},
    "fp8": {"dtype": "float8_e4m3fn", "out_dtype": "bfloat16", "accumulate": "promoted:128"},
    "int8": {"dtype": "float32", "accumulate": "int32"},
}

#: by the name in ``height=``: the height of a tree of n terms
HEIGHTS: dict[str, Callable[[int], int]] = {
    "any": any_order,
    "sequential": any_order,
    "pairwise": lambda n: max(n - 1, 0).bit_length(),
}


def arithmetic(
    format: Format | str = "float32", *, accumulate: str = "", height: str | Callable[[int], int] = "any",
    ulp: str | float | Mapping[str, Any] = "documented", products: str = "", intermediate: str = "", flush: bool = False,
    saturate: bool = False, full_range: bool = False,
) -> Model:  # fmt: skip
    """The model of a kernel on arrays of a format.

    Parameters
    ----------
    format : Format or str, default 'float32'
        The number format of the arrays.
    accumulate : str, default ''
        The format in which sums are accumulated.
    height : str or callable, default 'any'
        The height of a sum's tree.
    ulp : str, float or mapping, default 'documented'
        Largest errors of elementary functions, in ulp.
    products : str, default ''
        The format to which operands of matrix products are rounded first.
    intermediate : str, default ''
        The format of all other intermediate results.
    flush : bool, default False
        Subnormal float32 numbers may count as zero.
    saturate : bool, default False
        Results beyond the largest number are that number.
    full_range : bool, default False
        Nothing overflows on the way to a result that can be represented.

    Returns
    -------
    Model
        For running error analysis.

    Raises
    ------
    ValueError
        A word that is not known.

    Examples
    --------
    >>> from tlspec.judge.arithmetic import arithmetic
    >>> print(arithmetic("float16", accumulate="float32").sum_precision)
    24
    """
    fmt = formats.get(format)
    between = formats.get(intermediate or ("float64" if fmt.precision > 24 else "float32"))
    tensor_cores = fmt.precision < 24 and not intermediate  # where products of such numbers are summed
    products = products or (fmt.name if tensor_cores and not accumulate else "")
    name, _, chunk = (accumulate or ("tensorcore" if tensor_cores else between.name)).partition(":")
    if name == "promoted":
        bits, to_nearest = ACCUMULATORS["fp8"]
    elif name in ACCUMULATORS:
        bits, to_nearest = ACCUMULATORS[name]
    else:
        bits, to_nearest = formats.get(name).precision, True
    if isinstance(height, str) and height not in HEIGHTS:
        raise ValueError(f"height={height!r}: expected {', '.join(HEIGHTS)}, or a function of the number of terms")
    if isinstance(ulp, str) and ulp not in ULPS:
        raise ValueError(f"ulp={ulp!r}: expected {', '.join(ULPS)}, a number or a dict")
    table = ULPS[ulp] if isinstance(ulp, str) else ulp if isinstance(ulp, Mapping) else {"": float(ulp)}
    return Model(
        precision=between.precision, sum_precision=bits, to_nearest=to_nearest, chunk=int(chunk) if name == "promoted" else 0,
        height=HEIGHTS[height] if isinstance(height, str) else height, ulps=table, tiny=max(between.tiny / 2, 2.0**-1074),
        overflow=math.inf if full_range else between.overflow, saturate=saturate,
        operands=formats.get(products) if products else None, flushed=between.least_normal if flush else 0.0,
    )  # fmt: skip
