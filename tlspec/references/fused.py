"""Operations in one pass that models compute in two: a sum and its normalisation, a gate and its product."""

import numpy as np

from tlspec.ops.elementwise import gelu, gelu_erf, silu
from tlspec.references._bound import analysed
from tlspec.registry import check, op

WHY = "it is a reference without a kernel of this project"


@op("x[rows, cols], residual[rows, cols], gamma[cols]; eps: float = 1e-6 -> out[rows, cols], total[rows, cols]",
    bound=analysed(), no_vjp=WHY, checks=[check("eps", "eps >= 0")], data=("normal", "uniform", "structured", "special"),
    draw=lambda d: {"eps": d.choice([1e-6, 1e-5, 1e-3])},
    source="Zhang and Sennrich, arXiv:1910.07467; flashinfer.norm.fused_add_rmsnorm")  # fmt: skip
def fused_add_rms_norm(x, residual, gamma, eps):
    """A residual sum and its normalisation by the root of the mean square.

    total = x + residual; out[i, j] = gamma[j] · total[i, j] / √(Σ_k total[i, k]² / cols + eps)

    Parameters
    ----------
    x, residual : (rows, cols)
    gamma : (cols)
    eps : float
        Inside the root.

    Returns
    -------
    out, total : (rows, cols)
        A kernel that normalises the sum after rounding it to a narrower format needs ``intermediate=`` with this format.
    """
    total = x + residual
    if not x.shape[1]:
        return total, total
    return total / np.sqrt((total * total).sum(axis=1, keepdims=True) / x.shape[1] + eps) * gamma, total


@fused_add_rms_norm.formula()
def _times_inverse_root(x, residual, gamma, eps):
    total = x + residual
    if not x.shape[1]:
        return total, total
    return gamma * (total * (1 / np.sqrt((total * total).sum(axis=1, keepdims=True) / x.shape[1] + eps))), total


def _gated(name, activation):
    """The product of a gate's activation and a value, in each of the activation's formulas."""

    def gated(gate, up):
        return activation.reference(gate) * up

    gated.__name__ = name
    gated.__doc__ = f"""The product of an activated gate and a value: out = {activation.name}(gate) · up.

    Parameters
    ----------
    gate, up : any shape, the same for both

    Returns
    -------
    out : of that shape
        {activation.name} is the row of this name.
    """
    row = op("gate[*], up[*] -> out[*]", bound=analysed(), no_vjp=WHY, data=("normal", "uniform", "wide", "structured", "spread"),
             source="Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202")(gated)  # fmt: skip
    for formula in activation.formulas["forward"]:
        row.formula()(lambda gate, up, formula=formula: formula(gate) * up)
    return row


swiglu = _gated("swiglu", silu)
geglu = _gated("geglu", gelu)
geglu_erf = _gated("geglu_erf", gelu_erf)
