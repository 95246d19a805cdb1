"""What happens on a device, reported to whoever observes it: captured steps, comparisons, profilers.

A device holds its observers (``Device.observe``). While it has none that looks at calls, these go straight to the C
library. Events of one kind reach the observers in the order in which they were added.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tlrt._binding.library import complete_call


class Observer:
    """Does nothing at any event; a subclass overrides the events it needs. One that raises refuses what was to happen."""

    def before_call(self, device: Any, symbol: str, arguments: tuple[Any, ...]) -> Any:
        """An operation is about to call the entry point `symbol`. What this returns comes back in :meth:`after_call`."""

    def after_call(self, device: Any, symbol: str, arguments: tuple[Any, ...], status: int, note: Any) -> None:
        """The call returned `status`, which is 0 unless it was refused."""

    def buffer_made(self, function: Any, arguments: tuple[Any, ...], buffer: Any) -> None:
        """A function of the library's core made a buffer: upload, zeros, empty, copy or share."""

    def buffer_filled(self, buffer: Any, value: float) -> None:
        """A buffer was filled with a value."""

    def count_own_handles(self, handle: Any) -> int:
        """How many handles the observer itself holds to the storage of this one; users do not count them."""
        return 0

    def before_host_access(self, device: Any, op: str) -> None:
        """The program is about to read or wait for a result, or to change on the host what device work depends on."""

    def before_session_use(self, session: Any, op: str) -> None:
        """The program is about to use a session of the device."""

    def before_setting(self, session: Any, name: str) -> None:
        """The program is about to set a hyperparameter."""

    def key_drawn(self, session: Any, key: int, draw: Callable[[], int]) -> None:
        """A session drew the key of a random operation, which it calls next; `draw` gives the one after it."""

    def during_update(self, update: Any) -> AbstractContextManager[Any]:
        """The context in which an optimiser runs an :class:`tlrt.optim.Update`."""
        return nullcontext()

    def before_replayed_update(self, optimizer: Any) -> None:
        """A captured step that runs again is about to do an optimiser's update."""

    def host_array_used(self, session: Any, name: str, array: Any) -> None:
        """The program gave an operation of a session an array of the host: indices or labels."""

    def during_captured_step(self, session: Any, name: str, arguments: tuple[Any, ...]) -> AbstractContextManager[Any]:
        """The context in which a session captures the function of that name, or runs its captured step again."""
        return nullcontext()

    def before_backward_step(self, tape: Any, place: int, node: Any, cotangent: Any) -> None:
        """Backward is about to run the VJP of the node at `place` with the cotangent that arrived there."""

    def gradient_complete(self, tape: Any, place: int, node: Any, gradient: Any) -> None:
        """Backward has added all contributions to the gradient of the leaf at `place`, which has storage of its own; the rest of
        the pass is still to run, and does not touch it."""

    def after_backward(self, session: Any) -> None:
        """A session's backward pass is complete."""

    def before_reset(self, session: Any) -> None:
        """A session is about to release its tape."""


def watches_calls(observer: Observer) -> bool:
    """Whether the observer overrides the events of calls, without which calls go straight to the C library."""
    kind = type(observer)
    return kind.before_call is not Observer.before_call or kind.after_call is not Observer.after_call


def watches_leaves(observer: Observer) -> bool:
    """Whether the observer overrides the event of complete gradients."""
    return type(observer).gradient_complete is not Observer.gradient_complete


class Calls:
    """The entry points of the C library as attributes, without the prefix ``torchlean_cuda_``.

    Operations call through these. A device without observers has the library's own functions."""

    def __init__(self, functions: dict[str, Callable[..., int]]) -> None:
        for name, function in functions.items():
            setattr(self, name, function)  # which interns the name: CPython's inline caches compare names by identity

    def observed(self, device: Any) -> "Calls":
        """The same entry points, reported to the observers of a device."""
        return Calls({name: _reported(device, name, function) for name, function in self.__dict__.items()})


def _reported(device: Any, symbol: str, function: Callable[..., int]) -> Callable[..., int]:
    """The function, reported to the observers that the device has when it is called."""

    def call(*arguments: Any) -> int:
        observers: tuple[Observer, ...] = device._observers
        notes = [observer.before_call(device, symbol, arguments) for observer in observers]
        status = complete_call(function, *arguments)
        for observer, note in zip(observers, notes, strict=True):
            observer.after_call(device, symbol, arguments, status, note)
        return status

    return call
