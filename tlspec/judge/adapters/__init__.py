"""Tasks in the formats that kernel writers have: the judge reads the inputs and the reference from them and gives its own
verdict.

=================  ===========================================================  =================================================
format             the task                                                     the submission
=================  ===========================================================  =================================================
KernelBench        FILE.py with Model, get_inputs, get_init_inputs              FILE.py with ModelNew
GPU MODE           a folder with task.yml and reference.py                      FILE.py with custom_kernel
flashinfer-bench   a definition, FILE.json                                      FILE.py with run, or a solution in JSON
autograd           :func:`check_function`: a reference of tensors               a torch.autograd.Function, or its apply
=================  ===========================================================  =================================================

A task's own tolerance, seeds and timing are not read. The reference runs in float64 with its parameters widened, and the
tolerance of each element is derived from the operators that it calls (:mod:`tlspec.judge.adapters.tracked`).
"""

import importlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tlspec.judge.adapters.flashinfer import flashinfer
from tlspec.judge.adapters.gpumode import gpumode
from tlspec.judge.adapters.kernelbench import kernelbench
from tlspec.judge.adapters.task import DATA, Task, judged
from tlspec.judge.report import Report
from tlspec.judge.runner import Failure

__all__ = ["DATA", "FORMATS", "Task", "check_function", "check_task", "judged", "task_of"]

FORMATS: dict[str, Callable[..., Task]] = {"kernelbench": kernelbench, "gpumode": gpumode, "flashinfer": flashinfer}


def task_of(
    task: str | Path, submission: str | Path, *, format: str = "", constants: Mapping[str, Any] | None = None, device: str = "",
        dtype: str = ""
) -> Task:  # fmt: skip
    """A task with its submission.

    Parameters
    ----------
    task : str or Path
        A file or folder.
    submission : str or Path
        A file.
    format : str, default ''
        "kernelbench", "gpumode" or "flashinfer"; what the file looks like unless given: JSON is a definition of
        flashinfer-bench, a folder or task.yml a task of GPU MODE, other files are of KernelBench.
    constants : mapping, optional
        Smaller sizes.
    device : str, default ''
        The device of the kernel; a GPU unless given, if there is one.
    dtype : str, default ''
        The number format of a model and its inputs.

    Returns
    -------
    Task
        What the files say.

    Raises
    ------
    ValueError
        What is not there.
    """
    path, other = Path(task), Path(submission)
    for each in (path, other):
        if not each.exists():
            raise ValueError(f"{each}: no such file")
    if format and format not in FORMATS:
        raise ValueError(f"format: got {format!r}, expected {', '.join(FORMATS)}")
    name = format or (
        "flashinfer"
        if path.suffix == ".json"
        else "gpumode"
        if path.is_dir() or path.name == "task.yml"
        else "kernelbench"
    )
    made = FORMATS[name](path.resolve(), other.resolve(), constants or {}, device, dtype)
    words = [w for k, v in (constants or {}).items() for w in ("--set", f"{k}={v}")]
    said = {"format": format, "device": device, "dtype": dtype}
    made.repeat = _line(["python", "-m", "tlspec", "task", task, "--with", submission, *words], said)
    return made


def _line(words: Sequence[Any], options: Mapping[str, Any]) -> str:
    """A command of words, and of those options that are given."""
    return shlex.join([*map(str, words), *(w for k, v in options.items() if v for w in (f"--{k}", str(v)))])


def check_task(
    task: str | Path, submission: str | Path, *, format: str = "", constants: Mapping[str, Any] | None = None, device: str = "",
        dtype: str = "",
    data: Sequence[str] = DATA, cases: int | None = None, case: str | None = None, progress: Callable[[str],
        None] | None = None,
    isolate: bool | None = None, timeout: float | None = None, memory: int | None = None, **words: Any,
) -> Report:  # fmt: skip
    """Judges a submission to a task.

    Parameters
    ----------
    task, submission : str or Path
        Files; the module says what is in them.
    format : str
        "kernelbench", "gpumode" or "flashinfer"; by default what the file looks like.
    constants : mapping
        Smaller sizes: constants of a file of KernelBench, parameters of the tests of GPU MODE, axes of a definition.
    device : str
        The device of the kernel; a GPU by default, if there is one.
    dtype : str
        The number format of a model and its inputs (KernelBench).
    data : str or sequence of str
        "own": the task's inputs; "signs": the same with drawn signs; "integers": whole numbers; "offset": the first case's inputs
        and 128 more. A task that is defined on its own inputs alone is judged with ``data=["own"]``.
    cases : int
        How many of the task's cases; all by default.
    case : str
        The one that a report's line names, ``"0:own"``.
    progress : callable
        Called with a line now and then.
    isolate : bool
        Whether the submission runs in a process of its own. By default it does where its arguments can be sent there, and the
        report says so; True refuses what cannot, False runs it here.
    timeout, memory
        The seconds that one call may take, and the bytes of that process.
    **words
        What is known of the kernel's arithmetic (:mod:`tlspec.judge.arithmetic`): accumulate, height, ulp, products,
        intermediate, flush.

    Returns
    -------
    Report
        As of :func:`tlspec.check`. Where the tolerances are estimated, not derived, its assumptions begin with "estimated".

    Raises
    ------
    ValueError
        For files that are not of the format, inputs that are too large, a reference that fails.
    """
    made = task_of(task, submission, format=format, constants=constants, device=device, dtype=dtype)
    made.repeat = _line(shlex.split(made.repeat), words)
    limits: dict[str, Any] = {"isolate": isolate, "timeout": timeout, "memory": memory}
    return judged(made, data=data, cases=cases, case=case, progress=progress, **limits, **words)


def check_function(
    function: Any, reference: Callable[..., Any], inputs: Callable[[int], Sequence[Any]] | Sequence[Any], *,
        gradients: bool = True,
    cases: int = 2, data: Sequence[str] = DATA, case: str | None = None, **words: Any,
) -> Report:  # fmt: skip
    """Judges a torch.autograd.Function, results and gradients, against a reference that PyTorch can differentiate.

    Parameters
    ----------
    function : type or callable
        A subclass of torch.autograd.Function, or a function of tensors.
    reference : callable
        The same in operators of PyTorch.
    inputs : sequence, or callable
        The arguments of a call; or a function of a case's number that makes them. Gradients are taken with respect to those that
        require them, or, where none does, to all floating-point ones.
    gradients : bool
        Whether the backward pass is judged, too, for drawn cotangents: contiguous, transposed and expanded ones, and with
        each input alone requiring a gradient, of each result alone, and after another call. It must not change its
        cotangent.
    cases, data, case, **words
        As of :func:`check_task`.

    Returns
    -------
    Report
        Its results are those of the call, and then the gradients.
    """
    torch = importlib.import_module("torch")
    call = getattr(function, "apply") if isinstance(function, type) else function  # noqa: B009
    make = inputs if callable(inputs) else lambda index: inputs

    def prepared(index: int) -> Sequence[Any]:
        torch.manual_seed(index)
        given = list(make(index))
        floats = [x for x in given if isinstance(x, torch.Tensor) and x.is_floating_point()]
        if gradients and not any(x.requires_grad for x in floats):
            given = [
                x.detach().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
                for x in given
            ]
        return given

    def expected(*given: Any) -> Any:
        outs, found, wanted = _gradients(torch, reference, given, _cotangent)
        again = _gradients(torch, reference, given, _expanded)[1]
        ways = {"": found, " for an expanded g": again, " for a transposed g": found}
        named = {f"out{i}": x for i, x in enumerate(outs)}
        ways[" where another call came before the backward pass"] = found
        named |= {f"out{len(outs) + i}{way}": g for way, of in ways.items() for i, g in enumerate(of)}
        for k in range(len(outs)) if len(outs) > 1 else ():
            alone = _gradients(torch, reference, given, _cotangent, k)[1]
            named |= {f"out{len(outs) + i} of out{k} alone": g for i, g in enumerate(alone)}
        for i, g in enumerate(found) if len(found) > 1 else ():
            named[f"out{len(outs) + i} where argument {wanted[i]} alone requires a gradient"] = g
        return named

    def got(*given: Any) -> Any:
        outs, found, wanted = _gradients(torch, call, given, _cotangent)
        for cotangent in (_expanded, _transposed):
            found += _gradients(torch, call, given, cotangent)[1]

        def twice(*given: Any) -> Any:
            made = call(*given)
            call(*(_reversed(torch, x) for x in given))
            return made

        found += _gradients(torch, twice, given, _cotangent)[1]
        for k in range(len(outs)) if len(outs) > 1 else ():
            found += _gradients(torch, call, given, _cotangent, k)[1]
        for one in wanted if len(wanted) > 1 else ():
            alone = [x.detach().requires_grad_(i == one) if i in wanted else x for i, x in enumerate(given)]
            found += _gradients(torch, call, alone, _cotangent)[1]
        return [*outs, *found]

    name = getattr(function, "__name__", type(function).__name__)
    task = Task(
        name,
        "autograd",
        prepared,
        expected if gradients else reference,
        got if gradients else call,
        cases=cases,
        repeat=f"tlspec.judge.adapters.check_function({name}, ...)",
    )
    return judged(task, data=data, case=case, **words)


def _gradients(
    torch: Any, function: Callable[..., Any], given: Sequence[Any], cotangent: Callable[[Any, Any], Any],
    alone: int | None = None,
) -> tuple[list[Any], list[Any], list[int]]:  # fmt: skip
    """The results of a function, their gradients with respect to the arguments that require one, and the places of these; of
    one result `alone`, where it is given. Raises Failure."""
    wanted = [i for i, x in enumerate(given) if isinstance(x, torch.Tensor) and x.requires_grad]
    found: Sequence[Any] = [None] * len(wanted)
    with torch.enable_grad():
        made = function(*given)
        outs = [x for x in (made if isinstance(made, (tuple, list)) else (made,)) if isinstance(x, torch.Tensor)]
        if from_here := [x for i, x in enumerate(outs) if x.requires_grad and alone in (None, i)]:
            cotangents = [cotangent(torch, x) for x in from_here]
            kept = [g.clone() for g in cotangents]
            found = torch.autograd.grad(from_here, [given[i] for i in wanted], cotangents, allow_unused=True)
            if not all(torch.equal(g, k) for g, k in zip(cotangents, kept, strict=True)):
                raise Failure("backward changed its incoming gradient, which others read: write to a new tensor")
    zeros = (torch.zeros_like(given[i]) if g is None else g for i, g in zip(wanted, found, strict=True))
    return [x.detach() for x in outs], list(zeros), wanted


def _reversed(torch: Any, x: Any) -> Any:
    """An argument with its numbers in another order."""
    floats = isinstance(x, torch.Tensor) and x.is_floating_point()
    return x.detach().flip(tuple(range(x.dim()))) if floats else x


def _cotangent(torch: Any, x: Any) -> Any:
    """Multiples of 1/8 in [-1, 1], which every format holds, by the place of an element alone."""
    place = torch.arange(x.numel(), dtype=torch.int64, device=x.device)
    return (((place * 7919) % 17 - 8).to(x.dtype) / 8).reshape(x.shape)


def _expanded(torch: Any, x: Any) -> Any:
    """Ones that are one number in memory, as from sum()."""
    return torch.ones((), dtype=x.dtype, device=x.device).expand(x.shape)


def _transposed(torch: Any, x: Any) -> Any:
    """The same numbers, the axes in memory the other way round."""
    axes = range(x.dim())[::-1]
    return _cotangent(torch, x).permute(*axes).contiguous().permute(*axes) if x.dim() > 1 else _cotangent(torch, x)
