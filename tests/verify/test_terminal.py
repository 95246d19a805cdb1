"""Tables and progress in plain text."""

import io
import os
import sys
from pathlib import Path

import pytest

import tlrt
from tlrt import _terminal
from tlrt.__main__ import COMMANDS, main
from tlrt._program import load_program
from tlrt._terminal import Progress, format_table
from tlrt.errors import ArgumentError


def test_a_table_is_plain_and_whole() -> None:
    long = "x" * 300
    rows = [("a[b]c", -1.5, long), ("λ√h", "inf", "[red]no[/red]")]
    lines = format_table(("name", "number", "text"), rows).splitlines()
    assert lines[0].split() == ["name", "number", "text"] and set(lines[1]) == {"-"}
    assert lines[2] == f"a[b]c    -1.5  {long}" and lines[3] == "λ√h       inf  [red]no[/red]"
    assert format_table(("a", "b"), []).splitlines()[0] == "a  b"


def test_progress_of_a_stream_that_is_no_terminal() -> None:
    stream = io.StringIO()
    with Progress(100.0, "sums", stream=stream) as progress:
        for i in range(100):
            progress.advance(note=f"sum [{i}]")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 10 and lines[0].startswith(" 10.0 %") and lines[0].endswith("sum [9]")
    assert lines[-1].startswith("100.0 %") and "\x1b" not in stream.getvalue()


def test_progress_counts_its_own_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what an earlier run has finished; with a line also where a tenth takes long."""
    times, stream = iter([0.0, 10.0, 22.0, 31.0, 32.0]), io.StringIO()
    monkeypatch.setattr(_terminal.time, "monotonic", lambda: next(times))
    progress = Progress(100.0, "steps", done=40.0, stream=stream)
    for amount in (10.0, 1.0, 1.0, 80.0):
        progress.advance(amount, "sum")
    assert stream.getvalue().splitlines() == [
        " 50.0 %  1 steps/s  0:50 left  sum", " 52.0 %  0.387 steps/s  2:04 left  sum", "100.0 %  2.88 steps/s  0:00 left  sum",
    ]  # fmt: skip


def test_quantities_and_durations() -> None:
    quantities = {0.12345: "0.123", 999.0: "999", 1e3: "1 k", 2.5e6: "2.5 M", 1e9: "1 G"}
    assert {x: _terminal.format_quantity(x) for x in quantities} == quantities
    durations = {59.4: "0:59", 60.0: "1:00", 3599.0: "59:59", 3600.0: "1:00:00", 7325.6: "2:02:06"}
    assert {x: _terminal.format_duration(x) for x in durations} == durations


def test_a_program_is_of_a_file_or_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    (tmp_path / "mine.py").write_text("import beside\nfrom os import getpid\ndef program():\n    return beside.NAME\n")
    before = list(sys.path)
    assert load_program("op", str(tmp_path / "mine.py"), "program")() == "beside" and sys.path == before
    assert load_program("op", "os.path", "basename") is os.path.basename
    for source, function, said in (("no_such_module_", "f", r"op: PROGRAM: got no_such_module_ \(.*expected a module"),
                                   ("os.path", "sep", r"op: os.path: has no function sep\(session\)"),
                                   (str(tmp_path / "none.py"), "f", "op: FILE: got .*none.py, expected a Python")):  # fmt: skip
        with pytest.raises(ArgumentError, match=said):
            load_program("op", source, function)


def test_progress_of_a_terminal_is_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with Progress(4.0, "sums", stream=stream) as progress:
        for i in range(4):
            progress.advance(note=f"sum [{i}]")
    assert "sum [3]" in stream.getvalue() and "100%" in stream.getvalue() and "100.0 %" not in stream.getvalue()


@pytest.mark.parametrize("command", ["", *COMMANDS])
@pytest.mark.parametrize("called", ["tlrt", "__main__.py"])
def test_usage_names_the_program_as_it_was_called(
    command: str, called: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"/some/where/{called}"])
    with pytest.raises(SystemExit):
        main([*filter(None, [command]), "--help"])
    name = "tlrt" if called == "tlrt" else "python -m tlrt"
    assert capsys.readouterr().out.startswith(f"usage: {name} {command}".rstrip() + " ")


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"tlrt {tlrt.__version__}\n"
