"""The block in which an unmodified model computes on this package's kernels."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from tlrt._terminal import format_table
from tlrt.errors import UnavailableError
from tlrt.torch import routes, shim


@dataclass(frozen=True)
class Count:
    """Calls of an operator in a block, and their work.

    Parameters
    ----------
    calls : int
        Number of calls.
    work : int
        Floating-point operations of products, convolutions, attention and recurrent layers, elements of all else.
    """

    calls: int
    work: int


class Report:
    """What a block under :func:`reproducible` has computed; printing it gives a table.

    Operators that copy, choose, compare, or round once per element stay PyTorch's own and are not counted: IEEE 754
    determines them.

    Parameters
    ----------
    block : int
        The block's number in the C library.
    """

    def __init__(self, block: int) -> None:
        self._block = block
        weakref.finalize(self, shim.load().tlrt_torch_forget, block)

    def _counts(self, kind: str) -> dict[str, Count]:
        library = shim.load()
        size = library.tlrt_torch_text(self._block, None, 0) + 4096
        text = ctypes.create_string_buffer(size)
        library.tlrt_torch_text(self._block, text, size)
        rows = (line.split("\t") for line in text.value.decode().splitlines())
        return {row[0]: Count(int(row[2]), int(row[3])) for row in rows if len(row) == 4 and row[1] == kind}

    @property
    def here(self) -> dict[str, Count]:
        """Operators that this library computed.

        Returns
        -------
        dict of str to Count
            By PyTorch's names.
        """
        return self._counts("here")

    @property
    def remaining(self) -> dict[str, Count]:
        """Operators that were left to PyTorch, whose results may depend on the device.

        Returns
        -------
        dict of str to Count
            By PyTorch's names.
        """
        return self._counts("left")

    @property
    def left(self) -> tuple[str, ...]:
        """The names of the operators that were left to PyTorch.

        Returns
        -------
        tuple of str
            Sorted.
        """
        return tuple(sorted(self.remaining))

    @property
    def coverage(self) -> float:
        """The share of the work whose bits do not depend on the device.

        Returns
        -------
        float
            1.0 exactly where nothing was left.
        """
        here, left = (sum(c.work for c in counts.values()) for counts in (self.here, self.remaining))
        if not self.remaining:
            return 1.0
        return min(here / (here + left), 1 - 2.0**-53) if here + left else 0.0

    def __str__(self) -> str:
        counts = [("here", self.here), ("left to PyTorch", self.remaining)]
        rows = sorted(((n, kind, c.calls, c.work) for kind, of in counts for n, c in of.items()), key=lambda r: -r[3])
        return f"{format_table(('operator', 'computed', 'calls', 'work'), rows)}\n{self._share()} of the work is reproducible"

    def _share(self) -> str:
        """The coverage; less than 100 % where anything is left."""
        return "100%" if not self.remaining else f"{min(self.coverage, 0.9999):.2%}"

    def __repr__(self) -> str:
        return f"<Report: {self._share()} of the work, {len(self.left)} operators left>"


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _uncompiled(function: _Function) -> _Function:
    """A function that PyTorch's compiler calls and does not look into."""
    return torch.compiler.disable(function)


class _Eager:
    """While any thread is in a block compiled functions run uncompiled, and encoder layers without their one fused operator:
    PyTorch's settings are those of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._stance = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._blocks:
                self._stance.enter_context(torch.compiler.set_stance("force_eager"))
                self._stance.callback(
                    torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()
                )
                torch.backends.mha.set_fastpath_enabled(False)
            self._blocks += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                self._stance.close()


_eager = _Eager()


class _Entered(threading.local):
    """What the calling thread has to undo, for each time that it entered a block."""

    def __init__(self) -> None:
        self.stacks: list[ExitStack] = []


class reproducible:
    """A block in which operators of an unmodified model compute on this package's kernels: forward passes, and backward
    passes that run inside it. The same inputs then give the same bits on the CPU and on every GPU, whatever the batch and
    the threads.

    The block is that of the thread that enters it, which also runs its backward passes; other threads compute as ever.
    What `torch.compile` has compiled runs uncompiled while any thread is in a block. A backward pass runs in the block in which
    it is called.

    Parameters
    ----------
    strict : bool
        Whether an operator that would be left to PyTorch raises :class:`tlrt.errors.UnavailableError`.

    Returns
    -------
    Report
        What was computed where, as the target of the `with` statement.

    Examples
    --------
    >>> import torch, tlrt.torch
    >>> with tlrt.torch.reproducible(strict=True) as report:
    ...     y = torch.nn.functional.gelu(torch.ones(3) @ torch.ones(3, 2))
    >>> report.coverage, report.left
    (1.0, ())
    """

    def __init__(self, strict: bool = False) -> None:
        self._strict = strict
        self._entered = _Entered()

    @_uncompiled
    def __enter__(self) -> Report:
        library = shim.load()
        routes.register()
        with ExitStack() as stack:
            stack.enter_context(_eager)
            block = library.tlrt_torch_enter(int(self._strict))
            stack.callback(library.tlrt_torch_leave)
            # Parts of a gradient are added in the order in which a thread has numbered the operations. A GPU's own thread would
            # number by itself what it records for gradients of gradients.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            if library.tlrt_torch_keep_subnormals():
                stack.callback(library.tlrt_torch_flush_subnormals)
            self._entered.stacks.append(stack.pop_all())
        return Report(block)

    @_uncompiled
    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if not self._entered.stacks:
            raise RuntimeError(
                "tlrt.torch.reproducible: thread: got another one, expected the thread that entered the block"
            )
        self._entered.stacks.pop().close()
        if isinstance(error, NotImplementedError) and str(error).startswith("tlrt.torch.reproducible: "):
            raise UnavailableError(str(error).partition("\n")[0], op="tlrt.torch.reproducible") from error
