"""`make install`: programs in C find the library by pkg-config and by CMake, and the installed names and versions agree."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tlrt
from tests import has_cuda

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "c"


def tool(*names: str) -> str:
    """The first of some programs that is there, beside the interpreter or on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for name in names:
        if found := shutil.which(name, path=path):
            return found
    pytest.skip(f"no {names[0]}")


def run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prefix")
    run("make", "-C", ROOT / "native", "install", f"PREFIX={folder}", "PYTHON=false")  # which is not needed
    return folder


def test_names_and_versions_agree(prefix: Path) -> None:
    version, series = tlrt.__version__, ".".join(tlrt.__version__.split(".")[:2])
    library = prefix / "lib" / "libtorchlean_cuda.so"
    assert library.resolve() == prefix / "lib" / f"libtorchlean_cuda.so.{version}"
    assert f"libtorchlean_cuda.so.{series}".encode() in library.read_bytes()
    assert (prefix / "lib" / f"libtorchlean_cuda.so.{series}").resolve() == library.resolve()
    headers = {f.name for f in (prefix / "include").iterdir()}
    assert headers == {f.name for f in Path(tlrt.get_include()).glob("*.h")}
    macros = "\n".join(f"TORCHLEAN_CUDA_{name}" for name in ("VERSION", "ABI_HASH"))
    source = f"#include <torchlean_cuda.h>\n{macros}\n"
    made = subprocess.run([os.environ.get("CC", "cc"), "-E", "-P", f"-I{prefix}/include", "-"], input=source, text=True,
                          capture_output=True, check=True).stdout.split()[-2:]  # fmt: skip
    major, minor, patch = map(int, version.split("."))
    assert made == [str(major * 10000 + minor * 100 + patch), f'"{load().hash}"']
    assert Path(tlrt.get_library()) == load().path


def load():
    from tlrt._binding.library import load

    return load()


def test_programs_find_the_library_by_pkg_config(prefix: Path, tmp_path: Path) -> None:
    flags = run(tool("pkg-config", "pkgconf"), "--cflags", "--libs", "torchlean_cuda >= 0.1",
                PKG_CONFIG_PATH=f"{prefix}/lib/pkgconfig").split()  # fmt: skip
    run(
        os.environ.get("CC", "cc"),
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        EXAMPLES / "train.c",
        *flags,
        "-o",
        tmp_path / "train",
    )
    said = run(tmp_path / "train", "cpu", LD_LIBRARY_PATH=f"{prefix}/lib")
    assert said.startswith("cpu: loss ")
    if "cuda" in tlrt.build_info() and has_cuda():
        cuda = run(tmp_path / "train", "cuda", LD_LIBRARY_PATH=str(Path(tlrt.get_library()).parent))
        assert cuda.partition(":")[2] == said.partition(":")[2]


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    (source,) = re.findall(r"^```c\n(.*?)^```", (ROOT / "docs/c.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "program.c").write_text(source)
    library, packages = Path(tlrt.get_library()), importlib.util.find_spec("nvidia")
    folders = [
        p
        for folder in (packages.submodule_search_locations if packages else ()) or ()
        for p in Path(folder).glob("*/lib")
    ]
    run(os.environ.get("CC", "cc"), "-Wall", "-Wextra", "-Werror", tmp_path / "program.c", f"-I{tlrt.get_include()}", library,
        *(f"-Wl,-rpath,{p}" for p in (library.parent, *folders)), "-o", tmp_path / "program")  # fmt: skip
    path = os.pathsep.join(map(str, folders))
    assert run(tmp_path / "program", **({"LD_LIBRARY_PATH": path} if folders else {})) == "2 4 6\n"


def test_programs_find_the_library_by_cmake(prefix: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    cmake, build = tool("cmake"), tmp_path / "build"
    run(cmake, "-S", EXAMPLES, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")
    run(cmake, "--build", build)
    assert run(build / "train", "cpu").startswith("cpu: loss ")
    run(sys.executable, EXAMPLES / "export_digits.py", tmp_path / "digits.bin")
    assert run(build / "digits", tmp_path / "digits.bin").endswith("digits read; the bits are Python's\n")
    for wanted, found in (("0.1", True), ("0.2", False), ("1.0", False)):
        project = tmp_path / wanted
        project.mkdir()
        (project / "CMakeLists.txt").write_text(
            f"cmake_minimum_required(VERSION 3.20)\nproject(p NONE)\nfind_package(torchlean_cuda {wanted} REQUIRED)\n"
        )
        done = subprocess.run([cmake, "-S", project, "-B", project / "b", f"-DCMAKE_PREFIX_PATH={prefix}"],
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert (done.returncode == 0) is found, done.stderr
