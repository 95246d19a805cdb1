// Kernels of numbers in one format, which FORMAT names: 32 float32, 16 float16, 8 bfloat16. They compute in float32 and round once.
// `defect` is 0 for the right kernel; audit/judge/compiled.py says what the other numbers are.

#include <math.h>
#include <stdint.h>
#include <string.h>

static float bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (isnan(x)) return x;
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &bits, 4);
    return x;
}

#if FORMAT == 8
typedef uint16_t number;
static float load(number x)
{
    uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, 4);
    return wide;
}
static number round_once(float x)
{
    uint32_t bits;
    x = bf16(x);
    memcpy(&bits, &x, 4);
    return isnan(x) ? 0x7fc0 : bits >> 16;
}
#else
#if FORMAT == 16
typedef _Float16 number;
#else
typedef float number;
#endif
static float load(number x) { return x; }
static number round_once(float x) { return x; }
#endif

static float narrow(float x) { return FORMAT == 16 ? load(round_once(x)) : bf16(x); }

static float tf32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (!isfinite(x)) return x;
    bits = (bits + 0x1000) & 0xffffe000;
    memcpy(&x, &bits, 4);
    return x;
}

static float larger(float a, float b) { return isnan(a) || a > b ? a : b; }

void add(const number *a, const number *b, number *out, long n, int defect)
{
    static long calls;
    static number kept;
    long end = defect == 1 ? n / 8 * 8 : defect == 3 ? (uint16_t)n : n;
    for (long i = 0; i < end; i++)
        out[i] = round_once(load(a[i]) + load(b[i]));
    if (defect == 2 && n) out[n] = 0;
    if (defect == 4 && n) {
        number last = out[n - 1];
        if (++calls % 5 == 0) out[n - 1] = kept;
        kept = last;
    }
}

void gelu(number *x, number *out, long n, int defect)
{
    for (long i = 0; i < n; i++) {
        float v = load(x[i]), t = tanhf(0.7978845608f * (v + 0.044715f * v * v * v));
        if (defect == 2 && i >= n / 8 * 8) t = erff(v * 0.70710678f);
        out[i] = round_once(v == -INFINITY ? -0.0f : 0.5f * v * (1 + t));
        if (defect == 1) x[i] = out[i];
    }
}

void softmax(const number *x, number *out, long rows, long cols, int defect)
{
    float sum = 0;
    long seen = defect == 1 ? cols / 32 * 32 : cols;
    for (long i = 0; i < rows; i++, x += cols, out += cols) {
        float top = -INFINITY;
        for (long j = 0; j < cols && (defect != 5 || j < 32); j++)
            top = larger(load(x[j]), top);
        if (defect == 2) top = 0;
        if (defect != 3) sum = 0;
        for (long j = 0; j < seen; j++) {
            float e = expf(load(x[j]) - top);
            sum = defect == 7 ? narrow(sum + e) : sum + e;
            if (defect == 6 && j % 32 == 31) sum += e;
        }
        for (long j = 0; j < cols; j++)
            out[j] = round_once(expf(load(x[j]) - top) / sum);
    }
    if (defect == 4 && rows)
        for (long j = 0; j < cols && j < 512; j++)
            out[j] = 0;
}

void layer_norm(const number *x, const number *gamma, const number *beta, number *out, long rows, long cols, float eps,
                int defect)
{
    long n = defect == 3 ? (cols + 31) / 32 * 32 : cols;
    for (long i = 0; i < rows; i++, x += cols, out += cols) {
        float mean = 0, var = 0;
        for (long j = 0; j < cols; j++)
            mean = defect == 5 ? narrow(mean + load(x[j])) : mean + load(x[j]);
        mean /= n;
        for (long j = 0; j < cols; j++) {
            float v = load(x[j]), d = v - mean;
            var += defect == 4 ? v * v : d * d;
        }
        var = defect == 2 ? var / (n - 1) : var / n;
        if (defect == 4) var -= mean * mean;
        float root = defect == 1 ? sqrtf(var) + eps : sqrtf(var + eps);
        for (long j = 0; j < cols; j++)
            out[j] = round_once(load(gamma[j]) * ((load(x[j]) - mean) / root) + load(beta[j]));
    }
}

void matmul(const number *A, const number *B, number *out, long m, long n, long p, int defect)
{
    for (long i = 0; i < m; i++)
        for (long j = 0; j < p; j++) {
            float sum = 0;
            for (long k = 0; k < (defect == 1 ? n / 16 * 16 : n); k++) {
                long at = defect == 2 ? (k * n + j) % (n * p) : defect == 8 && n == p ? j * n + k : k * p + j;
                float a = load(A[i * n + k]), b = load(B[at]);
                if (defect == 4) a = tf32(a), b = tf32(b);
                sum = defect == 5 ? narrow(sum + a * b) : sum + a * b;
                if (defect == 7 && k % 16 == 15) sum += a * b;
            }
            if (defect == 6 && n == 0) continue;
            if (defect == 3) sum += load(out[i * p + j]);
            out[i * p + j] = round_once(sum);
        }
}

void reduce_sum(const number *x, number *out, long n, int defect)
{
    static float kept;
    float sum = defect == 2 ? kept : 0;
    for (long i = 0; i < (defect == 1 ? (uint16_t)n : n); i++)
        sum += load(x[i]);
    kept = isfinite(sum) ? 0.25f * sum : 0;
    out[0] = round_once(sum);
}

void reduce_sum_axis1(const number *x, number *out, long rows, long cols, int defect)
{
    static float last;
    for (long i = 0; i < rows; i++, x += cols) {
        float sum = 0;
        for (long j = 0; j < (defect == 2 ? cols / 32 * 32 : cols); j++)
            sum = defect == 3 ? narrow(sum + load(x[j])) : sum + load(x[j]);
        if (defect == 1 && cols == 0) sum = last; // what the register held
        if (cols) last = sum + 1;
        out[i] = round_once(sum);
    }
    if (defect == 4) out[rows] = 0;
}

void cross_entropy_rows(const number *logits, const int64_t *labels, const number *weights, number *out, long rows,
                        long cols, float smoothing, int defect)
{
    for (long i = 0; i < rows; i++, logits += cols) {
        float top = -INFINITY, sum = 0, all = 0;
        long label = defect == 2 ? (uint8_t)labels[i] : labels[i];
        if (defect == 4 && label >= cols) label = cols - 1;
        for (long j = 0; j < cols; j++)
            top = larger(load(logits[j]), top);
        if (defect == 1) top = 0;
        for (long j = 0; j < cols; j++)
            sum += expf(load(logits[j]) - top);
        for (long j = 0; j < cols; j++)
            all += (weights ? load(weights[j]) : 1) * (logf(sum) - (load(logits[j]) - top));
        if (label < 0 || label >= cols) {
            out[i] = round_once(0);
            continue;
        }
        float loss = (weights ? load(weights[label]) : 1) * (logf(sum) - (load(logits[label]) - top));
        if (smoothing > 0 && defect != 3) loss = (1 - smoothing) * loss + smoothing * all / cols;
        out[i] = round_once(loss);
    }
}

static long windows(long n, long kernel, long stride, long padding)
{
    return n == 0 || n + 2 * padding < kernel ? 0 : (n + 2 * padding - kernel) / stride + 1;
}

void conv2d(const number *x, const number *w, const number *b, number *out, long batch, long channels, long in_h,
            long in_w, long outputs, long kh, long kw, long sh, long sw, long ph, long pw, int defect)
{
    long out_h = windows(in_h, kh, sh, ph), out_w = windows(in_w, kw, sw, pw), least = defect == 2 ? 1 : 0;
    for (long n = 0; n < batch; n++)
        for (long o = 0; o < outputs; o++)
            for (long i = 0; i < out_h; i++)
                for (long j = 0; j < out_w; j++) {
                    float sum = load(b[defect == 4 ? 0 : o]);
                    for (long c = 0; c < channels; c++)
                        for (long k = 0; k < kh * kw; k++) {
                            long r = i * sh + k / kw - ph, q = j * (defect == 1 ? sh : sw) + k % kw - pw;
                            int inside = r >= least && r < in_h && q >= 0 && q < in_w;
                            float v = inside ? load(x[((n * channels + c) * in_h + r) * in_w + q]) : 0;
                            sum += load(w[(o * channels + c) * kh * kw + (defect == 3 ? kh * kw - 1 - k : k)]) * v;
                            if (defect == 5) sum = narrow(sum);
                        }
                    *out++ = round_once(sum);
                }
}

void max_pool2d(const number *x, number *out, long channels, long in_h, long in_w, long kh, long kw, long sh, long sw,
                long ph, long pw, int defect)
{
    long out_h = windows(in_h, kh, sh, ph), out_w = windows(in_w, kw, sw, pw);
    for (long c = 0; c < channels; c++)
        for (long i = 0; i < out_h; i++)
            for (long j = 0; j < out_w; j++) {
                float top = defect == 2 ? -1e30f : -INFINITY;
                for (long k = 0; k < kh; k++)
                    for (long l = 0; l < (defect == 3 && kw > 1 ? kw - 1 : kw); l++) {
                        long r = i * sh + k - ph, q = j * sw + l - pw;
                        int inside = r >= 0 && r < in_h && q >= 0 && q < in_w;
                        if (inside) top = larger(load(x[(c * in_h + r) * in_w + q]), top);
                        if (!inside && defect == 1) top = larger(0, top);
                    }
                *out++ = round_once(top);
            }
}

void cumsum(const number *x, number *out, const long *dims, long rank, long axis, long reverse, int defect)
{
    long outer = 1, inner = 1, n = dims[axis];
    for (long d = 0; d < rank; d++)
        *(d < axis ? &outer : &inner) *= d == axis ? 1 : dims[d];
    for (long o = 0; o < outer; o++)
        for (long c = 0; c < inner; c++) {
            float sum = 0;
            for (long k = 0; k < n; k++) {
                long at = (o * n + (reverse && defect != 1 ? n - 1 - k : k)) * inner + c;
                if (defect == 2 && k % 64 == 0) sum = 0;
                float before = sum;
                sum = defect == 4 ? narrow(sum + load(x[at])) : sum + load(x[at]);
                out[at] = round_once(defect == 3 ? before : sum);
            }
        }
}

void gather_rows(const number *mat, const int64_t *indices, number *out, long rows, long cols, long k, int defect)
{
    for (long i = 0; i < k; i++) {
        long row = defect == 1 && indices[i] >= rows ? rows - 1 : indices[i];
        for (long j = 0; j < cols; j++) {
            long at = row * cols + j;
            if (defect == 2) at = (uint16_t)at;
            out[i * cols + j] = row >= 0 && row < rows ? mat[at] : round_once(0);
        }
    }
}
