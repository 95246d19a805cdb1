"""The pages of operations say what their rows say, and what files hold."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench import trust
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
    return operations.Material(trust.committed_sources(), {})


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
        page = " ".join(words(pages[f"operations/{row.name}.md"].replace("\\", "")))
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


def source(bound: str, command: str = "python -m tlrt verify") -> Any:
    from audit import evidence

    result = {"entry": "tanh", "device": "cpu", "bound": bound, "cases": 7, "share": 0.5, "ulp": 1.0, "identical": None,
              "failures": [], "verdict": "pass"}  # fmt: skip
    document = {
        "command": command,
        "results": [result],
        "verdict": "pass",
        "started": "2026-01-01",
        "devices": {"cpu": "CPU, x"},
    }
    return evidence.read("made.jsonl", json.loads(json.dumps(document)))


def test_evidence_of_the_present_bound_is_quoted_and_of_another_one_is_not() -> None:
    row = registry.get("tanh")
    held = operations.Material([source(row.bound.text)], {})
    (line,) = operations.evidence_rows(row, held)
    assert line == (
        "forward",
        "7 drawn cases",
        "CPU",
        "worst error 0.500 of the bound",
        "[made.jsonl](../evidence/made.jsonl)",
    )
    assert operations.worst_share(row, "forward", held) == "0.500"
    changed = operations.Material([source("another bound")], {})
    assert not list(operations.evidence_rows(row, changed)) and not operations.worst_share(row, "forward", changed)


def test_devices_that_say_the_same_share_a_line() -> None:
    cpu, gpu = (
        ("forward", "7 cases", "CPU", "0.5", "f"),
        ("forward", "7 cases", "H200", "0.5; the bits of the CPU", "f"),
    )
    other = ("forward", "7 cases", "H200", "0.6", "f")
    assert operations.merge_devices([cpu, gpu]) == [
        ("forward", "7 cases", "CPU, H200", "0.5; the bits of the CPU", "f")
    ]
    assert operations.merge_devices([cpu, other]) == [cpu, other]
    assert operations.merge_devices([cpu, (*gpu[:4], "g")]) == [cpu, (*gpu[:4], "g")]


def test_a_file_of_the_reproducible_mode_is_held_to_that_bound() -> None:
    row = registry.get("matmul")
    chain = row.in_math("reproducible").bound.text
    found = source(chain, "python -m tlrt verify --math reproducible")
    found.parts["verify"][0]["results"][0]["entry"] = "matmul"
    (line,) = operations.evidence_rows(row, operations.Material([found], {}))
    assert line[1] == "7 drawn cases (reproducible)"


def test_times_are_those_of_the_files(material: operations.Material) -> None:
    title, file, row = material.timings["layer_norm"][0]
    section = "\n".join(operations.time_section(registry.get("layer_norm"), material))
    assert title in section and f"../evidence/{file}" in section and operations.format_figure(row["ours_ms"]) in section


def test_other_libraries_stand_with_their_failures_and_reasons(material: operations.Material) -> None:
    """Each line of the committed files with its share, and each failure with its reason."""
    for name, lines in material.libraries.items():
        section = "\n".join(operations.libraries_section(registry.get(name), material))
        for file, line in lines:
            title = operations.LIBRARIES[line["library"]].title
            cell = operations.league.cell(line)
            assert re.search(
                rf"^\| {re.escape(title)} \| {line['dtype']} \|.*{re.escape(cell)}.*{file}", section, re.M
            ), line
            if line["verdict"] == "fail":
                assert f"- ✗ {title}: {operations.escape(operations.explanation(line))}\n" in section
    unjudged = next(row for row in registry.ops() if row.name not in material.libraries)
    assert operations.libraries_section(unjudged, material) == []


def test_a_time_says_nothing_where_no_file_has_one(material: operations.Material) -> None:
    row = next(r for r in registry.ops() if r.name not in material.timings and f"{r.name}_bwd" not in material.timings)
    assert "No committed file holds a time of this operation." in operations.time_section(row, material)


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
