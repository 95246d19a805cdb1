"""Tasks in other projects' formats: right submissions pass, wrong ones fail, and what cannot be derived is said to be
estimated."""

import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tlspec.__main__ import main
from tlspec.judge.adapters.gpumode import gpumode, specs_of
from tlspec.judge.arithmetic import arithmetic

torch = pytest.importorskip("torch")

from tlspec.judge.adapters import DATA, check_function, check_task  # noqa: E402
from tlspec.judge.adapters.estimate import estimated  # noqa: E402
from tlspec.judge.adapters.flashinfer import flashinfer  # noqa: E402
from tlspec.judge.adapters.submission import Loaded  # noqa: E402
from tlspec.judge.adapters.task import Task, _Judge  # noqa: E402
from tlspec.judge.adapters.tracked import UnknownOperator, leaves, tracked  # noqa: E402

F = torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")

BENCH = """
import torch
import torch.nn as nn

batch_size = 128
features: int = 64

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 24)
        self.norm = nn.LayerNorm(24)

    def forward(self, x):
        return torch.softmax(self.norm(torch.relu(self.linear(x))), dim=-1)

def get_inputs():
    return [torch.rand(batch_size, features)]

def get_init_inputs():
    return [features]
"""

NEW = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = torch.nn.Linear(features, 24)
        self.norm = torch.nn.LayerNorm(24)

    def forward(self, x):
        y = RELU(x @ self.linear.weight.T + self.linear.bias)
        y = y - y.mean(-1, keepdim=True)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5) * self.norm.weight + self.norm.bias
        return SOFTMAX
"""


def new_model(relu: str = "torch.relu", softmax: str = "torch.softmax(y, -1)") -> str:
    return NEW.replace("RELU", relu).replace("SOFTMAX", softmax)


def written(folder: Path, **files: str) -> list[Path]:
    paths = []
    for name, text in files.items():
        path = folder / name.replace("_py", ".py").replace("_json", ".json").replace("_yml", ".yml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        paths.append(path)
    return paths


@pytest.mark.parametrize(
    ("submission", "verdict"),
    [
        (new_model(), "pass"),
        (new_model(softmax="torch.exp(y - torch.logsumexp(y, -1, keepdim=True))"), "pass"),
        (new_model(relu=""), "fail"),
        (new_model(softmax="torch.softmax(y.bfloat16(), -1).float()"), "fail"),
        (new_model(softmax="torch.softmax(y, 0)"), "fail"),
        (new_model(softmax="torch.softmax(y, -1).double()"), "fail"),
        (new_model(softmax="torch.softmax(y, -1)[None]"), "fail"),
        (new_model(softmax="x.zero_()[:, :24] + torch.softmax(y, -1)"), "fail"),
        (new_model(softmax="undefined"), "fail"),
        (new_model(softmax="(e := torch.exp(y)) / e.sum(-1, keepdim=True)"), "pass"),  # of normalised numbers
        (new_model(relu="(lambda z: torch.log1p(torch.exp(4 * z)) * 0 + z.relu())"), "fail"),
        (new_model(softmax="vars(self).setdefault('kept', y.clone()).copy_(torch.softmax(y, -1))"), "fail"),
        (new_model(softmax="vars(x).setdefault('kept', torch.softmax(y, -1)).clone()"), "fail"),
    ],
)
def test_kernelbench(tmp_path: Path, submission: str, verdict: str) -> None:
    task, new = written(tmp_path, task_py=BENCH, new_py=submission)
    report = check_task(task, new, constants={"batch_size": 5}, device="cpu")
    assert report.verdict == verdict, report
    assert not report.assumptions.startswith("estimated")
    if "undefined" in submission:
        assert "new.py:" in report.findings[0].text


@pytest.mark.parametrize(
    ("softmax", "said"),
    [
        ("__import__('os')._exit(0)", "crash: the process of the kernel ended with status 0"),
        ("__import__('tlspec.judge.adapters.task')", "new.py:"),
        ("open(__import__('tlspec.arrays').__file__).read()", "new.py:"),
        ("__import__('time').sleep(60)", "time-out: a call took more than 2 s (new.py:"),
        ("__import__('sys').exit(0)", "result: the kernel ended the program with status 0"),
    ],
)
def test_a_submission_has_a_process_of_its_own(tmp_path: Path, softmax: str, said: str) -> None:
    task, new = written(tmp_path, task_py=BENCH, new_py=new_model(softmax=softmax))
    report = check_task(task, new, constants={"batch_size": 3}, device="cpu", cases=1, data=["own"], timeout=2)
    assert report.isolated and any(said in f"{f.kind}: {f.text}" for f in report.findings), report


def test_a_submission_that_cannot_be_loaded(tmp_path: Path) -> None:
    task, new = written(tmp_path, task_py=BENCH, new_py="import torch\n1 / 0\n")
    for isolate in (None, False):
        with pytest.raises((ValueError, ZeroDivisionError), match="division by zero"):
            check_task(task, new, constants={"batch_size": 3}, device="cpu", isolate=isolate)
    with pytest.raises(ValueError, match=r"ZeroDivisionError: division by zero \(new.py:2"):
        check_task(task, new, constants={"batch_size": 3}, device="cpu")


@pytest.mark.parametrize(("function", "caller"), [("torch.softmax(", "forward"), ("torch.rand(", "get_inputs")])
def test_a_task_that_raises_names_its_line(tmp_path: Path, capsys: Any, function: str, caller: str) -> None:
    task, new = written(tmp_path, task_py=BENCH.replace(function, "lost("), new_py=new_model())
    assert main(["task", str(task), "--with", str(new), "--device", "cpu", "--set", "batch_size=3"]) == 2
    told = capsys.readouterr().err
    assert "NameError: name 'lost' is not defined (task.py:" in told and f", in {caller}: return " in told


def test_kernelbench_in_a_narrow_format(tmp_path: Path) -> None:
    """A kernel that rounds between its steps passes where this is said of it; one that does not passes anyway."""
    bench = BENCH.replace(
        "torch.softmax(self.norm(torch.relu(self.linear(x))), dim=-1)", "torch.relu(self.linear(x)) * 0.3"
    )
    once = NEW[: NEW.index("y = y - y.mean")].replace("RELU(x @ self.linear.weight.T + self.linear.bias)", "BODY")
    sums = "torch.relu(x.float() @ self.linear.weight.float().T + self.linear.bias.float())"
    task, one, two = written(tmp_path, task_py=bench, one_py=once.replace("BODY", f"({sums} * 0.3).to(x.dtype)") + "return y\n",
                             two_py=once.replace("BODY", f"{sums}.to(x.dtype) * 0.3") + "return y\n")  # fmt: skip

    def verdict(new: Path, **words: Any) -> str:
        return check_task(task, new, constants={"batch_size": 5}, device="cpu", dtype="bfloat16", **words).verdict

    narrow = {"intermediate": "bfloat16", "accumulate": "float32"}
    assert verdict(one) == "pass" and verdict(two) == "fail"
    assert verdict(one, **narrow) == "pass" and verdict(two, **narrow) == "pass"


def test_a_task_that_rounds_at_its_end(tmp_path: Path) -> None:
    """A right submission may round to the other neighbour, in the format that the task rounds to; a rough one fails."""
    bench = BENCH.replace("dim=-1)", "dim=-1).half().float()")
    for softmax, right in (
        ("(e := torch.exp(y)) / e.sum(-1, keepdim=True)", True),
        ("torch.softmax(y, -1) * 1.002", False),
    ):
        task, new = written(tmp_path, task_py=bench, new_py=new_model(softmax=f"({softmax}).half().float()"))
        report = check_task(task, new, constants={"batch_size": 60}, device="cpu", data=["own"], cases=2)
        assert report.ok == right, report


TRAINED = """
import torch

class MODEL(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm, self.packed = torch.nn.BatchNorm1d(features), None

    def forward(self, x):
        BODY

def get_inputs():
    return [torch.randn(6, 5)]

def get_init_inputs():
    return [5]
"""
BATCH_NORM = """
        if self.packed is None:
            self.packed = self.norm.weight.clone()
        mean, var, n = x.mean(0), x.var(0, unbiased=False), len(x)
        self.norm.running_mean.lerp_(mean, 0.1)
        self.norm.running_var.mul_(0.9).add_(var * (n / (n - 1)), alpha=0.1)
        return (x - mean) * torch.rsqrt(var + 1e-5) * self.norm.weight + self.norm.bias
"""


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("", "", ""),
        ("self.norm.running_mean.lerp_(mean, 0.1)", "", "norm.running_mean after the call"),
        (" * (n / (n - 1))", "", "norm.running_var after the call"),
        ("* self.norm.weight", "* self.packed", "loaded after the first call: read them at each call"),
    ],
)
def test_a_model_in_training(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    """Running statistics are updated, and parameters are read at each call."""
    reference = TRAINED.replace("MODEL", "Model").replace("BODY", "return self.norm(x)")
    body = BATCH_NORM.replace(right, wrong) if right else BATCH_NORM
    task, new = written(
        tmp_path, task_py=reference, new_py=TRAINED.replace("MODEL", "ModelNew").replace("BODY", body.strip())
    )
    report = check_task(task, new, device="cpu", data=["own"])
    assert report.ok if not said else said in report.findings[0].text, report
    assert not report.assumptions.startswith("estimated")
    if wrong:  # the case alone
        assert not check_task(task, new, device="cpu", case="1:own").ok


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_model_has_its_own_parameters_in_the_first_case_alone(number: int) -> None:
    """Others, of the same signs, in later ones; buffers stay, and what the model makes at its first call is made before."""

    class Scaled(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.0, *range(4, 40)]))
            self.register_buffer("b", torch.tensor([3.0]))
            self.register_buffer("n", torch.tensor([7]))
            self.kept = None

        def forward(self, x: Any) -> Any:
            self.kept = self.w.detach().clone() if self.kept is None else self.kept
            self.b += 1
            return x * self.w, self.kept

    model = Scaled()
    own = model.w.detach().clone()
    loaded = Loaded(model, model.state_dict())
    for call in range(3):
        found = loaded(number, torch.ones(39))
        assert list(found) == ["out0", "out1", "b after the call"] and found["b after the call"] == 4
        got = found["out0"].detach()
        assert torch.equal(found["out1"], own) and model.n == 7, call
        if not number:
            assert torch.equal(got, own)
            continue
        share = got[own != 0] / own[own != 0]
        assert (got != own).sum() > 34 and share.min() == 0.5 and share.max() == 1.5 and 0 < got[own == 0].abs() <= 0.5
        assert torch.equal(share * 16, (share * 16).round())


@pytest.mark.parametrize("kind", DATA)
def test_arguments_are_filled_by_their_data_class(kind: str) -> None:
    w = torch.nn.Parameter(torch.linspace(1, 9, 30).reshape(5, 6))
    given = [torch.linspace(1, 9, 30, dtype=torch.float16).reshape(6, 5).T, {"w": w, "at": torch.arange(3)}, 0.5]
    judge = _Judge(Task("t", "f", lambda i: given, lambda *a: a, lambda *a: a), {}, None, None, None)
    found = [judge._format(x).name for x in (given, [w], [3])]
    judge.task.modules = [torch.nn.Linear(2, 2).bfloat16()]
    assert [*found, judge._format(given).name] == ["float16", "float32", "float32", "bfloat16"], "parameters, too"
    filled = [judge._filled(given, i, kind) for i in (0, 0, 1)]
    for old, (a, b, c) in ((given[0], [f[0] for f in filled]), (w, [f[1]["w"] for f in filled])):
        assert a.stride() == old.stride() and a.dtype == old.dtype and a.requires_grad == old.requires_grad
        assert torch.equal(a, b) and torch.equal(a, c) == (kind in ("own", "offset"))
        signs, whole = a.abs() == old, (a == a.round()) & (a.abs() <= 4)
        assert {"own": a == old, "offset": a == old + 128, "signs": signs, "integers": whole}[kind].all()
        assert kind != "signs" or 5 < (a < 0).sum() < 25
        assert kind != "integers" or {*a.flatten().tolist(), *c.flatten().tolist()} == {*range(-4, 5)}
    assert filled[0][1]["at"] is given[1]["at"] and filled[0][2] == 0.5


def test_sizes_that_are_too_large_are_refused(tmp_path: Path) -> None:
    task, new = written(tmp_path, task_py=BENCH.replace("batch_size = 128", "batch_size = 2**30"), new_py=new_model())
    with pytest.raises(ValueError, match=r"got 68719476736 numbers.*--set batch_size=2"):
        check_task(task, new, device="cpu")
    with pytest.raises(ValueError, match="expected a name that task.py assigns: batch_size, features"):
        check_task(task, new, constants={"rows": 3}, device="cpu")


YML = """
lang: "py"
tests:
  - {"size": 127, "seed": 4242}
  - {"size": 64, "seed": 7, "flag": True, "name": "normal"}
# a comment
benchmarks:
  - {"size": 1024, "seed": 31232}
"""
REFERENCE = """
import torch
from task import input_t
from utils import make_match_reference

def ref_kernel(data: input_t):
    x, out = data
    out[...] = torch.cumsum(x.to(torch.float64), dim=0).to(x.dtype)
    return out

def generate_input(size: int, seed: int, **more):
    g = torch.Generator(device="cuda")
    g.manual_seed(seed)
    return torch.randn(size, device="cuda", generator=g), torch.empty(size, device="cuda")

check_implementation = make_match_reference(ref_kernel)
"""
CUSTOM = """
import torch
from task import input_t

def custom_kernel(data: input_t):
    x, out = data
    out.copy_(BODY)
    return out
"""


@pytest.mark.parametrize(
    ("body", "verdict"),
    [("torch.cumsum(x, 0)", "pass"), ("torch.cumsum(x.half(), 0)", "fail"), ("torch.cumsum(x, 0) - x", "fail"),
     ("torch.cumsum(x.flip(0), 0).flip(0)", "fail"), ("x.cumsum_(0)); return x\n    (x", "fail")],
)  # fmt: skip
def test_gpumode(tmp_path: Path, body: str, verdict: str) -> None:
    written(tmp_path, **{"task/task_yml": YML, "task/reference_py": REFERENCE, "task/task_py": "input_t = tuple",
                         "utils_py": "def make_match_reference(f, **k): return f"})  # fmt: skip
    (new,) = written(tmp_path, new_py=CUSTOM.replace("BODY", body))
    report = check_task(tmp_path / "task", new, device="cpu")
    assert report.verdict == verdict, report
    assert sum(r.cases for r in report.rows) == 7  # two tests, three kinds of data, and one more of the first
    told = gpumode(tmp_path / "task" / "task.yml", new, {"size": 5}, "cpu", "")
    assert [[x.shape[0] for x in told.make(i)[0]] for i in range(told.cases)] == [[5, 5]] * 2


def test_the_tests_of_task_yml() -> None:
    assert specs_of(YML) == [{"size": 127, "seed": 4242}, {"size": 64, "seed": 7, "flag": True, "name": "normal"}]
    assert specs_of(YML, "benchmarks") == [{"size": 1024, "seed": 31232}]
    assert specs_of("tests:\n- size: 5  # odd\n# and\n- {'size': 3}\nmore:\n- size: 7\n") == [{"size": 5}, {"size": 3}]
    assert specs_of("tests:\n  - size: 5\n    seed: 3\n  - size: 6\n    seed: 4\nx: 1\n") == [
        {"size": 5, "seed": 3},
        {"size": 6, "seed": 4},
    ]


DEFINITION = {
    "name": "rmsnorm_h32", "op_type": "rmsnorm", "axes": {"batch": {"type": "var"}, "hidden": {"type": "const", "value": 32}},
    "inputs": {"x": {"shape": ["batch", "hidden"], "dtype": "bfloat16"}, "w": {"shape": ["hidden"], "dtype": "bfloat16"},
               "eps": {"shape": None, "dtype": "float32"}},
    "outputs": {"out": {"shape": ["batch", "hidden"], "dtype": "bfloat16"}},
    "reference": "import torch\n\n@torch.no_grad()\ndef run(x, w, eps):\n    batch, hidden = x.shape\n    assert hidden == 32\n"
    "    y = x.to(torch.float32)\n    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * w.to(torch.float32)\n"
    "    return y.to(torch.bfloat16)\n",
}  # fmt: skip
RUN = (
    "import torch\n\ndef run(x, w, eps):\n    y = x.float()\n"
    "    return (y / (y * y).mean(-1, keepdim=True).add(eps).sqrt() * w.float()).to(x.dtype)\n"
)


@pytest.mark.parametrize(
    ("source", "verdict"),
    [(RUN, "pass"), (RUN.replace("* w.float()).to(x.dtype)", ").to(x.dtype) * w"), "fail"), (RUN.replace(".add(eps)",
        ".add(1.0)"), "fail"),
     *((RUN.replace("run(x, w, eps)", "run(x, w, eps, out)").replace("return ", way).rstrip() + ")\n", verdict)
       for way, verdict in (("out.copy_(", "pass"), ("out.add_(", "fail"))),  # into memory that holds anything
     ],
)  # fmt: skip
def test_flashinfer(tmp_path: Path, source: str, verdict: str) -> None:
    task, new = written(tmp_path, definition_json=json.dumps(DEFINITION), new_py=source)
    report = check_task(task, new, device="cpu")
    assert report.verdict == verdict, report


@pytest.mark.parametrize("place", ["definitions/norm.jsonl", "workloads/norm.jsonl"])
def test_workloads_of_a_definition(tmp_path: Path, place: str) -> None:
    """Their lengths and numbers are tried, and lengths that are said outweigh them."""
    lines = [{"axes": {"batch": n}, "inputs": {"eps": {"type": "scalar", "value": n / 8}}} for n in (5, 3)]
    for folder in ("definitions", "workloads"):
        (tmp_path / folder).mkdir()
    (tmp_path / place).write_text("\n".join(json.dumps({"workload": line}) for line in lines))
    (tmp_path / "definitions/norm.json").write_text(json.dumps(DEFINITION))
    (new,) = written(tmp_path, new_py=RUN)
    for said, lengths in (({}, [5, 3]), ({"batch": 2}, [2, 2])):
        task = flashinfer(tmp_path / "definitions/norm.json", new, said, "cpu", "")
        given = [task.make(i) for i in range(task.cases)]
        assert [x.shape[0] for x, _, _ in given] == lengths and [eps for _, _, eps in given] == [5 / 8, 3 / 8]


def test_an_estimate_knows_errors_that_all_runs_share() -> None:
    """Here that of a sum that loses one of the numbers, whatever its last bits are."""
    task = SimpleNamespace(name="sum", modules=[], reference=lambda x: (x + 1.0) - 1.0)
    x = torch.tensor([2.0**-40, 1.0, 1.0, 1.0, 1.0])
    (found,) = estimated(torch, task, (x,), arithmetic(), lambda f, given: f(*given))
    assert found.value[0] == 2.0**-40 < found.error[0] < 2.0**-36 < found.error[1] < 2.0**-19


def test_a_solution_in_json(tmp_path: Path) -> None:
    solution = {"spec": {"language": "python", "entry_point": "main.py::run", "destination_passing_style": False},
                "sources": [{"path": "main.py", "content": RUN}]}  # fmt: skip
    task, new = written(tmp_path, definition_json=json.dumps(DEFINITION), solution_json=json.dumps(solution))
    assert check_task(task, new, device="cpu", cases=2).ok
    with pytest.raises(ValueError, match="expected one of batch, hidden"):
        check_task(task, new, constants={"rows": 2}, device="cpu")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, new, bad = written(
        tmp_path, task_py=BENCH, new_py=new_model(), bad_py=new_model(softmax="torch.softmax(y, -1) * 1.01")
    )
    words = ["--set", "batch_size=3", "--device", "cpu"]
    assert main(["task", str(task), "--with", str(new), *words, "--json", f"{tmp_path}/out.json"]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["verdict"] == "pass"
    assert main(["task", str(task), "--with", str(bad), *words]) == 1
    shown = capsys.readouterr().out
    assert f"--with {bad} --set batch_size=3 --device cpu --case 0:own" in shown
    assert main(["task", str(task), "--with", str(bad), *words, "--case", "0:integers"]) == 1
    assert main(["task", str(tmp_path / "none.py"), "--with", str(new)]) == 2
    assert "none.py: no such file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["format", "device", "dtype", "accumulate", "ulp", "products", "intermediate"])
def test_a_line_of_a_task_repeats_what_its_check_was_told(name: str, tmp_path: Path) -> None:
    """Also of files whose names have spaces."""
    said = {"format": "kernelbench", "device": "cpu", "dtype": "bfloat16", "ulp": "cuda"}.get(name, "float32")
    task, wrong = written(tmp_path, **{"a task_py": BENCH, "new_py": new_model(softmax="y * 3")})
    words: dict[str, Any] = {"device": "cpu", name: said}
    report = check_task(
        task, wrong, constants={"batch_size": 2, "features": 8}, data=["own"], cases=1, isolate=False, **words
    )
    line = shlex.split(report.findings[0].repeat)
    assert line[3:7] == ["task", str(task), "--with", str(wrong)] and line[-2:] == ["--case", "0:own"]
    assert line[line.index(f"--{name}") + 1] == said and "batch_size=2" in line and "features=8" in line
    assert line.count("--set") == 2


class Square(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """y = w x², with a gradient that a test may make wrong."""

    factor = 2.0

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        return x * x * w

    @classmethod
    def backward(cls, ctx: Any, g: Any) -> Any:  # type: ignore[override]
        x, w = ctx.saved_tensors
        return Square.factor * g * x * w, (g * x * x).sum(0)


def test_a_function_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [torch.randn(9, 5), torch.randn(5)]
    report = check_function(Square, lambda x, w: x * x * w, given)
    assert report.ok, report
    monkeypatch.setattr(Square, "factor", 2.001)
    found = check_function(Square, lambda x, w: x * x * w, given)
    assert found.verdict == "fail" and all(f.text.startswith("out1") for f in found.findings), found


class Product(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """y = a b, with gradients that are wrong in one respect."""

    fault, kept = "", ()

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        ctx.save_for_backward(a, b)
        Product.kept = a, b
        return a * b

    @classmethod
    def backward(cls, ctx: Any, g: Any) -> Any:  # type: ignore[override]
        a, b = ctx.saved_tensors
        if Product.fault == "class":
            a, b = Product.kept
        if Product.fault == "alone" and not ctx.needs_input_grad[0]:
            return None, g
        if Product.fault == "changed" and g.is_contiguous():
            return g * b, g.mul_(a)
        if Product.fault == "expanded" and 0 in g.stride():
            g = torch.zeros(g.shape)
        if Product.fault == "transposed" and g.stride(0) == 1:
            g = torch.as_strided(g, g.shape, (g.shape[1], 1))
        return g * b, g * a


@pytest.mark.parametrize(
    ("fault", "said"),
    [("", ""), ("alone", "out2 where argument 1 alone requires a gradient"),
     ("changed", "backward changed its incoming gradient"),
     ("class", "out1 where another call came before the backward pass"),
     ("expanded", "out1 for an expanded g"), ("transposed", "out1 for a transposed g")],
)  # fmt: skip
def test_ways_to_ask_for_a_gradient(monkeypatch: pytest.MonkeyPatch, fault: str, said: str) -> None:
    monkeypatch.setattr(Product, "fault", fault)
    given = [torch.randn(9, 5), torch.randn(9, 5)]
    report = check_function(Product, lambda a, b: a * b, given, cases=1, data="own")
    assert report.ok if not fault else report.findings[0].text.startswith(said), report


class Scaled(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """x·istd·w over rows, whose gradient sums products with x·istd, where PyTorch's formula sums products with x."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        istd = ((x * x).mean(1, keepdim=True) + 1e-5).rsqrt()
        ctx.save_for_backward(x, w, istd)
        return x * istd * w

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:  # type: ignore[override]
        x, w, istd = ctx.saved_tensors
        of_row = (x * istd * (g * w)).sum(1, keepdim=True)
        return (g * w - x * istd / x.shape[1] * of_row) * istd, (g * x * istd).sum(0)


def test_whole_numbers_leave_room_for_other_formulas_of_a_gradient() -> None:
    def reference(x: Any, w: Any) -> Any:
        return torch.nn.functional.rms_norm(x, x.shape[1:], w, 1e-5)

    given = (torch.randn(33, 1025), torch.randn(1025))
    report = check_function(Scaled, reference, lambda _: given, cases=8, data="integers")
    assert report.ok, report


#: what references compute: a name -> a function of x (4, 6, 8), and whether it is narrow around the result of float32
EXPRESSIONS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: F.linear(x, x[0], x[0, :, 0]), "softmax": lambda x: F.softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)), "layer_norm of two axes": lambda x: F.layer_norm(x, x.shape[1:], x[0], x[1]),
    "group_norm": lambda x: F.group_norm(x, 3), "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "gelu": F.gelu, "selu": F.selu, "hardsigmoid": F.hardsigmoid, "mish": F.mish, "conv": lambda x: F.conv1d(x, x[:2, :, :3],
        padding=1),
    "conv_transpose": lambda x: F.conv_transpose1d(x, x[0, :, None, :3].expand(6, 2, 3), stride=2),
        "max_pool": lambda x: F.max_pool1d(x * 1.1, 2),
    "avg_pool": lambda x: F.avg_pool1d(x, 3, 2, 1), "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "causal": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
    "cross_entropy": lambda x: F.cross_entropy(x[0], torch.arange(6)), "cumsum": lambda x: x.cumsum(1),
        "cumprod": lambda x: x.cumprod(1),
    "logsumexp": lambda x: torch.logsumexp(x * 1.1, 1), "norm": lambda x: x / torch.norm(x, p=2, dim=1, keepdim=True),
    "sort": lambda x: torch.sort(x * 1.1, 1)[0], "einsum": lambda x: torch.einsum("bij,kj->bik", x, x[0]),
    "masked": lambda x: (x @ x.transpose(1, 2)).masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf")).softmax(-1) @ x,
    "scatter": lambda x: torch.zeros(3, 8).index_add(0, torch.tensor([0, 2, 0, 1, 0, 2]), x[0].to(torch.get_default_dtype())),
    "huber": lambda x: F.smooth_l1_loss(x, x.flip(0)), "instance_norm": lambda x: F.instance_norm(x),
    "var": lambda x: torch.var(x * 1.1, (0, 2), correction=3), "std": lambda x: torch.std(x * 1.1, 1, correction=0, keepdim=True),
    "mean": lambda x: (x * 1.1).mean((-1, 0), keepdim=True), "logsumexp of two": lambda x: torch.logsumexp(x * 1.1, (0, 2), True),
    "prod": lambda x: torch.prod(x, 1), "extremes": lambda x: torch.amax(x * 1.1, (0, 2)) - torch.min(x * 1.1, 1)[0][0, 0],
    **{f"norm {p}": lambda x, p=p: torch.linalg.vector_norm(x * 1.1, p, (0, 1)) for p in (1, 3, math.inf, -math.inf)},
    "topk": lambda x: torch.topk(x * 1.1, 3, 1, largest=False)[0], "sort down": lambda x: torch.sort(x * 1.1, -2, True)[0],
    "alpha": lambda x: torch.add(x, x * 1.1, alpha=3) - torch.rsub(x * 1.1, x, alpha=0.7),
    "addmm": lambda x: torch.addmm(x[0] * 1.1, x[1], x[0, :1].expand(8, 8), beta=3, alpha=0.7),
    "clamp": lambda x: (x * 1.1).clamp(-1, 0.7), "log_softmax": lambda x: F.log_softmax(x, 1), "mv": lambda x: x[0] @ x[1, 0],
    "pad": lambda x: F.pad(x * 1.1, (1, -2, 2, 0, -1, 1), value=2), "roll": lambda x: (x * 1.1).roll((1, -2), (0, 2)),
    "triangles": lambda x: (x * 1.1).tril(-1) + (x * 1.1).triu(2), "stack": lambda x: torch.stack([x, x * 1.1], -1),
    "gather": lambda x: (x * 1.1).gather(1, torch.arange(4)[None, :, None].expand(4, 4, 8)),
    "select": lambda x: (x * 1.1).index_select(-2, torch.tensor([5, 0])), "index": lambda x: (x * 1.1)[:, torch.tensor([2, 0])],
    "scatter_add": lambda x: (x * 1.1).scatter_add(1, torch.tensor([[[1], [0], [1]]]).expand(4, 3, 8), x * 1.3),
    "put": lambda x: (x * 1.1).scatter(-1, torch.tensor([[[1, 0]]]).expand(4, 6, 2), x * 1.3),
    "accumulate": lambda x: (x * 1.1).index_put((torch.tensor([1, 3, 1]),), x[:3] * 1.3, accumulate=True),
    "index_add": lambda x: (x * 1.1).index_add(1, torch.tensor([1, 3, 1]), x[:, :3] * 1.3, alpha=3),
    "groups": lambda x: F.conv1d(x, x[:3, :2, :3], x[0, 0, :3], 2, 1, 2, 3),
    "transposed groups": lambda x: F.conv_transpose1d(x, x[:, :, :3].reshape(6, 4, 3), x[0, 0], 2, 1, 1, 2),
    "windows": lambda x: F.max_pool2d(x * 1.1, (2, 3), 1, (1, 0)), "adaptive": lambda x: F.adaptive_avg_pool2d(x[None], (3, 5)),
    "in use": lambda x: F.batch_norm(x, x[0, :, 0], x[1, :, 0].abs() + 1, x[2, :, 0], x[3, :, 0]),
    "upsample": lambda x: F.interpolate(x[None] * 1.1, scale_factor=2), "repeat": lambda x: (x * 1.1).repeat(2, 1, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_tracked_errors_cover_float32_and_are_narrow(name: str) -> None:
    """What float32 computes lies within the bounds, most elements' bounds are small, and a wrong bit of the 12th is outside."""
    x = torch.from_numpy(np.random.default_rng(5).standard_normal((4, 6, 8)).astype(np.float32))
    returned, tracker = tracked(arithmetic("float32"), lambda: EXPRESSIONS[name](x.double()))
    (known,) = (tracker.result(t) for t in leaves(torch, returned))
    got = EXPRESSIONS[name](x).double().numpy()
    assert np.all(np.abs(got - known.value) <= known.error + np.spacing(np.abs(known.value).astype(np.float32)) / 2)
    near = known.value != 0
    assert np.median(known.error[near] / np.abs(known.value[near])) < 2e-5
    assert np.any(np.abs(got * (1 + 2.0**-12) - known.value) > known.error)


@pytest.mark.parametrize("transposed", [False, True])
def test_groups_have_the_errors_of_layers_of_their_own(transposed: bool) -> None:
    """In a convolution's result and in both gradients: of as many terms."""
    rng = np.random.default_rng(7)
    apply = F.conv_transpose1d if transposed else F.conv1d
    shapes = (2, 6, 9), (6, 4, 3) if transposed else (12, 2, 3), (2, 12, 11 if transposed else 7)
    x, w, g = (torch.from_numpy(rng.standard_normal(s)) * 1.1 for s in shapes)

    def passes(x: Any, w: Any, g: Any, groups: int) -> list[Any]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = apply(x, w, groups=groups)
        return [y.detach(), *torch.autograd.grad(y, (x, w), g)]

    def apart() -> list[Any]:
        parts = zip(x.chunk(3, 1), w.chunk(3, 0), g.chunk(3, 1), strict=True)
        return [
            torch.cat(t, d) for t, d in zip(zip(*(passes(*p, 1) for p in parts), strict=True), (1, 1, 0), strict=True)
        ]

    whole, parts = (tracked(arithmetic("float32"), f) for f in (lambda: passes(x, w, g, 3), apart))
    for mine, theirs in zip(*(map(t.result, leaves(torch, found)) for found, t in (whole, parts)), strict=True):
        assert np.allclose(mine.value, theirs.value) and np.allclose(mine.error, theirs.error, 1e-6, 0)


def test_views_and_writes_share_errors() -> None:
    def function() -> Any:
        out = torch.zeros(3, 4)
        out[1] = torch.full((4,), 3.0).double() * 0.1
        row = out[1].view(2, 2)
        row += row * 0.1
        return out

    returned, tracker = tracked(arithmetic("float32"), function)
    found = tracker.result(returned)
    assert np.all(found.error[[0, 2]] == 0) and np.all(found.error[1] > 1e-8) and np.allclose(found.value[1], 0.33)


def test_a_rounding_at_the_end_counts_once() -> None:
    x = torch.linspace(1, 2, 9, dtype=torch.float64)
    inside, tracker = tracked(arithmetic("bfloat16"), lambda: (x * 1.3).to(torch.bfloat16) * 3.0)
    assert np.all(tracker.result(inside).error > 2.0**-9)
    end, tracker = tracked(arithmetic("bfloat16"), lambda: (x * 1.3).to(torch.bfloat16))
    assert np.all(tracker.result(end).before < 2.0**-20) and tracker.result(end).format.name == "bfloat16"


@pytest.mark.parametrize(
    ("function", "said"),
    [(lambda x: F.dropout(x, 0.5), "random"), (lambda x: x if (x * 1.1 - x * 1.1).sum() > 0 else -x, "depends on rounding"),
     (lambda x: torch.linalg.qr(x[0])[0], "no rule"), (lambda x: x[0][(x[0] * 1.1).argsort(0)[:, 0]], "depends on rounding")],
)  # fmt: skip
def test_what_is_not_known_is_named(function: Any, said: str) -> None:
    with pytest.raises(UnknownOperator, match=said):
        tracked(arithmetic("float32"), lambda: function(torch.ones(4, 6, 8).cumsum(2)))


def test_an_estimate_says_so() -> None:
    spd = torch.from_numpy(np.random.default_rng(1).standard_normal((6, 6)).astype(np.float32))
    spd = spd @ spd.T + 6 * torch.eye(6)

    def by_columns(a: Any) -> Any:
        out = torch.zeros_like(a)
        for j in range(len(a)):
            out[j, j] = (a[j, j] - out[j, :j] @ out[j, :j]).sqrt()
            out[j + 1 :, j] = (a[j + 1 :, j] - out[j + 1 :, :j] @ out[j, :j]) / out[j, j]
        return out

    right = check_function(by_columns, torch.linalg.cholesky, [spd], gradients=False, data=["own"])
    assert right.assumptions.startswith("estimated, as aten::linalg_cholesky") and right.ok, right
    wrong = check_function(
        lambda a: by_columns(a) * (1 + 1e-4), torch.linalg.cholesky, [spd], gradients=False, data=["own"]
    )
    assert wrong.verdict == "fail", wrong
