"""Optimisers on the device: one fused kernel call per step for all parameters, in place on their mirrors.

    optimizer = AdamW(session.parameters.values(), lr=3e-4)
    session.backward(loss)
    session.clip_grad_norm(1.0)
    optimizer.step()
    session.reset()

The formulas are those of ``tlrt.kernels.sgd_step``, ``momentum_step``, ``adam_step``, ``adamw_step``, ``lion_step`` and
``rmsprop_step`` with its variants. Hyperparameters are attributes and may change between steps. :meth:`Optimizer.state` is
what a checkpoint holds.
"""

from __future__ import annotations

import math
import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tlrt._binding.arguments import is_number
from tlrt._binding.handles import Uncopied
from tlrt._binding.library import failure
from tlrt._binding.observer import Calls, watches_calls
from tlrt._binding.together import Change, call_and_set, release_call, set_and_call
from tlrt.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError, ReleasedError, ShapeError, refusal
from tlrt.parameter import Parameter

__all__ = ["SGD", "Adam", "AdamW", "ExponentialMovingAverage", "Lion", "Optimizer", "RMSprop", "Update", "one_call"]


_Update = TypeVar("_Update", bound=Callable[..., None])
#: parameters, or a dict for each group of them
_Given = Iterable[Parameter | Mapping[str, Any]]


def one_call(method: _Update) -> _Update:
    """Marks an ``_update`` that calls one operation, with the hyperparameters and the step count as they are. With
    ``device=self._counting()`` the call counts the step too, whatever interrupts it."""
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
    """One step of an optimiser, as observers see it."""

    optimizer: Optimizer
    parameters: list[Parameter]
    gradients: list[Any]

    @property
    def name(self) -> str:
        """For messages."""
        return f"{type(self.optimizer).__name__}.step"

    @property
    def is_one_call(self) -> bool:
        """Whether a replay can make its one call again, without Python."""
        kind = type(self.optimizer)
        return kind._advance is Optimizer._advance and getattr(kind._update, "is_one_call", False)

    def run(self) -> None:
        """Updates the parameters."""
        self.optimizer._advance(self.parameters, self.optimizer.kernels.pack(self.gradients))

    def replay_in_python(self, gradients: list[Any]) -> Callable[[], None]:
        """The update as a function, from gradients in these buffers."""
        optimizer, packed = self.optimizer, self.optimizer.kernels.pack(gradients)

        def step() -> None:
            optimizer._require_open("step")
            optimizer._report_replay()
            optimizer._advance(self.parameters, packed)

        return step

    def replay_call(self, recorder: Any, call: Any) -> Any:
        """The recorded call of the update, with the hyperparameters and the step count that hold when it is made again."""
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
    """Calls C, and counts a step of the optimiser where C returns 0, as one act."""
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

    return property(operator.attrgetter(f"_{name}"), assign)


def _release_states(state: Mapping[str, list[Any]]) -> None:
    for buffers in state.values():
        for buffer in buffers:
            buffer.release()


_optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def _unlock_after_fork() -> None:
    """In a child process, a lock that another thread had would stay taken."""
    for optimizer in _optimizers:
        optimizer._lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock_after_fork)


class _GroupSteps:
    """The steps of an optimiser of several groups, which count their own: those of the group that made most. An optimiser
    without groups has an attribute of this name in its dict, which comes first."""

    def __get__(self, optimizer: Optimizer | None, kind: type[Optimizer]) -> Any:
        return self if optimizer is None else max(group.steps for group in optimizer.groups)


class Optimizer(Uncopied):
    """What the optimisers share. Frozen parameters are left out.

    `parameters` may be a list of dicts, as in PyTorch: "params" and the group's own hyperparameters ("betas" stands for beta1 and
    beta2). :attr:`groups` are optimisers too, of one group each, and what is assigned to the whole goes to those that have no
    value of their own. A group's own lr is multiplied by what lr was multiplied by since the start, so that a schedule of the
    whole is one of each group. What is assigned to a group holds until then.

    A step updates the parameters that the last backward's loss reaches, as PyTorch's optimisers do: another one is not
    decayed, nor moved by the momentum that it has, and keeps its states. The count of steps is the optimiser's."""

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

    def __init__(self, parameters: _Given) -> None:
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
        """Updates every parameter that the loss of the session's last backward pass reaches. One that it does not, and one that
        is frozen, since then too, stays as it is; without any other the step is not counted.

        Raises ArgumentError before a backward pass, ReleasedError after close."""
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
        """What a resumed run needs: the settings, and the states as arrays named "slot/parameter"."""
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
        """Raises ArgumentError or ShapeError unless :meth:`load_state` would take them."""
        kind = type(self).__name__
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

    def load_state(self, settings: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Takes over what :meth:`state` gave, hyperparameters included; nothing changes where it does not fit."""
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
        """Releases the states; the optimiser is of no use afterwards."""
        for group in self.groups:
            group.close()
        _release_states(self._state)
        self._packed, self._mirrors, self._closed = {}, [], True

    def __repr__(self) -> str:
        shown = ", ".join(f"{h}={value}" for h, value in self._settings().items())
        groups = f" in {len(self.groups)} groups" if self.groups else ""
        return f"{type(self).__name__}({len(self.parameters)} parameters{groups}, {shown}, steps={self.steps})"


class SGD(Optimizer):
    """p ← p - lr·(g + weight_decay·p), or with momentum v ← momentum·v + g', p ← p - lr·v (Nesterov: p - lr·(g' +
    momentum·v)), g' = g + weight_decay·p and v starting at 0.

    Source: torch.optim.SGD; Sutskever et al., ICML 2013."""

    hyper = ("lr", "momentum", "weight_decay", "nesterov")

    def __init__(
        self, parameters: _Given, lr: float = 0.01, *, momentum: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:  # fmt: skip
        self.slots = self._slots_of({"momentum": momentum})  # a wrong momentum is refused below
        super().__init__(parameters)
        self.lr, self.momentum, self.weight_decay, self.nesterov = lr, momentum, weight_decay, nesterov
        self._check(self._settings())

    def _slots_of(self, own: Mapping[str, Any]) -> tuple[str, ...]:
        return ("velocity",) if own.get("momentum") else self.slots

    def _check(self, settings: Mapping[str, Any]) -> None:
        super()._check(settings)
        momentum, nesterov = settings["momentum"], settings["nesterov"]
        if (momentum or nesterov) and not self.slots:
            got = f"momentum {momentum}, nesterov {nesterov}"
            raise refusal(ArgumentError, "SGD", "momentum", f"{got} of an optimizer made without", "SGD(…, momentum=…)")
        if nesterov and not momentum:
            raise refusal(ArgumentError, "SGD", "nesterov", "True with momentum 0", "momentum above 0")

    @one_call
    def _update(self, packed: Mapping[str, Any], gradients: Any) -> None:
        p = packed["p"]
        if not self.slots:
            device = self._counting()
            self.kernels.sgd_step(p, gradients, lr=self.lr, weight_decay=self.weight_decay, out=p, device=device)
            return
        v = packed["velocity"]
        self.kernels.momentum_step(
            p, gradients, v, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay,
            nesterov=int(self.nesterov), out=(p, v), device=self._counting(),
        )  # fmt: skip


class Adam(Optimizer):
    """m ← β1·m + (1 - β1)·g, v ← β2·v + (1 - β2)·g², p ← p - lr·m̂/(√v̂ + eps), with weight_decay·p added to g.

    Source: Kingma and Ba, arXiv:1412.6980; torch.optim.Adam."""

    hyper = ("lr", "beta1", "beta2", "eps", "weight_decay")
    slots = ("m", "v")
    _kernel = "adam_step"

    def __init__(
        self, parameters: _Given, lr: float = 1e-3, *, beta1: float = 0.9, beta2: float = 0.999,
        eps: float = 1e-8, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters)
        self.lr, self.beta1, self.beta2, self.eps, self.weight_decay = lr, beta1, beta2, eps, weight_decay
        self._check(self._settings())

    @one_call
    def _update(self, packed: Mapping[str, Any], gradients: Any) -> None:
        p, m, v = packed["p"], packed["m"], packed["v"]
        getattr(self.kernels, self._kernel)(
            p, gradients, m, v, step=self.steps + 1, lr=self.lr, beta1=self.beta1, beta2=self.beta2, eps=self.eps,
            weight_decay=self.weight_decay, out=(p, m, v), device=self._counting(),
        )  # fmt: skip


class AdamW(Adam):
    """Adam whose decay is decoupled: p ← p·(1 - lr·weight_decay) - lr·m̂/(√v̂ + eps). `others` are beta1, beta2 and eps.

    Source: Loshchilov and Hutter, arXiv:1711.05101; torch.optim.AdamW."""

    _kernel = "adamw_step"

    def __init__(
        self,
        parameters: _Given,
        lr: float = 1e-3,
        *,
        weight_decay: float = 0.01,
        **others: float,
    ) -> None:
        super().__init__(parameters, lr, weight_decay=weight_decay, **others)


class RMSprop(Optimizer):
    """v ← alpha·v + (1 - alpha)·g'², p ← p - lr·g'/(√v + eps), g' = g + weight_decay·p; with momentum b ← momentum·b + g'/(√v +
    eps), p ← p - lr·b; centered with v - m² in the root, m ← alpha·m + (1 - alpha)·g'.

    Source: torch.optim.RMSprop."""

    hyper = ("lr", "alpha", "eps", "weight_decay", "momentum", "centered")
    slots: tuple[str, ...] = ("v",)

    def __init__(
        self, parameters: _Given, lr: float = 0.01, *, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False,
    ) -> None:  # fmt: skip
        self.slots = self._slots_of({"momentum": momentum, "centered": centered})
        super().__init__(parameters)
        self.lr, self.alpha, self.eps, self.weight_decay = lr, alpha, eps, weight_decay
        self.momentum, self.centered = momentum, centered
        self._check(self._settings())

    def _slots_of(self, own: Mapping[str, Any]) -> tuple[str, ...]:
        if own.get("centered", "m" in self.slots):
            return ("v", "m", "b")
        return ("v", "b") if own.get("momentum") or "b" in self.slots else ("v",)

    def _check(self, settings: Mapping[str, Any]) -> None:
        super()._check(settings)
        momentum, centered = settings["momentum"], settings["centered"]
        if (momentum and "b" not in self.slots) or bool(centered) != ("m" in self.slots):
            got, expected = f"{momentum}, {centered} set later", "RMSprop(…, momentum=…, centered=…)"
            raise refusal(ArgumentError, "RMSprop", "momentum, centered", got, expected)

    @one_call
    def _update(self, packed: Mapping[str, Any], gradients: Any) -> None:
        p, states, kernels = packed["p"], [packed[slot] for slot in self.slots], self.kernels
        options = {"lr": self.lr, "alpha": self.alpha, "eps": self.eps, "weight_decay": self.weight_decay}
        step = kernels.rmsprop_step
        if "b" in self.slots:
            step = kernels.rmsprop_centered_step if "m" in self.slots else kernels.rmsprop_momentum_step
            options["momentum"] = self.momentum
        step(p, gradients, *states, **options, out=(p, *states), device=self._counting())


class Lion(Optimizer):
    """p ← p·(1 - lr·weight_decay) - lr·sign(β1·m + (1 - β1)·g), then m ← β2·m + (1 - β2)·g.

    Source: Chen et al., arXiv:2302.06675."""

    hyper = ("lr", "beta1", "beta2", "weight_decay")
    slots = ("m",)

    def __init__(
        self, parameters: _Given, lr: float = 1e-4, *, beta1: float = 0.9, beta2: float = 0.99,
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters)
        self.lr, self.beta1, self.beta2, self.weight_decay = lr, beta1, beta2, weight_decay
        self._check(self._settings())

    @one_call
    def _update(self, packed: Mapping[str, Any], gradients: Any) -> None:
        p, m = packed["p"], packed["m"]
        self.kernels.lion_step(
            p, gradients, m, lr=self.lr, beta1=self.beta1, beta2=self.beta2, weight_decay=self.weight_decay,
            out=(p, m), device=self._counting(),
        )  # fmt: skip


class ExponentialMovingAverage(Optimizer):
    """Averages of parameters on the device, from their values when it is made: average ← average + (1 - decay)·(p - average).

        average = ExponentialMovingAverage(model.parameters(), decay=0.999)
        optimizer.step(), average.update()
        with average.swapped():  # the parameters have the averages' values
            evaluate(model)

    A checkpoint takes it as one of the optimisers. Parameters that require no gradient when it is made, running statistics among
    them, are left out. Source: torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn."""

    hyper = ("decay",)
    slots = ("average",)

    def __init__(self, parameters: Iterable[Parameter], decay: float = 0.999) -> None:
        super().__init__(parameters)
        if self.groups:
            self.close()
            raise refusal(ArgumentTypeError, type(self).__name__, "parameters", "dicts", "a list of Parameter")
        self.decay = decay
        self._is_swapped = False
        self._check(self._settings())
        _release_states(self._state)
        self._state = {"average": [p.mirror.copy() for p in self.parameters]}

    def _check_value(self, name: str, value: Any) -> None:
        super()._check_value(name, value)
        if value > 1:
            raise refusal(ArgumentError, type(self).__name__, name, value, f"0 <= {name} <= 1")

    def update(self) -> None:
        """Moves the averages towards the parameters' present values. Within a captured function it raises CaptureError: call it
        after the captured step."""
        self._require_averages("update")
        with self._alone():
            self._require_valid_settings()
            kernels, weight = self.kernels, 1.0 - self.decay
            for p, average in zip(self.parameters, self._state["average"], strict=True):
                difference = kernels.sub(p.mirror, average)
                kernels.axpy(average, difference, weight, out=average)
                difference.release()
            self.steps += 1

    def step(self) -> None:
        """The same as :meth:`update`."""
        self.update()

    def swap(self) -> None:
        """Exchanges the values of the parameters and the averages, all of them or none; a second swap takes it back. Results on
        the tape that were computed from the old values cannot go backward."""
        self._require_open("swap")
        self.session._require_uncaptured("swap")
        averages = self._state["average"]
        # copies, as a captured step has places of its own for parameters
        into = [average.copy() for average in averages]
        saved = [p.mirror.copy() for p in self.parameters]
        changes = [c for p, mirror in zip(self.parameters, into, strict=True) for c in p._changed(None, mirror)]
        old = [*averages, *(p.mirror for p in self.parameters)]
        swapped = (self, "_is_swapped", not self._is_swapped)
        set_and_call([*changes, (self, "_state", {"average": saved}), swapped], list(map(release_call, old)))

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """The context in which the parameters have the averages' values."""
        self._require_averages("swapped")
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """See :meth:`Optimizer.state`. Raises ArgumentError while the averages are swapped."""
        self._require_averages("state")
        return super().state()

    def _loaded(self, settings: Mapping[str, Any], arrays: Mapping[str, Any]) -> list[Change]:
        self._require_averages("load_state")
        return super()._loaded(settings, arrays)

    def _require_averages(self, op: str) -> None:
        self._require_open(op)
        self.session._require_uncaptured(op)
        if self._is_swapped:
            got, expected = "averages swapped into the parameters", "a second swap() before"
            raise refusal(ArgumentError, op, type(self).__name__, got, expected)
