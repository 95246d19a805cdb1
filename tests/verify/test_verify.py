"""``python -m tlrt verify``: options, exit status, JSON, the user's own arrays, the line that repeats a failure."""

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

from tests import exit_status
from tlrt import context
from tlrt.verify import command as verify
from tlrt.verify import run as verify_run
from tlrt.verify import verifier
from tlrt.verify.inputs import InputError, cases_of, infer
from tlrt.verify.report import Failure, Report, Result, count_entries, summarise
from tlspec import registry
from tlspec.bounds import Bound
from tlspec.compare import Comparison
from tlspec.draw.cases import EDGES, PATH, Case, data_classes, draw_case
from tlspec.registry import Op


def some(where: object) -> Op:
    return next(r for r in registry.operations() if where(r))  # type: ignore[operator]


ELEMENTWISE = some(lambda r: r.signature.elementwise and not r.signature.params and len(r.signature.inputs) == 1)
SLIDING = registry.get("avg_pool")
SHAPED = some(lambda r: len(r.signature.inputs) == 2 and len(r.signature.buffers) == 2 and len(r.signature.dims) >= 3)


def test_one_operation(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert verify.main(["--ops", SHAPED.name, "--cases", "2", "--device", "cpu", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert SHAPED.name in text and "pass" in text
    document = json.loads(out.read_text())
    assert document["verdict"] == "pass"
    assert {"devices", "build", "versions", "started", "seconds", "seed", "command"} <= set(document)
    assert document["command"] == f"python -m tlrt verify --ops {SHAPED.name} --cases 2 --device cpu --json result.json"
    assert document["versions"]["numpy"] == np.__version__ and {"python", "system"} < set(document["versions"])
    sizes = {r["entry"]: (r["cases"], r["elements"]) for r in document["results"]}
    assert all(elements > cases for cases, elements in sizes.values()), sizes
    assert {r["entry"] for r in document["results"]} == {SHAPED.name, f"{SHAPED.name}_bwd"}
    assert all({"share", "ulp", "cases", "identical", "failures"} <= set(r) for r in document["results"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--ops", "no_such_op"], ["--data", "nonsense"], ["--cases", "0"], ["--device", "abacus"],
        ["--inputs", "/nowhere.npz"], ["--json", "/nowhere/result.json"], ["--json", "/"], ["--ops", ""],
        ["--data", ""], ["--device", ""], ["--inputs", ""], ["--json", ""],
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_command_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "run_checks", lambda *_: pytest.fail("it ran"))
    assert exit_status(verify.main, arguments) == 2 and capsys.readouterr().err


def test_json_file_keeps_its_content_until_the_end(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    out.write_text("old")
    assert_raises(SystemExit, verify.main, ["--ops", ELEMENTWISE.name, "--device", "abacus", "--json", str(out)])
    assert out.read_text() == "old"
    with pytest.raises(SystemExit):
        verify.main(["--ops", ELEMENTWISE.name, "--device", "abacus", "--json", str(tmp_path / "new.json")])
    assert not (tmp_path / "new.json").exists()


def test_failure_gives_status_and_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from tlrt import Buffer, kernels

    original = getattr(kernels, ELEMENTWISE.name)

    def wrong(x: Buffer, *, out: Buffer | None = None) -> Buffer:
        y = original(x, out=out)
        return y.fill(42.0) if len(y) else y

    monkeypatch.setattr(kernels, ELEMENTWISE.name, wrong)
    assert verify.main(["--ops", ELEMENTWISE.name, "--device", "cpu"]) == 1
    text = capsys.readouterr().out
    assert "FAIL" in text and "got 42.0" in text
    line = next(line for line in text.splitlines() if line.strip().startswith("python -m tlrt verify"))
    assert verify.main(shlex.split(line)[4:]) == 1 and capsys.readouterr().out.count("got 42.0") == 1


@pytest.mark.parametrize("math", [[], ["--math", "reproducible"]], ids=["fast", "reproducible"])
def test_failure_of_a_variant_gives_a_line_with_its_options(
    math: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = verify_run.Runtime.run
    within: list[str | None] = [None]

    def marked(variant: str | None = None, threads: int = 0) -> contextlib.AbstractContextManager[None]:
        @contextlib.contextmanager
        def settings() -> Iterator[None]:
            within[0] = variant
            try:
                yield
            finally:
                within[0] = None

        return settings()

    def run(self: verify_run.Runtime, case: Case, **options: object) -> list[np.ndarray | None]:
        if within[0] == "base":
            raise RuntimeError("planted")
        return original(self, case, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(verifier, "cpu_settings", marked)
    monkeypatch.setattr(verify_run.Runtime, "run", run)
    arguments = ["--ops", ELEMENTWISE.name, "--device", "cpu", "--cases", "1", "--size", "small", *math]
    assert verify.main(arguments) == 0
    capsys.readouterr()
    assert verify.main([*arguments, "--variants"]) == 1
    lines = [s.strip() for s in capsys.readouterr().out.splitlines() if s.strip().startswith("python -m tlrt verify")]
    assert lines and all(line.endswith(" ".join(["", "--variants", *math])) for line in lines)
    assert verify.main(shlex.split(lines[0])[4:]) == 1


def loosened(bound: Bound, output: int) -> Bound:
    """A bound that allows a thousand times as much of one output."""

    def function(*arguments: Any) -> list[Any]:
        return [t * (1000 if i == output else 1) for i, t in enumerate(bound.function(*arguments))]

    return replace(bound, function=function)


@pytest.mark.parametrize(
    ("name", "which", "output"),
    [("safe_log", "forward", 0), ("reduce_sum_axis1", "forward", 0), ("div", "vjp", 1), ("rotary", "vjp", 0)],
)  # fmt: skip
def test_a_bound_that_nothing_comes_near_fails(name: str, which: str, output: int) -> None:
    """Of one output too, beside others that are come near; not where a run tries too little to say so."""
    row = registry.get(name)
    if which == "forward":
        loose = replace(row, bound=loosened(row.bound, output))
    else:
        loose = replace(row, vjp_rule=replace(row.rule, bound=loosened(row.rule.bound, output)))
    checks = verifier.Verifier({"cpu": verify_run.Runtime("cpu")}, verifier.Settings())
    checks.check_laws = lambda *_: None  # type: ignore[method-assign]
    checks._repetitions = lambda *_: iter(())  # type: ignore[method-assign]
    if which == "vjp":
        assert checks.check(row, which)[0].ok
    (wrong,) = checks.check(loose, which)
    (failure,) = wrong.failures
    assert failure.kind == "slack" and failure.detail.startswith(f"{row.signature_of(which).outputs[output].name}: ")
    checks.settings = verifier.Settings(cases=1)
    assert checks.check(loose, which)[0].ok


def test_law_that_raises_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> tuple[float, str]:
        raise RuntimeError("planted")

    monkeypatch.setattr(verifier.laws, "check", broken)
    row = some(lambda r: r.contract.laws)
    results = verifier.Verifier({"cpu": verify_run.Runtime("cpu")}, verifier.Settings(cases=1)).check(row, "forward")
    failures = [f for r in results for f in r.failures]
    assert {f.kind for f in failures} == {"law"}
    assert all("RuntimeError: planted" in f.detail for f in failures)
    law = row.contract.laws[0]
    places = [f.detail.partition(": ")[0] for f in failures[:2]]
    assert places == [f"{law} on the device", f"{law} on the reference"]
    assert results[0].cases > 0  # the cases were run all the same


def test_a_plan_has_every_size_of_each_data_class() -> None:
    row = some(lambda r: len(r.drawing.paths) > 1)
    classes, sizes = data_classes(row, "forward"), ["medium", EDGES, "small", EDGES, "small", EDGES, "medium"]
    plan = [*verifier.plan_cases(row, "forward", verifier.Settings(cases=7, seed=3))]
    drawn, (large, *paths) = plan[: 7 * len(classes)], plan[7 * len(classes) :]
    assert drawn == [(3 + i, data, size) for data in classes for i, size in enumerate(sizes)]
    assert large == (3, classes[0], "large") and [(i, size) for i, _, size in paths] == [
        (i, PATH) for i in range(len(row.drawing.paths))
    ]
    assert {data for _, data, _ in paths} == set(classes[: len(paths)])
    few = verifier.Settings(cases=2, size="small", data=("normal",))
    assert [*verifier.plan_cases(row, "forward", few)] == [(0, "normal", "small"), (1, "normal", "small")]
    assert len([*verifier.plan_cases(row, "forward", verifier.Settings(cases=5))]) == 5 * len(classes)


def test_repetitions_take_turns() -> None:
    """Each variant with one thread and with two; each choice of gradients but none and all."""
    runtime = verify_run.Runtime("cpu")
    checks = verifier.Verifier({"cpu": runtime}, verifier.Settings(variants=True))

    def labels(name: str, which: str) -> set[str]:
        cases = [draw_case(name, seed, "normal", "small", which) for seed in range(8)]
        return {r.label for case in cases for r in checks._repetitions(case, runtime)}

    assert {f"with {v} and {n} threads" for v in checks.variants for n in (1, 2)} < labels("relu", "forward")
    names = [a.name for a in registry.get("layer_norm").vjp_signature.outputs]
    chosen = [", ".join(names[i] for i in range(3) if k >> i & 1) for k in range(1, 7)]
    assert {f"when only {text} is wanted" for text in chosen} < labels("layer_norm", "vjp")


@pytest.mark.parametrize("share", [1.0, 1.5])
def test_a_law_that_is_broken_is_a_failure(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier.laws, "check", lambda *_: (share, "there"))
    row = some(lambda r: r.contract.laws)
    checks = verifier.Verifier({"cpu": verify_run.Runtime("cpu")}, verifier.Settings(cases=1, size="small"))
    (result,) = checks.check(row, "forward")
    assert result.laws and {f.kind for f in result.failures} == ({"law"} if share > 1 else set())


@pytest.mark.parametrize("wrong", [None, 0, 1])
def test_bits_of_a_second_device_are_those_of_the_first(wrong: int | None) -> None:
    """The verdict stays, whatever cases follow; the line is that of the case with the largest error."""

    class Second(verify_run.Runtime):
        def run(self, case: Case, **options: Any) -> list[np.ndarray | None]:
            return [y if case.seed != wrong else np.nextafter(y, np.inf) for y in super().run(case, **options)]

    checks = verifier.Verifier({"cpu": verify_run.Runtime("cpu"), "cuda": Second("cpu")})
    cases = [draw_case(ELEMENTWISE, seed, "normal", "small") for seed in range(3)]
    first, second = checks.check(ELEMENTWISE, "forward", cases)
    assert first.identical is None and first.ok and second.identical is (wrong is None)
    assert [f.device for f in second.failures if f.kind == "bits"] == ["cpu,cpu"] * (wrong is not None)
    assert wrong is None or f"--seed {wrong} " in f"{second.worst_line} "


def test_own_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = draw_case(SHAPED, 5, "normal", "small")
    arrays = {k: x.astype(np.float64) for k, x in case.inputs.items() if x is not None}
    np.savez(tmp_path / "own.npz", **arrays, **case.params)
    assert verify.main(["--ops", SHAPED.name, "--inputs", str(tmp_path / "own.npz"), "--device", "cpu"]) == 0
    values, given = infer(SHAPED, {**arrays, **{k: np.asarray(v) for k, v in case.params.items()}})
    assert {d: values[d] for d in case.dims} == case.dims
    assert all(np.array_equal(given[k], case.inputs[k]) for k in arrays)  # type: ignore[arg-type]


def test_own_arrays_in_a_file_whose_name_needs_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my arrays; (1).npz"
    case = draw_case(SHAPED, 5, "normal", "small")
    np.savez(path, **{k: x for k, x in case.inputs.items() if x is not None}, **case.params)
    failed = Comparison(False, 2.0, 2.0, 1, 1, (0,))
    monkeypatch.setattr(verifier, "compare_outputs", lambda _, outs: [failed] * len(outs))
    assert verify.main(["--ops", SHAPED.name, "--inputs", str(path), "--device", "cpu"]) == 1
    lines = [s.strip() for s in capsys.readouterr().out.splitlines() if s.strip().startswith("python -m tlrt verify")]
    assert lines and all(str(path) in shlex.split(line) for line in lines)


def test_options_reach_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs: list[Any] = []
    monkeypatch.setattr(verify, "run_checks", lambda *given, **named: runs.append((*given, *named.values())))
    words = shlex.split("--ops relu --device 'cpu, cpu' --data 'normal, special' --cases 3 --seed 5 --size small")
    assert verify.main([*words, "--variants", "--math", "reproducible", "--jobs", "4"]) == 1  # nothing was checked
    checks, work, report, jobs, _ = runs.pop()
    assert checks.settings == verifier.Settings(3, 5, "small", ("normal", "special"), True, False, "reproducible")
    assert checks.runtimes["cpu"].device.math == "reproducible" and checks.variants and jobs == 4 and report.seed == 5
    assert [(row.name, which) for row, which, _ in work] == [("relu", "forward"), ("relu", "vjp")]
    np.savez(tmp_path / "own.npz", x=np.ones(3))
    own = ["--ops", "relu", "--inputs", str(tmp_path / "own.npz"), "--jobs", "4"]
    alone = [(4, words, 1) for words in (["--trace"], ["--ops", "relu"], own)]
    for cores, words, jobs in ((32, [], verify.MOST_JOBS), (1, [], 1), *alone):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: range(cores))
        assert verify.main(["--device", "cpu", *words]) == 1 and runs.pop()[3] == jobs, words
    said = verify.verify_drawn(["cpu"], "relu", 2, math="reproducible").command
    assert said == "python -m tlrt verify --cases 2 --math reproducible"
    checks, *_ = runs.pop()
    assert checks.settings == verifier.Settings(2, math="reproducible")
    monkeypatch.setattr(verify.signal, "signal", lambda *_: None)
    monkeypatch.setattr(verify, "_verifier", None)
    verify._start_process(["cpu"], checks.settings)  # as each of several processes begins
    assert checks.runtimes["cpu"].device.math == verify._verifier.runtimes["cpu"].device.math == "reproducible"


def test_damaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tmp_path / "whole.npz"
    np.savez_compressed(whole, x=np.arange(1000.0))
    content = whole.read_bytes()
    np.save(tmp_path / "array.npy", np.arange(3.0))
    np.savez(tmp_path / "objects.npz", x=np.array([None, 1], dtype=object))
    spoilt = bytearray(content)
    spoilt[60:120] = bytes(60)
    files = {
        "empty": b"", "renamed": (tmp_path / "array.npy").read_bytes(), "truncated": content[: len(content) // 2],
        "beginning": content[:10], "spoilt": bytes(spoilt), "text": b"1, 2, 3",
        "objects": (tmp_path / "objects.npz").read_bytes(),
    }  # fmt: skip
    for name, data in files.items():
        path = tmp_path / f"{name}.npz"
        path.write_bytes(data)
        assert_raises_regex(InputError, re.escape(str(path)), list, cases_of(path, [ELEMENTWISE], named=True))
        words = ["--ops", ELEMENTWISE.name, "--inputs", str(path), "--device", "cpu"]
        assert exit_status(verify.main, words) == 2 and "--inputs: " in capsys.readouterr().err


def test_own_numbers_out_of_range(tmp_path: Path) -> None:
    """Integers below 0, or of more bits than they cross with; products of 2^32 or more; more than 8 axes."""
    for row in registry.ops():
        case = draw_case(row, 5, "normal", "small")
        right = {k: x for k, x in case.inputs.items() if x is not None}
        right |= {k: np.asarray(v) for k, v in case.values.items()}
        infer(row, right)
        for name, kind in [(p.name, p.kind) for p in row.signature.params] + [(d, "dim") for d in row.signature.dims]:
            key = name.lstrip("*")
            bits = 64 if kind == "u64" else 32
            if kind == "dims" or name.startswith("*"):
                bad: list[object] = [np.array([-1]), np.array([2**32]), [1] * 9, [0] * 9]
            elif kind == "float":
                bad = [np.zeros(2), "1"]
            else:
                bad = [-1, np.int64(-(2**62)), 1.5, [1, 1], *([2**32] if bits == 32 else [])]
            for value in bad:
                assert_raises_regex(InputError, rf"^{row.name}: ", infer, row, {**right, key: np.asarray(value)})


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main(["--list"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[:2] for words in lines] == [[r.family, r.name] for r in registry.ops()]
    for words, row in zip(lines, registry.ops(), strict=True):
        assert ("no VJP" in " ".join(words)) == (row.vjp_rule is None)
        assert " ".join(words).endswith(" ".join(row.text.split()))
        assert " ".join(row.bound.text.split()) in " ".join(words)
    assert verify.main(["--list", "--ops", SHAPED.name]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--probe"], "probe"), (["--alarms=9"], "alarms"), (["--ops", "add", "--campaign"], "all"),
        (["--report", "x"], "verify"),
    ],
)  # fmt: skip
def test_a_campaign_is_named(words: list[str], command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(verify.main, words) == 2 and f"python -m audit {command}" in capsys.readouterr().err


def test_unreached_geometry_class_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(ELEMENTWISE.drawing.classes, "never", lambda n: n < 0)
    check = verifier.Verifier({"cpu": verify_run.Runtime("cpu")}).check
    (result,) = check(ELEMENTWISE, "forward")
    (failure,) = result.failures
    assert failure.kind == "coverage" and "'never'" in failure.detail
    assert [name for name, count in result.classes.items() if not count] == ["never"] and len(result.classes) == 4
    assert not check(ELEMENTWISE, "forward", [draw_case(ELEMENTWISE, 0, "normal", "small")])[0].failures
    assert verify.main(["--ops", ELEMENTWISE.name, "--device", "cpu"]) == 1
    words = capsys.readouterr().out
    assert "'never'" in words and "geometry classes were reached" in words
    assert verify.main(["--ops", ELEMENTWISE.name, "--device", "cpu", "--size", "small"]) == 0


def test_few_cases_reach_every_geometry_class() -> None:
    """Those of one case besides a class that is never reached, which fails; a run of one data class promises none."""
    row = replace(
        SLIDING, drawing=replace(SLIDING.drawing, classes={**SLIDING.drawing.classes, "never": lambda: False})
    )
    checks = verifier.Verifier({"cpu": verify_run.Runtime("cpu")}, verifier.Settings(cases=1))
    results = checks.check(row)
    assert [r.which for r in results] == ["forward", "vjp"]
    for result in results:
        assert [name for name, count in result.classes.items() if not count] == ["never"]
        (failure,) = result.failures
        assert failure.kind == "coverage" and "'never'" in failure.detail
    checks.settings = verifier.Settings(cases=1, data=("normal",))
    assert all(r.ok and not all(r.classes.values()) for r in checks.check(row))


def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    names, documents = "relu,amin,reduce_sum*", []
    for jobs in ("1", "2"):
        out = tmp_path / f"{jobs}.json"
        assert verify.main(["--ops", names, "--size", "small", "--jobs", jobs, "--json", str(out)]) == 0
        documents.append(json.loads(out.read_text())["results"])
    one, two = ([{**r, "seconds": 0} for r in results] for results in documents)
    assert one == two and len(one) > 4


def _end(name: str, which: str) -> None:
    os._exit(7)


@pytest.mark.parametrize("threads", [None, "3"])
def test_a_process_that_ends_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], threads: str | None
) -> None:
    """And the threads of NumPy's products in this process are as many as before."""
    monkeypatch.setattr(verify, "_check_one", _end)
    monkeypatch.delenv(verify.NUMPY_THREADS, raising=False)
    if threads is not None:
        monkeypatch.setenv(verify.NUMPY_THREADS, threads)
    assert exit_status(verify.main, ["--ops", "relu", "--jobs", "2"]) == 1
    assert "--ops relu --trace" in capsys.readouterr().err
    assert os.environ.get(verify.NUMPY_THREADS) == threads


def test_the_summary_counts_entry_points_and_devices_apart() -> None:
    def summary(devices: list[str], **failed: int) -> str:
        results = [Result("add", f"e{i}", "f", "forward", d, "exact", cases=2) for d in devices for i in range(3)]
        for r in results:
            if int(r.entry[1:]) < failed.get(r.device, 0):
                r.failures.append(Failure(r.entry, r.device, "bound", "", ""))
        return summarise(Report("", 0, "", dict.fromkeys(devices, ""), {}, {}, results)).splitlines()[-1]

    assert summary(["cpu", "cuda"]).startswith("all 3 entry points on each of 2 devices pass: 12 cases on cpu, cuda")
    assert summary(["cpu"]).startswith("all 3 entry points pass: 6 cases on cpu")
    assert summary(["cpu"], cpu=2).startswith("2 of 3 entry points FAILED: 6")
    assert summary(["cpu", "cuda"], cuda=1).startswith("1 on cuda of 3 entry points on each of 2 devices FAILED")
    assert (
        count_entries([("a", "cpu"), ("b", "cpu"), ("a", "cuda")]) == "2 entry points on cpu and 1 entry points on cuda"
    )


def test_settings_end_with_what_they_are_for() -> None:
    before = context.cpu_variant(), context.threads()
    for threads in (1, 3):
        with pytest.raises(ZeroDivisionError), verify_run.cpu_settings("base", threads):
            assert (context.cpu_variant(), context.threads()) == ("base", threads)
            _ = 1 // 0
        assert (context.cpu_variant(), context.threads()) == before


def test_traced_and_reproducible_cases(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A case is named before it runs, and every line that repeats something says how the devices compute."""
    assert exit_status(verify.main, ["--jobs", "0"]) == 2 and "--jobs: expected 1 or more" in capsys.readouterr().err
    monkeypatch.setattr(verify_run.Runtime, "run", lambda *_, **__: [None])
    assert verify.main(["--ops", "relu", "--cases", "1", "--device", "cpu", "--math", "reproducible", "--trace"]) == 1
    said = capsys.readouterr()
    assert "out was not computed" in said.out and "python -m tlrt verify --ops relu" in said.err
    lines = re.findall("python -m tlrt verify.*", said.out + said.err)
    assert len(lines) > 1 and all("--math reproducible" in line for line in lines)


@pytest.mark.parametrize("place", range(3))
def test_an_output_that_is_never_written_is_a_fault(place: int) -> None:
    """In every place, and whichever of the others are wanted."""

    def careless(*, out: Any, **_: Any) -> Any:
        return tuple(x if x is None or k == place else x.fill(0.0) for k, x in enumerate(out))

    case = draw_case("layer_norm", 0, "normal", "small", "vjp")
    names = [a.name for a in case.signature.outputs]
    runtime = verify_run.Runtime("cpu")
    runtime.kernels = SimpleNamespace(**{case.name: careless})
    for others in ((), names[:place], names[place + 1 :], names):
        with pytest.raises(verify_run.Fault, match=rf"^{names[place]}\[.*was never written"):
            runtime.run(case, poison=True, want=[names[place], *others])
    runtime.run(case, poison=True, want=[n for n in names if n != names[place]])


def test_results_of_wrong_sizes_and_spoilt_memory_are_faults() -> None:
    runtime = verify_run.Runtime("cpu")
    cases = [draw_case(row, 1, "normal", "small") for row in (ELEMENTWISE, registry.get("sgd_step"))]
    with context.device("cpu").zeros(1 + cases[0].expected.outputs[0].size) as longer:
        results: list[Any] = [longer, [longer] * (1 + len(cases[1].values["lengths"]))]
        for case, result, said in zip(
            cases, results, ("has .* elements, expected", "elements of lengths"), strict=True
        ):
            with pytest.raises(verify_run.Fault, match=said):
                runtime._fetch(case, case.signature.outputs[0], result)
        with pytest.raises(verify_run.Fault, match="memory beside the output was overwritten"):
            runtime._inspect(cases[0], [], [longer], {})
    assert verifier.far_outputs({"cuda": Result("a", "a", "f", "vjp", "cuda", "x")}) == {}
