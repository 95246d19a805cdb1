"""Hypothesis strategies: ``@given(tlspec.strategies.case("softmax"))`` draws cases of an operation, which shrink to short
lengths."""

from typing import Any

from hypothesis import strategies

from tlspec import registry
from tlspec.draw.cases import data_classes, draw_case
from tlspec.judge.example import Example
from tlspec.judge.shrink import lengths_of, resized


@strategies.composite
def case(
    draw: Any, /, op: str, *, backward: bool = False, data: Any = None, size: str = "small", **options: Any
) -> Example:
    """An :class:`tlspec.judge.example.Example` of an operation, or with `backward` of its gradient. `options` are those of
    :func:`tlspec.check`: dtype, out_dtype, array, and what is assumed of the kernel's arithmetic."""
    row, which = registry.get(op), "vjp" if backward else "forward"
    known = data_classes(row, which) if data is None else [data] if isinstance(data, str) else list(data)
    kind = draw(strategies.sampled_from(list(known)))
    found = draw_case(row, draw(strategies.integers(0, 2**16)), kind, size, which)
    lengths = lengths_of(found)
    names = ["n"] if row.signature.elementwise else [d for d in row.signature.dims if not d.startswith("*")]
    shorter = {
        n: draw(strategies.integers(min(1, lengths[n]), lengths[n])) for n in names if isinstance(lengths[n], int)
    }
    return Example(row, resized(found, {**lengths, **shorter}) or found, **options)
