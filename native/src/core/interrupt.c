/* The count of interrupts, and the signal that a thread watches while its calls run. */
#include "interrupt.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "errors.h"

/* Low 32 bits: those of torchlean_cuda_interrupt, which end the calls of all threads. High: watched signals. */
static _Atomic uint64_t interrupts;
#define ALL_THREADS UINT64_C(0xffffffff)
#define ONE_SIGNAL (UINT64_C(1) << 32)

static _Thread_local tl_look current;
static _Thread_local int32_t watched; /* a signal, or 0 */
static _Thread_local int8_t handled;  /* by count_signal */
static struct sigaction before;       /* what handles the signal outside calls, and within them too */

int32_t tl_looking;

uint64_t tl_interrupts(void) { return atomic_load_explicit(&interrupts, memory_order_relaxed); }
tl_look tl_get_look(void) { return current; }
void tl_set_look(tl_look look) { current = look; }
int32_t tl_compare_interrupts(void) { return ((tl_interrupts() ^ current.seen) & current.mask) != 0; }

static void count_signal(int number, siginfo_t *info, void *context)
{
    atomic_fetch_add_explicit(&interrupts, ONE_SIGNAL, memory_order_relaxed);
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else
        before.sa_handler(number);
}

static int is_ours(const struct sigaction *a) { return (a->sa_flags & SA_SIGINFO) && a->sa_sigaction == count_signal; }

/* The signal's handler is replaced while a call runs, not for good: so whatever handler the program sets between calls is the
 * one that runs, and none of them ever calls ours. A signal without a handler ends the process or is ignored, as ever. */
void tl_start_looking(uint64_t seen)
{
    __atomic_fetch_add(&tl_looking, 1, __ATOMIC_RELAXED);
    current = (tl_look){seen, watched ? ~UINT64_C(0) : ALL_THREADS};
    struct sigaction ours;
    if (!watched || sigaction(watched, NULL, &ours) || is_ours(&ours)) return;
    if (!(ours.sa_flags & SA_SIGINFO) && (ours.sa_handler == SIG_DFL || ours.sa_handler == SIG_IGN)) return;
    before = ours;
    ours.sa_sigaction = count_signal;
    ours.sa_flags |= SA_SIGINFO;
    handled = !sigaction(watched, &ours, NULL);
}

void tl_stop_looking(void)
{
    current = (tl_look){0, 0};
    __atomic_fetch_sub(&tl_looking, 1, __ATOMIC_RELAXED);
    if (!handled) return;
    handled = 0;
    struct sigaction now;
    if (!sigaction(watched, &before, &now) && !is_ours(&now)) sigaction(watched, &now, NULL);
}

TL_API void torchlean_cuda_interrupt(void) { atomic_fetch_add_explicit(&interrupts, 1, memory_order_relaxed); }

TL_API int32_t torchlean_cuda_watch_signal(int32_t number)
{
    struct sigaction now;
    if (number && sigaction(number, NULL, &now))
        return tl_fail(TORCHLEAN_ARGUMENT, "%s: number: got %d, expected a signal or 0", __func__, number);
    const int32_t status = tl_enter_thread(__func__); /* not within a call, whose handler is to be put back */
    if (status) return status;
    watched = number;
    tl_inside = 0;
    return TORCHLEAN_OK;
}
