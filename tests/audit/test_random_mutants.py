"""Random mutants: which are drawn, and what counts as a change."""

import itertools

import pytest

from audit.mutation import random_mutants
from audit.mutation.random_mutants import KINDS, Mutant, behaviour, compiles, read_lines, sample
from tests import ROOT


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_a_function_of_its_seed(kind: str) -> None:
    pytest.importorskip("universalmutator", reason="the extra `mutation` is not installed")

    def first(seed: int) -> list[Mutant]:
        return list(itertools.islice(sample(kind, seed), 8))

    assert first(1) == first(1)
    assert not {m.key for m in first(1)} & {m.key for m in first(2)}
    for mutant in first(1):
        assert mutant.before.split() != mutant.after.split() and mutant.text() != "".join(read_lines(mutant.file))
        assert (ROOT / mutant.file).suffix != ".py" or compiles(mutant.text())


def test_an_edit_elsewhere_leaves_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("universalmutator", reason="the extra `mutation` is not installed")
    before = [m.key for m in itertools.islice(sample("specification", 1), 8)]
    longer = lambda file: ["added = 1\n", *read_lines(file)]
    monkeypatch.setattr(random_mutants, "read_lines", longer)
    assert len({*before} & {m.key for m in itertools.islice(sample("specification", 1), 9)}) >= 7


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ('def f(x: str) -> int:\n    """Other words."""\n    return x + 1', True),
        ("def f(x):\n    return x + 2", False),
        ("def f(x=0):\n    return x + 1", False),
        ('def f(x):\n    """Words."""\n    # a comment\n    return (x + 1)', True),
    ],
)
def test_behaviour_is_not_words_or_annotations(change: str, same: bool) -> None:
    assert (behaviour(change) == behaviour('def f(x: int) -> int:\n    """Words."""\n    return x + 1')) is same


def test_messages_are_words_and_other_texts_are_not() -> None:
    lines = "if x:\n    raise refusal(E, 'op', f'{x} words')\nname = 'a b'\n"
    for old, new, same in (
        ("words", "others", True),
        ("{x}", "{y}", True),
        ("a b", "a c", False),
        ("if x", "if y", False),
    ):
        assert (behaviour(lines.replace(old, new)) == behaviour(lines)) is same
