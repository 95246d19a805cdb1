"""Checkpoints: parameters, optimisers and the random generator in one safetensors file.

Parameters lie under their own names, so that any reader of the format finds them; optimiser states under
"optimizer/NUMBER/SLOT/PARAMETER". The file's metadata holds the rest as JSON under "tlrt". A run resumed from a checkpoint
continues bit for bit, and equal states make equal files, byte for byte. Source of the format: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tlrt.errors import ArgumentError, ShapeError, TorchleanError, refusal

if TYPE_CHECKING:
    from tlrt.optim import Optimizer
    from tlrt.session import Session

__all__ = ["CheckpointError", "load", "save"]

VERSION = 1
#: what may lie before a parameter's name in no file of ours
_PREFIX = "optimizer/"


class CheckpointError(TorchleanError, ValueError):
    """A file is damaged, or is not a checkpoint of this session's program."""


def _library() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError:
        text = "checkpoint: safetensors: not installed (pip install safetensors)"
        raise CheckpointError(text) from None
    return safetensors


def save(
    path: str | os.PathLike[str], session: Session, optimizers: Optimizer | Sequence[Optimizer] = (),
    extra: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Writes a checkpoint; the file appears complete or not at all.

    `extra` is anything JSON holds (the epoch, the place in the data), which :func:`load` returns. Raises OSError."""
    library = _library()
    precision = "float64" if session.device.name == "spec" else "float32"
    tensors: dict[str, npt.NDArray[Any]] = {}
    for name, parameter in session.parameters.items():
        if name.startswith(_PREFIX):
            raise ArgumentError(f"save: parameter {name!r}: expected a name that does not begin with {_PREFIX!r}")
        tensors[name] = np.asarray(parameter.value, precision, order="C")
    settings = []
    for i, optimizer in enumerate(_as_list(optimizers)):
        chosen, arrays = optimizer.state()
        settings.append(chosen)
        tensors.update({f"{_PREFIX}{i}/{n}": np.ascontiguousarray(a) for n, a in arrays.items()})
    about = {"version": VERSION, "precision": precision, "parameters": list(session.parameters),
             "random": {"seed": session.seed, "counter": session.counter}, "optimizers": settings,
             "extra": dict(extra or {})}  # fmt: skip
    # one entry of metadata alone: safetensors writes several in an order that changes from call to call
    data = library.numpy.save(tensors, {"tlrt": json.dumps(about, allow_nan=False)})
    target = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=target.name, suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def load(
    path: str | os.PathLike[str], session: Session, optimizers: Optimizer | Sequence[Optimizer] = ()
) -> dict[str, Any]:
    """Restores parameters, optimisers and the random generator; returns `extra`. Everything is checked before anything
    changes. Raises CheckpointError for a damaged or foreign file and for one of another program, OSError."""
    about, tensors = _read(path)
    chosen = _as_list(optimizers)
    wanted = "float64" if session.device.name == "spec" else "float32"
    if about["precision"] != wanted:
        expected = f"{wanted} for {session.device}"
        raise refusal(CheckpointError, "load", path, f"precision {about['precision']}", expected)
    if list(session.parameters) != about["parameters"]:
        missing = [n for n in session.parameters if n not in about["parameters"]]
        surplus = [n for n in about["parameters"] if n not in session.parameters]
        lacks = f"the file lacks {missing or 'none'}, the session lacks {surplus or 'none'}"
        raise CheckpointError(f"load: {path}: got other parameters ({lacks})")
    for name, parameter in session.parameters.items():
        got = tensors.get(name)
        if got is None or got.shape != parameter.shape or got.dtype != np.dtype(wanted):
            found = "nothing" if got is None else f"{got.dtype} of shape {got.shape}"
            expected = f"{wanted} of shape {parameter.shape}"
            raise refusal(CheckpointError, "load", f"{path}: {name}", found, expected)
    if len(about["optimizers"]) != len(chosen):
        raise refusal(CheckpointError, "load", path, f"{len(about['optimizers'])} optimizers", len(chosen))
    states = []
    for i, (optimizer, settings) in enumerate(zip(chosen, about["optimizers"], strict=True)):
        lead = f"{_PREFIX}{i}/"
        arrays = {n[len(lead) :]: a for n, a in tensors.items() if n.startswith(lead)}
        try:
            optimizer.check_state(settings, arrays)
        except (ArgumentError, ShapeError) as error:
            raise CheckpointError(f"load: {path}: optimizer {i}: {error}") from None
        states.append((optimizer, settings, arrays))
    for name, parameter in session.parameters.items():
        parameter.set(tensors[name])
    for optimizer, settings, arrays in states:
        optimizer.load_state(settings, arrays)
    session.seed, session.counter = about["random"]["seed"], about["random"]["counter"]
    return dict(about["extra"])


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The file's description, checked, and its tensors."""
    library = _library()
    Path(path).open("rb").close()  # a missing or unreadable file is an OSError
    try:
        with library.safe_open(str(path), framework="np") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except Exception as error:
        raise CheckpointError(f"load: {path}: got a damaged file or none of safetensors ({error})") from None
    try:
        about = json.loads(metadata["tlrt"])
        version = about["version"]
    except (KeyError, TypeError, ValueError, RecursionError):  # the last: lists within lists, thousands deep
        raise refusal(CheckpointError, "load", path, "a safetensors file of another program", "a checkpoint") from None
    if version != VERSION:
        raise refusal(CheckpointError, "load", path, f"version {version}", VERSION)
    random = about.get("random")
    sound = (
        isinstance(about.get("parameters"), list)
        and all(isinstance(n, str) for n in about["parameters"])
        and isinstance(about.get("optimizers"), list)
        and all(isinstance(o, dict) for o in about["optimizers"])
        and isinstance(about.get("extra"), dict)
        and about.get("precision") in ("float32", "float64")
        and isinstance(random, dict)
        and all(type(random.get(k)) is int and 0 <= random[k] < 2**64 for k in ("seed", "counter"))
    )
    if not sound:
        raise refusal(CheckpointError, "load", path, "damaged metadata", "those of a checkpoint")
    return about, tensors


def _as_list(optimizers: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    return list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]  # type: ignore[list-item]
