"""Checkpoints that are well-formed and wrong: each is refused, and nothing of the session changes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tlrt import Session, checkpoint, optim
from tlrt.checkpoint import CheckpointError

safetensors = pytest.importorskip("safetensors.numpy")


def test_a_parameter_of_another_shape(tmp_path):
    with Session("cpu") as s:
        s.param(np.zeros(2), "a")
        s.param(np.zeros((4, 4)), "w")
        checkpoint.save(tmp_path / "x", s)
    with Session("cpu") as s:
        a, w = s.param(np.ones(2), "a"), s.param(np.ones((4, 3)), "w")
        with pytest.raises(
            CheckpointError, match=r"w: got float32 of shape \(4, 4\), expected float32 of shape \(4, 3\)"
        ):
            checkpoint.load(tmp_path / "x", s)
        assert a.value.all() and w.value.all()


def nested(about: dict) -> str:
    return json.dumps(about).replace('"extra": {}', '"extra": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}")


#: how the description is spoilt; words of the refusal
SPOILT = {
    "lists thousands deep": (nested, "another program"),
    "names that are lists": (lambda a: json.dumps({**a, "parameters": [["w"]]}), "damaged metadata"),
    "a rate beyond float64": (lambda a: json.dumps(a).replace('"lr": 0.01', '"lr": 1' + "0" * 400), "lr: got 1000"),
    "a rate that is infinite": (lambda a: json.dumps(a).replace('"lr": 0.01', '"lr": Infinity'), "lr: got inf"),
    "a rate that is NaN": (lambda a: json.dumps(a).replace('"lr": 0.01', '"lr": NaN'), "lr: got nan"),
    "a Boolean rate": (lambda a: json.dumps(a).replace('"lr": 0.01', '"lr": true'), "lr: got True"),
    "steps beyond 64 bits": (lambda a: json.dumps(a).replace('"steps": 0', f'"steps": {2**64}'), "steps: got 1844"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_descriptions(tmp_path, how):
    with Session("cpu") as s:
        w = s.param([1.0, 2.0], "w")
        optimizer = optim.AdamW([w], lr=0.01)
        checkpoint.save(tmp_path / "x", s, optimizer)
        with safetensors.safe_open(str(tmp_path / "x"), framework="np") as file:
            about = json.loads(file.metadata()["tlrt"])
            tensors = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118 (not a mapping)
        spoil, words = SPOILT[how]
        assert spoil(about) != json.dumps(about)
        safetensors.save_file(tensors, tmp_path / "x", {"tlrt": spoil(about)})
        w.set([5.0, 6.0])
        with pytest.raises(CheckpointError, match=words):
            checkpoint.load(tmp_path / "x", s, optimizer)
        assert w.value.tolist() == [5, 6] and (optimizer.lr, optimizer.steps) == (0.01, 0)


def test_an_optimizer_state_of_another_type(tmp_path):
    with Session("cpu") as s:
        w = s.param([1.0, 2.0], "w")
        optimizer = optim.AdamW([w])
        checkpoint.save(tmp_path / "x", s, optimizer)
        with safetensors.safe_open(str(tmp_path / "x"), framework="np") as file:
            about = file.metadata()
            tensors = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118 (not a mapping)
        tensors["optimizer/0/m/w"] = tensors["optimizer/0/m/w"].astype(np.float16)
        safetensors.save_file(tensors, tmp_path / "x", about)
        with pytest.raises(CheckpointError, match="m/w: got float16 of shape"):
            checkpoint.load(tmp_path / "x", s, optimizer)


def test_a_rate_keeps_its_value_whatever_type_it_had(tmp_path):
    with Session("cpu") as s:
        w = s.param([1.0], "w")
        checkpoint.save(tmp_path / "x", s, optim.SGD([w], lr=0.5))
        loaded = optim.SGD([w], lr=1)
        checkpoint.load(tmp_path / "x", s, loaded)
        assert loaded.lr == 0.5
