"""How the gradients of a step come together and the parameters go round, by where the numbers lie meanwhile.

:class:`Exchange` is for one rank, :class:`HostExchange` takes numbers to the host and back, and
:class:`tlrt.distributed.nccl.DeviceExchange` leaves them on the device. The order of additions is that of
:mod:`tlrt.distributed.tree` in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt.distributed import tree
from tlrt.distributed.buckets import Bucket, Layout
from tlrt.distributed.group import Group
from tlrt.parameter import Parameter
from tlrt.session import Session


class Exchange:
    """Of a group of one rank: what it has is the sum already.

    A step calls :meth:`start` for every bucket, in their order, then :meth:`finish` and :meth:`norms`, and after the update
    :meth:`share`; where something fails, :meth:`stop`. `scale`, a power of two, makes means of sums."""

    def __init__(
        self, session: Session, group: Group, parameters: Sequence[Parameter], layout: Layout, scale: float
    ) -> None:
        self.session, self.group, self.parameters, self.layout = session, group, parameters, layout
        self.scale = scale
        #: whether norms are asked for
        self.takes_norms = False
        #: those of the gradients that are complete, in a vector on the device
        self._norms: Any = None
        #: the part of this rank
        self.part = tree.place(group.rank, group.size)
        #: gradients by the places of their parameters
        self._found: dict[int, Any] = {}

    def start(self, bucket: Bucket, gradients: Sequence[Any]) -> None:
        """Begins to add the gradients of a bucket over all ranks. They are in the order of its places, and their handles are
        the exchange's from here on."""
        self._found.update(zip(bucket.places, gradients, strict=True))
        for gradient in gradients:
            self._complete(gradient, self.session.tape.kernels)

    def _complete(self, gradient: Any, kernels: Any) -> None:
        """Makes the mean of a sum over all ranks, and queues its norm."""
        kernels.scale(gradient, self.scale, out=gradient)  # exact: a power of two
        if self.takes_norms:
            norm = kernels.global_norm(kernels.pack([gradient]))
            if self._norms is None:
                self._norms = norm
                return
            try:
                joined = kernels.concat1d(self._norms, norm, n=self._norms.length, m=1)
            finally:
                norm.release()
            self._norms.release()
            self._norms = joined

    def finish(self) -> dict[int, Any]:
        """The means of this rank's gradients by the places of their parameters, as buffers of the session's device, once all are
        there."""
        found, self._found = self._found, {}
        return found

    def norms(self) -> list[float]:
        """Those of the gradients that :meth:`finish` gave, in any order."""
        found, self._norms = self._norms, None
        if found is None:
            return []
        values = found.numpy()
        found.release()
        return [float(x) for x in values]

    def share(self) -> None:
        """Sends the parameters that this rank updated, and takes over the others'."""

    def stop(self) -> None:
        """Gives up what was begun, once nothing of it runs any more."""
        for buffer in (*self._found.values(), *filter(None, [self._norms])):
            buffer.release()
        self._found, self._norms = {}, None

    def _own(self, bucket: Bucket) -> list[int]:
        return [place for place in bucket.places if self.layout.owners[place] == self.part]


class HostExchange(Exchange):
    """By way of the host. With `overlap` a thread does it while the program computes: the operating system moves the bytes and
    NumPy adds them, and Python's lock is free meanwhile."""

    def __init__(
        self,
        session: Session,
        group: Group,
        parameters: Sequence[Parameter],
        layout: Layout,
        scale: float,
        overlap: bool,
    ) -> None:
        super().__init__(session, group, parameters, layout, scale)
        self._worker = ThreadPoolExecutor(1, "tlrt-exchange") if overlap else None
        self._jobs: list[tuple[Bucket, Future[npt.NDArray[Any]]]] = []

    def start(self, bucket: Bucket, gradients: Sequence[Any]) -> None:
        flat = np.concatenate([g.numpy() for g in gradients])
        for g in gradients:
            g.release()
        group, earlier = self.group, self._jobs[-1][1] if self._jobs else None
        add = partial(tree.reduce_scatter, flat, bucket.bounds, group.rank, group.size, group.exchange)
        if self._worker is not None:
            job = self._worker.submit(_after, earlier, add)
        else:
            job = Future()
            job.set_result(add())
        self._jobs.append((bucket, job))

    def finish(self) -> dict[int, Any]:
        device = self.session.device
        upload = device.exact if device.name == "spec" else device.buffer
        for bucket, job in self._jobs:
            sums, at = job.result(), 0
            for place in self._own(bucket):
                n = self.layout.lengths[place]
                self._found[place] = upload(sums[at : at + n])
                self._complete(self._found[place], self.session.tape.kernels)
                at += n
        self._jobs = []
        return super().finish()

    def share(self) -> None:
        group, bucket, parameters = self.group, self.layout.whole, self.parameters
        values = [parameters[place].value for place in self._own(bucket)]
        flat = np.empty(bucket.bounds[-1], values[0].dtype)
        np.concatenate(
            [v.reshape(-1) for v in values], out=flat[bucket.bounds[self.part] : bucket.bounds[self.part + 1]]
        )
        tree.all_gather(flat, bucket.bounds, group.rank, group.size, group.exchange)
        at = 0
        for place in bucket.places:
            p, n = parameters[place], self.layout.lengths[place]
            if self.layout.owners[place] != self.part:
                p.set(flat[at : at + n].reshape(p.shape))
            at += n

    def stop(self) -> None:
        jobs, self._jobs = [job for _, job in self._jobs], []
        for job in jobs:
            job.cancel()
        wait(jobs)
        super().stop()


def _after(earlier: Future[Any] | None, work: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The work, unless what came before it failed: the group is of no use then."""
    if earlier is not None:
        earlier.result()
    return work()
