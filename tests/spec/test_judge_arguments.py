"""What the judge takes for a kernel, a reference and a case, and what it refuses."""

import argparse
import inspect
import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.spec.test_judge import softmax, softmax_vjp
from tlspec import __main__ as command
from tlspec import arrays
from tlspec.__main__ import main
from tlspec.draw.cases import draw_case
from tlspec.judge import check, checking, commands
from tlspec.judge.arithmetic import MIXED, arithmetic
from tlspec.judge.kernel import Kernel

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


FROZEN = type("Frozen", (arrays.NumPy,), {"mutable": False})("")


def test_what_a_kernel_takes_follows_from_its_parameters() -> None:
    """Names, with "=", where all that it demands are known. Without need no result is given that cannot be written."""
    case, random = (draw_case(op, 0, "normal", "small") for op in ("rms_norm", "rand_uniform"))
    words = ("x, /, gamma, eps", "a, *b", "x, **k", "rows, cols", "a, b, /, *, c=0", "x, gamma, y=3", "gamma, out=None")
    names = ("x gamma eps", "x gamma eps", "=x", "x gamma", "x gamma", "=x =gamma", "=gamma =out")
    for (text, wanted), library in itertools.product(zip(words, names, strict=True), (arrays.get("numpy"), FROZEN)):
        found = Kernel(eval(f"lambda {text}: None"), library, case)
        taken = wanted.replace(" =out", "" if library is FROZEN else " =out")
        assert [*found.positional, *(f"={n}" for n in found.keywords)] == taken.split(), text
        assert found.written == ["out"] * ("out" in taken)
    assert Kernel(lambda n, key: None, FROZEN, random).keywords == {"n": "n", "key": "key"}


def test_what_a_kernel_takes_and_returns() -> None:
    """Results may have names, and not all arrays can be written."""
    assert check(lambda x: {"out": softmax(x)}, "softmax", cases={"small": 4}, data="normal", empty=False).ok
    for wrong, message in (([[x] for x in "ab"], "ps_out: a list of 1, expected one array of shape ("),
                           ([1, 2, 3], "returned 3 results, expected 2: ps_out of shape (")):  # fmt: skip
        report = check(lambda ps, gs, vs, wrong=wrong: wrong, "momentum_step", isolate=False, case="0:normal:medium")
        assert report.findings[0].text.startswith(message)
    with pytest.raises(ValueError, match="arrays cannot be written, so the kernel cannot take out"):
        check(lambda x, out: None, "softmax", array=FROZEN, arguments="x, out")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"op": "softmax", "ulp": "small"}, "ulp='small': expected documented, cuda"),
     ({"op": "softmax", "cases": {"huge": 1}}, "no size 'huge'; there are small"),
     ({"op": "softmax", "case": "normal:small"}, "expected SEED:DATA:SIZE, as in 3:normal:small"),
     ({"op": "softmax", "case": "0:normal:small; depth=2"}, "softmax has no depth; it has rows, cols"),
     ({"op": "reduce_sum_axis", "case": "0:normal:small; axis=9"}, "reduce_sum_axis refuses these lengths"),
     ({"op": "global_norm", "case": "0:normal:small; count=2"}, "global_norm refuses these lengths"),
     ({"reference": softmax}, "reference= needs inputs="),
     ({"reference": softmax, "inputs": "x[*dims]"}, "say the shapes of the results"),
     ({"reference": softmax, "inputs": "x[m, n] -> out[n]", "bound": "row"}, r"returned shapes .*, the signature says"),
     ({"reference": lambda x: np.linalg.det(x), "inputs": "x[b, 2, 2] -> out[b]"}, "does not know numpy.det")],
)  # fmt: skip
def test_what_a_check_cannot_do_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        check(softmax, **options)


@pytest.mark.parametrize(
    ("inputs", "reference"),
    [("x[*]; k: u32 = 2", lambda x, k: x * k), ("x[*]; seed: u64", lambda x, seed: x * (seed % 3)),
     ("x[*]; axes: dims", lambda x, axes: x * len(axes)), ("x[m, n]; k: u32 = 2", lambda x, k: x.T * k),
     ("x[m, n], at: index[k] -> out[k, n]", lambda x, at: x[at])],
)  # fmt: skip
def test_references_of_other_arguments(inputs: str, reference: Callable[..., Any]) -> None:
    options: dict[str, Any] = {"reference": reference, "inputs": inputs, "cases": 4, "data": "uniform", "empty": False}
    right = lambda *a: np.asarray(reference(*a), np.float32)
    assert check(right, **options).ok
    assert check(lambda *a: right(*a) + 1, fail_fast=True, **options).verdict == "fail"


#: what a line says in other words, or needs not: the case is that of the finding
NOT_SAID = {"array", "backward", "backward_arguments", "case", "cases", "data", "empty", "fail_fast", "function", "inputs",
            "memory", "mixed", "op", "progress", "reference", "repeats", "seed", "sensitive", "shapes", "timeout"}  # fmt: skip
SAID: dict[str, Any] = {
    "dtype": "float64", "out_dtype": "float64", "arguments": "x, gamma, eps", "bound": "row", "accumulate": "float64",
    "height": "pairwise", "ulp": "cuda", "products": "tf32", "intermediate": "float64", "flush": True, "saturate": True,
    "full_range": True, "layouts": "contiguous", "refuses": "empty", "fixed": {"eps": 1e-5}, "formulas": "cast", "isolate": False,
}  # fmt: skip


def test_every_word_of_a_check_is_one_of_its_line_or_needs_not_be() -> None:
    assert set(inspect.signature(check).parameters) == NOT_SAID | SAID.keys()


@pytest.mark.parametrize("name", SAID)
def test_a_line_repeats_what_the_check_was_told(name: str) -> None:
    words = {name: SAID[name]} | ({"dtype": "float16"} if name == "formulas" else {})
    report = check(lambda x, gamma, eps: 2 * x, "rms_norm", case="0:normal:small", **words)
    said = str(SAID[name]) if isinstance(SAID[name], bool) else repr(SAID[name])
    assert f"{name}={said}" in report.findings[0].repeat


@pytest.mark.parametrize("mixed", ["", *MIXED])
def test_what_is_said_of_a_kernel_reaches_its_model(mixed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its process; words of one's own replace those of a mix."""
    told: list[Any] = []
    spied = lambda of: lambda *given, **words: (told.append((given, words)), of(*given, **words))[1]
    for name in ("kernels_of", "arithmetic"):
        monkeypatch.setattr(checking, name, spied(getattr(checking, name)))
    usual = {n: p.default for n, p in inspect.signature(arithmetic).parameters.items() if n != "format"}
    mine = {n: SAID[n] for n in usual} | {"dtype": "float64", "out_dtype": "float16", "timeout": 9.0, "memory": 2**33}
    for own in ({}, mine):
        report = check(np.exp, "exp", cases={}, mixed=mixed, **own)
        (opened, _), ((format,), model) = told[-2:]
        said = {"dtype": "float32", **MIXED.get(mixed, {}), **own}
        assert opened[2:] == (None, own.get("timeout"), own.get("memory")) and format.name == said["dtype"]
        assert model == {n: said.get(n, usual[n]) for n in usual}
        assert report.format == " -> ".join(dict.fromkeys([said["dtype"], said.get("out_dtype", said["dtype"])]))


def test_one_case_of_a_gradient_and_the_progress_of_a_check() -> None:
    said: list[str] = []
    report = check(softmax, "softmax", backward=softmax_vjp, case="vjp:0:normal:small", progress=said.append)
    assert report.ok and [(r.which, r.cases) for r in report.rows] == [("vjp", 1)] and not said
    report = check(softmax, "softmax", cases={"small": 1, "medium": 0, "edges": 0, "large": 0}, empty=False,
                   progress=said.append, sensitive=False, accumulate="probe")  # fmt: skip
    report.assert_ok()
    assert said[-1] == f"forward: case {len(said)} of {len(said)}" and "defects" not in str(report)
    assert report.assumptions == "any order of sums"  # softmax has no sums of which the probe could choose the terms


def test_the_rows_own_bound_knows_the_bits_of_moved_numbers() -> None:
    kept: dict[str, Any] = {"bound": "row", "case": "1:special:small"}
    assert check(lambda x: x.T.copy(), "transpose2d", **kept).ok
    assert not check(lambda x: np.where(np.isnan(x), -x, x).T.copy(), "transpose2d", **kept).ok


def test_the_command_in_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    words = "check tests.spec.test_judge:softmax --op softmax --cases 1 --no-empty --data normal"
    assert main(words.split()) == 0
    out, err = capsys.readouterr()
    assert "pass: " in out and "\rforward: case 1 of " in err and err.endswith("\r")
    for kernel, message in (("softmax", "expected MODULE:FUNCTION or"), ("missing.py:softmax", "missing.py: no such file"),
                            ("no_such_module:softmax", "No module named 'no_such_module'")):  # fmt: skip
        assert main(["check", kernel, "--op", "softmax"]) == 2
        assert message in capsys.readouterr().err


#: by command: the function that it calls, where it is, and the words that it needs
COMMANDS: dict[str, tuple[Any, str, list[str]]] = {
    "check": (command, "check", ["numpy:exp", "--op", "exp"]),
    "invariance": (commands, "invariance", ["numpy:exp", "--inputs", "x[batch, 4]"]),
    "task": (commands, "check_task", ["task.py", "--with", "kernel.py"]),
}
#: values of options that are neither any word nor a number; and options that say what becomes of a report
VALUES = {"--reference": "numpy:log", "--shapes": "rows=4", "--fixed": "eps=2", "--length": "seq=3", "--set": "N=3"}
WRITTEN = {"--json", "--html", "--hashes", "--help"}
#: what a command says in one line
WRONG = (ValueError, KeyError, ImportError, RuntimeError, TypeError)
MEANT = {"--no-empty": "empty", "--in-process": "isolate", "--length": "lengths", "--set": "constants"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_passed_on(name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Each alone changes what is called, in the word of its name. What is wrong is said, with a status of its own."""
    module, function, needed = COMMANDS[name]
    calls: list[Any] = []
    options: dict[str, argparse.Action] = {}
    add = argparse.ArgumentParser.add_argument

    def called(*given: Any, **words: Any) -> Any:
        calls.append((given, {k: v for k, v in words.items() if k != "progress"}))
        raise WRONG[len(calls) % len(WRONG)]("called")

    def added(self: argparse.ArgumentParser, *words: Any, **more: Any) -> Any:
        found = add(self, *words, **more)
        options.update({words[0]: found} if self.prog.endswith(f" {name}") else {})
        return found

    monkeypatch.setattr(module, function, called)
    monkeypatch.setattr(argparse.ArgumentParser, "add_argument", added)
    main([name, *needed])
    for option, action in options.items():
        if not option.startswith("--") or option in WRITTEN:
            continue
        value = [] if action.nargs == 0 else [VALUES.get(option, "3" if action.type in (int, float) else "fp16")]
        assert main([name, *needed, option, *value]) == 2 and ": called (test_judge_arg" in capsys.readouterr().err
        for wrong in ("N", "N=", "N=x") if option in ("--length", "--set") else ():
            assert main([name, *needed, option, wrong]) == 2 and f"{option}: got {wrong}," in capsys.readouterr().err
        word = MEANT.get(option, option.lstrip("-").replace("-", "_"))
        changed = {k for k, v in calls[-1][1].items() if v != calls[0][1].get(k)}
        assert calls[-1] != calls[0] and changed == ({word} if calls[-1][0] == calls[0][0] else set()), option
