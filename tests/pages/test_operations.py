"""The pages of operations say what their rows say, and what files hold."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from audit.markdown import format_figure
from audit.summary import read_summaries
from pages import figures, operations
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


def test_every_word_of_a_row_is_on_its_page(pages: dict[str, str]) -> None:
    """The docstring of the row and of its gradient, without their labels and the marks of Markdown."""

    def words(text: str) -> list[str]:
        return re.findall(r"\w+", text)

    for row in registry.ops():
        page = " ".join(words(html.unescape(pages[f"operations/{row.name}.md"].replace("\\", ""))))
        for paragraph in [*row.doc.split("\n\n"), *(row.rule.doc.split("\n\n") if row.vjp_rule else [])]:
            text = re.sub(r"^(Shapes|Special values and errors|Special values|Errors):", "", paragraph)
            assert " ".join(words(text)) in page, (row.name, text)


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


def verified(bound: str, name: str = "verify-h200", entry: str = "tanh") -> dict[str, Any]:
    row = {
        "entry": entry,
        "bound": bound,
        "cases": 7,
        "share": {"cpu": 0.5, "cuda": 0.25},
        "ulp": {"cpu": 1.0},
        "same_bits": True,
    }
    return {name: {"campaign": "verify", "devices": {"cpu": "CPU, x", "cuda": "NVIDIA H200, y"}, "rows": [row]}}


def test_figures_of_the_present_bound_are_quoted_and_of_another_one_are_not() -> None:
    row = registry.get("tanh")
    held = operations.Material(verified(row.bound.text), {})
    page = "\n".join(operations.evidence_section(row, held))
    assert (
        "| forward | 7 drawn cases | worst share of the bound 0.500 on CPU, 0.250 on H200; the same bits on both |"
        in page
    )
    assert "../evidence/verify-h200.jsonl" in page and operations.worst_share(row, held) == "0.500"
    changed = operations.Material(verified("another bound"), {})
    assert "No summary holds a measurement" in "\n".join(operations.evidence_section(row, changed))
    assert not operations.worst_share(row, changed)


def test_a_file_of_the_reproducible_mode_is_held_to_that_bound() -> None:
    row = registry.get("matmul")
    found = verified(row.in_math("reproducible").bound.text, "verify-reproducible-h200", "matmul")
    assert "7 drawn cases (reproducible)" in "\n".join(operations.evidence_section(row, operations.Material(found, {})))


def test_times_are_those_of_the_files(material: operations.Material) -> None:
    timed = next(r for r in material.summaries["bench-h200"]["rows"] if r["op"] == "layer_norm")
    section = "\n".join(operations.time_section(registry.get("layer_norm"), material))
    assert "H200" in section and "../evidence/bench-h200.jsonl" in section and format_figure(timed["ms"]) in section
    nothing = operations.time_section(registry.get("layer_norm"), operations.Material({}, {}))
    assert "No summary holds a time of this operation." in nothing


@pytest.mark.parametrize("text", ["a < b | c > d", "x~y & *z* `q` [r](s) #1", "a\\b_c"])
def test_plain_text_reads_as_it_was_written(text: str) -> None:
    """Only what Python's Markdown takes a backslash before has one, and no bar ends a cell of a table."""
    escaped = operations.escape(text)
    assert "\\" not in re.sub(r"\\[\\`*_\[\]#]", "", escaped) and not re.search(r"[<>|~]", escaped)
    assert html.unescape(re.sub(r"\\([\\`*_\[\]#])", r"\1", escaped)) == text


def test_errors_are_counted_and_a_wrong_result_is_seen() -> None:
    from tlrt.verify.run import Runtime

    row, runtime = registry.get("sigmoid"), Runtime("cpu")
    m = figures.measure(row, "forward", runtime)
    assert m["elements"] == sum(m["spacings"]) > m["nearest"] > 0 and 0 < m["share"] <= 1 and m["outside"] == 0

    class Wrong(Runtime):
        def run(self, *args: Any, **options: Any) -> Any:
            return [out * 1.001 for out in super().run(*args, **options)]

    wrong = figures.measure(row, "forward", Wrong("cpu"))
    assert wrong["share"] > 1 and wrong["outside"] > 0


def test_measurements_are_kept_and_old_ones_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    row = registry.get("exp")
    (tmp_path / "exp-old.json").write_text("{}")
    first = figures.measurements([row], tmp_path)
    (kept,) = tmp_path.glob("*.json")
    kept.write_text(json.dumps({"forward": {"from": "the file"}}))
    assert figures.measurements([row], tmp_path) == {"exp": {"forward": {"from": "the file"}}}
    assert (
        first["exp"]["forward"]["figure"].startswith("<svg") and first["exp"]["vjp"]["figure"] == ""
    )  # correctly rounded


def test_a_figure_is_one_line_of_svg_in_the_colour_of_the_text() -> None:
    from tlrt.verify.run import Runtime

    pytest.importorskip("matplotlib")
    m = figures.measure(registry.get("sigmoid"), "forward", Runtime("cpu"))
    text = figures.draw(m, "Errors")
    assert text.startswith("<svg") and "\n" not in text and "currentColor" in text and "#000000" not in text
    assert text == figures.draw(m, "Errors")
