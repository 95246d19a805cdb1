"""Which algorithms the shapes of models take on a GPU: the functions of native/src/cuda/*/select.h, by ``tlrt explain``.

``python -m tests.kernels.test_select`` prints what each row of bench/model_rows.json takes."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from bench import models
from tests import ROOT
from tlrt import explain as module
from tlrt._binding.library import load
from tlrt.explain import Card, explain
from tlspec.registry import MATH

pytestmark = pytest.mark.every_choice

H200, A100, RTX_4090 = Card(), Card(108, "8.0"), Card(128, "8.9")
#: of a product: batch, m, n, p, whether A and B are transposed, whether there is a bias; what it takes on an H200, an A100 and an
#: RTX 4090, and in the mode `reproducible`
PRODUCTS = """
    ViT-S projection, batch 1:             1    197   384  1152  0 1 1  CHAIN  MMA    MMA    CHAIN
    ViT-B projection, batch 1:             1    197   768   768  0 1 1  CHAIN  CUBLAS CUBLAS CHAIN
    ViT-B layer, batch 1:                  1    197   768  3072  0 1 1  WGMMA  MMA    MMA    CHAIN
    ViT-B layer, batch 8:                  1   1576   768  3072  0 1 1  WGMMA  MMA    MMA    CHAIN
    gradient of its input:                 1   1576  3072   768  0 0 0  WGMMA  MMA    MMA    CHAIN
    gradient of its weights:               1   3072  1576   768  1 0 0  WGMMA  MMA    MMA    CHAIN
    gradient of a projection's weights:    1    768  1576   768  1 0 0  CHAIN  MMA    MMA    CHAIN
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
    many small products:                4096     64    64    64  0 0 0  CHAIN  MMA    MMA    CHAIN
    many smaller ones:                  4096     20    20    20  0 0 0  CUBLAS CUBLAS CUBLAS CHAIN
    very many tiny ones:                  20000    5     8     5  0 0 0  DIRECT DIRECT CUBLAS DIRECT
"""
#: name; batch, groups, channels and rows of a group, size, kernel, stride, padding; forward, gradient of x, gradient of w
LAYERS = {
    "ResNet's first": ((8, 1, 3, 64, 224, 7, 2, 3), "mma mma mma"),
    "ResNet's 3 x 3": ((8, 1, 64, 64, 56, 3, 1, 1), "wgmma wgmma wgmma"),
    "ResNet's 3 x 3 of one small image": ((1, 1, 512, 512, 7, 3, 1, 1), "wgmma wgmma mma"),
    "ResNet's 1 x 1": ((64, 1, 2048, 512, 7, 1, 1, 0), "wgmma wgmma chain"),
    "ViT's patches": ((8, 1, 3, 768, 224, 16, 16, 0), "mma mma mma"),
    "ConvNeXt's patches": ((8, 1, 3, 96, 224, 4, 4, 0), "direct mma mma"),
    "ConvNeXt's downsampling": ((8, 1, 96, 192, 56, 2, 2, 0), "wgmma wgmma wgmma"),
    "ConvNeXt's depthwise": ((8, 96, 1, 1, 56, 7, 1, 3), "direct direct direct"),
    "EfficientNet's depthwise with a stride": ((8, 96, 1, 1, 112, 3, 2, 1), "direct direct direct"),
    "EfficientNet's expansion": ((8, 1, 16, 96, 112, 1, 1, 0), "direct mma wgmma"),
    "EfficientNet's excitation": ((8, 1, 4, 96, 1, 1, 1, 0), "chain chain chain"),
    "a U-Net's first": ((1, 1, 3, 64, 256, 3, 1, 1), "direct mma mma"),
    "a U-Net's last": ((1, 1, 64, 2, 256, 1, 1, 0), "mma direct mma"),
    "groups of many channels": ((8, 32, 16, 16, 14, 3, 1, 1), "chain chain chain"),
}
#: shapes of what no row of a model takes: operation, whether its gradient, dimensions
OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ("grouped_attention", "forward",
     {"batch": 8, "heads": 12, "queries": 1, "d": 64, "kv_heads": 12, "keys": 1024, "width": 64}),
    ("topk", "forward", {"n": 1000, "k": 5}),
    ("topk", "forward", {"n": 50257, "k": 50}),
    ("topk", "forward", {"n": 50257, "k": 5000}),
    ("var", "forward", {"dims": [64, 512, 100], "axes": 2}),
    ("var", "forward", {"dims": [4096, 512], "axes": 2}),
    ("cumsum", "forward", {"dims": [64, 100], "axis": 1}),
    ("cumsum", "forward", {"dims": [64, 5000], "axis": 1}),
    ("cumsum", "forward", {"dims": [5000, 128], "axis": 0}),
    ("spectral_conv1d_rfft", "forward", {"grid": 8192, "width": 64, "modes": 1000}),
]  # fmt: skip


def rows_of_models() -> Iterator[tuple[models.ModelRow, str, dict[str, Any]]]:
    """Each row whose operation has a choice, "forward" or "vjp", and its dimensions."""
    for row in models.load().rows:
        if row.op in module.OPERATIONS:
            which = "forward" if row.which == "forward" else "vjp"
            yield row, which, {**dict(row.items), **{name: 1 for name in row.given if name == "bias"}}


def algorithms(operation: str, which: str, dims: Mapping[str, Any], mode: str = "fast") -> str:
    """Their names, output by output."""
    found = explain(operation, dims, math=mode, which=which).values()
    return " ".join(text.partition(":")[0].replace(" ", "_") for text in found)


def product_algorithm(numbers: list[int], card: Card, mode: str) -> str:
    choice, given = module._product(*numbers)
    library = load()
    text = library.lib.torchlean_cuda_explain(choice.encode(), list(map(int, given)), len(given), card.numbers(mode))
    return library.text(text).partition(":")[0].upper()


@pytest.mark.parametrize("line", PRODUCTS.strip().splitlines())
def test_products_of_models_take_the_algorithms_that_are_written_down(line: str) -> None:
    words = line.partition(":")[2].split()
    numbers = list(map(int, words[:7]))
    found = [product_algorithm(numbers, card, "fast") for card in (H200, A100, RTX_4090)]
    assert [*found, product_algorithm(numbers, H200, "reproducible")] == words[7:]


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_models_take_these_algorithms(layer: str) -> None:
    (batch, groups, channels, rows, size, kernel, stride, padding), fast = LAYERS[layer]
    lists = {"spatial": size, "kernel": kernel, "stride": stride, "padding_low": padding, "padding_high": padding}
    dims = {"batch": batch, "groups": groups, "in_channels": channels, "out_channels": rows,
            **{name: [n] * 2 for name, n in lists.items()}}  # fmt: skip
    found = [f"{algorithms('conv_grouped', 'forward', dims, mode)} {algorithms('conv_grouped', 'vjp', dims, mode)}"
             for mode in MATH]  # fmt: skip
    assert found == [fast, fast if fast == "direct direct direct" else "chain chain chain"]


@pytest.mark.parametrize("which", ["forward", "vjp"])
def test_padding_is_on_both_sides(which: str) -> None:
    for size in (2, 4, 7, 14):
        dims = {"batch": 1, "in_channels": 512, "out_channels": 512, "spatial": [size] * 2, "kernel": [3, 3]}
        both = algorithms("conv_grouped", which, {**dims, "padding_low": [1, 1], "padding_high": [1, 1], "groups": 1})
        assert algorithms("conv", which, {**dims, "padding": [1, 1]}) == both


def test_every_row_of_a_model_is_explained() -> None:
    unexplained = {(row.op, which) for row, which, dims in rows_of_models() for mode in MATH
                   if not algorithms(row.op, which, dims, mode)}  # fmt: skip
    assert unexplained <= {("take_axis", "forward"), ("gather_rows", "forward"), ("scatter_add_axis", "vjp"),
                           ("scatter_add_rows", "vjp"), ("reduce_sum_axis", "vjp"), ("reduce_mean", "vjp")}  # fmt: skip


def test_every_algorithm_is_taken_by_a_model_or_by_a_shape_that_is_written_down() -> None:
    def texts(rows: Iterator[tuple[str, str, dict[str, Any]]]) -> set[str]:
        return {text for op, which, dims in rows for mode in MATH for card in (H200, RTX_4090)
                for text in explain(op, dims, which=which, math=mode, card=card).values()}  # fmt: skip

    by_models = texts((row.op, which, dims) for row, which, dims in rows_of_models())
    every = set()
    for header in (ROOT / "native/src/cuda").glob("*/*select.h"):
        for body in re.findall(r"_reason\(int algorithm\)\n\{(.*?)\n\}", header.read_text(), re.DOTALL):
            every |= set(re.findall(r'"(.*?)"', re.sub(r'"\n\s+"', "", body)))
    assert len(every) > 30, "the headers' reasons were not read"
    assert every - by_models - texts(iter(OTHERS)) == set(), "add a shape to OTHERS, or delete the algorithm"
    assert [other for other in OTHERS if texts(iter([other])) <= by_models] == [], "a model takes it"


@pytest.mark.parametrize(("name", "sizes", "results"), [
    ("linear", {"outputs": 3, "inputs": 5, "batch": 7}, {"y": 21, "gW": 15, "gx": 35}),
    ("matmul", {"m": 3, "n": 5, "p": 7}, {"out": 21, "gA": 15, "gB": 35}),
    ("bmm", {"batch": 2, "m": 3, "n": 5, "p": 7}, {"out": 21, "gA": 15, "gB": 35}),
])  # fmt: skip
def test_an_explained_product_has_the_elements_of_its_result(
    name: str, sizes: dict[str, int], results: dict[str, int]
) -> None:
    """Of each of a batch; all three products of an operation multiply as many pairs."""
    forward, gradients = getattr(module, f"_{name}")(**sizes)
    for result, elements in results.items():
        kind, (_, m, n, p, *_) = {**forward, **gradients}[result]
        assert kind == "product" and m * p == elements and m * n * p == 3 * 5 * 7, result


def test_strides_say_which_product_it_is() -> None:
    """Whole matrices are those of bmm; B of all is one product of all rows, if no gaps lie between the matrices of A."""
    strides = {"a_row": 8, "a_col": 1, "b_row": 12, "b_col": 1}
    for a_batch, b_batch, batch, m, gaps in ((32, 96, 3, 4, None), (32, 0, 1, 12, None), (36, 0, 3, 4, [8, 12, 36, 0])):
        forward, _ = module._bmm_strided(batch=3, m=4, n=8, p=12, **strides, a_batch=a_batch, b_batch=b_batch)
        assert forward["out"] == module._product(batch, m, 8, 12, lay=gaps)


def test_a_command_is_of_the_card_that_it_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Card().numbers("reproducible") == [132, 227 << 10, 90, True, True]
    assert Card(70, "8.9").numbers("fast") == [70, 99 << 10, 89, False, False]
    found: list[Any] = []
    monkeypatch.setattr(module, "explain", lambda *given, **how: found.append((given[1], *how.values())) or {})
    monkeypatch.setattr(module, "describe", lambda name: f"{name}: a GPU, compute capability 8.0, 108 multiprocessors")
    for words, card in (([], Card()), (["--multiprocessors", "70"], Card(70)), (["--capability", "8.9"], Card(132, "8.9")),
                        (["--device", "cuda:0"], A100), (["--device", "cuda:0", "--capability", "9.0"], Card(108))):  # fmt: skip
        assert module.main(["matmul", "3", "p=7", "n=5", "--math", "fast", *words]) == 0
        assert found[-2:] == [({"m": 3, "n": 5, "p": 7}, card, "fast", which) for which in ("forward", "vjp")]
    assert "one algorithm, whatever" in capsys.readouterr().out
    monkeypatch.setattr(module, "describe", lambda name: "a processor")
    assert (
        module.main(["matmul", "3", "5", "7", "--device", "cpu"]) == 2
        and "'cpu' (a processor)" in capsys.readouterr().err
    )


def test_a_wrong_command_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    zero, bad = ["matmul", "m=0", "n=2", "p=3"], ["matmul", "1", "2", "3", "--capability", "x"]
    for words, said in ((["matmul", "5"], "expected: "), (zero, "m: got 0"), (["mtmul"], "matmul"), (bad, "8.0"),
                        (["conv", "kernel=3y3"], "kernel=8x8"),
                        (["conv", "1", "1", "2x2", "1", "3x3"], "to hold a kernel"),
                        (["conv", "1", "1", "4x4", "1", "3"], "lists of different lengths")):  # fmt: skip
        assert module.main(words) == 2
        assert said in capsys.readouterr().err


if __name__ == "__main__":
    for row, which, dims in rows_of_models():
        print(
            row.op,
            which,
            f"{row.subject.label:.110}",
            *(algorithms(row.op, which, dims, mode) for mode in MATH),
            sep="  ",
        )
