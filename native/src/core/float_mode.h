/* The floating-point mode of a thread. Subnormals are kept and rounding is to nearest whatever the caller's thread was set
 * to: libraries built with -ffast-math switch flush-to-zero on for the thread that loads them. */
#pragma once

#include <stdint.h>

#if defined(__x86_64__)
enum { TL_STANDARD_MODE = 0x1f80, TL_MODE_BITS = 0xffc0 };
static inline uint32_t tl_get_mode(void) { return __builtin_ia32_stmxcsr(); }
static inline void tl_set_mode(uint32_t mode) { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
enum { TL_STANDARD_MODE = 0, TL_MODE_BITS = 0x07c80000 };
static inline uint32_t tl_get_mode(void) { return (uint32_t)__builtin_aarch64_get_fpcr(); }
static inline void tl_set_mode(uint32_t mode) { __builtin_aarch64_set_fpcr(mode); }
#else
enum { TL_STANDARD_MODE = 0, TL_MODE_BITS = 0 };
static inline uint32_t tl_get_mode(void) { return 0; }
static inline void tl_set_mode(uint32_t mode) { (void)mode; }
#endif

/* The standard mode from here on; returns what brings the caller's back, 0 where it is the same. The compiler knows no
 * order between this and arithmetic: what must run in the mode is in a function that is not inlined here. */
static inline uint64_t tl_enter_standard_mode(void)
{
    const uint32_t mode = tl_get_mode();
    if ((mode & TL_MODE_BITS) == TL_STANDARD_MODE) return 0;
    tl_set_mode(TL_STANDARD_MODE);
    return UINT64_C(1) << 32 | mode;
}

static inline void tl_leave_standard_mode(uint64_t saved)
{
    if (saved) tl_set_mode((uint32_t)saved);
}
