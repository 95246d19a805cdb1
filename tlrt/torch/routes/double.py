"""Functions of float64, composed of operators that IEEE 754 determines: sums, products, quotients, roots, choices and bits.

They carry unevaluated sums of two numbers, (high, low), and add these at the end, so errors are below one unit in the last place.
Products are split as in Dekker, A floating-point technique for extending the available precision, Numer. Math. 18 (1971).
No division has a number of the host as its divisor: a GPU multiplies by its inverse."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch

from tlrt.torch.routes.base import DOUBLES, aten

INFINITY, NAN = math.inf, math.nan
#: ln 2 as 32 bits, whose products with exponents are exact, and the rest
_LN2 = (float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33"))
_LN2_NEAREST = (float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56"))
_PER_LN2 = (float.fromhex("0x1.71547652b82fep+0"), float.fromhex("0x1.777d0ffda0d24p-56"))
_PER_LN10 = (float.fromhex("0x1.bcb7b1526e50ep-2"), float.fromhex("0x1.95355baaafad3p-57"))
_HALF_PI = (float.fromhex("0x1.921fb54442d18p+0"), float.fromhex("0x1.1a62633145c07p-54"))
_THIRD = (1 / 3, float.fromhex("0x1.5555555555555p-56"))
#: numbers of a block, beside which intermediate results stand in memory
BLOCK = 1 << 20


# ---- sums of two numbers -------------------------------------------------------------------------------------------------


def _two_sum(a: Any, b: Any) -> Any:
    """a + b, rounded, and what the rounding left."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _quick(a: Any, b: Any) -> Any:
    """The same of an a that is no smaller than b."""
    s = a + b
    return s, b - (s - a)


def _split(a: Any) -> Any:
    t = a * 134217729.0  # 2^27 + 1
    high = t - (t - a)
    return high, a - high


def _two_product(a: Any, b: Any) -> Any:
    p = a * b
    (x, y), (u, v) = _split(a), _split(b)
    return p, ((x * u - p) + x * v + y * u) + y * v


def sum_pair(a: Any, b: Any) -> Any:
    """The sum of two of them, as one."""
    s, e = _two_sum(a[0], b[0])
    return _quick(s, e + (a[1] + b[1]))


def product_pair(a: Any, b: Any) -> Any:
    """The product of two of them, as one."""
    p, e = _two_product(a[0], b[0])
    return _quick(p, e + (a[0] * b[1] + a[1] * b[0]))


def _quotient(a: Any, b: Any) -> Any:
    q = a[0] / b[0]
    p, e = _two_product(q, b[0])
    return _quick(q, ((a[0] - p) - e + a[1] - q * b[1]) / b[0])


def series(x: Any, coefficients: Any) -> Any:
    """A polynomial, the highest power's coefficient first."""
    first, *rest = coefficients
    y = x * first
    for c in rest[:-1]:
        y = (y + c) * x
    return y + rest[-1]


# ---- exponents and bits ----------------------------------------------------------------------------------------------------


def _power_of_two(k: Any) -> Any:
    return ((k + 1023) << 52).view(torch.float64)


def _scaled(x: Any, k: Any) -> Any:
    """x·2^k, rounded once, of an x near 1."""
    half = k >> 1
    return x * _power_of_two(half) * _power_of_two(k - half)


def number(value: float, like: Any) -> Any:
    """A number on a tensor's device."""
    return torch.full((), value, dtype=torch.float64, device=like.device)


def _kept_nan(x: Any, y: Any) -> Any:
    return torch.where(x != x, x, y)


def _without_nan(x: Any) -> Any:
    return x.masked_fill(x != x, 0.0)


# ---- powers and logarithms -------------------------------------------------------------------------------------------------


def _remainder_exp(r: Any) -> Any:
    """e^r - 1 of a sum r, at most ln 2 / 2 in size."""
    square, low = _two_product(r[0], r[0])
    tail = r[0] * square * series(r[0], [1 / math.factorial(n) for n in range(15, 2, -1)])
    s, e = _two_sum(r[0], 0.5 * square)
    return _quick(s, e + (r[1] + r[0] * r[1] + 0.5 * low + tail))


def _exp(x: Any) -> Any:
    """Of a sum x: k and e^x / 2^k - 1."""
    k = (x[0] * _PER_LN2[0]).round()
    r, e = _two_sum(x[0] - k * _LN2[0], k * -_LN2[1])
    return k.to(torch.int64), _remainder_exp(_quick(r, e + x[1]))


def _exp_of(x: Any, low: Any = 0.0) -> Any:
    """e^x of a sum, rounded."""
    inside = x.clamp(-746.0, 710.0)
    k, p = _exp((inside, low * (inside == x)))
    high, low = _quick(1.0, p[0])
    return _scaled(high + (low + p[1]), k)


def log_pair(x: Any, low: Any = 0.0) -> Any:
    """Of a sum x > 0: k, and the logarithm of x / 2^k, which is near 1."""
    tiny = x < 2.0**-1022
    bits = torch.where(tiny, x * 2.0**54, x).view(torch.int64)
    k = (bits - 0x3FE6A09E00000000) >> 52
    m = (bits - (k << 52)).view(torch.float64)
    k = k - 54 * tiny
    low = low * _power_of_two((-k).clamp(-1000, 1000))
    above, rest = _two_sum(m, 1.0)
    s = _quotient(_quick(m - 1.0, low), (above, rest + low))
    square = product_pair(s, s)
    t = series(square[0], [1 / n for n in range(27, 3, -2)])
    t = product_pair(square, sum_pair(_THIRD, (square[0] * t, 0.0)))
    s = (s[0] + s[0], s[1] + s[1])
    return k.to(torch.float64), sum_pair(s, product_pair(s, t))


def natural_pair(k: Any, part: Any) -> Any:
    """k·ln 2 and a logarithm, as a sum."""
    s, e = _two_sum(k * _LN2[0], part[0])
    return _quick(s, e + (part[1] + k * _LN2[1]))


def _positive(x: Any) -> Any:
    """The argument of a logarithm, or 1 where it has none."""
    return x.masked_fill(~((x > 0) & (x < INFINITY)), 1.0)


def _logarithm(x: Any, y: Any) -> Any:
    """y, and what logarithms are elsewhere."""
    y = y.masked_fill(x < 0, NAN).masked_fill(x == 0, -INFINITY)
    return torch.where((x != x) | (x == INFINITY), x, y)


def exp(x: Any) -> Any:
    return _kept_nan(x, _exp_of(_without_nan(x)))


def exp2(x: Any) -> Any:
    inside = _without_nan(x).clamp(-1076.0, 1025.0)
    k = inside.round()
    p = _remainder_exp(product_pair((inside - k, 0.0), _LN2_NEAREST))
    high, low = _quick(1.0, p[0])
    return _kept_nan(x, _scaled(high + (low + p[1]), k.to(torch.int64)))


def _expm1(x: Any) -> Any:
    """k and (e^x - 1) / 2^k, a sum."""
    k, p = _exp((x, 0.0))
    return k, sum_pair(_two_sum(1.0, -_power_of_two(-k.clamp(max=1000))), p)


def expm1(x: Any) -> Any:
    k, (high, _) = _expm1(_without_nan(x).clamp(-50.0, 710.0))
    return _kept_nan(x, torch.where(x.abs() < 2.0**-54, x, _scaled(high, k)))


def log(x: Any) -> Any:
    return _logarithm(x, natural_pair(*log_pair(_positive(x)))[0])


def log2(x: Any) -> Any:
    k, part = log_pair(_positive(x))
    return _logarithm(x, sum_pair((k, 0.0), product_pair(part, _PER_LN2))[0])


def log10(x: Any) -> Any:
    return _logarithm(x, product_pair(natural_pair(*log_pair(_positive(x))), _PER_LN10)[0])


def log1p(x: Any) -> Any:
    inside = x.masked_fill(~((x > -1) & (x < INFINITY)), 0.0)
    y = natural_pair(*log_pair(*_two_sum(inside, 1.0)))[0].masked_fill(x < -1, NAN).masked_fill(x == -1, -INFINITY)
    return torch.where((x != x) | (x == INFINITY) | (x.abs() < 2.0**-54), x, y)


def power(x: Any, y: Any) -> Any:
    device = (x if x.dim() else y).device
    x, y = x.to(device), y.to(device)
    size = x.abs()
    outside = (size == 0) | (size == INFINITY)
    part = natural_pair(*log_pair(size.masked_fill(outside | (x != x), 1.0)))
    inside = _without_nan(y).clamp(-(2.0**64), 2.0**64)
    found = _exp_of(*product_pair(part, (inside, 0.0)))
    found = torch.where(outside, torch.where(y > 0, size, 1.0 / size), found)
    is_whole, half = y.floor() == y, inside * 0.5
    found = found.masked_fill((x < 0) & ~is_whole & (size < INFINITY), NAN)
    found = torch.where(torch.signbit(x) & is_whole & (half.floor() != half), -found, found)
    is_one = (x == 1) | (y == 0)
    found = torch.where((y != y) & ~is_one, y, found.masked_fill(is_one, 1.0))
    return torch.where((x != x) & ~is_one, x, found)


def power_by_number(x: Any, y: float) -> Any:
    simple = {
        0: torch.ones_like, 1: torch.clone, 2: lambda x: x * x, 3: lambda x: x * x * x, 0.5: sqrt,
        -0.5: rsqrt, -1: torch.reciprocal, -2: lambda x: (x * x).reciprocal(),
    }  # fmt: skip
    return simple[y](x) if y in simple else power(x, number(y, x))


def _rest(x: Any, root: Any) -> Any:
    """x - root², which is exact."""
    square, low = _two_product(root, root)
    return (x - square) - low


def _root(x: Any) -> Any:
    """Whether x is so small that x·2^600 stands for it, else x·2^-200; this number; and its root, correctly rounded. PyTorch's is
    so on a GPU, and not on every CPU: findings/torch-sqrt-rounds-wrong.sh."""
    tiny = x < 2.0**-500
    inside = torch.where(tiny, x * 2.0**600, x * 2.0**-200)
    root = inside.sqrt()
    above, below = (torch.nextafter(root, number(end, x)) for end in (INFINITY, 0.0))
    rest = _rest(inside, root)
    root = torch.where(rest > root * (above - root), above, torch.where(rest <= root * (below - root), below, root))
    return tiny, inside, root


def sqrt(x: Any) -> Any:
    tiny, _, root = _root(x)
    y = torch.where(tiny, root * 2.0**-300, root * 2.0**100)
    return torch.where((x > 0) & (x < INFINITY), y, x.sqrt())


def rsqrt(x: Any) -> Any:
    tiny, inside, root = _root(x)
    y = _quotient((torch.ones_like(x), 0.0), (root, _rest(inside, root) / (root + root)))[0]
    y = torch.where(tiny, y * 2.0**300, y * 2.0**-100)
    return torch.where((x > 0) & (x < INFINITY), y, x.sqrt().reciprocal())


# ---- functions of exponentials ---------------------------------------------------------------------------------------------


def tanh(x: Any) -> Any:
    size = x.abs()
    k, (high, low) = _expm1(-2.0 * _without_nan(size).clamp(max=20.0))
    unit = _power_of_two(k)
    e = (high * unit, low * unit)
    y = -_quotient(e, sum_pair(e, (2.0, 0.0)))[0]
    return _kept_nan(x, torch.where(size < 2.0**-28, x, y.copysign(x)))


def sigmoid(x: Any) -> Any:
    k, p = _exp((-_without_nan(x).abs().clamp(max=746.0), 0.0))
    high, low = _quick(1.0, p[0])
    e = _quick(_scaled(high, k), _scaled(low + p[1], k))
    above = (e[0].masked_fill(x >= 0, 1.0), e[1].masked_fill(x >= 0, 0.0))
    return _kept_nan(x, _quotient(above, sum_pair((1.0, 0.0), e))[0])


def silu_backward(g: Any, x: Any) -> Any:
    s = sigmoid(x)
    return g * s * (1.0 + x * (1.0 - s))


def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    z = x * beta
    y = z.clamp(min=0.0) + log1p(exp(-z.abs()))
    return torch.where(z > threshold, x, y / number(beta, x))


def exp_of_minus_square(x: Any) -> Any:
    square, low = _two_product(x, x)
    return _exp_of(-square, -low)


def laplace_fraction(x: Any, terms: int) -> Any:
    """e^(-x²) / (sqrt(π)·erfc(x))"""
    fraction = x
    for k in range(terms, 0, -1):
        fraction = x + 0.5 * k / fraction
    return fraction


def erf(x: Any) -> Any:
    """By the series of positive terms and, further out, Laplace's continued fraction (NIST Digital Library of Mathematical
    Functions, 7.6.2 and 7.9.1); 1 from 6 on."""
    size = _without_nan(x).abs()
    near, far = size.clamp(max=2.0), size.clamp(2.0, 6.0)
    square = near * near
    series = torch.ones_like(near)
    for n in range(40, 0, -1):
        series = 1.0 + series * square * (2 / (2 * n + 1))
    inner = near * (exp_of_minus_square(near) * series) * (2 / math.sqrt(math.pi))
    outer = 1.0 - exp(-far * far) * (1 / math.sqrt(math.pi)) / laplace_fraction(far, 48)
    y = torch.where(size < 2.0, inner, outer).masked_fill(size >= 6, 1.0)
    return _kept_nan(x, y.copysign(x))


def _gelu(x: Any, approximate: str) -> tuple[Any, Any]:
    """The factor of x, and its derivative."""
    if approximate == "tanh":
        t = tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi))
        return 0.5 * (1.0 + t), 0.5 * (1.0 - t * t) * (1.0 + x * x * (3 * 0.044715)) * math.sqrt(2 / math.pi)
    return 0.5 * (1.0 + erf(x * math.sqrt(0.5))), exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))


def gelu(x: Any, *, approximate: str = "none") -> Any:
    return x * _gelu(x, approximate)[0]


def gelu_backward(g: Any, x: Any, *, approximate: str = "none") -> Any:
    factor, slope = _gelu(x, approximate)
    return g * (factor + x * slope)


# ---- sine and cosine -------------------------------------------------------------------------------------------------------


@cache
def _two_over_pi(device: Any) -> Any:
    """2/π in words of 26 bits, from the place that a number's exponent chooses: 9 words x 41 places."""
    unit = 1 << 1300

    def arctangent(n: int) -> int:
        """Of 1/n, in units."""
        total, term, k = 0, unit // n, 1
        while term:
            total, term, k = total + (term // k if k % 4 == 1 else -(term // k)), term // n**2, k + 2
        return total

    digits = 2 * unit**2 // (16 * arctangent(5) - 4 * arctangent(239))
    words = [digits >> (1300 - 26 * n) & 0x3FFFFFF if n > 0 else 0 for n in range(-3, 46)]
    return torch.tensor([words[j : j + 41] for j in range(9)], device=device)


def _quarters(x: Any) -> Any:
    """A finite x >= 0 as n·π/2 and a rest of at most π/4, a sum (Payne and Hanek, Radian reduction for trigonometric functions,
    SIGNUM Newsletter 18, 1983): x is 78 bits times 2^(26q), and words of 2/π before the q-th give multiples of 2π."""
    bits = x.view(torch.int64)
    place = ((bits >> 52) - 1075).clamp(min=-78) + 78
    words, shift, mask = _two_over_pi(x.device)[:, place // 26], place % 26, 0x3FFFFFF
    mantissa = bits & 0xFFFFFFFFFFFFF | 0x10000000000000
    low = (mantissa & mask) << shift
    high = ((mantissa >> 26) << shift) + (low >> 26)
    limbs = (low & mask, high & mask, high >> 26)
    digits, carry = list[Any](), 0
    for j in range(6, -1, -1):
        carry = sum(limb * words[j + i] for i, limb in enumerate(limbs)) + carry
        digits.append(carry & mask)
        carry = carry >> 26
    first, second, third = ((digits[i] << 26 | digits[i - 1]) for i in (5, 3, 1))
    above = first >> 51
    f, e = _two_sum(*(t.to(torch.float64) * 2.0**k for t, k in ((first - (above << 52), -52), (second, -104))))
    r = product_pair(_quick(f, e + third.to(torch.float64) * 2.0**-156), _HALF_PI)
    near = x < 0.785
    return (digits[6] + above).masked_fill(near, 0), (torch.where(near, x, r[0]), r[1].masked_fill(near, 0.0))


def _sine(x: Any, quarters: int) -> Any:
    """sin(x + quarters·π/2) for x >= 0."""
    if x.numel() > BLOCK:
        return torch.cat([_sine(block, quarters) for block in x.reshape(-1).split(BLOCK)]).view(x.shape)
    outside = ~(x < INFINITY)
    n, (r, low) = _quarters(x.masked_fill(outside, 0.0))
    z, rest = _two_product(r, r)
    sine = r + (r * z * series(z, _terms(3)) + low * (1.0 - 0.5 * z))
    half = 0.5 * z
    cosine = 1.0 - half
    cosine = cosine + (((1.0 - cosine) - half) + (z * z * series(z, _terms(4)) - (r * low + 0.5 * rest)))
    n = n + quarters
    y = torch.where((n & 1) == 1, cosine, sine)
    return torch.where((n & 2) == 2, -y, y).masked_fill(outside, NAN)


def _terms(first: int) -> list[float]:
    """Of the series of sine or cosine from a power on."""
    return [(-1) ** (n // 2) / math.factorial(n) for n in range(first + 14, first - 1, -2)]


def sin(x: Any) -> Any:
    y = _sine(x.abs(), 0)
    return _kept_nan(x, torch.where(torch.signbit(x), -y, y))


def cos(x: Any) -> Any:
    return _kept_nan(x, _sine(x.abs(), 1))


def tan(x: Any) -> Any:
    return sin(x) / cos(x)


DOUBLES.update({
    aten.exp.default: exp, aten.exp2.default: exp2, aten.expm1.default: expm1, aten.log.default: log, aten.log2.default: log2,
    aten.log10.default: log10, aten.log1p.default: log1p, aten.sin.default: sin, aten.cos.default: cos,
    aten.pow.Tensor_Tensor: power, aten.pow.Tensor_Scalar: power_by_number,
    aten.pow.Scalar: lambda x, y: power(number(x, y), y).contiguous(),
    aten.sqrt.default: sqrt, aten.rsqrt.default: rsqrt,
    aten.tanh.default: tanh, aten.tanh_backward.default: lambda g, y: g * (1.0 - y * y),
    aten.sigmoid.default: sigmoid, aten.sigmoid_backward.default: lambda g, y: g * (1.0 - y) * y,
    aten.silu.default: lambda x: x * sigmoid(x), aten.silu_backward.default: silu_backward,
    aten.softplus.default: softplus, aten.tan.default: tan,
    aten.erf.default: erf, aten.gelu.default: gelu, aten.gelu_backward.default: gelu_backward,
    aten.softplus_backward.default: lambda g, x, beta, most: torch.where(x * beta > most, g, g * sigmoid(x * beta)),
})  # fmt: skip
