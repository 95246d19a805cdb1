"""Generated files are what the registry says, and the library exports exactly what the headers declare."""

import platform
import re
import shutil
import subprocess

import pytest

import tlrt
from codegen.files import GENERATED, generated_files
from tests import ROOT
from tlrt._capture.replay import PLANS
from tlspec import bounds, entries, registry
from tlspec.declarations import declarations

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
    text = (ROOT / "native/src/cuda/spectral/plan.cu").read_text()
    assert re.findall(r"constexpr int CACHED_PLANS = (\d+);", text) == [str(PLANS)]


def declared() -> set[str]:
    text = "".join((ROOT / "native/include" / h).read_text() for h in ("torchlean_cuda.h", "torchlean_cuda_ops.h"))
    return set(re.findall(r"\b(torchlean_cuda_\w+)\(", declarations(text)))


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_library_exports_the_declared_set(build: str) -> None:
    library = ROOT / f"native/build/{build}/libtorchlean_cuda.so"
    if not library.exists():
        pytest.skip(f"the {build} library is not built")
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")
    text = subprocess.run([nm, "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True).stdout
    exported = {line.split()[-1] for line in text.splitlines() if line.split()[-2] in "TBDRVW"}
    assert exported == declared()


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_multiplications_fuse_only_where_written(build: str) -> None:
    """gcc 12's vectoriser turns neighbouring a*b + c and a*b - c into one fused instruction with alternating signs, in spite of
    -ffp-contract=off; no fmaf of ours is one, so the library must hold none."""
    library = ROOT / f"native/build/{build}/libtorchlean_cuda.so"
    if not library.exists():
        pytest.skip(f"the {build} library is not built")
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("objdump is not installed")
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("not an x86-64 library")
    fused: dict[str, int] = {}
    place = ""
    with subprocess.Popen(
        [objdump, "-d", "--no-show-raw-insn", str(library)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
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
    promised = [
        line for line in (ROOT / "tests/repo/promised_symbols.txt").read_text().split("\n") if line and line[0] != "#"
    ]
    assert [p for p in promised if p not in declared()] == []


def test_every_entry_has_a_python_function() -> None:
    from tlrt import kernels

    assert [e.name for e in entries.all_entries() if not callable(getattr(kernels, e.name, None))] == []


def test_versions_agree() -> None:
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    major, minor, patch = map(int, version.split("."))
    assert tlrt.__version__ == version and f"version={major}.{minor}.{patch}" in tlrt.build_info()
    assert version in (ROOT / "CHANGELOG.md").read_text()


def test_summation_tree_constants_agree() -> None:
    text = (ROOT / "native/src/formula/sum_tree.h").read_text()
    c = {k: int(v) for k, v in re.findall(r"TL_(\w+) = (\d+)", text)}
    assert c == {
        "SUM_LANES": bounds.LANES, "SUM_LEAF": bounds.LEAF, "COLUMN_CHUNK": bounds.COLUMN_CHUNK,
        "COLUMN_CHAINS": bounds.COLUMN_CHAINS,
    }  # fmt: skip


def test_c_shape_functions_have_their_twins() -> None:
    from tlspec import shapes

    text = (ROOT / "native/src/core/shapes.h").read_text()
    assert set(re.findall(r"\btl_(\w+)\(const (?:tl_dims|uint32_t|void)", text)) == set(shapes.FUNCTIONS)


def test_rows_are_unique_by_symbol() -> None:
    symbols = [e.symbol for e in entries.all_entries()]
    assert len(symbols) == len(set(symbols)) and all(registry.get(r.name) is r for r in registry.ops())


def test_results_quote_the_evidence() -> None:
    from bench import results

    for name, text in results.documents().items():
        assert (ROOT / name).read_text() == text, f"{name} is stale: run `python -m bench.results`"
