"""What a kernel is checked against: a row of the registry, or a reference of the user's own."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tlspec import references, registry
from tlspec.bounds import tree
from tlspec.expressions import evaluate
from tlspec.registry import Op
from tlspec.signature import WHOLE, Array, Signature

#: lengths by which the axes of a reference's results are recognised
_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29)


def subject_of(op: str | Op | None, reference: Callable[..., Any] | None, inputs: str | Mapping[str, Any] | None) -> Op:
    """The row of this name, or one made of a reference and the text of its inputs.

    The text is in the grammar of :mod:`tlspec.signature`: ``"x[rows, cols], weight[cols]; eps: float = 1e-6"``. The shapes of the
    results may be left out where their axes are axes of the inputs: ``"... -> out[rows, cols]"`` says them. Instead of a text
    arrays by name give the shapes alone. Raises ValueError."""
    if reference is None:
        if op is None:
            raise ValueError(
                'check: say which operation it is, as in check(kernel, "softmax"), or give reference= and inputs='
            )
        return references.find(op) or registry.get(op) if isinstance(op, str) else op
    if inputs is None:
        raise ValueError(
            'check: reference= needs inputs=, as in inputs="x[rows, cols], weight[cols]; eps: float = 1e-6"'
        )
    text = inputs if isinstance(inputs, str) else _text_of(inputs)
    if "->" not in text:
        text += f" -> {_results_of(reference, text)}"
    signature = Signature.parse(text)
    # arrays of a reference are all in memory that the judge makes: float64 is a format here
    own = tuple(replace(a, kind="float64") if a.kind == "f64" else a for a in signature.inputs)
    rows = next((a.dims[0] for a in replace(signature, inputs=own).buffers if a.dims and not a.elementwise), "*")
    if not rows.startswith("*"):
        own = tuple(replace(a, below=a.below or rows) if a.kind in ("u32", "index") else a for a in own)
    name = op if isinstance(op, str) else getattr(reference, "__name__", "reference").strip("<>")
    return Op(
        name=name, family="user", text=text, signature=replace(signature, inputs=own), reference=reference, bound=tree(lambda: 1),
        doc=reference.__doc__ or "", no_vjp="it is a reference of the user's own",
        contract=registry.Contract(checks=tuple(_some_index(a) for a in own if a.below)),
    )  # fmt: skip


def _some_index(a: Array) -> registry.Check:
    """Where nothing is below the limit there are no indices."""
    return registry.check(a.name, " or ".join([f"{a.below} > 0", *(f"{d} == 0" for d in a.dims if d[0] != "*")]))


def _text_of(inputs: Mapping[str, Any]) -> str:
    """The signature of arrays and numbers by name."""
    arrays, params = [], []
    for name, value in inputs.items():
        if np.ndim(value) or isinstance(value, np.ndarray):
            kind = {"f": "", "b": ": bool"}.get(np.asarray(value).dtype.kind, ": u32")
            arrays.append(f"{name}{kind}[{', '.join(map(str, np.shape(value)))}]")
        else:
            real = isinstance(value, (float, np.floating))  # of NumPy's numbers the text is another
            params.append(f"{name}: float = {float(value)!r}" if real else f"{name}: u32 = {int(value)}")
    return ", ".join(arrays) + ("; " + ", ".join(params) if params else "")


def _results_of(reference: Callable[..., Any], text: str) -> str:
    """The outputs of a reference, by calling it with distinct lengths."""
    sig = Signature.parse(f"{text} -> out[1]")
    dims = [d for d in sig.dims if not d.startswith("*")]
    lengths = dict(zip(dims, _PRIMES, strict=False))
    if len(lengths) < len(dims) or any(d.startswith("*") for d in sig.dims):
        raise ValueError(f"inputs={text!r}: say the shapes of the results, as in ... -> out[rows, cols]")
    if sig.elementwise:
        return "out[*]"
    rng = np.random.default_rng(0)
    arrays = []
    for a in sig.inputs:
        shape = [evaluate(item, lengths) for item in a.dims]
        whole = a.kind in ("u32", "index", *WHOLE)
        arrays.append(np.zeros(shape, bool if a.kind == "bool" else np.int64) if whole else rng.random(shape))
    params = {p.name: _default_of(p.kind, p.default) for p in sig.params}
    made = reference(*arrays, **params)
    names = {evaluate(item, lengths): item for a in sig.inputs for item in a.dims} | {n: d for d, n in lengths.items()}
    outs = made if isinstance(made, tuple) else (made,)
    texts = []
    for i, out in enumerate(outs):
        axes = [names.get(n, str(n)) for n in np.shape(out)]
        texts.append(f"out{i if len(outs) > 1 else ''}[{', '.join(axes) or '1'}]")
    return ", ".join(texts)


def _default_of(kind: str, default: str | None) -> Any:
    if kind == "float":
        return float(default) if default is not None else 0.5
    return int(default) if default is not None else 1
