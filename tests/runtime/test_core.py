"""The core's functions, called as C does: what their messages name, and what the environment asks for."""

import re

import numpy as np
import pytest

import tlrt
from tests import DEVICES, ROOT
from tests.runtime.test_device import no_cuda
from tlrt._binding import library as _library
from tlrt.verify.run import cpu_variants
from tlspec.declarations import declarations

TEXT = " ".join(declarations((ROOT / "native/include/torchlean_cuda.h").read_text()).split())
#: function -> its parameters, of those whose first is a handle
HANDLED = dict(re.findall(r"\b(torchlean_cuda_\w+)\((torchlean_(?:context|buffer|graph) \*\w+[^)]*)\)", TEXT))

#: function -> its parameters, of those that make a buffer in a place that may hold one
MAKING = {
    name: parameters
    for header in ("torchlean_cuda.h", "torchlean_cuda_ops.h")
    for name, parameters in re.findall(
        r"\b(torchlean_cuda_\w+)\((torchlean_context \*context, (?:const \w+ \*host, )?uint32_t n\b[^*;]*"
        r"torchlean_buffer \*\*out|torchlean_buffer \*source, torchlean_buffer \*\*out)\)",
        " ".join(declarations((ROOT / "native/include" / header).read_text()).split()),
    )
    if name.rpartition("_")[2] not in ("empty", "share")  # of no content, and always new
}


def last_error() -> str:
    library = _library.load()
    return library.text(library.lib.torchlean_cuda_last_error())


@pytest.mark.parametrize("name", HANDLED)
def test_a_handle_that_is_none_has_its_name_in_the_message(name: str) -> None:
    library = _library.load()
    kind, argument = re.match(r"torchlean_(\w+) \*(\w+)", HANDLED[name]).groups()
    function = getattr(library.lib, name)
    places = [library.ffi.new("char[256]") for _ in library.ffi.typeof(function).args]
    rest = [
        library.ffi.cast(t, p) if t.kind in ("pointer", "function") else 0
        for t, p in zip(library.ffi.typeof(function).args[1:], places, strict=False)
    ]
    for value, status, said in ((0, 10, "got NULL, expected a"), (8, 90, "got a value that was never issued")):
        handle = library.ffi.cast(f"torchlean_{kind} *", value)
        assert function(handle, *rest) == status
        assert last_error().startswith(f"{name}: {argument}: {said}") and last_error().endswith(f" {kind}")


def test_functions_that_make_are_found() -> None:
    kinds = {name.removeprefix("torchlean_cuda_") for name in MAKING}
    assert kinds >= {"buffer_zeros", "buffer_upload", "index_upload", "buffer_copy", "buffer_rand_uniform"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [0, 7, 2**19, 2**20, 2**21 + 3])
@pytest.mark.parametrize("name", MAKING)
def test_what_is_made_in_a_buffer_is_what_is_made_anew(name: str, n: int, device: str) -> None:
    """Into memory that is new from the system and into some that was used before, both written to. From 4 MiB on the pool maps
    pages of its own."""
    library = _library.load()
    lib, ffi, is_index = library.lib, library.ffi, "index" in name
    host = np.arange(1, n + 1, dtype=np.uint32 if is_index else np.float32)
    kind = "uint32_t[]" if is_index else "float[]"
    with tlrt.Device.new(device) as d:
        source, place = d.buffer(host), ffi.new("torchlean_buffer **")
        known = {"context": d._handle, "n": n, "key": 5, "keep": 0.5, "mean": 1.0, "std": 2.0, "source": source._handle,
                 "host": ffi.from_buffer(kind, host)}  # fmt: skip
        arguments = [known[p.split()[-1].lstrip("*")] for p in MAKING[name].split(", ")[:-1]]
        assert getattr(lib, name)(*arguments, place) == 0, last_error()
        anew = np.empty_like(host)
        download = lib.torchlean_cuda_index_download if is_index else lib.torchlean_cuda_buffer_download
        assert download(place[0], ffi.from_buffer(kind, anew, True), n) == 0
        assert lib.torchlean_cuda_buffer_release(place[0]) == 0
        d.collect()
        for _ in range(2):
            with d.indices(host + 1) if is_index else d.full(n, 3.0) as old:
                assert getattr(lib, name)(*arguments, ffi.new("torchlean_buffer **", old._handle)) == 0, last_error()
                assert old.numpy().tobytes() == anew.tobytes()


@no_cuda
def test_a_cuda_context_of_a_library_without_cuda() -> None:
    library = _library.load()
    if library.build_info["backend"] != "cpu":
        pytest.skip("the library has a CUDA path")
    assert library.lib.torchlean_cuda_context_create(0, library.ffi.new("torchlean_context **")) == 50
    assert last_error() == (
        "torchlean_cuda_context_create: device: got a CUDA ordinal, expected -1 (CPU), as this library was built "
        "without CUDA; `make cuda` builds one with it"
    )


def test_the_variant_that_the_environment_names(python) -> None:
    """One that this processor has not leaves the best in place, and is refused where a device is made."""
    for asked in ("", *cpu_variants(), "mmx"):
        done = python("import tlrt; print(tlrt.describe('cpu'))", TORCHLEAN_CPU_VARIANT=asked)
        want = asked if asked in cpu_variants() else cpu_variants()[-1]
        assert f"SIMD variant {want}," in done.stdout, done.stderr
    assert "TORCHLEAN_CPU_VARIANT" in python("import tlrt; tlrt.device('cpu')", TORCHLEAN_CPU_VARIANT="mmx").stderr
