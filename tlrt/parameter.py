"""Parameters: a host value, its mirror on a device, and which of the two is current."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tlrt import _convert
from tlrt.errors import ArgumentTypeError, DeviceMismatchError, ReleasedError, ShapeError
from tlrt.plan import Shape

if TYPE_CHECKING:
    from tlrt.session import Session
    from tlrt.tape import AnyBuffer

__all__ = ["Parameter"]


class Parameter:
    """A named array that outlives the tape; :meth:`tlrt.session.Session.param` makes one.

    It has a host value and a mirror on the session's device. Setting the host value frees the mirror; an optimiser's step
    changes the mirror and makes the host value stale; :attr:`value` downloads a stale one once, use on the device uploads
    only where there is no current mirror. Mirrors survive :meth:`Session.reset`.
    """

    __slots__ = ("__weakref__", "_host", "_mirror", "_session", "_version", "name", "requires_grad", "shape")

    def __init__(self, session: Session, name: str, value: npt.ArrayLike, requires_grad: bool) -> None:
        self._session = session
        self.name = name
        self.requires_grad = requires_grad
        self._mirror: Any = None
        #: changes with every new value, so that a tape knows a value it recorded to be old
        self._version = 0
        self._host: npt.NDArray[Any] | None = self._converted(value)
        self.shape: Shape = self._host.shape

    def _converted(self, value: npt.ArrayLike) -> npt.NDArray[Any]:
        """The value as the device holds it: float32, or what the specification computed in float64."""
        array = np.asarray(value)
        if self._session.device.name == "spec" and array.dtype == np.float64:
            return np.array(array, np.float64, order="C")
        return _convert.float32("param", self.name, value).reshape(array.shape).copy()

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def session(self) -> Session:
        """The session it belongs to."""
        return self._session

    @property
    def value(self) -> npt.NDArray[Any]:
        """The current value on the host, read-only; downloaded first where an update on the device made it stale."""
        if self._host is None:
            self._require_mirror()
            self._host = self._mirror.numpy(self.shape)
        view = self._host.view()
        view.flags.writeable = False
        return view

    @value.setter
    def value(self, value: npt.ArrayLike) -> None:
        self.set(value)

    def set(self, value: npt.ArrayLike) -> None:
        """A new host value of the same shape; frees the mirror. Raises ShapeError, ArgumentTypeError for the dtype."""
        if np.shape(value) != self.shape:
            raise ShapeError(f"set: {self.name}: got shape {np.shape(value)}, expected {self.shape}", op="set")
        host = self._converted(value)
        self._release()
        self._host = host
        self._version += 1

    def assign(self, value: AnyBuffer) -> None:
        """A new value from the session's device, whose handle the parameter takes over; the host value is stale from here on.

        Raises ShapeError, DeviceMismatchError.
        """
        if value.shape != self.shape:
            raise ShapeError(f"assign: {self.name}: got shape {value.shape}, expected {self.shape}", op="assign")
        if value.buffer.device is not self._session.device:
            raise DeviceMismatchError(
                f"assign: {self.name}: got a buffer of {value.buffer.device}, expected {self._session.device}",
                op="assign",
            )
        if value.buffer is not self._mirror:
            self._release()
        self._mirror = value.buffer
        self.updated()

    def numpy(self) -> npt.NDArray[Any]:
        """A copy of the current value."""
        return self.value.copy()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    @property
    def mirror(self) -> Any:
        """The buffer on the device, uploaded if there is no current one. It belongs to the parameter: share it to keep it."""
        if self._mirror is None:
            self._session._require_open("mirror")
            device, host = self._session.device, self._host
            assert host is not None
            self._mirror = device.exact(host) if host.dtype == np.float64 else device.buffer(host)
        return self._mirror

    @property
    def host_is_stale(self) -> bool:
        """Whether the device holds a newer value than the host."""
        return self._host is None

    @property
    def has_mirror(self) -> bool:
        """Whether the device holds the current value."""
        return self._mirror is not None

    @property
    def grad(self) -> AnyBuffer | None:
        """The gradient of the session's last backward pass; None before one and after reset."""
        return self._session._gradients.get(self)

    def updated(self) -> None:
        """Says that the mirror was changed in place: the host value is stale from here on."""
        self._require_mirror()
        self._host = None
        self._version += 1

    def _require_mirror(self) -> None:
        if self._mirror is None:
            raise ReleasedError(
                f"{self.name}: mirror: got none, expected one: the session was closed before it was read"
            )

    def _release(self) -> None:
        if self._mirror is not None:
            self._mirror.release()
            self._mirror = None

    def __repr__(self) -> str:
        state = "stale host" if self._host is None else "mirrored" if self._mirror is not None else "host only"
        return f"Parameter({self.name!r}, shape={self.shape}, {state}{'' if self.requires_grad else ', frozen'})"

    def __reduce__(self) -> Any:
        raise ArgumentTypeError("Parameter: got a parameter to pickle, expected an array: pickle parameter.value")
