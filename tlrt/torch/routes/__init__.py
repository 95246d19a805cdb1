"""PyTorch's float32 operators on this package's kernels in reproducible contexts: one function for each operator whose bits would
otherwise depend on the device, the number of threads or the batch. Operators that IEEE 754 determines stay PyTorch's own."""

from tlrt.torch.routes import attention, elementwise, losses, norms, pools, products, scatters, sums
from tlrt.torch.routes.base import ROUTES

__all__ = ["ROUTES", "attention", "elementwise", "losses", "norms", "pools", "products", "scatters", "sums"]
