"""Tables and progress in plain text."""

import io
import sys

import pytest

import tlrt
from tlrt.__main__ import COMMANDS, main
from tlrt._terminal import Progress, format_table


def test_a_table_is_plain_and_whole() -> None:
    long = "x" * 300
    lines = format_table(("name", "number", "text"), [("a[b]c", 1.5, long), ("λ√h", 200, "[red]no[/red]")]).splitlines()
    assert lines[0].split() == ["name", "number", "text"] and set(lines[1]) == {"-"}
    assert lines[2] == f"a[b]c     1.5  {long}" and lines[3] == "λ√h       200  [red]no[/red]"
    assert format_table(("a", "b"), []).splitlines()[0] == "a  b"


def test_progress_of_a_stream_that_is_no_terminal() -> None:
    stream = io.StringIO()
    with Progress(100.0, "sums", stream=stream) as progress:
        for i in range(100):
            progress.advance(note=f"sum [{i}]")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 10 and lines[0].startswith(" 10.0 %") and lines[0].endswith("sum [9]")
    assert lines[-1].startswith("100.0 %") and "\x1b" not in stream.getvalue()


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
