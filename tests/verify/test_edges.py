"""The sizes at which kernels change what they do: verify draws cases on both sides of each, and the kernels have them."""

import re

import pytest

from tests import ROOT
from tlrt.verify.edges import EDGES, lengths_of, with_edges
from tlrt.verify.run import Runtime
from tlrt.verify.verifier import Settings, Verifier, plan_cases
from tlspec import registry
from tlspec.bounds import call_named
from tlspec.draw.cases import draw_case
from tlspec.registry import Op

NAMED = sorted({(family, name, size) for family, lengths in EDGES.items() for found in lengths.values()
                for name, size in found.items()})  # fmt: skip


@pytest.mark.every_choice
@pytest.mark.parametrize(("family", "name", "size"), NAMED)
def test_a_size_is_that_of_the_kernels(family: str, name: str, size: int) -> None:
    source = ROOT / "native/src"
    texts = [p.read_text() for p in (*(source / "formula").glob("*.h"), *(source / "cpu").rglob("*.[ch]"))]
    values = {int(v) for text in texts for v in re.findall(rf"\b{name}(?: = | )(\d+)\b", text)}
    assert size in values, (
        f"tlrt/verify/edges.py: {family}: native/src has {name} = {values or 'nothing'}: change it there"
    )


@pytest.mark.every_choice
def test_each_length_is_that_of_a_row() -> None:
    known = {(row.family, name) for row in registry.ops() for name in lengths_of(row)}
    assert [(f, name) for f, lengths in EDGES.items() for name in lengths if (f, name) not in known] == []


def test_lengths_are_counted_where_there_is_a_result(row: Op) -> None:
    for seed in range(8):
        case = draw_case(row, seed, None, "small")
        values = {**case.inputs, **case.values}
        if row.signature.elementwise:
            values["n"] = case.shape(row.signature.outputs[0])[0]
        found = {name: call_named(length, values) for name, length in lengths_of(row).items()}
        empty = any(0 in case.shape(a) for a in row.signature.inputs + row.signature.outputs)
        assert all(n == 0 for n in found.values()) if empty and not row.signature.lists else min(found.values()) >= 0


@pytest.mark.operations("reduce_sum", "mul")
@pytest.mark.parametrize("name", ["reduce_sum", "mul"])
@pytest.mark.parametrize(
    "test", [lambda n, b: 0 < n < b, lambda n, b: n % b == 0 < n, lambda n, b: n > b and n % b > 0]
)
def test_a_defect_on_one_side_of_a_size_is_found(name: str, test: object) -> None:
    """A kernel that is wrong between two multiples of 12345 or at one, a size that only its family's table names."""
    size = 12345
    row = with_edges(registry.get(name), {registry.get(name).family: {"elements": {"OURS": size}}})

    class Wrong(Runtime):
        def run(self, case, **options):  # type: ignore[no-untyped-def]
            outs = super().run(case, **options)
            n = max(x.size for x in case.inputs.values())
            return [o + 1 for o in outs] if n > size // 2 and test(n, size) else outs  # type: ignore[operator]

    verifier = Verifier({"cpu": Wrong("cpu")})
    cases = (
        draw_case(row, s, data, size, "forward")
        for s, data, size in plan_cases(row, "forward", Settings())
        if size != "large"
    )
    assert any(result.failures for result in verifier.check(row, "forward", cases))
