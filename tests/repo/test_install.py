"""`make install`: programs in C find the library by pkg-config and by CMake, and the installed names and versions agree."""

import importlib.util
import os
import re
import shlex
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


@pytest.mark.parametrize("name", ["plain", "two words", "a & b|c", "sub/dollar$x"])
def test_a_relative_prefix_may_have_any_name_be_moved_and_be_emptied(name: str, tmp_path: Path) -> None:
    """Make runs in the repository's root, which here is another folder with the same contents."""
    (tmp_path / "Makefile").symlink_to(ROOT / "Makefile")
    (tmp_path / "native").symlink_to(ROOT / "native")
    given = name.replace("$", "$$")  # as make reads it
    run("make", "-C", tmp_path, "install", f"PREFIX={given}", "SYSTEM_PYTHON=1", "PYTHON=false")
    made = {p for p in (tmp_path / name).rglob("*") if not p.is_dir()}
    assert {p.suffix for p in made} >= {".h", ".so", ".pc", ".cmake"}
    moved = tmp_path / "moved" / name
    moved.parent.mkdir(parents=True)
    shutil.move(tmp_path / name, moved)
    written = [p.read_text() for kind in ("*.pc", "*.cmake") for p in moved.rglob(kind)]
    assert not any(str(tmp_path) in text or "@" in text for text in written)
    flags = run(tool("pkg-config", "pkgconf"), "--cflags", "--libs", "torchlean_cuda",
                PKG_CONFIG_PATH=f"{moved}/lib/pkgconfig")  # fmt: skip
    run(os.environ.get("CC", "cc"), EXAMPLES / "train.c", *shlex.split(flags), "-o", tmp_path / "train")
    assert run(tmp_path / "train", "cpu", LD_LIBRARY_PATH=f"{moved}/lib").startswith("cpu: loss ")
    (moved / "lib" / "another.so").touch()
    run("make", "-C", ROOT / "native", "uninstall", f"PREFIX=moved/{given}", f"FROM={tmp_path}")
    assert [p.name for p in moved.rglob("*") if not p.is_dir()] == ["another.so"]


def test_folders_outside_the_prefix_are_named_and_a_stage_is_not(tmp_path: Path) -> None:
    paths = {"PREFIX": "/opt/it", "LIBDIR": "/opt/it/lib/x86_64-linux-gnu", "INCLUDEDIR": '/usr/in "c" lude'}
    run("make", "-C", ROOT / "native", "install", f"DESTDIR={tmp_path}", *(f"{k}={v}" for k, v in paths.items()))
    config = tmp_path / "opt/it/lib/x86_64-linux-gnu"
    flags = run(
        tool("pkg-config", "pkgconf"), "--cflags", "--libs", "torchlean_cuda", PKG_CONFIG_PATH=f"{config}/pkgconfig"
    )
    assert (
        shlex.split(flags)[0] == f"-I{paths['INCLUDEDIR']}"
        and "prefix=${pcfiledir}/../../..\n" in (config / "pkgconfig/torchlean_cuda.pc").read_text()
    )
    text = (config / "cmake/torchlean_cuda/torchlean_cudaConfig.cmake").read_text()
    assert '"${CMAKE_CURRENT_LIST_DIR}/../../../.."' in text and r'"/usr/in \"c\" lude"' in text


@pytest.mark.parametrize(
    ("given", "said"),
    [("KIND=cuda", "No cuBLAS and cuFFT"), ("KIND=gpu", "install: KIND: got 'gpu', expected cpu or cuda")],
)
def test_what_cannot_be_installed_says_why(given: str, said: str, tmp_path: Path) -> None:
    compiler = tmp_path / "bin" / "nvcc"
    compiler.parent.mkdir()
    compiler.touch()
    command = [
        "make",
        "-C",
        ROOT / "native",
        "install",
        given,
        f"PREFIX={tmp_path}",
        "PYTHON=false",
        f"CUDA_HOME={tmp_path}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode and said in done.stderr and not (tmp_path / "lib").exists()


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
