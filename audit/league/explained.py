"""Failures that were looked at. Each is a difference of a library from the row, with its reason; a failure without an entry here
makes the league fail. docs/league.md has the smallest programs that show those that are defects."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True)
class Explained:
    """Failures of rows of libraries, in one direction ("forward", "vjp") and in some formats; ``*`` for all."""

    library: str
    op: str
    reason: str
    which: str = "*"
    dtype: str = "*"
    #: kinds of findings (:class:`tlspec.judge.report.Finding`)
    kinds: str = "value"

    def covers(self, line: Mapping[str, Any], kind: str) -> bool:
        """Whether a finding of a line of evidence is one of these."""
        return (
            kind in self.kinds.split()
            and any(fnmatchcase(line["library"], name) for name in self.library.split())
            and line["op"] in self.op.split()
            and self.which in ("*", line["which"])
            and (self.dtype == "*" or line["dtype"] in self.dtype.split())
        )


TORCH, NARROW = "torch torch:* compile compile:*", "bfloat16 float16"
COMPILED, ON_CUDA = "compile compile:*", "torch:cuda compile:cuda"
RANGE = "Overflows, or loses what is near zero, on the way to a result that the format holds."
CANCELS = "The formula cancels: the error is small beside the terms and large beside their difference."
IN_STEPS = "Sums or products are rounded to the narrow format more often than once for each result."
BOUNDS = (
    "The bounds are numbers, which the library rounds to the format of the array: an element may lie on the other side."
)
KINK = "At a kink the gradient is that of the other side."
SQUARE_ROOT = "The gradient at 0 is 0/0 where the cotangent is 0, as ½/√x is multiplied afterwards."
IGNORES_NAN = "A NaN is ignored: the ONNX operator says nothing of NaN."
ATOMIC = "An atomic addition of float32 in global memory takes subnormal numbers for zero (PTX, `atom`)."
APPROXIMATION = "The approximation has more error than the 4 ulp that vector libraries are granted."

EXPLAINED: tuple[Explained, ...] = (
    Explained("*", "prod", RANGE),
    # PyTorch
    Explained(TORCH, "sign", "sign(NaN) is 0.", "forward"),
    Explained(TORCH, "erf", "In narrow formats erf has an absolute error: tiny arguments give 0.", "forward", NARROW),
    Explained(TORCH, "gelu_erf", "x·(1 + erf) overflows before it is halved, from half the largest number on; in bfloat16 "
              "subnormal results are lost.", dtype="float32 bfloat16"),
    Explained(TORCH, "hardswish", "x·6/6 where the document says x: wrong by a rounding, infinite from a sixth of the largest "
              "number on, NaN at -inf.", "forward"),
    Explained(TORCH, "softsign", "x/(1 + |x|) is NaN at infinities.", "forward"),
    Explained(TORCH, "vector_norm", "Powers are not scaled: they overflow on the way to a norm of ordinary size. The gradient "
              "divides them.", "*"),
    Explained(f"{TORCH} numpy cupy jax onnx", "pow_scalar", "The exponent is rounded to the narrow format before the power is "
              "taken.", "*", NARROW, "value stale"),
    Explained(f"{TORCH} numpy cupy", "pow_scalar", "A power of ½ is the square root, which is NaN at -inf where pow is inf.",
              "forward", "float32", "value stale"),
    Explained("*", "irfft1d_packed", RANGE),
    Explained(TORCH, "flash_attention", "A causal mask is filled in before scores are multiplied by the scale: a negative one "
              "makes the row NaN. A row whose scores are all -inf is 0.", "*"),
    Explained(TORCH, "log_softmax cross_entropy cross_entropy_rows", "The logarithm of the sum is rounded to the narrow format "
              "before it is subtracted.", "*", NARROW),
    Explained(TORCH, "expm1", f"The gradient is g·(out + 1). {CANCELS}", "vjp"),
    Explained(TORCH, "hardswish", f"The gradient is g·(x/3 + ½). {CANCELS}", "vjp"),
    Explained(TORCH, "softsign", f"The gradient is that of a quotient. {CANCELS}", "vjp"),
    Explained(TORCH, "div inv atan2 prod bce_with_logits mse_loss", RANGE, "vjp", "float16"),
    Explained(TORCH, "sqrt", SQUARE_ROOT, "vjp"),
    Explained(TORCH, "clamp", BOUNDS, "vjp", NARROW),
    Explained(TORCH, "layer_norm channel_affine scatter_add scatter_add_rows scatter_add_axis gather_vec gather_rows "
              "take_axis conv conv2d conv_transpose conv_transpose2d conv_grouped conv_transpose_grouped max_pool max_pool2d "
              "avg_pool avg_pool2d spectral_conv1d_rfft flash_attention grouped_attention", IN_STEPS, "vjp", NARROW),
    Explained(TORCH, "grouped_attention", "The mask is added, so a NaN among the scores stays where the mask blocks.",
              "forward"),
    Explained(TORCH, "cumsum", IN_STEPS, "*", NARROW),
    Explained(ON_CUDA, "batchnorm_channel_first cross_entropy_rows", IN_STEPS, "vjp", NARROW),
    Explained(ON_CUDA, "conv conv2d conv_grouped", "The bias is added to a result that was rounded already.", "forward", NARROW),
    Explained(ON_CUDA, "conv conv2d conv_grouped conv_transpose conv_transpose2d conv_transpose_grouped",
              "cuDNN rounds the factors to TF32, which torch.backends.cudnn.allow_tf32 = False forbids.", "*", "float32"),
    Explained("torch:cuda compile:cuda cupy", "scatter_add scatter_add_rows scatter_add_axis", ATOMIC, "forward", "float32",
              "value stale"),
    Explained(COMPILED, "broadcast_to", "`i not in list` is wrong where an integer of the list became symbolic.",
              kinds="error value"),
    Explained("compile", "expm1 elu", f"Compiled, expm1 is e^x - 1. {CANCELS}", "forward", kinds="value stale"),
    Explained("compile", "erf", APPROXIMATION, "forward", kinds="value stale"),
    Explained("compile:cuda", "pow", "A power with the exponent 1 may differ from the base by an ulp.", "forward", kinds="law"),
    Explained("compile:cuda", "grouped_attention", "The Triton kernel that PyTorch writes does not compile.", kinds="error"),
    # JAX
    Explained("jax", "cumsum", "Sums are added in the narrow format.", "*", NARROW),
    Explained("jax", "broadcast_vec_to_rows broadcast_vec_to_cols broadcast_to linear layer_norm rms_norm channel_affine "
              "batchnorm_channel_first conv conv2d conv_grouped concat1d avg_pool max_pool avg_pool2d max_pool2d",
              "The gradient of a broadcast is summed in the narrow format.", "vjp", NARROW),
    Explained("jax", "take_axis gather_vec gather_rows scatter_add scatter_add_rows scatter_add_axis",
              "Indices of 64 bits are cut to 32, so one out of range may read or write an element."),
    Explained("jax", "abs leaky_relu relu max min", KINK, "vjp"),
    Explained("jax", "reduce_max_axis0 reduce_max_axis1 amax amin max_pool max_pool2d", "Compiled for the CPU, the maximum and "
              "the minimum over an axis ignore NaN in arrays of more than a few thousand elements.", "forward"),
    Explained("jax", "topk", "The order is that of the bits: -0 is below +0, and a NaN with a sign below everything.", "forward"),
    Explained("jax", "amax amin", "The number of equal extremes is rounded to the narrow format.", "vjp", NARROW),
    Explained("jax", "gelu_erf mish selective_scan_diag selective_scan_diag_var", IN_STEPS, "*", NARROW),
    Explained("jax cupy", "div sqrt log atan2 pow_scalar", "Subnormal numbers count as zero: one divided by 0 is NaN, "
              "the root or the logarithm of a negative one is no NaN.", "forward", "float32 bfloat16"),
    Explained("jax cupy", "pow", "Subnormal numbers count as zero, whatever the exponent is.", "forward", kinds="law"),
    Explained("jax", "pow", "At base 0 the gradient of a negative exponent is NaN in place of an infinity.", "vjp"),
    Explained("jax", "expm1", "Intermediate results are float16.", "forward", "float16"),
    Explained("jax", "sqrt var", SQUARE_ROOT, "vjp"),
    Explained("jax", "elu", f"The gradient is g·(out + 1). {CANCELS}", "vjp"),
    Explained("jax", "hardswish", "x·min(max(x + 3, 0), 6)/6 is NaN at -inf, and overflows.", "forward"),
    Explained("jax", "clamp", BOUNDS, "vjp", NARROW),
    Explained("jax", "expm1", f"The gradient is g·(out + 1). {CANCELS}", "vjp"),
    Explained("jax", "hardswish", f"The gradient is that of a product. {CANCELS}", "vjp"),
    Explained("jax", "softsign", "x/(1 + |x|) is NaN at infinities.", "forward"),
    Explained("jax", "softsign", f"The gradient is that of a quotient. {CANCELS}", "vjp"),
    Explained("jax", "div inv silu layer_norm batchnorm_channel_first", RANGE, "vjp", "float16"),
    Explained("jax", "softmax log_softmax cross_entropy flash_attention logsumexp", IN_STEPS, "*", NARROW),
    Explained("jax", "avg_pool avg_pool2d", "The window is summed in the narrow format.", "forward", NARROW),
    # CuPy
    Explained("cupy", "sigmoid erf", "The function gives float64 for float16.", "forward", "float16", "result"),
    Explained("cupy", "log_softmax", "A maximum that is infinite counts as 0, as SciPy has it: the row is -inf where it is NaN.",
              "forward"),
    # ONNX Runtime
    Explained("onnx", "reduce_max_axis0 reduce_max_axis1 amax amin argmax argmin max_pool max_pool2d logsumexp", IGNORES_NAN,
              kinds="value stale"),
    Explained("onnx", "sign", "sign(NaN) is 0 in float16.", "*", "float16"),
    Explained("onnx", "sigmoid tanh softplus mish gelu", APPROXIMATION, kinds="value stale"),
    Explained("onnx", "elu", f"e^x - 1 in place of expm1. {CANCELS}"),
    Explained("onnx", "hardswish", "x·max(0, min(1, x/6 + ½)) is NaN at -inf."),
    Explained("onnx", "softsign", "x/(1 + |x|) is NaN at infinities."),
)  # fmt: skip


def explanation(line: Mapping[str, Any]) -> str:
    """Why a line of evidence fails: the reason of each of its kinds of findings; "" where one has none."""
    reasons = [next((e.reason for e in EXPLAINED if e.covers(line, kind)), "") for kind in line["kinds"]]
    return " ".join(dict.fromkeys(reasons)) if reasons and all(reasons) else ""
