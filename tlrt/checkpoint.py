"""Checkpoints: parameters, optimisers and the random generator in one safetensors file.

Parameters lie under their own names, so that any reader of the format finds them; optimiser states under
"optimizer/NUMBER/SLOT/PARAMETER". The file's metadata holds the rest as JSON under "tlrt". A run resumed from a checkpoint
continues bit for bit, and equal states make equal files, byte for byte. Source of the format: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tlrt._binding import convert
from tlrt._binding.arguments import boolean, is_number
from tlrt._binding.together import release_call, set_and_call
from tlrt.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError, ShapeError, TorchleanError, refusal
from tlspec.ops.random import RULE

if TYPE_CHECKING:
    from tlrt.optim import Optimizer
    from tlrt.session import Session

__all__ = ["CheckpointError", "load", "peek", "save"]

VERSION = 1
#: what may lie before a parameter's name in no file of ours
_PREFIX = "optimizer/"
#: the name by which the format itself calls the metadata
_METADATA = "__metadata__"
#: the longest header of the format, in bytes
_LONGEST = 100_000_000
#: the types of the format that are read, those of 16 bits as float32, which holds them
_TYPES = {"F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
          "U8": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?"}  # fmt: skip

_FOREIGN = "a checkpoint (weights of other programs: load_state_dict takes what safetensors.torch.load_file reads)"


class CheckpointError(TorchleanError, ValueError):
    """A file is damaged, or is not a checkpoint of this session's program."""


class _Tensor:
    """A tensor of an open file; as an array it is read, by pread: a file that is cut short is an error, and no signal."""

    def __init__(self, path: object, file: int, place: int, kind: str, shape: tuple[int, ...]) -> None:
        self.path, self.file, self.place, self.kind, self.shape = path, file, place, kind, shape
        self.stored = np.dtype(_TYPES[kind])
        self.dtype = np.dtype(np.float32) if kind in ("F16", "BF16") else self.stored

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = np.empty(self.shape, self.stored)
        _fill(self.path, self.file, self.place, array.reshape(-1).view(np.uint8).data)
        return convert.widened_bfloat16(array) if self.kind == "BF16" else array.astype(self.dtype, copy=False)


def _fill(path: object, file: int, place: int, view: memoryview) -> None:
    while view:
        if not (count := os.preadv(file, [view], place)):
            raise refusal(CheckpointError, "load", path, "a file cut short", "all of its tensors")
        view, place = view[count:], place + count


def save(
    path: str | os.PathLike[str], session: Session, optimizers: Optimizer | Sequence[Optimizer] = (),
    extra: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Writes a checkpoint; the file appears complete or not at all.

    A file that is there keeps its mode, a link its target.

    Parameters
    ----------
    path : path
        The file, in the format of safetensors.
    session : Session
        Its parameters and its random generator are saved.
    optimizers : Optimizer or sequence of Optimizer
        Their states and settings are saved, in this order.
    extra : mapping, optional
        Anything JSON holds (the epoch, the place in the data), which :func:`load` returns. NumPy's numbers become
        Python's.

    Raises
    ------
    OSError
        Where the file cannot be written.
    ArgumentError
        For a parameter's name that no file can hold, and a NaN or infinity in `extra`.
    ArgumentTypeError
        For what else JSON has not.
    DeviceMismatchError
        For an optimiser of another session.

    Examples
    --------
    >>> import tempfile, tlrt
    >>> file = tempfile.mkdtemp() + "/run.safetensors"
    >>> s = tlrt.Session("cpu", seed=1)
    >>> model = tlrt.nn.Linear(s, 2, 1, name="fc")
    >>> adam = tlrt.optim.Adam(model.parameters())
    >>> tlrt.checkpoint.save(file, s, adam, {"epoch": 3})
    >>> tlrt.checkpoint.load(file, s, adam)
    {'epoch': 3}
    """
    import safetensors.numpy

    precision = _precision("save", session)
    tensors: dict[str, npt.NDArray[Any]] = {}
    for name, parameter in session.parameters.items():
        if name.startswith(_PREFIX):
            raise ArgumentError(f"save: parameter {name!r}: expected a name that does not begin with {_PREFIX!r}")
        if name == _METADATA or name.encode("utf-8", "replace").decode() != name:
            raise ArgumentError(f"save: parameter {name!r}: expected Unicode other than {_METADATA!r}")
        tensors[name] = np.asarray(parameter.value, precision, order="C")
    settings = []
    for i, optimizer in enumerate(_optimizers("save", session, optimizers)):
        chosen, arrays = optimizer.state()
        settings.append(chosen)
        tensors.update({f"{_PREFIX}{i}/{n}": np.asarray(a, order="C") for n, a in arrays.items()})
    about = {"version": VERSION, "precision": precision, "parameters": list(session.parameters),
             "math": getattr(session.device, "math", "exact"),
             "random": {"rule": RULE, "seed": session.seed, "counter": session.counter}, "optimizers": settings,
             "extra": _json(extra or {})}  # fmt: skip
    # one entry of metadata alone: safetensors writes several in an order that changes from call to call
    data = safetensors.numpy.save(tensors, {"tlrt": json.dumps(about, allow_nan=False, default=_plain_number)})
    target = Path(os.path.realpath(path))
    # the name is chosen before the file is there, so that an interrupt at any point can remove it
    temporary = target.with_name(f"{target.name}{secrets.token_urlsafe(6)}.part")
    try:
        with open(temporary, "xb") as file:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _json(extra: Mapping[str, Any]) -> Any:
    """What is saved beside the tensors, as JSON has it."""
    try:
        return json.loads(json.dumps(dict(extra), allow_nan=False, default=_plain_number))
    except (TypeError, ValueError, RecursionError) as error:
        kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
        expected = "a dict of finite numbers, text, None, lists and dicts"
        raise refusal(kind, "save", "extra", f"{extra!r:.99} ({error})", expected) from None


def _plain_number(value: Any) -> Any:
    if is_number(value):
        return value.item()
    raise TypeError(f"no {type(value).__name__} in JSON")


def load(
    path: str | os.PathLike[str], session: Session, optimizers: Optimizer | Sequence[Optimizer] = (), *,
    weights_only: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Restores parameters, optimisers and the random generator.

    Everything is checked, read and on the device before anything changes, and then changes at once.

    Parameters
    ----------
    path : path
        A file that :func:`save` wrote.
    session : Session
        A session of the same program: it has the parameters of the file, in the same order.
    optimizers : Optimizer or sequence of Optimizer
        As many as were saved, of the same types.
    weights_only : bool
        True: the parameters alone are restored, in any order; optimisers and random numbers go on as they are. Of no
        optimiser.

    Returns
    -------
    dict
        The `extra` of :func:`save`.

    Raises
    ------
    CheckpointError
        For a damaged or foreign file and for one of another program.
    ArgumentError
        For optimisers with weights_only=True.
    DeviceMismatchError
        For an optimiser of another session.
    CaptureError
        Within a captured function.
    OSError
        Where the file cannot be read.

    Examples
    --------
    Weights alone, into a session that trains anew:

    >>> import tempfile, tlrt
    >>> file = tempfile.mkdtemp() + "/run.safetensors"
    >>> s = tlrt.Session("cpu", seed=1)
    >>> w = s.param([1.0, 2.0], "w")
    >>> tlrt.checkpoint.save(file, s, tlrt.optim.Adam([w]))
    >>> other = tlrt.Session("cpu", seed=7)
    >>> v = other.param([0.0, 0.0], "w")
    >>> tlrt.checkpoint.load(file, other, weights_only=True)
    {}
    >>> v.value, other.seed
    (array([1., 2.], dtype=float32), 7)
    """
    chosen = _optimizers("load", session, optimizers)
    session._require_uncaptured("load")
    if boolean("load", "weights_only", weights_only) and chosen:
        raise refusal(ArgumentError, "load", "optimizers", len(chosen), "none with weights_only=True")
    with Path(path).open("rb", buffering=0) as file:
        about, tensors = _read_header(path, file.fileno())
        _check(path, about, tensors, session, None if weights_only else len(chosen))
        changes = [c for n, p in session.parameters.items() for c in p._changed(np.asarray(tensors[n]), None)]
        if weights_only:
            about["optimizers"] = []
        for i, (optimizer, settings) in enumerate(zip(chosen, about["optimizers"], strict=True)):
            lead = f"{_PREFIX}{i}/"
            arrays: Any = {n[len(lead) :]: t for n, t in tensors.items() if n.startswith(lead)}
            try:
                changes += optimizer._loaded(settings, arrays)
            except (ArgumentError, ShapeError) as error:
                raise CheckpointError(f"load: {path}: optimizer {i}: {error}") from None
    if not weights_only:
        changes += [(session, "seed", about["random"]["seed"]), (session, "counter", about["random"]["counter"])]
    old = [p._mirror for p in session.parameters.values() if p._mirror is not None]
    old += [buffer for optimizer in chosen for buffer in optimizer._buffers()]
    set_and_call(changes, list(map(release_call, old)))
    return dict(about["extra"])


def peek(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The `extra` of a checkpoint. No tensor is read.

    Parameters
    ----------
    path : path
        A file that :func:`save` wrote.

    Returns
    -------
    dict
        What :func:`save` got.

    Raises
    ------
    CheckpointError
        For a damaged or foreign file.
    OSError
        Where the file cannot be read.

    Examples
    --------
    >>> import tempfile, tlrt
    >>> file = tempfile.mkdtemp() + "/run.safetensors"
    >>> tlrt.checkpoint.save(file, tlrt.Session("cpu"), extra={"epoch": 3})
    >>> tlrt.checkpoint.peek(file)
    {'epoch': 3}
    """
    with Path(path).open("rb", buffering=0) as file:
        return dict(_read_header(path, file.fileno())[0]["extra"])


def _optimizers(op: str, session: Session, given: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    """The optimisers as a list, all of them of the session."""
    chosen: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    if any(optimizer.session is not session for optimizer in chosen):
        raise refusal(DeviceMismatchError, op, "optimizers", "one of another session", "those of this")
    return chosen


def _precision(op: str, session: Session) -> str:
    """Of the arrays in the session's checkpoints."""
    dtype = getattr(session.device, "dtype", np.dtype(np.float32))
    if dtype not in (np.float32, np.float64):
        raise refusal(ArgumentTypeError, op, "session", f"one that computes in {dtype}", "float32 or float64")
    return str(dtype)


def _check(
    path: object, about: dict[str, Any], tensors: dict[str, _Tensor], session: Session, optimizers: int | None
) -> None:
    """Raises CheckpointError unless the file is one of the session's program; without `optimizers`, unless it has its weights."""
    wanted = _precision("load", session)
    if about["precision"] != wanted:
        expected = f"{wanted} for {session.device}"
        raise refusal(CheckpointError, "load", path, f"precision {about['precision']}", expected)
    is_same_set = sorted(session.parameters) == sorted(about["parameters"])
    if optimizers is not None and is_same_set and list(session.parameters) != about["parameters"]:
        theirs, ours = next(p for p in zip(about["parameters"], session.parameters, strict=True) if p[0] != p[1])
        given = f"its parameters in another order, {theirs!r} where they first differ"
        raise refusal(CheckpointError, "load", path, given, f"{ours!r} there, as the session made them")
    if not is_same_set:
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
    if optimizers is not None and len(about["optimizers"]) != optimizers:
        raise refusal(CheckpointError, "load", path, f"{len(about['optimizers'])} optimizers", optimizers)


def _read_header(path: object, file: int) -> tuple[dict[str, Any], dict[str, _Tensor]]:
    """The description of a file, checked, and its tensors, which are not read yet."""
    try:
        metadata, tensors = _read_table(path, file)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"load: {path}: got a damaged file or none of safetensors ({error})") from None
    try:
        about = json.loads(metadata["tlrt"])
        version = about["version"]
    except (KeyError, TypeError, ValueError, RecursionError):  # the last: lists within lists, thousands deep
        raise refusal(CheckpointError, "load", path, "a safetensors file of another program", _FOREIGN) from None
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
    if (rule := random.get("rule", 1)) != RULE:
        got = f"a run whose random numbers are of rule {rule!r:.99}"
        raise refusal(CheckpointError, "load", path, got, f"rule {RULE} (tlspec.ops.random)")
    return about, tensors


def _read_table(path: object, file: int) -> tuple[Any, dict[str, _Tensor]]:
    """The metadata and the tensors of a file by its header, which must account for every byte."""
    size = os.fstat(file).st_size
    lead = bytearray(8)
    _fill(path, file, 0, memoryview(lead))
    start = 8 + int.from_bytes(lead, "little")
    if not 8 < start <= min(size, 8 + _LONGEST):
        raise ValueError(f"{size} bytes with a header of {start - 8}")
    text = bytearray(start - 8)
    _fill(path, file, 8, memoryview(text))
    header = json.loads(text.decode())
    metadata = header.pop(_METADATA, {})
    tensors, spans = {}, []
    for name, entry in header.items():
        shape, (first, last) = entry["shape"], entry["data_offsets"]
        if any(type(n) is not int or n < 0 for n in (*shape, first, last)):
            raise ValueError(f"{name}: sizes that are no natural numbers")
        if entry["dtype"] not in _TYPES:
            raise ValueError(f"{name}: got type {entry['dtype']}, expected {', '.join(_TYPES)}")
        tensor = tensors[name] = _Tensor(path, file, start + first, entry["dtype"], tuple(shape))
        if last - first != math.prod(shape) * tensor.stored.itemsize:
            raise ValueError(f"{name}: {last - first} bytes for {tensor.kind} of shape {tensor.shape}")
        spans.append((first, last))
    spans.sort()
    if [0, *(last for _, last in spans)] != [*(first for first, _ in spans), size - start]:
        raise ValueError("tensors that overlap or leave bytes over")
    return metadata, tensors
