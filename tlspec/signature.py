"""Signatures: the arrays, dimensions and parameters of an operation, and the grammar they are written in.

``INPUTS [; PARAMETERS] -> OUTPUTS``, each a comma-separated list.

Inputs
    ``A[batch, m, n]``   a device buffer of ``batch*m*n`` float32, row-major
    ``x[*]``             an elementwise operand: any shape; its length is not passed
    ``x[*dims]``         a buffer whose shape is the dimension list ``dims`` (rank at most 8)
    ``mask?[n, n]``      a buffer that may be left out (NULL in C, None in Python)
    ``at: index[k]``     a device buffer of uint32 indices
    ``indices: u32[k]``  a host array of uint32; ``A: f64[m, n]`` a host array of float64
    ``y: u32[k] < n``    indices below a number of the signature, which cases are drawn within
    ``ps: list[count]``  `count` device buffers (``torchlean_buffer *const *`` in C, a sequence in Python), each of its own
                         length; all lists of a row have one `count`, and elements of one index have one length
    ``x[rows, 64*k]``    a length may be an expression; a name that no array has alone is a dimension as well
    ``w: float32[n]``    of a reference of one's own: an array in a format of its own (:mod:`tlspec.formats`), of integers (i8,
                         u8, i16, i32, i64) or of truth values (bool), whatever the format of the others is
Parameters
    ``c: float``         crosses as double, rounded to float32 once on entry; ``eps: float = 1e-6`` has a default
    ``axis: u32``        an unsigned integer below 2^32; ``seed: u64`` likewise below 2^64
    ``axis_map: dims``   a list of at most 8 unsigned integers (pointer and length in C)
Outputs
    ``out[rows, n // 2 + 1]``      integer expressions over dimensions and parameters
    ``out[*drop(dims, axis)]``     a function of :mod:`tlspec.shapes`, named the same in C
    ``out: index[rows]``           an index buffer
    ``x[rows, cols]``              an output with an input's name: the operation overwrites it (references of one's own)
    ``out: f64[m, p]``             a host array the caller supplies
    ``ps_out: list[count]``        a list of outputs of the lengths of the input lists; each may be the input of its index, as
                                   the operation is elementwise; a row has either lists or other outputs

In C the order is: inputs, dimensions in order of first appearance (or as ``order="rows, cols"`` says), parameters, outputs.
A dimension list is a pointer and a rank. A VJP has the signature ``"A, B, g -> gA, gB"``: each name on the left is an input, an
output, or ``g`` (``g_NAME`` where there are several outputs), each name on the right is ``g`` and an input; shapes follow from
the operation's own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tlspec.expressions import names_in
from tlspec.formats import FORMATS, Format, get

#: kinds of arrays of whole numbers and truth values, by NumPy's name
WHOLE = {"i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "i64": "int64", "bool": "bool"}
#: Names no argument may have: C keywords the grammar could meet, and names the generated code uses itself.
RESERVED = frozenset({"call", "int", "float", "double", "const", "register", "restrict", "return", "status", "inline"})


@dataclass(frozen=True)
class Array:
    """A buffer or host array of a signature.

    Parameters
    ----------
    name : str
        Its name.
    dims : tuple of str
        The sizes of its axes, as expressions.
    kind : str, default 'f32'
        f32, index: device buffer; list: device buffers; u32, f64: host array; or a format of its own.
    optional : bool, default False
        Whether a call may leave it out.
    below : str, default ''
        Indices are below the value of this expression; unless given below the length of the first axis of the first
        buffer.
    over : str, default ''
        Of an output: the input that it overwrites.
    """

    name: str
    dims: tuple[str, ...]
    kind: str = "f32"  # f32, index: device buffer; list: device buffers; u32, f64: host array
    optional: bool = False
    #: indices are below the value of this expression; "": below the length of the first axis of the first buffer
    below: str = ""
    #: of an output: the input that it overwrites
    over: str = ""

    @property
    def elementwise(self) -> bool:
        return self.dims == ("*",)

    @property
    def host(self) -> bool:
        return self.kind in ("u32", "f64")

    def format(self, common: Format) -> Format:
        """The number format of the elements.

        Parameters
        ----------
        common : Format
            That of the arrays in the call which have no format of their own.

        Returns
        -------
        Format
            The array's.
        """
        return FORMATS.get(self.kind, common)

    @property
    def listed(self) -> bool:
        return self.kind == "list"

    @property
    def length_text(self) -> str:
        """The number of elements as error messages write it: ``batch*m*n``."""
        if self.elementwise:
            return "n"
        parts = [f"product({d[1:]})" if d.startswith("*") else d for d in self.dims]
        return "*".join(f"({p})" if re.search(r"[ +\-/]", p) and len(parts) > 1 else p for p in parts) or "1"


@dataclass(frozen=True)
class Param:
    """A scalar or list parameter of a signature.

    Parameters
    ----------
    name : str
        Its name.
    kind : str
        float, u32, u64 or dims.
    default : str or None, default None
        Its default, as written.
    """

    name: str
    kind: str  # float, u32, u64, dims
    default: str | None = None


@dataclass(frozen=True)
class Signature:
    """The arrays, dimensions and parameters of an operation.

    Parameters
    ----------
    inputs : tuple of Array
        In C's order.
    params : tuple of Param
        In C's order.
    outputs : tuple of Array
        In C's order.
    dims : tuple of str
        Names of dimensions and dimension lists ("*dims") in C's order: first appearance in inputs, then in outputs.
    """

    inputs: tuple[Array, ...]
    params: tuple[Param, ...]
    outputs: tuple[Array, ...]
    #: names of dimensions and dimension lists ("*dims") in C order: first appearance in inputs, then in outputs
    dims: tuple[str, ...]

    @property
    def elementwise(self) -> bool:
        return any(a.elementwise for a in self.inputs)

    @property
    def buffers(self) -> tuple[Array, ...]:
        return tuple(a for a in self.inputs if a.kind in ("f32", *FORMATS, *WHOLE))

    @property
    def indices(self) -> tuple[Array, ...]:
        """The inputs that are index buffers."""
        return tuple(a for a in self.inputs if a.kind == "index")

    @property
    def lists(self) -> tuple[Array, ...]:
        """The lists among the inputs."""
        return tuple(a for a in self.inputs if a.listed)

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of everything that determines the sizes of a call: the dimensions, and with lists the lengths of their
        elements. A case holds a list as one array, its elements end to end."""
        return (*(d.lstrip("*") for d in self.dims), *(["lengths"] if self.lists else []))

    @property
    def needs_context(self) -> bool:
        """Whether the caller passes the context, as no required input is a buffer, which has one; a list may be empty."""
        return not any(not a.optional for a in self.buffers)

    @classmethod
    def parse(cls, text: str, order: str | None = None) -> "Signature":
        """Reads a signature; the grammar stands in :mod:`tlspec.signature`.

        Parameters
        ----------
        text : str
            The signature.
        order : str, optional
            The dimensions, where C has them in another order than that of first appearance.

        Returns
        -------
        Signature
            What the text says.

        Raises
        ------
        ValueError
            The text is not of the grammar.

        Examples
        --------
        >>> from tlspec.signature import Signature
        >>> print(Signature.parse("A[m, n], B[n, p] -> out[m, p]").dims)
        ('m', 'n', 'p')
        """
        left, arrow, right = text.partition("->")
        if not arrow:
            raise ValueError(f"signature has no '->': {text!r}")
        inputs_text, _, params_text = left.partition(";")
        inputs = tuple(_parse_array(t) for t in split_list(inputs_text))
        params = tuple(_parse_param(t) for t in split_list(params_text))
        taken = {a.name for a in inputs}
        outputs = tuple(
            replace(a, name=f"{a.name}_out", over=a.name) if a.name in taken else a
            for a in (_parse_array(t) for t in split_list(right))
        )
        if not outputs:
            raise ValueError(f"signature has no output: {text!r}")
        param_names = {p.name for p in params}
        dims: dict[str, None] = {}
        for array in inputs + outputs:
            for item in array.dims:
                bare = item[1:] if item.startswith("*") else item
                if item != "*" and bare.isidentifier() and bare not in param_names:
                    dims.setdefault(item)
        known = {d.lstrip("*") for d in dims} | param_names
        for item in (i for a in inputs for i in a.dims if i != "*"):
            for name in sorted(names_in(item.lstrip("*")) - known):
                dims.setdefault(name)
                known.add(name)
        names = [*(a.name for a in inputs + outputs), *(d.lstrip("*") for d in dims), *(p.name for p in params)]
        if clash := {n for n in names if names.count(n) > 1} | (RESERVED & set(names)):
            raise ValueError(f"names used twice or reserved: {sorted(clash)} in {text!r}")
        if order is not None:
            listed = tuple(split_list(order))
            if sorted(listed) != sorted(dims):
                raise ValueError(f"order {order!r} is no permutation of the dimensions {list(dims)} of {text!r}")
            dims = dict.fromkeys(listed)
        lists = [a for a in inputs + outputs if a.listed]
        if lists and (len({a.dims for a in lists}) > 1 or not lists[0].dims or any(a.optional for a in lists)):
            raise ValueError(f"lists have one dimension, the same for all, and are not optional: {text!r}")
        if lists and (not lists[0].dims[0].isidentifier() or "lengths" in names):
            raise ValueError(f"a list's dimension is a name, and `lengths` is taken: {text!r}")
        if any(o.listed for o in outputs) and not (all(o.listed for o in outputs) and any(a.listed for a in inputs)):
            raise ValueError(f"outputs are all lists or none, and lists of outputs need lists of inputs: {text!r}")
        if any(a.elementwise for a in inputs) and dims:
            raise ValueError(f"[*] and named dimensions do not mix: {text!r}")
        return cls(inputs, params, outputs, tuple(dims))


def split_list(text: str) -> Iterator[str]:
    """The items of a comma-separated list; commas within brackets separate nothing."""
    depth, start = 0, 0
    for i, ch in enumerate(text):
        depth += (ch in "[(") - (ch in "])")
        if ch == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    if text[start:].strip():
        yield text[start:].strip()


_ARRAY = re.compile(
    r"^(?P<name>[A-Za-z]\w*)(?P<opt>\?)?(?:\s*:\s*(?P<kind>\w+))?\s*\[(?P<dims>.*)\](?:\s*<\s*(?P<below>.+))?$"
)
_PARAM = re.compile(r"^(?P<name>[A-Za-z]\w*)\s*:\s*(?P<kind>float|u32|u64|dims)(?:\s*=\s*(?P<default>.+))?$")


def _parse_array(text: str) -> Array:
    m = _ARRAY.match(text)
    kind = m["kind"] or "f32" if m else ""
    if m and kind not in ("f32", "u32", "f64", "list", "index", *WHOLE):
        try:
            kind = get(kind).name
        except ValueError:
            m = None
    if not m:
        raise ValueError(f"not an array: {text!r}")
    if m["below"] and kind not in ("u32", "index"):
        raise ValueError(f"indices alone are below a number, as `u32` or `index`: {text!r}")
    kind = "float32" if m["kind"] == "f32" else kind  # said, and not the format that all arrays have
    return Array(m["name"], tuple(split_list(m["dims"])), kind, bool(m["opt"]), m["below"] or "")


def _parse_param(text: str) -> Param:
    m = _PARAM.match(text)
    if not m:
        raise ValueError(f"not a parameter: {text!r}")
    return Param(m["name"], m["kind"], m["default"])
