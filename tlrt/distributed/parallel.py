"""Training on the shards of a batch, spread over ranks."""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt import checkpoint
from tlrt._binding.arguments import integer, is_number
from tlrt._binding.together import Change, set_and_call
from tlrt._operations.shaped import AnyBuffer
from tlrt.distributed import tree
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


def add_pairs(values: Sequence[float]) -> float:
    """The sum in float64 by the balanced binary tree, of a power of two of values."""
    while len(values) > 1:
        values = [values[i] + values[i + 1] for i in range(0, len(values), 2)]
    return values[0]


class DataParallel:
    """Training in which a batch has `shards` shards of equal size, a power of two, and a rank computes shards/ranks of them.

    The gradient of a step is Σ gradients of the shards / shards, the sum by a balanced binary tree over the shards,
    elementwise in float32; so is the loss, in float64. `make_optimizer` gets the parameters that this rank updates and gives
    their optimiser: each parameter is updated by one rank, which alone has its states (as in ZeRO, stage 1), and sent to the
    others. Random draws depend on the step and the shard. Running statistics become the mean of what each shard makes of
    them. `max_norm` is for the global norm, √Σ g² over the norms of the parameters, added in float64 and rounded once, by
    which gradients are scaled as by :meth:`tlrt.Session.clip_grad_norm`.

    All ranks make the same session, parameters and optimiser. What differs is refused on all ranks by
    :class:`tlrt.distributed.GroupError`: another number of shards, mode, parameter or hyperparameter, and, in a step, inputs of
    another shape in one of the shards.

    Source of stage 1: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020."""

    def __init__(
        self, session: Session, make_optimizer: Callable[[list[Parameter]], Optimizer], group: Group | None = None, *,
        shards: int, max_norm: float | None = None,
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
        lengths = [math.prod(p.shape) for p in self._trained]
        #: which of the trained parameters each part of the vector of all has, and where the parts begin in it
        self._parts = tree.divide(lengths, size)
        self._bounds = [sum(lengths[:k]) for k in self._parts]
        own = tree.place(rank, size)
        self._own = self._trained[self._parts[own] : self._parts[own + 1]]
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

    @property
    def steps(self) -> int:
        """Steps taken, those before a checkpoint included."""
        return self._steps

    def _agree(self, op: str) -> None:
        """Raises GroupError unless all ranks train the same."""
        digest = hashlib.sha256()
        for p in self.session.parameters.values():
            digest.update(np.ascontiguousarray(p.value).tobytes())
        named = [(p.name, p.shape, p.requires_grad) for p in self.session.parameters.values()]
        self.group.agree(op, {
            "shards": self.shards, "math": getattr(self.session.device, "math", "exact"), "seed": self.session.seed,
            "max_norm": self.max_norm, "optimizer": self._settings(), "steps": self._steps,
            "parameters": hashlib.sha256(repr(named).encode()).hexdigest()[:16],
            "values of the parameters": digest.hexdigest()[:16],
        })  # fmt: skip

    def _settings(self) -> str:
        return f"{type(self.optimizer).__name__} {self.optimizer._settings()}"

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
        """Trains on one batch; returns the mean of the shards' losses. Calls loss(shard) for each shard of this rank: the
        session's loss of that shard, its mean over the examples. Resets the session. Raises GroupError where the shapes of
        inputs or the hyperparameters are not those of the other ranks."""
        session, count = self.session, self.shards // self.group.size
        sums: list[_Sum] = []
        losses, inputs, reached = [], [], set()
        moving = _Moving(session, self._moving)
        try:
            for shard in range(self.group.rank * count, (self.group.rank + 1) * count):
                session.counter = (self._steps * self.shards + shard) << DRAWS
                found = loss(shard)
                if not isinstance(found, TensorRef):
                    raise refusal(ArgumentTypeError, "DataParallel.step", "loss", type(found).__name__, "a TensorRef")
                session.backward(found)
                losses.append(float(found.item()))
                inputs.append(self._inputs())
                gradients, missed = self._take()
                reached |= {p.name for p in gradients if p not in missed}
                session.reset()
                sums.append(_Sum(1, gradients, moving.take()))
                while len(sums) > 1 and sums[-1].shards == sums[-2].shards:
                    right = sums.pop()
                    sums[-1].add(right, session.tape.kernels)
            self._moving = moving.names
            mean, everywhere = self._compare(losses, inputs, sorted(reached))
            statistics = self._mean_on_all(sums[0].statistics)
            own = self._reduce(sums.pop().gradients)
        finally:
            for left in sums:
                _release(left.gradients)
        self._update(own, everywhere)
        self._share()
        for name, value in statistics.items():
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

    def _compare(self, losses: list[float], inputs: list[int], reached: list[str]) -> tuple[float, set[str]]:
        """The mean of all losses, and the names of the parameters that one of them reaches."""
        every = self.group.gather([losses, inputs, reached, self._settings(), self._moving])
        for place, what in ((3, "optimizer"), (4, "statistics")):
            for rank, found in enumerate(every):
                if found[place] != every[0][place]:
                    got, expected = f"{found[place]} on rank {rank}", f"{every[0][place]}, as on rank 0"
                    raise refusal(GroupError, "DataParallel.step", what, got, expected)
        shapes = [x for _, given, *_ in every for x in given]
        if len(set(shapes)) > 1:
            shard = next(i for i, x in enumerate(shapes) if x != shapes[0])
            rank = shard // (self.shards // self.group.size)
            got = f"inputs of other shapes in shard {shard}, on rank {rank}"
            raise refusal(GroupError, "DataParallel.step", "loss", got, "those of shard 0: all shards are of one size")
        mean = add_pairs([x for found, *_ in every for x in found]) / self.shards
        return mean, {name for _, _, names, *_ in every for name in names}

    def _mean_on_all(self, values: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """The means over all shards of arrays of which this rank has the sums over its own, on every rank."""
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

    def _reduce(self, gradients: dict[Parameter, AnyBuffer]) -> dict[Parameter, AnyBuffer]:
        """The mean gradients of this rank's parameters, over all shards."""
        kernels, device = self.session.tape.kernels, self.session.device
        if self.group.size > 1:
            flat = np.concatenate([gradients[p].buffer.numpy((math.prod(p.shape),)) for p in self._trained])
            _release(gradients)
            part = tree.reduce_scatter(flat, self._bounds, self.group.rank, self.group.size, self.group.exchange)
            upload, at, gradients = device.exact if device.name == "spec" else device.buffer, 0, {}
            for p in self._own:
                n = math.prod(p.shape)
                gradients[p] = AnyBuffer.of(p.shape, upload(part[at : at + n]))
                at += n
        for g in gradients.values():
            kernels.scale(g.buffer, 1 / self.shards, out=g.buffer)  # exact: a power of two
        return gradients

    def _update(self, own: dict[Parameter, AnyBuffer], reached: set[str]) -> None:
        """One step of the optimiser from these gradients."""
        session, kernels = self.session, self.session.tape.kernels
        gradients = session.gradients
        missed = frozenset(p for p in own if p.name not in reached)
        fresh: list[Change] = [(gradients, "_by_parameter", own), (gradients, "_unreached", missed)]
        set_and_call(fresh, [])
        if self.max_norm is not None:
            norms = []
            for g in own.values():
                norm = kernels.global_norm(kernels.pack([g.buffer]))
                norms.append(float(norm.numpy(())))
                norm.release()
            every = [x for found in self.group.gather([x.hex() for x in norms]) for x in found]
            total = math.sqrt(math.fsum(x * x for x in map(float.fromhex, every)))
            upload = session.device.exact if session.device.name == "spec" else session.device.buffer
            norm = upload(np.array([total], getattr(session.device, "dtype", np.float32)))
            packed = kernels.pack([g.buffer for g in own.values()])
            kernels.clip_scale(packed, norm, max_norm=float(self.max_norm), out=packed)
            norm.release()
        counts = [(part, part.steps + bool(names & reached)) for part, names in self._groups]
        self.optimizer.step()
        for part, steps in counts:  # a group counts its steps on all ranks alike
            part.steps = steps
        session.reset()

    def _share(self) -> None:
        """Sends the parameters that this rank updated, and takes over the others'."""
        if self.group.size == 1:
            return
        flat = np.empty(self._bounds[-1], self._own[0].value.dtype)
        at = self._bounds[tree.place(self.group.rank, self.group.size)]
        for p in self._own:
            flat[at : at + p.value.size] = p.value.reshape(-1)
            at += p.value.size
        tree.all_gather(flat, self._bounds, self.group.rank, self.group.size, self.group.exchange)
        at, own = 0, set(self._own)
        for p in self._trained:
            n = math.prod(p.shape)
            if p not in own:
                p.set(flat[at : at + n].reshape(p.shape))
            at += n

    # ---- checkpoints

    def save(self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> None:
        """Writes a checkpoint, as :func:`tlrt.checkpoint.save` of the session and one optimiser of all parameters does: the file
        does not depend on the number of ranks. Rank 0 writes it; the others wait."""
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
        """Goes on from a checkpoint, whatever number of ranks wrote it; returns its `extra`. Raises what
        :func:`tlrt.checkpoint.load` raises, CheckpointError also for another number of shards, GroupError where ranks read
        different files."""
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


@dataclass
class _Sum:
    """What neighbouring shards add up to."""

    shards: int
    gradients: dict[Parameter, AnyBuffer]
    statistics: dict[str, npt.NDArray[Any]]

    def add(self, right: _Sum, kernels: Any) -> None:
        """Adds those of as many shards, which follow."""
        for p, g in self.gradients.items():
            kernels.add(g.buffer, right.gradients[p].buffer, out=g.buffer)
        _release(right.gradients)
        for name, value in self.statistics.items():
            value += right.statistics[name]
        self.shards += right.shards


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
    saved = set(settings.get("parameters", []))
    part = {**settings, "parameters": [p.name for p in optimizer.parameters if p.name in saved]}
    if optimizer.groups and isinstance(groups := settings.get("groups"), list):
        first = [g.parameters[0].name for g in optimizer.groups]
        found: list[Any] = [next((g for g in groups if name in g.get("parameters", [])), {}) for name in first]
        part["groups"] = [_restricted(g, own) for g, own in zip(found, optimizer.groups, strict=True)]
    return part


def _release(gradients: Mapping[Parameter, AnyBuffer]) -> None:
    for g in gradients.values():
        g.release()
