"""What a name that a tensor or a session lacks is likely to mean."""

import difflib

__all__ = ["missing_attribute"]

#: names of PyTorch and NumPy, and what does here what they do there
_ELSEWHERE = {
    "T": "permute, transpose2d", "transpose": "permute, transpose2d", "swapaxes": "permute", "movedim": "permute",
    "moveaxis": "permute", "view": "reshape", "ravel": "flatten", "squeeze": "reshape", "unsqueeze": "reshape",
    "expand": "broadcast_to", "cat": "concat_dim0, concat1d", "concatenate": "concat_dim0, concat1d",
    "concat": "concat_dim0, concat1d",
    "argsort": "topk, numpy().argsort()", "sort": "topk, numpy().sort()", "take_along_axis": "take_along",
    "maximum": "max", "minimum": "min", "clip": "clamp", "mm": "matmul", "dot": "matmul", "pow": "square, sqrt, exp and log",
    "tolist": "numpy().tolist()", "data": "numpy()", "index_select": "take", "gather": "take_along",
    "nll_loss": "cross_entropy", "batch_norm": "batchnorm_channel_first, channel_affine", "conv1d": "conv", "conv3d": "conv",
    "tensor": "const, input", "array": "const", "as_tensor": "const", "parameter": "param", "randn": "rand_normal",
    "rand": "rand_uniform", "ones": "full", "zero_grad": "reset", "manual_seed": "Session(seed=…)", "no_gradient": "no_grad",
}  # fmt: skip


def missing_attribute(owner: object, name: str) -> AttributeError:
    """The error for a name that the object's class lacks; it says what there is instead."""
    kind, hint = type(owner), _ELSEWHERE.get(name, "")
    if not hint and not name.startswith("_"):
        known = [n for n in dir(kind) if not n.startswith("_")]
        close = [n for n in known if len(name) > 2 and name in n.split("_")] or difflib.get_close_matches(
            name, known, 3
        )
        hint = ", ".join(sorted(close)[:4])
    there = f"; there is {hint}" if hint else ""
    return AttributeError(f"{kind.__name__} has no attribute or operation {name!r}{there}", name=name, obj=owner)
