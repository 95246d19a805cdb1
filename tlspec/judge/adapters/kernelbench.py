"""KernelBench: a file with the class Model and the functions get_inputs and get_init_inputs, a submission with the class
ModelNew."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tlspec.judge.adapters.sources import executed, here, imported_from, part
from tlspec.judge.adapters.submission import Loaded, saved
from tlspec.judge.adapters.task import MOST, Task, too_large

#: the seed before the inputs, and before each of the models, which so get the same parameters
SEED = 42


def kernelbench(path: Path, submission: Path, constants: Mapping[str, Any], device: str, dtype: str) -> Task:
    """The task of a file. Its models and inputs are on the device and in the number format."""
    torch = importlib.import_module("torch")
    device, replaced = here(device)
    with imported_from(path.parent, submission.parent):
        module = executed(path, constants, replaced)
    kind = part(module, ["Model"], path)
    make, init = part(module, ["get_inputs"], path), getattr(module, "get_init_inputs", list)
    format = getattr(torch, dtype) if dtype else None

    def placed(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return x.to(device, format) if format is not None and x.is_floating_point() else x.to(device)

    def built() -> tuple[Any, Any]:
        torch.manual_seed(SEED)
        given: Any = init()
        given = given if isinstance(given, dict) else [placed(x) for x in given]
        torch.manual_seed(SEED)
        model = kind(**given) if isinstance(given, dict) else kind(*given)
        return model.to(device) if format is None else model.to(device, format), given

    def size() -> int:
        try:
            with torch.device("meta"):
                return sum(x.numel() for x in make() if isinstance(x, torch.Tensor))
        except (RuntimeError, NotImplementedError, TypeError):  # what computes on its inputs
            return 0

    count = size()
    if count > MOST:
        raise ValueError(too_large(path.stem, count))
    model, given = built()
    recipe = {"format": "kernelbench", "file": str(submission), "folders": [str(path.parent), str(submission.parent)],
              "shown": str(submission), "names": ["ModelNew", "Model"], "replaced": replaced, "device": device, "dtype": dtype,
              "seed": SEED, "init": saved(torch, given), "state": saved(torch, model.state_dict())}  # fmt: skip

    def inputs(index: int) -> Sequence[Any]:
        torch.manual_seed(SEED + index)
        return [index, *(placed(x) for x in make())]

    reference = Loaded(model, model.state_dict())
    return Task(path.stem, "KernelBench", inputs, reference, recipe, cases=2, modules=[model], device=device)
