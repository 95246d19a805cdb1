"""``python -m codegen.new NAME FAMILY [SIGNATURE]`` (``make new OP=NAME FAMILY=...``): writes the skeleton of an operation.

That is a row at the end of the family's module, and a line for each device or kernels at the end of the family's sources. What
is left to write is marked; ``make abi`` names each such place (:func:`unfilled`) and writes nothing until there is none.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from codegen.kernel_sources import ELEMENTWISE, sources_of
from codegen.prototypes import kernel_parameters
from codegen.text import ROOT, call_text
from tlspec import registry
from tlspec.signature import Signature

MARK = "TODO"

_ROW = '''

@op(
    "{text}",
    bound={mark}("one of tlspec/bounds.py: exact(), ulp(1), tree(height)"),
    torch="{mark}: the function of PyTorch that takes the same arguments, or no such line",
    source="{mark}: where the formula is published",
)
def {name}({inputs}):
    """{mark}: one sentence that says what it computes.

    {outputs} = {mark}: the formula

    Shapes: {shapes}.
    Special values: {mark}: what zeros, infinities and NaN give."""
    raise NotImplementedError("{mark}: the formula in float64 NumPy")


@{name}.vjp("{reads} -> {gives}")
def {name}_vjp({reads}):
    """{gives} = {mark}: the formula of the gradient."""
    raise NotImplementedError("{mark}: the gradient in float64 NumPy")
'''


def main() -> int:
    """Writes the skeleton; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m codegen.new", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("family")
    parser.add_argument("signature", nargs="?", default="x[*] -> out[*]")
    args = parser.parse_args()
    try:
        written = write(args.name, args.family, args.signature)
    except ValueError as error:
        print(f"make new: {error}", file=sys.stderr)
        return 1
    print("\n".join(f"wrote a skeleton: {file}" for file in written))
    print(f"Replace each {MARK}, then run `make abi`.")
    return 0


def write(name: str, family: str, text: str, root: Path = ROOT) -> list[str]:
    """Adds the skeleton to the files, whose names it returns. Raises ValueError."""
    if family not in registry.families():
        raise ValueError(f"FAMILY: got {family!r}, expected one of {', '.join(registry.families())}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"OP: got {name!r}, expected a name in lower case, such as hard_sigmoid")
    if any(re.search(rf"^def {name}_?\(", p.read_text(), re.M) for p in (root / "tlspec/ops").glob("*.py")):
        raise ValueError(f"OP: {name} is an operation already, expected a new name")
    signature = Signature.parse(text)
    if signature.lists or any(a.kind != "f32" for a in signature.inputs + signature.outputs):
        raise ValueError(f"SIGNATURE: got {text!r}, expected float32 arrays; copy a row of {family} for other kinds")
    additions = {f"tlspec/ops/{family}.py": _row(name, text, signature)}
    if signature.elementwise:
        additions[ELEMENTWISE] = _lines(name, signature)
    else:
        for device in ("cpu", "cuda"):
            additions[sources_of(family, device, root)[0]] = _kernels(name, signature, device)
    for file, addition in additions.items():
        path = root / file
        path.write_text(path.read_text() + addition)
    return list(additions)


def _gradients(signature: Signature) -> tuple[list[str], list[str]]:
    """What a gradient reads and gives, unless its author knows better: everything, and that of every input."""
    names = [a.name for a in signature.inputs]
    cotangents = ["g"] if len(signature.outputs) == 1 else [f"g_{o.name}" for o in signature.outputs]
    return [*names, *cotangents], [f"g{n}" for n in names]


def _row(name: str, text: str, signature: Signature) -> str:
    reads, gives = _gradients(signature)
    arrays = signature.inputs + signature.outputs
    shapes = [f"{a.name} ({', '.join(a.dims)})" for a in arrays]
    if signature.elementwise:
        shapes = [f"{' and '.join(a.name for a in arrays)} alike, any shape"]
    return _ROW.format(
        mark=MARK, name=name, text=text, shapes=", ".join(shapes), reads=", ".join(reads),
        gives=", ".join(gives), inputs=", ".join(a.name for a in signature.inputs),
        outputs=", ".join(a.name for a in signature.outputs),
    )  # fmt: skip


def _lines(name: str, signature: Signature) -> str:
    """A line for the operation and one for its gradient, of the shape that their numbers of inputs and parameters have."""
    shapes = {1: "TL_UNARY", 2: "TL_BINARY", 3: "TL_TERNARY"}
    count, suffix = len(signature.inputs), ("_" + "PQ"[: len(signature.params)]) * bool(signature.params)
    if count not in shapes or len(signature.params) > 2:
        raise ValueError(
            f"an elementwise operation has one to three inputs and up to two parameters, got {count} inputs"
        )
    back = f"TL_BINARY{suffix}({name}_bwd, {MARK})" if count == 1 else f"TL_BINARY_VJP({name}_bwd, {MARK})"
    return f"{shapes[count]}{suffix}({name}, {MARK})\n{back}\n"


def _kernels(name: str, signature: Signature, device: str) -> str:
    reads, gives = _gradients(signature)
    inputs = [f"const float *{n}" for n in reads]
    head = kernel_parameters(signature)
    sizes = [p for p in head[1:] if not re.search(r"float \*", p)]
    parameters = {name: head, f"{name}_bwd": ["tl_context *ctx", *inputs, *sizes, *(f"float *{n}" for n in gives)]}
    return "".join(
        f"\n{call_text(f'int32_t tl_{device}_{kernel}', items, '')}\n{{\n    /* {MARK}: write the kernel of {kernel} */\n}}\n"
        for kernel, items in parameters.items()
    )


def unfilled(root: Path = ROOT) -> Iterator[str]:
    """A sentence for each place of a skeleton that nobody has written yet."""
    families = registry.FAMILIES
    files = [f"tlspec/ops/{f}.py" for f in families] + [ELEMENTWISE]
    files += [file for f in families for device in ("cpu", "cuda") for file in sources_of(f, device, root)]
    for file in dict.fromkeys(files):
        path = root / file
        for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
            if re.search(rf"\b{MARK}\b", line):
                yield f"{file}:{number}: {line.strip()}: write what {MARK} stands for"


if __name__ == "__main__":
    sys.exit(main())
