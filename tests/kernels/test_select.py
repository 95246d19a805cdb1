"""Which algorithm each shape of a model takes on a GPU: the functions of native/src/cuda/*/select.h, compiled for the host.

A family is an entry of :data:`FAMILIES`. ``python -m tests.kernels.test_select`` prints the tables as they are now."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT

pytestmark = [pytest.mark.every_choice, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")]

SOURCE = ROOT / "native/src"


@dataclass(frozen=True)
class Family:
    """`choose` is the C expression of the algorithm, one of the constants of `enum` after their prefix, of a row's numbers v[0],
    v[1], ...; a line of `table` is the row's name in words, its numbers, and what they take in each of the `settings`, which are
    numbers that follow the row's."""

    header: str
    enum: str
    choose: str
    settings: dict[str, tuple[int, ...]]
    table: str

    def rows(self) -> Iterator[tuple[str, tuple[int, ...], tuple[str, ...]]]:
        """The name, the numbers and the algorithms of each line."""
        for line in self.table.strip().splitlines():
            found = re.fullmatch(r"(.*?):((?: +-?\d+)+)((?: +[A-Z0-9_]+)+)", line.strip())
            assert found, line
            yield found[1], tuple(map(int, found[2].split())), tuple(found[3].split())


#: batch, m, n, p, whether A and B are transposed, whether there is a bias; then the device and the mode
PRODUCT = """(int)tl_select_product(
    (tl_product_shape){v[0], v[1], v[2], v[3], v[4], v[5], v[6], true, false, (v[4] ? v[1] : v[2]) % 4 == 0,
                       (v[5] ? v[2] : v[3]) % 4 == 0, v[3] % 4 == 0},
    (tl_product_device){(int)v[7], v[8], v[9], v[10]}, v[11])"""
FAMILIES = {
    "linalg": Family(
        "cuda/linalg/select.h", "tl_product_algorithm", PRODUCT,
        {"H200": (132, 1, 1, 1, 0), "A100": (108, 0, 1, 0, 0), "RTX 4090": (128, 0, 0, 0, 0), "reproducible": (132, 0, 1, 1, 1)},
        """
        ViT-S projection, batch 1:             1    197   384  1152  0 1 1  MMA    MMA    MMA    CHAIN
        ViT-B projection, batch 1:             1    197   768   768  0 1 1  CHAIN  CUBLAS CUBLAS CHAIN
        ViT-B layer, batch 1:                  1    197   768  3072  0 1 1  WGMMA  MMA    MMA    CHAIN
        ViT-B layer, batch 8:                  1   1576   768  3072  0 1 1  WGMMA  MMA    MMA    CHAIN
        gradient of its input:                 1   1576  3072   768  0 0 0  WGMMA  MMA    MMA    CHAIN
        gradient of its weights:               1   3072  1576   768  1 0 0  WGMMA  MMA    MMA    CHAIN
        BERT layer, batch 1:                   1    512   768  3072  0 1 1  WGMMA  MMA    MMA    CHAIN
        long sums of few tiles:                1    512  3072   768  0 0 0  CHAIN  MMA    MMA    CHAIN
        Llama layer, batch 64:                 1  65536  1024  4096  0 1 0  WGMMA  MMA    MMA    CHAIN
        head of 50257 words:                   1    512   768 50257  0 1 0  WGMMA  CUBLAS CUBLAS CHAIN
        gradient of its input:                 1   4096 50257   768  0 0 0  WGMMA  CUBLAS CUBLAS CHAIN
        head of 32000 words:                   1   4096  1024 32000  0 1 0  WGMMA  MMA    MMA    CHAIN
        one token against 50257 words:         1      1   768 50257  0 1 0  GEMV   GEMV   CUBLAS CHAIN
        one token in a layer:                  1      1  4096 11008  0 1 0  GEMV   GEMV   CUBLAS CHAIN
        a vector times a matrix:               1      1  4096  4096  0 0 0  GEMV   GEMV   CUBLAS CHAIN
        ResNet-50 classifier, batch 1:         1      1  2048  1000  0 1 1  GEMV   GEMV   CUBLAS CHAIN
        gradient of its weights:               1   1000     1  2048  0 0 0  THIN   THIN   CUBLAS THIN
        ResNet-50 classifier, batch 8:         1      8  2048  1000  0 1 1  CHAIN  CUBLAS CUBLAS CHAIN
        gradient of its weights:               1   1000     8  2048  1 0 0  THIN   THIN   CUBLAS THIN
        ResNet-50 classifier, batch 64:        1     64  2048  1000  0 1 1  CHAIN  CUBLAS CUBLAS CHAIN
        LSTM gates, batch 1:                   1      1   512  2048  0 1 1  GEMV   GEMV   CUBLAS CHAIN
        LSTM gates, batch 64:                  1     64   512  2048  0 1 1  CHAIN  CUBLAS CUBLAS CHAIN
        gradient of their weights, batch 8:    1   2048     8   512  1 0 0  THIN   THIN   CUBLAS THIN
        gradient of ten classes' weights:      1     10     8   512  1 0 0  DIRECT DIRECT CUBLAS DIRECT
        adapters of rank 8:                    1   4096     8   768  0 1 0  THIN   THIN   CUBLAS THIN
        their other half:                      1   4096   768     8  0 1 0  CHAIN  CUBLAS CUBLAS CHAIN
        Mamba's parameters of a step:          1  32768  1536    80  0 1 0  WGMMA  MMA    MMA    CHAIN
        GNN layer, 100,000 nodes:              1 100000    64    64  0 1 1  WGMMA  MMA    MMA    CHAIN
        GNN of 7 classes:                      1  10000    64     7  0 1 1  CHAIN  CUBLAS CUBLAS CHAIN
        scores of 12 heads, batch 8:          96    512    64   512  0 1 0  WGMMA  MMA    MMA    CHAIN
        many small products:                4096     64    64    64  0 0 0  MMA    MMA    MMA    CHAIN
        many smaller ones:                  4096     20    20    20  0 0 0  CUBLAS CUBLAS CUBLAS CHAIN
        very many tiny ones:                  20000    5     8     5  0 0 0  DIRECT DIRECT CUBLAS DIRECT
        """),
}  # fmt: skip


def choices(family: Family, folder: Path) -> list[tuple[str, ...]]:
    """What each row of the table takes in each setting, by a C program that includes the header alone."""
    header = (SOURCE / family.header).read_text()
    body = re.search(rf"typedef enum \{{([^}}]*)\}} {family.enum};", header)
    assert body, (family.header, family.enum)
    names = re.findall(r"^ *(\w+),", re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL), re.MULTILINE)
    prefix = names[0][: names[0].rindex("_") + 1]
    calls = [(*numbers, *setting) for _, numbers, _ in family.rows() for setting in family.settings.values()]
    program = f"""
        #include <stdio.h>
        #include "{family.header}"
        static const char *const names[] = {{{", ".join(f'"{n.removeprefix(prefix)}"' for n in names)}}};
        static const int64_t rows[][{len(calls[0])}] = {{{", ".join("{" + ", ".join(map(str, c)) + "}" for c in calls)}}};
        int main(void)
        {{
            for (const int64_t *v = rows[0]; v < rows[0] + sizeof rows / sizeof v[0]; v += sizeof rows[0] / sizeof v[0])
                puts(names[{family.choose}]);
        }}
    """
    built = folder / "choose"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-I", str(SOURCE), "-I", str(ROOT / "native/include")]
    subprocess.run(["cc", *flags, "-o", built, "-xc", "-"], input=program, text=True, check=True)
    found = subprocess.run([built], capture_output=True, text=True, check=True).stdout.split()
    each = len(family.settings)
    return [tuple(found[i : i + each]) for i in range(0, len(found), each)]


def print_table(family: Family, found: Sequence[tuple[str, ...]]) -> None:
    print(*family.settings, sep=", ")
    for (name, numbers, _), taken in zip(family.rows(), found, strict=True):
        print(f"{name + ':':36s}", *(f"{n:6d}" for n in numbers), *(f"{t:7s}" for t in taken))


@pytest.mark.parametrize("name", FAMILIES)
def test_models_take_the_algorithms_that_are_written_down(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    found = choices(family, tmp_path)
    assert dict(zip((row[:2] for row in family.rows()), found, strict=True)) == {
        row[:2]: row[2] for row in family.rows()
    }


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        for chosen in FAMILIES.values():
            print_table(chosen, choices(chosen, Path(made)))
