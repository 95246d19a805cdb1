"""What happens on a device, reported to whoever observes it: captured steps, comparisons, profilers.

A device holds its observers (``Device.observe``). While it has none that looks at calls, these go straight to the C
library. Events of one kind reach the observers in the order in which they were added.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tlrt._binding.library import complete_call


class Observer:
    """Does nothing at any event; a subclass overrides the events it needs. One that raises refuses what was to happen.

    :meth:`Device.observe` adds an observer to a device. The specification's device has no calls and buffers to report.

    Examples
    --------
    >>> import tlrt
    >>> class Names(tlrt.context.Observer):
    ...     def after_call(self, device, symbol, arguments, status, note):
    ...         print(symbol, status)
    >>> with tlrt.Device("cpu") as cpu:
    ...     x = cpu.buffer([1.0, 2.0])
    ...     cpu.observe(Names())
    ...     y = tlrt.kernels.exp(x)
    buffer_exp 0
    """

    def before_call(self, device: Any, symbol: str, arguments: tuple[Any, ...]) -> Any:
        """An operation is about to call an entry point of the C library.

        Parameters
        ----------
        device : Device
            Where it computes.
        symbol : str
            The entry point without ``torchlean_cuda_``, such as "buffer_matmul".
        arguments : tuple
            What the entry point gets, as cffi has it.

        Returns
        -------
        object
            Anything; it comes back as the note of :meth:`after_call`.
        """

    def after_call(self, device: Any, symbol: str, arguments: tuple[Any, ...], status: int, note: Any) -> None:
        """The call of an entry point returned.

        Parameters
        ----------
        device, symbol, arguments
            As :meth:`before_call` got them.
        status : int
            The C library's status code: 0 unless the call was refused.
        note : object
            What this observer's :meth:`before_call` returned.
        """

    def buffer_made(self, function: Any, arguments: tuple[Any, ...], buffer: Any) -> None:
        """A function of the library's core made a buffer: upload, zeros, empty, copy or share.

        Parameters
        ----------
        function : cffi function
            The function.
        arguments : tuple
            What it got, but for the place of the new handle.
        buffer : Buffer or IndexBuffer
            The new buffer.
        """

    def buffer_filled(self, buffer: Any, value: float) -> None:
        """A buffer was filled with a number.

        Parameters
        ----------
        buffer : Buffer
            What was filled.
        value : float
            The number.
        """

    def count_own_handles(self, handle: Any) -> int:
        """How many handles the observer itself holds to some storage; ``Buffer.references`` leaves them out.

        Parameters
        ----------
        handle : cffi pointer
            A handle to the storage.

        Returns
        -------
        int
            Number of the observer's handles; 0 unless overridden.
        """
        return 0

    def before_host_access(self, device: Any, op: str) -> None:
        """The program is about to read or wait for a result, or to change on the host what device work depends on.

        Parameters
        ----------
        device : Device or SpecDevice
            Whose result or setting it is.
        op : str
            What the program called, such as "numpy" or "synchronize".
        """

    def before_session_use(self, session: Any, op: str) -> None:
        """The program is about to use a session of the device.

        Parameters
        ----------
        session : Session
            The session.
        op : str
            The operation or method that it called.
        """

    def before_setting(self, session: Any, name: str) -> None:
        """The program is about to set a hyperparameter.

        Parameters
        ----------
        session : Session
            That of the optimiser.
        name : str
            The optimiser's class and the hyperparameter, such as "SGD.lr".
        """

    def key_drawn(self, session: Any, key: int, draw: Callable[[], int]) -> None:
        """A session drew the key of a random operation, which it calls next.

        Parameters
        ----------
        session : Session
            Whose generator it is.
        key : int
            The key, 64 bits.
        draw : callable
            Draws the session's key after it, without arguments: a repetition of the call calls it.
        """

    def during_update(self, update: Any) -> AbstractContextManager[Any]:
        """The context in which an optimiser runs an update.

        Parameters
        ----------
        update : tlrt.optim.Update
            The update.

        Returns
        -------
        context manager
            Entered before the update and left after it; one that does nothing unless overridden.
        """
        return nullcontext()

    def before_replayed_update(self, optimizer: Any) -> None:
        """A captured step that runs again is about to do an optimiser's update.

        Parameters
        ----------
        optimizer : Optimizer
            Whose update it is.
        """

    def host_array_used(self, session: Any, name: str, array: Any) -> None:
        """The program gave an operation of a session an array of the host: indices or labels.

        Parameters
        ----------
        session : Session
            Whose operation it is.
        name : str
            The operation and its argument, such as "cross_entropy: labels".
        array : numpy.ndarray
            The array itself, no copy.
        """

    def during_captured_step(self, session: Any, name: str, arguments: tuple[Any, ...]) -> AbstractContextManager[Any]:
        """The context in which a session captures a function, or runs its captured step again.

        Parameters
        ----------
        session : Session
            Whose tape and device the function uses.
        name : str
            The function's name.
        arguments : tuple
            What the program called it with.

        Returns
        -------
        context manager
            Entered before the step and left after it; one that does nothing unless overridden.
        """
        return nullcontext()

    def before_backward_step(self, tape: Any, place: int, node: Any, cotangent: Any) -> None:
        """Backward is about to run the VJP of a node.

        Parameters
        ----------
        tape : Tape
            The tape.
        place : int
            The node's place on it.
        node : Node
            The node.
        cotangent : AnyBuffer
            What arrived at the node, in its shape.
        """

    def gradient_complete(self, tape: Any, place: int, node: Any, gradient: Any) -> None:
        """Backward has added all contributions to the gradient of a leaf, which the rest of the pass does not touch.

        Parameters
        ----------
        tape : Tape
            The tape.
        place : int
            The leaf's place on it.
        node : Node
            The leaf.
        gradient : AnyBuffer
            Its gradient, with storage of its own.
        """

    def after_backward(self, session: Any) -> None:
        """A session's backward pass is complete.

        Parameters
        ----------
        session : Session
            The session, which has the gradients.
        """

    def before_reset(self, session: Any) -> None:
        """A session is about to release its tape, by a reset or because it is closed.

        Parameters
        ----------
        session : Session
            The session, whose tape still has its nodes.
        """


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
