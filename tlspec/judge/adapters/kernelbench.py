"""KernelBench: a file with the class Model and the functions get_inputs and get_init_inputs, a submission with the class
ModelNew."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tlspec.judge.adapters.sources import executed, here, imported_from, part
from tlspec.judge.adapters.task import MOST, Task, too_large

#: the seed before the inputs, and before each of the models, which so get the same parameters
SEED = 42


def kernelbench(path: Path, submission: Path, constants: Mapping[str, Any], device: str, dtype: str) -> Task:
    """The task of a file. Its models and inputs are on the device and in the number format."""
    torch = importlib.import_module("torch")
    device, replaced = here(device)
    with imported_from(path.parent, submission.parent):
        module = executed(path, constants, replaced)
        other = executed(submission, {}, replaced)
    kind, new = part(module, ["Model"], path), part(other, ["ModelNew", "Model"], submission)
    make, init = part(module, ["get_inputs"], path), getattr(module, "get_init_inputs", list)
    format = getattr(torch, dtype) if dtype else None

    def placed(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return x.to(device, format) if format is not None and x.is_floating_point() else x.to(device)

    def built(of: Any) -> Any:
        torch.manual_seed(SEED)
        given: Any = init()
        torch.manual_seed(SEED)
        model = of(**given) if isinstance(given, dict) else of(*(placed(x) for x in given))
        return model.to(device) if format is None else model.to(device, format)

    def size() -> int:
        try:
            with torch.device("meta"):
                return sum(x.numel() for x in make() if isinstance(x, torch.Tensor))
        except (RuntimeError, NotImplementedError, TypeError):  # what computes on its inputs
            return 0

    count = size()
    if count > MOST:
        raise ValueError(too_large(path.stem, count))
    model, kernel = built(kind), built(new)
    notes = []
    ours, theirs = ({k: v.shape for k, v in m.state_dict().items()} for m in (model, kernel))
    if ours == theirs:
        kernel.load_state_dict(model.state_dict())
    elif ours:
        notes.append(
            f"ModelNew has other parameters than Model ({_short(theirs)}; {_short(ours)}), which stay as drawn"
        )

    def inputs(index: int) -> Sequence[Any]:
        torch.manual_seed(SEED + index)
        return [placed(x) for x in make()]

    return Task(path.stem, "KernelBench", inputs, model, kernel, cases=2, modules=[model], notes=notes)


def _short(names: Mapping[str, Any]) -> str:
    return ", ".join(list(names)[:4]) or "none"
