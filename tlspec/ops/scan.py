"""Recurrences: cells of recurrent layers, and diagonal selective scans h_t = A⊙h_(t-1) + B⊙x_t for constant and for
token-dependent coefficients.

The time of a scan is cut into chunks of 128 steps whose affine maps compose by (a2, b2)∘(a1, b1) = (a2·a1, a2·b1 + b2); the order of all
operations is in ``native/src/formula/scan_chunks.h`` and depends on seq_len alone.
"""

import numpy as np

from tlspec.bounds import COLUMN_CHUNK, LAMBDA, OVERFLOW, TINY, U, column_height, custom, factor
from tlspec.classes import Classes
from tlspec.laws import Value, adjoint, equation, homogeneous, linear
from tlspec.ops.elementwise import expit
from tlspec.registry import op
from tlspec.running_error import Run, followed

#: steps of a chunk
CHUNK = COLUMN_CHUNK
#: magnitudes from here on are infinite in float32
HUGE = 2.0**128
#: magnitudes below this are subnormal in float32
SUBNORMAL = 2.0**-126


def _gradual(x):
    """Subnormal values as float32 has them, multiples of TINY: what rounds to 0 is 0, so that an infinity times it is NaN."""
    small = np.abs(x) < SUBNORMAL
    if isinstance(small, np.ndarray) and not small.any():
        return np.where(small, 0.0, x)
    return np.where(small, np.rint(np.where(small, x, 0.0) / TINY) * TINY, x)


def _scan(a, b, h):
    """All h_k = a_k·h_(k-1) + b_k from h."""
    out = np.empty(b.shape, like=b)
    for k in range(len(b)):
        h = out[k] = _gradual(a[k] * h + b[k])
    return out


def _parallel_scan(a, b, h):
    """The same by composing steps with their predecessors, then pairs with pairs, and so on."""
    a, b = np.broadcast_to(a, b.shape), np.concatenate([a[:1] * h + b[:1], b[1:]])
    d = 1
    while d < len(b):
        a, b = np.concatenate([a[:d], a[d:] * a[:-d]]), np.concatenate([b[:d], a[d:] * b[:-d] + b[d:]])
        d *= 2
    return b


def _reverse(A, g):
    """The coefficients and terms of the gradient's scan: the steps from the last to the first, a_k = A_(t+1)."""
    a = np.zeros(g.shape, like=A)
    a[1:] = A[:0:-1]
    return a, g[::-1]


class _Errors:
    """The float32 error of a scan, in the chunked order, to first order.

    Step k rounds twice: the product b_k (unless it is given) by u|b_k| and the fused multiply-add by u·r_k, with r_k the
    larger of |h_k| and of the chunk's own state |s_k|, whose chain brings the error into the next chunk. A rounding at step
    j reaches step k times a_(j+1)···a_k, so the worst case obeys E_k = |a_k|·E_(k-1) + u(r_k + |b_k|) and the variance of
    independent roundings V_k = a_k²·V_(k-1) + u²(r_k² + b_k²); with k - j steps between them that is at most λ√k·u times
    Σ_j |a···a||b_j|. A chunk's carry P·H + s adds one rounding, and the error of its product P, the same in every chunk of
    a constant coefficient, is taken with its sign: it adds up in C. Gradual underflow adds TINY per rounding (F)."""

    def __init__(self, a, b, h0, given):
        self.values = np.empty(b.shape)
        self.tolerance = np.empty(b.shape)
        #: the rounding of each step, carry included, and the part of the error that is not independent
        self.rounding = np.empty(b.shape)
        self.common = np.empty(b.shape)
        zero, one = np.zeros(b.shape[1:]), np.ones(b.shape[1:])
        h, carry, state, product = h0, h0, zero, one
        worst = variance = common = floor = zero
        p_worst = p_variance = p_floor = zero
        for k in range(len(b)):
            extra = zero
            if k and k % CHUNK == 0:
                fits = (np.abs(product) < HUGE) & (np.abs(state) < HUGE)
                error = np.minimum(p_worst, LAMBDA * np.sqrt(p_variance)) + p_floor
                common = common + np.where(fits, error * np.abs(carry), 0.0)
                extra = np.abs(h)
                carry, state, product = h, zero, one
                p_worst = p_variance = p_floor = zero
            scale = np.abs(a[k])
            h, state, product = a[k] * h + b[k], a[k] * state + b[k], a[k] * product
            r = np.fmax(np.abs(h), np.where(np.abs(state) < HUGE, np.abs(state), 0.0))
            term = 0.0 if given else np.abs(b[k])
            worst = scale * (worst + U * extra) + U * (r + term)
            variance = scale**2 * (variance + (U * extra) ** 2) + U**2 * (r**2 + term**2)
            common = scale * common
            floor = scale * floor + 2 * TINY
            p_worst = scale * p_worst + U * np.abs(product)
            p_variance = scale**2 * p_variance + (U * product) ** 2
            p_floor = scale * p_floor + TINY
            self.values[k] = h
            self.rounding[k] = U * np.sqrt(r**2 + term**2 + (scale * extra) ** 2)
            self.common[k] = common + floor
            self.tolerance[k] = np.minimum(worst, LAMBDA * np.sqrt(variance)) + self.common[k]


def _before(out, h0):
    """h_(t-1) for every t."""
    return np.concatenate([h0[None], out])[: len(out)]


def _sum_error(errors, a, weight):
    """The error of Σ_k q_k·w_k by the column tree, q the scan of `errors`: a rounding of q at step j reaches the sum with
    the weight W_j = Σ_(k≥j) |a_(j+1)···a_k||w_k|, the tree adds its own height."""
    weight = np.abs(weight)
    total = reach = np.zeros(weight.shape[1:])
    linear_part = reach
    for k in range(len(weight) - 1, -1, -1):
        reach = weight[k] + (np.abs(a[k + 1]) * reach if k + 1 < len(weight) else 0.0)
        total = total + (errors.rounding[k] * reach) ** 2
        linear_part = linear_part + errors.rounding[k] * reach
    common = (errors.common * weight).sum(axis=0)
    height = column_height(len(weight)) + 1
    terms = (np.abs(errors.values) * weight).sum(axis=0)
    own = factor(height) * (U * terms + TINY)
    return np.minimum(np.sqrt(2) * linear_part, LAMBDA * np.sqrt(total)) + common + own


def _constant(A, x):
    return np.broadcast_to(A, x.shape)


def _draw(d):
    """Time steps about the chunks' ends. Long scans get coefficients below 1 in magnitude, multiples of 2^-8, which neither
    blow up nor spoil the laws' exact products; short ones get those of the data class."""
    steps = [n for n in (1, 2, 3, 5, 17, 31, 127, 128, 129, 255, 256, 257, 384, 509, 1025, 1500) if 6 * n <= d.budget]
    T = d.aligned(1, min(d.budget // 6, 2048)) or d.choice(steps)
    D = max(1, int((d.budget // (6 * T)) ** d.rng.random()))
    D = d.aligned(1, D) or D
    if d.empty:
        T, D = d.choice([(0, D), (T, 0), (0, 0)])
    return {"seq_len": T, "state": D}


def _stable(d, shape):
    bits = d.rng.integers(-255, 256, size=shape) if d.rng.random() < 0.5 else d.rng.integers(192, 256, size=shape)
    return (bits / 256).astype(np.float32)


def _draw_constant(d):
    return {**_draw(d), "A": lambda seq_len, state: None if seq_len <= 31 else _stable(d, (state,))}


def _draw_variable(d):
    return {**_draw(d), "A": lambda seq_len, state: None if seq_len <= 31 else _stable(d, (seq_len, state))}


CLASSES: Classes = {
    "many chunks of few channels": lambda seq_len, state: seq_len > 16 * COLUMN_CHUNK and 0 < state <= 16,
    "several chunks of many channels": lambda seq_len, state: seq_len > COLUMN_CHUNK and state > 16,
}

_DATA = ("normal", "uniform", "integers", "special", "structured")


def _constant_bound(A, B, x, h0):
    return _Errors(_constant(A, x), B * x, h0, False).tolerance


def _constant_vjp_bound(A, B, x, h0, out, g):
    """From the error of the reverse scan q: products add u, sums over time :func:`_sum_error`."""
    a, b = _reverse(_constant(A, x), g)
    e = _Errors(a, b, np.zeros(A.shape), True)
    tq = e.tolerance[::-1]
    gA = _sum_error(e, a, _before(out, h0)[::-1])
    gB = _sum_error(e, a, x[::-1])
    gx = np.abs(B) * tq + U * np.abs(B * e.values[::-1]) + TINY
    q0, t0 = (e.values[-1], tq[0]) if len(x) else (np.zeros(A.shape), np.zeros(A.shape))
    return gA, gB, gx, np.abs(A) * t0 + U * np.abs(A * q0) + TINY


def _same_as_variable(f, A, B, x, h0, seq_len, state):
    wide = {"A": np.tile(A, (seq_len, 1)), "B": np.tile(B, (seq_len, 1)), "x": x, "h0": h0}
    yield f().array, f(wide, values={"seq_len": seq_len, "state": state}, op="selective_scan_diag_var").array


@op("A[state], B[state], x[seq_len, state], h0[state] -> out[seq_len, state]",
    order="seq_len, state", classes=CLASSES, bound=custom(_constant_bound, "λ·std of the chunked recurrence"), draw=_draw_constant,
    data=_DATA,
    laws=[
        linear("x", "h0"), adjoint("x", "h0"), homogeneous("x", "h0"),
        equation("f(A, B, x, h0) = selective_scan_diag_var of A, B repeated", _same_as_variable),
    ], source="Blelloch, Prefix Sums and Their Applications (1990), 1.4 (recurrences as scans)", fwd=True,
    arguments={"A": "factors of the state", "B": "factors of the input"},
    example={"A": [0.5, 1], "B": [1, 1]})  # fmt: skip
def selective_scan_diag(A, B, x, h0):
    """Linear recurrence over time, one for each channel, with constant coefficients.

    out[t, j] = h_t[j], h_t = A⊙h_(t-1) + B⊙x_t, h_(-1) = h0; one rounding for B⊙x_t, one fused multiply-add a step

    Shapes: A, B, h0 (state), x and out (seq_len, state).
    Special values: IEEE 754. seq_len = 0 gives an empty result.
    Errors: none beyond lengths."""
    return _scan(_constant(A, x), _gradual(B * x), h0)


@selective_scan_diag.formula()
def _constant_in_parallel(A, B, x, h0):
    return _parallel_scan(_constant(A, x), B * x, h0)


@selective_scan_diag.vjp("A, B, x, h0, out, g -> gA, gB, gx, gh0",
    bound=custom(_constant_vjp_bound, "λ·std of the chunked recurrence"))  # fmt: skip
def selective_scan_diag_vjp(A, B, x, h0, out, g):
    """gA = Σ_t q_t⊙h_(t-1), gB = Σ_t q_t⊙x_t, gx_t = q_t⊙B, gh0 = A⊙q_0, with q_t = g_t + A⊙q_(t+1).

    Sums over time by the column tree, from the last step to the first. seq_len = 0 gives zeros for gA, gB and gh0."""
    q = _scan(*_reverse(_constant(A, x), g), np.zeros(A.shape))[::-1]
    gh0 = A * q[0] if len(x) else np.zeros(A.shape)
    return (q * _before(out, h0)).sum(axis=0), (q * x).sum(axis=0), q * B, gh0


def _variable_bound(A, B, x, h0):
    return _Errors(A, B * x, h0, False).tolerance


def _variable_vjp_bound(A, B, x, h0, out, g):
    """From the error of the reverse scan q: every gradient is q times an input."""
    a, b = _reverse(A, g)
    e = _Errors(a, b, np.zeros(h0.shape), True)
    q, tq = e.values[::-1], e.tolerance[::-1]
    gradient = lambda w: np.abs(w) * tq + U * np.abs(w * q) + TINY
    if not len(x):
        return gradient(A), gradient(B), gradient(x), np.zeros(h0.shape)
    return gradient(_before(out, h0)), gradient(x), gradient(B), np.abs(A[0]) * tq[0] + U * np.abs(A[0] * q[0]) + TINY


def _composed(f, A, B, x, h0, seq_len, state):
    """Pairs of steps as single steps: on the laws' grid the products below are exact in float32."""
    if seq_len < 2:
        return
    b = (B.astype(np.float64) * x)[: seq_len // 2 * 2]
    a = A.astype(np.float64)[: seq_len // 2 * 2]
    pairs = {"A": (a[1::2] * a[::2]).astype(np.float32), "B": np.ones_like(b[::2], np.float32),
             "x": (a[1::2] * b[::2] + b[1::2]).astype(np.float32), "h0": h0}  # fmt: skip
    every = f()
    second = Value(every.array[1::2], every.tolerance[1::2])
    yield second, f(pairs, values={"seq_len": seq_len // 2, "state": state})


@op("A[seq_len, state], B[seq_len, state], x[seq_len, state], h0[state] -> out[seq_len, state]",
    classes=CLASSES, bound=custom(_variable_bound, "λ·std of the chunked recurrence"), draw=_draw_variable, data=_DATA,
    laws=[
        linear("x", "h0"), adjoint("x", "h0"), homogeneous("x", "h0"),
        equation("(a2, b2)∘(a1, b1) = (a2·a1, a2·b1 + b2)", _composed, exact=False),
    ], source="Blelloch, Prefix Sums and Their Applications (1990), 1.4 (recurrences as scans)", fwd=True,
    arguments={"A": "factors of the state", "B": "factors of the input"},
    example={"B": [1, 1, 1, 1, 1, 1], "A": [0, 0, 0.5, 1, 0.5, 1]})  # fmt: skip
def selective_scan_diag_var(A, B, x, h0):
    """Linear recurrence over time, one for each channel, with coefficients of their own at every step.

    out[t, j] = h_t[j], h_t = A_t⊙h_(t-1) + B_t⊙x_t, h_(-1) = h0; one rounding for B_t⊙x_t, one fused multiply-add a step

    Shapes: A, B, x and out (seq_len, state), h0 (state).
    Special values: IEEE 754. seq_len = 0 gives an empty result.
    Errors: none beyond lengths."""
    return _scan(A, _gradual(B * x), h0)


@selective_scan_diag_var.formula()
def _variable_in_parallel(A, B, x, h0):
    return _parallel_scan(A, B * x, h0)


@selective_scan_diag_var.vjp("A, B, x, h0, out, g -> gA, gB, gx, gh0",
    bound=custom(_variable_vjp_bound, "λ·std of the chunked recurrence"))  # fmt: skip
def selective_scan_diag_var_vjp(A, B, x, h0, out, g):
    """gA_t = q_t⊙h_(t-1), gB_t = q_t⊙x_t, gx_t = q_t⊙B_t, gh0 = A_0⊙q_0, with q_t = g_t + A_(t+1)⊙q_(t+1).

    seq_len = 0 gives zeros for gh0."""
    q = _scan(*_reverse(A, g), np.zeros(h0.shape))[::-1]
    gh0 = A[0] * q[0] if len(x) else np.zeros(h0.shape)
    return q * _before(out, h0), q * x, q * B, gh0


# ---- recurrent cells -----------------------------------------------------------------------------------------------------------


def _sigmoid(x):
    """σ(x), 0 where float32 has 0: an infinity times it is NaN."""
    y = expit(x)
    return np.where(y < TINY / 2, 0.0, y)


def _sigmoid_run(x: Run) -> Run:
    y = _sigmoid(x.value)
    run = x.function(y, np.minimum(0.25, y * (1 - y) * np.exp(np.minimum(x.error, 10))))
    # between 0 and the smallest subnormal number either may come out, which an infinite factor tells apart
    return Run(run.value, run.error, run.free | ((expit(x.value) > TINY / 8) & (y < 4 * TINY)))


def _tanh_run(x: Run) -> Run:
    y = np.tanh(x.value)
    return x.function(y, np.minimum(1.0, (1 - y * y) * np.exp(np.minimum(2 * x.error, 10))))


def _gates(runs):
    """Runs of the gates as one of (rows, gates, units)."""
    return Run(*(np.stack([getattr(r, n) for r in runs], axis=1) for n in ("value", "error", "free")))


def _one() -> Run:
    return Run.of(np.asarray(1.0))


def _sigmoid_slope(y: Run) -> Run:
    return (-y).fma(y, y)


def _tanh_slope(y: Run) -> Run:
    return (-y).fma(y, _one())


def _draw_cell(d):
    return {"rows": d.dim(0, 70), "units": d.dim()}


CELL_CLASSES: Classes = {
    "one row": lambda rows, units: rows == 1 < units,
    "one unit": lambda rows, units: units == 1 < rows,
}


def _lstm_run(x, a, c):
    i, f, g, o = (Run.of(x[:, k]) + Run.of(a[:, k]) for k in range(4))
    i, f, g, o = _sigmoid_run(i), _sigmoid_run(f), _tanh_run(g), _sigmoid_run(o)
    cell = f.fma(Run.of(c), i * g)
    return _gates([i, f, g, o]), cell, o * _tanh_run(cell)


@op("x[rows, 4, units], a[rows, 4, units], c[rows, units] -> gates[rows, 4, units], cell[rows, units], hidden[rows, units]",
    bound=followed(_lstm_run), draw=_draw_cell, classes=CELL_CLASSES, lengths={"cells": lambda rows, units: rows * units}, data=_DATA,
    source="Hochreiter and Schmidhuber, Neural Computation 9, 1997; torch.nn.LSTM",
    arguments={"x": "products of the input", "a": "products of the hidden state", "c": "cell state"},
    example={"rows": 1, "units": 1, "x": [0, 0, 1, 0], "a": [0, 0, 0, 0], "c": [1]})  # fmt: skip
def lstm_cell(x, a, c):
    """A step of long short-term memory, from the products of its input and of its hidden state with their weights.

    i, f, o = σ(x_k + a_k) for k = 0, 1, 3, g = tanh(x_2 + a_2); gates are i, f, g, o; cell = f·c + i·g; hidden = o·tanh(cell)

    Shapes: x, a and gates (rows, 4, units), c, cell and hidden (rows, units). The gates are a result to keep for the gradient,
    which is that of cell and hidden.
    Special values: IEEE 754.
    Errors: none beyond lengths."""
    s = x + a
    i, f, g, o = (np.tanh(s[:, k]) if k == 2 else _sigmoid(s[:, k]) for k in range(4))
    cell = f * c + i * g
    return np.stack([i, f, g, o], axis=1), cell, o * np.tanh(cell)


def _lstm_vjp_run(gates, c, cell, g_cell, g_hidden):
    i, f, g, o = (Run.of(gates[:, k]) for k in range(4))
    t, above = _tanh_run(Run.of(cell)), Run.of(g_hidden)
    d = (above * o).fma(_tanh_slope(t), Run.of(g_cell))
    parts = [(d * g) * _sigmoid_slope(i), (d * Run.of(c)) * _sigmoid_slope(f), (d * i) * _tanh_slope(g),
             (above * t) * _sigmoid_slope(o)]  # fmt: skip
    return _gates(parts), _gates(parts), d * f


@lstm_cell.vjp("gates, c, cell, g_cell, g_hidden -> gx, ga, gc", bound=followed(_lstm_vjp_run))
def lstm_cell_vjp(gates, c, cell, g_cell, g_hidden):
    """With t = tanh(cell) and d = g_cell + g_hidden·o·(1 - t²): gx = (d·g·i(1 - i), d·c·f(1 - f), d·i·(1 - g²),
    g_hidden·t·o(1 - o)), ga = gx, gc = d·f."""
    i, f, g, o = (gates[:, k] for k in range(4))
    t = np.tanh(cell)
    d = g_cell + g_hidden * o * (1 - t * t)
    gx = [d * g * (i - i * i), d * c * (f - f * f), d * i * (1 - g * g), g_hidden * t * (o - o * o)]
    return np.stack(gx, axis=1), np.stack(gx, axis=1), d * f


def _gru_run(x, a, bias, h):
    s = [Run.of(a[:, k]) for k in range(3)]
    if bias is not None:
        s = [v + Run.of(bias[k]) for k, v in enumerate(s)]
    r, z = (_sigmoid_run(Run.of(x[:, k]) + s[k]) for k in range(2))
    n = _tanh_run(r.fma(s[2], Run.of(x[:, 2])))
    inner = s[2] if bias is not None else Run(s[2].value, 0 * np.abs(s[2].value), s[2].free)
    return _gates([r, z, n]), inner, z.fma(Run.of(h) - n, n)


@op("x[rows, 3, units], a[rows, 3, units], bias?[3, units], h[rows, units] -> gates[rows, 3, units], inner[rows, units],"
    " hidden[rows, units]",
    bound=followed(_gru_run), draw=_draw_cell, classes=CELL_CLASSES, lengths={"cells": lambda rows, units: rows * units}, data=_DATA,
    source="Cho et al., Learning Phrase Representations using RNN Encoder-Decoder, EMNLP 2014; torch.nn.GRU",
    arguments={"x": "products of the input", "a": "products of the hidden state", "bias": "added to a",
             "h": "hidden state"},
    example={"rows": 1, "units": 1, "x": [0, 0, 1], "a": [0, 0, 0], "h": [1]})  # fmt: skip
def gru_cell(x, a, bias, h):
    """A step of a gated recurrent unit, from the products of its input and of its hidden state with their weights.

    s = a + bias; r, z = σ(x_k + s_k) for k = 0, 1; inner = s_2; n = tanh(x_2 + r·inner); gates are r, z, n;
    hidden = n + z·(h - n)

    Shapes: x, a and gates (rows, 3, units), bias (3, units) or none, h, inner and hidden (rows, units). gates and inner are
    results to keep for the gradient, which is that of hidden.
    Special values: IEEE 754.
    Errors: none beyond lengths."""
    s = a if bias is None else a + bias
    r, z = (_sigmoid(x[:, k] + s[:, k]) for k in range(2))
    inner = s[:, 2]
    n = np.tanh(x[:, 2] + r * inner)
    return np.stack([r, z, n], axis=1), inner, n + z * (h - n)


def _gru_vjp_run(gates, inner, h, g_hidden):
    r, z, n = (Run.of(gates[:, k]) for k in range(3))
    g = Run.of(g_hidden)
    new = (g * (_one() - z)) * _tanh_slope(n)
    reset, update = (new * Run.of(inner)) * _sigmoid_slope(r), (g * (Run.of(h) - n)) * _sigmoid_slope(z)
    ga = _gates([reset, update, new * r])
    sums = factor(column_height(len(h))) * U * np.abs(ga.value).sum(axis=0) + ga.tolerance.sum(axis=0) + TINY
    free = ga.free.any(axis=0) | (np.abs(ga.value).sum(axis=0) >= OVERFLOW)
    return _gates([reset, update, new]), ga, Run(ga.value.sum(axis=0), sums, free), g * z


@gru_cell.vjp("gates, inner, h, g_hidden -> gx, ga, gbias, gh", bound=followed(_gru_vjp_run))
def gru_cell_vjp(gates, inner, h, g_hidden):
    """With d = g_hidden·(1 - z)·(1 - n²): gx = (d·inner·r(1 - r), g_hidden·(h - n)·z(1 - z), d), ga = gx but for its last gate,
    d·r; gbias = Σ ga over the rows, by the column tree; gh = g_hidden·z."""
    r, z, n = (gates[:, k] for k in range(3))
    d = g_hidden * (1 - z) * (1 - n * n)
    reset, update = d * inner * (r - r * r), g_hidden * (h - n) * (z - z * z)
    ga = np.stack([reset, update, d * r], axis=1)
    return np.stack([reset, update, d], axis=1), ga, ga.sum(axis=0), g_hidden * z
