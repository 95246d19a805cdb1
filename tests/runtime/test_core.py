"""The core's functions, called as C does: what their messages name, and what the environment asks for."""

import re

import pytest

from tests import ROOT
from tests.runtime.test_device import no_cuda
from tlrt._binding import library as _library
from tlrt.verify.run import cpu_variants
from tlspec.declarations import declarations

TEXT = " ".join(declarations((ROOT / "native/include/torchlean_cuda.h").read_text()).split())
#: function -> its parameters, of those whose first is a handle
HANDLED = dict(re.findall(r"\b(torchlean_cuda_\w+)\((torchlean_(?:context|buffer|graph) \*\w+[^)]*)\)", TEXT))


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
