"""compare: a program agrees with itself on every device, and a planted defect is found at the operation that has it."""

import shlex
import subprocess
import sys

import numpy as np
import pytest

import tlrt
from tests import ROOT, has_cuda, slightly_wrong
from tlrt import differential, kernels
from tlrt.differential import Failure, Report, Row, _drift, compare, main

DEVICES = ["spec", "cpu"] + (["cuda"] if has_cuda() else [])


def program(s):
    """Three training steps of something that has most families in it."""
    rng = np.random.default_rng(0)
    w, b = s.param(rng.standard_normal((5, 3)), "w"), s.param(rng.standard_normal(5), "b")
    k, kb = s.param(rng.standard_normal((4, 3, 3, 3)), "k"), s.param(rng.standard_normal(4), "kb")
    frozen = s.param(rng.standard_normal((5, 5)), "frozen", requires_grad=False)
    optimizer = tlrt.optim.AdamW([w, b, k, kb], lr=0.01)
    for _ in range(3):
        hidden = s.dropout(s.tanh(s.linear(w, b, s.rand_normal((7, 3)))) @ s.use(frozen), 0.3)
        losses = s.cross_entropy(hidden, np.arange(7) % 5) + s.mse_loss(s.softmax(hidden), hidden)
        image = s.max_pool2d(s.relu(s.conv2d(k, kb, s.rand_normal((2, 3, 8, 9)), padding=1)), 2, 2)
        view = s.reshape(kb, (2, 2))  # the step changes it, too
        loss = losses + image.reduce_mean() + (hidden * hidden).reduce_sum() + (view * view).reduce_sum()
        s.backward(loss)
        optimizer.step()
        value = loss.item()
        s.reset()
    optimizer.close()
    return value


def test_a_training_run_agrees_on_every_device():
    report = compare(program, DEVICES)
    assert report.ok, report
    checked = [r for r in report.rows if r.device == "cpu" and r.forward is not None]
    assert len(checked) > 40 and {r.step for r in checked} == {0, 1, 2}
    assert sum(r.backward is not None for r in checked) > 30
    assert all(r.drift is not None and r.drift < 1e-3 for r in report.rows if r.device != "spec")
    assert set(report.parameters["cpu"]) == {"w", "b", "k", "kb", "frozen"}
    assert "every result within its bound" in str(report)


@pytest.mark.parametrize("name", ["tanh", "tanh_bwd", "matmul", "linear_bwd", "max_pool2d", "cross_entropy_bwd"])
def test_a_planted_defect_is_found_where_it_is(monkeypatch, tmp_path, name):
    monkeypatch.setattr(kernels, name, slightly_wrong(getattr(kernels, name)))
    report = compare(program, ["spec", "cpu"], reproduce=tmp_path)
    assert not report.ok and {f.op for f in report.failures} == {name.removesuffix("_bwd")}
    assert {f.which for f in report.failures} == {"vjp" if name.endswith("_bwd") else "forward"}
    first = report.failures[0]
    assert first.step == 0 and "tolerance" in first.text and "--inputs" in first.command
    assert str(first) in str(report)
    assert compare(program, ["cpu"]).failures[0].command == "", "there is none without a folder"
    # the reproduction runs, and passes where the kernel is right
    command = [sys.executable, *first.command.split()[1:]]
    done = subprocess.run([*command, "--device", "cpu"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_programs_that_diverge_are_reported(monkeypatch):
    def parted(s):
        x = s.input([1.0])
        return s.relu(x) if s.device.name == "spec" else s.exp(x)

    report = compare(parted, ["spec", "cpu"])
    assert [f.which for f in report.failures] == ["program"] and "takes another way" in str(report)
    twice = compare(lambda s: (parted(s), parted(s))[:0], ["spec", "cpu"])
    assert [f.which for f in twice.failures] == ["program"], "the first tells what the others follow from"
    with pytest.raises(tlrt.errors.ArgumentError, match="different names"):
        compare(parted, ["cpu", "cpu"])


def test_command(tmp_path, capsys):
    path = tmp_path / "model.py"
    path.write_text("def program(s):\n    w = s.param([1.0, 2.0], 'w')\n    return s.reduce_sum(s.tanh(w))\n")
    run = [sys.executable, "-m", "tlrt", "compare", str(path)]
    done = subprocess.run([*run, "--nodes"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "tanh" in done.stdout and "every result" in done.stdout, done.stderr
    assert main([str(path)]) == 0 and "tanh" in (told := capsys.readouterr().out) and len(told) < len(done.stdout)
    done = subprocess.run([*run, "--function", "other"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "has no function other(session)" in done.stderr
    done = subprocess.run([*run[:-1], str(tmp_path / "none.py")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "expected a Python file" in done.stderr


def test_options_reach_the_comparison(tmp_path, monkeypatch, capsys):
    path, calls, report = tmp_path / "model.py", [], Report(("cpu",))
    path.write_text("def other(s):\n    return s.zeros(1)\n")
    monkeypatch.setattr(
        differential, "compare", lambda program, names, **how: calls.append((program.__name__, names, how)) or report
    )
    words = shlex.split(f"{path} --function other --devices cpu,spec --seed 7 --reproduce {tmp_path / 'r'}")
    assert main(words) == 0
    [(name, names, how)] = calls
    assert (name, names, how["seed"], how["reproduce"]) == ("other", ["cpu", "spec"], 7, tmp_path / "r")
    report.failures.append(Failure("cpu", 1, 3, "exp", "forward", "too far"))
    assert main(words) == 1 and "exp (forward): too far" in capsys.readouterr().out


def test_drift() -> None:
    inf, nan = np.inf, np.nan
    for value, reference, expected in (
        ([], [], 0.0), ([0.0], [0.0], 0.0), ([1.0], [0.0], inf), ([3.0, 4.0], [3.0, 2.0], 2 / 13**0.5),
        ([nan, inf, -inf], [nan, inf, -inf], 0.0), ([2.0, nan, inf], [1.0, nan, inf], 1.0), ([inf], [-inf], inf),
        ([nan], [1.0], inf), ([1.0], [nan], inf), ([inf, 1.0], [1.0, 1.0], inf), ([1.0], [inf], inf), ([nan], [inf], inf),
    ):  # fmt: skip
        assert np.isclose(_drift(np.array(value), np.array(reference)), expected, rtol=1e-15), (value, reference)


def test_a_report_shows_the_worst_of_each_operation() -> None:
    report = Report(("spec", "cpu"), parameters={"cpu": {"a": 1e-7, "b": 3e-7}}, results={"cpu": np.array([2.5])})
    report.rows = [
        Row("cpu", 0, 0, "leaf", (2,)), Row("cpu", 0, 1, "tanh", (2,), 0.25, None, 1e-8),
        Row("cpu", 1, 2, "tanh", (2,), 0.125, 0.75, 4e-8), Row("cpu", 1, 3, "exp", (2,), 0.5, None, None),
    ]  # fmt: skip
    lines = [line.split() for line in str(report).splitlines()]
    assert lines[0] == ["cpu:", "4", "nodes", "in", "2", "steps,", "4", "results", "checked"]
    assert ["tanh", "2", "0.25", "0.75", "4e-08"] in lines and ["exp", "1", "0.5"] in lines
    assert ["parameters:", "2,", "the", "largest", "drift", "3e-07", "(b)"] in lines and ["result:", "2.5"] in lines
    assert not any(line[:1] == ["leaf"] for line in lines) and "every result" in str(report)
    report.not_numbers = ["cpu: step 1, node 3: exp", "cpu: step 2, node 3: exp"]
    assert str(report).splitlines()[-2:] == ["no result out of its bound, but NaN begins at 2 nodes; the first:",
                                             "  cpu: step 1, node 3: exp"]  # fmt: skip
    report.failures.append(Failure("cpu", 1, 3, "exp", "forward", "too far", "again"))
    assert "1 results out of bounds" in str(report) and "node 3: exp (forward): too far\n    again" in str(report)


def test_backward_of_a_result_is_compared_too():
    """Where the program did none, and its tensor is of the last step; results of any kind are kept."""

    def plain(s):
        return s.reduce_sum(s.tanh(s.param([1.0, 2.0], "w")))

    def backward(s):
        loss = plain(s)
        s.backward(loss)
        return loss

    def gone(s):
        loss = plain(s)
        s.reset()
        return loss

    def before(s):
        backward(s)
        s.reset()
        s.reduce_sum(s.tanh(s.parameters["w"]))

    for function, rows, result in ((plain, 2, True), (backward, 2, True), (gone, 0, False), (before, 2, False)):
        report = compare(function, ["spec", "cpu"])
        assert report.ok and set(report.results) == ({"spec", "cpu"} if result else set())
        assert sum(r.device == "cpu" and r.backward is not None for r in report.rows) == rows
    assert compare(lambda s: [1, 2], ["cpu"]).results["cpu"].tolist() == [1.0, 2.0]
    assert "result:" not in str(compare(lambda s: s.tanh(s.input([1.0, 2.0])), ["cpu"]))
    compare(plain, ["cpu"], progress=(lines := []).append)
    assert lines == ["cpu: step 0: 3 nodes"]
    assert compare(lambda s: "text", ["cpu"]).results == {}
    twice = compare(lambda s: s.backward(backward(s), 0.0) and None, ["cpu"])
    assert any(r.backward for r in twice.rows), "the worst is kept"
    (begin,) = compare(lambda s: s.relu(s.input([np.nan, 1.0])), ["cpu"]).not_numbers
    assert begin == "cpu: step 0, node 0: input"


def test_a_view_of_other_bits_is_found():
    def program(s):
        y = s.reshape(s.input([1.0, 2.0]), (2, 1))
        if s.device.name == "cpu":
            s.tape.nodes[y.id].buffer = s.input([1.0, 3.0]).value.buffer.share()

    (failure,) = compare(program, ["spec", "cpu"]).failures
    assert (failure.device, failure.op, failure.which, failure.node) == ("cpu", "reshape", "view", 1)
    assert "other bits" in failure.text
