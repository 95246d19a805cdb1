"""What a name or an argument that is not there is likely to mean: the errors for it.

:mod:`tlrt._pytorch_names` has PyTorch's names; it is read when the first such error is made.
"""

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from tlrt.errors import ArgumentTypeError

__all__ = ["ARGUMENTS", "explain_arguments", "explain_type_error", "missing_attribute", "missing_name", "public_names"]

_Kind = TypeVar("_Kind", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., Any])

#: an argument of PyTorch or NumPy -> what it is called here: the first that the function takes
ARGUMENTS = {
    "dim": ("axis", "axes"), "dims": ("axes", "axis"), "keepdim": ("keepdims",), "unbiased": ("correction",),
    "ddof": ("correction",), "normalized_shape": ("width",), "in_features": ("inputs",), "out_features": ("outputs",),
    "num_embeddings": ("count",), "embedding_dim": ("width",), "kernel_size": ("kernel",),
    "num_features": ("channels",), "num_channels": ("channels",), "num_groups": ("groups",),
    "elementwise_affine": ("affine",), "embed_dim": ("width",), "num_heads": ("heads",), "nhead": ("heads",),
    "d_model": ("width",), "scale_factor": ("factor",), "negative_slope": ("slope",), "attn_mask": ("mask",),
    "is_causal": ("causal",), "dropout_p": ("dropout",), "betas": ("beta1", "beta2"), "learning_rate": ("lr",),
    "T_max": ("total",), "total_steps": ("total",), "T_0": ("period",), "T_mult": ("growth",), "eta_min": ("final",),
    "step_size": ("every",), "gamma": ("factor",), "max_lr": ("peak",), "base_lr": ("peak",), "pct_start": ("rise",),
    "num_warmup_steps": ("warmup",), "warmup_steps": ("warmup",), "diagonal": ("k",), "label": ("labels",),
    "target": ("labels", "target"), "tensor": ("x",), "input": ("x", "a"), "other": ("b",),
    "a_min": ("lo",), "a_max": ("hi",), "size": ("shape",), "params": ("parameters",),
}  # fmt: skip
#: an argument that nothing here takes -> why
_NEEDLESS = {
    "device": "a session has one device", "dtype": "every tensor is float32, and float64 in a session on 'spec'",
    "inplace": "nothing changes in place", "out": "every result is new",
    "requires_grad": "Session.input and Session.param take it", "set_to_none": "Session.reset() releases gradients",
    "non_blocking": "work on a device never blocks the host", "amsgrad": "there is no such variant",
    "foreach": "one kernel updates all parameters", "fused": "one kernel updates all parameters",
}  # fmt: skip
#: the parts of PyTorch in which a name of each kind of owner is looked for first
_PLACES = {
    "tensor": ("Tensor.", "", "nn.functional.", "linalg.", "fft."),
    "session": ("", "nn.functional.", "linalg.", "fft.", "Tensor.", "cuda."),
    "optimizer": ("optim.Optimizer.", "optim."), "layer": ("nn.Module.", "nn."),
    "nn": ("nn.", "nn.functional.", "nn.utils."), "optim": ("optim.", "optim.lr_scheduler.", "optim.swa_utils."),
    "tlrt": ("", "Tensor.", "cuda.", "autograd."),
}  # fmt: skip


@functools.cache
def _table() -> dict[str, tuple[str, str]]:
    """A name of PyTorch -> the names here, and what differs."""
    from tlrt._pytorch_names import LINES

    found: dict[str, tuple[str, str]] = {}
    for line in LINES.splitlines():
        theirs, ours, note = (part.strip() for part in line.split("|"))
        for name in theirs.split(", "):
            found.setdefault(re.sub(r"^F[.]", "nn.functional.", name), (ours, note))
    return found


def _counterpart(place: str, name: str) -> str:
    """What does here what PyTorch's name does; "" where it is not known."""
    table = _table()
    wanted = [f"{part}{name}" for part in _PLACES[place]]
    full = next((n for n in wanted if n in table), None)
    full = full or next((n for n in table if n.rpartition(".")[2] == name), None)  # elsewhere in PyTorch
    if full is None:
        return ""
    given, note = table[full]
    if given == "–":
        return f"; {note}"
    names = given.split(", ")
    ours = " or ".join([n for n in names if n.rpartition(".")[2] == name] or names)
    letters = (
        " (s: a session, x: a tensor)" if place not in ("tensor", "session") and re.search(r"\b[sx][.]", ours) else ""
    )
    return f"; torch.{full} is {ours} here{letters}" + (f": {note}" if note else "")


def public_names(owner: object) -> list[str]:
    """The names of an object that are not private."""
    return [n for n in dir(owner) if not n.startswith("_")]


def missing_name(what: str, place: str, name: str, known: Iterable[str], owner: object = None) -> AttributeError:
    """The error for a name that is not there. `place` is the kind of owner: "tensor", "session", "nn" and so on."""
    if name.startswith("_"):
        return AttributeError(f"{what} has no attribute {name!r}", name=name, obj=owner)
    hint, names = _counterpart(place, name), list(known)
    if not hint and place == "tensor" and name.endswith("_") and name.rstrip("_") in names:
        hint = f"; nothing changes a tensor in place: {name.rstrip('_')} gives a new one"
    if not hint:
        close = [n for n in ARGUMENTS.get(name, ()) if n in names]
        close = close or [n for n in names if len(name) > 2 and name in n.split("_")]
        close = close or difflib.get_close_matches(name, names, 3)
        hint = f"; there is {', '.join(sorted(close)[:4])}" if close else ""
    return AttributeError(f"{what} has no attribute {name!r}{hint}", name=name, obj=owner)


def missing_attribute(owner: object, name: str) -> AttributeError:
    """The error for a name that a session, a tensor, an optimiser or a layer lacks; it says what there is instead."""
    kind = type(owner)
    place = "session"
    for base in kind.__mro__:
        if base.__name__ in ("Arithmetic", "Session", "Optimizer", "Layer"):
            place = {"Arithmetic": "tensor"}.get(base.__name__, base.__name__.lower())
            break
    return missing_name(kind.__name__, place, name, {*public_names(kind), *getattr(owner, "__dict__", ())}, owner)


# ---- arguments


def explain_type_error(
    error: TypeError, function: Callable[..., Any], name: str, skip: int, keywords: Mapping[str, Any]
) -> TypeError:
    """The error for a call whose arguments do not fit the signature; another TypeError, raised within the function, stays.
    `skip` parameters come first that the caller does not write."""
    frames, wrapped = 0, function
    while (wrapped := getattr(wrapped, "__wrapped__", None)) is not None:  # type: ignore[assignment]
        frames += 1
    place = error.__traceback__
    while place is not None and (place := place.tb_next) is not None:
        frames -= 1
    if type(error) is not TypeError or frames < 0:
        return error
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    taken = [p.name for p in parameters]
    usage = f"{name}({_written(parameters)})"
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for given in [] if open_ended else [k for k in keywords if k not in taken]:
        ours = [n for n in ARGUMENTS.get(given, ()) if n in taken]
        ours = ours if given == "betas" else ours[:1]
        if ours:
            value = f"{keywords[given]!r:.40}" if len(ours) == 1 else ""
            expected = f"{' and '.join(f'{n}={value}' for n in ours)}, as {given} is called here"
        elif given in _NEEDLESS:
            expected = f"none: {_NEEDLESS[given]}"
        elif close := difflib.get_close_matches(given, taken, 1):
            expected = f"{close[0]}="
        else:
            note = next((_table()[n][1] for n in (name, f"nn.functional.{name}", f"nn.{name}") if n in _table()), "")
            expected = f"{usage}{note and f' ({note})'}"
        return ArgumentTypeError(f"{name}: {given}: got an argument of no such name, expected {expected}", op=name)
    said = str(error).partition("() ")[2] or str(error)
    return ArgumentTypeError(f"{name}: {said}, expected {usage}", op=name)


def _written(parameters: list[inspect.Parameter]) -> str:
    """Parameters as a call writes them, without their types."""
    plain = [p.replace(annotation=p.empty) for p in parameters]
    return str(inspect.Signature(plain)).strip("()").removeprefix("/, ")


def explained(function: _Function, name: str = "", skip: int = 1) -> _Function:
    """The function, with errors about its arguments that say what they are called here. Without a name it is a constructor."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except TypeError as error:
            shown = name or type(arguments[0]).__name__
            if (better := explain_type_error(error, function, shown, skip, keywords)) is error:
                raise
            raise better from None

    return call  # type: ignore[return-value]


def explain_arguments(kind: _Kind) -> _Kind:
    """Explains errors about the arguments of the methods that a class inherits, whose own names are those of private classes."""
    for name in public_names(kind):
        function = inspect.getattr_static(kind, name)
        if inspect.isfunction(function) and name not in vars(kind):
            type.__setattr__(kind, name, explained(function, name))
    return kind
