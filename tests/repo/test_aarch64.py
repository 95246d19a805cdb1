"""The CPU library for another processor: cross-compiled for aarch64 and run in an emulator, it has the bits of this machine's."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import tlrt
from tests import ROOT

COMPILER, EMULATOR, LIBRARIES = "aarch64-linux-gnu-gcc", "qemu-aarch64", "/usr/aarch64-linux-gnu"


def run(*command: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, cwd=ROOT / "native")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(
    not all(map(shutil.which, (COMPILER, EMULATOR))),
    reason=f"no {COMPILER}, or no {EMULATOR}: gcc-aarch64-linux-gnu, qemu-user",
)
def test_the_library_has_the_same_bits_on_aarch64(tmp_path: Path) -> None:
    build, source = tmp_path / "build", ROOT / "examples/c/train.c"
    run("make", "-j2", "cpu", f"CC={COMPILER}", f"BUILD={build}")
    link = ("-O1", f"-I{ROOT}/native/include", source, "-ltorchlean_cuda", "-lm", "-o")
    run(COMPILER, f"-L{build}", *link, tmp_path / "there")
    here = Path(tlrt.get_library()).parent
    run(os.environ.get("CC", "cc"), f"-L{ROOT}/native/build/cpu", f"-Wl,-rpath,{here}", *link, tmp_path / "here")
    found = run(EMULATOR, "-L", LIBRARIES, "-E", f"LD_LIBRARY_PATH={build}", tmp_path / "there", "cpu")
    assert found == run(tmp_path / "here", "cpu") and "loss" in found
