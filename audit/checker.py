"""The compiled checker (``native/tools/checker.c``): built once per source and compiler, loaded beside the main library."""

import hashlib
import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import cffi
import numpy as np

from audit.environment import ROOT

SOURCES = ("native/tools/checker.c", "native/tools/rounding.h")
#: IEEE arithmetic as written: no contraction, no reassociation; errno and traps change no result
FLAGS = ("-std=gnu11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden")

DECLARATIONS = """
struct tally {
    uint64_t seen, misrounded, mismatches, over, precise, undecided;
    int64_t worst;
    uint32_t worst_at, worst_got, worst_want, mismatch_at, mismatch_got, mismatch_want, over_at, over_got, over_want;
    uint32_t near_at;
    double near_error;
};
const char *tl_check_name(int i);
void tl_check_inputs(uint64_t first, uint64_t stride, uint64_t n, float *out);
int tl_check_unary(int i, uint64_t first, uint64_t stride, uint64_t n, const float *got, int64_t limit, struct tally *t);
float tl_check_want(int i, float x);
void tl_check_hash(const float *x, uint64_t n, uint64_t block, uint64_t *out);
uint64_t tl_check_differ(const float *a, const float *b, uint64_t n, uint64_t *at);
"""
FIELDS = (
    "seen", "misrounded", "mismatches", "over", "precise", "undecided", "worst", "worst_at", "worst_got", "worst_want",
    "mismatch_at", "mismatch_got", "mismatch_want", "over_at", "over_got", "over_want", "near_at", "near_error",
)  # fmt: skip


class CheckerError(RuntimeError):
    """The checker cannot be built here."""


def _build() -> Path:
    """Compiles the checker unless this source with this compiler has been compiled before; its path."""
    sources = [ROOT / s for s in SOURCES]
    if not all(s.exists() for s in sources):
        raise CheckerError(f"the checker's source {SOURCES[0]} is part of the source tree, which this is not")
    compiler = os.environ.get("CC") or next((c for c in ("cc", "gcc") if shutil.which(c)), None)
    if compiler is None:
        raise CheckerError("no C compiler on PATH: install gcc (with libquadmath) or set CC")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    key = hashlib.sha256("\0".join([version, *FLAGS, *(s.read_text() for s in sources)]).encode()).hexdigest()[:16]
    folder = ROOT / "native" / "build" / "tools"
    target = folder / f"checker-{key}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"checker-{key}.{os.getpid()}.part"
        command = [compiler, *FLAGS, "-shared", "-fPIC", "-o", str(partial), str(sources[0]), "-lquadmath", "-lm"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise CheckerError(f"{' '.join(command)} failed:\n{made.stderr.strip()}")
        partial.replace(target)
    return target


class Checker:
    """The checker's functions on NumPy arrays. They release the interpreter's lock and may run in several threads."""

    def __init__(self, path: Path):
        self.ffi = cffi.FFI()
        self.ffi.cdef(DECLARATIONS)
        self.lib: Any = self.ffi.dlopen(str(path))
        self.index: dict[str, int] = {}
        while (name := self.lib.tl_check_name(len(self.index))) != self.ffi.NULL:
            self.index[self.ffi.string(name).decode()] = len(self.index)

    def _floats(self, x: np.ndarray) -> Any:
        assert x.dtype == np.float32 and x.flags.c_contiguous
        return self.ffi.from_buffer("float[]", x)

    def inputs(self, first: int, stride: int, out: np.ndarray) -> None:
        """Fills `out` with the float32 of bit patterns first, first + stride, ..."""
        self.lib.tl_check_inputs(first, stride, out.size, self._floats(out))

    def unary(self, name: str, first: int, stride: int, got: np.ndarray, limit: int) -> dict[str, Any]:
        """Compares results of a function on such inputs with the correctly rounded ones."""
        t = self.ffi.new("struct tally *")
        self.lib.tl_check_unary(self.index[name], first, stride, got.size, self._floats(got), limit, t)
        return {f: getattr(t, f) for f in FIELDS}

    def want(self, name: str, x: float) -> np.float32:
        """The correctly rounded result at one input."""
        return np.float32(self.lib.tl_check_want(self.index[name], x))

    def hashes(self, x: np.ndarray, block: int) -> np.ndarray:
        """One 64-bit hash per block of results."""
        out = np.zeros(-(-x.size // block), np.uint64)
        self.lib.tl_check_hash(self._floats(x), x.size, block, self.ffi.from_buffer("uint64_t[]", out))
        return out

    def differ(self, a: np.ndarray, b: np.ndarray) -> tuple[int, int]:
        """How many results differ in bits (any NaN equals any NaN), and the first that does."""
        at = self.ffi.new("uint64_t *")
        return int(self.lib.tl_check_differ(self._floats(a), self._floats(b), a.size, at)), int(at[0])


def float_text(bits: int) -> str:
    """A float32 by its bit pattern: exact hexadecimal form, or what it is called."""
    x = float(np.array(bits, np.uint32).view(np.float32))
    if not np.isfinite(x):
        return str(x)
    fraction, power = x.hex().split("p")
    return fraction.rstrip("0").rstrip(".") + "p" + power if x else ("-0" if str(x)[0] == "-" else "0")


@lru_cache(maxsize=1)
def checker() -> Checker:
    """The checker, built if need be. Raises CheckerError."""
    return Checker(_build())
