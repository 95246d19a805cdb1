"""Synonyms: what they give is what the operation gives that they forward to, bit for bit, and a refusal names the synonym."""

import numpy as np
import pytest

from tests.conftest import entry_id
from tlrt import Device, errors, kernels
from tlrt.verify.run import Runtime
from tlrt.verify.verifier import directions
from tlspec import registry
from tlspec.case import Case, cotangent_names
from tlspec.draw.cases import draw_case
from tlspec.entries import arguments_of, checks_of, entries
from tlspec.expressions import evaluate
from tlspec.registry import Op

SYNONYMS = [row for row in registry.operations() if row.forward is not None]
ENTRIES = [(row, which) for row in SYNONYMS for which in directions(row)]


def there(case: Case) -> Case:
    """The call of the operation that a synonym's call makes."""
    forward = case.op.forward
    assert forward is not None
    values = {n: evaluate(e, case.values) for n, e in forward.arguments.items()}
    inputs = {a.name: case.inputs.get(forward.arrays[a.name] or "") for a in forward.of.signature.inputs}
    names = cotangent_names(forward.of)
    given = {n: case.cotangents[forward.name_of(n) or ""] for n in names} if case.cotangents else {}
    dims = {d.lstrip("*"): values[d.lstrip("*")] for d in forward.of.signature.dims}
    params = {p.name: values[p.name] for p in forward.of.signature.params}
    shaped = Case(forward.of, case.which, case.seed, case.data, "given", dims, params, inputs, given)
    reshaped = lambda x, a: None if x is None else x.reshape(shaped.shape(a))
    inputs = {a.name: reshaped(inputs[a.name], a) for a in forward.of.signature.inputs}
    given = {n: reshaped(given[n], a) for n, a in names.items()} if given else {}
    return Case(forward.of, case.which, case.seed, case.data, "given", dims, params, inputs, given)


@pytest.mark.parametrize("synonym", ENTRIES, ids=entry_id)
def test_synonyms_give_what_they_forward_to(synonym: tuple[Op, str], runtime: Runtime) -> None:
    row, which = synonym
    for seed in range(4):
        case = draw_case(row, seed, "normal", "small", which)
        for mine, other in zip(runtime.run(case), runtime.run(there(case)), strict=True):
            assert np.array_equal(mine.reshape(-1).view(np.uint32), other.reshape(-1).view(np.uint32)), case.line


@pytest.mark.parametrize("synonym", ENTRIES, ids=entry_id)
def test_synonyms_follow_the_reference(synonym: tuple[Op, str]) -> None:
    """Their references and bounds are those of the operation on reshaped arrays; verify judges by them."""
    row, which = synonym
    assert registry.get(row.name) is row and row not in registry.ops() and registry.ops(row.name) == (row,)
    expected = draw_case(row, 0, "normal", "small", which).expected
    assert all(np.all(t >= 0) for t in expected.tolerances)


@pytest.mark.parametrize("synonym", SYNONYMS, ids=lambda row: row.name)
def test_a_refusal_names_the_synonym(synonym: Op) -> None:
    row = synonym
    for e in entries(row):
        with Device.new() as device:
            given = draw_case(row, 0, "normal", "small")
            values = {**given.values, **{a.name: [0] for a in row.signature.inputs if a.kind == "u32"}}
            made = {}
            for a in arguments_of(e.name):
                if a.kind in ("buffer", "index"):
                    made[a.name] = device.zeros(10**6 + 3) if a.kind == "buffer" else device.indices([0])
                else:
                    made[a.name] = values[a.of]
            with pytest.raises(errors.TorchleanError) as caught:
                getattr(kernels, e.name)(**made)
            assert str(caught.value).startswith(f"{e.name}: ") and caught.value.op == e.name
            first = str(caught.value).split(": ")[1]
            assert first in {*made, *(c.name for c in checks_of(e))}
