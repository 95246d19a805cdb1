"""Captured steps: a function of a session is run once and then done again without Python's tape.

    def train_step(x, labels):
        loss = s.cross_entropy(model(s.const(x), training=True), labels)
        s.backward(loss)
        s.clip_grad_norm(1.0)
        optimizer.step()
        return loss

    step = s.capture(train_step, x, labels)  # also the first step
    for x, labels in batches:
        loss = step(x, labels)  # the same CapturedTensor each time
    loss.item()

``capture`` is a step like any other: the session is reset, the function runs, the session is reset again, and what the function
returned keeps its value. What it asked the device to do is kept as a list of calls of the C library, on CUDA mostly as graphs.
``step(...)`` makes these calls again and changes parameters, optimisers and the random generator as the function would, bit
for bit. It does not touch the tape: tensors recorded before it stay valid, and ``s.gradients`` are those of the last eager
backward pass.

**Arguments.** An array or a number stands for the content it has at each call; its shape, and whether it holds integers, are
fixed. Within the function it is opaque: ``s.const(x)`` or ``s.input(x)`` gives a tensor, and where an operation takes indices or
labels it takes integers. Anything else about it, like ``x + 1`` or ``if x.sum() > 0``, raises CaptureError: do that before
the call; what never changes, like a size, is bound with ``functools.partial``.
None, Booleans and text are passed as they are, and must be the same at each call.

**Results.** Tensors, in tuples, lists and dicts: tensors become :class:`tlrt.tensor.CapturedTensor`, shaped buffers
(``loss.value``, the norm of ``clip_grad_norm``) stay what they are. Every call returns the same objects, with new content.

**What follows Python.** Each replay draws new random numbers and uses the hyperparameters and the step count that the optimiser
has then, so ``optimizer.lr = …`` between calls works. Everything else that the function computes on the host is what it was when
it ran: Python numbers, shapes, branches, arrays it makes, numbers passed straight to ``tlrt.kernels``.

**What is refused**, with CaptureError: reading a value (``numpy``, ``item``, ``get_value``, ``Parameter.value``) or waiting
within the function; making or setting parameters, making optimisers or assigning their hyperparameters, capturing or
replaying another step; operations on host arrays; two parameters that share one buffer, at the capture's begin or end or at a
replay; at a replay arguments of other shapes or kinds, parameters frozen or thawed since; replays of a session's steps by two
threads at once. A function that raises leaves nothing behind but what an eager step that raises does.

**Memory.** The step keeps the memory that it uses until it is closed (or the session is, or no name refers to it);
buffers whose uses do not overlap share it. A replay takes none from the driver, and none from the pool but scratch. Every
parameter of the session has a mirror on the device after a capture, and replays find its value in that place: what shares
the mirror shows the parameter's value after a later ``set`` too (a copy keeps the old one).

On the specification a captured step is the function, called each time between two resets; it refuses less, and arguments
arrive as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np

from tlrt._binding import convert
from tlrt._binding.handles import Uncopied
from tlrt._binding.library import _lock, failure
from tlrt._binding.together import Call, Change, release_call, set_and_call
from tlrt._capture.inputs import Input, ParameterPlace, content_of
from tlrt._operations.shaped import AnyBuffer
from tlrt.errors import (
    ArgumentTypeError,
    CaptureError,
    InterruptedCallError,
    ReleasedError,
    refusal,
)
from tlrt.parameter import Parameter
from tlrt.tensor import CapturedTensor, TensorRef

__all__ = ["Captured", "Input", "capture"]

_FIXED = (type(None), bool, str)


def capture(session: Any, function: Callable[..., Any], example: tuple[Any, ...]) -> Captured:
    """Captures a step of a session; :meth:`tlrt.Session.capture` calls it, and the module says what a step may do.

    Parameters
    ----------
    session : Session
        Whose step it is.
    function : function
        The step.
    example : tuple
        Its first arguments.

    Returns
    -------
    Captured
        The step, done once.

    Raises
    ------
    CaptureError
        For what a captured step cannot hold.
    ArgumentTypeError
        For what is no function, or an argument that is no array.
    """
    session._require_open("capture")
    session._require_uncaptured("capture")
    with _lock:  # a child process would wait for an import under way in another thread
        import tlrt._capture.aliases
        import tlrt._capture.record  # noqa: F401
    if not callable(function):
        raise refusal(ArgumentTypeError, "capture", "function", convert.type_name(function), "a function")
    made = Captured(session, function, example)
    session._captures.add(made)
    return made


class Captured(Uncopied):
    """A captured step; :meth:`tlrt.Session.capture` makes one. Calling it does the step again and returns :attr:`outputs`.

    A call raises CaptureError where arguments do not fit, ReleasedError after close.

    Parameters
    ----------
    session : Session
        Whose step it is.
    function : function
        The step.
    example : tuple
        Its first arguments.

    Examples
    --------
    >>> import numpy as np, tlrt
    >>> s = tlrt.Session("cpu")
    >>> w = s.param([1.0, 1.0], "w")
    >>> sgd = tlrt.optim.SGD([w], lr=0.5)
    >>> def train_step(x):
    ...     loss = (w * s.const(x)).sum()
    ...     s.backward(loss)
    ...     sgd.step()
    ...     return loss
    >>> step = s.capture(train_step, np.array([1.0, 2.0]))  # also the first step
    >>> w.value
    array([0.5, 0. ], dtype=float32)
    >>> step(np.array([3.0, 0.0])).item(), w.value
    (1.5, array([-1.,  0.], dtype=float32))
    >>> step
    Captured('train_step', 5 calls, 0 of them graphs)
    """

    def __init__(self, session: Any, function: Callable[..., Any], example: tuple[Any, ...]) -> None:
        self.session = session
        self.name = getattr(function, "__name__", type(function).__name__)
        #: what the function returned, with the value of the last run
        self.outputs: Any = None
        self._function = function
        self._inputs: list[Any] = []
        self._results: list[AnyBuffer] = []
        self._replay: Any = None
        self._recorder: Any = None
        self._places: list[ParameterPlace] = []
        self._changed: list[Parameter] = []
        self._closed = False
        self._math = getattr(session.device, "math", None)
        if session.device.name == "spec":
            session._release_step()
            self.outputs = self._run_eagerly(example)
        else:
            self._run("capture", self._capture, example)

    # ---- capturing

    def _capture(self, example: tuple[Any, ...]) -> None:
        from tlrt._capture.record import Recorder

        session = self.session
        recorder = Recorder(session)
        self._inputs = [self._input(recorder, i, value) for i, value in enumerate(example)]
        session._release_step()
        before = [(p, p.mirror, p._version) for p in session.parameters.values()]
        self._require_distinct("capture")
        self._recorder = recorder
        try:
            with recorder.scope, recorder.attached():
                for p, mirror, _ in before:
                    storage = recorder.storage(mirror._handle)
                    self._places.append(ParameterPlace(p, storage, mirror, p._requires_grad, p._writes))
                outputs = self._function(*self._inputs)
                with recorder.paused():
                    self.outputs = self._keep(outputs)
                self._feed_back(recorder, before)
                session._release_step()
            inputs = [(known, known._buffer) for known in self._inputs if getattr(known, "_buffer", None) is not None]
            self._replay = recorder.finish(inputs)
            set_and_call(self._replay.inputs(), [])
        except BaseException:
            session._release_step()
            recorder.discard()
            self.close()
            raise

    def _input(self, recorder: Any, place: int, value: Any) -> Any:
        """An argument as the function gets it."""
        if isinstance(value, _FIXED):
            return value
        name = f"argument {place}"
        return Input(self.session, recorder, name, np.array(content_of(name, value), order="C"))

    def _keep(self, value: Any) -> Any:
        """What the function returned, with handles that belong to the step."""
        if isinstance(value, (tuple, list)):
            made = [self._keep(v) for v in value]
            return made if isinstance(value, list) else tuple(made)
        if isinstance(value, dict):
            return {k: self._keep(v) for k, v in value.items()}
        if value is None or isinstance(value, Parameter):
            return value
        if isinstance(value, TensorRef):
            found = self.session._node(value, "capture").value
            kept, source = found.share(), found.buffer
        elif isinstance(value, AnyBuffer):
            kept, source = value.share(), value.buffer
        else:
            got = convert.type_name(value)
            expected = "tensors in tuples, lists or dicts, or None"
            raise refusal(ArgumentTypeError, "capture", "result", f"{got} of {self.name}", expected)
        self._results.append(kept)
        if self._recorder is not None:
            self._recorder.storage(source._handle)  # refuses what a replay does not make
        return kept if isinstance(value, AnyBuffer) else CapturedTensor(self.session, kept)

    def _feed_back(self, recorder: Any, before: Iterable[tuple[Parameter, Any, int]]) -> None:
        """A parameter that was assigned another buffer goes back to where the next replay reads it."""
        with recorder.paused():
            self._require_distinct("capture")
        self._changed = [p for p, _, version in before if p._version != version]
        moved = [(place, place.parameter._mirror) for place in self._places if place.is_moved]
        # assigned at each replay, brought back at the next
        unmade = {id(place) for place, mirror in moved if recorder.is_unmade(mirror)}
        away = [(p, m) for p, m in moved if id(p) not in unmade and recorder.storage(m._handle) is not p.storage]
        # a buffer that was another parameter's place may be overwritten below
        sources = [m.copy() if recorder.storage(m._handle).is_outside else m for _, m in away]
        for (place, mirror), source in zip(away, sources, strict=True):
            recorder.add_copy(source, place.storage)
            if source is not mirror:
                source.release()
        for place, mirror in moved:
            with recorder.paused():
                fresh = place.storage.buffer(self.session.device)
                if id(place) in unmade and (status := place.storage.copy(fresh, mirror)):
                    raise failure(status, "capture")
                place.mirror = place.parameter._mirror = fresh
                place.write()
            mirror.release()

    def _require_distinct(self, op: str) -> None:
        """Raises CaptureError where parameters share memory: a value set later goes to where calls read the old one."""
        from tlrt._capture.aliases import alias_groups

        mirrored = [p for p in self.session.parameters.values() if p._mirror is not None]
        for first, second, *_ in alias_groups(self.session.device, [p._mirror._handle for p in mirrored]):
            expected = "one of its own (assign a copy, or use one parameter in both places)"
            raise refusal(CaptureError, op, mirrored[second].name, f"the buffer of {mirrored[first].name}", expected)

    # ---- replaying

    def __call__(self, *arguments: Any) -> Any:
        """Does the step with these arguments. Raises CaptureError where they do not fit, ReleasedError after close."""
        session = self.session
        if self._closed:
            raise refusal(ReleasedError, "replay", self.name, "a closed step", "an open one")
        if session._closed or session.device._observers:
            session._require_open("replay")
            session._require_uncaptured("replay")
        if session.device.name == "spec":
            self.outputs = self._run_eagerly(arguments)
            return self.outputs
        return self._run("replay", self._do_again, arguments)

    def _run(self, op: str, function: Callable[[tuple[Any, ...]], Any], arguments: tuple[Any, ...]) -> Any:
        """Captures the step or does it again, alone and in the contexts of the device's observers."""
        session = self.session
        observers = session.device._observers
        if not observers:
            return session._turn.run(op, self.name, function, arguments)
        with ExitStack() as contexts:
            for observer in observers:
                contexts.enter_context(observer.during_captured_step(session, self.name, arguments))
            return session._turn.run(op, self.name, function, arguments)

    def _do_again(self, arguments: tuple[Any, ...]) -> Any:
        if (math := self.session.device.math) != self._math:
            raise refusal(
                CaptureError, "replay", self.name, f"a device of math={math!r}", f"{self._math!r}, as captured"
            )
        self._replay.settle()
        self._take(arguments)
        if len(self.session.parameters) != len(self._places):
            self._add_new_parameters()
        for place in self._places:
            parameter = place.parameter
            if parameter._mirror is not place.mirror or parameter._requires_grad is not place.is_trained:
                self._restore_places()
                break
        # before the calls, so that an interrupt cannot leave a host value that looks current
        for p in self._changed:
            p._writes[0] += 1
            p._host = None
            p._version += 1
        replay = self._replay
        for call in replay.calls:
            while status := call():
                if status != InterruptedCallError.status:
                    raise replay.failure(status, call)
        return self.outputs

    def _take(self, arguments: tuple[Any, ...]) -> None:
        inputs = self._inputs
        if len(arguments) != len(inputs):
            expected = f"{len(inputs)}, as when it was captured"
            raise refusal(CaptureError, "replay", self.name, f"{len(arguments)} arguments", expected)
        checked = []
        for place, (known, value) in enumerate(zip(inputs, arguments, strict=True)):
            if isinstance(known, Input):
                checked.append((known, known._accepts(value)))
            elif type(value) is not type(known) or value != known:
                expected = f"{known!r:.99}, as when it was captured"
                raise refusal(CaptureError, "replay", f"argument {place}", f"{value!r:.99}", expected)
        for known, array in checked:
            known._take(array)

    def _add_new_parameters(self) -> None:
        """Parameters made since the capture: the calls do not read them, so they have no storage there."""
        known = {place.parameter for place in self._places}
        fresh = [p for p in self.session.parameters.values() if p not in known]
        self._places += [ParameterPlace(p, None, None, p._requires_grad, p._writes) for p in fresh]

    def _restore_places(self) -> None:
        """Parameters whose values were replaced since the last run: the values go to where the calls read them."""
        for place in self._places:
            if place.storage is not None and place.parameter._requires_grad is not place.is_trained:
                state = "trained" if place.is_trained else "frozen"
                expected = f"it {state}, as when it was captured"
                raise refusal(CaptureError, "replay", place.parameter.name, "requires_grad changed", expected)
        self._require_distinct("replay")
        moved = [place for place in self._places if place.is_moved]
        self._copy_overlapping(moved)
        for place in moved:
            p, storage = place.parameter, place.storage
            if storage is None:
                place.mirror, place.is_trained = p._mirror, p._requires_grad
                continue
            fresh = storage.buffer(self.session.device)
            if p._mirror is None:
                status = storage.upload(fresh, convert.float32("replay", p.name, p._host))
            else:
                status = storage.copy(fresh, p._mirror)
            if status:
                raise failure(status, "replay")
            place.write()
            # never without a value: an interrupt may come between
            old, p._mirror = p._mirror, fresh
            place.mirror = fresh
            if old is not None:
                old.release()

    def _copy_overlapping(self, moved: list[ParameterPlace]) -> None:
        """Values that lie where others have to go, or where the calls leave results, are copied to memory of their own."""
        from tlrt._capture.aliases import alias_groups

        lying = [place for place in moved if place.parameter._mirror is not None]
        own = [place for place in moved if place.storage is not None]
        handles = [place.parameter._mirror._handle for place in lying] + [place.storage.root.handle for place in own]
        handles += [result.buffer._handle for result in self._results]
        for group in alias_groups(self.session.device, handles):
            here = [own[i - len(lying)] if i < len(lying) + len(own) else None for i in group if i >= len(lying)]
            for place in (lying[i] for i in group if i < len(lying)):
                if any(other is not place for other in here):
                    p = place.parameter
                    old, p._mirror, p._writes = p._mirror, p._mirror.copy(), [0]
                    old.release()

    def _run_eagerly(self, arguments: tuple[Any, ...]) -> Any:
        """The function itself, on the specification. What it returned before goes with the next call, or with close."""
        session, before = self.session, self._results
        session._release_step()
        self._results = []
        try:
            made = self._keep(self._function(*arguments))
            found = self._results
            if before and [r.shape for r in found] != [r.shape for r in before]:
                got = f"results of shapes {[r.shape for r in found]}"
                raise refusal(CaptureError, "replay", self.name, got, "those of before")
        except BaseException:
            for fresh in self._results:
                fresh.release()
            self._results = before
            raise
        finally:
            session._release_step()
        if not before:
            return made
        for old, fresh in zip(before, found, strict=True):
            old.release()
            old.buffer = fresh.buffer
        self._results = before
        return self.outputs

    # ---- life

    @property
    def closed(self) -> bool:
        """Whether the step, or its session, was closed.

        Returns
        -------
        bool
            After that a call raises ReleasedError.
        """
        return self._closed

    @property
    def calls(self) -> int:
        """What a replay submits: graphs, calls of the C library, steps of optimisers.

        Returns
        -------
        int
            Their number; 0 on the specification.
        """
        return 0 if self._replay is None else len(self._replay.calls)

    @property
    def graphs(self) -> int:
        """How many of the calls are CUDA graphs.

        Returns
        -------
        int
            0 on the CPU.
        """
        return 0 if self._replay is None else len(self._replay.graphs)

    def close(self) -> None:
        """Gives all memory of the step back; its results cannot be read any more. May be repeated."""
        set_and_call(*self._end())

    def _end(self) -> tuple[list[Change], list[Call]]:
        """What :meth:`close` changes and calls."""
        inputs = [known for known in self._inputs if isinstance(known, Input)]
        buffers = [known._buffer for known in inputs if known._buffer is not None] + [r.buffer for r in self._results]
        changes: list[Change] = [(self, name, []) for name in ("_places", "_changed", "_results")]
        changes += [(known, "_closed", True) for known in (self, *inputs)]
        if self._replay is None:
            return changes, list(map(release_call, buffers))
        handles = [place.storage.handle for place in self._places if place.storage is not None]
        freed, calls = self._replay.end(handles)
        return [*changes, *freed], [*calls, *map(release_call, buffers)]

    def __enter__(self) -> Captured:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.calls} calls, {self.graphs} of them graphs"
        return f"Captured({self.name!r}, {state})"
