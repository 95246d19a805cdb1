"""The campaign of failing allocations at the size of a test run, and planted defects that it must report."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from audit import faults
from audit.environment import ROOT
from tests import DEVICES, python_path

pytestmark = [
    pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine"),
    pytest.mark.skipif("asan" in os.environ.get("TORCHLEAN_CUDA_LIBRARY", ""), reason="builds of its own"),
]


@pytest.mark.parametrize("device", DEVICES)
def test_allocations_of_some_entry_points_fail_cleanly(device):
    document = faults.campaign([device], every=11)
    (row,) = document["devices"]
    assert row["failures"] == []
    calls = row["calls"]
    assert calls["trials"] > 100 and calls["raised"] > 15 and calls["untouched"] > 15
    assert "pool.c" in {place.partition(":")[0] for place in calls["places"]}


#: defects of the handling of failures: file, text, what becomes of it, words of the report
PLANTED = [
    (
        "native/src/core/call.c", "            tl_buffer_end(ctx, made);\n", "            (void)made;\n",
        "live (buffers, bytes) afterwards",
    ),
    ("native/src/core/handles.c", "            if (base) {", "            if (1) {", "ended with status -"),
    (
        "native/src/core/pool.c", '? no_memory(pool, bytes, pool->cuda ? "out of device memory" : "out of memory")',
        '? tl_fail(TORCHLEAN_INTERNAL, "no memory")', "InternalError",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("file", "old", "new", "words"), PLANTED, ids=range(len(PLANTED)))
def test_planted_defects_are_seen(tree, file, old, new, words):
    with tree.edited(file, old, new):
        environment = {k: v for k, v in os.environ.items() if k != "TORCHLEAN_CUDA_LIBRARY"}
        done = subprocess.run(
            [sys.executable, "-m", "audit", "faults", "--device", "cpu", "--every", "23", "--json", "out.json"],
            cwd=tree.folder, capture_output=True, text=True, check=False,
            env={**environment, "PYTHONPATH": python_path(tree.folder)},
        )  # fmt: skip
        document = json.loads((tree.folder / "out.json").read_text())
    assert done.returncode == 1
    (row,) = document["faults"]["devices"]
    assert any(words in f for f in row["failures"]), row["failures"]


def test_the_switch_is_in_no_library_that_ships():
    """The names of the test build are exported by it alone."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")

    def exported(library) -> set[str]:
        text = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
        return {line.split()[-1] for line in text.splitlines()}

    extra = exported(faults.build()) - exported(ROOT / "native/build/cpu/libtorchlean_cuda.so")
    assert {n.rpartition("cuda_")[2] for n in extra} == {"faults", "faults_seen", "faults_failed", "faults_where"}


@pytest.mark.parametrize("device", DEVICES)
def test_a_shortage(device):
    """Under a cap, as tests beside this one use the same GPU; the campaign uses one up for real."""
    document = faults.out_of_memory(device, cap=1 << 30)
    assert document["failures"] == [] and "asked for" in document["message"]
