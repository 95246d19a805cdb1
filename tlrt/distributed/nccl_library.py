"""NVIDIA's NCCL by cffi: which functions are used, and where the library is found.

The file that the environment variable ``TORCHLEAN_NCCL_LIBRARY`` names, and then nowhere else; else ``libnccl.so.2`` where the
system's loader finds it; else where cuda-pathfinder does, as in the package nvidia-nccl-cu13. Declarations are those of nccl.h,
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html, which NCCL 2 keeps.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import cffi

from tlrt.errors import UnavailableError, refusal

ENVIRONMENT = "TORCHLEAN_NCCL_LIBRARY"
#: ncclFloat32, ncclSum and ncclInProgress
FLOAT32, SUM, IN_PROGRESS = 7, 0, 7
#: the first version that has all of the functions
OLDEST = 21304

_DECLARATIONS = """
typedef struct ncclComm *ncclComm_t;
typedef struct { char internal[128]; } ncclUniqueId;
int ncclGetVersion(int *version);
int ncclGetUniqueId(ncclUniqueId *id);
int ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank);
int ncclCommDestroy(ncclComm_t comm);
int ncclCommAbort(ncclComm_t comm);
int ncclCommGetAsyncError(ncclComm_t comm, int *error);
const char *ncclGetErrorString(int result);
const char *ncclGetLastError(ncclComm_t comm);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void *data, size_t count, int type, int peer, ncclComm_t comm, void *stream);
int ncclRecv(void *data, size_t count, int type, int peer, ncclComm_t comm, void *stream);
int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, ncclComm_t comm, void *stream);
"""


class NCCL:
    """The library: cffi's `ffi` and `lib`, its version, and a call that raises."""

    def __init__(self, ffi: Any, lib: Any, path: str) -> None:
        self.ffi, self.lib, self.path = ffi, lib, path
        version = ffi.new("int *")
        lib.ncclGetVersion(version)
        #: as major*10000 + minor*100 + patch
        self.version = int(version[0])

    @property
    def takes_host_memory(self) -> bool:
        """Whether it says of itself that addresses are the host's: NVIDIA's does not, what tests put in its place does."""
        try:
            self.ffi.cast("void *", self.ffi.addressof(self.lib, "torchlean_nccl_takes_host_memory"))
        except AttributeError:
            return False
        return True

    def why(self, result: int, comm: Any = None) -> str:
        """What a result says, with the library's last words about it."""
        text = self.ffi.string(self.lib.ncclGetErrorString(result)).decode(errors="replace")
        last = self.lib.ncclGetLastError(self.ffi.NULL if comm is None else comm)
        more = self.ffi.string(last).decode(errors="replace").strip() if last != self.ffi.NULL else ""
        return f"{text}: {more}" if more else text


@cache
def load_nccl() -> NCCL:
    """NCCL, loaded at the first call. Raises UnavailableError where there is none, or one that is too old."""
    ffi = cffi.FFI()
    ffi.cdef(_DECLARATIONS + "extern int torchlean_nccl_takes_host_memory;")
    named = os.environ.get(ENVIRONMENT)
    expected = f"{named}, as {ENVIRONMENT} says" if named else "pip install 'torchlean-cuda[nccl]'"
    try:
        found = _open(ffi, named)
        made = NCCL(ffi, *found)
    except (OSError, AttributeError) as error:
        raise refusal(UnavailableError, "join", "NCCL", f"none that loads ({error})", expected) from None
    if made.version < OLDEST:
        raise refusal(UnavailableError, "join", "NCCL", f"version {made.version} ({made.path})", f"{OLDEST} or newer")
    return made


def _open(ffi: Any, named: str | None) -> tuple[Any, str]:
    if named:
        return ffi.dlopen(named, ffi.RTLD_NOW | ffi.RTLD_LOCAL | ffi.RTLD_NODELETE), named
    try:
        name = "libnccl.so.2"
        return ffi.dlopen(name, ffi.RTLD_NOW | ffi.RTLD_LOCAL | ffi.RTLD_NODELETE), name
    except OSError as error:
        try:
            from cuda.pathfinder import load_nvidia_dynamic_lib

            path = load_nvidia_dynamic_lib("nccl").abs_path
        except (ImportError, RuntimeError):
            raise error from None
        return ffi.dlopen(path, ffi.RTLD_NOW | ffi.RTLD_LOCAL | ffi.RTLD_NODELETE), str(path)
