/* Host numbers as float32 or float64, rounded in the standard floating-point mode, whatever the caller's is. */
#include <stddef.h>

#include "errors.h"
#include "float_mode.h"
#include "interrupt.h"

/* Not inlined: the mode is set around it. */
#define CONVERSION(from_name, from_type, to_name, to_type)                                                    \
    static __attribute__((noinline)) void from_name##_to_##to_name(const void *x, void *y, uint64_t n)       \
    {                                                                                                         \
        _Pragma("GCC ivdep") for (uint64_t i = 0; i < n; i++)                                                 \
            ((to_type *)y)[i] = (to_type)((const from_type *)x)[i];                                           \
    }
#define CONVERSIONS(from_name, from_type)         \
    CONVERSION(from_name, from_type, f32, float)  \
    CONVERSION(from_name, from_type, f64, double)
CONVERSIONS(f32, float)
CONVERSIONS(f64, double)
CONVERSIONS(i64, int64_t)
CONVERSIONS(u64, uint64_t)

enum { PIECE = 1 << 20 };

/* In the order of the types. */
static void (*const conversions[][2])(const void *, void *, uint64_t) = {
    {f32_to_f32, f32_to_f64}, {f64_to_f32, f64_to_f64}, {i64_to_f32, i64_to_f64}, {u64_to_f32, u64_to_f64}};

TL_API int32_t torchlean_cuda_convert(const void *from, int32_t from_type, uint64_t n, void *to, int32_t to_type)
{
    if (from_type < TORCHLEAN_FLOAT32 || from_type > TORCHLEAN_UINT64)
        return tl_fail(TORCHLEAN_ARGUMENT, "%s: from_type: got %d, expected 0 to 3", __func__, from_type);
    if (to_type < TORCHLEAN_FLOAT32 || to_type > TORCHLEAN_FLOAT64)
        return tl_fail(TORCHLEAN_ARGUMENT, "%s: to_type: got %d, expected 0 or 1", __func__, to_type);
    if (n && !(from && to))
        return tl_fail(TORCHLEAN_NULL, "%s: %s: got NULL, expected %llu values", __func__, from ? "to" : "from",
                       (unsigned long long)n);
    const size_t from_size = from_type == TORCHLEAN_FLOAT32 ? 4 : 8, to_size = to_type == TORCHLEAN_FLOAT32 ? 4 : 8;
    const int looks = n > PIECE && !tl_inside; /* a signal handler's call leaves alone what the one below looks at */
    const uint64_t mode = tl_enter_standard_mode();
    if (looks) {
        tl_inside = 1;
        tl_start_looking(tl_interrupts());
    }
    for (uint64_t at = 0; at < n && !(looks && tl_interrupted()); at += PIECE)
        conversions[from_type][to_type]((const char *)from + at * from_size, (char *)to + at * to_size,
                                        n - at < PIECE ? n - at : PIECE);
    const int interrupted = looks && tl_interrupted();
    if (looks) {
        tl_stop_looking();
        tl_inside = 0;
    }
    tl_leave_standard_mode(mode);
    return interrupted ? tl_fail(TORCHLEAN_INTERRUPTED, "%s: got an interrupt, expected none", __func__) : TORCHLEAN_OK;
}
