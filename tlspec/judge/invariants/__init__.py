"""Whether a function gives a sample the same bits whatever stands around it: other samples, padding, threads, layouts, devices.

:func:`invariance` calls a kernel or a PyTorch module in pairs of ways between which the answer may not depend, compares bits, and
names the first operator that differs. It says nothing of whether the answer is right: that is :func:`tlspec.check`.

==========  ==========================================================================================================
varied      what is compared
==========  ==========================================================================================================
repeat      the same call again
batch       a sample alone, and in batches of 2, 4, 7, 8, 16, 32 and 64, at every place
neighbours  a sample in a batch of 7 whose other samples are copies of it, or hold other numbers, zeros, large numbers, NaN
padding     a sample alone, and with positions behind its own that a mask leaves out, or that are later in a causal model
chunking    a sequence in one piece, and in several with a cache between
threads     1 thread, and 2, 3 and all
layout      contiguous arrays, and with gaps, transposed, channels last, one element further in memory
device      the CPU and the GPU
restart     this process, and others with another hash seed and another number of threads
==========  ==========================================================================================================
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tlspec import arrays as libraries
from tlspec import formats
from tlspec.arrays import Arrays
from tlspec.judge.invariants.again import Again, importable
from tlspec.judge.invariants.axes import AXES, Trials, hashed
from tlspec.judge.invariants.report import Axis, Invariance
from tlspec.judge.invariants.samples import Samples, slots_like, slots_of
from tlspec.judge.invariants.subject import Subject, built, results_of
from tlspec.judge.runner import load_named

__all__ = ["AXES", "Axis", "Invariance", "hashes", "invariance"]


def invariance(
    function: Callable[..., Any] | str, *inputs: Any, array: str | Arrays | None = None, dtype: Any = "float32",
    axes: Sequence[str] | None = None, within: Callable[[], Any] | str | None = None, lengths: Mapping[str, int] | None = None,
    sequence: int | None = None, causal: bool = False, step: Callable[..., Any] | str | None = None, seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Invariance:  # fmt: skip
    """Whether a function's bits depend on what they should not; the module says what is varied.

    Parameters
    ----------
    function : callable or str
        A kernel, a PyTorch module, or ``"MODULE:NAME"`` of one or of what builds it, which a new process can import.
    *inputs : str or arrays
        A text such as ``"tokens: index[batch, seq] < 1000, w[64, 32]; eps: float = 1e-6"``, or the arrays of an example call,
        whose first axis is the batch.
    array : str
        The library of the arrays (:mod:`tlspec.arrays`); "torch" by default for modules and tensors.
    dtype : str
        The number format of the arrays.
    axes : sequence of str
        What is varied: all of :data:`AXES` by default.
    within : callable or str
        Makes a context manager in which each call is made, such as ``"tlrt.torch:reproducible"``.
    lengths : mapping
        Lengths of named axes; by default ``seq`` is 48 and others are 96.
    sequence : int
        The axis of the sequence in an example's arrays.
    causal : bool
        Whether a position depends on earlier ones alone, so that padding needs no mask.
    step : callable or str
        ``step(*arrays, state)`` returns the results of a part of the sequence and the next state; the first state is None. A
        module with `past_key_values` and `use_cache` needs none.
    seed : int
        Of the contents.
    progress : callable
        Called with a line now and then.

    Returns
    -------
    Invariance
        A verdict for each axis with the number of trials. Its text is a table.

    Raises
    ------
    ValueError
        For inputs, axes or names that are not understood.

    Examples
    --------
    >>> import numpy as np
    >>> invariance(np.tanh, "x[batch, 64]", axes=["batch"]).verdict
    'invariant'
    """
    start = time.perf_counter()
    text = inputs[0] if inputs and isinstance(inputs[0], str) else ""
    if not inputs:
        raise ValueError('invariance: inputs: got none, expected a text such as "x[batch, 64]", or arrays')
    chosen = list(AXES) if axes is None else list(axes)
    if unknown := [a for a in chosen if a not in AXES]:
        raise ValueError(f"invariance: axes: got {unknown[0]!r}, expected {', '.join(AXES)}")
    subject, samples = _prepared(function, text, inputs, array, dtype, within, lengths or {}, sequence, seed)
    name = function if isinstance(function, str) else getattr(function, "__name__", type(function).__name__)
    said = within if isinstance(within, str) else getattr(within, "__name__", "") if within else ""
    report = Invariance(name, subject.format.name, subject.library.name, said)
    if getattr(subject.function, "training", False):
        report.notes.append("the module is in training mode, in which dropout and batch statistics depend on the batch")
    target = function if isinstance(function, str) else importable(function)
    again = Again(target, text, subject.library.name, subject.format.name, said, lengths or {}, seed)
    trials = Trials(subject, samples, causal, load_named(step) if isinstance(step, str) else step, again)
    for axis in chosen:
        if progress is not None:
            progress(axis)
        report.axes.append(trials.axis(axis))
    report.seconds = time.perf_counter() - start
    return report


def hashes(
    function: str, text: str, array: str | None, dtype: str, within: str | None, lengths: Mapping[str, int], seed: int
) -> list[Any]:
    """Names and hashes of the results of one batch, which another process compares with its own.

    Parameters
    ----------
    function : str
        "MODULE:NAME".
    text : str
        The signature of its arrays.
    array : str or None
        The library of the arrays.
    dtype : str
        Their number format.
    within : str or None
        Makes the context manager of the calls.
    lengths : mapping of str to int
        Lengths of named axes.
    seed : int
        Of the contents.

    Returns
    -------
    list
        Pairs for JSON.
    """
    from tlspec.judge.invariants.axes import ONE_BATCH

    subject, samples = _prepared(function, text, (text,), array, dtype, within, lengths, None, seed)
    found = hashed(results_of(subject.library, subject.call(samples.values(range(ONE_BATCH)))()))
    return [(r.name, r.patterns.tolist()) for r in found]


def _prepared(
    function: Any, text: str, inputs: Sequence[Any], array: Any, dtype: Any, within: Any, lengths: Mapping[str, int],
    sequence: int | None, seed: int,
) -> tuple[Subject, Samples]:  # fmt: skip
    made = built(load_named(function)) if isinstance(function, str) else function
    if array is None:
        tensors = any(type(x).__module__.partition(".")[0] == "torch" for x in inputs)
        array = "torch" if tensors or hasattr(made, "named_modules") else "numpy"
    library = libraries.get(array)
    slots, params = slots_of(text, lengths) if text else (slots_like(inputs, library, sequence), {})
    block = load_named(within) if isinstance(within, str) else within
    return Subject(made, library, formats.get(dtype), slots, params, block), Samples(slots, seed)
