"""The subscripts of einsum."""

from collections import Counter
from collections.abc import Sequence

from tlrt._operations.plan import Shape
from tlrt.errors import ArgumentError, ArgumentTypeError, ShapeError, refusal

#: a name for every axis of an array
Labels = tuple[str, ...]


def parse_einsum(subscripts: str, shapes: Sequence[Shape]) -> tuple[list[Labels], Labels, dict[str, int]]:
    """The labels of each operand and of the result, and the size of each label. An axis that ... stands for is named by its
    place from the right."""
    if not isinstance(subscripts, str):
        raise refusal(ArgumentTypeError, "einsum", "subscripts", type(subscripts).__name__, "a string like 'ij,jk->ik'")
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if not shapes or len(terms) != len(shapes):
        raise refusal(
            ArgumentError, "einsum", "subscripts", f"{len(terms)} terms", f"one for each of {len(shapes)} operands"
        )
    labels = [_labels(subscripts, term, len(shape)) for term, shape in zip(terms, shapes, strict=True)]
    sizes: dict[str, int] = {}
    for i, (names, shape) in enumerate(zip(labels, shapes, strict=True)):
        for name, size in zip(names, shape, strict=True):
            known = sizes.setdefault(name, size)
            twice = size != shape[names.index(name)]
            if twice or (size != known and 1 not in (size, known)):
                raise refusal(ShapeError, "einsum", f"operands[{i}]", f"size {size} for {name!r}", known)
            sizes[name] = size if known == 1 else known
    spread = max((tuple(n for n in names if n.isdigit()) for names in labels), key=len)
    if arrow:
        out = _labels(subscripts, right, len(right.replace("...", "")) + len(spread) * ("..." in right))
        if len(set(out)) < len(out) or not set(out) <= sizes.keys():
            raise refusal(
                ArgumentError, "einsum", "subscripts", repr(subscripts), "a result of letters of operands, each once"
            )
        return labels, out, sizes
    once = Counter(c for names in labels for c in names)
    return labels, (*spread, *sorted(c for c in once if once[c] == 1 and not c.isdigit())), sizes


def _labels(subscripts: str, term: str, rank: int) -> Labels:
    head, dots, tail = term.partition("...")
    letters = head + tail
    hidden = rank - len(letters)
    if not all(c.isascii() and c.isalpha() for c in letters):
        raise refusal(ArgumentError, "einsum", "subscripts", repr(subscripts), "letters, ..., commas and one ->")
    if hidden < 0 or (hidden and not dots):
        expected = f"{rank} axes" if dots else f"{len(letters)} axes, as {term!r} has letters"
        raise refusal(
            ShapeError, "einsum", "operands", f"{rank} axes", expected if not dots else f"{len(letters)} or more"
        )
    return (*head, *(str(k) for k in reversed(range(hidden))), *tail)
