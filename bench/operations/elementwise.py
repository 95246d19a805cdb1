"""Sizes and baselines of the elementwise family."""

from bench.operations.table import Benchmark


def _torch_compare(compare):
    """PyTorch's comparison, which writes the numbers 0 and 1 without an array of its booleans first."""
    return lambda torch, a, b: getattr(torch, compare)(a, b, out=torch.empty_like(a))


def _torch_where(torch, mask, a, b):
    """A model of PyTorch keeps its mask as booleans."""
    chosen = mask != 0
    return lambda: torch.where(chosen, a, b)


def _torch_masked_fill(torch, x, mask, value):
    chosen = mask != 0
    return lambda: x.masked_fill(chosen, value)


SMALL, MEDIUM, LARGE = {"n": 2**20}, {"n": 2**24}, {"n": 2**28}

BENCHMARKS = {
    "add": Benchmark(sizes=[SMALL, MEDIUM, LARGE], numpy=lambda np, a, b: a + b, torch=lambda torch, a, b: a + b),
    "sub": Benchmark(sizes=[MEDIUM], numpy=lambda np, a, b: a - b, torch=lambda torch, a, b: a - b),
    "mul": Benchmark(sizes=[MEDIUM], numpy=lambda np, a, b: a * b, torch=lambda torch, a, b: a * b,
        torch_vjp=lambda torch, a, b, g: (g * b, g * a)),
    "div": Benchmark(sizes=[MEDIUM], numpy=lambda np, a, b: a / b, torch=lambda torch, a, b: a / b),
    "scale": Benchmark(
        sizes=[{**MEDIUM, "c": 1.5}], numpy=lambda np, x, c: x * np.float32(c), torch=lambda torch, x, c: x * c),
    "axpy": Benchmark(sizes=[{**MEDIUM, "c": 1.5}], numpy=lambda np, a, b, c: a + np.float32(c) * b,
        torch=lambda torch, a, b, c: torch.add(a, b, alpha=c)),
    "inv": Benchmark(sizes=[MEDIUM], numpy=lambda np, x: 1 / x, torch=lambda torch, x: torch.reciprocal(x)),
    "sqrt": Benchmark(sizes=[MEDIUM], numpy=lambda np, x: np.sqrt(x), torch=lambda torch, x: torch.sqrt(x)),
    "abs": Benchmark(sizes=[MEDIUM], numpy=lambda np, x: np.abs(x), torch=lambda torch, x: torch.abs(x)),
    "max": Benchmark(
        sizes=[MEDIUM], numpy=lambda np, a, b: np.maximum(a, b), torch=lambda torch, a, b: torch.maximum(a, b)),
    "min": Benchmark(
        sizes=[MEDIUM], numpy=lambda np, a, b: np.minimum(a, b), torch=lambda torch, a, b: torch.minimum(a, b)),
    "clamp": Benchmark(sizes=[{**MEDIUM, "lo": -0.5, "hi": 0.5}],
        numpy=lambda np, x, lo, hi: np.clip(x, np.float32(lo), np.float32(hi)),
        torch=lambda torch, x, lo, hi: torch.clamp(x, lo, hi)),
    "relu": Benchmark(
        sizes=[MEDIUM], numpy=lambda np, x: np.maximum(x, np.float32(0)), torch=lambda torch, x: torch.relu(x)),
    "exp": Benchmark(sizes=[SMALL, MEDIUM, LARGE], numpy=lambda np, x: np.exp(x), torch=lambda torch, x: torch.exp(x)),
    "log": Benchmark(sizes=[MEDIUM], numpy=lambda np, x: np.log(x), torch=lambda torch, x: torch.log(x)),
    "safe_log": Benchmark(
        sizes=[MEDIUM], numpy=lambda np, x, eps: np.log(np.logaddexp(np.float32(0), x) + np.float32(eps)),
        torch=lambda torch, x, eps: torch.log(torch.nn.functional.softplus(x) + eps)),
    "sigmoid": Benchmark(
        sizes=[MEDIUM, LARGE], numpy=lambda np, x: 1 / (1 + np.exp(-x)), torch=lambda torch, x: torch.sigmoid(x)),
    "tanh": Benchmark(sizes=[MEDIUM, LARGE], numpy=lambda np, x: np.tanh(x), torch=lambda torch, x: torch.tanh(x),
        torch_vjp=lambda torch, out, g: torch.ops.aten.tanh_backward(g, out)),
    "softplus": Benchmark(sizes=[MEDIUM, LARGE], numpy=lambda np, x: np.logaddexp(np.float32(0), x),
        torch=lambda torch, x: torch.nn.functional.softplus(x)),
    "silu": Benchmark(
        sizes=[MEDIUM], numpy=lambda np, x: x / (1 + np.exp(-x)), torch=lambda torch, x: torch.nn.functional.silu(x),
        torch_vjp=lambda torch, x, g: torch.ops.aten.silu_backward(g, x)),
    "gelu": Benchmark(sizes=[MEDIUM],
        numpy=lambda np, x: (
            np.float32(0.5) * x * (1 + np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * x**3)))),
        torch=lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
        torch_vjp=lambda torch, x, g: torch.ops.aten.gelu_backward(g, x, approximate="tanh")),
    "gelu_erf": Benchmark(sizes=[MEDIUM], torch=lambda torch, x: torch.nn.functional.gelu(x),
        torch_vjp=lambda torch, x, g: torch.ops.aten.gelu_backward(g, x)),
    "leaky_relu": Benchmark(sizes=[{**MEDIUM, "slope": 0.01}],
        numpy=lambda np, x, slope: np.where(x > 0, x, np.float32(slope) * x),
        torch=lambda torch, x, slope: torch.nn.functional.leaky_relu(x, slope)),
    "sign": Benchmark(sizes=[MEDIUM], numpy=lambda np, x: np.sign(x), torch=lambda torch, x: torch.sign(x)),
    "floor": Benchmark(sizes=[MEDIUM], numpy=lambda np, x: np.floor(x), torch=lambda torch, x: torch.floor(x)),
    "round": Benchmark(sizes=[MEDIUM], numpy=lambda np, x: np.rint(x), torch=lambda torch, x: torch.round(x)),
    "eq": Benchmark(sizes=[MEDIUM], numpy=lambda np, a, b: (a == b).astype(a.dtype), torch=_torch_compare("eq")),
    "ne": Benchmark(sizes=[MEDIUM], numpy=lambda np, a, b: (a != b).astype(a.dtype), torch=_torch_compare("ne")),
    "lt": Benchmark(sizes=[MEDIUM], numpy=lambda np, a, b: (a < b).astype(a.dtype), torch=_torch_compare("lt")),
    "le": Benchmark(sizes=[MEDIUM], numpy=lambda np, a, b: (a <= b).astype(a.dtype), torch=_torch_compare("le")),
    "where": Benchmark(sizes=[MEDIUM], numpy=lambda np, mask, a, b: np.where(mask != 0, a, b),
        torch=_torch_where),
    "masked_fill": Benchmark(sizes=[{**MEDIUM, "value": -1.0}],
        numpy=lambda np, x, mask, value: np.where(mask != 0, np.float32(value), x),
        torch=_torch_masked_fill),
    "log1p": Benchmark(sizes=[MEDIUM], numpy=lambda np, x: np.log1p(x), torch=lambda torch, x: torch.log1p(x)),
    "expm1": Benchmark(sizes=[MEDIUM], numpy=lambda np, x: np.expm1(x), torch=lambda torch, x: torch.expm1(x)),
    "sin": Benchmark(sizes=[MEDIUM, LARGE], numpy=lambda np, x: np.sin(x), torch=lambda torch, x: torch.sin(x)),
    "cos": Benchmark(sizes=[MEDIUM], numpy=lambda np, x: np.cos(x), torch=lambda torch, x: torch.cos(x)),
    "atan2": Benchmark(
        sizes=[MEDIUM], numpy=lambda np, y, x: np.arctan2(y, x), torch=lambda torch, y, x: torch.atan2(y, x)),
    "pow": Benchmark(sizes=[MEDIUM], numpy=lambda np, a, b: np.power(a, b), torch=lambda torch, a, b: torch.pow(a, b)),
    "pow_scalar": Benchmark(sizes=[{**MEDIUM, "p": 2.5}],
        numpy=lambda np, x, p: np.power(x, np.float32(p)), torch=lambda torch, x, p: torch.pow(x, p)),
    "elu": Benchmark(sizes=[MEDIUM], numpy=lambda np, x, alpha: np.where(x > 0, x, np.float32(alpha) * np.expm1(x)),
        torch=lambda torch, x, alpha: torch.nn.functional.elu(x, alpha)),
    "softsign": Benchmark(
        sizes=[MEDIUM], numpy=lambda np, x: x / (1 + np.abs(x)), torch=lambda torch, x: torch.nn.functional.softsign(x)),
}  # fmt: skip
