"""Generated files are what the registry says, and the library exports exactly what the headers declare."""

import platform
import re
import shutil
import subprocess

import pytest

import tlrt
from codegen.files import GENERATED, generated_files
from tests import ROOT, declared_functions
from tlrt._capture.replay import PLANS
from tlspec import entries

pytestmark = pytest.mark.every_choice


def test_committed_files_are_current() -> None:
    files = generated_files()
    stale = [p for p, text in files.items() if not (ROOT / p).exists() or (ROOT / p).read_text() != text]
    assert stale == [], "run `make abi`"
    folder = {p.relative_to(ROOT).as_posix() for p in (ROOT / GENERATED).iterdir()}
    assert folder == {p for p in files if p.startswith(GENERATED)}


def test_entry_points_are_those_declared() -> None:
    """No file of the library sees both the header and an entry point: each row's files are its own."""
    prototype = re.compile(r"^TL_API [^;{]*?\)(?=;|\n{)", re.M | re.S)
    header = (ROOT / "native/include/torchlean_cuda_ops.h").read_text()
    defined = [f for p in sorted((ROOT / GENERATED).glob("*_entry_points.c")) for f in prototype.findall(p.read_text())]
    assert sorted(prototype.findall(header)) == sorted(defined) and len(defined) == len(entries.all_entries())


def test_plans_that_a_message_counts_are_those_of_the_library() -> None:
    text = (ROOT / "native/src/cuda/spectral/plan_cache.cuh").read_text()
    assert re.findall(r"constexpr int CACHED_PLANS = (\d+);", text) == [str(PLANS)]


def built(build: str) -> str:
    """The path of a built library; a skip where it is not built."""
    library = ROOT / f"native/build/{build}/libtorchlean_cuda.so"
    return str(library) if library.exists() else pytest.skip(f"the {build} library is not built")


def installed(tool: str) -> str:
    return shutil.which(tool) or pytest.skip(f"{tool} is not installed")


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_library_exports_the_declared_set(build: str) -> None:
    nm = [installed("nm"), "-D", "--defined-only", built(build)]
    text = subprocess.run(nm, capture_output=True, text=True, check=True).stdout
    exported = {line.split()[-1] for line in text.splitlines() if line.split()[-2] in "TBDRVW"}
    assert exported == set(declared_functions())


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_multiplications_fuse_only_where_written(build: str) -> None:
    """gcc 12's vectoriser turns neighbouring a*b + c and a*b - c into one fused instruction with alternating signs, in spite of
    -ffp-contract=off; no fmaf of ours is one, so the library must hold none."""
    objdump = [installed("objdump"), "-d", "--no-show-raw-insn", built(build)]
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("not an x86-64 library")
    fused: dict[str, int] = {}
    place = ""
    with subprocess.Popen(objdump, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.endswith(">:\n"):
                place = line.split("<")[1][:-3]
            elif "vfm" in line:
                alternating = re.search(r"\bvfm(?:addsub|subadd)\w*", line)
                fused[place if alternating else ""] = fused.get(place if alternating else "", 0) + 1
    assert process.returncode == 0
    assert fused.pop("", 0) > 0, "no fused multiply-add at all: the disassembly was not read"
    assert fused == {}


def test_promised_names_are_declared() -> None:
    lines = (ROOT / "tests/repo/promised_symbols.txt").read_text().splitlines()
    promised = [line for line in lines if line and line[0] != "#"]
    assert set(promised) <= set(declared_functions())


def test_versions_agree() -> None:
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    major, minor, patch = map(int, version.split("."))
    assert tlrt.__version__ == version and f"version={major}.{minor}.{patch}" in tlrt.build_info()
    assert version in (ROOT / "CHANGELOG.md").read_text()


def test_c_shape_functions_have_their_twins() -> None:
    from tlspec import shapes

    text = (ROOT / "native/src/core/shapes.h").read_text()
    found = re.findall(r"\btl_(\w+)\((?:const (?:tl_dims|uint32_t|void)|\.\.\.\))", text)
    assert set(found) == set(shapes.FUNCTIONS)


def test_results_quote_the_evidence() -> None:
    from bench import results

    for name, text in results.documents().items():
        assert (ROOT / name).read_text() == text, f"{name} is stale: run `python -m bench.results`"
