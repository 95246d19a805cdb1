"""Gradients and parameters that stay on the device: the calls of NCCL, made to a library that moves host memory in its place; and
NVIDIA's own where it is installed, as far as that goes without a GPU."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_raises_regex

import tlrt
from tests.runtime.fake_nccl import build_fake_nccl
from tests.runtime.rank_processes import MPIRUN, fail, run, weights, weights_alone
from tests.runtime.test_distributed_overlap import LAYERS, SHARDS, build, loss, memory_around_failure, train
from tests.runtime.thread_group import ThreadGroup, run_ranks
from tlrt import distributed, errors, optim
from tlrt._binding.capsules import data_address
from tlrt.context import Observer
from tlrt.distributed import nccl_library
from tlrt.distributed.nccl import Communicator, communicator_of

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
    pytest.mark.usefixtures("closed_devices"),
]


two_gpus = pytest.mark.skipif(len(tlrt.devices()) < 3, reason="fewer than two GPUs")


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library in NCCL's place."""
    return build_fake_nccl(tmp_path_factory.mktemp("nccl"))


@pytest.fixture
def here(fake: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It is this process's NCCL."""
    monkeypatch.setenv(nccl_library.ENVIRONMENT, fake)
    nccl_library.load_nccl.cache_clear()
    yield
    nccl_library.load_nccl.cache_clear()


def by_nccl(group: distributed.Group) -> distributed.Group:
    group.transport = "nccl"
    return group


# ---- the library


def test_nvidias_library_has_the_functions_that_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(nccl_library.ENVIRONMENT, raising=False)
    nccl_library.load_nccl.cache_clear()
    try:
        found = nccl_library.load_nccl()
    except errors.UnavailableError:
        pytest.skip("NCCL is not installed")
    finally:
        nccl_library.load_nccl.cache_clear()
    assert found.version >= nccl_library.OLDEST and not found.takes_host_memory
    names = re.findall(r"\b(nccl\w+)\(", nccl_library._DECLARATIONS)
    assert len(names) == 13 and all(callable(getattr(found.lib, name)) for name in names)
    assert "error" in found.why(1).lower()


def test_what_is_no_nccl_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nothing, old = tmp_path / "nothing.so", tmp_path / "old.so"
    for path, source in ((nothing, "int x;"), (old, "int ncclGetVersion(int *v) { *v = 20800; return 0; }")):
        subprocess.run(["cc", "-shared", "-fPIC", "-o", path, "-xc", "-"], input=source, text=True, check=True)
    for path, what in ((tmp_path / "missing.so", "none that loads"), (nothing, "none that loads"), (old, "20800")):
        monkeypatch.setenv(nccl_library.ENVIRONMENT, str(path))
        nccl_library.load_nccl.cache_clear()
        assert_raises_regex(errors.UnavailableError, what, nccl_library.load_nccl)
    nccl_library.load_nccl.cache_clear()


def test_join_takes_a_transport_that_all_ranks_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_raises_regex(errors.ArgumentError, "transport: got 'ib'", distributed.join, transport="ib")
    with distributed.join() as group:
        assert group.transport == "host"
    monkeypatch.setenv("TORCHLEAN_TRANSPORT", "nccl")
    with distributed.join() as group:  # one rank needs no NCCL
        assert group.transport == "nccl"
        assert train(group) == train(distributed.Group())
    with distributed.join(transport="host") as group:
        assert group.transport == "host"


# ---- ranks in threads


@pytest.fixture(scope="module")
def alone() -> bytes:
    return train(distributed.Group())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("bucket", [1, 1 << 20])
@pytest.mark.parametrize("overlap", [True, False])
def test_the_bits_are_those_of_one_rank(size: int, bucket: int, overlap: bool, alone: bytes) -> None:
    assert run_ranks(size, lambda group: train(by_nccl(group), overlap=overlap, bucket=bucket)) == [alone] * size


@pytest.mark.usefixtures("here")
def test_no_gradient_and_no_parameter_comes_to_the_host() -> None:
    """Of a step only the losses of a rank's shards do."""

    class Reads(Observer):
        count = 0

        def before_host_access(self, device: Any, op: str) -> None:
            self.count += op == "numpy"

    def work(group: ThreadGroup) -> tuple[list[int], list[int]]:
        with tlrt.Session("cpu", seed=1) as s:
            weights, reads = build(s), Reads()
            training = distributed.DataParallel(s, lambda p: optim.AdamW(p), by_nccl(group), shards=SHARDS)
            training.step(lambda shard: loss(s, weights, 0, shard))
            s.device.observe(reads)
            counts, uploads = [], []
            for step in (1, 2):
                before = reads.count
                training.step(lambda shard, step=step: loss(s, weights, step, shard))
                counts.append(reads.count - before)
                uploads.append(sum(not w.has_mirror for w in weights))
            return counts, uploads

    for counts, uploads in run_ranks(2, work):
        assert counts == [SHARDS // 2] * 2 and uploads == [0, 0]


@pytest.mark.usefixtures("here")
def test_memory_does_not_grow() -> None:
    def work(group: ThreadGroup) -> list[tuple[int, int]]:
        with tlrt.Session("cpu", seed=1) as s:
            weights = build(s)
            training = distributed.DataParallel(s, lambda p: optim.AdamW(p), by_nccl(group), shards=SHARDS, bucket=300)
            link, found = communicator_of(group, s.device), []
            for step in range(6):
                training.step(lambda shard, step=step: loss(s, weights, step, shard))
                found.append((s.device.memory().live_buffers, link.device.memory().live_buffers))
            return found

    for found in run_ranks(2, work):
        assert len(set(found[1:])) == 1, found


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("layer", [1, LAYERS])
def test_a_step_that_fails_gives_back_what_it_sent(layer: int) -> None:
    for before, after in run_ranks(2, lambda group: memory_around_failure(by_nccl(group), layer)):
        assert after == before


@pytest.mark.usefixtures("here")
def test_nccls_own_sum() -> None:
    """What the benchmark compares with."""

    def work(group: ThreadGroup) -> list[float]:
        link = Communicator(group, "cpu", "fast")
        x = link.device.buffer(np.arange(5) + group.rank)
        link.all_reduce([(data_address(x, "test"), 5)])
        link.wait()
        return x.numpy().tolist()

    assert run_ranks(4, work) == [[6.0, 10.0, 14.0, 18.0, 22.0]] * 4


@pytest.mark.usefixtures("here")
def test_who_waits_too_long_gives_up() -> None:
    def work(group: ThreadGroup) -> str:
        link, looks = Communicator(group, "cpu", "fast"), []
        group.timeout = 0.5
        if group.rank:
            time.sleep(1.5)
            return ""
        group.trouble = lambda: looks.append(0) or ""  # type: ignore[method-assign]
        x = link.device.zeros(4)
        span = (data_address(x, "test"), 4)
        begun = time.monotonic()
        with pytest.raises(distributed.GroupError, match=r"got nothing for 0\.5 s"), link.watched():
            link.swap(1, [], [span])
        assert time.monotonic() - begun < 1.4
        assert 1 <= len(looks) <= 11, "one every twentieth of a second"
        assert_raises_regex(distributed.GroupError, r"got nothing for 0\.5 s", link.wait)
        group.close()
        return "gave up"

    assert run_ranks(2, work) == ["gave up", ""]


@pytest.mark.usefixtures("here")
def test_the_specification_is_refused() -> None:
    def work(group: ThreadGroup) -> None:
        with tlrt.Session("spec") as s:
            build(s)
            with pytest.raises(errors.ArgumentError, match="'nccl' for the specification"):
                distributed.DataParallel(s, lambda p: optim.SGD(p), by_nccl(group), shards=2)

    run_ranks(2, work)


# ---- ranks in processes

NCCL = ("--transport", "nccl", "--bucket", "64")


@pytest.mark.parametrize(("ranks", "options"), [(2, ("--groups",)), (4, ())])
def test_processes_give_the_same_weights(ranks: int, options: tuple[str, ...], fake: str) -> None:
    found = run("launch", ranks, *NCCL, *options, TORCHLEAN_NCCL_LIBRARY=fake)
    assert weights(found, ranks) == weights_alone(*options)


@pytest.mark.skipif(MPIRUN is None, reason="no mpirun")
def test_so_where_mpi_starts_them(fake: str) -> None:
    assert weights(run("mpirun", 2, *NCCL, TORCHLEAN_NCCL_LIBRARY=fake), 2) == weights_alone()


FAULTS = ["error", "kill", "silent"]


@pytest.mark.parametrize("fault", FAULTS)
def test_every_rank_says_what_is_wrong(fault: str, fake: str, tmp_path: Path) -> None:
    fail(4 if fault == "kill" else 2, fault, tmp_path, *NCCL, TORCHLEAN_NCCL_LIBRARY=fake)


@two_gpus
@pytest.mark.cuda
@pytest.mark.parametrize("fault", FAULTS)
def test_so_does_every_gpu(fault: str, tmp_path: Path) -> None:
    fail(2, fault, tmp_path, *NCCL, "--device", "cuda")


@two_gpus
@pytest.mark.cuda
@pytest.mark.parametrize("math", ["reproducible", "fast"])
def test_two_gpus_give_the_weights_of_one(math: str) -> None:
    one = weights(run("launch", 1, "--device", "cuda", "--math", math))
    assert weights(run("launch", 2, *NCCL, "--device", "cuda", "--math", math), 2) == one


def test_nvidias_library_does_not_take_host_memory() -> None:
    try:
        nccl_library.load_nccl()
    except errors.UnavailableError:
        pytest.skip("NCCL is not installed")
    found = run("launch", 2, "--transport", "nccl")
    assert found.returncode != 0
    assert all(f"[{rank}] " in found.stdout and "'nccl' for ranks on 'cpu'" in found.stdout for rank in (0, 1))
