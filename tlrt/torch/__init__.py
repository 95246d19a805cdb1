"""This package inside PyTorch: the operations as ``torch.ops.torchlean``, and :func:`reproducible`, a block in which an
unmodified model computes with the same bits on every device. Needs PyTorch 2.11 or newer, which `import tlrt` alone does
not."""

from tlrt._foreign import math, set_math
from tlrt.torch.mode import Report, reproducible
from tlrt.torch.ops import operators

__all__ = ["Report", "math", "operators", "reproducible", "set_math"]
