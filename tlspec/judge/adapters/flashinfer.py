"""flashinfer-bench: a definition in JSON with axes, inputs, outputs and a reference's code; a submission with the function
run."""

import importlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tlspec.draw.data import generator
from tlspec.judge.adapters.sources import executed, here, imported_from, part
from tlspec.judge.adapters.submission import listed
from tlspec.judge.adapters.task import Task

#: lengths of variable axes, case by case
LENGTHS = (1, 7, 16, 33)


def flashinfer(path: Path, submission: Path, constants: Mapping[str, Any], device: str, dtype: str) -> Task:
    """The task of a definition. `constants` are lengths of axes. A file WORKLOADS.jsonl of the definition's name beside it
    gives the cases; without it variable axes have the lengths 1, 7, 16 and 33, and whole numbers have no range that is known."""
    try:
        definition = json.loads(path.read_text(encoding="utf-8"))
        axes, inputs, outputs = (definition[k] for k in ("axes", "inputs", "outputs"))
    except (json.JSONDecodeError, KeyError, OSError) as error:
        raise ValueError(
            f"{path}: got no definition ({type(error).__name__}: {error}), expected axes, inputs, outputs, reference"
        ) from None
    if dtype:
        raise ValueError(f"{path.name}: --dtype: got {dtype}, expected none: the definition says its formats")
    if unknown := [k for k in constants if k not in axes]:
        raise ValueError(f"--set: got {unknown[0]}, expected one of {', '.join(axes)}")
    torch = importlib.import_module("torch")
    device, replaced = here(device)
    work = Path(tempfile.mkdtemp(prefix="tlspec-"))
    (work / "reference.py").write_text(definition["reference"], encoding="utf-8")
    source, entry, by_destination = _submission(submission, work)
    with imported_from(work, source.parent):
        reference = part(executed(work / "reference.py", {}, replaced), ["run"], path)
    recipe = {"format": "flashinfer", "file": str(source), "folders": [str(source.parent)], "shown": str(submission),
              "names": [entry], "replaced": replaced, "device": device, "destinations": by_destination,
              "inputs": {n: s["shape"] for n, s in inputs.items()},
              "outputs": {n: (s["shape"], s["dtype"]) for n, s in outputs.items()},
              "constants": {k: a["value"] for k, a in axes.items() if a["type"] == "const"}}  # fmt: skip
    workloads = _workloads(path)
    cases = workloads or [{"axes": {}, "inputs": {}, "at": i} for i in range(len(LENGTHS))]

    def lengths(index: int) -> dict[str, int]:
        case = cases[index % len(cases)]
        fixed = {k: a["value"] for k, a in axes.items() if a["type"] == "const"}
        drawn = {k: LENGTHS[(case.get("at", 0) + i) % len(LENGTHS)] for i, k in enumerate(axes)}
        return {**drawn, **fixed, **case["axes"], **constants}

    def made(name: str, spec: Mapping[str, Any], index: int) -> Any:
        told = cases[index % len(cases)]["inputs"].get(name, {"type": "random"})
        if told["type"] == "scalar":
            return told["value"]
        if told["type"] != "random":
            raise ValueError(f"{name}: got a workload of type {told['type']}, expected random or scalar")
        kind = spec["dtype"]
        if spec["shape"] is None:
            return 1e-5 if "eps" in name else 0.125
        shape = [n if isinstance(n, int) else lengths(index)[n] for n in spec["shape"]]
        if kind.startswith(("int", "bool")):
            raise ValueError(
                f"{name}: got {kind} without a range, expected a workload that gives it: judge it by the reference of a row"
            )
        x = generator("definition", definition["name"], name, index).standard_normal(shape).astype(np.float32)
        return torch.from_numpy(x).to(getattr(torch, kind)).to(device)

    def inputs_of(index: int) -> Sequence[Any]:
        return [made(name, spec, index) for name, spec in inputs.items()]

    return Task(
        definition["name"],
        "flashinfer-bench",
        inputs_of,
        lambda *given: listed(reference(*given), outputs),
        recipe,
        cases=len(cases),
        device=device,
    )


def _workloads(path: Path) -> list[dict[str, Any]]:
    """The workloads of a definition: of FILE.jsonl beside it, or under workloads/ where that has definitions/."""
    candidates = [path.with_suffix(".jsonl"), Path(str(path).replace("definitions", "workloads")).with_suffix(".jsonl")]
    for file in candidates:
        if file.is_file():
            lines = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
            found: list[dict[str, Any]] = [line.get("workload", line) for line in lines]
            return found
    return []


def _submission(path: Path, work: Path) -> tuple[Path, str, bool | None]:
    """The file, the function, and whether outputs are passed: of a file in Python, or of a solution in JSON."""
    if path.suffix != ".json":
        return path, "run", None
    solution = json.loads(path.read_text(encoding="utf-8"))
    spec = solution["spec"]
    if not spec["entry_point"].partition("::")[0].endswith(".py"):
        raise ValueError(
            f"{path}: got a solution in {spec.get('language', spec.get('languages'))}, expected one with an entry point in Python"
        )
    for source in solution["sources"]:
        file = work / "solution" / source["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source["content"], encoding="utf-8")
    file_name, _, function = spec["entry_point"].partition("::")
    return work / "solution" / file_name, function or "run", spec.get("destination_passing_style")
