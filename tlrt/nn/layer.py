"""What layers are: callables that hold parameters, and containers of them.

Whether a call trains is an argument of the call, ``layer(x, training=True)``, off by default, and containers hand it down.
It is no attribute, so that a call depends on nothing set elsewhere: the same layer can train and be evaluated within one
step, and an evaluation can neither drop values nor move running statistics because a switch was forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from tlrt._binding.arguments import boolean, length
from tlrt._binding.together import release_call, set_and_call
from tlrt._operations.names import explained, missing_attribute
from tlrt.errors import ArgumentError, ArgumentTypeError, ShapeError, refusal
from tlrt.parameter import Parameter
from tlrt.tensor import TensorRef

__all__ = ["Dropout", "IncompatibleKeys", "Layer", "ModuleList", "Sequential"]

#: what a container holds
Part = TypeVar("Part")


def parameters_in(value: Any, seen: set[int]) -> Iterator[Parameter]:
    """The parameters of a value: itself, those of a layer that was not seen, or of what a list, tuple or dict holds, or of the
    layer that a bound method belongs to."""
    owner = getattr(value, "__self__", value) if callable(value) else value
    if isinstance(value, Parameter):
        yield value
    elif isinstance(owner, Layer):
        if type(owner).parameters is not Layer.parameters:
            yield from owner.parameters()
        elif id(owner) not in seen:
            seen.add(id(owner))
            yield from parameters_in(vars(owner), seen)
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from parameters_in(part, seen)


def named_parameters_in(value: Any, name: str, path: tuple[int, ...] = ()) -> Iterator[tuple[str, Parameter]]:
    """The parameters of a value as :func:`parameters_in` finds them, each under all of its dotted names; nothing is looked for
    within itself."""
    owner = getattr(value, "__self__", value) if callable(value) else value
    lead = f"{name}." if name else ""
    if isinstance(value, Parameter):
        yield name, value
    elif id(owner) not in path and (isinstance(owner, Layer) or isinstance(value, (list, tuple, dict))):
        path = (*path, id(owner))
        if isinstance(owner, Layer):
            found = [pair for part, of in owner._parts() for pair in named_parameters_in(of, f"{lead}{part}", path)]
            if type(owner).parameters is not Layer.parameters:  # a list of its own
                own = owner.parameters()
                found = [pair for pair in found if pair[1] in own]
                found += [(f"{lead}{p.name}", p) for p in own if all(p is not known for _, known in found)]
            yield from found
        else:
            for part, of in owner.items() if isinstance(owner, dict) else enumerate(owner):
                yield from named_parameters_in(of, f"{lead}{part}", path)


def require_sizes(layer: object, **sizes: int) -> None:
    """Raises ArgumentTypeError, ShapeError for a layer's size that is no number of elements."""
    for name, size in sizes.items():
        length(type(layer).__name__, name, size)


class IncompatibleKeys(NamedTuple):
    """The names that :meth:`Layer.load_state_dict` passed over when it was not strict.

    Parameters
    ----------
    missing_keys : list of str
        Names of the layer that the state lacks.
    unexpected_keys : list of str
        Names of the state that the layer lacks.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


class Layer:
    """A call, and the parameters among the attributes. A subclass defines ``__call__``.

    Parameters are found in attributes: parameters, layers, and lists, tuples or dicts of these. A value that is kept
    but not trained, such as a running statistic, is a parameter made with ``requires_grad=False``. Printed, a layer
    shows the layers within and the numbers of their parameters.

    Examples
    --------
    >>> import tlrt
    >>> from tlrt import nn
    >>> class Model(nn.Layer):
    ...     def __init__(self, session):
    ...         self.hidden = nn.Linear(session, 4, 8, name="hidden")
    ...         self.out = nn.Linear(session, 8, 2, name="out")
    ...     def __call__(self, x, *, training=False):
    ...         return self.out(self.hidden(x).relu())
    >>> model = Model(tlrt.Session("cpu", seed=1))
    >>> model
    Model(): 58 parameters
        hidden: Linear(weight[8, 4], bias[8]): 40 parameters
        out: Linear(weight[2, 8], bias[2]): 18 parameters

    Source: torch.nn.Module.
    """

    if not TYPE_CHECKING:  # else every name would be one

        def __getattr__(self, name):
            if hasattr(type(self), name):  # a property that raised says why
                return object.__getattribute__(self, name)
            raise missing_attribute(self, name)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in vars(cls):
            type.__setattr__(cls, "__init__", explained(vars(cls)["__init__"]))

    def __call__(self, x: Any, *, training: bool = False) -> TensorRef:
        """The layer applied to x."""
        raise NotImplementedError(f"{type(self).__name__}.__call__")

    def parameters(self) -> list[Parameter]:
        """All parameters, frozen ones included, each once.

        Returns
        -------
        list of Parameter
            Those of the attributes, in their order, which are parameters, layers, or lists, tuples or dicts of them.

        Examples
        --------
        >>> import tlrt
        >>> s = tlrt.Session("cpu", seed=1)
        >>> [p.name for p in tlrt.nn.Linear(s, 4, 2, name="fc").parameters()]
        ['fc.weight', 'fc.bias']
        """
        return list(dict.fromkeys(parameters_in(vars(self), {id(self)})))

    def _parts(self) -> Iterable[tuple[str, Any]]:
        """The attributes by the names they have in those of parameters."""
        return list(vars(self).items())

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """The parameters by the dotted names that PyTorch gives them.

        Returns
        -------
        list of (str, Parameter)
            The names are made of attributes, places in lists and tuples, and keys of dicts. A parameter that several
            attributes hold is there once, under the first name.

        Examples
        --------
        >>> import tlrt
        >>> s = tlrt.Session("cpu", seed=1)
        >>> model = tlrt.nn.Sequential(tlrt.nn.Linear(s, 4, 2, name="fc"), s.relu)
        >>> [name for name, _ in model.named_parameters()]
        ['0.weight', '0.bias']
        """
        first = {id(p): (name, p) for name, p in reversed(list(named_parameters_in(self, "")))}
        return list(reversed(first.values()))

    def requires_grad_(self, wanted: bool = True) -> Layer:
        """Trains the parameters from here on, or freezes them. What was made with ``requires_grad=False`` stays as it is.

        Parameters
        ----------
        wanted : bool
            Whether they are trained.

        Returns
        -------
        Layer
            The layer itself.

        Examples
        --------
        >>> import tlrt
        >>> s = tlrt.Session("cpu", seed=1)
        >>> tlrt.nn.Linear(s, 4, 2, name="fc").requires_grad_(False)
        Linear(weight[2, 4], bias[2]): 10 parameters, 10 frozen
        """
        boolean("requires_grad_", "wanted", wanted)
        for parameter in self.parameters():
            if parameter.is_trainable:
                parameter.requires_grad = wanted
        return self

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of all values under the dotted names of PyTorch.

        Returns
        -------
        dict of str to array
            A parameter of two names is under both. PyTorch's load_state_dict takes the arrays as tensors.

        Examples
        --------
        >>> import tlrt
        >>> s = tlrt.Session("cpu", seed=1)
        >>> {name: a.shape for name, a in tlrt.nn.Linear(s, 4, 2, name="fc").state_dict().items()}
        {'weight': (2, 4), 'bias': (2,)}
        """
        return {name: p.numpy() for name, p in named_parameters_in(self, "")}

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike], strict: bool = True) -> IncompatibleKeys:
        """Sets the parameters to arrays, or to PyTorch's tensors, all of them or none.

        Parameters
        ----------
        state : mapping of str to array
            Values under the names of :meth:`state_dict`. The count of batches that PyTorch's batch norm keeps is passed
            over.
        strict : bool
            False: names that are missing or unexpected are passed over.

        Returns
        -------
        IncompatibleKeys
            The names that were passed over.

        Raises
        ------
        ArgumentError
            With the names that are missing and those that are unexpected, and for two values of one parameter.
        ShapeError
            With all names whose shapes differ.
        ArgumentTypeError
            For a dtype that has no float32 form.

        Examples
        --------
        >>> import tlrt
        >>> s = tlrt.Session("cpu", seed=1)
        >>> layer = tlrt.nn.Linear(s, 2, 1, name="fc")
        >>> layer.load_state_dict({"weight": [[1, 2]]}, strict=False)
        IncompatibleKeys(missing_keys=['bias'], unexpected_keys=[])
        >>> layer.weight.value
        array([[1., 2.]], dtype=float32)
        """
        op = "load_state_dict"
        if not isinstance(state, Mapping):
            raise refusal(ArgumentTypeError, op, "state", type(state).__name__, "a mapping of names to arrays")
        names = dict(named_parameters_in(self, ""))
        for session in {id(p.session): p.session for p in names.values()}.values():
            session._require_uncaptured(op)
        counts = {f"{n.removesuffix('running_mean')}num_batches_tracked" for n in names if n.endswith("running_mean")}
        missing = [n for n in names if n not in state]
        unexpected = [n for n in state if n not in names and n not in counts]
        if boolean(op, "strict", strict) and (missing or unexpected):
            got = f"missing: {', '.join(missing) or 'none'}; unexpected: {', '.join(map(str, unexpected)) or 'none'}"
            raise refusal(ArgumentError, op, "names", got, "those of the layer; strict=False passes over both")
        given = {n: tuple(np.shape(state[n])) for n in names if n in state}
        if wrong := [n for n, shape in given.items() if shape != names[n].shape]:
            got, expected = (
                ", ".join(f"{n} {of[n]}" for n in wrong) for of in (given, {n: names[n].shape for n in wrong})
            )
            raise refusal(ShapeError, op, "shapes", got, expected)
        fresh: dict[Parameter, npt.NDArray[Any]] = {}
        for n in given:
            value = names[n]._converted(state[n], op)
            if not np.array_equal(fresh.setdefault(names[n], value), value, equal_nan=True):
                raise refusal(
                    ArgumentError, op, n, "another value than for the same parameter's other name", "one value"
                )
        changes = [change for p, value in fresh.items() for change in p._changed(value, None)]
        set_and_call(changes, [release_call(p._mirror) for p in fresh if p._mirror is not None])
        return IncompatibleKeys(missing, unexpected)

    def _summary(self) -> str:
        """What is written behind the name of the type: its own parameters."""
        own = [(name, p) for name, p in self._parts() if isinstance(p, Parameter)]
        return f"({', '.join(f'{name}{list(p.shape)}' for name, p in own)})"

    def _lines(self, label: str, shown: set[int]) -> list[str]:
        """The layer and those within, a line each, with the number of their parameters."""
        found = self.parameters()
        frozen = sum(p.size for p in found if not p.requires_grad)
        count = f": {sum(p.size for p in found):,} parameters" + (f", {frozen:,} frozen" if frozen else "")
        lines = [f"{label}{type(self).__name__}{self._summary()}{count if found else ''}"]
        if id(self) in shown:
            return [f"{lines[0]} (as above)"]
        shown.add(id(self))
        for name, part in [(n, part) for n, part in self._parts() if not isinstance(part, Parameter)]:
            lines += [f"    {line}" for line in _lines_of(part, f"{name}: ", shown)]
        return lines

    def __repr__(self) -> str:
        return "\n".join(self._lines("", set()))


def _lines_of(part: Any, label: str, shown: set[int]) -> list[str]:
    """The lines of a layer's attribute: those of layers, also within lists, tuples and dicts, and functions by their names."""
    if isinstance(part, Layer):
        return part._lines(label, shown)
    if isinstance(part, Parameter):
        return [f"{label}Parameter{list(part.shape)}"]
    if isinstance(part, (list, tuple, dict)):
        items = part.items() if isinstance(part, dict) else enumerate(part)
        inner = [line for name, of in items for line in _lines_of(of, f"{name}: ", shown)]
        return [label.rstrip(), *(f"    {line}" for line in inner)] if inner else []
    return [f"{label}{getattr(part, '__name__', type(part).__name__)}"] if callable(part) and label[0].isdigit() else []


class Dropout(Layer):
    """Dropped elements, in training only.

    y = x·mask/(1 - p), where the mask is 1 with probability 1 - p and drawn from the session's generator; y = x outside
    of training.

    Parameters
    ----------
    p : float
        Probability of an element to be dropped, 0 <= p < 1.

    Raises
    ------
    ArgumentError
        For another p.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> drop, x = tlrt.nn.Dropout(0.5), s.const([1, 1, 1, 1])
    >>> drop(x).numpy()
    array([1., 1., 1., 1.], dtype=float32)
    >>> sorted(set(drop(s.full(100, 1.0), training=True).numpy()))
    [np.float32(0.0), np.float32(2.0)]

    Source: Srivastava et al., JMLR 15, 2014; torch.nn.Dropout.
    """

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p < 1:
            raise refusal(ArgumentError, "Dropout", "p", p, "0 <= p < 1")
        self.p = p

    def __call__(self, x: TensorRef, *, training: bool = False) -> TensorRef:
        return x.session.dropout(x, self.p) if training else x

    def _summary(self) -> str:
        return f"(p={self.p})"


class _Container(Layer, Generic[Part]):
    """Parts under the names of their places."""

    layers: Sequence[Part]

    def _parts(self) -> Iterable[tuple[str, Any]]:
        others = [(name, value) for name, value in vars(self).items() if name != "layers"]
        return [*((str(i), part) for i, part in enumerate(self.layers)), *others]

    def __getitem__(self, index: int) -> Part:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)

    def _summary(self) -> str:
        return ""


class Sequential(_Container[Layer | Callable[[TensorRef], TensorRef]]):
    """Layers one after the other; functions of one tensor (``session.relu``) may stand between them.

    A call hands `training` to the layers. ``model[i]`` is the layer at place i, ``len(model)`` their number.

    Parameters
    ----------
    *layers : Layer or function of a tensor
        In the order in which they are applied.

    Raises
    ------
    ArgumentTypeError
        For what cannot be called, and for a function that has parameters of its own.

    Examples
    --------
    >>> import tlrt
    >>> from tlrt import nn
    >>> s = tlrt.Session("cpu", seed=1)
    >>> nn.Sequential(nn.Linear(s, 64, 32, name="hidden"), s.relu, nn.Dropout(0.2), nn.Linear(s, 32, 10, name="out"))
    Sequential: 2,410 parameters
        0: Linear(weight[32, 64], bias[32]): 2,080 parameters
        1: relu
        2: Dropout(p=0.2)
        3: Linear(weight[10, 32], bias[10]): 330 parameters

    Source: torch.nn.Sequential.
    """

    def __init__(self, *layers: Layer | Callable[[TensorRef], TensorRef]) -> None:
        for i, layer in enumerate(layers):
            if isinstance(layer, type) or not callable(layer):
                raise refusal(ArgumentTypeError, "Sequential", f"layer {i}", f"{layer!r}", "a Layer or a function")
            if not isinstance(layer, Layer) and list(parameters_in(dict(getattr(layer, "__dict__", {})), set())):
                got = f"{type(layer).__name__} with parameters"
                raise refusal(ArgumentTypeError, "Sequential", f"layer {i}", got, "a subclass of nn.Layer")
        self.layers = layers

    def __call__(self, x: Any, *, training: bool = False) -> TensorRef:
        for layer in self.layers:
            x = layer(x, training=training) if isinstance(layer, Layer) else layer(x)
        return x


class ModuleList(_Container[Layer]):
    """A list of layers, whose parameters have the names of torch.nn.ModuleList: "0.weight", "1.weight".

    The list is not called; its layers are. A list of Python as an attribute does the same.

    Parameters
    ----------
    layers : iterable of Layer
        The first layers.

    Raises
    ------
    ArgumentTypeError
        For what is no layer.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu", seed=1)
    >>> layers = tlrt.nn.ModuleList(tlrt.nn.Linear(s, 2, 2, name=f"l{i}") for i in range(3))
    >>> len(layers), [name for name, _ in layers.named_parameters()][-1]
    (3, '2.bias')
    """

    def __init__(self, layers: Iterable[Layer] = ()) -> None:
        self.layers: list[Layer] = []
        self.extend(layers)

    def append(self, layer: Layer) -> ModuleList:
        """Adds a layer at the end.

        Parameters
        ----------
        layer : Layer
            The layer.

        Returns
        -------
        ModuleList
            The list itself.

        Raises
        ------
        ArgumentTypeError
            For what is no layer.
        """
        if not isinstance(layer, Layer):
            raise refusal(ArgumentTypeError, "ModuleList", f"layer {len(self)}", f"{layer!r}", "a Layer")
        self.layers.append(layer)
        return self

    def extend(self, layers: Iterable[Layer]) -> ModuleList:
        """Adds layers at the end.

        Parameters
        ----------
        layers : iterable of Layer
            The layers, in their order.

        Returns
        -------
        ModuleList
            The list itself.

        Raises
        ------
        ArgumentTypeError
            For what is no layer.
        """
        for layer in layers:
            self.append(layer)
        return self

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)
