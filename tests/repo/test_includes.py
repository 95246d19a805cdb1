"""C and CUDA files include each other in one direction."""

import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.repo.tree import circles, files, name

pytestmark = pytest.mark.every_choice

NATIVE = ROOT / "native"
SUFFIXES = (".c", ".h", ".cu", ".cuh", ".def", ".inc")
#: layer -> the layers whose files its files may include
MAY_INCLUDE = {
    "src/formula": {"src/formula"},
    "src/cpu": {"src/cpu", "src/formula", "src/core", "generated", "include"},
    "src/cuda": {"src/cuda", "src/formula", "src/core", "generated", "include"},
    "src/core": {"src/core", "generated", "include"},
    "generated": {"src/core", "generated", "include"},
    "include": {"include"},
}


def included(path: Path, native: Path = NATIVE) -> dict[str, Path | None]:
    """Quoted name -> the file that an include is of, found as the compiler finds it."""
    found: dict[str, Path | None] = {}
    for quoted in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.M):
        places = [folder / quoted for folder in (path.parent, native / "include", native / "src", native)]
        found[quoted] = next((p.resolve() for p in places if p.exists()), None)
    return found


def sources(native: Path = NATIVE) -> list[Path]:
    return [p for folder in ("src", "include", "generated") for p in files(*SUFFIXES, root=native / folder)]


def graph(native: Path = NATIVE) -> dict[str, set[str]]:
    return {
        name(p, native): {name(t, native) for t in included(p, native).values() if t is not None}
        for p in sources(native)
    }


def layer(file: str) -> str:
    return next(each for each in MAY_INCLUDE if file.startswith(each + "/"))


def modules(by_file: dict[str, set[str]]) -> dict[str, set[str]]:
    """In core, a header and the file that defines what it declares are one module; elsewhere every file is one."""

    def module(file: str) -> str:
        return file.rpartition(".")[0] if file.startswith("src/core/") else file

    found: dict[str, set[str]] = {}
    for file, targets in by_file.items():
        found.setdefault(module(file), set()).update({module(t) for t in targets} - {module(file)})
    return found


def test_files_include_each_other_in_no_circle() -> None:
    found = [" -> ".join(circle) for circle in circles(modules(graph(NATIVE.resolve())))]
    assert found == [], "files include each other in circles; move what both need to a third file"


def test_layers_include_downwards() -> None:
    """formula <- cpu, cuda <- core; cpu and cuda never include each other."""
    wrong = [
        f"{file} includes {target}"
        for file, targets in graph(NATIVE.resolve()).items()
        for target in sorted(targets)
        if layer(target) not in MAY_INCLUDE[layer(file)]
    ]
    assert not wrong, "includes against the layers:\n" + "\n".join(wrong)


#: families of rows that are sums first
ROWS = {"softmax", "loss", "norm"}


def test_cuda_families_share_through_device_and_runtime() -> None:
    """A family's file includes its own folder's, the shared ones and nothing of another family; rows share the kernels of
    reductions. What is shared includes no family. Inside the layer a header has one name: its path from native/src."""
    cuda = NATIVE / "src/cuda"
    for path in sorted(cuda.rglob("*.cu*")):
        family = path.relative_to(cuda).parts[0].partition(".")[0]
        for quoted in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M):
            layer, _, rest = quoted.partition("/")
            assert layer in {"cuda", "formula", "core", "generated"}, f"{name(path)} includes {quoted}"
            if layer == "cuda":
                allowed = {"device", "runtime", family, *(["reduce"] if family in ROWS else [])}
                assert rest.partition("/")[0] in allowed, f"{name(path)} includes {quoted}"
