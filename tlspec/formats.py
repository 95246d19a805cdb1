"""Number formats: what a kernel's floating-point type can hold, rounding to it, and its bit patterns.

A format with p bits of precision (the implicit one counts) and normal exponents e from `least` to `most_exponent` holds

    ±m·2^(e - p + 1),  m a whole number below 2^p,  e >= least, and m >= 2^(p - 1) where e > least,

and NaN. m < 2^(p - 1) is a subnormal number; none is flushed to zero. A bit pattern is the sign, the exponent's field and the
fraction. Where all bits of the field are 1, formats with infinities have these and NaN; ``float8_e4m3fn`` has numbers there, but
for the last pattern, which is its NaN. Reals are rounded to nearest, ties to even.

Sources: IEEE 754-2019, §3.3 and §3.4 (float16, float32, float64); OCP 8-bit Floating Point Specification, revision 1.0 (float8);
NVIDIA PTX ISA, "Alternate Floating-Point Data Formats" (bfloat16, tf32).
"""

import difflib
import importlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Bits = npt.NDArray[np.unsignedinteger[Any]]

#: the exponent's field of a float64, and its bias
_FIELD, _BIAS = 0x7FF << 52, 1023
#: numbers that are encoded at once
PIECE = 2**21
#: the formats that NumPy computes with itself
_NUMPY = ("float16", "float32", "float64")


@dataclass(frozen=True)
class Format:
    """A binary floating-point format. Every method takes and returns arrays of any shape."""

    name: str
    #: p, the bits of a significand, with the implicit one
    precision: int
    #: the exponent of the least normal number
    least: int
    #: the exponent of the largest finite number
    most_exponent: int
    #: whether there are infinities; without them what is too large becomes NaN
    infinite: bool
    #: the format of the array elements that hold the numbers: this one, but for tf32, which float32 holds
    container: str

    @property
    def unit(self) -> float:
        """The unit roundoff 2^-p: rounding changes a number in the normal range by at most this share of it."""
        return 2.0**-self.precision

    @property
    def tiny(self) -> float:
        """The smallest positive number, 2^(least - p + 1)."""
        return 2.0 ** (self.least - self.precision + 1)

    @property
    def least_normal(self) -> float:
        """The smallest positive normal number, 2^least."""
        return 2.0**self.least

    @property
    def largest(self) -> float:
        """The largest finite number: all bits of its significand are 1, but for the last one where there are no infinities."""
        return float(2.0**self.most_exponent * (2.0 - 2.0 ** (1 - self.precision + (not self.infinite))))

    @property
    def overflow(self) -> float:
        """The least float64 that does not round to a finite number: `largest` plus half a spacing, the tie, which goes to the
        even neighbour and so to infinity; without infinities `largest` is even, and it is the next float64. float64: inf."""
        tie = self.largest + 2.0**self.most_exponent * self.unit
        return tie if self.infinite else math.nextafter(tie, math.inf)

    @property
    def bits(self) -> int:
        """The length of a bit pattern, that of the container."""
        stored = FORMATS[self.container]
        return stored.precision + (stored.most_exponent - stored.least + 1).bit_length()

    @property
    def unsigned(self) -> np.dtype[Any]:
        """NumPy's type of a bit pattern: uint8, uint16, uint32 or uint64."""
        return np.dtype(f"uint{self.bits}")

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type of the container. bfloat16 and float8 come from the optional package ml_dtypes: ImportError without it."""
        if self.container in _NUMPY:
            return np.dtype(self.container)
        try:
            return np.dtype(getattr(importlib.import_module("ml_dtypes"), self.container))
        except ImportError as error:
            advice = 'pip install ml_dtypes, or use array="torch"'
            raise ImportError(f"NumPy has no {self.container} of its own: {advice}") from error

    def spacing(self, r: npt.ArrayLike) -> F64:
        """Distance between neighbouring numbers at \\|r\\| (in the binade of r): 2^(⌊log2|r|⌋ - p + 1), at least `tiny`, at most
        that at `largest`. Infinities and NaN have the least spacing."""
        bits = np.array(r, np.float64).view(np.int64)
        np.bitwise_and(bits, _FIELD, out=bits)  # those of 2^⌊log2|r|⌋
        np.multiply(bits, bits != _FIELD, out=bits)
        np.clip(bits, (_BIAS + self.least) << 52, (_BIAS + self.most_exponent) << 52, out=bits)
        return (bits.view(np.float64) * 2.0 ** (1 - self.precision))[()]

    def round(self, x: npt.ArrayLike) -> F64:
        """The numbers of the format nearest to x, ties to even, as float64.

        x is divided by its spacing, a power of two, so the only rounding is that to a whole number. Underflow is gradual and
        keeps the sign of a zero. From `overflow` on the result is infinite, or NaN where there are no infinities; an infinity is
        too large as well. (That is the OCP specification's conversion without saturation; one with it gives `largest` instead.)
        NaN stays NaN.
        """
        x = np.asarray(x, np.float64)
        step = self.spacing(x)
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = np.asarray(np.rint(x / step) * step)
        beyond = np.abs(x) >= self.overflow
        np.copyto(rounded, np.copysign(np.inf if self.infinite else np.nan, x), where=beyond)
        return rounded

    def encode(self, x: npt.ArrayLike) -> Bits:
        """The bit patterns of the numbers x, as uint8, uint16, uint32 or uint64; what is no number of the format is rounded
        first. A NaN gets a quiet NaN's pattern with its sign."""
        x = np.asarray(x)
        if x.size > PIECE:  # float64 takes eight times the memory of a narrow format
            flat, made = x.reshape(-1), np.empty(x.size, self.unsigned)
            for start in range(0, x.size, PIECE):
                made[start : start + PIECE] = self.encode(flat[start : start + PIECE])
            return made.reshape(x.shape)
        x = self.round(x)
        if self.container in _NUMPY:
            return np.asarray(x.astype(self.container)).view(self.unsigned)
        step = self.spacing(x)
        exponent = np.frexp(step)[1] - math.frexp(self.tiny)[1]  # that of x, above `least`
        with np.errstate(invalid="ignore"):
            code = np.nan_to_num(np.abs(x) / step).astype(np.int64) + (
                exponent.astype(np.int64) << (self.precision - 1)
            )
        infinity, nan = self._special
        code = np.where(np.isnan(x), nan, np.where(np.isinf(x), infinity, code))
        return np.asarray(code | np.signbit(x).astype(np.int64) << (self.bits - 1)).astype(self.unsigned)

    def decode(self, bits: npt.ArrayLike) -> F64:
        """The numbers with these bit patterns, as float64, exactly. Of float64 patterns nothing is copied."""
        patterns = np.asarray(bits).astype(self.unsigned, copy=False)
        if self.container in _NUMPY:
            with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
                return np.asarray(patterns.view(self.container)).astype(np.float64, copy=False)
        code = patterns.astype(np.int64) & ((1 << (self.bits - 1)) - 1)
        above = np.maximum((code >> (self.precision - 1)) - 1, 0)  # the exponent's field counts from 1, 0 is subnormal
        x = np.ldexp(
            (code - (above << (self.precision - 1))).astype(np.float64), above + (self.least - self.precision + 1)
        )
        infinity, nan = self._special
        x = np.where(code >= min(infinity, nan), np.where(code == infinity, np.inf, np.nan), x)
        return np.asarray(np.copysign(x, np.where(patterns >> (self.bits - 1), -1.0, 1.0)))

    @property
    def _special(self) -> tuple[int, int]:
        """The patterns of +infinity (that NaN's successor, which no pattern is, where there are none) and of a quiet NaN."""
        top = 1 << (self.bits - 1)
        infinity = top - (1 << (self.precision - 1))
        return (infinity, infinity | 1 << (self.precision - 2)) if self.infinite else (top, top - 1)

    def array(self, x: npt.ArrayLike) -> npt.NDArray[Any]:
        """x, rounded to the format, in a new array of the container's type (see :attr:`dtype`)."""
        return self.encode(x).view(self.dtype)

    def values(self, array: npt.NDArray[Any]) -> F64:
        """The numbers in an array of the container's type, as float64, exactly; a float64 array itself. TypeError for others."""
        if array.dtype.name != self.container:
            raise TypeError(f"{self.name}: got an array of {array.dtype.name}, expected {self.container}")
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        return self.decode(array.view(self.unsigned))


#: name -> format
FORMATS = {
    f.name: f
    for f in (
        Format("float64", 53, -1022, 1023, True, "float64"),
        Format("float32", 24, -126, 127, True, "float32"),
        Format("tf32", 11, -126, 127, True, "float32"),
        Format("bfloat16", 8, -126, 127, True, "bfloat16"),
        Format("float16", 11, -14, 15, True, "float16"),
        Format("float8_e5m2", 3, -14, 15, True, "float8_e5m2"),
        Format("float8_e4m3fn", 4, -6, 8, False, "float8_e4m3fn"),
    )
}

#: other usual spellings -> name. "float" is float32 to C and PyTorch but float64 to Python, and ml_dtypes has a float8_e4m3 with
#: infinities, so neither is a spelling
SPELLINGS = {
    "fp64": "float64", "f64": "float64", "double": "float64", "binary64": "float64",
    "fp32": "float32", "f32": "float32", "single": "float32", "binary32": "float32",
    "tensorfloat32": "tf32",
    "bf16": "bfloat16",
    "fp16": "float16", "f16": "float16", "half": "float16", "binary16": "float16",
    "fp8_e5m2": "float8_e5m2", "f8e5m2": "float8_e5m2", "e5m2": "float8_e5m2", "fp8e5": "float8_e5m2",
    "fp8_e4m3": "float8_e4m3fn", "fp8_e4m3fn": "float8_e4m3fn", "f8e4m3fn": "float8_e4m3fn",
    "e4m3": "float8_e4m3fn", "e4m3fn": "float8_e4m3fn", "fp8e4nv": "float8_e4m3fn",
}  # fmt: skip


def get(name: Any) -> Format:
    """The format of a name, of a usual spelling of one ("bf16", "half", "fp8_e4m3", "torch.float16"; case, blanks and hyphens do
    not count), of a type of NumPy, ml_dtypes, PyTorch or JAX, or the format itself. ValueError with close names for others."""
    if isinstance(name, Format):
        return name
    text = name if isinstance(name, str) else _dtype_name(name)
    key = re.sub(r"[\s-]+", "_", text.strip().lower()).removeprefix("torch.")
    if found := FORMATS.get(SPELLINGS.get(key, key)):
        return found
    raise ValueError(f"{text!r} is no number format; {suggest(key, FORMATS, SPELLINGS)}")


def suggest(word: str, names: Iterable[str], others: Iterable[str] = ()) -> str:
    """For the message about an unknown word: the names that are close to it, other spellings included, and all names."""
    close = difflib.get_close_matches(word, [*names, *others])
    return (f"did you mean {' or '.join(close)}? There" if close else "there") + f" are {', '.join(names)}"


def _dtype_name(dtype: Any) -> str:
    """The name of a library's type of array elements."""
    if dtype is None or repr(dtype).startswith("torch."):
        return str(dtype)
    try:
        return np.dtype(dtype).name
    except TypeError:
        return str(dtype)
