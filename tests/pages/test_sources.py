"""Documents become pages whose links lead to what they led to in the repository."""

from pathlib import Path

import pytest

from pages import sources


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("docs/one.md", "docs/two.md", "README.md", "evidence/run.jsonl", "native/a.h", "pages/start.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    return tmp_path


@pytest.mark.parametrize(
    ("document", "link", "page", "files"),
    [
        ("docs/one.md", "[two](two.md#part)", "[two](two.md#part)", set()),
        ("docs/one.md", "[start](../README.md)", "[start](../overview.md)", set()),
        ("docs/one.md", "[run](../evidence/run.jsonl)", "[run](../evidence/run.jsonl)", {"evidence/run.jsonl"}),
        ("docs/one.md", "[files](../evidence)", "[files](../evidence/index.md)", set()),
        ("docs/one.md", "[`a.h`](../native/a.h)", "[`a.h`](../native/a.h)", {"native/a.h"}),
        ("docs/one.md", "[code](../native)", "code", set()),
        ("docs/one.md", "[other](https://example.org/a)", "[other](https://example.org/a)", set()),
        ("docs/one.md", "```\n[code](nowhere.md)\n```", "```\n[code](nowhere.md)\n```", set()),
        ("README.md", "[one](docs/one.md)", "[one](docs/one.md)", set()),
        ("pages/start.md", "[one](../docs/one.md)", "[one](docs/one.md)", set()),
        ("pages/start.md", "[add](operations/add.md)", "[add](operations/add.md)", set()),
    ],
)  # fmt: skip
def test_links_lead_to_the_same_place(root: Path, document: str, link: str, page: str, files: set[str]) -> None:
    assert sources.convert(document, link, root) == (page, files)


def test_a_link_to_nothing_is_refused(root: Path) -> None:
    with pytest.raises(sources.BrokenLink, match=r"docs/one.md: links to three.md"):
        sources.convert("docs/one.md", "[three](three.md)", root)


def test_every_document_is_a_page_with_the_files_it_links_to() -> None:
    found = dict(sources.pages())
    assert {
        "index.md",
        "overview.md",
        "TRUST_BOUNDARIES.md",
        "docs/judge.md",
        "docs/c.md",
        "docs/speed.svg",
    } <= found.keys()
    assert {sources.place_of(d) for d in sources.documents()} <= found.keys()
