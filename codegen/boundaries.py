"""The table of boundaries: the named integer constants of each family's kernels, at which what they do may change.

Constants are the enumerators with a value and the macros that are arithmetic of the CPU sources, with what these include, and
the constants of namespaces of the CUDA sources. A constant has every value that any SIMD variant gives it: all branches of an
#if count, and an expression has a value for each choice of the values of the names in it."""

import re
import textwrap
from itertools import product
from pathlib import Path

from codegen.text import ROOT
from tlspec.registry import FAMILIES

#: smaller numbers are arithmetic, and the ordinary sizes have them all
_LEAST = 4
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_ENUM = re.compile(r"\benum\s*\w*\s*\{([^{}]*)\}")
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(.+)$", re.M)
_CONSTEXPR = re.compile(r"^(?:static )?constexpr (?:int|unsigned|uint32_t|size_t|int64_t) ([^;{}]+);", re.M)
_ARITHMETIC = re.compile(r"(?:sizeof\(REAL\)|\w|[-+*/%() ]|<<|>>)+")

Values = dict[str, set[int]]


def sources_of(family: str, device: str, root: Path = ROOT) -> list[Path]:
    """The files of a family on a device, and the headers of kernels and formulas that they include, directly or not."""
    source = root / "native/src"
    todo = sorted(p for p in (source / device).rglob("*") if p.is_file() and _in(p, family, device))
    found: list[Path] = []
    while todo:
        if (path := todo.pop(0)) not in found:
            found.append(path)
            names = re.findall(r'^#\s*include "((?:cpu|cuda|formula)/[^"]+)"', path.read_text(), re.M)
            todo += [source / name for name in names if "/runtime/" not in name]
    return found


def _in(path: Path, family: str, device: str) -> bool:
    """Whether a file is the family's: in its folder, or named after it, perhaps with more behind it."""
    folder = path.parent.name
    return folder == family or (folder == device and re.fullmatch(rf"{family}(_\w+)?", path.stem) is not None)


def constants(texts: list[str]) -> Values:
    """Name -> values of the constants that the texts define; ValueError for an enumerator that is not arithmetic."""
    given: list[tuple[str, str, bool]] = []
    for text in texts:
        plain = _COMMENT.sub("", text).replace("\\\n", " ")
        for body in _ENUM.findall(plain):
            given += [(*_halves(item), True) for item in _items(body) if "=" in item]
        given += [(name, body.strip(), False) for name, body in _DEFINE.findall(plain)]
        for body in _CONSTEXPR.findall(plain):
            given += [(*_halves(item), False) for item in _items(body) if "=" in item]
    values: Values = {"sizeof(REAL)": {4, 8}}
    for _ in range(8):  # a definition may stand before those of the names in it
        before = {n: set(v) for n, v in values.items()}
        for name, text, _ in given:
            values.setdefault(name, set()).update(_values(text, values))
        if before == values:
            break
    if bad := [f"{name} = {text}" for name, text, needed in given if needed and not values[name]]:
        raise ValueError(f"not arithmetic of constants: {', '.join(bad)}")
    return {n: v for n, v in values.items() if v and n != "sizeof(REAL)"}


def _halves(item: str) -> tuple[str, str]:
    name, _, text = item.partition("=")
    return name.strip(), text.strip()


def _items(body: str) -> list[str]:
    """The items of a list at whose commas no bracket is open."""
    out, depth = [""], 0
    for c in body:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            out.append("")
        else:
            out[-1] += c
    return out


def _values(text: str, values: Values) -> set[int]:
    """The values of an expression; none where it is not arithmetic of known names."""
    text = re.sub(r"\bU?INT\d+_C\b|\((?:u?int\d+_t|size_t|int)\)|(?<=\d)[uUlL]+\b", "", text)
    if not _ARITHMETIC.fullmatch(text) or re.search(r"\d\.|\b\d+e\d", text):
        return set()
    text = text.replace("sizeof(REAL)", "SIZE").replace("/", "//")
    names = sorted(set(re.findall(r"\b[A-Za-z_]\w*", text)))
    choices = [sorted(values.get("sizeof(REAL)" if n == "SIZE" else n, ())) for n in names]
    try:
        return {
            int(eval(text, {"__builtins__": {}}, dict(zip(names, chosen, strict=True)))) for chosen in product(*choices)
        }
    except (SyntaxError, TypeError, NameError, ZeroDivisionError):
        return set()


def family_boundaries(family: str, device: str, root: Path = ROOT) -> dict[str, tuple[int, ...]]:
    """Name -> values of a family's constants on a device, from 4 to 2^32."""
    found = constants([p.read_text() for p in sources_of(family, device, root)])
    kept = {n: tuple(sorted(v for v in found[n] if _LEAST <= v <= 2**32)) for n in sorted(found)}
    return {n: v for n, v in kept.items() if v}


def boundaries_module(root: Path = ROOT) -> str:
    """The text of tlspec/boundaries.py."""
    out = ['"""The named integer constants of the kernels: family -> name -> the values that it has in any SIMD variant.', "",
           'Generated by `make abi` (codegen/boundaries.py) from native/src: change the constant there."""', "",
           "# fmt: off"]  # fmt: skip
    for device in ("cpu", "cuda"):
        out.append(f"{device.upper()}: dict[str, dict[str, tuple[int, ...]]] = {{")
        for family in FAMILIES:
            items = [f'"{n}": {v}'.replace(" ", "\0") for n, v in family_boundaries(family, device, root).items()]
            text = f'"{family}":\0{{{", ".join(items)}}},'
            lines = textwrap.wrap(text, 118, initial_indent="    ", subsequent_indent=" " * 8)
            out += [line.replace("\0", " ") for line in lines]
        out.append("}")
    return "\n".join([*out, ""])
