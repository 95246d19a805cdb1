"""The pages of operations say what their rows say, and what files hold."""

import re

import pytest

from audit.summary import read_summaries
from pages import operations
from tlspec import entries, registry

SECTIONS = (
    "Formula",
    "How to call it",
    "Gradient",
    "What is promised",
    "What was measured",
    "Errors on the CPU",
    "Time",
)


@pytest.fixture(scope="module")
def material() -> operations.Material:
    return operations.Material(read_summaries(), {})


@pytest.fixture(scope="module")
def pages(material: operations.Material) -> dict[str, str]:
    return operations.pages(material)


def test_every_operation_has_a_page_and_stands_in_the_index_and_the_navigation(pages: dict[str, str]) -> None:
    named = str(operations.navigation())
    for row in registry.ops():
        page = pages[f"operations/{row.name}.md"]
        assert [s for s in SECTIONS if f"\n## {s}\n" not in page] == [], row.name
        assert f"({row.name}.md)" in pages["operations/index.md"]
        assert f"(../{row.name}.md)" in pages[f"operations/{row.family}/index.md"]
        assert f"'operations/{row.name}.md'" in named
    assert operations.FAMILIES.keys() == set(registry.families())


def test_a_page_shows_every_entry_point_in_c_and_python(pages: dict[str, str]) -> None:
    for row in registry.ops():
        page = pages[f"operations/{row.name}.md"]
        for e in entries.entries(row):
            assert f"int32_t {e.symbol}(" in page and f"\n{e.name}(" in page, e.name


def test_the_bound_and_the_bits_of_each_mode_are_the_rows() -> None:
    cells = {True: "the same bits", False: "within the bound"}
    for row in registry.ops():
        section = "\n".join(operations.promise_section(row))
        for which, title in (("forward", "forward"), ("vjp", "gradient")):
            lines = re.findall(rf"^\| {title} \| `(.*?)` \| (.*?) \| `(.*?)` \| (.*?) \|$", section, re.M)
            bounds = [row.in_math(mode).bound_of(which).text.replace("|", "\\|") for mode in registry.MATH] if (
                which == "forward" or row.vjp_rule) else []  # fmt: skip
            bits = [cells[row.contract.same_bits], cells[row.contract.reproducible]]
            assert lines == ([(bounds[0], bits[0], bounds[1], bits[1])] if bounds else []), row.name
