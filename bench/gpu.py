"""``python -m bench.gpu`` (``make gpu``): checks a GPU machine from end to end and writes one file of JSON lines.

Steps, in order: build (the CUDA library for this machine's architecture), wheel (the wheel with it, installed in a folder of
its own and verified from there), verify (every operation on the CPU path and on CUDA, compared with the specification and
with each other), older (the library of compute_80, as GPUs before compute capability 9.0 run it: verified, and timed on drawn
shapes), reproducible (the same as verify in contexts of that mode), determinism (in that mode the same bits over repetitions,
batches and reused memory), weights (the hashes of the five trained examples), audits (a run on CUDA computed again on the
CPU), bench (beside PyTorch where it is installed), drawn (shapes that nobody chose, beside PyTorch), steps (eager training
steps beside PyTorch), growth (how cost and error grow with size), judge (planted defects in kernels in Triton), models
(unmodified ones of PyTorch, with the same bits on the CPU and on CUDA), ranks (examples trained on one GPU and on more, with
the same bits, times of exchanges, and steps beside DistributedDataParallel), mutants (random changes of the CUDA sources, and
whether the tests see them), sanitizer (compute-sanitizer memcheck and racecheck over drawn cases and over shapes that reach
large kernels), tests. Steps that need a library leave out what is not installed. A step that fails does not stop the later
ones; the exit status is non-zero if any failed. OUT/summaries holds what ``evidence`` keeps. The last thing printed is a
short table.
"""

import argparse
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from audit.environment import ROOT, commit, now
from bench.summary import write_summaries
from tlrt._terminal import format_table
from tlrt.verify.documents import format_command, read_document, write_document
from tlspec import registry
from tlspec.registry import MATH

LIBRARY = ROOT / "native/build/cuda/libtorchlean_cuda.so"
#: without warp group products and float64 products on tensor cores
OLDER_LIBRARY = ROOT / "native/build/compute_80/libtorchlean_cuda.so"
#: every lane arrives at barriers there, since racecheck does not see that one lane arrives for its warp (cuda/device/wgmma.cuh)
RACECHECK_LIBRARY = ROOT / "native/build/racecheck/libtorchlean_cuda.so"
STEPS = ("build", "wheel", "verify", "older", "reproducible", "determinism", "weights", "audits", "bench", "drawn", "steps",
         "growth", "judge", "models", "bits", "ranks", "mutants", "sanitizer", "tests")  # fmt: skip
#: these steps' commands but for the number of shapes, and of ranks
DRAWN = ["bench", "--device", "cuda", "--drawn"]
RANKS = ["bench.ranks", "--device", "cuda", "--starters", "launch", "--transports", "host,nccl"]
#: and but for how many run at a time: builds take most of the time
MUTANTS = ["audit", "mutate", "--kinds", "cuda", "--random", "100", "--seed", "5", "--patience", "90",
           "--budget", "1500"]  # fmt: skip


class Runner:
    """Runs commands, keeps their logs under `out`, and remembers how each step went."""

    def __init__(self, out: Path):
        self.out = out
        self.steps: dict[str, dict[str, Any]] = {}
        self.environment = {**os.environ, "TORCHLEAN_CUDA_LIBRARY": str(LIBRARY), "PYTHONUNBUFFERED": "1"}

    def run(self, name: str, command: list[str], limit: float) -> str:
        """Runs a command with its output in OUT/NAME.log, shows the log's last lines, returns the log."""
        log = self.out / f"{name}.log"
        start = time.monotonic()
        print(f"== {name}: {' '.join(command)}", flush=True)
        with log.open("w") as sink:
            # a session of its own: what the command has started ends with it, and does not keep the GPU
            process = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = 124
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        text = log.read_text(errors="replace")
        self.steps[name] = {
            "status": status, "seconds": round(time.monotonic() - start, 1), "command": format_command(command),
        }  # fmt: skip
        print("\n".join(text.splitlines()[-6 if status == 0 else -40 :]))
        print(f"== {name}: exit {status}, {self.steps[name]['seconds']} s", flush=True)
        return text

    def build(self, name: str, *variables: str) -> None:
        """Compiles the CUDA library, with these variables of native/Makefile."""
        make = ["make", "-C", "native", f"-j{os.cpu_count() or 2}", "cuda", *variables, f"PYTHON={sys.executable}"]
        self.run(name, make, 500)


def try_wheel(runner: Runner) -> None:
    """Builds the CUDA wheel from what `build` compiled, installs it in a folder of its own and verifies from there."""
    environment, folder = runner.environment, runner.out / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    runner.environment = {**environment, "TORCHLEAN_BUILD": "cuda"}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    runner.run("wheel", [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)], 500)
    wheels = list(map(str, folder.glob("*.whl")))
    runner.run(
        "wheel-install",
        [*pip, "install", "--no-deps", "--no-index", "--target", str(folder / "packages"), *wheels],
        120,
    )
    del runner.environment["TORCHLEAN_CUDA_LIBRARY"]  # the wheel's own
    paths = filter(None, (str((folder / "packages").resolve()), environment.get("PYTHONPATH")))
    runner.environment["PYTHONPATH"] = os.pathsep.join(paths)
    verify = ["-P", "-m", "tlrt", "verify", "--device", "cuda", "--cases", "1"]  # -P: not the modules of this folder
    runner.run("wheel-verify", [sys.executable, *verify], 300)
    runner.environment = environment


def try_older(runner: Runner, capability: str, ops: list[str], cases: list[str], recorded: list[str]) -> None:
    """Builds, verifies and times the library of compute_80; older.json has both. Its PTX is translated for the GPU here, by many
    processes; the driver would do so kernel by kernel in every process."""
    runner.build(
        "build-older",
        "CUDA_ARCHS=compute_80",
        f"NVCCFLAGS=-gencode arch=compute_80,code=sm_{capability}",
        f"CUDA_BUILD={OLDER_LIBRARY.parent.relative_to(ROOT / 'native')}",
    )
    runner.environment["TORCHLEAN_CUDA_LIBRARY"] = str(OLDER_LIBRARY)
    verified, drawn = runner.out / "older-verify.json", runner.out / "older-drawn.json"
    for file, module, limit in (
        (verified, ["tlrt", "verify", "--device", "cuda", *cases], 400),
        (drawn, [*DRAWN, "300", *recorded], 300),
    ):
        runner.run(file.stem, [sys.executable, "-m", *module, *ops, "--json", str(file)], limit)
    runner.environment["TORCHLEAN_CUDA_LIBRARY"] = str(LIBRARY)
    if verified.exists() and drawn.exists():
        checks = {key: read_document(verified)[key] for key in ("command", "verdict", "cases")}
        write_document(runner.out / "older.json", read_document(drawn) | {"verified": checks})


def query_gpu(fields: str) -> str:
    """What nvidia-smi says of these fields; nothing where it does not answer."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def gpu_ranks() -> str:
    """The powers of two up to the number of GPUs."""
    count = max(len(query_gpu("index").splitlines()), 1)
    return ",".join(str(1 << k) for k in range(count.bit_length()))


def load(path: Path) -> Any:
    return read_document(path) if path.exists() else None


def native_capability(parser: argparse.ArgumentParser) -> str:
    """The compute capability of this machine's first GPU, as nvcc's options have it: 90 for 9.0."""
    if not (answer := query_gpu("compute_cap")):
        parser.error("nvidia-smi did not name a GPU's compute capability; give --archs, for instance sm_90a")
    return answer.split()[0].replace(".", "")


def sanitize(runner: Runner, ops: list[str]) -> dict[str, str]:
    """memcheck and racecheck over one case of every operation and data class, and over the paths of each operation that
    has some; their summary lines. Racecheck has a build of its own. It takes minutes where cuBLAS has its part."""
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if tool is None:
        runner.steps["sanitizer"] = {"status": 127, "seconds": 0.0, "command": "compute-sanitizer"}
        return {"missing": "compute-sanitizer is not installed"}
    verify = [sys.executable, "-m", "tlrt", "verify", "--device", "cuda", "--jobs", "1"]  # the tool watches one process
    runs = {f"drawn cases of {ops[1]}" if ops else "": ["--cases", "1", "--size", "medium", *ops]}
    for row in registry.ops(ops[1] if ops else None):
        if row.drawing.paths:
            runs[row.name] = ["--cases", str(len(row.drawing.paths)), "--size", "path", "--ops", row.name]
    summaries: dict[str, str] = {}
    for check in ("memcheck", "racecheck"):
        if check == "racecheck":
            runner.build("build-racecheck", "RACECHECK=1")
            runner.environment["TORCHLEAN_CUDA_LIBRARY"] = str(RACECHECK_LIBRARY)
        for op, arguments in runs.items():
            name = f"{check} {op}".rstrip()
            # special values reach the kernels for those; racecheck, slower, sees what all threads of a block do
            data = ["--data", "normal,special" if check == "memcheck" else "normal"] if "path" in arguments else []
            command = [tool, "--tool", check, "--error-exitcode", "9", *verify, *arguments, *data]
            found = re.findall(
                r"=+ (?:ERROR|RACECHECK) SUMMARY:.*", runner.run(name.replace(" ", "-")[:80], command, 600)
            )
            summaries[name] = found[-1].strip("= ") if found else "no summary"
    runner.environment["TORCHLEAN_CUDA_LIBRARY"] = str(LIBRARY)
    return summaries


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--out", type=Path, default=ROOT / "out", help="folder for the logs and gpu.jsonl (default out/)")
    add("--steps", default=",".join(STEPS), help=f"comma-separated choice of {', '.join(STEPS)}")
    add("--archs", default="native", help="CUDA_ARCHS for the build; 'native' asks the GPU")
    add("--ops", help="limit tests, verify and bench to these operations or families")
    add("--cases", type=int, default=None, help="verify's cases per operation and data class")
    add("--math", choices=(*MATH, "both"), default="fast", help="how the contexts that bench times compute")
    add("--seed", type=int, default=1, help="of the drawn shapes (default 1)")
    add("--commit", default=None, help="the commit to record where git cannot tell")
    args = parser.parse_args(argv)
    steps = [s.strip() for s in args.steps.split(",")]
    if unknown := set(steps) - set(STEPS):
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    runner, python = Runner(args.out), sys.executable
    ops = ["--ops", args.ops] if args.ops else []

    # a step that fails must not pass off an earlier run's file
    for earlier in (*(f"{name}.json" for name in (*STEPS, "older-verify", "older-drawn")), "gpu.jsonl"):
        (args.out / earlier).unlink(missing_ok=True)

    if "build" in steps:
        archs = args.archs
        if archs == "native":
            capability = native_capability(parser)
            archs = f"sm_{capability}a" if capability in ("90", "100") else f"sm_{capability}"
        runner.environment["CUDA_ARCHS"] = archs  # for what the tests build, too
        runner.build("build")
    if "wheel" in steps:
        try_wheel(runner)
    cases = ["--cases", str(args.cases)] if args.cases else []
    recorded = ["--commit", args.commit] if args.commit else []
    if "older" in steps:
        try_older(runner, native_capability(parser), ops, cases, recorded)
    for name, module, narrowed, limit in (
        ("verify", ["tlrt", "verify"], [*ops, *cases], 400),
        ("reproducible", ["tlrt", "verify", "--math", "reproducible"], [*ops, *cases], 400),
        ("determinism", ["audit", "determinism", "--math", "reproducible", "--device", "cuda"], ops, 300),
        ("weights", ["bench.weights", "--devices", "cuda:0"], [], 300),
        ("audits", ["bench.audits", "--device", "cuda"], [], 300),
        ("bench", ["bench", "--device", "cuda", "--no-growth", "--math", args.math], ops, 900),
        ("drawn", [*DRAWN, "750", "--seed", str(args.seed), *recorded], ops, 500),
        ("steps", ["bench.steps", "--device", "cuda", "--compile", "--math", args.math], [], 500),
        ("growth", ["bench.growth", "--device", "cuda"], [], 200),
        ("judge", ["audit", "judge", "--languages", "Triton", "--no-trivial"], [], 300),
        ("models", ["bench.torch_models", "--devices", "cpu,cuda:0", "--batches", "2,8,32"], [], 1800),
        ("bits", ["bench.torch_bits", "--devices", "cpu,cuda:0", "--steps", "50"], [], 1800),
        ("ranks", [*RANKS, "--ranks", gpu_ranks()], [], 1800),
        ("mutants", [*MUTANTS, "--jobs", str(max((os.cpu_count() or 2) // 2, 1))], [], 1700),
    ):
        if name in steps:
            report_file = ["--json", str(args.out / f"{name}.json")]
            runner.run(name, [python, "-m", *module, *report_file, *narrowed], limit)
    sanitizer = sanitize(runner, ops) if "sanitizer" in steps else {}
    if "tests" in steps:
        # the tests are many processes: few threads each
        runner.environment |= {"OPS": args.ops or "", "OPENBLAS_NUM_THREADS": "1", "TORCHLEAN_CPU_THREADS": "2"}
        spread = ["-n", str(min(os.cpu_count() or 2, 16)), "--dist", "worksteal"]
        runner.run("tests", [python, "-m", "pytest", "-vv", "--durations", "40", *spread], 900)

    gpu = query_gpu("name,driver_version,memory.total") or "unknown"
    revision = args.commit or commit() or "unknown"
    document = {"date": now(), "commit": revision, "gpu": gpu, "devices": {"cuda:0": f"{gpu}, "},
                "platform": platform.platform(), "python": platform.python_version(), "steps": runner.steps,
                "sanitizer": sanitizer, "verify": load(args.out / "verify.json"), "bench": load(args.out / "bench.json"),
                "training_steps": load(args.out / "steps.json"), "growth": load(args.out / "growth.json")}  # fmt: skip
    write_document(args.out / "gpu.jsonl", document)
    apart = (load(args.out / f"{name}.json") for name in ("reproducible", "determinism", "drawn", "mutants"))
    for found in (document, *filter(None, apart)):
        write_summaries({"commit": revision, **found}, args.out / "summaries")
    rows = [(name, step["status"], step["seconds"]) for name, step in runner.steps.items()]
    print("\n" + format_table(("step", "exit", "seconds"), rows))
    for name, text in sanitizer.items():
        print(f"{name}: {text}")
    print(f"report: {args.out / 'gpu.jsonl'}")
    return int(any(step["status"] for step in runner.steps.values()))


if __name__ == "__main__":
    sys.exit(main())
