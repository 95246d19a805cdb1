"""The C++ half of this package: kernels for PyTorch's dispatcher, compiled for the PyTorch that is installed.

A file fits one version of PyTorch and one of the C library, so both are part of its name. It is looked for beside the library in
a wheel and in the folder of built files. Where it is in neither it is compiled there, once, which takes a C++ compiler and a few
minutes of processor time."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tlrt._binding import library
from tlrt.errors import LibraryNotFoundError

#: PyTorch's headers that most of the files include
_COMMON = ("ATen/ATen.h", "ATen/Operators.h", "torch/library.h")
_PACKAGE = Path(__file__).resolve().parents[1]
_TREE = _PACKAGE.parent


def _sources() -> Path:
    """The folder of the C++ files: the wheel's, else the source tree's."""
    packed = _PACKAGE / "_lib" / "torch"
    return packed if packed.is_dir() else _TREE / "native" / "torch"


def _built() -> Path:
    """Where compiled files go: the tree's build folder, or the user's cache."""
    if (_TREE / "native" / "Makefile").is_file():
        return _TREE / "native" / "build" / "torch"
    cache_folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_folder) / "tlrt"


def file_name() -> str:
    """The name of the compiled file that fits.

    Returns
    -------
    str
        Of PyTorch's version, the C library's declarations and these sources.
    """
    digest = hashlib.sha256(library.load().hash.encode())
    for path in sorted(_sources().iterdir()):
        digest.update(path.read_bytes())
    return f"libtlrt_torch-{torch.__version__}-{digest.hexdigest()[:12]}.so"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LibraryNotFoundError(
            f"tlrt.torch: compiling for PyTorch {torch.__version__}: `{' '.join(command)}` failed:\n{done.stderr[-4000:]}",
            "set CXX to a C++20 compiler, such as g++ 11 or newer",
        )


def _options() -> list[str]:
    include = Path(torch.__file__).parent / "include"
    return [
        "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        f"-I{library.include_folder()}", f"-isystem{include}", f"-isystem{include / 'torch/csrc/api/include'}",
    ]  # fmt: skip


def _text(path: Path) -> bytes:
    """A source file behind the headers of its folder that it includes."""
    text = path.read_bytes()
    included = [path.parent / name.decode() for name in re.findall(rb'^#include "([^"]+)"', text, re.M)]
    return b"".join(_text(f) for f in included if f.is_file()) + text


def _object(source: Path, versions: bytes) -> Path:
    """Where the object of a source file goes, and lies after an earlier build."""
    digest = hashlib.sha256(versions + _text(source)).hexdigest()[:16]
    return _built() / f"{source.stem}-{digest}.o"


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


def _compile_all(sources: dict[Path, Path], work: Path) -> None:
    """Compiles sources, as many at once as there are processors. PyTorch's headers take half of the time, so those of several
    files are compiled once."""
    common, shared = work / "common.h", list[str]()
    if len(sources) > 3:
        common.write_text("".join(f"#include <{name}>\n" for name in _COMMON))
        _run([_compiler(), *_options(), "-x", "c++-header", str(common), "-o", f"{common}.gch"])
        shared = ["-include", str(common)]

    def compile_one(source: Path, target: Path) -> None:
        made = work / target.name
        _run([_compiler(), *_options(), *shared, "-c", str(source), "-o", str(made)])
        made.rename(target)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(compile_one, sources.keys(), sources.values()))


def build(target: Path) -> None:
    """Compiles the file. Of several processes one does, and the others wait for it.

    Parameters
    ----------
    target : path
        Where the file goes.

    Raises
    ------
    LibraryNotFoundError
        Where there is no compiler, or it fails.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return
        print(
            f"tlrt.torch: compiling for PyTorch {torch.__version__}, once, a few minutes", file=sys.stderr, flush=True
        )
        versions = f"{torch.__version__} {library.load().hash}".encode()
        objects = {source: _object(source, versions) for source in sorted(_sources().glob("*.cpp"))}
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            _compile_all({source: made for source, made in objects.items() if not made.exists()}, Path(work))
            made = Path(work) / target.name
            folder = Path(torch.__file__).parent / "lib"
            # libstdc++ first: libc10 has copies of some of its functions (native/torch/message.h)
            _run([
                _compiler(), "-shared", "-o", str(made), *map(str, objects.values()), f"-L{folder}",
                "-Wl,--no-as-needed", "-lstdc++", "-ltorch_cpu", "-lc10", str(library.load().path),
            ])  # fmt: skip
            made.rename(target)


@cache
def load() -> Any:
    """The loaded file; PyTorch's dispatcher has its kernels from here on.

    Returns
    -------
    ctypes.CDLL
        Loaded once a process, and compiled where no file fits.

    Raises
    ------
    LibraryNotFoundError
        Where it cannot be compiled or loaded.
    """
    name = file_name()
    packed = _PACKAGE / "_lib" / name
    path = packed if packed.exists() else _built() / name
    if not path.exists():
        build(path)
    torch.ops.load_library(str(path))
    found = ctypes.CDLL(str(path))
    found.tlrt_torch_enter.restype = ctypes.c_void_p
    found.tlrt_torch_text.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64]
    found.tlrt_torch_text.restype = ctypes.c_uint64
    found.tlrt_torch_forget.argtypes = [ctypes.c_void_p]
    found.tlrt_torch_note.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int64]
    for function in (found.tlrt_torch_determined, found.tlrt_torch_writing):
        function.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_uint64]
    return found
