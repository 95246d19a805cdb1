"""``python -m tlrt doctor``: what was built, which devices are seen, and what to do when something is missing."""

import argparse
import ctypes
import importlib
import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tlrt._terminal import program_name

__all__ = ["Report", "examine", "main"]

#: compute capabilities with half as many float64 units as float32 units, or as many; others have one for 32 or 64 (NVIDIA's CUDA
#: programming guide, throughput of arithmetic instructions)
FULL_FLOAT64 = {"6.0", "7.0", "8.0", "9.0", "10.0"}


@dataclass
class Report:
    """The findings about an installation and a machine.

    Parameters
    ----------
    facts : dict of str to object
        In the order of the listing.
    devices : dict of str to str
        The devices that work, and what they are.
    problems : list of (str, str)
        What makes the package unusable, and what to do.
    notes : list of (str, str)
        What is missing while the rest works, and what to do.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)
    #: makes the package unusable: (problem, remedy)
    problems: list[tuple[str, str]] = field(default_factory=list)
    #: something is missing, but the rest works
    notes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether the package can be used.

        Returns
        -------
        bool
            True without a problem.
        """
        return not self.problems

    def json(self) -> str:
        """The findings as JSON.

        Returns
        -------
        str
            An indented document.
        """

        def pairs(items: list[tuple[str, str]]) -> list[dict[str, str]]:
            return [{"problem": a, "remedy": b} for a, b in items]

        document = {"usable": self.usable, **self.facts, "devices": self.devices, "problems": pairs(self.problems),
                    "notes": pairs(self.notes)}  # fmt: skip
        return json.dumps(document, indent=2)

    def text(self) -> str:
        """The findings as a listing.

        Returns
        -------
        str
            One fact a line, then problems and notes, each with what to do.
        """
        rows = [(key.replace("_", " "), str(value)) for key, value in self.facts.items()]
        rows += [(f"device {name}", text) for name, text in self.devices.items()]
        width = max((len(key) for key, _ in rows), default=0)
        out = [f"{key:<{width}}  {value}" for key, value in rows]
        for title, items in (("problem", self.problems), ("note", self.notes)):
            for text, remedy in items:
                indent = "\n" + " " * (len(title) + 2)
                lines = (f"{title}: {text}", f"{'do':>{len(title)}}: {remedy}")
                out += ["", *(line.replace("\n", indent) for line in lines)]
        out += ["", "usable: " + (f"yes, on {', '.join(self.devices)}" if self.usable else "no")]
        return "\n".join(out)


def examine() -> Report:
    """Looks at this installation and this machine.

    Returns
    -------
    Report
        Facts, devices and problems.

    Examples
    --------
    >>> from tlrt import doctor
    >>> report = doctor.examine()
    >>> report.usable, "cpu" in report.devices
    (True, True)
    """
    report = Report()
    facts = report.facts
    facts["python"] = f"{platform.python_version()} ({sys.executable})"
    facts["platform"] = f"{platform.system()} {platform.machine()}"
    for name in ("numpy", "cffi"):
        try:
            facts[name] = importlib.import_module(name).__version__
            importlib.import_module({"cffi": "_cffi_backend"}.get(name, name))
        except ImportError as error:
            facts[name] = "not usable"
            report.problems.append((f"{name}: {error}", f"run `{sys.executable} -m pip install {name}`"))
    if report.problems:
        return report
    from tlrt import __version__, context
    from tlrt._binding import library as binding
    from tlrt.errors import LibraryNotFoundError, StaleLibraryError, TorchleanError

    facts["tlrt"] = __version__
    try:
        library = binding.load()
    except (LibraryNotFoundError, StaleLibraryError) as error:
        facts["library"] = "stale" if isinstance(error, StaleLibraryError) else "not found"
        report.problems.append((error.problem, error.remedy))
        return report
    facts["library"] = str(library.path)
    facts["abi"] = f"matches ({library.hash[:16]}…)"
    facts.update(library.build_info)
    facts["cpu_variant"] = context.cpu_variant()
    facts["threads"] = context.threads()
    if library.version != __version__:
        report.notes.append((f"library {library.version} with tlrt {__version__}", binding.remedy()))
    if (sync := os.environ.get("TORCHLEAN_CUDA_SYNC", "")) not in ("", "0", "1"):
        report.notes.append((f"TORCHLEAN_CUDA_SYNC: got {sync!r}, expected 0 or 1", "set it to 1, or unset it"))
    for name in context.devices():
        try:
            report.devices[name] = _with_float64(context.describe(name))
            with context.Device(name) as opened, opened.buffer([1.0, 2.0]) as buffer:
                if buffer.numpy().tolist() != [1.0, 2.0]:
                    raise RuntimeError("an upload and download changed the data")
        except (TorchleanError, RuntimeError) as error:
            report.devices.pop(name, None)
            where = report.problems if name == "cpu" else report.notes
            where.append((f"{name}: {error}", _device_remedy(name, error)))
    if len(context.devices()) == 1:
        _explain_no_cuda(report, "cuda" in library.build_info.get("backend", ""))
    return report


def _with_float64(description: str) -> str:
    """A GPU's description, and what the rate of its float64 means for reproducible contexts; that of a CPU as it is."""
    capability = re.search(r"compute capability (\d+\.\d+)", description)
    if capability is None:
        return description
    if capability[1] in FULL_FLOAT64:
        return f"{description}; float64 is fast, which reproducible contexts compute in"
    return f"{description}; float64 has 1/32 or 1/64 of float32's rate, so reproducible contexts work, slower"


def _device_remedy(name: str, error: Exception) -> str:
    from tlrt.errors import OutOfMemoryError

    if variable := re.search(r"TORCHLEAN_[A-Z_]+", str(error)):
        return f"unset {variable[0]}, or set it to a value that is expected"
    if name == "cpu":
        return "free some memory" if isinstance(error, OutOfMemoryError) else "report this with the listing above"
    return "close other programs on the device, or try another device"


def _explain_no_cuda(report: Report, cuda_build: bool) -> None:
    """Says what keeps CUDA from being used: the build, the driver or the GPU."""
    from tlrt import context
    from tlrt._binding import library as binding
    from tlrt.errors import TorchleanError

    driver = _driver()
    report.facts["cuda_driver"] = driver or "none"
    if not cuda_build:
        remedy = "only if this machine has an NVIDIA GPU: install its driver, then\n" + binding.remedy(cuda=True)
        if driver:
            remedy = "to use the GPU: " + binding.remedy(cuda=True)
        report.notes.append(("this is a CPU-only build", remedy))
        return
    try:
        reason = context.describe("cuda:0")
    except TorchleanError as error:
        reason = str(error)
    if not driver:
        remedy = "install the NVIDIA driver (libcuda.so.1 does not load); the CPU path works without it"
    elif os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        remedy = "unset CUDA_VISIBLE_DEVICES, which hides every GPU"
    else:
        remedy = "check that `nvidia-smi` lists a GPU and that its driver is as new as the build's CUDA toolkit"
    report.notes.append((f"no CUDA device: {reason}", remedy))


def _driver() -> str:
    """The CUDA version of the driver, "" without one. Asks in the least intrusive way: nothing is initialised."""
    try:
        version = ctypes.c_int(0)
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) == 0:
            return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    except (OSError, AttributeError):
        pass
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    """The command ``python -m tlrt doctor``.

    Parameters
    ----------
    argv : sequence of str, optional
        Its arguments; those of the process unless given.

    Returns
    -------
    int
        0 when the library is usable, else 1.
    """
    parser = argparse.ArgumentParser(
        prog=program_name("doctor"),
        description="Says what was built, which devices are seen, and what to do when something is missing.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    arguments = parser.parse_args(argv)
    report = examine()
    print(report.json() if arguments.json else report.text())
    return 0 if report.usable else 1
