"""CUDA kernels that start while the one before still runs wait for it before they read memory."""

import re

from tests import ROOT
from tests.repo.tree import files, name

_KERNEL = re.compile(r"__global__((?:(?!__global__).)*?)\btl_wait_for_earlier\(", re.S)
#: launches by tl_launch_ahead and tl_start_ahead of a kernel, as "kernel<...>" or "kernel"
_LAUNCHED = re.compile(r"tl_(?:launch|start)_ahead\((?:[^,;]*,){2}\s*(\w+)")


def sources() -> dict[str, str]:
    """The CUDA sources without comments, by file."""
    found = files(".cu", ".cuh", root=ROOT / "native/src/cuda")
    return {name(p): re.sub(r"/\*.*?\*/|//[^\n]*", "", p.read_text(), flags=re.S) for p in found}


def test_kernels_that_wait_have_no_restricted_pointers() -> None:
    """The compiler takes what a restricted pointer to const reads for constant, and moves the load above the wait."""
    waiting = [(file, m[1]) for file, text in sources().items() for m in _KERNEL.finditer(text)]
    assert len(waiting) >= 8
    assert not [file for file, text in waiting if "__restrict__" in text or "__ldg" in text]


def test_kernels_that_are_launched_ahead_wait() -> None:
    texts = sources()
    waiting = {k for text in texts.values() for m in _KERNEL.finditer(text) for k in re.findall(r"\b(\w+)\(", m[1])}
    launched = {m[1] for text in texts.values() for m in _LAUNCHED.finditer(text)} - {"void"}
    named = {"kernel"}  # a variable that has one of several instances
    assert launched - named and launched - named <= waiting, launched - named - waiting
