"""The table of dishonest kernels says what is: each is judged, and compared once as a test of one's own would."""

import subprocess
import sys

import pytest

from audit.judge import dishonest
from audit.judge.dishonest import DISHONEST, Dishonest
from tests import ROOT, python_path

#: each in a process of its own, as some end it or replace what others use
ONCE = """
import os
import torch
from audit.judge.dishonest import DISHONEST, example
torch.testing.assert_close(torch.ones(1), torch.ones(1))  # which imports much
for each in DISHONEST:
    example(each.op)
    child = os.fork()
    if not child:
        os._exit(0 if each.passes_one_comparison() else 3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("kernel", DISHONEST, ids=lambda k: k.does)
def test_the_judge_catches_it(kernel: Dishonest) -> None:
    report = kernel.judged()
    assert report.isolated
    assert report.verdict == ("pass" if kernel.missed else "fail"), report


def test_one_comparison() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-W", "ignore", "-c", ONCE]
    found = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, env={"PYTHONPATH": python_path()}
    )
    close = dict(zip((k.does for k in DISHONEST), found.stdout.split(), strict=True))
    assert close == {k.does: "0" if k.close else "3" for k in DISHONEST}


def test_the_page_has_the_table() -> None:
    assert dishonest.PAGE.read_text("utf-8") == dishonest.page(), "stale: run `python -m audit.judge.dishonest`"
