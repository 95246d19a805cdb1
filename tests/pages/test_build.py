"""The site as MkDocs builds it: a page that links to nothing stops the build, and the navigation holds every page."""

from pathlib import Path

import pytest

from pages import build, execute, operations, sources


def test_the_navigation_names_every_page_once() -> None:
    named = build.pages_of(build.navigation())
    known = {sources.place_of(d) for d in sources.documents()} | {"evidence/index.md", "notebooks/index.md"}
    known |= {f"notebooks/{name}.md" for name in execute.NAMES} | set(build.pages_of(operations.navigation()))
    assert sorted(named) == sorted(known)


def test_a_site_is_built_and_checked(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pages = {
        "index.md": "# Start\n\n[another](other.md#a-part)\n",
        "other.md": "# Other\n\n## A part\n",
        "site.css": "",
    }
    build.build(pages, ["index.md", {"Other": "other.md"}], tmp_path / "pages", tmp_path / "site")
    assert 'href="other.html#a-part"' in (tmp_path / "site/index.html").read_text()
    assert "<title>Other - torchlean-cuda</title>" in (tmp_path / "site/other.html").read_text()


@pytest.mark.parametrize("link", ["[a](missing.md)", "[a](other.md#missing)", '<img src="missing.png">'])
def test_a_link_to_nothing_stops_the_build(tmp_path: Path, link: str) -> None:
    pytest.importorskip("mkdocs")
    pages = {"index.md": f"# Start\n\n{link}\n", "other.md": "# Other\n", "site.css": ""}
    with pytest.raises(SystemExit):
        build.build(pages, ["index.md", {"Other": "other.md"}], tmp_path / "pages", tmp_path / "site")
