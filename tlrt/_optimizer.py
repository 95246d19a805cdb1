"""What the optimisers share: groups, steps, states, and what observers and captured steps see of a step."""

from __future__ import annotations

import difflib
import functools
import math
import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from tlrt._binding.arguments import is_number
from tlrt._binding.handles import Uncopied
from tlrt._binding.library import failure
from tlrt._binding.observer import Calls, watches_calls
from tlrt._binding.together import Change, call_and_set, release_call, set_and_call
from tlrt._operations.names import ARGUMENTS, explained, missing_attribute
from tlrt.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError, ReleasedError, ShapeError, refusal
from tlrt.parameter import Parameter

__all__ = ["Optimizer", "Parameterised", "Update", "one_call", "release_states"]


_Update = TypeVar("_Update", bound=Callable[..., None])
#: parameters, or a dict for each group of them
Parameterised = Iterable[Parameter | Mapping[str, Any]]


def one_call(method: _Update) -> _Update:
    """Marks an ``_update`` that calls one operation, with the hyperparameters and the step count as they are.

    With ``device=self._counting()`` the call counts the step too, whatever interrupts it. A captured step makes such a
    call again without Python.

    Parameters
    ----------
    method : function
        The method ``_update`` of a subclass of :class:`Optimizer`.

    Returns
    -------
    function
        The same method.
    """
    method.is_one_call = True  # type: ignore[attr-defined]
    return method


class _CountingDevice:
    """Stands for the device of one call that is an optimiser's whole update, and counts the step as C makes it. The
    specification looks at `device` and `changes`."""

    def __init__(self, device: Any, *changes: Change) -> None:
        self.device, self.changes, self._handle = device, changes, getattr(device, "_handle", None)

    @property
    def _calls(self) -> _CountingDevice:
        return self

    def __getattr__(self, symbol: str) -> Any:
        if not any(map(watches_calls, self.device._observers)):
            return partial(call_and_set, self.changes[0], getattr(self.device._calls, symbol))
        function = getattr(self.device._library.lib, f"torchlean_cuda_{symbol}")
        counted = Calls({symbol: partial(call_and_set, self.changes[0], function)})
        return getattr(counted.observed(self.device), symbol)


@dataclass(frozen=True)
class Update:
    """One step of an optimiser, as observers see it.

    Parameters
    ----------
    optimizer : Optimizer
        The optimiser, or the group.
    parameters : list of Parameter
        What the step updates.
    gradients : list of buffers
        Their gradients, in the same order.
    """

    optimizer: Optimizer
    parameters: list[Parameter]
    gradients: list[Any]

    @property
    def name(self) -> str:
        """The optimiser's type and "step", for messages.

        Returns
        -------
        str
            Like "AdamW.step".
        """
        return f"{type(self.optimizer).__name__}.step"

    @property
    def is_one_call(self) -> bool:
        """Whether a replay can make its one call again, without Python.

        Returns
        -------
        bool
            True for the optimisers of this module.
        """
        kind = type(self.optimizer)
        return kind._advance is Optimizer._advance and getattr(kind._update, "is_one_call", False)

    def run(self) -> None:
        """Updates the parameters."""
        self.optimizer._advance(self.parameters, self.optimizer.kernels.pack(self.gradients))

    def replay_in_python(self, gradients: list[Any]) -> Callable[[], None]:
        """The update as a function of Python, for a captured step.

        Parameters
        ----------
        gradients : list of buffers
            Where the gradients are at every replay.

        Returns
        -------
        function
            Without arguments; it makes one step.

        Raises
        ------
        ReleasedError
            When called after the optimiser's close.
        """
        optimizer, packed = self.optimizer, self.optimizer.kernels.pack(gradients)

        def step() -> None:
            optimizer._require_open("step")
            optimizer._report_replay()
            optimizer._advance(self.parameters, packed)

        return step

    def replay_call(self, recorder: Any, call: Any) -> Any:
        """The recorded call of the update, with the hyperparameters and the step count that hold when it is made again.

        Parameters
        ----------
        recorder : Recorder
            What records the step.
        call : Call
            The recorded call.

        Returns
        -------
        Call
            The same call.
        """
        optimizer = self.optimizer
        for place, name in enumerate(call.parameters):
            if name in optimizer.hyper:
                call.computed[place] = partial(optimizer._setting, name)
            elif name == "step":
                call.computed[place] = lambda: optimizer.steps + 1
        found = [(slot, i, b._handle) for slot, buffers in optimizer._state.items() for i, b in enumerate(buffers)]
        states = [(slot, i, recorder.storage(handle)) for slot, i, handle in found]
        known = optimizer._state
        call.count = lambda function: partial(call_and_count, optimizer, function)
        call.is_steady = "step" not in call.parameters

        def wrap(run: Callable[[], int | None]) -> Callable[[], int | None]:
            def step() -> int | None:
                nonlocal known
                optimizer._require_open("step")
                optimizer._report_replay()
                with optimizer._alone():
                    optimizer._require_valid_settings()
                    if optimizer._state is not known:  # loaded meanwhile
                        optimizer._restore_places(states)
                        known = optimizer._state
                    return run()

            return step

        call.wrap = wrap
        return call


def call_and_count(optimizer: Optimizer, function: Callable[..., int], *arguments: Any) -> int:
    """Calls C, and counts a step of the optimiser where C returns 0, as one act.

    Parameters
    ----------
    optimizer : Optimizer
        Its ``steps`` go up.
    function : function
        Of C, which returns a status.
    *arguments
        Of the call.

    Returns
    -------
    int
        The status.
    """
    return call_and_set((optimizer, "steps", optimizer.steps + 1), function, *arguments)


def _hyperparameter(name: str) -> property:
    """An attribute that takes valid values alone, and that observers of the device may refuse to set."""

    def assign(self: Optimizer, value: Any) -> None:
        self._check_value(name, value)
        if (session := self.__dict__.get("session")) is not None:
            for observer in session.device._observers:
                observer.before_setting(session, f"{type(self).__name__}.{name}")
        if groups := self.__dict__.get("groups"):
            first = self.__dict__.setdefault("_first", {}).setdefault(name, value)
            inherited = [group._inherited(name, value, first) for group in groups]
            for group, each in zip(groups, inherited, strict=True):
                group._check_value(name, each)
            self.__dict__[f"_{name}"] = value
            for group, each in zip(groups, inherited, strict=True):
                assign(group, each)
            return
        self.__dict__[f"_{name}"] = value

    text = f"The setting {name} of the class; an invalid value is refused.\n\nReturns\n-------\nfloat or bool\n    Its value."
    return property(operator.attrgetter(f"_{name}"), assign, doc=text)


def release_states(state: Mapping[str, list[Any]]) -> None:
    """Gives the buffers of all states back.

    Parameters
    ----------
    state : mapping of str to list of buffers
        By slot.
    """
    for buffers in state.values():
        for buffer in buffers:
            buffer.release()


_optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def _unlock_after_fork() -> None:
    """In a child process, a lock that another thread had would stay taken."""
    for optimizer in _optimizers:
        optimizer._lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock_after_fork)


def _completed(construct: Callable[..., None]) -> Callable[..., None]:
    """A constructor after whose outermost call the optimiser takes no attributes of other names."""

    @functools.wraps(construct)
    def run(self: Optimizer, *arguments: Any, **settings: Any) -> None:
        construct(self, *arguments, **settings)
        if type(self).__init__ is run:
            for each in (self, *self.groups):
                object.__setattr__(each, "_is_complete", True)

    return run


class _GroupSteps:
    """The steps of an optimiser of several groups, which count their own: those of the group that made most. An optimiser
    without groups has an attribute of this name in its dict, which comes first."""

    def __get__(self, optimizer: Optimizer | None, kind: type[Optimizer]) -> Any:
        return self if optimizer is None else max(group.steps for group in optimizer.groups)


class Optimizer(Uncopied):
    """What the optimisers share.

    Frozen parameters are left out. A step updates the parameters that the last backward's loss reaches, as PyTorch's
    optimisers do: another one is not decayed, nor moved by the momentum that it has, and keeps its states. The count of
    steps is the optimiser's.

    `parameters` may be a list of dicts, as in PyTorch: "params" and the group's own hyperparameters ("betas" stands for
    beta1 and beta2). :attr:`groups` are optimisers too, of one group each. What is assigned to the whole goes to those
    that have no value of their own. A group's own lr is multiplied by what lr was multiplied by since the start, so
    that a schedule of the whole is one of each group. What is assigned to a group holds until then.

    A subclass names its hyperparameters in ``hyper`` and its states in ``slots``, and defines ``_update``.
    Hyperparameters are attributes. Any other public attribute is refused once the optimiser is made, so that a wrong
    name does not pass unseen.

    Parameters
    ----------
    parameters : iterable of Parameter, or of dict
        What is trained.

    Raises
    ------
    ArgumentTypeError
        For what is no list of parameters.
    ArgumentError
        For none that requires a gradient, one in several groups, or an unknown hyperparameter of a group.
    DeviceMismatchError
        For parameters of several sessions.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> w, b = s.param([1.0], "w"), s.param([0.0], "b")
    >>> adam = tlrt.optim.AdamW([{"params": w}, {"params": b, "weight_decay": 0.0}], lr=1e-3)
    >>> adam.lr = 5e-4
    >>> [(group.lr, group.weight_decay) for group in adam.groups]
    [(0.0005, 0.01), (0.0005, 0.0)]
    >>> adam.learning_rate = 1e-4
    Traceback (most recent call last):
        ...
    AttributeError: AdamW: learning_rate: got an attribute of no such name, expected lr

    Source: torch.optim.Optimizer.
    """

    #: names of the hyperparameters, attributes of the optimiser
    hyper: tuple[str, ...] = ()
    #: names of the per-parameter states, buffers of the parameter's length that start at 0
    slots: tuple[str, ...] = ()
    #: steps taken
    steps: Any = _GroupSteps()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in cls.hyper:
            default = getattr(cls, name, None)
            if not isinstance(default, property):
                setattr(cls, f"_{name}", default)
                setattr(cls, name, _hyperparameter(name))
        if "__init__" in vars(cls):
            type.__setattr__(cls, "__init__", _completed(explained(vars(cls)["__init__"])))

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; one that the optimiser has not, like ``learning_rate``, raises AttributeError."""
        if (
            name[0] != "_"
            and "_is_complete" in self.__dict__
            and name not in self.__dict__
            and not hasattr(type(self), name)
        ):
            ours = [n for n in ARGUMENTS.get(name, ()) if n in self.hyper]
            ours = ours or difflib.get_close_matches(name, self.hyper, 1)
            expected = " and ".join(ours) or f"{', '.join(self.hyper)}, or a name of your own that begins with _"
            text = f"{type(self).__name__}: {name}: got an attribute of no such name, expected {expected}"
            raise AttributeError(text, name=name, obj=self)
        object.__setattr__(self, name, value)

    if not TYPE_CHECKING:  # else every name would be one

        def __getattr__(self, name):
            if hasattr(type(self), name):  # a property that raised says why
                return object.__getattribute__(self, name)
            raise missing_attribute(self, name)

    def __init__(self, parameters: Parameterised) -> None:
        kind = type(self).__name__
        if isinstance(parameters, (Parameter, Mapping)) or not isinstance(parameters, Iterable):
            got = type(parameters).__name__
            hint = " (values())" if isinstance(parameters, Mapping) else ""
            raise refusal(ArgumentTypeError, kind, "parameters", got, f"a list of Parameter{hint}")
        given: list[Any] = list(parameters)
        #: an optimiser for each dict of the parameters, none without dicts
        self.groups: list[Optimizer] = []
        #: the hyperparameters that a group has of its own
        self._own: dict[str, Any] = {}
        self._closed = False
        self._lock = threading.Lock()
        self._packed: dict[str, Any] = {}
        self._mirrors: list[Any] = []
        #: hyperparameters found valid
        self._checked: list[Any] = []
        if any(isinstance(p, Mapping) for p in given):
            self._state: dict[str, list[Any]] = {}
            self._make_groups(given)
            return
        chosen: dict[Parameter, None] = {}
        for p in given:
            if not isinstance(p, Parameter):
                raise refusal(ArgumentTypeError, kind, "parameters", type(p).__name__, "Parameter")
            if p.requires_grad:
                chosen[p] = None
        self.parameters = list(chosen)
        if not self.parameters:
            raise refusal(ArgumentError, kind, "parameters", "none that requires a gradient", "at least one")
        self.session = self.parameters[0].session
        if any(p.session is not self.session for p in self.parameters):
            raise refusal(DeviceMismatchError, kind, "parameters", "those of several sessions", "those of one")
        self.session._require_open(kind)
        self.session._require_uncaptured(kind)
        self.kernels: Any = self.session.tape.kernels
        self.steps = 0
        device = self.session.device
        self._state = {s: [device.zeros(p.size) for p in self.parameters] for s in self.slots}
        _optimizers.add(self)

    def _make_groups(self, given: list[Any]) -> None:
        """An optimiser of this type for each of the dicts; hyperparameters that a dict has not follow once they are assigned."""
        kind, groups = type(self).__name__, []
        for i, settings in enumerate(given):
            where = f"group {i}"
            if not isinstance(settings, Mapping) or "params" not in settings:
                got = type(settings).__name__
                raise refusal(ArgumentTypeError, kind, where, got, 'a dict with "params", as the others')
            own = dict(settings)
            members = own.pop("params")
            if "betas" in own and "beta1" in self.hyper:
                own["beta1"], own["beta2"] = own.pop("betas")
            if unknown := [n for n in own if n not in self.hyper]:
                raise refusal(ArgumentError, kind, where, unknown, f"some of {', '.join(('params', *self.hyper))}")
            group: Optimizer = object.__new__(type(self))
            group.slots = self._slots_of(own)
            Optimizer.__init__(group, [members] if isinstance(members, Parameter) else members)
            if group.groups:
                raise refusal(ArgumentTypeError, kind, where, "dicts", "Parameter")
            group._own = own
            groups.append(group)
        self.parameters = [p for group in groups for p in group.parameters]
        if len(set(self.parameters)) < len(self.parameters):
            raise refusal(ArgumentError, kind, "parameters", "one in several groups", "each in one")
        self.session = groups[0].session
        if any(group.session is not self.session for group in groups):
            raise refusal(DeviceMismatchError, kind, "parameters", "those of several sessions", "those of one")
        self.groups = groups

    def _slots_of(self, own: Mapping[str, Any]) -> tuple[str, ...]:
        """The states of a group that has these hyperparameters of its own."""
        return self.slots

    def _inherited(self, name: str, value: Any, first: Any) -> Any:
        """A group's hyperparameter, as the whole gets this value and had the other at first."""
        if name not in self._own:
            return value
        own = self._own[name]
        if name != "lr" or value is first or not (is_number(value) and is_number(first)):
            return own
        if not first:
            expected = "lr above 0 when the optimizer is made, as a group's own is multiplied by lr / that"
            raise refusal(ArgumentError, type(self).__name__, "lr", value, expected)
        return own * (value / first)

    def step(self) -> None:
        """Updates every parameter that the loss of the session's last backward pass reaches.

        A parameter that is frozen, since then too, stays as it is. Where no parameter is left the step is not counted.

        Raises
        ------
        ArgumentError
            Before a backward pass, or while another thread is at a step.
        ReleasedError
            After close.

        Examples
        --------
        >>> import tlrt
        >>> s = tlrt.Session("cpu")
        >>> w = s.param([1.0, 2.0], "w")
        >>> sgd = tlrt.optim.SGD([w], lr=0.25)
        >>> (w * w).sum().backward()
        >>> sgd.step()
        >>> w.value, sgd.steps
        (array([0.5, 1. ], dtype=float32), 1)
        """
        self._require_open("step")
        trained = [g for g in self.groups if any(p._requires_grad for p in g.parameters)] or self.groups or [self]
        found = [(group, *group._reached()) for group in trained]
        if self.groups:  # all of them, before the first changes
            for group in self.groups:
                group._require_valid_settings()
        for group, chosen, gradients in found:
            if chosen:
                group._update_observed(chosen, gradients)

    def _reached(self) -> tuple[list[Parameter], list[Any]]:
        """The parameters that a step updates, and their gradients."""
        last = self.session._gradients
        gradients, unreached = last._by_parameter, last._unreached
        chosen, found = self.parameters, []
        with suppress(KeyError):
            found = [gradients[p].buffer for p in chosen if p._requires_grad]
        if len(found) < len(chosen):
            chosen = [p for p in chosen if p._requires_grad]
            missing = [p.name for p in chosen if p not in gradients]
            if missing or not chosen:
                got = ", ".join(missing[:3]) or "any parameter"
                raise refusal(ArgumentError, "step", "gradients", f"none of {got}", "backward() before step()")
            found = [gradients[p].buffer for p in chosen]
        if unreached:
            chosen = [p for p in chosen if p not in unreached]
            found = [gradients[p].buffer for p in chosen]
        return chosen, found

    def _update_observed(self, chosen: list[Parameter], found: list[Any]) -> None:
        observers = self.session.device._observers
        if not observers:
            self._advance(chosen, self.kernels.pack(found))
            return
        update = Update(self, chosen, found)
        with ExitStack() as contexts:
            for observer in observers:
                contexts.enter_context(observer.during_update(update))
            update.run()

    def _report_replay(self) -> None:
        for observer in self.session.device._observers:
            observer.before_replayed_update(self)

    def _setting(self, name: str) -> float:
        """A hyperparameter as C takes it."""
        value = getattr(self, name)
        return int(value) if value is True or value is False else value

    def _restore_places(self, states: list[tuple[str, int, Any]]) -> None:
        """States that were replaced go to where a captured step has them. What moves one makes a new dict, by which other
        captured steps know."""
        state = {slot: list(buffers) for slot, buffers in self._state.items()}
        old = []
        for slot, i, storage in states:
            fresh = storage.buffer(self.session.device)
            status = storage.copy(fresh, state[slot][i])
            if status:
                raise failure(status, "step")
            if status is not None:
                old.append(state[slot][i])
                state[slot][i] = fresh
        if old:
            self._state, self._packed, self._mirrors = state, {}, []
        for buffer in old:
            buffer.release()

    def _advance(self, chosen: list[Parameter], gradient: Any) -> None:
        """Updates the parameters from their packed gradients."""
        with self._alone():
            packed = self._pack_buffers(chosen)
            self._require_valid_settings()
            # before the update, so that an interrupt cannot leave a host value that looks current
            for p in chosen:
                p.updated()
            steps = self.steps + 1
            self._update(packed, gradient)
            self.steps = steps  # again, where the update's call counted it

    def _alone(self) -> Any:
        """What a thread holds during an update. Raises ArgumentError while there is one."""
        if self._lock.locked():
            got, expected = "a step of another thread meanwhile", "one thread at a time"
            raise refusal(ArgumentError, "step", type(self).__name__, got, expected)
        return self._lock

    def _counting(self) -> Any:
        """The device argument of the one call of an update, which then counts the step."""
        return _CountingDevice(self.session.device, (self, "steps", self.steps + 1))

    def _require_valid_settings(self) -> None:
        """Raises unless the hyperparameters are valid; looks at them again only if one is another object."""
        values = [getattr(self, h) for h in self.hyper]
        if len(values) != len(self._checked) or not all(map(operator.is_, values, self._checked)):
            self._check(self._settings())
            self._checked = values

    def _pack_buffers(self, chosen: list[Parameter]) -> Mapping[str, Any]:
        """The mirrors and states of the parameters, packed; kept as long as the mirrors are the same."""
        mirrors = [p.mirror if p._mirror is None else p._mirror for p in chosen]
        if len(mirrors) == len(self._mirrors) and all(map(operator.is_, mirrors, self._mirrors)):
            return self._packed
        pack = self.kernels.pack
        places = [i for i, p in enumerate(self.parameters) if len(chosen) == len(self.parameters) or p in chosen]
        self._packed = {"p": pack(mirrors), **{s: pack([b[i] for i in places]) for s, b in self._state.items()}}
        self._mirrors = mirrors
        return self._packed

    def _require_open(self, op: str) -> None:
        self.session._require_open(op)
        if self._closed:
            kind = type(self).__name__
            raise refusal(ReleasedError, op, kind, "a closed optimizer", "an open one")

    def _settings(self) -> dict[str, Any]:
        return {h: getattr(self, h) for h in self.hyper}

    def _check(self, settings: Mapping[str, Any]) -> None:
        """Raises ArgumentTypeError for a hyperparameter that is no number, ArgumentError for one out of range and for those that
        do not go together."""
        for h in self.hyper:
            self._check_value(h, settings[h])
        for group in self.groups:
            group._check(group._settings())

    def _check_value(self, name: str, value: Any) -> None:
        """The same of one hyperparameter."""
        kind = type(self).__name__
        if type(value) is not float and not is_number(value):
            raise refusal(ArgumentTypeError, kind, name, type(value).__name__, "a number")
        below_one = name.startswith(("alpha", "beta"))
        if not 0 <= value < math.inf or (below_one and value >= 1):
            raise refusal(ArgumentError, kind, name, value, f"0 <= {name}{' < 1' * below_one}, finite")

    def _update(self, packed: Mapping[str, Any], gradients: Any) -> None:
        raise NotImplementedError

    def state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """What a resumed run needs. :func:`tlrt.checkpoint.save` writes it.

        Returns
        -------
        settings : dict
            The type, the number of steps, the hyperparameters, the parameters' names, and the groups.
        states : dict of str to array
            The states under "slot/parameter".

        Raises
        ------
        ReleasedError
            After close.

        Examples
        --------
        >>> import tlrt
        >>> s = tlrt.Session("cpu")
        >>> settings, states = tlrt.optim.SGD([s.param([1.0], "w")], lr=0.25, momentum=0.5).state()
        >>> settings["steps"], settings["momentum"], states
        (0, 0.5, {'velocity/w': array([0.], dtype=float32)})
        """
        self._require_open("state")
        settings = {"type": type(self).__name__, "steps": self.steps, **self._settings()}
        settings["parameters"] = [p.name for p in self.parameters]
        if self.groups:
            states = [group.state() for group in self.groups]
            settings["groups"] = [group for group, _ in states]
            return settings, {name: array for _, found in states for name, array in found.items()}
        arrays = {
            f"{slot}/{p.name}": buffer.numpy(p.shape)
            for slot, buffers in self._state.items()
            for p, buffer in zip(self.parameters, buffers, strict=True)
        }
        return settings, arrays

    def check_state(self, settings: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Checks what :meth:`load_state` would take.

        Parameters
        ----------
        settings : mapping
            As :meth:`state` gives it.
        arrays : mapping of str to array
            The states.

        Raises
        ------
        ArgumentError
            For the settings of another optimiser, other parameters, or a hyperparameter that no step would take.
        ShapeError
            For a state that is missing or of another shape or type.
        """
        kind, settings = type(self).__name__, self._regrouped(settings)
        if settings.get("type") != kind:
            raise refusal(ArgumentError, "load_state", "type", f"{settings.get('type')!r}", f"{kind!r}")
        names = [p.name for p in self.parameters]
        if settings.get("parameters") != names:
            raise refusal(ArgumentError, "load_state", "parameters", settings.get("parameters"), names)
        steps = settings.get("steps")
        if not isinstance(steps, int) or isinstance(steps, bool) or not 0 <= steps < 2**63:
            expected = "an integer of 0 or more, below 2**63"
            raise refusal(ArgumentError, "load_state", "steps", f"{steps!r:.99}", expected)
        for h in self.hyper:
            got, flag = settings.get(h), isinstance(getattr(self, h), bool)
            if flag != isinstance(got, bool) or not (isinstance(got, (int, float)) and abs(got) <= sys.float_info.max):
                raise refusal(ArgumentError, "load_state", h, f"{got!r:.99}", "a Boolean" if flag else "a number")
        self._check(settings)
        groups = settings.get("groups", [])
        if not isinstance(groups, list) or [isinstance(g, Mapping) for g in groups] != [True] * len(self.groups):
            got = f"{len(groups)} groups" if isinstance(groups, list) else f"{groups!r:.99}"
            raise refusal(ArgumentError, "load_state", "groups", got, f"{len(self.groups)} groups")
        if self.groups:
            for group, part in zip(self.groups, groups, strict=True):
                group.check_state(part, arrays)
            return
        wanted = getattr(self.session.device, "dtype", np.dtype(np.float32))
        for slot in self.slots:
            for p in self.parameters:
                found = arrays.get(f"{slot}/{p.name}")
                if found is None or found.shape != p.shape or found.dtype != wanted:
                    got = "nothing" if found is None else f"{found.dtype} of shape {found.shape}"
                    raise refusal(ShapeError, "load_state", f"{slot}/{p.name}", got, f"{wanted} of shape {p.shape}")

    def _regrouped(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings in the groups and the order of this optimiser, where parameters of a group have equal ones."""
        groups, names = settings.get("groups", []), settings.get("parameters")
        own = [p.name for p in self.parameters]
        if not isinstance(names, list) or sorted(names, key=str) != sorted(own):
            return settings
        if not self.groups and not groups:
            return {**settings, "parameters": own}
        if not self.groups or not isinstance(groups, list) or not all(isinstance(g, Mapping) for g in groups):
            return settings
        of = {n: {**g, "parameters": []} for g in groups for n in g.get("parameters") or () if isinstance(n, str)}
        wanted = [[p.name for p in group.parameters] for group in self.groups]
        if set(of) != set(own) or any(not m or any(of[n] != of[m[0]] for n in m) for m in wanted):
            return settings
        return {**settings, "parameters": own, "groups": [{**of[m[0]], "parameters": m} for m in wanted]}

    def load_state(self, settings: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Takes over what :meth:`state` gave, hyperparameters included; nothing changes where it does not fit.

        The parameters may stand in another order, and in other groups of equal hyperparameters.

        Parameters
        ----------
        settings : mapping
            As :meth:`state` gives it.
        arrays : mapping of str to array
            The states.

        Raises
        ------
        ArgumentError, ShapeError
            As :meth:`check_state`.
        CaptureError
            Within a captured function.

        Examples
        --------
        >>> import tlrt
        >>> s = tlrt.Session("cpu")
        >>> w = s.param([1.0], "w")
        >>> adam = tlrt.optim.Adam([w], lr=0.25)
        >>> again = tlrt.optim.Adam([w])
        >>> again.load_state(*adam.state())
        >>> again.lr
        0.25
        """
        old = list(map(release_call, self._buffers()))
        set_and_call(self._loaded(settings, arrays), old)

    def _buffers(self) -> list[Any]:
        """Those of all states."""
        own = [buffer for buffers in self._state.values() for buffer in buffers]
        return own + [buffer for group in self.groups for buffer in group._buffers()]

    def _loaded(self, settings: Mapping[str, Any], arrays: Mapping[str, Any]) -> list[Change]:
        """The changes of :meth:`load_state`, all of them or none. The caller releases the states of before."""
        self._require_open("load_state")
        self.session._require_uncaptured("load_state")
        settings = self._regrouped(settings)
        self.check_state(settings, arrays)
        device = self.session.device
        parts = zip(self.groups, settings.get("groups", []), strict=True)
        of_groups = [change for group, part in parts for change in group._loaded(part, arrays)]
        upload = device.exact if device.name == "spec" else device.buffer
        slots = () if self.groups else self.slots
        fresh = {s: [upload(np.asarray(arrays[f"{s}/{p.name}"])) for p in self.parameters] for s in slots}
        for h in self.hyper:
            for observer in device._observers:
                observer.before_setting(self.session, f"{type(self).__name__}.{h}")
        # where a hyperparameter lies, as its setter runs bytecode
        places = [f"_{h}" if f"_{h}" in self.__dict__ else h for h in self.hyper]
        hyper = [(self, place, settings[h]) for place, h in zip(places, self.hyper, strict=True)]
        if self.groups:
            return [*of_groups, *hyper]
        counted = (self, "steps", int(settings["steps"]))
        return [(self, "_state", fresh), (self, "_packed", {}), (self, "_mirrors", []), counted, *hyper]

    def close(self) -> None:
        """Releases the states. A later step raises ReleasedError."""
        for group in self.groups:
            group.close()
        release_states(self._state)
        self._packed, self._mirrors, self._closed = {}, [], True

    def __repr__(self) -> str:
        shown = ", ".join(f"{h}={value}" for h, value in self._settings().items())
        groups = f" in {len(self.groups)} groups" if self.groups else ""
        return f"{type(self).__name__}({len(self.parameters)} parameters{groups}, {shown}, steps={self.steps})"
