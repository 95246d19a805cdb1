"""Finding, loading and checking the C library."""

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from numpy.testing import assert_raises_regex

import tlrt
from tests import HEADERS, ROOT, declared_functions
from tlrt import errors
from tlrt._binding import abi
from tlrt._binding import library as _library
from tlspec.declarations import abi_hash

PROBE = """
import tlrt
from tlrt import errors
try:
    tlrt.device("cpu")
except errors.TorchleanError as error:
    assert isinstance(error, ImportError)
    print(type(error).__name__)
    print(error)
try:
    from tlrt import kernels
except ImportError as error:
    print("kernels:", type(error).__name__)
"""


def test_one_hash_in_generator_library_and_binding():
    assert abi_hash(*(header.read_text() for header in HEADERS)) == abi.HASH == _library.load().hash


def test_one_version_everywhere():
    library = _library.load()
    assert library.version == tlrt.__version__ == library.build_info["version"]


def test_every_declared_function_is_exported():
    library = _library.load()
    names = declared_functions()
    assert len(names) > 25
    for name in names:
        assert getattr(library.lib, name)


@pytest.mark.parametrize(("name", "said"), [("nowhere", "no such file"), (300 * "x", "File name too long")])
def test_missing(python, tmp_path, name, said):
    done = python(PROBE, TORCHLEAN_CUDA_LIBRARY=str(tmp_path / name))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("LibraryNotFoundError\n")
    assert f"{tmp_path}/{name}: {said}; unset TORCHLEAN_CUDA_LIBRARY, or set it" in done.stdout
    assert "make -C" not in done.stdout and "kernels: LibraryNotFoundError" in done.stdout


def copy_tree(target, *folders):
    for folder in folders:
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__", "_lib"))


def compile_library(source, target):
    subprocess.run(["cc", "-shared", "-fPIC", "-o", target, "-xc", "-"], input=source, text=True, check=True)


def test_no_library_at_all(python, tmp_path):
    copy_tree(tmp_path, "tlrt", "tlspec", "native/include")
    done = python(PROBE, PYTHONPATH=str(tmp_path), TORCHLEAN_CUDA_LIBRARY="")
    assert done.stdout.startswith("LibraryNotFoundError\n"), done.stderr
    for place in ("tlrt/_lib", "native/build/cuda", "native/build/cpu"):
        assert f"{tmp_path}/{place}/libtorchlean_cuda.so: no such file" in done.stdout
    assert "pip install" in done.stdout


def test_not_a_library(python, tmp_path):
    file = tmp_path / "text.so"
    file.write_text("hello")
    done = python(PROBE, TORCHLEAN_CUDA_LIBRARY=str(file))
    assert done.stdout.startswith("LibraryNotFoundError\n"), done.stderr
    assert str(file) in done.stdout


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('const char *torchlean_cuda_abi_hash(void) { return "0123abcd"; }', "got ABI hash 0123abcd"),
        ("int nothing;", "got ABI hash none"),
    ],
)
def test_stale(python, tmp_path, source, said):
    file = tmp_path / "old.so"
    compile_library(source, file)
    done = python(PROBE, TORCHLEAN_CUDA_LIBRARY=str(file))
    assert done.stdout.startswith("StaleLibraryError\n"), done.stderr
    assert said in done.stdout and _library.load().hash in done.stdout
    assert "unset TORCHLEAN_CUDA_LIBRARY" in done.stdout and "kernels: StaleLibraryError" in done.stdout


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_stale_build_gives_way_to_a_good_one(python, tmp_path):
    copy_tree(tmp_path, "tlrt", "tlspec", "native/include")
    good, bad = tmp_path / "native/build/cpu", tmp_path / "native/build/cuda"
    good.mkdir(parents=True)
    bad.mkdir()
    shutil.copy(_library.load().path, good / _library.NAME)
    compile_library("int nothing;", bad / _library.NAME)
    code = "import tlrt._binding.library as l; print(l.load().path)"
    done = python(code, PYTHONPATH=str(tmp_path), TORCHLEAN_CUDA_LIBRARY="")
    assert done.stdout.strip() == str(good / _library.NAME), done.stderr


@pytest.mark.skipif(
    find_spec("nvidia") is None or find_spec("cuda") is None, reason="no package with cuBLAS, or no cuda-pathfinder"
)
def test_cuda_libraries_are_found_in_packages(python, tmp_path):
    """A library that needs cuBLAS and does not say where it lies."""
    (folder,) = (Path(p) / "cu13/lib" for p in find_spec("nvidia").submodule_search_locations)
    library = tmp_path / "needs.so"
    (tmp_path / "needs.c").write_text("int size_of_int(void) { return sizeof(int); }")
    options = ["-shared", "-fPIC", "-Wl,--no-as-needed", f"-L{folder}", "-l:libcublas.so.13", "-l:libcufft.so.12"]
    subprocess.run(["gcc", *options, "-o", str(library), str(tmp_path / "needs.c")], check=True)
    code = f"""
import ctypes
from pathlib import Path
import cffi
from tlrt._binding import library
ffi = cffi.FFI()
ffi.cdef("int size_of_int(void);")
try:
    ctypes.CDLL({str(library)!r})
except OSError as error:
    assert "libcu" in str(error)
else:
    raise SystemExit("the loader finds it by itself")
print(library._open(ffi, Path({str(library)!r})).size_of_int())"""
    done = python(code)
    if "by itself" in done.stderr:
        pytest.skip("the loader of this machine finds cuBLAS and cuFFT")
    assert (done.returncode, done.stdout.strip()) == (0, "4"), done.stderr


def test_other_missing_libraries_are_named(tmp_path):
    assert not _library._preload("libmissing.so.1: cannot open shared object file")
    assert_raises_regex(OSError, "none.so", _library._open, abi.ffi, tmp_path / "none.so")


def test_headers_that_are_nowhere_and_interrupted_calls(monkeypatch, tmp_path):
    monkeypatch.setattr(_library, "_PACKAGE", tmp_path)
    monkeypatch.setattr(_library, "_TREE", tmp_path)
    with pytest.raises(errors.LibraryNotFoundError, match="headers: got none of .* so the installation is incomplete"):
        _library.include_folder()
    statuses = iter([errors.InterruptedCallError.status] * 2 + [7, 8])
    assert _library.complete_call(statuses.__next__) == 7, "made again until it is not interrupted"


def test_importing_loads_nothing(python):
    done = python(
        "import tlrt, tlrt._binding.library as l; tlrt.errors, tlrt.Buffer; print(l._loaded)",
        TORCHLEAN_CUDA_LIBRARY="/nowhere",
    )
    assert done.stdout.strip() == "None", done.stderr


def test_numbers_in_messages_have_a_point_in_any_locale(python, tmp_path):
    folder, source = tmp_path / "de", tmp_path / "source"
    source.write_text('LC_NUMERIC\ndecimal_point ","\nthousands_sep ""\nEND LC_NUMERIC\n')
    options = ["-c", "-i", source, "-f", "UTF-8"]  # a whole locale would take seconds
    subprocess.run([shutil.which("localedef") or "false", *options, folder], capture_output=True, check=False)
    if not folder.exists():
        pytest.skip("no locale with decimal commas can be made here")
    code = """
import locale, tlrt
from tlrt import kernels
locale.setlocale(locale.LC_ALL, "de")
assert locale.str(0.5) == "0,5"
kernels.sgd_step([tlrt.device("cpu").zeros(1)], [tlrt.device("cpu").zeros(1)], lr=-0.5)
"""
    assert "got lr = -0.5;" in python(code, LOCPATH=str(tmp_path)).stderr


def test_every_status_has_a_class():
    core = HEADERS[0].read_text()
    statuses = core[core.index("TORCHLEAN_OK = 0") :].partition("}")[0]
    codes = {name: int(code) for name, code in re.findall(r"TORCHLEAN_([A-Z_]+) = (\d+)", statuses) if name != "OK"}
    assert set(codes.values()) == set(errors.by_status)
    library = _library.load()
    for name, code in codes.items():
        assert library.text(library.lib.torchlean_cuda_status_name(code)) == name
    assert len({c for code, c in errors.by_status.items() if code != 10}) == len(codes) - 1
    assert all(c.status == code for code, c in errors.by_status.items() if code != 10)


def test_errors_are_the_packages_first():
    """So they take the operation and the status with the message, whatever builtin they are as well."""
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type) and not issubclass(kind, ImportError):
            made = kind("said", op="relu", status=77)
            assert (str(made), made.op, made.status) == ("said", "relu", 77)
            assert isinstance(errors.refusal(kind, "relu", "x", 1, 2), kind)


def test_a_failure_without_a_text():
    assert str(_library.failure(140, "relu")) == "relu: got status 140 (INTERNAL), expected 0"


def test_every_name_of_the_package_is_there_at_first_use(python):
    """Each name in a process that asked for no other."""
    code = """
import os, sys, tlrt
for name in ("buffer", "capture", "checkpoint", "context", "kernels", "nn", "optim"):
    child = os.fork()
    if not child:
        x = getattr(tlrt, name)
        __import__(f"tlrt.{name}")
        os._exit(x is not sys.modules[f"tlrt.{name}"])
    assert os.waitpid(child, 0)[1] == 0, name
assert None not in [getattr(tlrt, n) for n in tlrt.__all__]
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
