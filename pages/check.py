"""Reads a built site: every link leads to a file and an anchor that are there, and nothing is loaded from elsewhere."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: attributes that lead somewhere, and elements that load what theirs name
LEADS = ("href", "src", "xlink:href", "srcset", "data", "poster")
LOADS = {"script", "img", "link", "iframe", "source", "video", "audio", "object", "embed", "use", "image"}
#: a link element of these kinds is not loaded
SAID = {"canonical", "next", "prev"}


class Page(HTMLParser):
    """The names that a page defines, and where it leads: (what, whether it is loaded)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.leads: list[tuple[str, bool]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := given.get(key))}
        loaded = tag in LOADS and given.get("rel") not in SAID
        self.leads += [(value, loaded) for key in LEADS if (value := given.get(key))]


def problems(site: Path) -> Iterator[str]:
    """What is wrong with a site, a sentence each."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    root = site.resolve()
    for path, page in pages.items():
        name = path.relative_to(root).as_posix()
        if name == "404.html":  # its links are those of the server's root
            continue
        for target, loaded in page.leads:
            parts = urlsplit(target)
            if parts.scheme in ("data", "mailto"):
                continue
            if parts.scheme or parts.netloc:
                if loaded:
                    yield f"{name}: loads {target}"
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            goal = goal / "index.html" if goal.is_dir() else goal
            if not goal.exists():
                yield f"{name}: leads to {target}, which is not there"
            elif parts.fragment and goal in pages and unquote(parts.fragment) not in pages[goal].names:
                yield f"{name}: leads to {target}, which has no such place"
