"""What the documentation of an operation says, read from its row.

A row's docstring is a sentence, its formula, and labelled paragraphs. What an argument is follows from its shape and its name;
a row says so itself where its name means something else (the field `arguments` of :func:`tlspec.registry.op`).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tlspec.entries import Argument, Entry
from tlspec.signature import Array

LABELS = ("Shapes", "Special values and errors", "Special values", "Errors")
#: what an argument of this name is in most rows; dimensions that are only sizes of axes are not here
ARGUMENTS = {
    "after": "how many later keys a query sees; 2**32 - 1 for all",
    "alpha": "decay of the average of squares",
    "axes": "bit k is set where axis k is reduced",
    "axis": "counts from 0",
    "axis_map": "an entry for each axis of the result: 0 inserts it, k reads axis k - 1 of the input",
    "base": "base of the geometric row of wavelengths",
    "before": "how many earlier keys a query sees; 2**32 - 1 for all",
    "beta": "added after the factors",
    "beta1": "decay of the average of gradients",
    "beta2": "decay of the average of squared gradients",
    "bias": "added to the products",
    "by_rows": "bits that choose the memory layout of the results",
    "center": "subtracted from each channel",
    "correction": "subtracted from the number of elements in the divisor",
    "dampening": "1 minus the weight of a new gradient",
    "device": "where the result is made",
    "dilation": "distance between the elements of a kernel",
    "eps": "added where a divisor or logarithm could be 0",
    "gamma": "factors",
    "gs": "gradients",
    "h0": "state before the first step",
    "halves": "1 pairs element i with i + d/2",
    "hi": "upper limit",
    "indices": "count from 0",
    "istd": "1/√(variance + eps)",
    "keep": "probability of a 1",
    "key": "below 2**64",
    **dict.fromkeys(
        ("kernel_h", "kernel_w", "stride_h", "stride_w", "padding_h", "padding_w"),
        "size, step or padding of the window along an axis",
    ),
    "kv_heads": "number of heads of keys",
    "labels": "the class of each row, counted from 0",
    "largest": "0 for the smallest",
    "len": "number of elements",
    "lo": "lower limit",
    "logits": "logarithms of weights of the classes",
    "lr": "learning rate",
    "mask": "0 blocks",
    "mask_heads": "1, or heads",
    "mask_queries": "1, or queries",
    "mask_mode": "how the mask is read",
    "max_norm": "largest norm allowed",
    "mean": "the mean",
    "momentum": "decay of the velocity",
    "nesterov": "1 looks ahead by the new velocity",
    "norm": "one element",
    "offset": "the key at which query 0 stands",
    "output_padding": "elements added after each axis",
    "padding": "cells before and after each axis",
    "padding_high": "zeros after each axis",
    "padding_low": "zeros before each axis",
    "ps": "what is trained",
    "reverse": "1 sums from the end",
    "reversed": "bit k is set where axis k runs backwards",
    "root": "1 gives the square root",
    "scale": "factor of the products of queries and keys",
    "shift": "added to each channel",
    "slope": "factor where x < 0",
    "smoothing": "weight of all classes together, from 0 to 1",
    "start": "counts from 0",
    "starts": "first index of each axis",
    "std": "standard deviation, 0 or more",
    "step": "counts from 1",
    "steps": "distance of the indices of each axis",
    "stride": "distance of neighbouring windows",
    "target": "what the prediction is compared with",
    "value": "the number put in",
    "vs": "averages of earlier steps",
    "ms": "averages of earlier steps",
    "bs": "velocities",
    "weight_decay": "factor of the parameters in their decay",
    "weights": "weight of each class",
    "wIm": "imaginary parts of the weights",
    "wRe": "real parts of the weights",
    "yhat": "the prediction",
    "kernel": "size of a window",
    "dims": "sizes of all axes",
}


@dataclass(frozen=True)
class Documentation:
    """The parts of a row's docstring."""

    summary: str
    formula: tuple[str, ...]
    labelled: Mapping[str, str]


def read_documentation(doc: str) -> Documentation:
    """Splits a docstring into its parts.

    Parameters
    ----------
    doc : str
        The docstring of a row or of a gradient.

    Returns
    -------
    Documentation
        Its first sentence, the paragraphs of its formula, and its labelled paragraphs by their label.
    """
    paragraphs = [p for p in doc.split("\n\n") if p.strip()]
    labelled, plain = {}, []
    for paragraph in paragraphs[1:]:
        label = next((x for x in LABELS if paragraph.startswith(f"{x}:")), None)
        if label:
            labelled[label] = paragraph[len(label) + 1 :].strip()
        else:
            plain.append(paragraph)
    return Documentation(paragraphs[0] if paragraphs else "", tuple(plain), labelled)


def shape_phrase(array: Array) -> str:
    """Says an array's shape.

    Parameters
    ----------
    array : Array
        An array of a signature.

    Returns
    -------
    str
        Such as "shape (rows, cols)".
    """
    if array.elementwise:
        return "any length, the same for all arrays"
    if array.listed:
        return "a buffer for each tensor"
    if array.dims in ((), ("1",)):
        return "one element"
    return f"shape ({', '.join(array.dims)}{',' * (len(array.dims) == 1)})"


def describe_argument(e: Entry, a: Argument) -> str:
    """Says what an argument of an entry point's Python function is.

    Parameters
    ----------
    e : Entry
        The entry point.
    a : Argument
        One of its arguments.

    Returns
    -------
    str
        A phrase: the shape of an array, and what the argument means where its name does not say it. Empty for the size of
        an axis.
    """
    array = next((x for x in e.signature.inputs if x.name == a.of), None)
    outputs = [o.name for o in e.op.signature.outputs]
    own = dict(e.op.arguments)
    if array is None:
        name = a.of or a.name
        if name not in own and a.kind == "int" and name.endswith(("_batch", "_head", "_row", "_col")):
            return "1, or the size of the axis" if name.startswith("mask_") else "a distance in elements"
        return own.get(name, "" if a.kind == "dim" else ARGUMENTS.get(name, ""))
    if e.signature is not e.op.signature and (a.of == "g" or a.of.startswith("g_")) and a.of not in own:
        meaning = f"cotangent of {a.of[2:] or outputs[0]}"
    elif e.signature is not e.op.signature and a.of in outputs:
        meaning = f"the result {a.of} of {e.op.name}" if len(outputs) > 1 else f"the result of {e.op.name}"
    else:
        meaning = own.get(a.of, ARGUMENTS.get(a.of, ""))
    return "; ".join(filter(None, [shape_phrase(array), meaning]))


def rest_of_shapes(doc: Documentation, arrays: Iterable[Array]) -> str:
    """Finds what the paragraph on shapes says beyond the shapes.

    Parameters
    ----------
    doc : Documentation
        The parts of a row's docstring.
    arrays : iterable of Array
        The arrays of its signature.

    Returns
    -------
    str
        The paragraph without the sentences that only repeat the signature; empty for elementwise operations and
        for lists.
    """
    arrays = list(arrays)
    if any(a.elementwise or a.listed for a in arrays):
        return ""
    names = {a.name for a in arrays}
    words = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    kept = []
    for sentence in re.split(r"(?<=\.) ", " ".join(doc.labelled.get("Shapes", "").split())):
        told = rf"\([^()]*\)|\b(?:{words}|and|on the host|in an index buffer|one element)\b|[ ,.;]"
        if re.sub(told, "", sentence):
            kept.append(sentence)
    return " ".join(kept)
