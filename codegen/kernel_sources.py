"""Where the kernels of an operation are defined: a row without one is refused here, not by the linker minutes later."""

import re
from pathlib import Path

from codegen.prototypes import kernel_entries, kernel_parameters
from codegen.text import ROOT, call_text
from tlspec import registry
from tlspec.entries import Entry

#: the elementwise operations that both devices compile from one line each
ELEMENTWISE = "native/src/formula/elementwise.def"
_SUFFIX = {"cpu": ".c", "cuda": ".cu"}


def sources_of(family: str, device: str, root: Path = ROOT) -> list[str]:
    """The files that hold a family's kernels, first the one of its name: in its folder, or with its name before theirs."""
    layer = root / "native/src" / device
    named = [layer / f"{family}{_SUFFIX[device]}", layer / family / f"{family}{_SUFFIX[device]}"]
    found = [
        *(p for p in named if p.exists()),
        *sorted(layer.glob(f"{family}_*.[ch]*")),
        *sorted((layer / family).glob("*.[ch]*")),
    ]
    return list(dict.fromkeys(p.relative_to(root).as_posix() for p in found)) or [
        f"native/src/{device}/{family}{_SUFFIX[device]}"
    ]


def missing_kernels(root: Path = ROOT) -> list[str]:
    """A sentence per kernel that has no definition, with the file and the prototype to write."""
    both = set(re.findall(r"^TL_\w+\((\w+),", (root / ELEMENTWISE).read_text(), re.M))
    defined = {device: both | _defined(root, device) for device in _SUFFIX}
    return [
        _sentence(e, device, root)
        for family in registry.families()
        for e in kernel_entries(family)
        for device in _SUFFIX
        if e.kernel not in defined[device]
    ]


def _defined(root: Path, device: str) -> set[str]:
    """The kernels that the sources of a device define outside macros."""
    files = sorted((root / "native/src" / device).rglob("*.[ch]*"))
    definition = re.compile(rf'^(?:extern "C" )?int32_t\s+tl_{device}_(\w+)\(', re.M)
    return {n for p in files for n in definition.findall(p.read_text())}


def _sentence(e: Entry, device: str, root: Path) -> str:
    name = f"tl_{device}_{e.kernel}"
    prototype = " ".join(call_text(f"int32_t {name}", kernel_parameters(e.signature), "").split())
    first = Path(sources_of(e.op.family, device, root)[0])
    place = first if first.stem == e.op.family else first.parent
    if e.signature.elementwise:
        return f"{ELEMENTWISE}: {e.kernel}: neither it nor {place} has the {device.upper()} kernel: add a line for {e.kernel}"
    return f"{place.as_posix()}: {e.kernel}: it has no {device.upper()} kernel: write {prototype}"
