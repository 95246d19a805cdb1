"""Groups of ranks: the same bits for every number of them, by TCP and by MPI, checkpoints that do not depend on it, and an error
on every rank where one fails or differs."""

import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex

import tlrt
from tests.runtime import distributed_program
from tests.runtime.rank_processes import MPIRUN, TIMEOUT, WRONG, fail, run, weights, weights_alone
from tests.runtime.thread_group import run_ranks
from tlrt import checkpoint, distributed, errors, nn, optim
from tlrt.distributed import buckets, environment, launch, tree
from tlrt.distributed.environment import MPI, SOCKETS
from tlrt.distributed.sockets import SocketGroup

pytestmark = pytest.mark.usefixtures("closed_devices")

# ---- the tree


def add_balanced(leaves: Sequence[np.ndarray]) -> np.ndarray:
    """The sum by the balanced binary tree, as it is defined."""
    if len(leaves) == 1:
        return leaves[0]
    half = len(leaves) // 2
    return add_balanced(leaves[:half]) + add_balanced(leaves[half:])


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16, 32, 64])
def test_every_number_of_ranks_adds_in_the_trees_order(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    leaves = rng.standard_normal((64, 301)).astype(np.float32) * 10.0 ** rng.integers(-6, 6, (64, 1)).astype(np.float32)
    expected = add_balanced(list(leaves))
    assert expected.tobytes() != leaves.sum(0).tobytes()
    bounds = np.sort([0, 301, *rng.integers(0, 302, ranks - 1)]).tolist()
    mail: dict[tuple[int, int], Queue[Any]] = {(a, b): Queue() for a in range(ranks) for b in range(ranks)}
    sent = np.zeros(ranks, np.int64)

    def work(rank: int) -> np.ndarray:
        def exchange(partner: int, out: np.ndarray, into: np.ndarray) -> None:
            sent[rank] += out.size
            mail[rank, partner].put(out.copy())
            into[...] = mail[partner, rank].get(timeout=20)

        own = 64 // ranks
        x = add_balanced(list(leaves[rank * own : (rank + 1) * own])).copy()
        part = tree.reduce_scatter(x, bounds, rank, ranks, exchange).copy()
        whole, place = np.zeros_like(x), tree.place(rank, ranks)
        whole[bounds[place] : bounds[place + 1]] = part
        tree.all_gather(whole, bounds, rank, ranks, exchange)
        return whole

    with ThreadPoolExecutor(ranks) as pool:
        assert all(x.tobytes() == expected.tobytes() for x in pool.map(work, range(ranks)))
    assert sent.sum() == 2 * (ranks - 1) * 301  # as a ring sends


def test_parts_are_balanced_and_not_empty() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        lengths = rng.integers(0, 100, rng.integers(1, 40)).tolist()
        parts, most = int(rng.integers(1, len(lengths) + 1)), int(rng.integers(1, 500))
        layout = buckets.divide(lengths, parts, most)
        loads = [sum(lengths[i] for i in layout.own(k)) for k in range(parts)]
        assert all(layout.own(k) for k in range(parts)) and max(loads) <= sum(lengths) / parts + max(lengths)
        assert sorted(i for b in layout.buckets for i in b.places) == list(range(len(lengths)))
        for bucket in (*layout.buckets, layout.whole):
            for k in range(parts):
                own = [lengths[i] for i in bucket.places if layout.owners[i] == k]
                assert bucket.bounds[k + 1] - bucket.bounds[k] == sum(own)
            assert [layout.owners[i] for i in bucket.places] == sorted(layout.owners[i] for i in bucket.places)
        assert all(sum(lengths[i] for i in b.places) >= most for b in layout.buckets[:-1])
    assert buckets.divide([10] * 8, 4, 20).buckets[0].places == (6, 7)
    layout = buckets.divide([1000, 1, 1, 1], 2, 10**9)
    assert [layout.own(k) for k in (0, 1)] == [[0], [1, 2, 3]]


# ---- training


@pytest.mark.skipif(MPIRUN is None, reason="no mpirun")
def test_weights_do_not_depend_on_the_number_of_ranks_that_mpi_starts() -> None:
    assert weights(run("mpirun", 4), 4) == weights_alone()


def test_so_in_the_fast_mode() -> None:
    given = distributed_program.arguments(["--math", "fast"])
    assert weights_alone("--math", "fast") != weights_alone()
    assert set(run_ranks(2, lambda group: distributed_program.train(group, given))) == {weights_alone("--math", "fast")}


@pytest.mark.cuda
def test_weights_are_those_of_a_gpu() -> None:
    assert weights(run("launch", 1, "--device", "cuda")) == weights_alone()


def test_it_is_gradient_accumulation() -> None:
    """The mean gradient, clipped, is that of the whole batch, and on the specification nothing is rounded to float32."""
    x, y = np.random.default_rng(0).standard_normal((2, 8, 4, 3)).astype(np.float32)

    def train(group: distributed.Group | None = None) -> list[float]:
        with tlrt.Session("spec") as s:
            w, b = s.param(np.eye(3), "w"), s.param(np.ones(3), "b")
            loss = lambda x, y: s.mse_loss(s.linear(w, b, s.const(x)), s.const(y))
            if group is None:
                mean = loss(x.reshape(32, 3), y.reshape(32, 3))
                s.backward(mean), s.clip_grad_norm(0.5), optim.SGD([w, b], lr=0.1).step()
                return [mean.item(), *w.value.flat, *b.value]
            training = distributed.DataParallel(s, lambda p: optim.SGD(p, lr=0.1), group, shards=8, max_norm=0.5)
            mean = training.step(lambda k: loss(x[k], y[k]))
            assert training.steps == 1 and s.counter == 8 << 28
            return [mean, *w.value.flat, *b.value]

    assert np.allclose(run_ranks(1, train) + run_ranks(2, train), train(), rtol=1e-12, atol=1e-15)


def test_a_parameter_that_a_shard_of_another_rank_reaches_is_updated() -> None:
    """The rank that updates it computes a shard that does not reach it."""

    def train(group: distributed.Group) -> Any:
        with tlrt.Session("cpu", math="reproducible") as s:
            ws = [s.param([1.0, 1.0], "a"), s.param([1.0, 1.0], "b")]
            training = distributed.DataParallel(s, lambda p: optim.SGD(p, lr=0.5), group, shards=2)
            for _ in range(2):
                training.step(lambda shard: s.reduce_sum(ws[1 - shard]))
            return [w.value.tolist() for w in ws], training.optimizer.steps

    assert run_ranks(2, train) == 2 * [([[0.5, 0.5], [0.5, 0.5]], 2)]


def test_a_group_of_parameters_counts_its_steps_on_all_ranks_alike(tmp_path: Path) -> None:
    """A step reaches parameters of one group on one of the ranks, or of both groups on different ranks. The file of all ranks is
    that of one optimiser of all parameters."""

    def train(group: distributed.Group, load: bool = False) -> Any:
        counts = []
        with tlrt.Session("cpu", math="reproducible") as s:
            ws = {name: s.param([1.0, 2.0], name) for name in "dbca"}

            def make(own: Sequence[tlrt.Parameter]) -> optim.Optimizer:
                members = [[p for p in own if p.name in names] for names in ("ad", "bc")]
                return optim.Adam([{"params": members[0], "lr": 0.5}, {"params": members[1], "lr": 0.25}])

            training = distributed.DataParallel(s, make, group, shards=2)
            if load:
                training.load(tmp_path / "whole")
                counts.append([part.steps for part in training.optimizer.groups])
            for reached in () if load else ("ab", "d", "d", "ac"):
                training.step(lambda _, names=reached: reduce(s.add, [s.sum(s.square(ws[n])) for n in names]))
                counts.append([part.steps for part in training.optimizer.groups])
            training.save(tmp_path / f"{'again of' if load else 'of'} {group.size}")
            if group.size == 1:
                checkpoint.save(tmp_path / "whole", s, training.optimizer, {"shards": 2})
            return counts, [w.value.tolist() for w in ws.values()]

    (alone,) = run_ranks(1, train)
    assert alone[0] == [[1, 1], [2, 1], [3, 1], [4, 2]]
    assert run_ranks(2, train) == [alone, alone]
    assert len({(tmp_path / name).read_bytes() for name in ("of 1", "of 2", "whole")}) == 1
    assert run_ranks(2, lambda group: train(group, load=True)) == [([[4, 2]], alone[1])] * 2


@pytest.mark.parametrize("groups", [
    [{"params": "a"}, {"params": "b"}, {"params": "cd"}], [{"params": "ca"}, {"params": "db", "weight_decay": 0.0}],
    [{"params": "cb", "weight_decay": 0.0}, {"params": "ad", "weight_decay": 0.0}], "dbca",
], ids=str)  # fmt: skip
def test_an_optimiser_of_all_parameters_loads_the_file_of_all_ranks(groups: Any, tmp_path: Path) -> None:
    """Its groups may have equal hyperparameters, and parameters may stand in any order."""

    def begin() -> tuple[tlrt.Session, Callable[..., optim.Optimizer]]:
        s = tlrt.Session("cpu", math="reproducible")
        ws = {name: s.param([1.0, 2.0], name) for name in "abcd"}

        def make(own: Sequence[tlrt.Parameter]) -> optim.Optimizer:
            chosen = [
                {**g, "params": [ws[n] for n in g["params"] if ws[n] in own]} for g in groups if isinstance(g, dict)
            ]
            return optim.AdamW([g for g in chosen if g["params"]] or [ws[n] for n in groups if ws[n] in own], lr=0.5)

        return s, make

    def step(s: tlrt.Session) -> tlrt.TensorRef:
        return reduce(s.add, [s.sum(s.square(s.parameters[n])) for n in "abcd"])

    def train(group: distributed.Group) -> list[list[float]]:
        s, make = begin()
        with s:
            training = distributed.DataParallel(s, make, group, shards=2)
            training.step(lambda _: step(s))
            training.save(tmp_path / "file")
            training.step(lambda _: step(s))
            return [w.value.tolist() for w in s.parameters()]

    after, _ = run_ranks(2, train)
    s, make = begin()
    with s:
        adam = make(s.parameters())
        assert checkpoint.load(tmp_path / "file", s, adam) == {"shards": 2} and adam.steps == 1
        s.backward(step(s))
        adam.step()
        assert [w.value.tolist() for w in s.parameters()] == after


def test_a_group_that_one_rank_changes_is_refused() -> None:
    def work(group: distributed.Group) -> str:
        with tlrt.Session("cpu", math="reproducible") as s:
            ws = [s.param([1.0, 2.0], name) for name in "abcd"]
            training = distributed.DataParallel(
                s, lambda own: optim.SGD([{"params": own[:1]}, {"params": own[1:], "lr": 0.25}]), group, shards=2
            )
            training.step(lambda _: s.sum(s.square(ws[0])))
            training.optimizer.groups[1].lr += group.rank
            with pytest.raises(distributed.GroupError) as found:
                training.step(lambda _: s.sum(s.square(ws[0])))
            return str(found.value)

    said = "DataParallel.step: optimizer: group of c: got SGD {'lr': 1.25"
    assert all(text.startswith(said) and "expected SGD {'lr': 0.25" in text for text in run_ranks(2, work))


def test_the_norm_of_all_gradients_is_added_in_float64() -> None:
    """In float32 the square of a small norm, 2^-24, vanishes beside 1; 64 of them do not."""
    slopes = [1.0, *64 * [2.0**-12]]
    norm = np.float32(np.sqrt(1 + 64 * 2.0**-24))
    assert norm > 1

    def train(group: distributed.Group) -> Any:
        with tlrt.Session("cpu", math="reproducible") as s:
            ws = [s.param([0.0], f"w{i}") for i in range(len(slopes))]
            training = distributed.DataParallel(s, lambda p: optim.SGD(p, lr=1.0), group, shards=2, max_norm=0.75)
            training.step(lambda _: reduce(s.add, [s.mul(w, s.const([x])) for w, x in zip(ws, slopes, strict=True)]))
            return [float(w.value[0]) for w in ws]

    with tlrt.device("cpu") as cpu:
        clipped = tlrt.kernels.clip_scale([cpu.buffer([x]) for x in slopes], cpu.buffer([norm]), max_norm=0.75)
        expected = [-float(x.numpy()[0]) for x in clipped]
    assert run_ranks(1, train) == [expected]
    assert run_ranks(2, train) == [expected, expected]


def test_no_two_shards_of_any_steps_draw_the_same_numbers() -> None:
    with tlrt.Session("cpu", math="reproducible") as s:
        w, drawn = s.param([1.0, 1.0, 1.0], "w"), []
        training = distributed.DataParallel(s, lambda p: optim.SGD(p, lr=0.5), shards=4)

        def loss(shard: int) -> Any:
            uniform = s.rand_uniform(3)
            drawn.append(uniform.numpy().tobytes())
            return s.reduce_sum(s.mul(w, uniform))

        for _ in range(3):
            training.step(loss)
    assert len(set(drawn)) == 12


@pytest.mark.parametrize("moving", [(0, 1), (), (0,), (1,)])
def test_statistics_move_in_every_shard_and_step_or_in_none(moving: tuple[int, ...]) -> None:
    """Each shard begins with the values of the step, which ends with the mean of what shards make of them, exactly."""
    with tlrt.Session("cpu") as s:
        w, mean = s.param([1.0], "w"), s.param([8.0], "mean", requires_grad=False)
        training = distributed.DataParallel(s, lambda p: optim.SGD(p, lr=0.5), shards=2)

        def loss(shard: int) -> Any:
            if shard in moving:
                mean.set(mean.value + np.float32(2 * shard + 1))
            return s.reduce_sum(s.square(w))

        for step in range(2):
            if len(moving) == 1:
                assert_raises_regex(errors.ArgumentError, "a shard that changes", training.step, loss)
                return
            training.step(loss)
            assert mean.value.tolist() == [8.0 + len(moving) * (step + 1)]
        moving = () if moving else (0, 1)
        with pytest.raises(errors.ArgumentError, match="a shard that changes"):
            training.step(loss)  # in every step or in none


def test_a_step_that_failed_can_be_done_again() -> None:
    """Whichever shard failed: nothing is left of it, and the step has the bits of one that did not fail."""
    found = []
    for fails in (-1, 0, 1):
        with tlrt.Session("cpu", seed=1) as s:
            norm, before = nn.BatchNorm(s, 2, name="norm"), s.counter
            training = distributed.DataParallel(s, lambda p: optim.SGD(p, lr=0.5), shards=2)

            def loss(shard: int, fails: int = -1, s: Any = s, norm: Any = norm) -> Any:
                y = norm(s.const(np.eye(2) * (shard + 1)), training=True) + s.rand_normal((2, 2))
                return y if shard == fails else s.mean(s.square(y))

            if fails >= 0:
                assert_raises_regex(errors.ArgumentError, "no scalar", training.step, partial(loss, fails=fails))
                assert (s.counter, s.tape.size) == (before, 0)
            training.step(loss)
            found.append([p.value.tobytes() for p in s.parameters()])
    assert found[0] == found[1] == found[2]


def test_a_parameter_that_no_shard_reaches_stays() -> None:
    with tlrt.Session("cpu") as s:
        used, left = s.param(np.ones(3), "used"), s.param(np.ones(3), "left")
        training = distributed.DataParallel(s, lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.5), shards=2)
        training.step(lambda k: s.sum(s.use(used)))
        assert (left.numpy() == 1).all() and (used.numpy() != 1).all()
        for first, last in ((used, left), (left, used)):  # one of the shards is enough
            before = [p.numpy().copy() for p in (used, left)]
            training.step(lambda k, pair=(first, last): s.sum(s.use(pair[k])))
            assert all((p.numpy() != b).all() for p, b in zip((used, left), before, strict=True))


# ---- checkpoints


def test_a_run_that_was_killed_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    path = str(tmp_path / "c.safetensors")
    found = run("launch", 4, "--save", path, "--every", "2", "--fault", "kill")
    assert found.returncode == 128 + 9
    assert weights_alone("--load", path) == weights(run("launch", 2, "--load", path), 2) == weights_alone()


@pytest.mark.parametrize("options", [(), ("--groups",)])
def test_weights_and_files_do_not_depend_on_the_number_of_ranks(options: tuple[str, ...], tmp_path: Path) -> None:
    lines, files = set(), set()
    for ranks in (1, 2, 4):
        given = distributed_program.arguments(["--save", str(tmp_path / "c"), *options])
        lines |= set(run_ranks(ranks, lambda group, given=given: distributed_program.train(group, given)))
        files.add((tmp_path / "c").read_bytes())
    assert lines == {weights_alone(*options)} and len(files) == 1
    assert (lines == {weights_alone()}) is (not options)


def test_a_file_is_an_ordinary_checkpoint_and_is_held_to_its_shards(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"

    def build(s: tlrt.Session, shards: int) -> tuple[Any, Any]:
        w = s.param(np.ones(3), "w")
        return w, distributed.DataParallel(s, lambda p: optim.AdamW(p, lr=0.1), shards=shards)

    with tlrt.Session("cpu") as s:
        w, training = build(s, 4)
        training.step(lambda k: s.sum(s.use(w)))
        training.save(path, {"epoch": 3})
        saved = w.numpy()
        s.rand_uniform(2)  # draws between two steps are no part of the run
        training.save(tmp_path / "again", {"epoch": 3})
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    with tlrt.Session("cpu") as s:
        w = s.param(np.zeros(3), "w")
        optimizer = optim.AdamW([w])
        assert checkpoint.load(path, s, optimizer) == {"epoch": 3, "shards": 4}
        assert (w.numpy() == saved).all() and optimizer.steps == 1
    with tlrt.Session("cpu") as s:
        _, training = build(s, 8)
        assert_raises_regex(checkpoint.CheckpointError, "another number of shards", training.load, path)
    with tlrt.Session("cpu") as s:
        _, training = build(s, 4)
        assert training.load(path) == {"epoch": 3} and training.steps == 1


def test_ranks_that_read_different_files_say_so(tmp_path: Path) -> None:
    """Files of one run, of two of its steps."""
    paths = [tmp_path / name for name in ("first", "second")]

    def build(s: tlrt.Session, group: distributed.Group) -> tuple[Any, distributed.DataParallel]:
        ws = [s.param([1.0, 2.0], name) for name in "ab"]
        return ws, distributed.DataParallel(s, lambda p: optim.SGD(p, lr=0.5), group, shards=2)

    def write(group: distributed.Group) -> None:
        with tlrt.Session("cpu", math="reproducible") as s:
            ws, training = build(s, group)
            for path in paths:
                training.step(lambda _: s.sum(s.mul(*ws)))
                training.save(path)

    def read(group: distributed.Group) -> str:
        with tlrt.Session("cpu", math="reproducible") as s, pytest.raises(distributed.GroupError) as found:
            build(s, group)[1].load(paths[group.rank])
        return str(found.value)

    run_ranks(2, write)
    assert all(text.startswith("load: ") and "on rank 1" in text for text in run_ranks(2, read))


# ---- faults


@pytest.mark.parametrize("fault", ["batch", "shards", "weights", "rate", "seed"])
def test_every_rank_says_what_differs(fault: str, tmp_path: Path) -> None:
    given = distributed_program.arguments(["--fault", fault, "--save", str(tmp_path / "c"), "--every", "1"])

    def work(group: distributed.Group) -> str:
        with pytest.raises(distributed.GroupError) as found:
            distributed_program.train(group, given)
        return str(found.value)

    assert all(WRONG[fault] in text for text in run_ranks(4, work))


@pytest.mark.parametrize("fault", ["error", "version", "kill", "absent", "silent"])
def test_every_rank_says_what_is_wrong(fault: str, tmp_path: Path) -> None:
    fail(4 if fault in ("kill", "silent") else 2, fault, tmp_path)


@pytest.mark.parametrize("fault", ["save", "rate"])
def test_every_rank_says_what_fails_between_steps(fault: str, tmp_path: Path) -> None:
    def work(group: distributed.Group) -> str:
        with tlrt.Session("cpu", math="reproducible") as s, pytest.raises(distributed.GroupError) as found:
            ws = [s.param([1.0], name) for name in "ab"]
            training = distributed.DataParallel(s, lambda p: optim.SGD(p, lr=0.5), group, shards=2)
            if fault == "save":
                training.save(tmp_path / "none" / "c.safetensors")
            training.optimizer.lr = 0.5 + group.rank
            training.step(lambda _: s.sum(s.mul(*ws)))
        return str(found.value)

    said = {"save": "save: FileNotFoundError: ", "rate": "DataParallel.step: optimizer: got SGD {'lr': 1.5"}[fault]
    assert all(text.startswith(said) for text in run_ranks(2, work))


def meet(*ranks: tuple[int, int], visit: bytes | None = None) -> list[Any]:
    """Groups by TCP of ranks and sizes, one a thread, or what they raise; after a visitor, if any, who sends this and leaves."""
    held = launch._reserve_port()
    address = held.getsockname()

    def begin(given: tuple[int, int]) -> Any:
        try:
            return SocketGroup(*given, given[0], address, 5.0, 5.0)
        except distributed.GroupError as error:
            return str(error)

    with ThreadPoolExecutor(len(ranks)) as pool:
        first = pool.submit(begin, ranks[0])
        for _ in range(0 if visit is None else 500):
            try:
                with socket.create_connection(address) as link:
                    link.sendall(visit or b"")
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        others = pool.map(begin, ranks[1:])
        return [first.result(), *others]


@pytest.mark.parametrize(("ranks", "says"), [
    ([(0, 2), (1, 4)], "join: size: got 4 on rank 1, expected 2, as on rank 0"),
    ([(0, 4), (1, 2)], "join: size: got 2 on rank 1, expected 4, as on rank 0"),
    ([(0, 4), (1, 4), (1, 4)], "join: rank: got two processes of rank 1, expected one"),
])  # fmt: skip
def test_ranks_that_do_not_fit_are_refused(ranks: list[tuple[int, int]], says: str) -> None:
    assert meet(*ranks) == [says] * len(ranks)


@pytest.mark.parametrize("hello", [{"hello": "else", "rank": 1, "size": 2}, None])
def test_somebody_else_at_the_door_is_sent_away(hello: Any) -> None:
    """Who then exchange arrays of other lengths say so; a group that is closed exchanges nothing."""
    data = json.dumps(hello).encode()
    visit = b"" if hello is None else struct.pack("<cQ", b"D", len(data)) + data
    groups = meet((0, 2), (1, 2), visit=visit)

    def exchange(group: distributed.Group) -> str:
        group.exchange(1 - group.rank, np.zeros(0), np.zeros(0))
        numbers = np.zeros(group.rank + 1)
        with pytest.raises(distributed.GroupError) as found:
            group.exchange(1 - group.rank, numbers, numbers)
        return str(found.value)

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(exchange, groups))
    assert said[0] == "exchange: rank 0: got 16 bytes of rank 1, expected 8"
    assert said[1] == "exchange: rank 1: got 8 bytes of rank 0, expected 16"
    for group in groups:
        group.close()
        with pytest.raises(distributed.GroupError, match="got no connection, expected an open group"):
            group.exchange(1 - group.rank, np.zeros(1), np.zeros(1))


def test_a_barrier_waits_for_all_ranks() -> None:
    came: list[int] = []
    ways = [lambda group: time.sleep(group.rank / 50), lambda group: came.append(group.rank), distributed.Group.barrier]
    assert run_ranks(4, lambda group: ([way(group) for way in ways], len(came))[1]) == [4, 4, 4, 4]


def test_a_rank_without_the_first_one_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tlrt.distributed.sockets._MARGIN", 0.0)
    with pytest.raises(distributed.GroupError, match="rank 1: got no word of rank 0"):
        SocketGroup(1, 2, 1, ("127.0.0.1", launch._reserve_port().getsockname()[1]), 1.0, 0.1)


@pytest.mark.skipif(MPIRUN is None, reason="no mpirun")
@pytest.mark.parametrize("fault", ["error", "silent"])
def test_mpi_ends_all_ranks(fault: str) -> None:
    found = run("mpirun", 2, "--fault", fault, "--timeout", str(TIMEOUT))
    assert found.returncode != 0 and WRONG[fault] in found.stdout + found.stderr


def test_arguments_are_refused() -> None:
    with tlrt.Session("cpu") as s:
        w = s.param(np.ones(3), "w")
        for shards in (0, 3, 8192):
            with pytest.raises(errors.ArgumentError, match="a power of two"):
                distributed.DataParallel(s, lambda p: optim.SGD(p), shards=shards)
        with pytest.raises(errors.ArgumentTypeError, match="an Optimizer"):
            distributed.DataParallel(s, lambda p: p, shards=2)  # type: ignore[arg-type, return-value]
        with pytest.raises(errors.ArgumentTypeError, match="max_norm: got str, expected a number or None"):
            distributed.DataParallel(s, lambda p: optim.SGD(p), shards=2, max_norm="1")  # type: ignore[arg-type]
        with pytest.raises(errors.ArgumentError, match="parameters: got 1 that are trained, expected 2 or more"):
            distributed.DataParallel(s, lambda p: optim.SGD(p), distributed.Group(0, 2), shards=2)
        with tlrt.Session("cpu") as other, pytest.raises(errors.ArgumentError, match="an optimizer of others"):
            distributed.DataParallel(s, lambda p: optim.SGD([other.param([1.0], "v")]), shards=2)
        training = distributed.DataParallel(s, lambda p: optim.SGD(p), shards=2)
        assert_raises(FileNotFoundError, training.save, "/no/such/folder/c.safetensors")
        with pytest.raises(errors.ArgumentTypeError, match="a TensorRef"):
            training.step(lambda k: 1.0)  # type: ignore[arg-type, return-value]
        w.requires_grad = False
        said, frozen = "w: got a parameter frozen since", lambda k: s.sum(s.use(w))
        with pytest.warns(UserWarning, match="nothing that requires a gradient"):
            assert_raises_regex(errors.ArgumentError, said, training.step, frozen)
    assert (distributed.Group(2, 4, 1).device("cuda"), distributed.Group(2, 4, 1).device("cpu")) == ("cuda:1", "cpu")
    for rank, size in ((0, 3), (2, 2)):
        assert_raises(errors.ArgumentError, distributed.Group, rank, size)


def test_what_one_rank_alone_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tlrt.Session("cpu") as s:
        w, frozen = s.param([1.0], "w"), s.param([1.0], "frozen", requires_grad=False)
        two, four = (distributed.DataParallel(s, lambda p: optim.SGD(p, lr=0.5), shards=n) for n in (2, 4))
        two.save(tmp_path / "two", {"epoch": 3, "shards": 7})
        checkpoint.save(tmp_path / "none", s, optim.SGD([w], lr=0.5))
        assert two.load(tmp_path / "two") == {"epoch": 3}
        for training, name in ((four, "two"), (two, "none")):
            said = f"got a run of another number of shards, or of none, expected one of {training.shards} shards"
            assert_raises_regex(checkpoint.CheckpointError, said, training.load, tmp_path / name)

        def loss(shard: int) -> tlrt.TensorRef:
            if shard:
                frozen.set([2.0])
            return s.sum(w * frozen)

        said = r"loss: got a shard that changes \['frozen'\] of the frozen parameters, expected none, as others do"
        assert_raises_regex(errors.ArgumentError, said, two.step, loss)
        assert two.steps == 0 and w.value.tolist() == [1.0]
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert_raises_regex(errors.UnavailableError, "join: MPI: got no usable mpi4py", environment.MPIGroup, 0, 1.0)


def test_join_without_an_environment_is_a_group_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*MPI[0], *MPI[1], *SOCKETS[0], *SOCKETS[1]):
        monkeypatch.delenv(name, raising=False)
    with distributed.join() as group:
        assert (group.rank, group.size, group.device("cpu"), group.device("cuda")) == (0, 1, "cpu", "cuda:0")
        assert group.gather({"a": np.int64(1)}) == [{"a": 1}]
        assert_raises_regex(TypeError, "got set, expected what JSON holds", group.gather, {1})
        group.barrier()
        assert_raises_regex(errors.ArgumentError, "more ranks than one", group.exchange, 1, np.zeros(1), np.zeros(1))
    monkeypatch.setenv("RANK", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert_raises_regex(errors.ArgumentError, "RANK='x'", distributed.join)


@pytest.mark.parametrize(("rank", "size", "local"), [*MPI, *SOCKETS])
def test_a_rank_without_a_place_on_its_machine_has_that_of_all(
    rank: str, size: str, local: str, monkeypatch: Any
) -> None:
    for name in (n for names in (*MPI, *SOCKETS) for n in names):
        monkeypatch.delenv(name, raising=False)
    assert environment._from_environment([(rank, size, local)]) is None
    monkeypatch.setenv(rank, "5")
    monkeypatch.setenv(size, "8")
    assert environment._from_environment([(rank, size, local)]) == (5, 8, 5)
    monkeypatch.setenv(local, "1")
    assert environment._from_environment([(rank, size, local)]) == (5, 8, 1)


def test_ranks_of_a_launcher_meet_where_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the port that PyTorch's own agent has; each rank of a command sees one GPU of those that there are."""
    names = (*MPI, *SOCKETS, ("MASTER_ADDR", "MASTER_PORT", environment.TRANSPORT))
    for name in (n for each in names for n in each):
        monkeypatch.delenv(name, raising=False)
    made: list[Any] = []
    monkeypatch.setattr(environment, "SocketGroup", lambda *given: made.append(given) or distributed.Group())
    monkeypatch.setenv("SLURM_PROCID", "1"), monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    assert environment.join_started().size == 1 and not made
    assert environment.join(timeout=5.0, join_timeout=6.0).transport == "host"
    monkeypatch.setenv("MASTER_ADDR", "there"), monkeypatch.setenv("MASTER_PORT", "7")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    environment.join(timeout=5.0, join_timeout=6.0)
    assert made == [(1, 2, 1, ("127.0.0.1", 29500), 5.0, 6.0), (1, 2, 1, ("there", 8), 5.0, 6.0)]
    for name, value in zip(SOCKETS[0], "121", strict=True):
        monkeypatch.setenv(name, value)
    for seen, own in ((None, "1"), ("5,7", "7"), ("5", ""), ("", "")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen or "")
        if seen is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        environment.join_started()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == own and made[-1][4] == environment.SHARES


def test_of_several_failures_a_signal_is_told_first(capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever its rank: what the others say follows from it."""
    for codes in itertools.permutations((1, -9, 3)):
        programs = [f"import os; os.kill(os.getpid(), {-c})" if c < 0 else f"raise SystemExit({c})" for c in codes]
        processes = [subprocess.Popen([sys.executable, "-c", p], text=True) for p in programs]
        assert [p.wait() for p in processes] == [*codes]
        assert launch._failure(processes) == -9
        assert capfd.readouterr().err == f"launch: rank {codes.index(-9)} ended with SIGKILL\n"


def test_launch_gives_the_status_of_what_failed(capfd: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("TORCHLEAN_CPU_THREADS", "7")
    program = "import os, sys; print(os.environ['TORCHLEAN_CPU_THREADS']); sys.exit(3 * (os.environ['RANK'] == '1'))"
    assert launch.launch([sys.executable, "-c", program], 2, grace=2) == 3
    shown = capfd.readouterr()
    assert "[0] 7" in shown.out and "[1] 7" in shown.out and "rank 1 ended with exit status 3" in shown.err
    for wrong in ("3", "0"):
        assert_raises(SystemExit, launch.main, ["-n", wrong, "x.py"])
    assert launch.launch([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], 1) == 128 + 9
