"""The gradients of a session's last backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tlrt._binding.handles import Uncopied
from tlrt._operations.shaped import AnyBuffer
from tlrt.parameter import Parameter


class Gradients(Uncopied, Mapping[Parameter, AnyBuffer]):
    """Gradients by parameter, on the device. They belong to the session and go at its next backward or reset."""

    def __init__(self) -> None:
        self._by_parameter: dict[Parameter, AnyBuffer] = {}
        self._by_leaf: dict[int, AnyBuffer] = {}
        #: parameters that the loss does not reach, whose gradients are zeros
        self._unreached: frozenset[Parameter] = frozenset()
        #: nodes on the tape at the last backward, and those that stood for parameters
        self._size, self._of_parameters = 0, frozenset[int]()

    def __getitem__(self, parameter: Parameter) -> AnyBuffer:
        return self._by_parameter[parameter]

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._by_parameter)

    def __len__(self) -> int:
        return len(self._by_parameter)

    def __repr__(self) -> str:
        return f"Gradients({', '.join(f'{p.name}{list(p.shape)}' for p in self) or 'none'})"

    def release(self) -> None:
        """Gives all the buffers back."""
        parameters, leaves = self._by_parameter, self._by_leaf
        self._by_parameter, self._by_leaf, self._unreached = {}, {}, frozenset()
        release_all((*parameters.values(), *leaves.values()))


def release_all(gradients: Iterable[AnyBuffer]) -> None:
    """Releases their buffers."""
    for g in gradients:
        g.buffer.release()
