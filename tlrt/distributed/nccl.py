"""Ranks whose gradients and parameters stay on their GPUs: NCCL moves them, and the library's own `add` adds them.

A rank has a second context on its GPU, with a stream of its own. It borrows the gradients' memory, so that exchanges and
additions run beside the backward pass; the two streams wait for each other by events. NCCL is asked for sends and receives alone:
the order of a sum of its own depends on the number of ranks and on the algorithm that it picks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tlrt import kernels
from tlrt._binding.capsules import data_address
from tlrt._binding.exchange import lend_to
from tlrt._binding.handles import Buffer, Device
from tlrt.distributed import tree
from tlrt.distributed.buckets import Bucket, Layout
from tlrt.distributed.exchanges import Exchange
from tlrt.distributed.group import Group, GroupError
from tlrt.distributed.nccl_library import FLOAT32, IN_PROGRESS, SUM, load_nccl
from tlrt.errors import ArgumentError, refusal
from tlrt.parameter import Parameter
from tlrt.session import Session

#: seconds between two looks at the other ranks while one waits, and how long one may be gone before it counts, as it may have
#: sent all that is waited for
_PAUSE, _GONE = 0.05, 2.0

#: an address and a number of float32 there
Span = tuple[int, int]


class Communicator:
    """A rank's connection to the others by NCCL, with the context whose stream has the work.

    A wait ends when another rank is gone or `group.timeout` seconds are over: the connection is given up then, which ends what
    NCCL runs on the GPU, and GroupError raised."""

    def __init__(self, group: Group, name: str, math: str) -> None:
        self._nccl, self.group = load_nccl(), group
        self._lib, self._ffi = self._nccl.lib, self._nccl.ffi
        #: the context of exchanges
        self.device = Device.new(name, math)
        if not (self.device.is_cuda or self._nccl.takes_host_memory):
            raise refusal(ArgumentError, "join", "transport", f"'nccl' for ranks on {name!r}", "'host', or GPUs")
        self._comm: Any = None
        #: why it was given up
        self._reason = ""
        self._watch = _Watch(self)
        self._join()

    def _join(self) -> None:
        """All ranks at once, as NCCL has it. The calling thread's GPU is the device's from its last call on."""
        id = self._ffi.new("ncclUniqueId *")
        if self.group.rank == 0:
            self._check(self._lib.ncclGetUniqueId(id))
        word = bytes(self._ffi.buffer(id)).hex()
        facts = self.group.gather([word, self._nccl.version])
        if len({version for _, version in facts}) > 1:
            got = ", ".join(f"{version} on rank {rank}" for rank, (_, version) in enumerate(facts))
            raise refusal(GroupError, "join", "NCCL", got, "one version")
        self._ffi.memmove(id, bytes.fromhex(facts[0][0]), self._ffi.sizeof("ncclUniqueId"))
        place = self._ffi.new("ncclComm_t *")
        self.device.synchronize()
        self._check(self._lib.ncclCommInitRank(place, self.group.size, id[0], self.group.rank))
        self._comm = place[0]

    def _check(self, result: int) -> None:
        if self._reason:
            raise GroupError(self._reason, op="exchange")
        if result:
            if reason := self._watch.ask(_GONE):  # what another rank says of itself tells more
                raise GroupError(reason, op="exchange")
            got = f"NCCL's result {result} ({self._nccl.why(result, self._comm)})"
            raise refusal(GroupError, "exchange", f"rank {self.group.rank}", got, "0")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """The context of calls that wait for other ranks."""
        if self._reason:
            raise GroupError(self._reason, op="exchange")
        if self._comm is None:
            raise refusal(GroupError, "exchange", f"rank {self.group.rank}", "a closed connection", "an open group")
        self._watch.begin()
        try:
            yield
        finally:
            self._watch.end()
        if self._reason:
            raise GroupError(self._reason, op="exchange")

    def swap(self, partner: int, out: Sequence[Span], into: Sequence[Span]) -> None:
        """Queues sends of memory to a rank, and receives from it, as one group. Both ranks name the same lengths in the same
        order."""
        lib, comm = self._lib, self._comm
        stream = self._ffi.cast("void *", self.device.stream)
        self._check(lib.ncclGroupStart())
        try:
            for address, n in out:
                self._check(lib.ncclSend(self._ffi.cast("void *", address), n, FLOAT32, partner, comm, stream))
            for address, n in into:
                self._check(lib.ncclRecv(self._ffi.cast("void *", address), n, FLOAT32, partner, comm, stream))
        finally:
            ended = lib.ncclGroupEnd()
        self._check(ended)

    def all_reduce(self, spans: Sequence[Span]) -> None:
        """Queues NCCL's own sums over all ranks, in place, whose order is NCCL's: what a benchmark compares with."""
        lib, comm = self._lib, self._comm
        stream = self._ffi.cast("void *", self.device.stream)
        self._check(lib.ncclGroupStart())
        try:
            for address, n in spans:
                place = self._ffi.cast("void *", address)
                self._check(lib.ncclAllReduce(place, place, n, FLOAT32, SUM, comm, stream))
        finally:
            ended = lib.ncclGroupEnd()
        self._check(ended)

    def wait(self) -> None:
        """Waits until the queued work is done."""
        with self.watched():
            self.device.synchronize()

    def trouble(self) -> str:
        """Why to give up, as far as NCCL and the group know; nothing if all is well."""
        error = self._ffi.new("int *")
        asked = self._comm is not None and not self._lib.ncclCommGetAsyncError(self._comm, error)
        if asked and error[0] not in (0, IN_PROGRESS):
            return f"exchange: rank {self.group.rank}: got {self._nccl.why(error[0], self._comm)}, expected none"
        return self.group.trouble()

    def give_up(self, reason: str) -> None:
        """Ends what runs, whatever other ranks do. Any thread may call it while another waits."""
        comm, self._comm = self._comm, None
        if comm is not None:
            self._reason = self._reason or reason
            self._lib.ncclCommAbort(comm)

    def close(self) -> None:
        """Leaves the other ranks, once the queued work is done."""
        self._watch.close()
        comm, self._comm = self._comm, None
        if comm is not None:
            self._lib.ncclCommDestroy(comm)
        self.device.close()


def communicator_of(group: Group, device: Any) -> Communicator:
    """A rank's connection for a session's device, made at the first call, which all ranks make; it ends with the group."""
    if device not in group._communicators:
        if device.name == "spec":
            raise refusal(ArgumentError, "join", "transport", "'nccl' for the specification", "'host'")
        group._communicators[device] = Communicator(group, device.name, device.math)
    found = group._communicators[device]
    assert isinstance(found, Communicator)
    return found


class _Watch:
    """A thread that looks at the other ranks while this one waits for them."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._state = threading.Condition()
        #: when the wait began; None while there is none
        self._since: float | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        with self._state:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tlrt-watch", daemon=True)
                self._thread.start()
            self._since = time.monotonic()
            self._state.notify()

    def end(self) -> None:
        with self._state:
            self._since = None

    def ask(self, seconds: float) -> str:
        """What becomes known of other ranks' trouble in this time."""
        end = time.monotonic() + seconds
        while not (found := self._look()) and time.monotonic() < end:
            time.sleep(_PAUSE)
        return found

    def _look(self) -> str:
        with self._state:
            return self._communicator.group.trouble()

    def close(self) -> None:
        with self._state:
            self._is_closed = True
            self._state.notify()

    def _run(self) -> None:
        found, known, timeout = "", 0.0, self._communicator.group.timeout
        while True:
            with self._state:
                if not self._is_closed and self._since is None:
                    found = ""
                self._state.wait_for(lambda: self._is_closed or self._since is not None)
                self._state.wait_for(lambda: self._is_closed or self._since is None, _PAUSE)
                if self._is_closed:
                    return
                if self._since is None:
                    continue
                now = time.monotonic()
                if not found and (found := self._communicator.trouble()):
                    known = now
                if found and now - known > _GONE:
                    self._give_up(found)
                elif now - self._since > timeout:
                    rank = self._communicator.group.rank
                    nothing = f"exchange: rank {rank}: got nothing for {timeout:g} s, expected the others' numbers"
                    self._give_up(found or nothing)

    def _give_up(self, reason: str) -> None:
        self._communicator.give_up(reason)
        self._since = None


class DeviceExchange(Exchange):
    """On the device. What :meth:`start` and :meth:`share` queue runs on the communicator's stream; :meth:`finish` and
    :meth:`share` wait for it, so that nothing else waits for another rank without a limit of time."""

    def __init__(
        self, session: Session, group: Group, parameters: Sequence[Parameter], layout: Layout, scale: float
    ) -> None:
        super().__init__(session, group, parameters, layout, scale)
        self._link = communicator_of(group, session.device)
        self._windows = tree.windows(group.rank, group.size)
        #: where the other rank's gradient of a parameter arrives, and its address; of those that a rank keeps on the first level
        self._arriving: dict[int, tuple[Buffer, int]] = {}
        #: the gradients of a step in the communicator's context
        self._borrowed: list[Buffer] = []
        #: mirrors of the parameters and their addresses
        self._mirrors: dict[int, tuple[Any, int]] = {}

    def start(self, bucket: Bucket, gradients: Sequence[Any]) -> None:
        lengths, owners, link = self.layout.lengths, self.layout.owners, self._link
        self._found.update(zip(bucket.places, gradients, strict=True))
        if link.device.is_cuda:
            self.session.device.order_before(link.device.stream)
        own: dict[int, tuple[Buffer, int]] = {}
        for place in bucket.places:
            if lengths[place]:
                own[place] = lend_to(self._found[place], link.device)
                self._borrowed.append(own[place][0])
        with link.watched():
            for partner, low, high, first, last in self._windows:
                away = [i for i in own if first <= owners[i] < last]
                kept = [i for i in own if low <= owners[i] < high]
                if not away and not kept:
                    continue
                arriving = {i: self._place(i) for i in kept}
                out = [(own[i][1], lengths[i]) for i in away]
                link.swap(partner, out, [(arriving[i][1], lengths[i]) for i in kept])
                for i in kept:
                    mine, other = own[i][0], arriving[i][0]
                    first_one, second = (mine, other) if self.group.rank < partner else (other, mine)
                    kernels.add(first_one, second, out=mine)
                own = {i: own[i] for i in kept}
            for mine, _ in own.values():
                self._complete(mine, kernels)
        for place in bucket.places:  # those of other ranks: borrowed until the stream has sent them
            if owners[place] != self.part:
                self._found.pop(place).release()

    def _place(self, i: int) -> tuple[Buffer, int]:
        if i not in self._arriving:
            made = self._link.device.empty(self.layout.lengths[i])
            self._arriving[i] = made, data_address(made, "exchange")
        return self._arriving[i]

    def finish(self) -> dict[int, Any]:
        self._link.wait()
        self._return_borrowed()
        return super().finish()

    def _return_borrowed(self) -> None:
        borrowed, self._borrowed = self._borrowed, []
        for buffer in borrowed:
            buffer.release()

    def share(self) -> None:
        link, device, owners = self._link, self.session.device, self.layout.owners
        spans = {i: (self._mirror(i), n) for i, n in enumerate(self.layout.lengths) if n}
        if link.device.is_cuda:
            device.order_before(link.device.stream)
        with link.watched():
            for partner, low, high, first, last in reversed(self._windows):
                out = [spans[i] for i in spans if low <= owners[i] < high]
                into = [spans[i] for i in spans if first <= owners[i] < last]
                if out or into:
                    link.swap(partner, out, into)
            link.device.synchronize()
        for i, p in enumerate(self.parameters):
            if owners[i] != self.part:
                p.updated()

    def _mirror(self, i: int) -> int:
        """The address of a parameter's mirror."""
        mirror = self.parameters[i].mirror
        if i not in self._mirrors or self._mirrors[i][0] is not mirror:
            self._mirrors[i] = mirror, data_address(mirror, "exchange")
        return self._mirrors[i][1]

    def stop(self) -> None:
        """Gives the connection up: whether the other ranks queued the same cannot be known."""
        self._link.give_up(f"exchange: rank {self.group.rank}: got a step that failed, expected none")
        self._return_borrowed()
        super().stop()
