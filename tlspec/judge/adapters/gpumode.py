"""GPU MODE: a folder with task.yml and reference.py (generate_input, ref_kernel), a submission with custom_kernel."""

import ast
import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tlspec.judge.adapters.sources import executed, here, imported_from, part
from tlspec.judge.adapters.task import Task


def specs_of(text: str, section: str = "tests") -> list[dict[str, Any]]:
    """The entries of a section of task.yml, each a line such as ``- {"size": 127, "seed": 4242}``, or lines of ``name:
    value``."""
    found = re.search(rf"^{section}:[ \t]*\n(.*?)(?=^\w+:|\Z)", text, re.M | re.S)
    specs: list[dict[str, Any]] = []
    for line in found[1].splitlines() if found else ():
        item = line.strip().removeprefix("- ").strip()
        if item.startswith("{"):
            pairs = re.findall(r"[\"']?(\w+)[\"']?\s*:\s*(\[[^]]*\]|\"[^\"]*\"|'[^']*'|[^,{}\s]+)", item)
            specs.append({k: _value(v) for k, v in pairs})
        elif ":" in item and not item.startswith("#"):
            name, _, value = item.partition(":")
            if line.strip().startswith("-"):
                specs.append({})
            if specs:
                specs[-1][name.strip("\"' ")] = _value(value.strip())
    return specs


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def gpumode(folder: Path, submission: Path, constants: Mapping[str, Any], device: str, dtype: str) -> Task:
    """The task of a folder. `constants` are other values of the parameters of its tests."""
    folder = folder.parent if folder.name == "task.yml" else folder
    if dtype:
        raise ValueError(
            f"{folder.name}: --dtype: got {dtype}, expected none: the task's own inputs have their formats"
        )
    reference = folder / "reference.py"
    device, replaced = here(device)
    torch = importlib.import_module("torch")
    with imported_from(folder, folder.parent, submission.parent):
        module = executed(reference, {}, replaced)
        make = part(module, ["generate_input"], reference)
    yml = folder / "task.yml"
    specs = specs_of(yml.read_text(encoding="utf-8")) if yml.is_file() else []
    if not specs:
        raise ValueError(f'{yml}: got no tests, expected lines such as - {{"size": 127, "seed": 4242}} under tests:')
    if unknown := [k for k in constants if k not in specs[0]]:
        raise ValueError(f"--set: got {unknown[0]}, expected one of {', '.join(specs[0])}")

    def inputs(index: int) -> Sequence[Any]:
        spec = {**specs[index % len(specs)], **constants}
        torch.manual_seed(int(spec.get("seed", index)))
        return (make(**spec),)

    folders = [str(folder), str(folder.parent), str(submission.parent)]
    recipe = {"format": "gpumode", "file": str(submission), "folders": folders, "shown": str(submission),
              "names": ["custom_kernel"], "replaced": replaced}  # fmt: skip
    return Task(folder.name, "GPU MODE", inputs, part(module, ["ref_kernel"], reference), recipe, cases=len(specs),
                returns_inputs=True, device=device)  # fmt: skip
