"""Random mutants: changes of one line that nobody chose.

The rules are those of universalmutator (Groce et al., "An extensible, regular-expression-based tool for multi-language mutant
generation", ICSE 2018). The sample is drawn over lines, and of a line's mutants one is taken, in Python one that compiles: drawn over mutants, half
of a sample would lie in the few lines that are long sums and comparisons, with many changes of one number. A line's place in
the sample is a hash of the seed and its text, so that an edit elsewhere leaves the sample as it is.

What counts as behaviour in Python is the compiled code without docstrings, annotations and the words of messages: what is
raised, warned of, printed or given to ``refusal``, and the help of a command line. Class variables keep their annotations.
Nor is it behaviour how a law's equation is written for readers, in which order an alias of types lists them, how many results
more than a few a cache keeps, what a generator of problems says around what it names, and in which order a bound takes the
arguments that it is given by name. Of a method that only raises NotImplementedError its name counts: it declares what every class
that is used defines.
"""

import ast
import contextlib
import functools
import hashlib
import io
import random
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from audit.environment import ROOT

#: kind of source -> where it lies, its suffixes, and the rules for it
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "c": (("native/src/core", "native/src/cpu", "native/src/formula"), (".c", ".h", ".def"), ("universal", "c_like", "c")),
    "cuda": (("native/src/cuda",), (".cu", ".cuh"), ("universal", "c_like", "cpp")),
    "python": (("tlrt",), (".py",), ("universal", "python")),
    "specification": (("tlspec",), (".py",), ("universal", "python")),
}  # fmt: skip
GENERATED = "tlrt/kernels.py"
#: lines that say how a source is read, not what it computes
NO_CODE = re.compile(r"\s*(#\s*(include|pragma|error|ifndef|endif)|(import|from)\b|__all__|[\W_]*$)")
#: calls whose texts are messages, and the keywords that hold one in any call
SPEAKING = {
    "refusal",
    "warn",
    "print",
    "ArgumentParser",
    "add_argument",
    "add",
    "Progress",
    "fail",
    "exit",
    "error",
    "write",
}
#: what makes a bound of a function, which is called by name then (:func:`tlspec.bounds.call_named`)
BOUNDS = {"custom", "tree", "ordered", "ulp", "followed"}
#: caches that keep fewer results may be there for what they keep
FEW = 64
MESSAGES = {"help", "description", "epilog", "metavar", "detail", "note", "why", "source"}


@dataclass(frozen=True)
class Mutant:
    """A changed line: `place` counts the lines of that text in the file, from 1."""

    kind: str
    file: str
    line: int
    place: int
    before: str
    after: str

    @property
    def key(self) -> str:
        """The mutant wherever the line stands now."""
        file = self.file if self.place == 1 else f"{self.file}[{self.place}]"
        return f"{file}: {' '.join(self.before.split())} -> {' '.join(self.after.split())}"

    def text(self) -> str:
        """The file with its changed line."""
        lines = read_lines(self.file)
        return "".join([*lines[: self.line - 1], self.after, *lines[self.line :]])


@functools.cache
def read_lines(file: str) -> list[str]:
    return (ROOT / file).read_text(encoding="utf-8").splitlines(keepends=True)


def sources(kind: str) -> list[str]:
    """The files of a kind that are written by hand."""
    folders, suffixes, _ = KINDS[kind]
    found = (p for folder in folders for p in (ROOT / folder).rglob("*") if p.suffix in suffixes)
    return sorted({str(p.relative_to(ROOT)) for p in found} - {GENERATED})


def code_lines(file: str) -> Iterator[tuple[int, str]]:
    """(number, text without comments) of the lines of a source that hold code."""
    text = "".join(read_lines(file))
    if file.endswith(".py"):
        words = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
        silent = {line for n in words for line in range(n.lineno, (n.end_lineno or n.lineno) + 1)}
        lines = [re.sub(r"^\s*#.*", "", line) for line in text.split("\n")]
    else:
        silent = set()
        plain = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
        lines = [re.sub(r"(?<!:)//.*", "", line) for line in plain.split("\n")]
    for number, line in enumerate(lines, 1):
        if number not in silent and not NO_CODE.match(line):
            yield number, line.rstrip() + "\n"


def mutants_of(kind: str, line: str) -> list[str]:
    """What the rules make of a line."""
    from universalmutator import mutator  # an extra that only this needs

    rules = [f"{r}.rules" for r in KINDS[kind][2]]
    given = line.replace("{-", "{ -")  # which begins a comment in a language of the rules
    with contextlib.redirect_stdout(io.StringIO()):
        found = mutator.mutants_regexp([given], rules, ignorePatterns=[])
    return [after for _, after, *_ in found if after != line]


def sample(kind: str, seed: int) -> Iterator[Mutant]:
    """One mutant of every line of a kind, in the order of a seed."""
    order = []
    for file in sources(kind):
        times: Counter[str] = Counter()
        for number, line in code_lines(file):
            times[line] += 1
            name = f"{seed}\0{file}\0{times[line]}\0{line}"
            order.append((hashlib.sha256(name.encode()).digest(), file, number, times[line], line))
    for digest, file, number, place, line in sorted(order):
        found = [Mutant(kind, file, number, place, line, after) for after in mutants_of(kind, line)]
        random.Random(digest).shuffle(found)
        if chosen := next((m for m in found if not file.endswith(".py") or compiles(m.text())), None):
            yield chosen


def ends_its_loop(mutant: Mutant) -> bool:
    """Whether a mutant of C adds ``continue`` to the last statement of a loop, where it changes nothing. The layout is
    clang-format's: a brace closes what the nearest line of its indentation above it opens."""
    if mutant.after.split() != [*mutant.before.split(), "continue;"]:
        return False
    lines = read_lines(mutant.file)
    brace = lines[mutant.line]
    if brace.strip() != "}":
        return False
    indent = brace[: brace.index("}")]
    opening = next(x for x in reversed(lines[: mutant.line]) if x.startswith(indent) and not x[len(indent)].isspace())
    return re.match(r"\s*(for|while) \(.*\{$", opening) is not None


#: where every node of a tree is said to stand
PLACE = ast.Constant("", lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)


class _Silence(ast.NodeTransformer):
    """Empties texts."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.copy_location(ast.Constant(""), PLACE) if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        return ast.copy_location(ast.Constant(""), PLACE)


def _name(node: ast.AST | None) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.Call))


@functools.cache
def called_anywhere() -> frozenset[str]:
    """The names of all functions that are called."""
    files = (f for kind in ("python", "specification") for f in sources(kind))
    return frozenset(_name(c.func) for f in files for c in _calls(ast.parse("".join(read_lines(f)))))


def _called_by_name(tree: ast.Module) -> set[str]:
    """The functions of a module that nobody calls but the bounds that they are given to."""
    given = {
        _name(a) for c in _calls(tree) if _name(c.func) in BOUNDS for a in [*c.args, *(k.value for k in c.keywords)]
    }
    used = Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name))
    own = {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and not n.decorator_list and not n.args.defaults}
    return {n for n in given & own if used[n] == 1} - called_anywhere()


def _is_type(node: ast.expr) -> bool:
    """Whether a node is a type such as ``Mapping[str, Any]``; the order within ``Callable`` is its syntax."""
    name = _name(node.value) if isinstance(node, ast.Subscript) else ""
    plain = (ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.Load)
    return name[:1].isupper() and name != "Callable" and all(isinstance(n, plain) for n in ast.walk(node))


class _Behaviour(ast.NodeTransformer):
    """Takes out what is said, and where it stands."""

    def __init__(self, tree: ast.Module):
        self.by_name = _called_by_name(tree)

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Assign) and _is_type(node.value):
            names = sorted(ast.unparse(n) for n in ast.walk(node.value) if isinstance(n, (ast.Name, ast.Attribute)))
            node.value = ast.Constant(" ".join(names))
        if isinstance(node, ast.FunctionDef) and node.name in self.by_name:
            node.args.args.sort(key=lambda a: a.arg)
        if isinstance(node, ast.Yield) and isinstance(node.value, ast.JoinedStr):
            node.value.values = [v for v in node.value.values if isinstance(v, ast.FormattedValue)]
        if isinstance(node, ast.Call) and _name(node.func) == "lru_cache":
            for k in node.keywords:
                number = ast.unparse(k.value)
                if k.arg == "maxsize" and re.fullmatch(r"[\d\s()+-]+", number):
                    k.value = ast.Constant(min(eval(number), FEW))
        if isinstance(node, ast.Call) and _name(node.func) == "equation" and isinstance(node.args[0], ast.Constant):
            node.args[0].value = ""
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant("")
        node = self.generic_visit(node)
        name = _name(node.func if isinstance(node, ast.Call) else None)
        if isinstance(node, ast.Raise) or name in SPEAKING or (isinstance(node, ast.keyword) and node.arg in MESSAGES):
            node = _Silence().visit(node)
        if isinstance(node, ast.Assert):
            node.msg = None
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
            if is_declaration(node):
                node.args, node.body = ast.arguments([], [], None, [], [], None, []), [ast.Pass()]
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.dump(node.annotation):
            node.annotation = ast.Constant("")
        return ast.copy_location(node, PLACE)


def is_declaration(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function only raises NotImplementedError, or is what a mutant makes of one, `pass`."""
    *words, last = function.body
    raised = isinstance(last, ast.Raise) and isinstance(last.exc, ast.Name) and last.exc.id == "NotImplementedError"
    documented = all(isinstance(w, ast.Expr) and isinstance(w.value, ast.Constant) for w in words)
    return documented and (raised or isinstance(last, ast.Pass))


def compiles(text: str) -> bool:
    """Whether a text is Python."""
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(text, "source", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


@functools.lru_cache(64)
def behaviour(text: str) -> CodeType:
    """The compiled code of a Python source without what is no behaviour."""
    with warnings.catch_warnings(action="ignore"):
        tree = ast.parse(text)
        return compile(ast.fix_missing_locations(_Behaviour(tree).visit(tree)), "source", "exec")
