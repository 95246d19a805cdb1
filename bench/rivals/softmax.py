"""Sizes and rivals of the softmax family."""

from bench.rivals.table import Rival

SIZES = [
    {"rows": 4096, "cols": 4096},
    {"rows": 16384, "cols": 16384},
    {"rows": 65536, "cols": 1024},
    {"rows": 4096, "cols": 50257},
]

RIVALS = {
    "softmax": Rival(
        sizes=SIZES,
        torch=lambda torch, x: torch.softmax(x, dim=1),
        torch_vjp=lambda torch, out, g: torch.ops.aten._softmax_backward_data(g, out, 1, torch.float32),
    ),
    "log_softmax": Rival(
        sizes=SIZES,
        torch=lambda torch, x: torch.log_softmax(x, dim=1),
        torch_vjp=lambda torch, out, g: torch.ops.aten._log_softmax_backward_data(g, out, 1, torch.float32),
    ),
}
