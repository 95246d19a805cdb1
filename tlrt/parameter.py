"""Parameters: a host value, its mirror on a device, and which of the two is current."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt._binding import convert
from tlrt._binding.arguments import boolean
from tlrt._binding.together import Change, release_call, set_and_call
from tlrt._operations.plan import Shape
from tlrt._operations.shaped import AnyBuffer
from tlrt.errors import ArgumentError, DeviceMismatchError, ReleasedError, ShapeError, refusal
from tlrt.tensor import Arithmetic

__all__ = ["Parameter", "Parameters"]


class Parameter(Arithmetic):
    """A named array that outlives the tape; :meth:`tlrt.Session.param` makes one.

    It has a host value and a mirror on the session's device. Setting the host value frees the mirror; an
    optimiser's step changes the mirror and makes the host value stale; :attr:`value` downloads a stale one once,
    use on the device uploads only where there is no current mirror. Mirrors survive :meth:`Session.reset`.

    In arithmetic it acts as its leaf on the tape, ``session.use(parameter)``; see :class:`tlrt.tensor.Arithmetic`.

    Parameters
    ----------
    session : Session
        Whose parameter it is.
    name : str
        Unique within the session.
    value : array_like
        Any shape; rounded to float32.
    requires_grad : bool
        Whether it is trained.

    Examples
    --------
    >>> s = tlrt.Session("cpu", seed=1)
    >>> w = s.param([1, 2], "w")
    >>> print((w * w).numpy())
    [1. 4.]
    """

    __slots__ = ("__weakref__", "_host", "_mirror", "_requires_grad", "_version", "_writes", "is_trainable", "name", "session",
                 "shape")  # fmt: skip

    session: Any

    def __init__(self, session: Any, name: str, value: npt.ArrayLike, requires_grad: bool) -> None:
        #: the session it belongs to
        self.session = session
        self.name = name
        self._requires_grad = requires_grad
        #: whether :meth:`tlrt.nn.Layer.requires_grad_` may train it: False for one made with requires_grad=False
        self.is_trainable = True
        self._mirror: Any = None
        #: changes with every new value, so that a tape knows a value it recorded to be old
        self._version = 0
        #: one number, how often the mirror's memory was written since the parameter has it: tapes may have the memory too
        self._writes = [0]
        self._host: npt.NDArray[Any] | None = self._converted(value, "param")
        self.shape: Shape = self._host.shape

    def _converted(self, value: npt.ArrayLike, op: str) -> npt.NDArray[Any]:
        """A copy of the value rounded to float32, as every upload is; `set` on the specification keeps float64, and one made for
        another type of numbers that."""
        array = convert.host_array(op, self.name, value, convert.REAL)
        device = self.session.device
        if getattr(device, "scalar", None) is not None:
            return device.convert(op, self.name, array).reshape(array.shape)
        if op != "param" and device.name == "spec" and array.dtype == np.float64:
            return np.array(array, np.float64, order="C")
        return convert.float32(op, self.name, array).reshape(array.shape).copy()

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained. A change holds for the uses that follow it.

        Returns
        -------
        bool
            It can be set, too.
        """
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        fresh = boolean("requires_grad", self.name, wanted)
        self.session._require_uncaptured("requires_grad")
        if fresh != self._requires_grad:
            self._requires_grad = fresh
            self._version += 1

    @property
    def value(self) -> npt.NDArray[Any]:
        """The current value on the host, read-only; downloaded first where an update on the device made it stale.

        Returns
        -------
        array
            float32, on the specification float64. Setting it is :meth:`set`.

        Raises
        ------
        CaptureError
            Within a captured function.
        """
        self.session._require_uncaptured("value")
        if self._host is None:
            self._require_mirror()
            self._host = host = self._mirror.numpy(self.shape)
        else:
            host = self._host
        view = host.view()
        view.flags.writeable = False
        return view

    @value.setter
    def value(self, value: npt.ArrayLike) -> None:
        self.set(value)

    def set(self, value: npt.ArrayLike) -> None:
        """Sets the host value, and frees the mirror.

        Parameters
        ----------
        value : array_like
            In the parameter's shape; on the specification it stays float64.

        Raises
        ------
        ShapeError
            Another shape.
        ArgumentTypeError
            No numbers.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> w = s.param([1, 2], "w")
        >>> w.set([3, 4])
        >>> print(w.value)
        [3. 4.]
        """
        self.session._require_uncaptured("set")
        host = self._converted(value, "set")
        if host.shape != self.shape:
            raise refusal(ShapeError, "set", self.name, f"shape {host.shape}", self.shape)
        old = self._mirror
        set_and_call(self._changed(host, None), [] if old is None else [release_call(old)])

    def _changed(self, host: npt.NDArray[Any] | None, mirror: Any) -> list[Change]:
        """The changes that give the parameter a new value, all of them or none."""
        changes: list[Change] = [
            (self, "_host", host),
            (self, "_mirror", mirror),
            (self, "_version", self._version + 1),
        ]
        return [*changes, (self, "_writes", [0])]

    def assign(self, value: AnyBuffer) -> None:
        """Sets the value from the session's device; the host value is stale from here on.

        Parameters
        ----------
        value : AnyBuffer
            In the parameter's shape; the parameter takes the handle over.

        Raises
        ------
        ShapeError
            Another shape.
        DeviceMismatchError
            A buffer of another device.
        ReleasedError
            A released buffer.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> w = s.param([1, 2], "w")
        >>> w.assign(tlrt.AnyBuffer.upload([5, 6], s.device))
        >>> print(w.value)
        [5. 6.]
        """
        if value.shape != self.shape:
            raise refusal(ShapeError, "assign", self.name, f"shape {value.shape}", self.shape)
        if value.buffer.device is not self.session.device:
            expected = self.session.device
            raise refusal(DeviceMismatchError, "assign", self.name, f"a buffer of {value.buffer.device}", expected)
        if value.buffer.released:
            raise refusal(ReleasedError, "assign", self.name, "a released buffer", "a live one")
        value.require_length()
        old = self._mirror
        if old is value.buffer:
            self.updated()  # what was written in place
            return
        set_and_call(self._changed(None, value.buffer), [] if old is None else [release_call(old)])

    def numpy(self) -> npt.NDArray[Any]:
        """A copy of the current value.

        Returns
        -------
        numpy.ndarray
            In the parameter's shape.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> w = s.param([1, 2], "w")
        >>> print(w.numpy())
        [1. 2.]
        """
        return self.value.copy()

    @property
    def mirror(self) -> Any:
        """The buffer on the device, uploaded if there is no current one.

        Returns
        -------
        Buffer
            It belongs to the parameter: share it to keep it.

        Raises
        ------
        ReleasedError
            Of a closed session.
        """
        if self._mirror is None:
            self.session._require_open("mirror")
            device, host = self.session.device, self._host
            assert host is not None
            self._mirror = device.exact(host) if host.dtype == np.float64 else device.buffer(host)
        return self._mirror

    @property
    def host_is_stale(self) -> bool:
        """Whether the device holds a newer value than the host.

        Returns
        -------
        bool
            True after an update on the device, until :attr:`value` is read.
        """
        return self._host is None

    @property
    def has_mirror(self) -> bool:
        """Whether the device holds the current value.

        Returns
        -------
        bool
            False before the first use and after :meth:`set`.
        """
        return self._mirror is not None

    @property
    def grad(self) -> AnyBuffer | None:
        """The gradient of the session's last backward pass.

        Returns
        -------
        AnyBuffer or None
            None before a backward pass and after reset.

        Examples
        --------
        >>> import tlrt
        >>> s = tlrt.Session("cpu")
        >>> w = s.param([1, 2], "w")
        >>> (w * w).sum().backward()
        >>> w.grad.numpy()
        array([2., 4.], dtype=float32)
        """
        return self.session._gradients.get(self)

    def updated(self) -> None:
        """Notes that the mirror was changed in place: the host value is stale from here on.

        Raises
        ------
        ReleasedError
            Without a mirror.
        """
        self._require_mirror()
        self._writes[0] += 1
        self._host = None
        self._version += 1

    def _require_mirror(self) -> None:
        if self._mirror is None or self._mirror.released:
            raise refusal(ReleasedError, self.name, "mirror", "none", "one: the device was closed before it was read")

    def __repr__(self) -> str:
        state = "stale host" if self._host is None else "mirrored" if self._mirror is not None else "host only"
        return f"Parameter({self.name!r}, shape={self.shape}, {state}{'' if self.requires_grad else ', frozen'})"


class Parameters(dict[str, Parameter]):
    """A session's parameters by name, in the order they were made. Called they are a list, as those of a layer are.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> w = s.param([1, 2], "w")
    >>> s.parameters["w"] is w, s.parameters() == [w]
    (True, True)
    """

    def __call__(self) -> list[Parameter]:
        """All of them."""
        return list(self.values())

    def drop(self, name: str) -> None:
        """Forgets a parameter, or those of a layer, so that others may take their names.

        As when a notebook's cell builds a layer again. Using a dropped parameter is refused.

        Parameters
        ----------
        name : str
            Of the parameter, or of the layer.

        Raises
        ------
        ArgumentError
            There is none of that name.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> w = s.param([1, 2], "w")
        >>> s.parameters.drop("w")
        >>> print(len(s.parameters))
        0
        """
        gone = [n for n in self if n == name or n.startswith(f"{name}.")]
        if not gone:
            raise refusal(ArgumentError, "drop", "name", f"{name!r}", f"one of {', '.join(self) or 'none'}")
        self[gone[0]].session._require_uncaptured("drop")
        for n in gone:
            del self[n]
