"""The code blocks of documents and module docstrings run as they stand."""

import ast
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

PAGES = [
    "README.md", "docs/train.md", "docs/session.md", "docs/reproducible.md", "docs/examples.md", "docs/exchange.md",
    "docs/models.md", "docs/ledger.md", "docs/distributed.md", "docs/invariance.md",
]  # fmt: skip


@pytest.fixture
def run(python: Any) -> Callable[[dict[str, str]], None]:
    """Runs code by the name of its file, each with names of its own, in one process, in which a warning is an error."""

    def run(code: dict[str, str]) -> None:
        assert all(code.values())
        done = python(f"for f, c in {code}.items(): exec(compile(c, f, 'exec'), {{}})", PYTHONWARNINGS="error")
        assert done.returncode == 0, done.stderr

    return run


def test_the_blocks_of_a_page_run_in_order(run: Callable[[dict[str, str]], None]) -> None:
    block = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
    run({page: "\n".join(block.findall((ROOT / page).read_text())) for page in PAGES})


def test_the_page_of_the_judge_finds_the_defect_of_its_kernel(tmp_path: Path, python: Any) -> None:
    """The C kernel compiles, the first check fails as the page says, and the other blocks run."""
    page = (ROOT / "docs/judge.md").read_text()
    (source,) = re.findall(r"^```c\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "softmax.c").write_text(source)
    (command,) = re.findall(r"`(cc [^`]*)`", page)
    subprocess.run(command.split(), cwd=tmp_path, check=True)
    first, *others = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(first.splitlines()) <= 15
    code = f"import os; os.chdir({str(tmp_path)!r})\n"
    found = python(code + first)
    (shown,) = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found.returncode == 0, found.stderr
    assert shown.splitlines()[:2] == [line for line in shown.splitlines()[:2] if line in found.stdout], found.stdout
    done = python(code + "import numpy as np, tlspec\n" + "\n".join(others))
    assert done.returncode == 0, done.stderr


#: a module -> what its docstring's block takes as given
BLOCKS = {
    "tlrt/__init__.py": "",
    "tlrt/tape.py": "import tlrt\nfrom tlrt import Tape\n",
    "tlrt/session.py": "import numpy as np, tlrt\nfrom tlrt import Session\n"
    "batches = [(np.ones((2, 64)), np.zeros(2, int))] * 2\n",
    "tlrt/nn/__init__.py": "import numpy as np, tlrt\nfrom tlrt import nn\nx, labels = np.ones((2, 64)), np.zeros(2, int)\n",
    "tlrt/differential.py": "import numpy as np, tlrt\n",
    "tlrt/fast_kernels.py": "import numpy as np, tlrt\nfrom tlrt.fast_kernels import linear_forward, matmul_fast\n"
    "w, x, b = np.eye(3), np.ones(3), np.ones(3)\ntape = tlrt.Tape('cpu')\na = tape.leaf(w)\n",
    "tlrt/spec.py": "import tlrt\nfrom fractions import Fraction\nfrom tlrt.spec import SpecDevice\n",
    "tlrt/optim.py": "import numpy as np, tlrt\nfrom tlrt.optim import AdamW\nsession = tlrt.Session('cpu')\n"
    "w = session.param([1.0])\nloss = session.mul(w, w)\n",
}


def test_the_block_of_a_docstring_runs(run: Callable[[dict[str, str]], None]) -> None:
    def block(module: str) -> str:
        lines = (ast.get_docstring(ast.parse((ROOT / module).read_text())) or "").splitlines()
        return "\n".join(x[4:] for x in lines if x.startswith("    ") and not x.startswith("    python -m"))

    blocks = {module: block(module) for module in BLOCKS}
    assert all(blocks.values())
    run({module: BLOCKS[module] + blocks[module] for module in BLOCKS})
