"""The code blocks of documents and module docstrings run as they stand."""

import ast
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests import ROOT

PAGES = ["docs/session.md", "docs/examples.md", "docs/models.md", "docs/ledger.md"]


@pytest.fixture
def run(python: Any) -> Callable[[str], None]:
    """Runs code, in which a warning is an error."""

    def run(code: str) -> None:
        done = python(code, PYTHONWARNINGS="error")
        assert done.returncode == 0, done.stderr

    return run


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_in_order(page: str, run: Callable[[str], None]) -> None:
    if page in ("docs/session.md", "docs/ledger.md"):
        pytest.importorskip("safetensors")
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    run("\n".join(blocks))


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


@pytest.mark.parametrize("module", sorted(BLOCKS))
def test_the_block_of_a_docstring_runs(module: str, run: Callable[[str], None]) -> None:
    text = ast.get_docstring(ast.parse((ROOT / module).read_text()))
    assert text
    lines = [line[4:] for line in text.splitlines() if line.startswith("    ") and not line.startswith("    python -m")]
    assert lines
    run(BLOCKS[module] + "\n".join(lines))
