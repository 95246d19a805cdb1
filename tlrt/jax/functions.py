"""The rows as functions of JAX's arrays, with gradients."""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tlrt import _foreign
from tlrt._binding.arguments import integer, integers, number
from tlrt.errors import ArgumentTypeError, refusal
from tlrt.jax.frames import HANDLERS
from tlspec import registry
from tlspec.registry import Op

TARGET = "torchlean"
#: an index out of range of every array
_NOWHERE = np.uint32(2**32 - 1)


def _capsule(address: int) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(address, b"xla._CUSTOM_CALL_TARGET", None)


for _platform, _address in HANDLERS.items():
    jax.ffi.register_ffi_target(TARGET, _capsule(_address), platform=_platform)


def _call(
    row: Op, which: str, arrays: Mapping[str, Any], values: Mapping[str, Any], want: Sequence[bool], math: str
) -> list[Any]:
    """One call of an entry point. A gradient that is not wanted is an array of no elements."""
    signature = row.signature_of(which)
    shapes = {n: x.shape for n, x in arrays.items()}
    made = _foreign.results(row.name, signature, shapes, values)
    kinds = [jnp.uint32 if a.kind == "index" else jnp.float32 for a in signature.outputs]
    results = [jax.ShapeDtypeStruct(s if w else (0,), k) for s, k, w in zip(made, kinds, want, strict=True)]
    specification = json.dumps([row.name, which, dict(values), list(arrays), list(want), math])
    call = jax.ffi.ffi_call(TARGET, results, vmap_method="sequential")
    return list(call(*arrays.values(), specification=specification))


def _as_array(row: Op, name: str, kind: str, x: Any) -> Any:
    is_index = kind in ("u32", "index")
    if isinstance(x, np.ndarray) or (is_index and not isinstance(x, jax.Array)):
        # jnp.asarray would cut integers of 64 bits, and refuses another order of bytes
        x = np.asarray(x)
        x = x.astype(x.dtype.newbyteorder("="))
    if is_index:
        xp, array = (jnp if isinstance(x, jax.Array) else np), x
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise refusal(ArgumentTypeError, f"tlrt.jax.{row.name}", name, str(array.dtype), "integers")
        # a cast would cut 2^32 to 0; the number itself is none of a smaller type
        outside = [array < 0] if jnp.issubdtype(array.dtype, jnp.signedinteger) else []
        outside += [array >= 2**32] if array.dtype.itemsize > 4 else []
        cast = array.astype(np.uint32)
        return jnp.asarray(xp.where(functools.reduce(xp.logical_or, outside), _NOWHERE, cast) if outside else cast)
    array = jnp.asarray(x)
    # a number of Python takes a type from others
    if array.weak_type and jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(jnp.float32)
    if array.dtype != jnp.float32:
        raise refusal(ArgumentTypeError, f"tlrt.jax.{row.name}", name, str(array.dtype), "float32")
    return array


@functools.lru_cache(maxsize=4096)
def _differentiable(name: str, present: tuple[str, ...], values: str, math: str) -> Callable[..., Any]:
    """The function of the arrays `present` for one choice of everything else."""
    row, chosen = registry.get(name), json.loads(values)
    outputs = row.signature.outputs

    def compute(*arrays: Any) -> Any:
        found = _call(row, "forward", dict(zip(present, arrays, strict=True)), chosen, [True] * len(outputs), math)
        return found[0] if len(found) == 1 else tuple(found)

    if row.vjp_rule is None:
        return compute
    signature = row.vjp_signature
    reads = [a.name for a in signature.inputs]
    targets = [a.name[1:] for a in signature.outputs]  # gx is the gradient of x
    extra = {d.lstrip("*") for d in _foreign.free_dimensions(signature)}

    def forward(*arrays: Any) -> Any:
        found = compute(*arrays)
        made = zip((a.name for a in outputs), found if isinstance(found, tuple) else (found,), strict=True)
        known = {**dict(zip(present, arrays, strict=True)), **dict(made)}
        # shapes alone say some dimensions of the gradient; empty views of arrays carry them
        return found, ({n: known[n] for n in reads if n in known}, tuple(known[n].shape for n in present))

    def backward(kept: Any, gradients: Any) -> Any:
        known, shapes = kept
        several = isinstance(gradients, tuple)
        cotangents = (
            {f"g_{o.name}": g for o, g in zip(outputs, gradients, strict=True)} if several else {"g": gradients}
        )
        given = {n: x for n in reads if (x := known.get(n, cotangents.get(n))) is not None}
        all_known = _foreign.dimensions(row.name, row.signature, dict(zip(present, shapes, strict=True)), chosen)
        others = {n: all_known[n] for n in (*extra, *(p.name for p in signature.params)) if n in all_known}
        found = dict(zip(targets, _call(row, "vjp", given, others, [t in present for t in targets], math), strict=True))
        return tuple(
            found[n].reshape(s) if n in found else np.zeros(s, jax.dtypes.float0)
            for n, s in zip(present, shapes, strict=True)
        )

    function = jax.custom_vjp(compute)
    function.defvjp(forward, backward)
    return function


def function(name: str) -> Callable[..., Any]:
    """The operation of that name as a function of JAX's arrays; ``tlrt.jax.NAME`` is the same.

    Parameters
    ----------
    name : str
        One of :func:`functions`.

    Returns
    -------
    function
        It takes the operation's arrays, then what no shape gives, and works under jit, grad and vmap.

    Raises
    ------
    AttributeError
        For another name.

    Examples
    --------
    >>> import jax, tlrt.jax
    >>> tlrt.jax.relu(jax.numpy.array([-1.0, 2.0], "float32"))
    Array([0., 2.], dtype=float32)
    >>> jax.grad(lambda x: tlrt.jax.tanh(x).sum())(jax.numpy.zeros(2, "float32"))
    Array([1., 1.], dtype=float32)
    """
    row = next((r for r in _foreign.rows() if r.name == name), None)
    if row is None:
        raise AttributeError(f"tlrt.jax has no {name!r}: see tlrt.jax.functions()")
    tensors, others = _foreign.names(row.signature)
    kinds = {a.name: a.kind for a in row.signature.inputs}
    readers: dict[str, Callable[[str, str, Any], Any]] = {
        d.lstrip("*"): integers if d.startswith("*") else integer for d in _foreign.free_dimensions(row.signature)
    }
    readers |= {p.name: {"float": number, "dims": integers}.get(p.kind, integer) for p in row.signature.params}

    def operation(*arguments: Any, **further: Any) -> Any:
        order = [*tensors, *others]
        if len(arguments) > len(order):
            raise TypeError(f"tlrt.jax.{name} takes ({', '.join(order)})")
        given = dict(zip(order, arguments, strict=False))
        if wrong := [n for n in further if n not in order or n in given]:
            raise TypeError(f"tlrt.jax.{name} takes ({', '.join(order)}): got {wrong[0]} once too often")
        given = {**_foreign.defaults(row.signature), **given, **further}
        arrays = {n: _as_array(row, n, kinds[n], given[n]) for n in tensors if given.get(n) is not None}
        absent = [n for n in order if n not in (arrays if n in tensors else given)]
        required = [n for n in absent if not any(a.name == n and a.optional for a in row.signature.inputs)]
        if required:
            raise TypeError(f"tlrt.jax.{name} takes ({', '.join(order)}): {', '.join(required)} missing")
        chosen = json.dumps({n: readers[n](f"tlrt.jax.{name}", n, given[n]) for n in others})
        return _differentiable(name, tuple(arrays), chosen, _foreign.math())(*arrays.values())

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = f"{row.doc}\n\nSignature: {row.text}"
    return operation


def functions() -> tuple[str, ...]:
    """The names of the operations that ``tlrt.jax`` has.

    Returns
    -------
    tuple of str
        Those of the rows whose arrays are arrays of the caller.

    Examples
    --------
    >>> import tlrt.jax
    >>> "matmul" in tlrt.jax.functions()
    True
    """
    return tuple(row.name for row in _foreign.rows())
