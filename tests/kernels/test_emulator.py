"""What the emulated CUDA device finds in kernels: each planted fault ends the program with a message, or changes a result."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import ROOT
from tlspec.draw.cases import generator

HEADERS = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
COMPILER = os.environ.get("CXX", "g++")
#: kernels of one array each, and what launches the one that is asked for
KERNELS = """
#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>

__device__ int x[1 << 12];

/* The sum over a warp, as a full mask has it. */
__global__ void sum_warp()
{
    int value = (int)threadIdx.x;
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    x[threadIdx.x] = value;
}
/* The same of the warp's lanes that have a row; the others have gone. */
__global__ void sum_rows(int rows)
{
    if ((int)threadIdx.x >= rows) return;
    int value = 1;
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_down_sync(0xffffffffu, value, offset);
    x[threadIdx.x] = value;
}
__global__ void vote() { x[threadIdx.x] = (int)__ballot_sync(0xffffffffu, 1); }
/* Lanes that exist and take part, beside those that wait for nobody. */
__global__ void sum_some(int lanes)
{
    const unsigned mask = (1u << lanes) - 1;
    if ((int)threadIdx.x < lanes) x[threadIdx.x] = (int)__reduce_add_sync(mask, threadIdx.x);
    __syncwarp();
}
/* A lane that its own mask has not. */
__global__ void outsider(int lane) { x[threadIdx.x] = __shfl_sync(~(1u << lane), (int)threadIdx.x, !lane); }
/* A lane outside of the mask is read. */
__global__ void stranger(int lanes)
{
    if ((int)threadIdx.x < lanes) x[threadIdx.x] = __shfl_sync((1u << lanes) - 1, (int)threadIdx.x, lanes);
}
/* Each block writes its rows, and the planted one those of its neighbour. */
__global__ void rows_of_blocks(int count, int beyond)
{
    const int block = (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
    for (int i = (int)threadIdx.x; i < count + beyond; i += (int)blockDim.x)
        x[block * count + i] = block + 1;
}

template <class... P, class... A> static void launch(void (*kernel)(P...), dim3 grid, unsigned threads, A... arguments)
{
    cudaLaunchConfig_t config{};
    config.gridDim = grid, config.blockDim = threads;
    cudaLaunchKernelEx(&config, kernel, arguments...);
}

int main(int, char **argv)
{
    const int which = atoi(argv[1]), a = atoi(argv[2]), b = atoi(argv[3]), shown = atoi(argv[4]);
    if (which == 0) launch(sum_warp, 1, (unsigned)a);
    if (which == 1) launch(sum_rows, 1, (unsigned)a, b);
    if (which == 2) launch(vote, 1, (unsigned)a);
    if (which == 3) launch(sum_some, 1, (unsigned)a, b);
    if (which == 4) launch(outsider, 1, (unsigned)a, b);
    if (which == 5) launch(stranger, 1, (unsigned)a, b);
    if (which == 6) launch(rows_of_blocks, 7, 32, a, b);
    if (which == 7) launch(rows_of_blocks, dim3(2, 3, 4), 32, a, b);
    for (int i = 0; i < shown; i++)
        printf("%d ", x[i]);
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (shutil.which(COMPILER) and (HEADERS / "cuda_runtime.h").exists()):
        pytest.skip("no C++ compiler, or no headers of CUDA")
    folder, emulator = tmp_path_factory.mktemp("emulated"), ROOT / "native/emulator"
    (folder / "kernels.cu").write_text(KERNELS)
    sources = ("-x", "c++", folder / "kernels.cu", emulator / "block.cpp", emulator / "runtime.cpp")
    flags = (
        "-std=c++17",
        "-D_GNU_SOURCE",
        "-w",
        "-O1",
        "-pthread",
        f"-I{emulator}",
        "-isystem",
        HEADERS,
        "-include",
        "language.h",
    )
    subprocess.run([COMPILER, *flags, "-include", "language.h", *sources, "-o", folder / "program"], check=True)
    return folder / "program"


def outcome(program: Path, *arguments: int, order: str = "") -> tuple[int, list[int], str]:
    """The program's status, the numbers that it shows and what it says of errors."""
    environment = {**os.environ, "TORCHLEAN_EMULATOR_ORDER": order}
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, env=environment, check=False)
    return done.returncode, [*map(int, done.stdout.split())], done.stderr


def drawn(name: str, low: int, high: int) -> int:
    return int(generator("emulator", name).integers(low, high))


@pytest.mark.parametrize("order", ["", "backwards", "shuffled"])
def test_shuffles_among_lanes_that_exist(program: Path, order: str) -> None:
    warps, lanes = drawn("warps", 1, 9), drawn("lanes", 1, 32)
    status, found, said = outcome(program, 0, 32 * warps, 0, 32 * warps, order=order)
    assert not status and found == [sum(range(32 * w, 32 * w + 32)) for w in range(warps) for _ in range(32)], said
    status, found, said = outcome(program, 3, 32 + drawn("rest", 1, 32), lanes, lanes, order=order)
    assert not status and found == [lanes * (lanes - 1) // 2] * lanes, said


@pytest.mark.parametrize("name", ["block", "ended", "vote", "outsider", "stranger"])
@pytest.mark.parametrize("order", ["", "backwards", "shuffled"])
def test_a_shuffle_of_lanes_that_take_no_part_is_an_error(program: Path, name: str, order: str) -> None:
    rest = drawn(name, 1, 31)
    arguments, said = {
        "block": ((0, 96 + rest, 0), f"or are not in the block: {2**32 - 2**rest:08x}"),
        "ended": ((1, 32, rest), f"of lanes that have ended or are not in the block: {2**32 - 2**rest:08x}"),
        "vote": ((2, 64 + rest, 0), f"or are not in the block: {2**32 - 2**rest:08x}"),
        "outsider": ((4, 32, rest), f"lane {rest}: a shuffle or a vote without the caller in its mask"),
        "stranger": ((5, 32, rest), f"a lane outside of its mask, which is {2**rest - 1:08x}"),
    }[name]  # fmt: skip
    status, _, text = outcome(program, *arguments, 0, order=order)
    assert status < 0 and said in text, text


def test_another_order_of_blocks_shows_one_that_writes_its_neighbours_rows(program: Path) -> None:
    count, beyond = drawn("count", 33, 99), drawn("beyond", 1, 32)
    right = [b + 1 for b in range(7) for _ in range(count)]
    for order in ("", "backwards", "shuffled"):
        assert outcome(program, 6, count, 0, 7 * count, order=order)[1] == right
    assert outcome(program, 6, count, beyond, 7 * count)[1] == right  # who comes later repairs it
    for order in ("backwards", "shuffled"):
        assert outcome(program, 6, count, beyond, 7 * count, order=order)[1] != right
    backwards = [min(b + (i < beyond) * -1 + 1, 7) if b else 1 for b in range(7) for i in range(count)]
    assert outcome(program, 6, count, beyond, 7 * count, order="backwards")[1] == backwards


def test_an_order_that_there_is_not_is_an_error(program: Path) -> None:
    status, _, said = outcome(program, 7, 1, 0, 24, order="sideways")
    assert status < 0 and "got sideways, expected forwards, backwards or shuffled" in said


@pytest.mark.parametrize("order", ["", "forwards", "backwards", "shuffled"])
def test_each_block_of_a_grid_of_three_axes_runs(program: Path, order: str) -> None:
    assert outcome(program, 7, 1, 0, 24, order=order)[1] == [*range(1, 25)]
