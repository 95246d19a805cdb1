"""No two places written by hand share twelve lines or more, names and constants aside."""

import io
import keyword
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from codegen.files import generated_files
from tests import ROOT
from tests.repo.tree import files, name

#: lines that two places may not share
WINDOW = 12
#: the fewest tokens of a window, so that a column of braces or of short rows is none
TOKENS = 60
C_KEYWORD = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|inline|int|long|register|return|short|"
    "signed|sizeof|static|struct|switch|typedef|union|unsigned|void|volatile|while|template|typename|class|constexpr|bool"
)
C_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[A-Za-z_]\w*|\.?\d[\w.]*|[-+*/%&|^<>=!]=|&&|\|\||->|<<|>>|[^\s\w]'
)

#: pairs of places that share lines, and why each is not written once
ALLOWED: dict[frozenset[str], str] = {
    frozenset({"audit/coverage.py", "audit/coverage_python.py"}): "tables of exceptions, which are rows of one form",
}

#: a line of code: its number and its tokens, names and constants marked by their kind
Line = tuple[int, list[tuple[str, str]]]


def c_lines(text: str) -> Iterator[Line]:
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#include"):
            continue
        tokens = []
        for token in C_TOKEN.findall(line.partition("//")[0]):
            if token[0] in "\"'" or token[0].isdigit() or (token[0] == "." and len(token) > 1):
                tokens.append(("constant", token))
            elif token[0].isalpha() or token[0] == "_":
                tokens.append(("keyword" if C_KEYWORD.fullmatch(token) else "name", token))
            else:
                tokens.append(("operator", token))
        yield number, tokens


def python_lines(text: str) -> Iterator[Line]:
    found: dict[int, list[tuple[str, str]]] = defaultdict(list)
    previous = tokenize.NEWLINE
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        docstring = token.type == tokenize.STRING and previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.NL)
        previous = token.type
        if token.type in skipped or docstring:
            continue
        if token.type in (tokenize.NUMBER, tokenize.STRING):
            kind = "constant"
        elif token.type == tokenize.NAME:
            kind = "keyword" if keyword.iskeyword(token.string) else "name"
        else:
            kind = "operator"
        found[token.start[0]].append((kind, token.string))
    for number, tokens in sorted(found.items()):
        if tokens and tokens[0][1] not in ("import", "from"):
            yield number, tokens


def code_of(path: Path) -> list[Line]:
    """Lines that say something: blank ones, comments, imports and lines of brackets alone are left out."""
    text = path.read_text()
    lines = python_lines(text) if path.suffix == ".py" else c_lines(text)
    return [(number, tokens) for number, tokens in lines if any(kind != "operator" for kind, _ in tokens)]


def shape_of(window: list[Line]) -> tuple[object, ...]:
    """What is left of a window when each name is replaced by the place of its first use, and each constant by its kind."""
    places: dict[str, int] = {}
    shape: list[object] = []
    for _, tokens in window:
        for kind, token in tokens:
            if kind == "name":
                shape.append(places.setdefault(token, len(places)))
            else:
                shape.append("constant" if kind == "constant" else token)
        shape.append("\n")
    return tuple(shape)


def duplicates(paths: list[Path], root: Path = ROOT) -> list[tuple[str, str]]:
    """Pairs of places ("file:first line") that share WINDOW lines or more, each pair by its first window."""
    seen: dict[int, tuple[Path, int, int]] = {}
    last: dict[tuple[Path, Path], tuple[int, int]] = {}
    found = []
    for path in paths:
        code = code_of(path)
        for i in range(len(code) - WINDOW + 1):
            window = code[i : i + WINDOW]
            if sum(len(tokens) for _, tokens in window) < TOKENS:
                continue
            shape = hash(shape_of(window))
            other, j, number = seen.setdefault(shape, (path, i, window[0][0]))
            if (other, j) == (path, i) or (other == path and i - j < WINDOW):
                continue
            before = last.get((path, other))
            last[path, other] = (i, j)
            if before is None or i - before[0] > WINDOW:
                found.append((f"{name(other, root)}:{number}", f"{name(path, root)}:{window[0][0]}"))
    return found


def test_no_two_places_share_twelve_lines() -> None:
    generated = set(generated_files())
    paths = [p for p in files(".py", ".c", ".h", ".cu", ".cuh") if name(p) not in generated]
    found = [
        (one, other)
        for one, other in duplicates(paths)
        if frozenset({one.rpartition(":")[0], other.rpartition(":")[0]}) not in ALLOWED
    ]
    assert not found, "write these once, or give the reason in ALLOWED:\n" + "\n".join(
        f"{one} and {other}" for one, other in found
    )


@pytest.mark.parametrize("suffix", [".py", ".c"])
def test_a_planted_duplicate_is_found(tmp_path: Path, suffix: str) -> None:
    line = {".py": "    {a}.{b}[{i}] = f({a}, {c}, {i} + 1)", ".c": "    {a}.{b}[{i}] = f({a}, {c}, {i} + 1);"}[suffix]
    for file, (a, b, c) in {"one": ("left", "top", "size"), "two": ("right", "bottom", "count")}.items():
        body = "\n".join(line.format(a=a, b=b, c=c, i=i) for i in range(WINDOW))
        text = f"def {file}():\n{body}\n" if suffix == ".py" else f"void {file}(void)\n{{\n{body}\n}}\n"
        (tmp_path / f"{file}{suffix}").write_text(text)
    assert len(duplicates(sorted(tmp_path.iterdir()), tmp_path)) == 1
