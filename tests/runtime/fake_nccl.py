"""The library that tests put in the place of NVIDIA's NCCL."""

import subprocess
from pathlib import Path

from tests import ROOT


def build_fake_nccl(folder: Path) -> str:
    """Compiles it; the file."""
    made = folder / "libfake_nccl.so"
    flags = ["-shared", "-fPIC", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    flags.append("-Wl,-Bsymbolic")  # its functions call each other, and not those of an NCCL that is loaded, too
    subprocess.run(["cc", *flags, "-o", made, ROOT / "tests/native/fake_nccl.c"], check=True)
    return str(made)
