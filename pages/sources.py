"""The documents of the repository as pages of the site.

The site has the folders of the repository, so a link from one document to another holds on both. A link to a file that is no page
takes the file along; one to a folder that has no page becomes plain text.
"""

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from audit.environment import ROOT

#: a document in the repository -> its page in the site, where the two differ
MOVED = {"README.md": "overview.md", "pages/start.md": "index.md"}
#: a folder in the repository -> the page that lists it
LISTED = {"evidence": "evidence/index.md"}
#: pages of long tables, which would fill every answer of the search
UNSEARCHED = {"docs/trust.md", "docs/results.md", "docs/league.md"}
#: a link or an image, and a block of code
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^(```.*?^```|~~~.*?^~~~)", re.M | re.S)


def unescape_pipes(text: str) -> str:
    """Tables as Python's Markdown wants them: in code it takes a bar as it is, and shows a backslash before it."""
    lines = (
        re.sub(r"`[^`]*`", lambda m: m[0].replace("\\|", "|"), x) if x.startswith("|") else x for x in text.split("\n")
    )
    return "\n".join(lines)


class BrokenLink(ValueError):
    """A document that points to nothing."""


def documents(root: Path = ROOT) -> list[str]:
    """The documents that become pages, as paths in the repository."""
    top = [
        name
        for name in ("README.md", "TRUST_BOUNDARIES.md", "CONTRIBUTING.md", "CHANGELOG.md")
        if (root / name).exists()
    ]
    return ["pages/start.md", *top, *(f"docs/{p.name}" for p in sorted((root / "docs").glob("*.md")))]


def place_of(document: str) -> str:
    """The page of a document, as a path in the site."""
    return MOVED.get(document, document)


def convert(document: str, text: str, root: Path = ROOT) -> tuple[str, set[str]]:
    """A document as a page, and the files of the repository that the page links to. Raises BrokenLink."""
    files: set[str] = set()
    own = posixpath.dirname(document)
    here = posixpath.dirname(place_of(document))

    def relink(match: re.Match[str]) -> str:
        image, words, target = match.groups()
        path, mark, anchor = target.partition("#")
        if not path or ":" in target:
            return match[0]
        goal = posixpath.normpath(posixpath.join(own, path))
        if goal.startswith(("operations/", "notebooks/", "pages/")):  # a page that only the site has
            goal = goal.removeprefix("pages/")
        elif goal in LISTED:
            goal = LISTED[goal]
        elif (root / goal).is_dir():
            return words
        elif not (root / goal).exists():
            raise BrokenLink(f"{document}: links to {target}, which does not exist")
        elif goal in documents(root):
            goal = place_of(goal)
        else:
            files.add(goal)
        return f"{image}[{words}]({posixpath.relpath(goal, here or '.')}{mark}{anchor})"

    parts = FENCE.split(text)
    for i, part in enumerate(parts):
        if not FENCE.match(part):
            parts[i] = unescape_pipes(LINK.sub(relink, re.sub(r"<!--.*?-->\n?", "\n", part, flags=re.S)))
    head = "---\nsearch:\n  exclude: true\n---\n\n" if document in UNSEARCHED else ""
    return head + "".join(parts), files


def pages(root: Path = ROOT) -> Iterator[tuple[str, str | bytes]]:
    """The pages that the repository's documents are, and the files that they link to, by their paths in the site."""
    files: set[str] = set()
    for document in documents(root):
        text, linked = convert(document, (root / document).read_text(encoding="utf-8"), root)
        files |= linked
        yield place_of(document), text
    for file in sorted(files):
        yield file, (root / file).read_bytes()


def write(folder: Path, written: Mapping[str, str | bytes]) -> list[str]:
    """Writes pages into a folder, and removes others. A page that did not change keeps its time. Returns what changed."""
    changed = []
    for name, content in written.items():
        data = content.encode() if isinstance(content, str) else content
        path = folder / name
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            changed.append(name)
    for directory, _, names in os.walk(folder):
        for name in names:
            path = Path(directory) / name
            if path.relative_to(folder).as_posix() not in written:
                path.unlink()
    return changed
