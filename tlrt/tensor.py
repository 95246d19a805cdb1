"""References that a session hands out: to tensors on its tape, and to natural numbers beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tlrt import _convert
from tlrt.errors import ArgumentTypeError
from tlrt.plan import Shape

if TYPE_CHECKING:
    from tlrt.session import Session
    from tlrt.tape import AnyBuffer

__all__ = ["NatRef", "NatVecRef", "TensorRef"]

#: elements a printed tensor is shown whole up to
_SHOWN = 1000


class TensorRef:
    """A tensor on a session's tape: valid until the session's next reset.

    It has every operation of the session as a method (``x.relu()`` is ``session.relu(x)``) and the operators + - * / @ ** with
    tensors, parameters and numbers.
    """

    __slots__ = ("epoch", "id", "session", "shape")

    def __init__(self, session: Session, id: int, shape: Shape, epoch: int) -> None:
        self.session = session
        #: the node on the session's tape
        self.id = id
        self.shape = shape
        #: which of the session's tapes, counted by resets
        self.epoch = epoch

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def requires_grad(self) -> bool:
        """Whether backward propagates to it."""
        return self.session.tape.nodes[self.session._id(self, "requires_grad")].requires_grad

    @property
    def value(self) -> AnyBuffer:
        """The device buffer; the tape keeps the ownership."""
        return self.session.tape.value(self.session._id(self, "value"))

    def numpy(self) -> npt.NDArray[Any]:
        """A copy on the host; waits for the device."""
        return self.value.numpy()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def item(self) -> float:
        """The only element as a float."""
        values = self.numpy()
        if values.size != 1:
            raise ArgumentTypeError(f"item: tensor: got shape {self.shape}, expected one element")
        return float(values.reshape(-1)[0])

    def backward(self, seed: npt.ArrayLike | None = None) -> None:
        """The gradients of this tensor by the session's parameters; see :meth:`Session.backward`."""
        self.session.backward(self, seed)

    @property
    def grad(self) -> AnyBuffer | None:
        """The gradient of the last backward pass, for an input that requires one; else None."""
        return self.session._gradients.of_leaf(self.session._id(self, "grad"))

    # ---- operators

    def __add__(self, other: Any) -> TensorRef:
        return self.session.add(self, other)

    def __radd__(self, other: Any) -> TensorRef:
        return self.session.add(other, self)

    def __sub__(self, other: Any) -> TensorRef:
        return self.session.sub(self, other)

    def __rsub__(self, other: Any) -> TensorRef:
        return self.session.sub(other, self)

    def __mul__(self, other: Any) -> TensorRef:
        if isinstance(other, (int, float)):
            return self.session.scale(self, other)
        return self.session.mul(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> TensorRef:
        return self.session.div(self, other)

    def __rtruediv__(self, other: Any) -> TensorRef:
        return self.session.div(other, self)

    def __matmul__(self, other: Any) -> TensorRef:
        return self.session.matmul(self, other)

    def __rmatmul__(self, other: Any) -> TensorRef:
        return self.session.matmul(other, self)

    def __neg__(self) -> TensorRef:
        return self.session.neg(self)

    def __abs__(self) -> TensorRef:
        return self.session.abs(self)

    def __pow__(self, power: int) -> TensorRef:
        if power != 2:
            raise ArgumentTypeError(f"**: power: got {power!r}, expected 2 (use exp and log for others)")
        return self.session.square(self)

    def __getattr__(self, name: str) -> Any:
        from tlrt.operations import Operations

        if name.startswith("_") or not hasattr(Operations, name):
            raise AttributeError(f"TensorRef has no attribute or operation {name!r}")
        operation = getattr(self.session, name)

        def call(*arguments: Any, **options: Any) -> Any:
            return operation(self, *arguments, **options)

        call.__name__, call.__doc__ = name, operation.__doc__
        return call

    def __dir__(self) -> list[str]:
        from tlrt.operations import Operations

        return sorted({*object.__dir__(self), *(n for n in dir(Operations) if not n.startswith("_"))})

    def __bool__(self) -> bool:
        raise ArgumentTypeError("bool: got a TensorRef, expected a number: use item() or numpy()")

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError("len: got a scalar tensor, expected at least one axis")
        return self.shape[0]

    def __repr__(self) -> str:
        head = f"shape={self.shape}, device={self.session.device.name!r}"
        try:
            node = self.session.tape.nodes[self.session._id(self, "repr")]
        except Exception:
            return f"TensorRef({head}, of an earlier step)"
        flags = f"op={node.name!r}" + (", requires_grad" if node.requires_grad else "")
        if self.size > 4 * _SHOWN:
            return f"TensorRef({head}, {flags})"
        body = np.array2string(self.numpy(), prefix="TensorRef(", separator=", ", threshold=_SHOWN)
        return f"TensorRef({body}, {head}, {flags})"


class NatRef:
    """A natural number in a session's environment, for indices that change between steps; valid until reset."""

    __slots__ = ("epoch", "id", "session")

    def __init__(self, session: Session, id: int, epoch: int) -> None:
        self.session = session
        self.id = id
        self.epoch = epoch

    def __index__(self) -> int:
        return self.session.get_nat(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id})"


class NatVecRef(NatRef):
    """A vector of natural numbers in a session's environment; valid until reset."""

    __slots__ = ()

    def __index__(self) -> int:
        raise ArgumentTypeError("index: got a vector of naturals, expected one (Session.nat)")

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self.session.get_nat_vec(self)
        return array if dtype is None else array.astype(dtype, copy=False)


def naturals(op: str, values: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """A copy as uint32 of one axis; raises IndexOutOfRangeError below 0 and from 2^32."""
    return _convert.uint32(op, "values", values).copy()
