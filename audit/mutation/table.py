"""The planted defects of the mutation campaign, numbered by their place.

A defect is a file, a text it holds exactly once, what becomes of it, what that breaks, and the tests that should see it: `tests`
are words for pytest, tried first, and the whole suite follows where they pass; `ops` limits the drawn tests to rows. A defect
with `same` changes no behaviour, for the reason given, and is expected to survive.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    file: str
    tests: str
    old: str
    new: str
    breaks: str
    ops: str = ""
    same: str = ""


def defects(file: str, rows: Sequence[tuple[str, ...]], tests: str = "tests/kernels") -> list[Defect]:
    """The defects of one file that the same tests should see; a row is `old`, `new`, `breaks` and perhaps `ops` and `same`."""
    return [Defect(file, tests, *row) for row in rows]


#: the tests of buffers and contexts, and the hostile calls
CORE = (
    "tests/runtime/test_buffer.py tests/runtime/test_device.py tests/runtime/test_kernels.py tests/audit/test_hostile.py"
    " tests/kernels/test_errors.py"
)
#: the tests of tape and session, quickest first
TAPE = (
    "tests/runtime/test_optim.py tests/runtime/test_session.py tests/runtime/test_checkpoint.py tests/runtime/test_tape.py"
    " tests/runtime/test_tape_errors.py tests/runtime/test_tape_graphs.py tests/runtime/test_tape_operations.py"
)
CAPTURE = "tests/runtime/test_capture.py tests/runtime/test_capture_optim.py tests/runtime/test_capture_threads.py"

# fmt: off
DEFECTS = [
    # ---- formulas
    *defects("native/src/formula/exact.h", rows=[
        ("return tl_from_bits((tl_bits(first) & tl_bits(second)) | nan);", "return tl_from_bits(tl_bits(first) | nan);",
         "max(+0, -0) is -0: wrong tie", "max"),
        ("uint32_t nan = (a != a) | (b != b) ? ~0u : 0u;", "uint32_t nan = a != a ? ~0u : 0u;",
         "max(1, NaN) is 1: NaN hidden", "max"),
        ("float half = 0.5f * g;", "float half = g;", "a tie gives g to both", "max,min"),
        ("float inside = x > lo && x < hi ? g : 0.0f;", "float inside = x >= lo && x < hi ? g : 0.0f;",
         "clamp's gradient at the lower edge: > became >=", "clamp"),
        ("return x > 0.0f ? g : x <= 0.0f ? 0.0f : x;", "return x >= 0.0f ? g : x < 0.0f ? 0.0f : x;", "relu'(0) is 1",
         "relu"),
        ("return x > 0.0f ? x : x <= 0.0f ? 0.0f : x;", "return x > 0.0f ? x : 0.0f;", "relu(NaN) is 0: NaN hidden",
         "relu"),
        ("*gb = tl_scale_by_power(-(mg / mb) * (ma / mb), ea + eg - eb - eb);", "*gb = -(g / b) * (a / b);",
         "division's gradient overflows on the way", "div"),
        ("    return x > 0.0f ? inside : x <= 0.0f ? 0.0f : x;", "    return x >= 0.0f ? inside : x < 0.0f ? 0.0f : x;",
         "sqrt's gradient at 0 is not 0", "sqrt"),
        ("return y > x ? y - 1.0f : y;", "return y >= x ? y - 1.0f : y;", "floor of an integer is the one below", "floor"),
        ("return mask != 0.0f ? a : b;", "return mask > 0.0f ? a : b;", "a negative mask does not choose",
         "where,masked_fill"),
    ]),
    *defects("native/src/formula/elementwise.def", rows=[
        ("TL_BINARY_P(axpy, fmaf(P, B, A))", "TL_BINARY_P(axpy, P * B + A)", "axpy rounds twice", "axpy"),
        ("TL_BINARY_VJP(mul_bwd, u = C * B; v = C * A;)", "TL_BINARY_VJP(mul_bwd, u = C * A; v = C * B;)",
         "the factors' gradients are exchanged", "mul"),
        ("TL_BINARY(lt, A < B ? 1.0f : 0.0f)", "TL_BINARY(lt, A <= B ? 1.0f : 0.0f)", "equal elements are smaller", "lt"),
    ]),
    *defects("native/src/formula/explog.h", rows=[
        ("copysignf(tl_log_sum((float)e, m - 1.0f, fl), x)", "copysignf(tl_log_sum((float)e, m - 1.0f, 0.0f * fl), x)",
         "log1p near 0 is that of the rounded sum", "log1p"),
    ]),
    *defects("native/src/formula/wide.h", rows=[
        ("p = odd & (copysignf(1.0f, x) < 0.0f) ? -p : p;", "p = odd & (x < 0.0f) ? -p : p;",
         "an odd power of -0 has the wrong sign", "pow,pow_scalar"),
        ("scale - 1.0), x);", "scale) - 1.0, x);", "expm1 cancels near 0", "expm1,elu"),
    ]),
    *defects("native/src/formula/fold.h", rows=[
        ("return (a > b) | (a != a) ? a : b;", "return a > b ? a : b;", "a maximum hides NaN", "amax,amin"),
        ("    *e += usual ? (double)(biased - 1023) : 0.0;", "    *e += usual ? (double)(biased - 1022) : 0.0;",
         "a product is twice what it is for every factor", "prod"),
        ("c.v * copysign(1.0, d)", "c.v", "the gradient of -0 in a product has the wrong sign", "prod"),
        ("(c.zeros == 1.0) & (x == 0.0f)", "(x == 0.0f)", "two zeros of a product have a gradient", "prod"),
        ("tl_hold(d - m, -700.0, 0.0)", "tl_hold(d, -700.0, 0.0)", "log-sum-exp adds the maximum twice", "logsumexp"),
    ]),
    *defects("native/src/cpu/reduce_cumsum.c", rows=[
        ("t->total[top][j] = 0.0;", "t->total[top][j] *= 1.0;", "a chunk's total counts the chunks before it", "cumsum"),
    ]),
    *defects("native/src/formula/trigonometry.h", rows=[
        ("fma(k, -TL_HALF_PI_LO, fma(k, -TL_HALF_PI, (double)x));", "fma(k, -TL_HALF_PI, (double)x);",
         "angles are reduced by pi/2 in one part", "sin,cos"),
        ("m * words[i + 4]", "m * words[i + 5]", "huge angles are reduced by other digits of 2/pi", "sin,cos"),
    ]),
    *defects("native/src/formula/random.h", rows=[
        ("return (uint32_t)tl_mix(stream + i) >> 8;", "return (uint32_t)(tl_mix(stream + i) >> 40);",
         "draws from the high word", "random"),
        ("return tl_mix(key);", "return key;", "neighbouring keys share their words", "random"),
        ("tl_random_log((int32_t)even + 1))", "tl_random_log((int32_t)even))", "the logarithm's argument may be 0",
         "rand_normal"),
        ("tl_random_bits(stream, 2 * i + 1);", "tl_random_bits(stream, 2 * i);", "both words of a normal are the same",
         "rand_normal"),
        ("return tl_uniform_of(bits) < keep ? 1.0f : 0.0f;", "return tl_uniform_of(bits) <= keep ? 1.0f : 0.0f;",
         "keep 0 may keep: < became <=", "bernoulli_mask"),
    ]),
    *defects("native/src/formula/rows.h", rows=[
        ("return (hit ? y - 1.0f : y) * c;", "return (hit ? y - 0.0f : y) * c;",
         "cross-entropy's gradient lacks the label", "cross_entropy"),
        ("    return 1.0f / sqrtf(tl_per_count(squares, n) + eps);",
         "    return 1.0f / (sqrtf(tl_per_count(squares, n)) + eps);", "eps outside the root",
         "layer_norm,batchnorm_channel_first"),
        ("    return fmaf(-xhat, mean_ax, a - mean_a) * istd;", "    return fmaf(-xhat, mean_ax, a) * istd;",
         "the normalisation's gradient lacks a mean", "norm"),
        ("    return (hit ? d - h.keep * w : d) * g;", "    return (hit ? d - w : d) * g;",
         "a smoothed label's gradient keeps the whole label", "cross_entropy_rows"),
        ("{ return (x - center) * slope + shift; }", "{ return fmaf(x - center, slope, shift); }",
         "a channel's map is fused: one rounding for two", "channel_affine"),
        ("    return fmaf(fmaf(-q, s, e), r, q);", "    return fmaf(0.0f * s, r, q);",
         "softmax's quotient without its correction: an ulp or two", "softmax"),
    ]),
    *defects("native/src/formula/pool.h", rows=[
        ("return (best == best) & !(v <= best);", "return (best == best) & !(v < best);",
         "the last maximum of a window wins: wrong tie", "max_pool,max_pool2d"),
        ("return v != v ? TL_NAN : g;", "return v != v ? g : g;", "a NaN's gradient is not NaN", "max_pool,max_pool2d"),
        ("padded > 0.0f ? all : sum;", "padded > 1e30f ? all : sum;",
         "padded cells are left out of the smooth maximum", "smooth_max_pool,smooth_max_pool2d"),
    ]),
    *defects("native/src/formula/scan_chunks.h", rows=[
        ("    return tl_scan_finite(product, state, carry) ? next : end;",
         "    return tl_scan_finite(product, state, carry) || end == end ? next : end;",
         "an overflowed chunk product spoils the carry", "scan"),
    ]),
    *defects("native/src/formula/attention.h", rows=[
        ("#define TL_FILL_SCORE -1000.0f", "#define TL_FILL_SCORE -100.0f", "another fill value", "flash_attention"),
        ("    return s < -FLT_MAX ? TL_INFINITE_SCORE : finite;", "    return s;", "a score of -inf counts as blocked",
         "flash_attention"),
    ]),
    *defects("native/src/formula/conv_geometry.h", rows=[
        ("        g.base[d] = -s->padding[d];", "        g.base[d] = 0;", "convolution ignores its padding",
         "conv,conv2d"),
        ("        g.taps[d] = (s->kernel[d] - k + period - 1) / period;",
         "        g.taps[d] = (s->kernel[d] - k) / period;", "the last taps of a phase are lost", "conv"),
        ("        g.kernel_step[d] = period;", "        g.kernel_step[d] = stride;",
         "a factor common to stride and dilation is forgotten", "conv_grouped,conv_transpose_grouped"),
    ]),
    *defects("native/src/cpu/conv/planes.h", rows=[
        ("    a.first = g->base[d] + a.low;", "    a.first = g->base[d];", "taps that go back meet other cells",
         "conv,conv_transpose"),
    ]),
    *defects("native/src/cpu/conv/weights_kernel.h", rows=[
        ("chain > 0 && !whole, next == stop}", "chain > 0 && !whole, next == end}",
         "a chain that goes on in the next tile is added twice", "conv,conv2d"),
    ]),
    *defects("native/src/cpu/conv/direct.c", rows=[
        ("tl_imin(n - i - u * LANES, LANES)", "tl_imin(n - 1 - i - u * LANES, LANES)", "the last position of a line is lost",
         "conv_grouped,conv_transpose_grouped"),
    ]),
    *defects("native/src/formula/broadcast_axes.h", rows=[
        ("const int8_t repeated = map[j] == 0 || in[map[j] - 1] != out[j];",
         "const int8_t repeated = map[j] == 0 || in[map[j] - 1] < 0;",
         "size-1 axes are not summed over: wrong axis map", "broadcast_to,reduce_from_broadcast"),
    ]),
    *defects("native/src/formula/optim.h", rows=[
        ("return weight_decay != 0.0f ? fmaf(weight_decay, p, g) : g;",
         "return weight_decay != 0.0f && p != p ? p : g;", "weight decay is lost", "optim"),
        ("    s.size = (float)((double)lr / tl_bias_correction(beta1, step));",
         "    s.size = (float)((double)lr / tl_bias_correction(beta1, step + 1));", "bias correction off by one step",
         "optim"),
        ("    s.kept = (float)(1.0 - (double)lr * (double)decoupled);",
         "    s.kept = (float)(1.0 - 0.0 * (double)decoupled);", "AdamW does not decay", "optim"),
        ("sqrtf(variance < 0.0f ? 0.0f : variance)", "sqrtf(variance)", "a variance rounded below 0 gives NaN", "optim"),
        ("tl_sign(fmaf(s.beta1, m,", "tl_sign(fmaf(s.beta2, m,", "Lion takes the sign of another mean", "optim"),
        ("fmaf(s.momentum, after, d) : after;", "fmaf(s.momentum, v, d) : after;",
         "Nesterov looks ahead with the old velocity", "optim"),
        ("    return factor >= 1.0f ? 1.0f : factor;", "    return factor;",
         "small gradients are scaled up to the norm", "optim"),
    ]),
    # ---- CPU kernels
    *defects("native/src/cpu/sum_tree.h", rows=[
        ("    for (int64_t l = 0; l < n - i; l++)\n        t[l] += x[i + l];\n", "",
         "the last, partial step of a leaf is lost", "reduce"),
        ("for (; r < rows; r++) {", "for (; r < rows - 1; r++) {", "the last row of a chunk is lost", "reduce"),
        ("left < TL_SUM_LEAF ? left : TL_SUM_LEAF);\n    }", "TL_SUM_LEAF);\n    }",
         "the last leaf reads past the row", "reduce"),
        ("    return (b[0] + b[2]) + (b[1] + b[3]);", "    return (b[0] + b[1]) + (b[2] + b[3]);",
         "another order of additions: CPU and CUDA differ", "reduce"),
    ]),
    *defects("native/src/formula/count.h", rows=[
        ("return n > 0 ? tl_per_count(s, n)", "return n > 0 ? s", "a mean without 1/n", "reduce"),
        ("tl_per_count(s, -n) * (1.0f / TL_SUM_SCALE)", "tl_per_count(s, -n)", "a mean loss stays scaled", "cross_entropy"),
    ]),
    *defects("native/src/cpu/extreme.h", rows=[
        ("const int nan = greatest > order_key(0x7f800000u) || least < order_key(0xff800000u);",
         "const int nan = greatest > order_key(0x7f800000u) || (least < order_key(0xff800000u) && 0);",
         "negative NaNs are hidden from maxima", "reduce"),
    ]),
    *defects("native/src/cpu/reduce.c", rows=[
        ("    for (int64_t i = axis + 1; i < dims->rank; i++)\n        v.inner *= dims->d[i];",
         "    for (int64_t i = axis + 1; i < dims->rank; i++)\n        v.outer *= dims->d[i];",
         "inner axes counted as outer ones", "reduce"),
    ]),
    *defects("native/src/cpu/linalg/linalg.c", rows=[
        ("multiply(ctx, product(batch, m, p, n, 0, 1), g, B, gA)", "multiply(ctx, product(batch, m, p, n, 0, 0), g, B, gA)",
         "B is not transposed in dA", "linalg"),
        ("    args.bias = b;\n", "    (void)b;\n", "linear without its bias", "linear"),
        (".sa = m * n,", ".sa = n,", "wrong stride between a batch's matrices", "bmm"),
    ]),
    *defects("native/src/cpu/softmax_phases.h", rows=[
        ("stat[MAXIMUM] = max_of(r->sum + k, r->leaves)", "stat[MAXIMUM] = 0.0f * max_of(r->sum + k, r->leaves)",
         "softmax without its shift overflows", "softmax"),
    ]),
    *defects("native/src/cpu/loss.c", rows=[
        ("tl_per_count(g[0], rows), rows", "g[0], rows", "cross-entropy's gradient without 1/rows",
         "cross_entropy"),
        ("if (j->other) TL_WRITE(j->stream, j->other + first, n, -tl_mse_grad(a[i], b[i], s));",
         "if (j->other) TL_WRITE(j->stream, j->other + first, n, tl_mse_grad(a[i], b[i], s));",
         "the target's gradient has the wrong sign", "mse_loss"),
        ("tl_loss_slope_of(g[0], mean ? n : 1)", "tl_loss_slope_of(g[0], mean ? 1 : n)", "a sum's gradient is the mean's", "bce_with_logits"),
    ]),
    *defects("native/src/cpu/loss.c", tests="tests/kernels tests/runtime/test_device.py", rows=[
        ("    out[0] = mean ? tl_per_count(sum, n) : sum;\n    tl_pool_free(ctx, scratch);\n",
         "    out[0] = mean ? tl_per_count(sum, n) : sum;\n",
         "scratch is never given back: missing release", "mse_loss"),
    ]),
    *defects("native/src/cpu/index.c", rows=[
        ("job->indices[j] < job->rows ? job->table[job->indices[j]] : 0.0f;", "job->table[job->indices[j]];",
         "an index out of range is read: dropped bound check", "gather_vec"),
        ("        if (job->indices[j] < rows) count[job->indices[j] >> shift]++;",
         "        if (job->indices[j] <= rows) count[job->indices[j] >> shift]++;",
         "one index too many is counted", "scatter_add,scatter_add_rows,gather_vec,gather_rows"),
    ]),
    *defects("native/src/cpu/index_choice.c", rows=[
        ("place = part[p];", "place = part[p - 1];", "the best of another part: off by one", "argmax,argmin"),
    ]),
    *defects("native/src/cpu/choice_candidates.h", rows=[
        ("const int32_t comes = orders[j] >= order;", "const int32_t comes = orders[j] > order;",
         "of equal elements the last comes first", "topk"),
    ]),
    *defects("native/src/cpu/norm.c", rows=[
        ("(x[i] * istd) * gamma[i]);", "(x[i] * istd) * gamma[0]);", "RMS norm has one weight", "rms_norm"),
        ("tl_square_of_difference(x[i], mean)", "x[i] * x[i]", "the variance is not centred", "norm"),
    ]),
    *defects("native/src/cpu/pool.c", rows=[
        ("out[i] = tl_per_count(b.a[i], v->kernel);", "out[i] = b.a[i];", "average pooling without 1/n",
         "avg_pool,avg_pool2d"),
        ("            if (b->cell[i] >= own && b->cell[i] < end)", "            if (b->cell[i] >= own)",
         "a task adds to cells of its neighbour", "max_pool,max_pool2d"),
    ]),
    *defects("native/src/cpu/attention/tiles.h", rows=[
        ("const float right = top[3][l] > top[1][l] ? top[3][l] : top[1][l];", "const float right = m->top[l];",
         "half of a tile's scores do not enter the maximum", "flash_attention"),
        ("            m->chain[i][l] *= m->factor[l];", "            m->chain[i][l] *= 1.0f;",
         "the running sum is not rescaled", "flash_attention"),
    ]),
    *defects("native/src/cpu/attention/geometry.h", rows=[
        ("s[j] = mask[j] == 0.0f ? blocked : s[j];", "s[j] = mask[j] == 1.0f ? s[j] : blocked;",
         "mask values other than 0 and 1 block", "flash_attention"),
        ("int32_t any = !row && open.first < open.end;", "int32_t any = !row && open.first <= open.end;",
         "a tile that is all blocked is computed", "flash_attention,grouped_attention",
         "a tile without an open key is skipped or computed with all its weights 0: the same sums, a little later"),
        ("first = at - g->before, end = at + g->after + 1;", "first = at - g->before, end = at + g->after + 2;",
         "a row attends to one key more", "flash_attention,grouped_attention"),
        ("g->mask_heads > 1 ? head : 0;", "g->mask_heads > 1 ? 0 * head : 0;", "all heads have the mask of the first", "grouped_attention"),
    ]),
    *defects("native/src/cpu/attention/chain.c", rows=[
        ("segment = tl_chain_segment(of->keys);", "segment = 2 * tl_chain_segment(of->keys);",
         "another segment length in reproducible contexts", "flash_attention,grouped_attention"),
        ("        sums[c] = sums[c] * old + more[c] * new;", "        sums[c] = (float)(sums[c] * old) + more[c] * new;",
         "a total of segments in float32 in reproducible contexts", "flash_attention,grouped_attention"),
        ("w[j] = s[j] == -TL_INF ? 0.0 : tl_round_24(w[j] * (t[j] - dot));", "w[j] = s[j] == -TL_INF ? 0.0 : w[j] * (t[j] - dot);",
         "a factor of more than 24 bits, whose products are not exact, in reproducible contexts", "flash_attention"),
    ]),
    *defects("native/src/cpu/linalg/chain.c", rows=[
        (".segment = tl_chain_segment(x->n)}", ".segment = 2 * tl_chain_segment(x->n)}",
         "another segment length in reproducible contexts", "matmul"),
        ("            total[e] += sums[e];", "            total[e] = (float)total[e] + sums[e];",
         "a total of segments in float32 in reproducible contexts", "matmul"),
        ("sums[j] += job->parts[(s * x->m + i) * x->p + j];",
         "sums[j] += job->parts[((job->segments - s) * x->m + i) * x->p + j];",
         "the totals of segments are added in another order in reproducible contexts", "matmul"),
    ]),
    *defects("native/src/formula/butterfly.h", rows=[
        ("    a[0] = tl_complex_add(s, t);\n    a[1] = tl_complex_add(d, e);",
         "    a[0] = tl_complex_add(tl_complex_add(a[0], a[1]), tl_complex_add(a[2], a[3]));\n    a[1] = tl_complex_add(d, e);",
         "another order of two terms in a butterfly", "rfft1d_packed"),
        ("    return tl_complex_of(a.r * c - a.i * s, a.r * s + a.i * c);",
         ("    tl_complex t = tl_complex_of(a.r * c - a.i * s, a.r * s + a.i * c);\n"
         "    for (unsigned l = 0; l < sizeof t.r / sizeof t.r[0]; l++)\n"
         "        t.r[l] = __builtin_fmaf(a.r[l], c, -(a.i[l] * s));\n    return t;"),
         "a fused multiply-add where a butterfly rounds twice", "rfft1d_packed"),
    ]),
    *defects("native/src/cpu/scan.c", rows=[
        ("                hj = fmaf(c, hj, b);", "                hj = c * hj + b;", "the recurrence rounds twice",
         "scan"),
    ]),
    *defects("native/src/cpu/spectral/spectral.c", rows=[
        ("i = edge ? 0.0f : S[2 * k + 1]", "i = S[2 * k + 1]", "the imaginary part at the edges is read",
         "irfft1d_packed"),
    ]),
    # ---- entry points and memory
    *defects("native/src/core/call.c", tests="tests/runtime/test_process.py", rows=[
        ("    call->saved_mode = tl_enter_standard_mode();", "    call->saved_mode = 0;",
         "a call computes in its caller's floating-point mode"),
    ]),
    *defects("native/src/core/call.c", tests=CORE, rows=[
        ("    if (n > UINT32_MAX)\n", "    if (n > UINT32_MAX && 0)\n",
         "2^32 elements and more are taken: dropped bound check"),
        ("        if (out->storage->output) {", "        if (0) {", "two outputs may share storage: dropped check"),
        ("if (!call->elementwise || in->index != out->index)", "if (in->index != out->index)",
         "an output may be an input of any operation"),
        ("    if (got != n)\n", "    if (got < n)\n", "a longer buffer is taken: != became <"),
        ("rank >= min_rank && rank <= TL_MAX_RANK", "rank >= min_rank && rank <= TL_MAX_RANK + 1",
         "a rank of 9 is read past the list"),
    ]),
    *defects("native/src/core/handles.h", tests=CORE, rows=[
        ("return state == generation * 2 + 1 ? TL_LIVE : TL_WAS_RELEASED;",
         "return state & 1 ? TL_LIVE : TL_WAS_RELEASED;", "a released handle becomes another buffer's"),
    ]),
    *defects("native/src/core/objects.c", tests=CORE, rows=[
        ("        shared->references++;\n", "", "a shared storage is given back too early"),
        ("    tl_pool_drop(&ctx->pool, buffer->block);\n", "", "released buffers keep their memory"),
    ]),
    *defects("native/src/core/pool.c", tests=CORE, rows=[
        ("size > c->cap_bytes || c->live_bytes + c->cached_bytes > c->cap_bytes - size",
         "size > c->cap_bytes || c->live_bytes > c->cap_bytes - size", "the cap ignores what is cached"),
        ("        pool->cached[size_class] = block->cached;\n", "", "a cached block is handed out twice"),
    ]),
    *defects("native/src/core/device.c", tests=CORE, rows=[
        ("    while (ctx->buffers)\n        tl_buffer_end(ctx, (tl_buffer *)ctx->buffers);\n", "",
         "a context's buffers outlive it"),
    ]),
    *defects("native/src/core/shapes.h", rows=[
        ("    return n == 0 || greatest < bound;", "    return n == 0 || greatest <= bound;",
         "a label equal to cols is taken: < became <=", "cross_entropy"),
        ("        if (!read[i] && in->d[i] != 1) return 0;", "        if (!read[i] && in->d[i] == 1) return 0;",
         "an axis map may leave out input axes larger than 1", "broadcast_to,reduce_from_broadcast"),
    ]),
    # ---- the specification
    *defects("tlspec/bounds.py", tests="tests/spec tests/verify", rows=[
        ("return np.minimum(height, LAMBDA * np.sqrt(height))", "return np.multiply(height, 40)",
         "sums may be forty times as wrong"),
        ("_capped((ki + 0.5) * spacing(o) * (ki > 0) + fi)", "_capped((ki + 1.5) * spacing(o) + fi)",
         "an exact function may be an ulp off"),
    ]),
    *defects("tlspec/compare.py", tests="tests/spec tests/verify", rows=[
        ("equal |= np.isnan(nearest) & np.isnan(got)", "equal |= np.isnan(ref) | np.isnan(got)",
         "a NaN passes for any value"),
        ("equal &= (got != 0) | (tol > 0) | (np.signbit(got) == np.signbit(nearest))", "equal &= True",
         "the sign of a zero is not compared"),
    ]),
    *defects("tlspec/ops/softmax.py", tests="tests/spec tests/kernels", rows=[
        ("    return out * (g - (g * out).sum(axis=1, keepdims=True))", "    return out * g",
         "softmax's VJP lacks its sum", "softmax"),
        ("    return g - np.exp(out) * g.sum(axis=1, keepdims=True)",
         "    return g - np.exp(out) * g.sum(axis=0, keepdims=True)", "the sum runs over the wrong axis",
         "log_softmax"),
    ]),
    *defects("tlspec/ops/norm.py", tests="tests/spec tests/kernels", rows=[
        ("    return istd * (a - c1 - xhat * c2), (g * xhat).sum(axis=0), g.sum(axis=0)",
         "    return istd * (a - c1 - xhat * c2), (a * xhat).sum(axis=0), g.sum(axis=0)", "dγ is weighted by γ",
         "layer_norm"),
    ]),
    *defects("tlspec/ops/spectral.py", tests="tests/spec tests/kernels", rows=[
        ("np.where((k == 0) | (2 * k == n), 1.0, 2.0)", "np.where(k == 0, 1.0, 2.0)", "the Nyquist bin counts twice",
         "spectral"),
    ]),
    # ---- the tape, the session and what trains with them
    *defects("tlrt/tape.py", tests=TAPE, rows=[
        ("                    grads[id] = AnyBuffer.of(old.shape, add(old.buffer, new))  # type: ignore[index]",
         "                    grads[id] = AnyBuffer.of(old.shape, new.share())  # type: ignore[index]",
         "contributions replace each other: wrong accumulation"),
        ("                    old.buffer.release()\n                    new.release()\n",
         "                    old.buffer.release()\n", "a summed contribution is never released", "",
         "the list popped next held the last reference, and CPython releases a buffer with it"),
        ("range(stop - 1, -1, -1)", "range(stop - 1, 0, -1)",
         "the first node is left out of backward", "",
         "the first node has no parents, so it has no VJP; a gradient nobody keeps goes with the list"),
        ("if g is not None and g.buffer.references > 1:", "if g is not None and g.buffer.references > 2:",
         "a gradient shares its storage with another"),
        ("                if keep is not None and i not in keep:\n                    g.buffer.release()\n",
         "                if keep is not None and i not in keep:\n", "consumed gradients are not released"),
        ("        node.requires_grad = needs and self.recording and (not self._pauses or self._records())\n        node.parents",
         "        node.requires_grad = needs\n        node.parents", "no_grad records"),
        ("                key.append(str(extra))\n", "                pass\n", "-0.0 and 0.0 share a plan"),
    ]),
    *defects("tlrt/parameter.py", tests=TAPE, rows=[
        ("set_and_call(self._changed(host, None), [] if old is None else [release_call(old)])", "self._host = host",
         "a stale mirror is used after set"),
        ("        self._host = None\n        self._version += 1\n",
         "        self._version += 1\n", "a stale host value is read after an update"),
    ]),
    *defects("tlrt/session.py", tests=TAPE, rows=[
        ("counter, self.counter = self.counter, self.counter + 1", "counter = self.counter",
         "every draw is the same: the counter stands"),
        ("            self.counter = counter\n", "            pass\n",
         "a refused draw advances the counter"),
        ("            if x.session is self and x.epoch == self.epoch:", "            if x.session is self:",
         "a tensor of before reset is used"),
        ("by_parameter[parameter] = g if g is not None else AnyBuffer.zeros(parameter.shape, self.device)",
         "by_parameter.update({parameter: g} if g is not None else {})", "an unreached parameter has no gradient"),
        ("return self.scale(self.mul(x, self.bernoulli_mask(self.shape(x), 1 - p)), 1 / (1 - p))",
         "return self.mul(x, self.bernoulli_mask(self.shape(x), 1 - p))", "dropout does not scale"),
    ]),
    *defects("tlrt/optim.py", tests=TAPE, rows=[
        ("step=self.steps + 1, lr=self.lr", "step=self.steps + 2, lr=self.lr", "bias correction off by one"),
    ]),
    *defects("tlrt/_optimizer.py", tests=TAPE, rows=[
        ("            for p in chosen:\n                p.updated()\n", "", "an update leaves host values as if current"),
        ('counted = (self, "steps", int(settings["steps"]))', 'counted = (self, "steps", 0)', "a loaded optimiser starts at step 0"),
    ]),
    *defects("tlrt/checkpoint.py", tests=TAPE, rows=[
        (', (session, "counter", about["random"]["counter"])]', "]", "a checkpoint does not restore the counter"),
        ("                changes += optimizer._loaded(settings, arrays)\n", "                pass\n",
         "a checkpoint does not restore optimisers"),
        ("got.shape != parameter.shape or got.dtype", "got.dtype", "a parameter of another shape is loaded"),
    ]),
    *defects("tlrt/_capture/record.py", tests=CAPTURE, rows=[
        ("                call.computed[place], key = key[1], None\n", "                key = None\n",
         "a captured step draws the same random numbers each time"),
    ]),
    *defects("tlrt/_capture/memory.py", tests=CAPTURE, rows=[
        ("if not storage.is_pinned and storage.last == place:", "if not storage.is_pinned:",
         "a captured step gives memory away before its last use"),
    ]),
    *defects("tlrt/_optimizer.py", tests=CAPTURE, rows=[
        ("                call.computed[place] = partial(optimizer._setting, name)\n", "                pass\n",
         "a captured step keeps the learning rate it was captured with"),
        ("        call.count = lambda function: partial(call_and_count, optimizer, function)\n",
         "        call.count = lambda function: function\n", "a captured step does not count"),
    ]),
]
