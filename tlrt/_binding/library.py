"""Finds, loads and checks ``libtorchlean_cuda.so``.

The library is looked for in this order:

1. the file that the environment variable ``TORCHLEAN_CUDA_LIBRARY`` names, and then nowhere else;
2. ``tlrt/_lib/`` of an installed wheel;
3. ``native/build/cuda/`` and ``native/build/cpu/`` of the source tree, the first that loads and is up to date.

Its declarations are those of the C headers, compiled into ``tlrt/_binding/abi.py``. cffi's ABI mode verifies nothing, so
the SHA-256 of the declarations is compared with the one compiled into the library. Nothing is loaded before the first use.
"""

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlrt._binding import abi
from tlrt.errors import (
    InternalError,
    InterruptedCallError,
    LibraryNotFoundError,
    StaleLibraryError,
    TorchleanError,
    by_status,
)

NAME = "libtorchlean_cuda.so"
ENVIRONMENT = "TORCHLEAN_CUDA_LIBRARY"
_PACKAGE = Path(__file__).resolve().parents[1]
_TREE = _PACKAGE.parent
_HEADERS = ("torchlean_cuda.h", "torchlean_cuda_ops.h")


class Functions:
    """The functions of a loaded library as attributes. Each is looked up in it once; `audit` puts others in their places."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib

    def __getattr__(self, name: str) -> Any:
        try:
            function = getattr(self._lib, name)
        except abi.ffi.error as error:  # declared, but not in the library
            raise AttributeError(str(error)) from None
        self.__dict__[name] = function
        return function

    def __dir__(self) -> list[str]:
        return dir(self._lib)


@dataclass(frozen=True)
class Library:
    """A loaded library: cffi's ``ffi``, the functions, and where it came from."""

    ffi: Any
    lib: Functions
    path: Path
    hash: str

    def text(self, pointer: Any) -> str:
        """A C string as text."""
        return bytes(self.ffi.string(pointer)).decode("utf-8", "replace")

    @property
    def build_info(self) -> dict[str, str]:
        """The library's build information by key: version, backend, compiler, …"""
        pairs = (part.partition("=") for part in self.text(self.lib.torchlean_cuda_build_info()).split(";"))
        return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}

    @property
    def version(self) -> str:
        """``major.minor.patch``."""
        number = int(self.lib.torchlean_cuda_version())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def include_folder() -> Path:
    """The folder of the headers this package goes with: its own copy in a wheel, else the source tree's."""
    tried = [_PACKAGE / "_lib", _TREE / "native" / "include"]
    for folder in tried:
        if all((folder / name).is_file() for name in _HEADERS):
            return folder
    raise LibraryNotFoundError(
        f"torchlean: headers: got none of {', '.join(_HEADERS)} in {' or '.join(map(str, tried))}, expected both, "
        "so the installation is incomplete",
        f"run {build_command()}",
    )


def candidates() -> list[Path]:
    """The files that are tried, in order."""
    if named := os.environ.get(ENVIRONMENT):
        return [Path(named)]
    return [_PACKAGE / "_lib" / NAME, *(_TREE / "native" / "build" / kind / NAME for kind in ("cuda", "cpu"))]


def build_command(cuda: bool = False) -> str:
    """How the library is built from here."""
    if (_TREE / "native" / "Makefile").is_file():
        return f"`make -C {_TREE} cuda`" if cuda else f"`make -C {_TREE / 'native'}`"
    return f"`{'TORCHLEAN_BUILD=cuda ' * cuda}pip install --force-reinstall .` in the source tree"


def remedy(cuda: bool = False) -> str:
    """What to do about a library that is missing or does not fit, or (`cuda`) that was built without CUDA."""
    if os.environ.get(ENVIRONMENT):
        return f"unset {ENVIRONMENT}, or set it to a {NAME} {'built with CUDA' if cuda else 'of this version'}"
    return f"run {build_command(cuda)}"


def _preload(message: str) -> bool:
    """Loads a CUDA library that `message` misses, with what that one needs, from where cuda-pathfinder finds it: packages of
    ``nvidia``, conda, CUDA_HOME. True if it was loaded."""
    missing = re.search(r"lib(cublas|cublasLt|cufft|cudart|nvJitLink)\.so", message)
    if missing is None:
        return False
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib(missing[1])
    except (ImportError, RuntimeError):
        return False
    return True


def _open(ffi: Any, path: Path) -> Functions:
    """dlopen, once more after each missing CUDA library that could be supplied. The library stays mapped until the
    process ends, so finalisers may call it during interpreter shutdown."""
    for _ in range(4):
        try:
            return Functions(ffi.dlopen(str(path.resolve()), ffi.RTLD_NOW | ffi.RTLD_LOCAL | ffi.RTLD_NODELETE))
        except OSError as error:
            if not _preload(str(error)):
                raise
    raise OSError(f"{path}: its CUDA libraries do not load")


def _compiled_hash(ffi: Any, lib: Any) -> str:
    try:
        return bytes(ffi.string(lib.torchlean_cuda_abi_hash())).decode("ascii", "replace")
    except AttributeError:
        return "none (no torchlean_cuda_abi_hash)"


def _find() -> Library:
    tried: list[str] = []
    stale: list[str] = []
    for path in candidates():
        try:
            path.stat()  # says what is wrong with a path; dlopen says one thing of all
            lib = _open(abi.ffi, path)
        except FileNotFoundError:
            tried.append(f"{path}: no such file")
            continue
        except OSError as error:
            tried.append(f"{path}: {error.strerror or error}")
            continue
        if (got := _compiled_hash(abi.ffi, lib)) == abi.HASH:
            return Library(abi.ffi, lib, path.resolve(), abi.HASH)
        stale.append(f"{path}: got ABI hash {got}")
    if stale:
        text = f"torchlean: library: {'; '.join(stale)}; expected {abi.HASH}, the hash of this package's headers"
        raise StaleLibraryError(text, remedy())
    text = "\n  ".join(["torchlean: library: got none that loads, expected one of", *tried])
    raise LibraryNotFoundError(text, remedy())


def hold_over_forks(lock: Any) -> Any:
    """The lock, which no other thread has while the process forks: the child finds it free, and no import half done under it."""
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


_lock = hold_over_forks(threading.RLock())  # a signal handler may fork
_loaded: Library | None = None


def load() -> Library:
    """The library, loaded at the first call. Raises :class:`LibraryNotFoundError` or :class:`StaleLibraryError`."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = _find()
    return _loaded


def complete_call(function: Callable[..., Any], *arguments: Any) -> int:
    """C's status, of the call made again while something interrupts it: the handlers of Python's signals run in between, and
    what one raises comes out of here."""
    while (status := function(*arguments)) == InterruptedCallError.status:
        pass
    return int(status)


_FUNCTION = re.compile(r"^torchlean_cuda_\w+(?=: )")
_PREFIX = re.compile(r"\btorchlean_cuda_(?:buffer_)?(?=\w)")


def failure(status: int, op: str, rename: dict[str, str] | None = None) -> TorchleanError:
    """The exception for the calling thread's last failure with this status, for the caller to raise; its text is taken, so
    one status has one exception. Its message names `op` in place of the C function; `rename` maps argument names of C to
    those of Python."""
    library = load()
    text = library.ffi.new("char[512]")
    library.lib.torchlean_cuda_take_error(status, text, 512)
    message = library.text(text)
    message = _PREFIX.sub("", _FUNCTION.sub(op, message))
    for old, new in (rename or {}).items():
        message = re.sub(rf"\b{old}\b", new, message)
    if not message:
        name = library.text(library.lib.torchlean_cuda_status_name(status))
        message = f"{op}: got status {status} ({name}), expected 0"
    return by_status.get(status, InternalError)(message, op=op, status=status)
