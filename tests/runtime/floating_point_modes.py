"""The floating-point modes that a caller of the library may be in."""

import ctypes
import gc
import platform
from collections.abc import Iterator
from contextlib import contextmanager

#: where a C library's fenv_t keeps the word of the mode, counted in 32 bits, and what is flipped in it: MXCSR's FTZ and DAZ, its
#: rounding, the masks of its exceptions (Intel SDM volume 1, 10.2.3), FPCR's FZ and RMode (Arm ARM, C5.2.8)
PLACE, FLIPS = {
    "x86_64": (7, {"flush": 0x8040, "up": 0x4000, "down": 0x2000, "to zero": 0x6000, "unmasked": 0x1F80}),
    "aarch64": (0, {"flush": 1 << 24, "up": 1 << 22, "down": 1 << 23, "to zero": 3 << 22}),
}[platform.machine()]


@contextmanager
def mode(name: str) -> Iterator[None]:
    """The calling thread computes in another mode, and so do threads it makes; "default" changes nothing. The collector waits:
    its callbacks, such as hypothesis', would compute in the mode of whoever they interrupt."""
    libm, collects = ctypes.CDLL("libm.so.6"), gc.isenabled()
    before, changed = (ctypes.c_uint32 * 64)(), (ctypes.c_uint32 * 64)()
    assert libm.fegetenv(before) == 0 and libm.fegetenv(changed) == 0
    changed[PLACE] ^= FLIPS.get(name, 0)
    gc.disable()
    assert libm.fesetenv(changed) == 0
    try:
        yield
    finally:
        libm.fesetenv(before)
        if collects:
            gc.enable()
