"""What setuptools cannot say in pyproject.toml: the C library is built with make and carried in the wheel.

``TORCHLEAN_BUILD=cuda`` in the environment builds the CUDA library, with nvcc and with cuBLAS and cuFFT from the packages
that the extra ``cuda`` names, which the wheel then depends on; the default, ``cpu``, needs only make and a C compiler.
``TORCHLEAN_VARIANTS`` names the SIMD variants of the CPU kernels. The default, ``native``, compiles the base and the widest
variant of this processor. ``all`` is for a wheel that other machines install. The library is loaded with cffi and knows
nothing of Python, so the wheel fits every Python 3 of the platform. A CUDA wheel has a build tag, by which pip prefers it and
by which the two differ in their names.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
KIND = os.environ.get("TORCHLEAN_BUILD", "cpu")
if KIND not in ("cpu", "cuda"):
    raise SystemExit(f"setup: TORCHLEAN_BUILD: got {KIND!r}, expected 'cpu' or 'cuda'")
VARIANTS = os.environ.get("TORCHLEAN_VARIANTS", "native")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
#: what the CUDA library is linked with
LINKED = EXTRAS["cuda"] if KIND == "cuda" else []
#: what it loads besides
LOADED = EXTRAS["nccl"] if KIND == "cuda" else []
HEADERS = ("torchlean_cuda.h", "torchlean_cuda_ops.h", "torchlean_cuda_version.h")


class BuildLibrary(build_py):
    """Copies the Python files and builds the library into ``tlrt/_lib``. An editable install uses ``native/build``."""

    def run(self):
        super().run()
        jobs = len(os.sched_getaffinity(0))
        command = ["make", "-C", str(ROOT / "native"), f"-j{jobs}", KIND, f"PYTHON={sys.executable}"]
        if VARIANTS != "all" and not self.editable_mode:  # tests compare all variants
            command.append(f"VARIANTS={VARIANTS}")
        print(f"compiling the C library with {jobs} processes", flush=True)
        if KIND == "cuda" and not self.editable_mode:  # packages lie side by side where the wheel is installed
            command.append("MATH_RPATH=$$ORIGIN/../../nvidia/cu13/lib")
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            raise SystemExit("setup: make: got no such program, expected make and a C compiler on PATH") from None
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"setup: `{' '.join(command)}` failed with status {error.returncode}") from None
        if self.editable_mode:
            return
        for source, name in self._files().items():
            target = Path(self.build_lib) / "tlrt" / "_lib" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)

    @staticmethod
    def _files():
        """Source -> name in tlrt/_lib. The C++ files are compiled for the user's PyTorch when tlrt.torch first needs them."""
        library = ROOT / "native" / "build" / KIND / "libtorchlean_cuda.so"
        headers = {ROOT / "native" / "include" / header: header for header in HEADERS}
        shim = {path: f"torch/{path.name}" for path in sorted((ROOT / "native" / "torch").iterdir())}
        return {library: library.name, **headers, **shim}

    def get_outputs(self, include_bytecode=True):
        folder = Path(self.build_lib) / "tlrt" / "_lib"
        return [*super().get_outputs(include_bytecode), *(str(folder / name) for name in self._files().values())]


class PlatformWheel(bdist_wheel):
    """Tags the wheel py3-none-PLATFORM."""

    def finalize_options(self):
        if KIND == "cuda":
            self.build_number = "1cuda13"
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(
    cmdclass={"build_py": BuildLibrary, "bdist_wheel": PlatformWheel}, distclass=PlatformDistribution,
    install_requires=[*EXTRAS["runtime"], *dict.fromkeys([*LINKED, *LOADED])], setup_requires=LINKED,
)  # fmt: skip
