"""Sizes and rivals of the elementwise family."""

from bench.rivals.table import Rival

SMALL, LARGE = {"n": 2**20}, {"n": 2**28}

MEDIUM = {"n": 2**24}

RIVALS = {
    "add": Rival(sizes=[SMALL, MEDIUM, LARGE], numpy=lambda np, a, b: a + b, torch=lambda torch, a, b: a + b),
    "sub": Rival(sizes=[MEDIUM], numpy=lambda np, a, b: a - b, torch=lambda torch, a, b: a - b),
    "mul": Rival(
        sizes=[MEDIUM], numpy=lambda np, a, b: a * b, torch=lambda torch, a, b: a * b,
        torch_vjp=lambda torch, a, b, g: (g * b, g * a),
    ),
    "div": Rival(sizes=[MEDIUM], numpy=lambda np, a, b: a / b, torch=lambda torch, a, b: a / b),
    "scale": Rival(
        sizes=[{**MEDIUM, "c": 1.5}], numpy=lambda np, x, c: x * np.float32(c), torch=lambda torch, x, c: x * c
    ),
    "axpy": Rival(
        sizes=[{**MEDIUM, "c": 1.5}], numpy=lambda np, a, b, c: a + np.float32(c) * b,
        torch=lambda torch, a, b, c: torch.add(a, b, alpha=c),
    ),
    "inv": Rival(sizes=[MEDIUM], numpy=lambda np, x: 1 / x, torch=lambda torch, x: torch.reciprocal(x)),
    "sqrt": Rival(sizes=[MEDIUM], numpy=lambda np, x: np.sqrt(x), torch=lambda torch, x: torch.sqrt(x)),
    "abs": Rival(sizes=[MEDIUM], numpy=lambda np, x: np.abs(x), torch=lambda torch, x: torch.abs(x)),
    "max": Rival(
        sizes=[MEDIUM], numpy=lambda np, a, b: np.maximum(a, b), torch=lambda torch, a, b: torch.maximum(a, b)
    ),
    "min": Rival(
        sizes=[MEDIUM], numpy=lambda np, a, b: np.minimum(a, b), torch=lambda torch, a, b: torch.minimum(a, b)
    ),
    "clamp": Rival(
        sizes=[{**MEDIUM, "lo": -0.5, "hi": 0.5}],
        numpy=lambda np, x, lo, hi: np.clip(x, np.float32(lo), np.float32(hi)),
        torch=lambda torch, x, lo, hi: torch.clamp(x, lo, hi),
    ),
    "relu": Rival(
        sizes=[MEDIUM], numpy=lambda np, x: np.maximum(x, np.float32(0)), torch=lambda torch, x: torch.relu(x)
    ),
    "exp": Rival(sizes=[SMALL, MEDIUM, LARGE], numpy=lambda np, x: np.exp(x), torch=lambda torch, x: torch.exp(x)),
    "log": Rival(sizes=[MEDIUM], numpy=lambda np, x: np.log(x), torch=lambda torch, x: torch.log(x)),
    "safe_log": Rival(
        sizes=[MEDIUM], numpy=lambda np, x, eps: np.log(np.logaddexp(np.float32(0), x) + np.float32(eps)),
        torch=lambda torch, x, eps: torch.log(torch.nn.functional.softplus(x) + eps),
    ),
    "sigmoid": Rival(
        sizes=[MEDIUM, LARGE], numpy=lambda np, x: 1 / (1 + np.exp(-x)), torch=lambda torch, x: torch.sigmoid(x)
    ),
    "tanh": Rival(
        sizes=[MEDIUM, LARGE], numpy=lambda np, x: np.tanh(x), torch=lambda torch, x: torch.tanh(x),
        torch_vjp=lambda torch, out, g: torch.ops.aten.tanh_backward(g, out),
    ),
    "softplus": Rival(
        sizes=[MEDIUM, LARGE], numpy=lambda np, x: np.logaddexp(np.float32(0), x),
        torch=lambda torch, x: torch.nn.functional.softplus(x),
    ),
    "silu": Rival(
        sizes=[MEDIUM], numpy=lambda np, x: x / (1 + np.exp(-x)), torch=lambda torch, x: torch.nn.functional.silu(x),
        torch_vjp=lambda torch, x, g: torch.ops.aten.silu_backward(g, x),
    ),
    "gelu": Rival(
        sizes=[MEDIUM],
        numpy=lambda np, x: (
            np.float32(0.5) * x * (1 + np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * x**3)))
        ),
        torch=lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
        torch_vjp=lambda torch, x, g: torch.ops.aten.gelu_backward(g, x, approximate="tanh"),
    ),
}  # fmt: skip
