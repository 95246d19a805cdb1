"""Checkpoints: a resumed run is the uninterrupted one bit for bit; damaged and foreign files are refused and change nothing."""

import json
import os
import resource
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_raises, assert_raises_regex
from safetensors import numpy as safetensors

from audit.injection import interrupt
from tests import DEVICES
from tlrt import AnyBuffer, Session, checkpoint, errors, optim
from tlrt.checkpoint import CheckpointError
from tlspec.drawn import generator

OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.05), "momentum": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: optim.Adam(p, lr=0.01), "adamw": lambda p: optim.AdamW(p, lr=0.01),
}  # fmt: skip


class Run:
    """A small model with dropout, its optimiser and its losses."""

    def __init__(self, device: str, kind: str = "adamw", seed: int = 3) -> None:
        self.session = s = Session(device, seed=seed)
        rng = np.random.default_rng(1)
        self.w = s.param(rng.standard_normal((4, 3)), "layer.weight")
        self.b = s.param(np.zeros(4), "layer.bias")
        self.x, self.y = rng.standard_normal((6, 3)), rng.standard_normal((6, 4))
        self.optimizer = OPTIMIZERS[kind]([self.w, self.b])

    def steps(self, n: int) -> list[float]:
        s, losses = self.session, []
        for _ in range(n):
            hidden = s.dropout(s.linear(self.w, self.b, s.const(self.x)), 0.3)
            loss = s.mse_loss(hidden, s.const(self.y))
            losses.append(loss.item())
            s.backward(loss)
            self.optimizer.step()
            s.reset()
        return losses

    def bits(self) -> list[bytes]:
        arrays = [p.value for p in self.session.parameters.values()] + list(self.optimizer.state()[1].values())
        return [np.ascontiguousarray(a).tobytes() for a in arrays]

    def save(self, path, extra=None) -> None:
        checkpoint.save(path, self.session, self.optimizer, extra)

    def load(self, path):
        return checkpoint.load(path, self.session, self.optimizer)


@pytest.mark.parametrize("device", ["spec", *DEVICES])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_resumed_run_is_the_uninterrupted_one(device, kind, tmp_path):
    whole = Run(device, kind)
    first = whole.steps(5)
    whole.save(tmp_path / "a.safetensors", {"epoch": 5})
    rest = whole.steps(5)
    resumed = Run(device, kind, seed=99)
    resumed.steps(2)
    assert resumed.load(tmp_path / "a.safetensors") == {"epoch": 5} and resumed.steps(5) == rest
    assert resumed.bits() == whole.bits() and len(set(first + rest)) == 10


@pytest.mark.parametrize("extra", [None, {"epoch": 5}])
@pytest.mark.parametrize("saved", [[], ["optimizer"], ["averages"], ["optimizer", "averages"]], ids="+".join)
def test_a_run_goes_on_from_each_choice_of_parts(saved, extra, tmp_path):
    """In a session of another seed. Plain descent has no state, so it goes on without being saved, too."""
    whole, resumed = Run("cpu", "sgd"), Run("cpu", "sgd", seed=99)
    for run in (whole, resumed):
        run.averages = optim.ExponentialMovingAverage([run.w, run.b])
        run.steps(2)
        run.averages.step()
    checkpoint.save(tmp_path / "a", whole.session, [getattr(whole, n) for n in saved], extra)
    assert checkpoint.load(tmp_path / "a", resumed.session, [getattr(resumed, n) for n in saved]) == (extra or {})
    assert state(resumed) == state(whole) or "optimizer" not in saved
    assert resumed.steps(3) == whole.steps(3) and resumed.bits() == whole.bits()
    averages = [[a.tobytes() for a in run.averages.state()[1].values()] for run in (resumed, whole)]
    assert (averages[0] == averages[1]) == ("averages" in saved)
    assert resumed.session.rand_uniform(4).numpy().tobytes() == whole.session.rand_uniform(4).numpy().tobytes()


def test_other_readers_find_the_parameters(tmp_path):
    run = Run("cpu")
    run.steps(1)
    run.save(tmp_path / "a.safetensors")
    tensors = safetensors.load_file(tmp_path / "a.safetensors")
    assert np.array_equal(tensors["layer.weight"], run.w.value) and tensors["layer.bias"].dtype == np.float32
    assert "optimizer/0/m/layer.weight" in tensors


def test_equal_states_make_equal_files(tmp_path):
    """Saved again and again, as the order of a hash table may change from call to call."""
    for i in range(12):
        run = Run("cpu")
        run.steps(2)
        run.save(tmp_path / str(i), {"epoch": 2, "loss": 0.5})
    assert len({p.read_bytes() for p in tmp_path.iterdir()}) == 1


def state(run: Run) -> tuple:
    return run.bits(), run.optimizer.state()[0], run.session.seed, run.session.counter


def refused(run: Run, path, match: str) -> None:
    before = state(run)
    assert_raises_regex(CheckpointError, match, run.load, path)
    assert state(run) == before


def test_foreign_files(tmp_path):
    run, path = Run("cpu"), tmp_path / "a.safetensors"
    assert_raises(FileNotFoundError, run.load, path)
    for content, said in (
        (b"", "damaged"),
        (b"PK\x03\x04 some zip", "damaged"),
        (safetensors.save({"layer.weight": np.zeros((4, 3), np.float32)}), "another program.*load_state_dict"),
        (safetensors.save({}, {"tlrt": "{not json"}), "another program"),
        (safetensors.save({}, {"tlrt": json.dumps({"version": 99})}), "version 99, expected 1"),
        (safetensors.save({}, {"tlrt": json.dumps({"version": 1})}), "metadata"),
    ):
        path.write_bytes(content)
        refused(run, path, said)


def test_checkpoints_of_another_program(tmp_path):
    path = tmp_path / "a.safetensors"
    run = Run("cpu")
    Run("cpu", "sgd").save(path)
    refused(run, path, "type: got 'SGD', expected 'AdamW'")
    checkpoint.save(path, run.session)
    refused(run, path, "got 0 optimizers, expected 1")
    run.save(path)
    assert_raises_regex(CheckpointError, "got 1 optimizers, expected 0", checkpoint.load, path, run.session)
    other = Run("cpu")
    other.session.param([1.0], "more")
    other.save(path)
    refused(run, path, r"the session lacks \['more'\]")
    Run("spec").save(path)
    refused(run, path, "precision float64, expected float32")
    with Session("cpu") as s:
        w = s.param(np.zeros((4, 4)), "layer.weight")
        b = s.param(np.zeros(4), "layer.bias")
        checkpoint.save(path, s, optim.AdamW([w, b]))
    refused(run, path, r"layer.weight: got float32 of shape \(4, 4\), expected float32 of shape \(4, 3\)")


def read(path) -> tuple[dict, dict[str, np.ndarray]]:
    """A checkpoint's description and its arrays."""
    with safetensors.safe_open(str(path), framework="np") as file:
        return json.loads(file.metadata()["tlrt"]), safetensors.load_file(path)


@pytest.mark.parametrize(("optimizer", "was", "now", "said"), [
    ("adamw", '"beta2": 0.999', '"beta2": 1.999', "AdamW: beta2: got 1.999, expected 0 <= beta2 < 1, finite"),
    ("adamw", '"lr": 0.01', '"lr": -0.01', "AdamW: lr: got -0.01, expected 0 <= lr, finite"),
    ("adamw", '"lr": 0.01', '"lr": 1' + "0" * 400, "lr: got 1000"),
    ("adamw", '"lr": 0.01', '"lr": Infinity', "lr: got inf"),
    ("adamw", '"lr": 0.01', '"lr": NaN', "lr: got nan"),
    ("adamw", '"lr": 0.01', '"lr": true', "lr: got True"),
    ("sgd", '"momentum": 0.0', '"momentum": 0.9', "momentum 0.9, nesterov False of an optimizer made without"),
    ("adamw", '"steps": 0', f'"steps": {2**64}', f"steps: got {2**64}, expected an integer of 0 or more, below 2\\*\\*63"),
    ("adamw", '"steps": 0', '"steps": false', "steps: got False, expected an integer"),
    ("adamw", '"extra": {}', '"extra": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "another program"),
    ("adamw", '"parameters": ["layer.weight", "layer.bias"], "m', '"parameters": [["w"]], "m', "damaged metadata"),
    ("adamw", '"seed": 3', f'"seed": {2**64}', "damaged metadata"),
    ("adamw", '"counter": 0', '"counter": -1', "damaged metadata"),
    ("adamw", '"counter": 0', '"counter": false', "damaged metadata"),
    ("adamw", '"rule": 2', '"rules": 2', "random numbers are of rule"),
    *[("adamw", '"rule": 2', f'"rule": {rule}', "random numbers are of rule") for rule in ("1", "3", "null", '"2"')],
])  # fmt: skip
def test_spoilt_descriptions_are_refused(tmp_path, optimizer, was, now, said):
    """Settings that a step would refuse too, before anything changes."""
    run, path = Run("cpu", optimizer), tmp_path / "a.safetensors"
    run.save(path)
    about, tensors = read(path)
    assert json.dumps(about).count(was) == 1
    safetensors.save_file(tensors, path, {"tlrt": json.dumps(about).replace(was, now)})
    run.steps(1)
    refused(run, path, said)
    run.steps(1)


@pytest.mark.parametrize(("spoil", "said"), [
    (lambda entry: entry.update(shape=[-4, -3]), "sizes that are no natural numbers"),
    (lambda entry: entry.update(shape=[4, 2]), r"48 bytes for F32 of shape \(4, 2\)"),
    (lambda entry: entry.update(data_offsets=[n + 4 for n in entry["data_offsets"]]), "overlap or leave bytes over"),
])  # fmt: skip
def test_tables_that_do_not_account_for_every_byte(tmp_path, spoil, said):
    run, path = Run("cpu"), tmp_path / "a.safetensors"
    run.save(path)
    rewrite_table(path, lambda table: spoil(table["layer.weight"]) or table)
    refused(run, path, said)


def rewrite_table(path, change):
    """The file with a changed table of what it holds, its tensors as they are."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    path.write_bytes(beginning(change(json.loads(content[8:end]))) + content[end:])


def beginning(table) -> bytes:
    """Of a file: its table, after the table's length."""
    header = json.dumps(table).encode()
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize("descending", [False, True])
def test_a_table_names_tensors_in_any_order(tmp_path, descending):
    run, path = Run("cpu"), tmp_path / "a.safetensors"
    run.steps(2), run.save(path)
    rewrite_table(path, lambda table: dict(sorted(table.items(), reverse=descending)))
    other = Run("cpu")
    other.load(path)
    assert other.bits() == run.bits()


def test_an_optimizer_state_of_another_type_is_refused(tmp_path):
    with Session("cpu") as s:
        optimizer = optim.AdamW([s.param([1.0, 2.0], "w")])
        checkpoint.save(tmp_path / "x", s, optimizer)
        about, tensors = read(tmp_path / "x")
        tensors["optimizer/0/m/w"] = tensors["optimizer/0/m/w"].astype(np.float64)
        safetensors.save_file(tensors, tmp_path / "x", {"tlrt": json.dumps(about)})
        assert_raises_regex(CheckpointError, "m/w: got float64 of shape", checkpoint.load, tmp_path / "x", s, optimizer)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.array, int], ids=lambda k: k.__name__)
def test_a_rate_of_numpys_types_is_saved(kind, tmp_path):
    with Session("cpu") as s:
        w, rate = s.param([1.0], "w"), kind(2.7)
        checkpoint.save(tmp_path / "x", s, optim.SGD([w], lr=rate))
        loaded = optim.SGD([w], lr=1)
        checkpoint.load(tmp_path / "x", s, loaded)
        assert loaded.lr == rate and type(loaded.lr) in (int, float)


@pytest.mark.parametrize("device", ["spec", *DEVICES])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (1, 1), (3, 0, 2), (2, 3)], ids=str)
def test_parameters_of_every_shape_come_back(device, shape, tmp_path):
    """One without axes and one without elements too, with the states of each optimiser, and in a transposed order."""
    value = generator("shape", len(shape), *shape).standard_normal(shape).astype(np.float32)

    def run(seed, resume, steps):
        with Session(device, seed=seed) as s:
            w, b = s.param(value.T if not resume else value.T * 0, "w"), s.param(0.5, "b")
            momentum, average = optim.SGD([b], lr=0.1, momentum=0.9), optim.ExponentialMovingAverage([w, b])
            optimizers = [optim.AdamW([w]), momentum, average]
            if resume:
                checkpoint.load(tmp_path / "x", s, optimizers)
            for _ in range(steps):
                s.backward(s.reduce_sum(s.square(w)) + s.square(b))
                for optimizer in optimizers:
                    optimizer.step()
                s.reset()
            checkpoint.save(tmp_path / ("y" if resume else "x"), s, optimizers)
            states = [a for o in optimizers for a in o.state()[1].values()]
            return [(a.shape, a.tobytes()) for a in (w.value, b.value, *states)]

    run(1, False, 2)
    resumed = run(9, True, 2)
    assert resumed == run(1, False, 4) and resumed[0][0] == value.T.shape


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_tensors_of_16_bits_are_widened_exactly(kind, tmp_path):
    """A file whose parameters were cut to 16 bits by another program; bfloat16 is written here by hand."""
    numbers = generator("16 bits", kind).standard_normal((5, 3)).astype(np.float32)
    cut = numbers.astype(np.float16) if kind == "F16" else (numbers.view(np.uint32) >> 16).astype(np.uint16)
    wide = cut.astype(np.float32) if kind == "F16" else (cut.astype(np.uint32) << 16).view(np.float32)
    with Session("cpu") as s:
        s.param(numbers, "w")
        checkpoint.save(tmp_path / "x", s)
    path, about = tmp_path / "y", json.dumps(read(tmp_path / "x")[0])
    safetensors.save_file({"w": cut.view(np.uint16)}, path, {"tlrt": about})
    rewrite_table(path, lambda table: table["w"].update(dtype=kind) or table)
    with Session("cpu") as s:
        w = s.param(numbers * 0, "w")
        checkpoint.load(path, s)
        assert w.value.tobytes() == wide.tobytes()
        rewrite_table(path, lambda table: table["w"].update(dtype="F8_E4M3") or table)
        assert_raises_regex(CheckpointError, "w: got type F8_E4M3, expected F16, BF16, F32", checkpoint.load, path, s)


def test_an_interrupted_load_changes_all_or_nothing(tmp_path):
    run, other, path = Run("cpu"), Run("cpu", seed=9), tmp_path / "a"
    run.steps(2)
    run.save(path)
    saved = state(run)
    other.optimizer.lr = 0.7
    other.save(tmp_path / "other")
    for k in count(step=7):  # of about 2,500 points
        other.load(tmp_path / "other")
        before = state(other)
        interrupted = interrupt(lambda: other.load(path), k, everywhere=True)
        assert state(other) in (before, saved), k
        if not interrupted:
            break
    assert state(other) == saved and k > 1000


@pytest.mark.parametrize(
    ("wrong", "error"),
    [("closed", errors.ReleasedError), ("foreign", errors.DeviceMismatchError), ("memory", errors.OutOfMemoryError)],
)
def test_a_load_that_fails_late_changes_nothing(tmp_path, wrong, error):
    """The last of two optimisers is the one that fails."""
    run = Run("cpu")
    second = optim.AdamW([(Run("cpu") if wrong == "foreign" else run).w])
    checkpoint.save(tmp_path / "a", run.session, [run.optimizer, optim.AdamW([run.w])])
    run.steps(1)
    before, device = state(run), run.session.device
    if wrong == "closed":
        second.close()
    if wrong == "memory":
        device.collect()
        device.cap(1)
    assert_raises(error, checkpoint.load, tmp_path / "a", run.session, [run.optimizer, second])
    device.cap(0)
    assert state(run) == before
    if wrong == "foreign":
        assert_raises(error, checkpoint.save, tmp_path / "a", run.session, second)


@pytest.mark.parametrize("name", ["__metadata__", "\ud800", "optimizer/0"])
def test_names_that_no_file_can_hold(tmp_path, name):
    with Session("cpu") as s:
        s.param([1.0], name)
        assert_raises_regex(errors.ArgumentError, "^save: parameter ", checkpoint.save, tmp_path / "x", s)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_save_leaves_the_old_file_or_the_new(tmp_path):
    run, path = Run("cpu"), tmp_path / "a.safetensors"
    run.save(tmp_path / "b", {"epoch": 2})
    new = (tmp_path / "b").read_bytes()
    (tmp_path / "b").unlink()
    for k in count(step=4):
        path.write_bytes(b"old")
        descriptors = os.listdir("/proc/self/fd")
        interrupted = interrupt(lambda: run.save(path, {"epoch": 2}), k, everywhere=True)
        assert os.listdir("/proc/self/fd") == descriptors and os.listdir(tmp_path) == [path.name], k
        assert path.read_bytes() in (b"old", new), k
        if not interrupted:
            break
    assert_raises_regex(errors.ArgumentError, "extra: got", run.save, path, {"loss": float("nan")})
    assert path.read_bytes() == new and k > 500


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    run, path = Run("cpu"), tmp_path / "a.safetensors"
    path.write_bytes(b"old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    assert_raises_regex(OSError, "disk full", run.save, path)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == [path.name]


def test_an_overwritten_file_keeps_its_mode_and_a_link_its_target(tmp_path):
    run, path, link = Run("cpu"), tmp_path / "a", tmp_path / "folder" / "link"
    run.save(path)
    path.chmod(0o400)
    link.parent.mkdir()
    link.symlink_to("../a")
    run.steps(1)
    run.save(link)
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o400 and os.listdir(link.parent) == ["link"]
    assert Run("cpu").load(path) == {}


def test_a_file_cut_short_while_it_is_read(tmp_path, monkeypatch):
    """Another process shortens it once its header is read."""
    run, path = Run("cpu"), tmp_path / "a"
    run.save(path)
    monkeypatch.setattr(checkpoint, "_check", lambda *_: os.truncate(path, path.stat().st_size // 2))
    refused(run, path, "cut short")


def test_a_tensor_of_another_size_is_not_read(tmp_path):
    """A sparse file of 2 GiB: the header says that it does not fit."""
    run, path = Run("cpu"), tmp_path / "a"
    run.save(path)
    entry = {"dtype": "F32", "shape": [2**29], "data_offsets": [0, 2**31]}
    path.write_bytes(beginning({"__metadata__": {"tlrt": json.dumps(read(path)[0])}, "layer.weight": entry}))
    os.truncate(path, path.stat().st_size + 2**31)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, limits[1]))
    try:
        refused(run, path, r"layer.weight: got float32 of shape \(536870912,\), expected float32 of shape \(4, 3\)")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("device", ["spec", "cpu"])
def test_an_interrupted_assignment_happens_or_not(device):
    with Session(device) as s:
        for is_set in (False, True):
            for k in count():
                w = s.param([1.0, 2.0])
                _ = w.mirror
                fresh = AnyBuffer.upload([3.0, 4.0], s.device)
                work = partial(w.set, [3.0, 4.0]) if is_set else partial(w.assign, fresh)
                interrupted = interrupt(work, k, everywhere=True)
                assert w.value.tolist() == w.mirror.numpy().tolist() == ([1, 2] if w._version == 0 else [3, 4]), k
                if not interrupted:
                    break
            assert w._version == 1 and k > 20
        w.set([5.0, 6.0])
        fresh.buffer.release()
        assert_raises(errors.ReleasedError, w.assign, fresh)
        assert w.value.tolist() == [5, 6]


def test_optimizers_of_the_same_parameters_have_states_of_their_own(tmp_path):
    with Session("cpu") as s:
        w = s.param([1.0], "w")
        made = [optim.SGD([w], momentum=k / 16) for k in range(1, 12)]
        for one in made:
            s.backward(s.square(w)), one.step()
        states = [one.state() for one in made]
        checkpoint.save(tmp_path / "a", s, made), checkpoint.load(tmp_path / "a", s, made[::-1])
        assert [one.state() for one in reversed(made)] == states


def test_weights_alone(tmp_path):
    file = tmp_path / "run.safetensors"
    with Session("cpu", seed=3) as s:
        w, v = s.param([1.0, 2.0], "w"), s.param([3.0], "v")
        s.rand_uniform(1)
        checkpoint.save(file, s, optim.Adam([w, v]), {"epoch": 7})
    with Session("cpu", seed=5) as s:
        v, w = s.param([0.0], "v"), s.param([0.0, 0.0], "w")  # in another order
        sgd = optim.SGD([w], lr=0.5)
        assert checkpoint.load(file, s, weights_only=True) == {"epoch": 7}
        assert w.value.tolist() == [1, 2] and v.value.tolist() == [3] and (s.seed, s.counter, sgd.steps) == (5, 0, 0)
        load, said = partial(checkpoint.load, file, s), "load: optimizers: got 1, expected none with weights_only=True"
        assert_raises_regex(errors.ArgumentError, said, load, sgd, weights_only=True)
        s.param([0.0], "more")
        assert_raises_regex(CheckpointError, "the file lacks .'more'.", load, weights_only=True)
