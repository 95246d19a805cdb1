"""``python -m tlrt explain OP DIMS``: which algorithm an operation takes on a GPU, and why. Needs no GPU.

The choices are functions of native/src/cuda/*/select.h, which the library has without CUDA too. A function here turns the
dimensions of an operation into their numbers as its CUDA source does; operations without a function have one algorithm.
"""

import argparse
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tlrt._binding.library import load
from tlrt._terminal import program_name
from tlrt.context import describe
from tlrt.doctor import FULL_FLOAT64
from tlrt.errors import TorchleanError
from tlspec import registry, shapes
from tlspec.expressions import evaluate
from tlspec.registry import MATH, Op

__all__ = ["Card", "explain", "main"]

#: KiB of shared memory of a block, by compute capability (NVIDIA's CUDA programming guide); others have 99
SHARED = {"8.0": 163, "8.7": 163, "9.0": 227, "10.0": 227}
UNLIMITED = 2**61 - 1
U32_MAX = 2**32 - 1

Dims = Sequence[int]
#: a name and the numbers of torchlean_cuda_explain
Choice = tuple[str, list[int]]
#: by outputs: the choices of an operation, and those of its gradients
Choices = tuple[dict[str, Choice], dict[str, Choice]]


class Card(NamedTuple):
    """What a choice depends on of a GPU.

    Parameters
    ----------
    multiprocessors : int
        Their number; an H100's or H200's unless given.
    capability : str
        The compute capability.
    """

    multiprocessors: int = 132
    capability: str = "9.0"

    @classmethod
    def of(cls, device: str) -> "Card":
        """The card of a device of this machine.

        Parameters
        ----------
        device : str
            Its name, "cuda:0".

        Returns
        -------
        Card
            Its numbers.

        Raises
        ------
        UnavailableError
            If there is no such device.
        ValueError
            For a device that is no GPU.
        """
        text = describe(device)
        found = re.search(r"compute capability (\d+\.\d+), (\d+) multiprocessors", text)
        if found is None:
            raise ValueError(f"explain: --device: got {device!r} ({text}), expected a GPU such as cuda:0")
        return cls(int(found[2]), found[1])

    def numbers(self, mode: str) -> list[int]:
        """The device of torchlean_cuda_explain.

        Parameters
        ----------
        mode : str
            "fast" or "reproducible".

        Returns
        -------
        list of int
            Five numbers.
        """
        return [self.multiprocessors, SHARED.get(self.capability, 99) << 10, round(10 * float(self.capability)),
                self.capability in FULL_FLOAT64, mode == "reproducible"]  # fmt: skip


# ---- from dimensions to choices: parameters are what an operation needs, in the order of the command -----------------------


def _product(
    batch: int, m: int, n: int, p: int, ta: int = 0, tb: int = 0, bias: int = 0, lay: Dims | None = None
) -> Choice:
    """`lay`: rows of A and of B are so far apart, and products, where these have gaps."""
    ta, tb = (ta, tb) if lay else (ta and m > 1 and n > 1, tb and n > 1 and p > 1)
    a_row, b_row = m if ta else n, n if tb else p
    lda, ldb, a_batch, b_batch = lay or (a_row, b_row, m * n, n * p)
    whole = [(a_row | lda | a_batch) % 4 == 0, (b_row | ldb | b_batch) % 4 == 0, p % 4 == 0]
    return "product", [batch, m, n, p, ta, tb, bias, lay is None, lda < a_row or ldb < b_row, *whole]


def _bmm(batch: int, m: int, n: int, p: int) -> Choices:
    return {"out": _product(batch, m, n, p)}, {
        "gA": _product(batch, m, p, n, tb=1), "gB": _product(batch, n, m, p, ta=1)
    }  # fmt: skip


def _matmul(m: int, n: int, p: int) -> Choices:
    return _bmm(1, m, n, p)


def _linear(outputs: int, inputs: int, batch: int) -> Choices:
    return {"y": _product(1, batch, inputs, outputs, tb=1, bias=1)}, {
        "gW": _product(1, outputs, batch, inputs, ta=1), "gx": _product(1, batch, outputs, inputs),
        "gb": ("sums", [1, batch, outputs]),
    }  # fmt: skip


def _bmm_strided(
    batch: int, m: int, n: int, p: int, a_batch: int, a_row: int, a_col: int, b_batch: int, b_row: int, b_col: int,
    bias: int = 0,
) -> Choices:  # fmt: skip
    if m == 1 and (n == 1 or a_col == 1):
        a_row = a_batch
    if b_batch == 0 and a_batch == m * a_row:
        m, batch = m * batch, 1
    ta, tb = n > 1 and a_col != 1, p > 1 and b_col != 1
    dense = [m if ta else n, n if tb else p, m * n, n * p]
    lay = [(a_col if ta else a_row) if (n if ta else m) > 1 else dense[0],
           (b_col if tb else b_row) if (p if tb else n) > 1 else dense[1],
           *((a_batch, b_batch) if batch > 1 else dense[2:])]  # fmt: skip
    return {"out": _product(batch, m, n, p, ta, tb, bias, None if lay == dense else lay)}, {}


def _attention(
    members: int, group: int, queries: int, keys: int, d: int, v: int, before: int, after: int, offset: int, plain: bool
) -> Choices:
    before, after = (x if x < U32_MAX else UNLIMITED for x in (before, after))
    limited = before < UNLIMITED or after < UNLIMITED
    v_ = [members, group, queries, keys, d, v, before, after, offset, limited, plain]
    return {"out": ("attention", [0, *v_])}, {"gQ, gK, gV": ("attention", [1, *v_])}


def _flash_attention(batch: int, n: int, d: int, mask_mode: int = 0) -> Choices:
    return _attention(batch, 1, n, n, d, d, U32_MAX, 0 if mask_mode == 3 else U32_MAX, 0, mask_mode != 1)


def _grouped_attention(
    batch: int, heads: int, queries: int, d: int, kv_heads: int, keys: int, width: int, mask_mode: int = 0,
    mask_batch: int = 1, mask_queries: int = 1, before: int = U32_MAX, after: int = U32_MAX, offset: int = 0,
) -> Choices:  # fmt: skip
    blocks = mask_mode == 1 and heads == kv_heads == 1 and mask_batch == batch and mask_queries == queries
    plain = mask_mode == 0 or (blocks and before == after == U32_MAX)
    group = heads // kv_heads
    return _attention(batch * kv_heads, group, queries, keys, d, width, before, after, offset, plain)


def _gradients_of(choices: Callable[..., Choices]) -> Callable[..., Choices]:
    """Of an operation that is another's gradient."""

    def swap(**dims: int) -> Choices:
        return choices(**dims)[1], {}

    swap.__signature__ = inspect.signature(choices)  # type: ignore[attr-defined]
    return swap


def _conv(large: Dims, small: Dims, transposed: bool, batch: int, groups: int, inputs: int, outputs: int,
          *lists: Dims) -> Choices:  # fmt: skip
    """`lists`: the kernel, the strides, the paddings and the dilations."""
    ends = [n for each in (large, small, *lists) for n in each]
    forward, backward = ([int(k), batch, groups] for k in (transposed, not transposed))
    weights = (outputs, inputs) if transposed else (inputs, outputs)
    return {"out": ("conv", [*forward, inputs, outputs, *ends])}, {
        "gx": ("conv", [*backward, outputs, inputs, *ends]), "gw": ("conv", [2, batch, groups, *weights, *ends])
    }  # fmt: skip


def _conv_grouped(
    batch: int, in_channels: int, spatial: Dims, out_channels: int, kernel: Dims, stride: Dims = (), padding_low: Dims = (),
    padding_high: Dims = (), dilation: Dims = (), groups: int = 1, transposed: bool = False, output_padding: Dims = (),
) -> Choices:  # fmt: skip
    ones, zeros = [1] * len(spatial), [0] * len(spatial)
    stride, dilation, low = stride or ones, dilation or ones, padding_low or zeros
    lists = (spatial, kernel, stride, dilation, low, padding_high or low)
    if any(len(each) != len(spatial) for each in lists):
        raise ValueError(
            "explain: got lists of different lengths, expected a number for each spatial axis in all of them"
        )
    other = (shapes.conv_transpose_grouped_out(*lists, output_padding or zeros) if transposed
             else shapes.conv_grouped_out(*lists))  # fmt: skip
    if any(n < 1 for n in (*other, *kernel)):
        raise ValueError(
            f"explain: got a result of {'x'.join(map(str, other))}, expected spatial and padding to hold a kernel"
        )
    large, small = (other, spatial) if transposed else (spatial, other)
    return _conv(large, small, transposed, batch, groups, in_channels, out_channels, kernel, stride, low, dilation)


def _conv_plain(
    batch: int, in_channels: int, spatial: Dims, out_channels: int, kernel: Dims, stride: Dims = (), padding: Dims = ()
) -> Choices:
    return _conv_grouped(batch, in_channels, spatial, out_channels, kernel, stride, padding)


def _conv_transpose(
    batch: int, in_channels: int, spatial: Dims, out_channels: int, kernel: Dims, stride: Dims = (), padding: Dims = ()
) -> Choices:
    return _conv_grouped(batch, in_channels, spatial, out_channels, kernel, stride, padding, transposed=True)


def _conv_transpose_grouped(
    batch: int, groups: int, in_channels: int, spatial: Dims, out_channels: int, kernel: Dims, stride: Dims = (),
    padding_low: Dims = (), padding_high: Dims = (), dilation: Dims = (), output_padding: Dims = (),
) -> Choices:  # fmt: skip
    return _conv_grouped(batch, in_channels, spatial, out_channels, kernel, stride, padding_low, padding_high, dilation,
                         groups, True, output_padding)  # fmt: skip


def _scatter(outer: int, n: int, inner: int, io: int, k: int, ii: int) -> Choice:
    if io == ii == 1:  # one list for all arrays
        return "scatter", [n, k, k]
    return "scatter", [outer * n * ii, k, outer * k * ii]


def _sums(dims: Dims, axis: int) -> Choices:
    return {"out": ("sums", [math.prod(dims[:axis]), dims[axis], math.prod(dims[axis + 1 :])])}, {}


def _cumsum(dims: Dims, axis: int) -> Choices:
    choice = "cumsum", [dims[axis], math.prod(dims[axis + 1 :])]
    return {"out": choice}, {"gx": choice}


def _extreme(dims: Dims, axes: int) -> Choices:
    return {"out": ("extreme", [axes, *dims])}, {"gx": ("fold", [axes, *dims])}


def _fold(dims: Dims, axes: int) -> Choices:
    return {"out": ("fold", [axes, *dims])}, {"gx": ("fold", [axes, *dims])}


def _fold_forward(dims: Dims, axes: int) -> Choices:
    return _fold(dims, axes)[0], {}


def _row(cols: int, clusters: int = 1) -> Choices:
    return {"out": ("row", [cols, clusters])}, {"gx": ("row", [cols, clusters])}


def _norm(rows: int, cols: int) -> Choices:
    return _row(cols, 0)[0], {"gx, ggamma, gbeta": ("norm_columns", [rows, cols])}


def _spectral_conv(grid: int, width: int, modes: int) -> Choices:
    choice = "spectral_conv", [grid, width, modes]
    return {"y": choice}, {"gx, gwRe, gwIm": choice}


#: the operations whose algorithm depends on dimensions
OPERATIONS: dict[str, Callable[..., Choices]] = {
    "matmul": _matmul,
    "bmm": _bmm,
    "linear": _linear,
    "bmm_strided": _bmm_strided,
    "flash_attention": _flash_attention,
    "grouped_attention": _grouped_attention,
    "attention_strided": _grouped_attention,
    "attention_strided_gradients": _gradients_of(_grouped_attention),
    "conv": _conv_plain,
    "conv_transpose": _conv_transpose,
    "conv_grouped": _conv_grouped,
    "conv_transpose_grouped": _conv_transpose_grouped,
    "gather_rows": lambda rows, k: ({}, {"gmat": _scatter(1, rows, 1, 1, k, 1)}),
    "scatter_add_rows": lambda rows, k: ({"out": _scatter(1, rows, 1, 1, k, 1)}, {}),
    "take_axis": lambda outer, n, inner, io, k, ii: ({}, {"gx": _scatter(outer, n, inner, io, k, ii)}),
    "scatter_add_axis": lambda outer, n, inner, io, k, ii: ({"out": _scatter(outer, n, inner, io, k, ii)}, {}),
    "topk": lambda n, k: ({"out": ("top", [n, k])}, {}),
    "layer_norm": _norm,
    "rms_norm": _norm,
    "layer_norm_stats": _norm,
    "rms_norm_stats": _norm,
    "batchnorm_channel_first": lambda height, width: _row(height * width, 0),
    "channel_affine": lambda positions: _row(positions, 0),
    "reduce_sum_axis": _sums,
    "reduce_mean": _sums,
    "amax": _extreme,
    "amin": _extreme,
    "prod": _fold,
    "var": _fold,
    "logsumexp": _fold_forward,
    "vector_norm": _fold_forward,
    "cumsum": _cumsum,
    "softmax": lambda cols: _row(cols),
    "log_softmax": lambda cols: _row(cols),
    "cross_entropy": lambda cols: _row(cols),
    "cross_entropy_rows": lambda cols: _row(cols),
    "rfft1d_packed": lambda batch, n: ({"spec": ("real", [batch, n, 1])}, {"gx": ("real", [batch, n, 0])}),
    "irfft1d_packed": lambda batch, n: ({"x": ("real", [batch, n, 0])}, {"gspec": ("real", [batch, n, 0])}),
    "spectral_conv1d_rfft": _spectral_conv,
}  # fmt: skip


def _choices_of(row: Op) -> Callable[..., Choices] | None:
    """Of an operation, or of the one that it is another name of."""
    return OPERATIONS.get(row.forward.of.name if row.forward else row.name)


def _names_of(row: Op) -> dict[str, bool]:
    """The dimensions that an operation's choices need, in the order of the command, and whether they have a default."""
    choices = _choices_of(row)
    if choices is None:
        return {}
    if row.forward is not None:  # those of the synonym that its expressions name
        words = set(re.findall(r"\w+", " ".join(row.forward.arguments.values())))
        known = (*row.signature.dims, *(p.name for p in row.signature.params))
        return {name: False for name in known if name in words}
    return {name: p.default is not p.empty for name, p in inspect.signature(choices).parameters.items()}


def _is_list(row: Op, name: str) -> bool:
    choices = _choices_of(row)
    return (
        row.forward is None and choices is not None and inspect.signature(choices).parameters[name].annotation == Dims
    )


def _usage(row: Op) -> str:
    """The command with the dimensions of an operation."""
    words = []
    for name, optional in _names_of(row).items():
        word = f"{name}=8x8" if _is_list(row, name) else f"{name}=8"
        words.append(f"[{word}]" if optional else word)
    return f"{program_name('explain')} {row.name} {' '.join(words)}"


def explain(
    operation: str, dims: Mapping[str, int | Sequence[int]], *, card: Card | None = None, math: str = "fast",
    which: str = "forward",
) -> dict[str, str]:  # fmt: skip
    """The algorithms that an operation takes on a GPU, which need not be there.

    Parameters
    ----------
    operation : str
        The operation's name.
    dims : mapping
        Its dimensions and parameters, by name; those that decide nothing may be there.
    card : Card, optional
        The GPU; an H100 or H200 unless given.
    math : {"fast", "reproducible"}
        The mode.
    which : {"forward", "vjp"}
        The operation or its gradient.

    Returns
    -------
    dict of str to str
        By outputs: the algorithm's name, a colon, and when it is taken. Empty where there is one algorithm.

    Raises
    ------
    KeyError
        For a name that is no operation.
    ValueError
        For dimensions that are missing or do not fit.

    Examples
    --------
    >>> from tlrt.explain import explain
    >>> explain("matmul", {"m": 8, "n": 4, "p": 8})
    {'out': 'direct: at most 16 terms and few results, where only latency counts'}
    """
    row = registry.get(operation)
    given = dict(dims)
    choices = _choices_of(row)
    if choices is None:
        return {}
    if missing := [name for name, value in _names_of(row).items() if not value and name not in given]:
        raise ValueError(f"explain: {operation}: got no {missing[0]}, expected: {_usage(row)}")
    for name in row.signature.dims:
        if 0 in (values if isinstance(values := given.get(name, 1), Sequence) else [values]):
            raise ValueError(f"explain: {operation}: {name}: got {given[name]}, expected at least 1")
    if row.forward is not None:
        given = {name: evaluate(text, given) for name, text in row.forward.arguments.items()}
    parameters = inspect.signature(choices).parameters
    taken = {name: value for name, value in given.items() if name in parameters}
    library = load()
    found = {}
    for output, (choice, numbers) in choices(**taken)[which == "vjp"].items():
        text = library.lib.torchlean_cuda_explain(
            choice.encode(), [int(n) for n in numbers], len(numbers), (card or Card()).numbers(math)
        )
        found[output] = library.text(text)
    return found


# ---- the command -------------------------------------------------------------------------------------------------------


def _parse(row: Op, words: Sequence[str]) -> dict[str, int | list[int]]:
    """Dimensions by name: words NAME=NUMBERS, and numbers alone in the order of the usage."""
    names = list(_names_of(row))
    found: dict[str, int | list[int]] = {}
    for i, word in enumerate(words):
        name, equals, value = word.rpartition("=")
        name = name if equals or i >= len(names) else names[i]
        if names and (name not in names or not re.fullmatch(r"\d+([x,]\d+)*", value)):
            raise ValueError(f"explain: {row.name}: got {word!r}, expected: {_usage(row)}")
        if names:
            many = [int(n) for n in re.split("[x,]", value)]
            found[name] = many if _is_list(row, name) else many[0]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The command ``python -m tlrt explain``.

    Parameters
    ----------
    argv : sequence of str, optional
        Its arguments; those of the process unless given.

    Returns
    -------
    int
        0, or 2 for an operation or dimensions that do not fit.
    """
    parser = argparse.ArgumentParser(
        prog=program_name("explain"),
        description="Says which algorithm an operation takes on a GPU, and why. Needs no GPU.",
        epilog="example: explain conv batch=8 in_channels=64 spatial=56x56 out_channels=64 kernel=3x3 padding=1x1",
    )
    add = parser.add_argument
    add("operation", help="such as matmul, or conv")
    add("dims", nargs="*", help="NAME=NUMBER, or NAME=NUMBERxNUMBER; without names in the operation's order")
    add("--math", choices=MATH, help="the mode (default: both)")
    add("--device", help="a GPU of this machine, cuda:0 (default: an H100 or H200)")
    add("--multiprocessors", type=int, help="of another GPU (default 132)")
    add("--capability", help="compute capability of another GPU (default 9.0)")
    arguments = parser.parse_args(argv)
    try:
        card = Card.of(arguments.device) if arguments.device else Card()
        card = Card(arguments.multiprocessors or card.multiprocessors, arguments.capability or card.capability)
        if card.multiprocessors < 1 or not re.fullmatch(r"\d+\.\d", card.capability):
            raise ValueError(f"explain: got {card}, expected such as --multiprocessors 108 --capability 8.0")
        row = registry.get(arguments.operation)
        dims = _parse(row, arguments.dims)
        for mode in [arguments.math] if arguments.math else MATH:
            both = [explain(row.name, dims, card=card, math=mode, which=which) for which in ("forward", "vjp")]
            for output, text in {**both[0], **both[1]}.items():
                print(f"{mode:12}  {output:18}  {text}")
            if not any(both):
                print(f"{mode:12}  one algorithm, whatever the dimensions")
    except (KeyError, ValueError, TorchleanError) as error:
        print(error.args[0], file=sys.stderr)
        return 2
    return 0
