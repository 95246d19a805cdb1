"""The notebooks: scripts in ``pages/notebooks`` with a mark at each cell (py:percent), run and written as pages.

What a notebook showed is kept under out/ by a hash of what it depends on: its script, the examples, the specification and the
library.
"""

import hashlib
import html
import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from audit.environment import ROOT
from pages import figures

FOLDER = Path(__file__).with_name("notebooks")
#: in the order of the index
NAMES = ("digits", "autoencoder", "char_gpt", "mamba", "fno_burgers")
#: seconds that a cell may take
LIMIT = 300
INDEX = """\
# Examples as notebooks

Five programs that train on real data, run for a few steps while this site was built. [The guide](../docs/examples.md) describes
their options, and how far they come in a full run. A notebook that was downloaded runs in the folder of the project.
"""

Notebook = dict[str, Any]


def key(name: str) -> str:
    """The hash under which a run notebook is kept."""
    found = hashlib.sha256(figures.key(name).encode())
    sources = [
        *(ROOT / "examples").glob("*.py"),
        *(Path(__file__).with_name(f"{module}.py") for module in ("execute", "figures", "plots")),
        FOLDER / f"{name}.py",
    ]
    sources += (ROOT / "tlrt").rglob("*.py")
    for path in sorted(sources):
        found.update(path.read_bytes())
    return found.hexdigest()[:24]


def run(name: str) -> Notebook:
    """A notebook with what its cells showed. Raises nbclient's CellExecutionError where one fails."""
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.read(FOLDER / f"{name}.py")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook.metadata = type(notebook.metadata)(kernel)
    client = NotebookClient(
        notebook, timeout=LIMIT, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )  # fmt: skip
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"})
    for cell in notebook.cells:  # when a cell ran is different each time
        cell.metadata.pop("execution", None)
        cell.pop("id", None)
    plain: Notebook = json.loads(json.dumps(notebook))
    return plain


def run_all(kept: Path) -> dict[str, Notebook]:
    """Every notebook by its name; those that were run before are read from the folder `kept`."""
    kept.mkdir(parents=True, exist_ok=True)
    files = {name: kept / f"{name}-{key(name)}.ipynb" for name in NAMES}
    missing = [name for name, path in files.items() if not path.exists()]
    with ThreadPoolExecutor(2) as pool:
        for name, notebook in zip(missing, pool.map(run, missing), strict=True):
            files[name].write_text(json.dumps(notebook), encoding="utf-8")
    for path in kept.glob("*.ipynb"):
        if path not in files.values():
            path.unlink()
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in files.items()}


def _text(value: Any) -> str:
    """A text of a notebook, which may be a list of lines."""
    return "".join(value) if isinstance(value, list) else str(value)


def output_lines(output: Mapping[str, Any]) -> list[str]:
    """What a cell showed, as Markdown: a figure, or text. Raises ValueError for a kind that pages cannot show."""
    if output["output_type"] == "stream":
        return ["```text", _text(output["text"]).rstrip("\n"), "```", ""]
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return [f"<figure>{_text(data['image/svg+xml'])}</figure>", ""]
    if "text/plain" in data:
        return ["```text", _text(data["text/plain"]), "```", ""]
    raise ValueError(f"got a cell that shows {', '.join(data) or output['output_type']}, expected SVG or text")


def page(name: str, notebook: Notebook) -> str:
    """A run notebook as Markdown. Source code that a cell prints is shown as code."""
    lines: list[str] = []
    for cell in notebook["cells"]:
        source = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
            continue
        lines += ["```py", source, "```", ""]
        for output in cell["outputs"]:
            shown = output_lines(output)
            if "inspect.getsource" in source and shown[0] == "```text":
                shown[0] = "```py"
            lines += shown
    link = f"[Download this notebook]({name}.ipynb)"
    return "\n".join([*lines, link, ""])


def title(notebook: Notebook) -> str:
    """The heading of a notebook."""
    found = re.search(r"^# (.*)$", _text(notebook["cells"][0]["source"]), re.M)
    if found is None:
        raise ValueError("got a notebook whose first cell has no heading")
    return html.escape(found[1])


def pages(notebooks: Mapping[str, Notebook]) -> dict[str, str]:
    """The pages and the notebooks themselves, by their paths in the site."""
    found = {"notebooks/index.md": INDEX + "\n"}
    for name, notebook in notebooks.items():
        found[f"notebooks/{name}.md"] = page(name, notebook)
        found[f"notebooks/{name}.ipynb"] = json.dumps(notebook, indent=1)
        found["notebooks/index.md"] += f"- [{title(notebook)}]({name}.md)\n"
    return found
