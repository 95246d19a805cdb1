"""Training on the shards of a batch, spread over ranks."""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt import checkpoint
from tlrt._binding.arguments import boolean, integer, is_number
from tlrt._binding.observer import Observer
from tlrt._binding.together import Change, set_and_call
from tlrt._operations.shaped import AnyBuffer
from tlrt.distributed import buckets, tree
from tlrt.distributed.exchanges import Exchange, HostExchange
from tlrt.distributed.group import Group, GroupError
from tlrt.errors import ArgumentError, ArgumentTypeError, refusal
from tlrt.optim import Optimizer
from tlrt.parameter import Parameter
from tlrt.session import Session
from tlrt.tensor import TensorRef

__all__ = ["DataParallel"]

#: random draws of one shard in one step are at most 2^this
DRAWS = 28
#: the most shards
SHARDS = 4096
#: bytes of gradients from which a bucket is full
BUCKET = 4 << 20


def add_pairs(values: Sequence[float]) -> float:
    """The sum in float64 by the balanced binary tree.

    Parameters
    ----------
    values : sequence of float
        As many as a power of two.

    Returns
    -------
    float
        Their sum.

    Examples
    --------
    >>> from tlrt.distributed.parallel import add_pairs
    >>> add_pairs([1e16, 1.0, -1e16, 1.0])
    0.0
    """
    while len(values) > 1:
        values = [values[i] + values[i + 1] for i in range(0, len(values), 2)]
    return values[0]


class DataParallel:
    """Training on shards of a batch, with the same bits for every number of ranks.

    The gradient of a step is Σ gradients of the shards / shards. A balanced binary tree over the shards adds them,
    elementwise in float32; so it does with the loss, in float64. Each parameter is updated by one rank, which alone has
    its states (as in ZeRO, stage 1), and sent to the others. Random draws depend on the step and the shard. Running
    statistics become the mean of what each shard makes of them.

    All ranks make the same session, parameters and optimiser. What differs is refused on all ranks: another number of
    shards, mode, parameter or hyperparameter, and, in a step, inputs of another shape in one of the shards. Where
    the device has an observer, such as a ledger, gradients go to other ranks after the backward pass.

    Parameters
    ----------
    session : Session
        With all parameters made.
    make_optimizer : function
        From the parameters that this rank updates to their optimiser.
    group : Group, optional
        Of :func:`join`; one rank unless given.
    shards : int
        Shards of a batch, a power of two; a rank computes shards/ranks of them.
    max_norm : float, optional
        The largest global norm: √Σ g² over the norms of the parameters, added in float64 and rounded once. Gradients
        are scaled as by :meth:`tlrt.Session.clip_grad_norm`.
    overlap : bool, optional
        Gradients go to other ranks while the backward pass of a rank's last shard runs. It changes no bit, and is on
        but for GPUs whose numbers go by way of the host.
    bucket : int
        Bytes of gradients that go together.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For a setting out of range, fewer parameters than ranks, or another optimiser than that of the parameters given.
    GroupError
        Where ranks differ.

    Examples
    --------
    >>> import tlrt
    >>> from tlrt import distributed
    >>> s = tlrt.Session("cpu", seed=1)
    >>> w = s.param([0.0], "w")
    >>> training = distributed.DataParallel(s, lambda parameters: tlrt.optim.SGD(parameters, lr=0.25), shards=2)
    >>> training.step(lambda shard: ((w - float(shard)) ** 2).sum())
    0.5
    >>> w.value, training.steps
    (array([0.25], dtype=float32), 1)

    Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020 (stage 1);
    torch.nn.parallel.DistributedDataParallel.
    """

    def __init__(
        self, session: Session, make_optimizer: Callable[[list[Parameter]], Optimizer], group: Group | None = None, *,
        shards: int, max_norm: float | None = None, overlap: bool | None = None, bucket: int = BUCKET,
    ) -> None:  # fmt: skip
        op = "DataParallel"
        self.session, self.group = session, Group() if group is None else group
        self.shards = integer(op, "shards", shards)
        if not (0 < self.shards <= SHARDS and self.shards & (self.shards - 1) == 0 and self.shards >= self.group.size):
            expected = f"a power of two from the number of ranks, {self.group.size}, to {SHARDS}"
            raise refusal(ArgumentError, op, "shards", shards, expected)
        if max_norm is not None and not is_number(max_norm):
            raise refusal(ArgumentTypeError, op, "max_norm", type(max_norm).__name__, "a number or None")
        self.max_norm = max_norm
        self._trained = [p for p in session.parameters.values() if p.requires_grad]
        size, rank = self.group.size, self.group.rank
        if len(self._trained) < size:
            raise refusal(ArgumentError, op, "parameters", f"{len(self._trained)} that are trained", f"{size} or more")
        most = integer(op, "bucket", bucket)
        if most < 1:
            raise refusal(ArgumentError, op, "bucket", bucket, "1 byte or more")
        by_nccl = self.group.transport == "nccl"
        self.overlap = by_nccl or not session.device.is_cuda if overlap is None else boolean(op, "overlap", overlap)
        most = most // 4 if self.overlap and size > 1 else 2**63
        self._layout = buckets.divide([math.prod(p.shape) for p in self._trained], size, most)
        self._own = [self._trained[i] for i in self._layout.own(tree.place(rank, size))]
        #: that of the parameters of this rank
        self.optimizer = make_optimizer(list(self._own))
        if not isinstance(self.optimizer, Optimizer):
            raise refusal(ArgumentTypeError, op, "make_optimizer", type(self.optimizer).__name__, "an Optimizer")
        if {p.name for p in self.optimizer.parameters} != {p.name for p in self._own}:
            raise refusal(
                ArgumentError, op, "make_optimizer", "an optimizer of others", "one of the parameters it is given"
            )
        self._steps = 0
        #: names of the parameters that a loss changes, as running statistics are; None before the first step
        self._moving: list[str] | None = None
        self._agree(op)
        self._groups = self._members()
        self._exchange = self._make_exchange()

    def _make_exchange(self) -> Exchange:
        given = self.session, self.group, self._trained, self._layout, 1 / self.shards
        if self.group.size == 1:
            return Exchange(*given)
        if self.group.transport == "nccl":
            from tlrt.distributed.nccl import DeviceExchange

            return DeviceExchange(*given)
        return HostExchange(*given, self.overlap)

    @property
    def steps(self) -> int:
        """Steps taken, those before a checkpoint included.

        Returns
        -------
        int
            Their number.
        """
        return self._steps

    def _agree(self, op: str) -> None:
        """Raises GroupError unless all ranks train the same."""
        digest = hashlib.sha256()
        for p in self.session.parameters.values():
            digest.update(np.ascontiguousarray(p.value).tobytes())
        named = [(p.name, p.shape, p.requires_grad) for p in self.session.parameters.values()]
        self.group.agree(op, {
            "shards": self.shards, "math": getattr(self.session.device, "math", "exact"), "seed": self.session.seed,
            "max_norm": self.max_norm, "optimizer": _text(self.optimizer), "steps": self._steps,
            "parameters": hashlib.sha256(repr(named).encode()).hexdigest()[:16],
            "values of the parameters": digest.hexdigest()[:16],
        })  # fmt: skip

    def _members(self) -> list[tuple[Optimizer, set[str]]]:
        """The groups of this rank's optimiser, each with the names of its parameters on all ranks: groups of the same
        hyperparameters are one."""
        own = [(g, json.dumps(g._settings())) for g in self.optimizer.groups or [self.optimizer]]
        names: dict[str, set[str]] = {}
        for found in self.group.gather([(key, [p.name for p in g.parameters]) for g, key in own]):
            for key, members in found:
                names.setdefault(key, set()).update(members)
        return [(g, names[key]) for g, key in own]

    # ---- a step

    def step(self, loss: Callable[[int], TensorRef]) -> float:
        """Trains on one batch, and resets the session.

        Parameters
        ----------
        loss : function of an int
            It is called for each shard of this rank, and gives the session's loss of that shard, its mean over the
            examples.

        Returns
        -------
        float
            The mean of the shards' losses.

        Raises
        ------
        GroupError
            Where the shapes of inputs or the hyperparameters are not those of the other ranks.
        """
        session, count = self.session, self.shards // self.group.size
        gradients, statistics = _Gradients(self), _Sums(_add_arrays)
        inputs, reached = [], set()
        # read at the end: until then the device has work that was queued before
        losses: list[AnyBuffer] = []
        moving = _Moving(session, self._moving)
        first, counter = self.group.rank * count, session.counter
        try:
            for shard in range(first, first + count):
                session.counter = (self._steps * self.shards + shard) << DRAWS
                found = loss(shard)
                if not isinstance(found, TensorRef):
                    raise refusal(ArgumentTypeError, "DataParallel.step", "loss", type(found).__name__, "a TensorRef")
                with gradients.during_backward(shard == first + count - 1):
                    session.backward(found)
                losses.append(session._node(found, "DataParallel.step").value.share())
                inputs.append(self._inputs())
                made, missed = self._take()
                reached |= {p.name for p in made if p not in missed}
                session.reset()
                gradients.add_shard(made)
                statistics.push(moving.take())
            self._moving = moving.names
            values = [float(loss_of_shard.numpy().item()) for loss_of_shard in losses]
            own = gradients.finish()
            mean, everywhere, norm = self._compare(values, inputs, sorted(reached), self._exchange.norms())
            means = self._mean_on_all(statistics.total())
            self._update(own, everywhere, norm)
            self._exchange.share()
        except BaseException:
            gradients.stop()
            session._release_step()  # what the shard has left would count as a part of the next step's first
            session.counter = counter
            moving.restore()
            raise
        finally:
            for loss_of_shard in losses:
                loss_of_shard.release()
        for name, value in means.items():
            session.parameters[name].set(value)
        self._steps += 1
        session.counter = (self._steps * self.shards) << DRAWS
        return mean

    def _inputs(self) -> int:
        """A hash of the names and shapes of what a shard's tape was given."""
        own = {leaf[0].id for leaf in self.session._leaves.values()}
        given = [(n.name, n.shape) for i, n in enumerate(self.session.tape.nodes) if not n.parents and i not in own]
        return zlib.crc32(repr(given).encode())

    def _take(self) -> tuple[dict[Parameter, AnyBuffer], frozenset[Parameter]]:
        """The gradients of the last backward, which are the session's no longer."""
        gradients = self.session.gradients
        found, missed = gradients._by_parameter, gradients._unreached
        if missing := [p.name for p in self._trained if p not in found]:
            raise refusal(
                ArgumentError, "DataParallel.step", missing[0], "a parameter frozen since", "one that is trained"
            )
        set_and_call([(gradients, "_by_parameter", {}), (gradients, "_unreached", frozenset())], [])
        return {p: found[p] for p in self._trained}, missed

    def _compare(
        self, losses: list[float], inputs: list[int], reached: list[str], norms: list[float]
    ) -> tuple[float, set[str], float]:
        """The mean of all losses, the names of the parameters that one of them reaches, and the norm of all gradients."""
        said = {"optimizer": _text(self.optimizer), "statistics": self._moving}
        # groups, which not all ranks have, by their first parameters
        parts = [(part, names) for part, names in self._groups if names and part is not self.optimizer]
        said |= {f"optimizer: group of {min(names)}": _text(part) for part, names in parts}
        every = self.group.gather([losses, inputs, reached, norms, said])
        known: dict[str, tuple[int, Any]] = {}
        for rank, (*_, found) in enumerate(every):
            for what, value in found.items():
                first, expected = known.setdefault(what, (rank, value))
                if value != expected:
                    got = f"{value} on rank {rank}"
                    raise refusal(GroupError, "DataParallel.step", what, got, f"{expected}, as on rank {first}")
        shapes = [x for _, given, *_ in every for x in given]
        if len(set(shapes)) > 1:
            shard = next(i for i, x in enumerate(shapes) if x != shapes[0])
            rank = shard // (self.shards // self.group.size)
            got = f"inputs of other shapes in shard {shard}, on rank {rank}"
            raise refusal(GroupError, "DataParallel.step", "loss", got, "those of shard 0: all shards are of one size")
        mean = add_pairs([x for found, *_ in every for x in found]) / self.shards
        norm = math.sqrt(math.fsum(x * x for found in every for x in found[3]))
        return mean, {name for _, _, names, *_ in every for name in names}, norm

    def _mean_on_all(self, values: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """The means over all shards of arrays, on every rank; this rank has the sums over its own shards."""
        if not values:
            return {}
        group, flat = self.group, np.concatenate([v.reshape(-1) for v in values.values()])
        bounds = [flat.size * k // group.size for k in range(group.size + 1)]
        tree.reduce_scatter(flat, bounds, group.rank, group.size, group.exchange)
        tree.all_gather(flat, bounds, group.rank, group.size, group.exchange)
        flat *= flat.dtype.type(1 / self.shards)
        ends = np.cumsum([v.size for v in values.values()])
        return {
            n: part.reshape(v.shape) for (n, v), part in zip(values.items(), np.split(flat, ends[:-1]), strict=True)
        }

    def _update(self, own: dict[Parameter, AnyBuffer], reached: set[str], norm: float) -> None:
        """One step of the optimiser from these gradients, whose norm on all ranks is given."""
        session, kernels = self.session, self.session.tape.kernels
        gradients = session.gradients
        missed = frozenset(p for p in own if p.name not in reached)
        fresh: list[Change] = [(gradients, "_by_parameter", own), (gradients, "_unreached", missed)]
        set_and_call(fresh, [])
        if self.max_norm is not None:
            upload = session.device.exact if session.device.name == "spec" else session.device.buffer
            given = upload(np.array([norm], getattr(session.device, "dtype", np.float32)))
            packed = kernels.pack([g.buffer for g in own.values()])
            kernels.clip_scale(packed, given, max_norm=float(self.max_norm), out=packed)
            given.release()
        counts = [(part, part.steps + bool(names & reached)) for part, names in self._groups]
        self.optimizer.step()
        for part, steps in counts:  # a group counts its steps on all ranks alike
            part.steps = steps
        session.reset()

    # ---- checkpoints

    def save(self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> None:
        """Writes a checkpoint that does not depend on the number of ranks.

        It is that of :func:`tlrt.checkpoint.save` for the session and one optimiser of all parameters. Rank 0 writes
        it; the others wait.

        Parameters
        ----------
        path : path
            The file.
        extra : mapping, optional
            Anything JSON holds, which :meth:`load` returns.

        Raises
        ------
        GroupError
            Where rank 0 cannot write it.
        """
        self.session.counter = (self._steps * self.shards) << DRAWS
        whole = _Whole(self)
        trouble = ""
        if self.group.rank == 0:
            try:
                checkpoint.save(path, self.session, whole, {**(extra or {}), "shards": self.shards})  # type: ignore[arg-type]
            except Exception as error:
                if self.group.size == 1:
                    raise
                trouble = f"{type(error).__name__}: {error}"
        if trouble := next(filter(None, self.group.gather(trouble)), ""):
            raise GroupError(f"save: {trouble} (on rank 0)", op="save")

    def load(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Goes on from a checkpoint, whatever number of ranks wrote it.

        Parameters
        ----------
        path : path
            A file that :meth:`save` wrote.

        Returns
        -------
        dict
            The `extra` of :meth:`save`.

        Raises
        ------
        CheckpointError
            As :func:`tlrt.checkpoint.load`, and for another number of shards.
        GroupError
            Where ranks read different files.
        """
        extra = checkpoint.peek(path)
        if extra.pop("shards", None) != self.shards:
            got = "a run of another number of shards, or of none"
            raise refusal(checkpoint.CheckpointError, "load", path, got, f"one of {self.shards} shards")
        checkpoint.load(path, self.session, _Whole(self, reading=True))  # type: ignore[arg-type]
        self._steps = (self.session.counter >> DRAWS) // self.shards
        self._agree("load")
        return extra

    def __repr__(self) -> str:
        return f"DataParallel({self.shards} shards on {self.group}, {self.optimizer}, steps={self._steps})"


class _Sums:
    """Adds what the shards of a rank have by the balanced binary tree, as they come: `add(left, right)` gives the sum of two."""

    def __init__(self, add: Callable[[Any, Any], Any]) -> None:
        #: numbers of neighbouring shards, and what they add up to
        self.parts: list[tuple[int, Any]] = []
        self._add = add

    def push(self, value: Any) -> None:
        """The next shard's."""
        self.parts.append((1, value))
        while len(self.parts) > 1 and self.parts[-1][0] == self.parts[-2][0]:
            (count, left), (_, right) = self.parts[-2:]
            self.parts[-2:] = [(2 * count, self._add(left, right))]

    def total(self) -> Any:
        """The sum, of a power of two of shards."""
        ((_, value),) = self.parts
        return value


def _add_arrays(left: dict[str, npt.NDArray[Any]], right: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    for name, value in left.items():
        value += right[name]
    return left


class _Gradients(Observer):
    """The gradients of a step: those of a rank's shards are added, and as soon as the last shard's are known go to the exchange,
    bucket by bucket. A parameter's are known when backward has gone past its leaf."""

    def __init__(self, training: DataParallel) -> None:
        self._session, self._exchange = training.session, training._exchange
        self._trained, self._buckets = training._trained, training._layout.buckets
        self._overlap = training.overlap and training.group.size > 1
        self._exchange.takes_norms = training.max_norm is not None
        self._kernels = training.session.tape.kernels
        self._sums = _Sums(self._add)
        self._places = {p: i for i, p in enumerate(self._trained)}
        #: the sums over all shards of this rank, by the places of their parameters
        self._known: dict[int, Any] = {}
        self._taken: set[int] = set()
        self._started = 0
        self._is_last = False
        #: parameters by their leaves on the tape, while backward runs
        self._leaves: dict[int, Parameter] = {}

    def _add(self, left: list[Any], right: list[Any]) -> list[Any]:
        for a, b in zip(left, right, strict=True):
            self._kernels.add(a, b, out=a)
            b.release()
        return left

    @contextmanager
    def during_backward(self, is_last: bool) -> Iterator[None]:
        """The context of a shard's backward pass."""
        self._is_last, device = is_last, self._session.device
        if not (is_last and self._overlap) or device._observers:
            yield
            return
        self._leaves = {leaf[0].id: p for p, leaf in self._session._leaves.items() if p in self._places}
        device.observe(self)
        try:
            yield
        finally:
            device.ignore(self)

    def gradient_complete(self, tape: Any, place: int, node: Any, gradient: Any) -> None:
        if tape is self._session.tape and (p := self._leaves.get(place)) is not None:
            self._take(self._places[p], gradient.buffer.share())

    def add_shard(self, found: Mapping[Parameter, AnyBuffer]) -> None:
        """The gradients of a shard whose backward pass is over."""
        if not self._is_last:
            self._sums.push([found[p].buffer for p in self._trained])
            return
        for p in reversed(self._trained):
            if (place := self._places[p]) in self._taken:
                found[p].release()
            else:
                self._take(place, found[p].buffer)

    def _take(self, place: int, last: Any) -> None:
        """The last shard's gradient of a parameter, whose handle it takes over."""
        for _, earlier in reversed(self._sums.parts):
            self._kernels.add(earlier[place], last, out=earlier[place])
            last.release()
            last = earlier[place]
        self._known[place] = last
        self._taken.add(place)
        while self._started < len(self._buckets):
            bucket = self._buckets[self._started]
            if any(i not in self._known for i in bucket.places):
                break
            self._started += 1
            self._exchange.start(bucket, [self._known.pop(i) for i in bucket.places])

    def finish(self) -> dict[Parameter, AnyBuffer]:
        """The mean gradients of this rank's parameters over all shards."""
        own = {self._trained[i]: g for i, g in sorted(self._exchange.finish().items())}
        return {p: AnyBuffer.of(p.shape, g) for p, g in own.items()}

    def stop(self) -> None:
        """Gives back what a step that failed leaves."""
        self._exchange.stop()
        for buffer in (*self._known.values(), *(b for _, part in self._sums.parts for b in part)):
            buffer.release()


class _Moving:
    """The parameters that are not trained and that a loss changes, as running statistics are. Every shard begins with those of
    the step, and the step ends with the mean of what the shards make of them."""

    def __init__(self, session: Session, names: list[str] | None) -> None:
        self._parameters = {n: p for n, p in session.parameters.items() if not p.requires_grad}
        self._versions = {n: p._version for n, p in self._parameters.items()}
        self._start = {n: self._parameters[n].numpy() for n in (self._parameters if names is None else names)}
        self._known = names

    @property
    def names(self) -> list[str]:
        """Those that changed."""
        return self._known or []

    def take(self) -> dict[str, npt.NDArray[Any]]:
        """What the shard has made of them; they are as at the start again."""
        changed = [n for n, p in self._parameters.items() if p._version != self._versions[n]]
        if self._known is None:
            self._known = changed
        if changed != self._known:
            got = f"a shard that changes {changed or 'none'} of the frozen parameters"
            raise refusal(ArgumentError, "DataParallel.step", "loss", got, f"{self._known or 'none'}, as others do")
        found = {n: self._parameters[n].numpy() for n in changed}
        for n in changed:
            self._parameters[n].set(self._start[n])
            self._versions[n] = self._parameters[n]._version
        return found

    def restore(self) -> None:
        """After a shard that failed, they are as at the start, too."""
        for n, value in self._start.items():
            if self._parameters[n]._version != self._versions[n]:
                self._parameters[n].set(value)


class _Whole:
    """The optimisers of all ranks as one, for a checkpoint."""

    def __init__(self, training: DataParallel, reading: bool = False) -> None:
        self.session, self._training = training.session, training
        if not reading:
            self._settings, self._arrays = self._collect()

    def state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        return self._settings, self._arrays

    def _collect(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        t = self._training
        settings, arrays = t.optimizer.state()
        names = list(arrays)
        every = t.group.gather([settings, names])
        dtype = getattr(t.session.device, "dtype", np.float32)
        parts = t.group.gather_arrays(list(arrays.values()), dtype)
        found = {n: a for (_, own), part in zip(every, parts, strict=True) for n, a in zip(own, part, strict=True)}
        order = {p.name: i for i, p in enumerate(t._trained)}
        return _joined([s for s, _ in every], order), found

    def _loaded(self, settings: Mapping[str, Any], arrays: Mapping[str, Any]) -> list[Change]:
        optimizer = self._training.optimizer
        return optimizer._loaded(_restricted(settings, optimizer), arrays)

    def _buffers(self) -> list[Any]:
        return self._training.optimizer._buffers()


def _joined(settings: Sequence[Mapping[str, Any]], order: Mapping[str, int]) -> dict[str, Any]:
    """The settings of one optimiser of all parameters. Groups stand in the order of their first parameters."""
    whole = dict(settings[0])
    if "groups" not in whole:
        whole["parameters"] = sorted((n for s in settings for n in s["parameters"]), key=order.__getitem__)
        return whole
    same: dict[str, list[Mapping[str, Any]]] = {}
    for group in (g for s in settings for g in s["groups"]):
        key = json.dumps({k: v for k, v in group.items() if k != "parameters"})
        same.setdefault(key, []).append(group)
    whole["groups"] = sorted((_joined(g, order) for g in same.values()), key=lambda g: order[g["parameters"][0]])
    whole["parameters"] = [n for group in whole["groups"] for n in group["parameters"]]
    whole["steps"] = max(group["steps"] for group in whole["groups"])
    return whole


def _restricted(settings: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """The settings of this optimiser, which has some of the parameters."""
    own, part = {p.name for p in optimizer.parameters}, dict(settings)
    if isinstance(names := part.get("parameters"), list):
        part["parameters"] = [n for n in names if n in own]
    if isinstance(groups := part.get("groups"), list):
        parts = [_restricted(g, optimizer) for g in groups if isinstance(g, Mapping)]
        part["groups"] = [g for g in parts if g.get("parameters")]
    return part


def _text(optimizer: Optimizer) -> str:
    return f"{type(optimizer).__name__} {optimizer._settings()}"
