"""``python -m tlrt`` and its doctor."""

import json
import subprocess
import sys

import pytest
from numpy.testing import assert_raises_regex

import tlrt
from tests import ROOT, exit_status, has_cuda
from tlrt import __main__ as command
from tlrt import context, doctor


def test_usable(capsys):
    assert command.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in ("python", "library", "abi", "matches", "backend", "cpu variant", "threads", "device cpu"):
        assert word in text
    assert text.rstrip().splitlines()[-1] == f"usable: yes, on {', '.join(tlrt.devices())}"


def test_json(capsys):
    assert doctor.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["usable"] is True and list(found["devices"]) == list(tlrt.devices())
    assert found["problems"] == [] and found["version"] == tlrt.__version__
    assert has_cuda() or found["notes"][0]["remedy"]
    assert found["cpu_variant"] == tlrt.cpu_variant() and found["threads"] == tlrt.threads() and "" not in found


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_missing_library(python, options):
    done = python(
        f"import sys; from tlrt.doctor import main; sys.exit(main({options!r}))", TORCHLEAN_CUDA_LIBRARY="/no.so"
    )
    assert done.returncode == 1 and done.stderr == ""
    if options:
        found = json.loads(done.stdout)
        assert found["usable"] is False
        assert found["problems"][0]["remedy"].startswith("unset TORCHLEAN_CUDA_LIBRARY, or set it to ")
    else:
        assert "/no.so: no such file" in done.stdout and "do: " in done.stdout
        assert done.stdout.endswith("usable: no\n")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TORCHLEAN_CPU_THREADS", "many", "a whole number from 1 to 1024"),
        ("TORCHLEAN_CPU_VARIANT", "sse", "one of base"),
    ],
)
def test_bad_environment(python, variable, value, said):
    done = python("import sys; from tlrt.doctor import main; sys.exit(main(['--json']))", **{variable: value})
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    (problem,) = found["problems"]
    assert problem["problem"].startswith(f'cpu: device: {variable}: got "{value}", expected {said}')
    assert problem["remedy"] == f"unset {variable}, or set it to a value that is expected"
    assert "cpu" not in found["devices"]
    done = python("import tlrt; tlrt.device()", **{variable: value})
    assert "CUDA" not in done.stderr and "doctor" not in done.stderr


@pytest.mark.parametrize("capability", ["8.0", "9.0", "10.0", "8.6", "8.9", "12.0"])
def test_what_a_gpu_means_for_reproducible_contexts(monkeypatch, capability):
    said = "float64 is fast, which reproducible contexts compute in"
    if capability in ("8.6", "8.9", "12.0"):
        said = "float64 has 1/32 or 1/64 of float32's rate, so reproducible contexts work, slower"
    gpu = f"a GPU, compute capability {capability}, 132 multiprocessors, 139.8 GiB"
    monkeypatch.setattr(context, "describe", lambda name: gpu)
    report = doctor.examine()
    assert report.usable and set(report.devices.values()) == {f"{gpu}; {said}"}


def test_of_a_cpu_nothing_is_said_of_float64():
    assert doctor.examine().devices["cpu"] == context.describe("cpu")


def test_bad_sync_is_noted(monkeypatch):
    monkeypatch.setenv("TORCHLEAN_CUDA_SYNC", "banana")
    report = doctor.examine()
    assert report.usable
    assert ("TORCHLEAN_CUDA_SYNC: got 'banana', expected 0 or 1", "set it to 1, or unset it") in report.notes
    monkeypatch.setenv("TORCHLEAN_CUDA_SYNC", "0")
    assert not any("SYNC" in problem for problem, _ in doctor.examine().notes)


@pytest.mark.parametrize("missing", ["numpy", "_cffi_backend"])
def test_without_a_dependency(python, missing):
    code = f"""
import runpy, sys
sys.modules[{missing!r}] = None
sys.argv = ["tlrt", "{{command}}"]
runpy.run_module("tlrt", run_name="__main__", alter_sys=True)
"""
    package = missing.replace("_cffi_backend", "cffi")
    done = python(code.format(command="doctor"))
    assert (done.returncode, done.stderr) == (1, "") and f"problem: {package}: " in done.stdout
    assert f"-m pip install {package}`" in done.stdout and done.stdout.endswith("usable: no\n")
    done = python(code.format(command="verify"))
    assert done.returncode == 1 and done.stderr.startswith("tlrt verify: ")
    assert done.stderr.endswith("`python -m tlrt doctor` says what to install\n")


def test_commands(capsys):
    assert exit_status(command.main, []) == 2
    assert exit_status(command.main, ["--help"]) == 0 and "doctor" in capsys.readouterr().out
    done = subprocess.run([sys.executable, "-m", "tlrt", "frob"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "frob" in done.stderr


def test_a_module_that_lacks_another_is_no_missing_dependency(monkeypatch):
    """What the doctor cannot mend is raised."""
    monkeypatch.setitem(command.COMMANDS, "doctor", command.Command("tlrt.nowhere", help=""))
    assert_raises_regex(ModuleNotFoundError, r"tlrt\.nowhere", command.main, ["doctor"])


@pytest.mark.parametrize(
    ("driver", "visible", "remedy"),
    [
        ("", None, "install the NVIDIA driver (libcuda.so.1 does not load); the CPU path works without it"),
        ("CUDA 12.4", "", "unset CUDA_VISIBLE_DEVICES, which hides every GPU"),
        ("CUDA 12.4", "-1", "unset CUDA_VISIBLE_DEVICES, which hides every GPU"),
        (
            "CUDA 12.4",
            "0",
            "check that `nvidia-smi` lists a GPU and that its driver is as new as the build's CUDA toolkit",
        ),
    ],
)
def test_a_cuda_build_without_a_device(monkeypatch, driver, visible, remedy):
    def describe(name):
        raise tlrt.errors.UnavailableError(f"{name}: planted")

    monkeypatch.setattr(doctor, "_driver", lambda: driver)
    monkeypatch.setattr(context, "describe", describe)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    report = doctor.Report()
    doctor._explain_no_cuda(report, True)
    assert report.notes == [("no CUDA device: cuda:0: planted", remedy)]
    assert report.facts["cuda_driver"] == (driver or "none")


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("cpu", tlrt.errors.OutOfMemoryError("no memory"), "free some memory"),
        ("cpu", RuntimeError("odd"), "report this with the listing above"),
        ("cpu", RuntimeError("TORCHLEAN_CPU_THREADS is 0"), "unset TORCHLEAN_CPU_THREADS, or set it to a value"),
        ("cuda:0", RuntimeError("odd"), "close other programs on the device"),
    ],
)
def test_what_to_do_about_a_device(name: str, error: Exception, said: str) -> None:
    assert doctor._device_remedy(name, error).startswith(said)


def test_a_library_of_another_version_is_noted(monkeypatch):
    said = f"library {tlrt.__version__} with tlrt 0.0.1"
    monkeypatch.setattr(tlrt, "__version__", "0.0.1")
    assert [bool(remedy) for note, remedy in doctor.examine().notes if note == said] == [True]
