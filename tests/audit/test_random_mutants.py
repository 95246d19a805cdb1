"""Random mutants: which are drawn, what counts as a change, that one of every kind is seen, and that a campaign goes on."""

import ast
import importlib
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from audit import evidence
from audit.build import make
from audit.mutation import random_mutants, random_run, reach
from audit.mutation.checks import OWN, REST, Check, checks, named_tests
from audit.mutation.random_mutants import KINDS, Mutant, behaviour, compiles, read_lines, sample
from audit.mutation.random_run import RandomCampaign
from audit.mutation.suite import Turn, run_limited
from audit.mutation.syntax import Reader, reading
from audit.scratch import Scratch, scratch
from tests import ROOT
from tlrt import Parameter, Session, Tape, TensorRef, capture, nn
from tlrt.audit import Replay
from tlrt.ledger import Sink
from tlrt.optim import ExponentialMovingAverage, Optimizer
from tlrt.tensor import CapturedTensor


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_a_function_of_its_seed(kind: str) -> None:
    pytest.importorskip("universalmutator", reason="the extra `mutation` is not installed")

    def first(seed: int) -> list[Mutant]:
        return list(itertools.islice(sample(kind, seed), 4))

    assert first(1) == first(1)
    assert not {m.key for m in first(1)} & {m.key for m in first(2)}
    for mutant in first(1):
        assert mutant.before.split() != mutant.after.split() and mutant.text() != "".join(read_lines(mutant.file))
        assert (ROOT / mutant.file).suffix != ".py" or compiles(mutant.text())


def test_an_edit_elsewhere_leaves_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("universalmutator", reason="the extra `mutation` is not installed")
    before = [m.key for m in itertools.islice(sample("specification", 1), 8)]
    longer = lambda file: ["added = 1\n", *read_lines(file)]
    monkeypatch.setattr(random_mutants, "read_lines", longer)
    assert len({*before} & {m.key for m in itertools.islice(sample("specification", 1), 9)}) >= 7


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ('def f(x: str) -> int:\n    """Other words."""\n    return x + 1', True),
        ("def f(x):\n    return x + 2", False),
        ("def f(x=0):\n    return x + 1", False),
        ('def f(x):\n    """Words."""\n    # a comment\n    return (x + 1)', True),
    ],
)
def test_behaviour_is_not_words_or_annotations(change: str, same: bool) -> None:
    assert (behaviour(change) == behaviour('def f(x: int) -> int:\n    """Words."""\n    return x + 1')) is same


def test_messages_are_words_and_other_texts_are_not() -> None:
    lines = "if x:\n    raise refusal(E, 'op', f'{x} words')\nname = 'a b'\n"
    for old, new, same in (
        ("words", "others", True),
        ("{x}", "{y}", True),
        ("a b", "a c", False),
        ("if x", "if y", False),
    ):
        assert (behaviour(lines.replace(old, new)) == behaviour(lines)) is same


@pytest.mark.parametrize(
    ("line", "change", "same"),
    [
        ("Values = Mapping[str, Any]", "Values = Mapping[Any, str]", True),
        ("Values = Mapping[str, Any]", "Values = Mapping[str, int]", False),
        ("F = Callable[..., Any]", "F = Callable[Any, ...]", False),
        ("x = table[a, b]", "x = table[b, a]", False),
        ("@lru_cache(maxsize=4096)\ndef f(): pass", "@lru_cache(maxsize=(4096-1))\ndef f(): pass", True),
        ("@lru_cache(maxsize=4096)\ndef f(): pass", "@lru_cache(maxsize=0)\ndef f(): pass", False),
        ("@lru_cache(maxsize=1)\ndef f(): pass", "@lru_cache(maxsize=2)\ndef f(): pass", False),
        ("def p():\n yield f'{a}: got {b}'", "def p():\n yield f'{a}: no {b}'", True),
        ("def p():\n yield f'{a}: got {b}'", "def p():\n yield f'{a}: got {c}'", False),
        ("x = laws.equation('|f(x)| = |x|', f)", "x = laws.equation('|f(x)| = &x|', f)", True),
        ("x = laws.equation('f', f, exact=False)", "x = laws.equation('f', g, exact=False)", False),
        ("def p():\n yield 'name'", "def p():\n yield 'names'", False),
        ("def e_tol(a, b): return a - b\nx = custom(e_tol)", "def e_tol(b, a): return a - b\nx = custom(e_tol)", True),
        ("def e_tol(a, b): return a - b\nx = other(e_tol)", "def e_tol(b, a): return a - b\nx = other(e_tol)", False),
        (
            "def e_tol(a, b): return a\nx = custom(e_tol), e_tol(1, 2)",
            "def e_tol(b, a): return a\nx = custom(e_tol), e_tol(1, 2)",
            False,
        ),
    ],
)
def test_what_nobody_sees_is_no_behaviour(line: str, change: str, same: bool) -> None:
    assert (behaviour(line) == behaviour(change)) is same


def test_declarations_have_no_behaviour_and_are_defined_by_what_is_used() -> None:
    declared = 'def f(self, x):\n    """Words."""\n    raise NotImplementedError\n'
    for old, new, same in (
        ("raise NotImplementedError", "pass", True), ("self, x", "x, self", True), ("(self, x)", "(self)", True),
        ("def f", "def g", False), ("raise NotImplementedError", "return x", False),
        ("NotImplementedError", "ValueError", False), ("raise Not", "x()\n    raise Not", False),
    ):  # fmt: skip
        assert (behaviour(declared.replace(old, new)) == behaviour(declared)) is same, new
    bare = "def f(x):\n    raise NotImplementedError"
    assert behaviour(bare.replace("raise NotImplementedError", "pass")) == behaviour(bare)
    done = "def f(x):\n    return x"
    assert behaviour(done.replace("return x", "pass")) != behaviour(done)
    optimizers = [c for c in Optimizer.__subclasses__() if c is not ExponentialMovingAverage]  # which has no step
    used = [
        Tape,
        Session,
        TensorRef,
        CapturedTensor,
        Parameter,
        capture.Input,
        nn.LSTM,
        nn.GRU,
        Replay,
        *Sink.__subclasses__(),
        *optimizers,
    ]
    for file in random_mutants.sources("python"):
        for node in ast.walk(ast.parse("".join(read_lines(file)))):
            for f in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(f, ast.FunctionDef) and random_mutants.is_declaration(f):
                    base = getattr(importlib.import_module(file[:-3].replace("/", ".")), node.name)
                    heirs = [c for c in used if issubclass(c, base)]
                    assert heirs and all(getattr(c, f.name) is not getattr(base, f.name) for c in heirs), (file, f.name)


REACHED = """
@table(1)
def f(x,
      y=2):
    if (x >
            y):
        return x
    return y

LIMIT = 3

class Kept:
    size: int = LIMIT

    def grow(self):
        return self.size
"""


@pytest.mark.parametrize(
    ("line", "ranges"),
    [
        (2, [(5, 8)]), (4, [(5, 8)]), (5, [(5, 6)]), (6, [(5, 6)]), (7, [(7, 7)]),
        (10, [(10, 10), (13, 13)]), (12, [(16, 16)]), (13, [(13, 13), (16, 16)]), (1, []),
    ],
)  # fmt: skip
def test_the_lines_that_the_tests_of_a_line_run(line: int, ranges: list[tuple[int, int]]) -> None:
    assert reach.ranges_of(REACHED, line) == ranges


def test_a_line_is_tried_by_the_quickest_tests_that_run_it(tmp_path: Path) -> None:
    pytest.importorskip("coverage", reason="the extra `coverage` is not installed")
    tree = tmp_path / "tree"
    texts = {
        "tlrt/__init__.py": "", "tlspec/__init__.py": "",
        "tlrt/half.py": "def half(x):\n    if x % 2:\n        return (x - 1) // 2\n    return x // 2\n",
        "tests/test_half.py": "import subprocess, sys, time\nfrom tlrt.half import half\n"
        "def test_odd():\n    assert half(3) == 1\n"
        "def test_even():\n    time.sleep(0.5)\n    assert half(4) == 2\n"
        "def test_elsewhere():\n    time.sleep(0.1)\n"
        "    subprocess.run([sys.executable, '-c', 'from tlrt.half import half; half(8)'], check=True)\n",
    }  # fmt: skip
    for name, text in texts.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "audit", tree / "audit")
    reach.count(Scratch(tree), tmp_path / "reach", 1)
    found, half = reach.Reach(tmp_path / "reach"), tree / "tlrt/half.py"
    odd, elsewhere, even = (f"tests/test_half.py::test_{name}" for name in ("odd", "elsewhere", "even"))
    for line, tests in ((1, [odd, elsewhere, even]), (3, [odd]), (4, [elsewhere, even])):
        parts = [*found.parts(half, "tlrt/half.py", line)]
        assert [t for part, _ in parts for t in part] == tests
        assert (sum(seconds for _, seconds in parts) > 0.5) == (even in tests)
    half.write_text(texts["tlrt/half.py"] + "\n", encoding="utf-8")
    assert not list(found.parts(half, "tlrt/half.py", 3)), "the file has changed since"


def test_reasons_are_of_lines_that_are_there() -> None:
    assert not [key for key in random_run.REASONS if not random_mutants.find_line(key)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scratch]:
    make("cpu")
    with scratch(tmp_path_factory.mktemp("clean")) as copied:
        yield copied


@pytest.fixture
def open_campaign(
    tree: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RandomCampaign]]:
    """Campaigns of one file whose unchanged tree is the one with all variants, and whose checks are quick."""
    monkeypatch.setattr(random_run, "cpu_variants", lambda: ["base"])
    quick = [
        Check("verify", ("--device", "cpu", "--cases", "1"), "relu"),
        Check("pytest", ("tests/runtime/test_device.py",)),
    ]
    monkeypatch.setattr(random_run, "checks", lambda *_: quick)
    opened: list[RandomCampaign] = []

    def start(**options: Any) -> RandomCampaign:
        opened.append(RandomCampaign(tmp_path / "mutants.jsonl", **options).__enter__())
        opened[-1].clean.update({"": tree, "base": tree})
        return opened[-1]

    yield start
    for campaign in opened:
        campaign.__exit__()


@pytest.mark.parametrize(
    ("kind", "file", "before", "after", "outcome"),
    [
        ("c", "native/src/core/device.c", "if (!ctx)", "if (!cty)", "invalid"),
        ("c", "native/src/core/device.c", "if (!ctx)", "if (ctx == NULL)", "equivalent"),
        ("c", "native/src/cpu/random.c", "/*", "/*/*", "equivalent"),
        ("c", "native/src/core/device.c", "if ((status = tl_threads", "if (!(status = tl_threads", "killed"),
        ("python", "tlrt/context.py", 'return ("cpu", *(', 'return ("cpu", "cpu", *(', "killed"),
        ("specification", "tlspec/ops/elementwise.py", "(x != x) | (x > 0)", "(x != x) | (x < 0)", "killed"),
    ],
)
def test_a_planted_mutant_is_judged(
    open_campaign: Callable[..., RandomCampaign], kind: str, file: str, before: str, after: str, outcome: str
) -> None:
    number, line = next((i, text) for i, text in enumerate(read_lines(file), 1) if before in text)
    mutant = Mutant(kind, file, number, 1, line, line.replace(before, after))
    campaign = open_campaign()
    campaign.judge(mutant)
    assert campaign.rows[mutant.key]["outcome"] == outcome, campaign.rows


@pytest.mark.parametrize("file", ["native/src/core/device.c", "native/src/formula/rows.h", "native/src/cpu/pool.c"])
def test_the_reader_sees_what_is_no_program(tree: Scratch, file: str) -> None:
    reader, text = Reader(tree), "".join(read_lines(file))
    assert reader.error(file, text, Turn()) == ""
    assert reader.error(file, f"{text}break;\n", Turn()).startswith("error: expected identifier")
    assert reader.error("native/src/cuda/pool.cu", "break;", Turn()) == ""  # which no object here is made of


def test_how_a_compiler_reads_a_source() -> None:
    gencode = "-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a"
    words = f"nvcc -O3 {gencode} -MMD -MP -MF o/a.d -c -o o/a.o a.cu"
    assert reading(words.split(), "o/a.o") == [
        "nvcc",
        "-O3",
        "-arch=compute_80",
        "-ptx",
        "-G",
        "-o",
        "/dev/null",
        "a.cu",
    ]
    words = "gcc -O3 -MMD -MP -c -o o/a.o a.c"
    assert reading(words.split(), "o/a.o") == ["gcc", "-O3", "-fsyntax-only", "a.c"]


def test_what_is_sifted_is_left_open(open_campaign: Callable[..., RandomCampaign]) -> None:
    campaign = open_campaign()
    campaign.sift = True
    file = "native/src/core/device.c"
    number, line = next((i, text) for i, text in enumerate(read_lines(file), 1) if "if (!ctx)" in text)
    outcomes = []
    for after in ("if (!cty)", "if (ctx)"):
        mutant = Mutant("c", file, number, 1, line, line.replace("if (!ctx)", after))
        campaign.judge(mutant)
        outcomes.append(campaign.rows[mutant.key]["outcome"])
    assert outcomes == ["invalid", "open"]


def test_a_campaign_goes_on_where_it_ended(
    open_campaign: Callable[..., RandomCampaign], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = "tlrt/tape.py"
    lines = list({text: n for n, text in reversed([*random_mutants.code_lines(file)])}.items())[-9:][::-1]
    drawn = [Mutant("python", file, number, 1, text, f"after {i}") for i, (text, number) in enumerate(lines)]
    monkeypatch.setattr(random_run, "sample", lambda kind, seed: iter(drawn))
    tried: list[int] = []

    def outcome(
        self: RandomCampaign, mutant: Mutant, folder: Path, cores: object, passed: list[str], times: object
    ) -> tuple[str, str]:
        tried.append(place := drawn.index(mutant))
        if place == 4 and not passed:
            passed.append("verify")
            self.whole.until = 0.0
            raise random_run.OutOfTimeError
        if place == 8:
            raise random_run.OutOfTimeError
        return {1: "invalid", 2: "survived", 3: "equivalent"}.get(place, "killed"), ""

    monkeypatch.setattr(RandomCampaign, "_try", outcome)
    first = open_campaign(seed=1)
    first.run("python", 3)
    assert tried == [0, 1, 2, 3, 4]
    assert first.target is not None
    text = first.target.read_text(encoding="utf-8")
    first.target.write_text(text + text.splitlines()[0][:40], encoding="utf-8")  # ended within a line
    second = open_campaign(seed=1)
    second.run("python", 6)
    assert tried == [0, 1, 2, 3, 4, 4, 5, 6, 7]
    assert second.counts() == {
        "python": {
            "killed": 5,
            "survived": 1,
            "open": 0,
            "equivalent": 1,
            "argued": 0,
            "invalid": 1,
            "first": 0.8333,
            "score": 0.8333,
        }
    }
    (left,) = second.document()["mutants"]["results"]
    assert left["mutant"] == drawn[2].key and left["outcome"] == "survived"
    monkeypatch.setitem(random_run.REASONS, drawn[2].key, "equivalent: the same sum")
    assert second.counts()["python"]["score"] == 1.0
    third = open_campaign(seed=1, again=True)
    third.run("python", 6)
    assert not tried[9:]  # an argument stands without checks
    monkeypatch.delitem(random_run.REASONS, drawn[2].key)
    fourth = open_campaign(seed=1, again=True)
    fourth.run("python", 7)
    assert tried[9:] == [2, 8] and fourth.counts()["python"]["survived"] == 2  # and one out of its own time
    fourth.keep()
    kept = first.target.read_text(encoding="utf-8")
    assert kept.count('"at": "mutants.judged[]"') == 9 and kept.count('"at": "mutants.results[]"') == 2
    assert evidence.load(first.target).parts["mutants"][0]["kinds"] == fourth.counts()
    monkeypatch.setattr(RandomCampaign, "_try", lambda *_: ("killed", "a new test"))
    fifth = open_campaign(seed=1, again=True)
    fifth.run("python", 7)
    assert fifth.counts()["python"]["first"] == 0.7143 and open_campaign(seed=1).counts()["python"]["first"] == 0.7143
    assert fifth.counts()["python"]["score"] == 1
    with pytest.raises(ValueError, match="of seed 1, expected 2"):
        open_campaign(seed=2)


def test_a_row_of_a_line_that_is_gone_is_dropped_and_its_place_judged_again(
    open_campaign: Callable[..., RandomCampaign], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = "tlspec/compare.py"
    (number, line), (other, gone), *_ = random_mutants.code_lines(file)
    stays, goes = (Mutant("specification", file, n, 1, text, "pass\n") for n, text in ((number, line), (other, gone)))
    monkeypatch.setattr(RandomCampaign, "_try", lambda *_: ("killed", "a test"))
    first = open_campaign()
    assert [first.judge(m) for m in (stays, goes)] == [True, True]
    assert [random_mutants.find_line(m.key) for m in (stays, goes)] == [number, other]
    changed = [text if i != other - 1 else "edited = 1\n" for i, text in enumerate(read_lines(file))]
    monkeypatch.setattr(random_mutants, "read_lines", lambda _: changed)
    random_mutants._places.cache_clear()
    try:
        second = open_campaign()
        assert [*second.rows] == [stays.key] and random_mutants.find_line(goes.key) == 0
        assert random_mutants.find_line("tlspec/none.py: a -> b") == 0
        tried: list[str] = []
        monkeypatch.setattr(RandomCampaign, "_try", lambda self, m, *_: ("killed", str(tried.append(m.key))))
        fresh = Mutant("specification", file, other, 1, "edited = 1\n", "edited = 2\n")
        monkeypatch.setattr(random_run, "sample", lambda kind, seed: iter([stays, fresh]))
        second.run("specification", 2)
        assert tried == [fresh.key]
    finally:
        random_mutants._places.cache_clear()


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import time; print(1); time.sleep(99)", None),
        ("import os, signal; os.killpg(0, signal.SIGKILL)", -9),
        # the limits are set a moment after the start
        ("import time; time.sleep(1); x = bytearray(7 << 30)", 1),
        ("import time; time.sleep(1); open('tmp/x', 'wb').truncate(4 << 30)", 1),
        ("import os; print(os.sched_getaffinity(0))", 0),
    ],
)
def test_a_mutant_is_held_in(tree: Scratch, code: str, status: int | None) -> None:
    found, said = run_limited(
        tree, [sys.executable, "-c", code], patience=60, silence=3, turn=Turn([min(os.sched_getaffinity(0))])
    )
    assert found == status, said


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_has_a_quick_check_first_and_every_folder_last(kind: str, tree: Scratch) -> None:
    for file in random_mutants.sources(kind):
        found = list(checks(kind, file, tree))
        own = "/core/" in file or "cuda/runtime/" in file  # whose own tests take less than all operations
        assert own or (len(set(found)) == len(found) and found[0].tool in ("import", "verify")), file
        assert {w.split("/")[1] for c in found for w in c.words if w.startswith("tests/")} >= {
            "spec", "kernels", "verify", "runtime", "audit", "examples", "bench"}, file  # fmt: skip


def test_every_test_has_its_turn() -> None:
    """In the checks that come last; and every file that is named is there."""
    last = [p for words in REST for word in words.split() for p in ROOT.glob(word)]
    found = {file for p in last for file in ([p] if p.is_file() else p.rglob("test_*.py"))}
    assert {p for p in (ROOT / "tests").rglob("test_*.py") if p.parent.name != "repo"} == found
    assert [w for ends in OWN.values() for w in named_tests(ends) if not list(ROOT.glob(w))] == []


def test_a_loop_that_goes_on_at_its_end_does_so_anyway():
    """Of the lines of a file, those before the brace that closes a loop; not those within, nor at the end of a function."""
    file = "native/src/formula/conv_geometry.h"
    idle = {
        line.strip()
        for number, line in random_mutants.code_lines(file)
        if random_mutants.ends_its_loop(
            random_mutants.Mutant("c", file, number, 1, line, line.replace(";", "; continue;", 1))
        )
    }
    assert idle == {
        "plain_before = plain;",
        "g.kernel_base[d] = g.to_base[d] = 0;",
        "g.taps_size *= g.taps[d];",
        "t /= g->taps[d];",
        "b = rest;",
    }
    for file, line, ends in (
        ("cpu/pool.c", "own, end, &b);", True),
        ("cpu/pool.c", "row = row * v->o[i] + at[i];", False),
        ("cuda/conv/mma_weights.cu", "tl_split_dekker(x[i], ah[i], al[i]);", True),
    ):
        tree = random_mutants.read_lines(f"native/src/{file}")
        number = next(i for i, text in enumerate(tree, 1) if text.strip() == line)
        after = tree[number - 1].replace(";", "; continue;")
        mutant = random_mutants.Mutant("c", f"native/src/{file}", number, 1, tree[number - 1], after)
        assert random_mutants.ends_its_loop(mutant) is ends


@pytest.mark.parametrize(("change", "alone"), [("(16+1)", True), ("1", True), ("ivdep", False)])
def test_unrolling_is_no_behaviour(change: str, alone: bool) -> None:
    line = '_Pragma("GCC unroll 16") for (k = 0; k < n; k++)\n'
    for after in (line.replace("16", change), line.replace("16", change).replace("< n", "<= n")):
        same = alone and "<=" not in after
        assert random_mutants.changes_unrolling_alone(Mutant("c", "x.c", 1, 1, line, after)) is same
