/* Interrupts of long calls on CPU contexts.
 *
 * They are counted. A call notes the count where it opens, and its loops look whether there are more: tl_parallel before each
 * task, kernels within tasks that may take a tenth of a second. Once one thread of a call sees an interrupt, each that looks later
 * does, so what follows a loop that ended early may rely on nothing that the loop computed, but must run: it ends early too. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a thread compares: the count that its call noted, and which of its bits end the call; no bits where nothing does. */
typedef struct tl_look {
    uint64_t seen, mask;
} tl_look;

/* Calls that look, in all threads. */
extern int32_t tl_looking;
int32_t tl_compare_interrupts(void);

/* Whether the calling thread works for a call that is to end: for kernels' loops. */
static inline int tl_interrupted(void)
{
    return __atomic_load_n(&tl_looking, __ATOMIC_RELAXED) && tl_compare_interrupts();
}

/* ---- for the core ------------------------------------------------------------------------------------------------ */

uint64_t tl_interrupts(void);
/* Hands the look of a job's caller to a worker. */
tl_look tl_get_look(void);
void tl_set_look(tl_look look);
/* From here until tl_stop_looking the calling thread works for a call that opened at the count `seen`. */
void tl_start_looking(uint64_t seen);
void tl_stop_looking(void);

#ifdef __cplusplus
}
#endif
