"""The check of a built site finds links to nothing and what is loaded from elsewhere."""

from pathlib import Path

import pytest

from pages.check import problems


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<a href="b.html#here">', []),
        ('<a href="b.html">', []),
        ('<a href="folder/">', []),
        ('<a href="#top"><h1 id="top">', []),
        ('<a href="https://example.org/page">', []),
        ('<link rel="canonical" href="https://example.org/">', []),
        ('<img src="data:image/png;base64,AAAA">', []),
        ('<a href="c.html">', ["a.html: leads to c.html, which is not there"]),
        ('<a href="b.html#there">', ["a.html: leads to b.html#there, which has no such place"]),
        ('<a href="#there">', ["a.html: leads to #there, which has no such place"]),
        ('<svg><use xlink:href="#mark"/></svg>', ["a.html: leads to #mark, which has no such place"]),
        ('<script src="https://example.org/x.js"></script>', ["a.html: loads https://example.org/x.js"]),
        ('<link rel="stylesheet" href="//example.org/x.css">', ["a.html: loads //example.org/x.css"]),
        ('<img src="missing.png">', ["a.html: leads to missing.png, which is not there"]),
    ],
)
def test_problems_of_a_page(tmp_path: Path, body: str, said: list[str]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/index.html").write_text("")
    (tmp_path / "b.html").write_text('<p id="here">')
    (tmp_path / "a.html").write_text(body)
    assert list(problems(tmp_path)) == said
