/* A part of core_test: calls and conversions that interrupts end, and what programs do meanwhile. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/call.h"
#include "core/kernel.h"
#include "core/threads.h"
#include "core_test.h"

enum { TASKS = 1000 };

typedef struct interruption {
    void (*interrupt)(void);
    _Atomic int before, after; /* tasks that began before and after it */
    _Atomic int done;
} interruption;

static void signal_self(void) { raise(SIGUSR1); }
static void do_nothing(void) {}
static _Atomic int handled;
static void count_handled(int number) { handled += number == SIGUSR1; }
static void count_information(int number, siginfo_t *info, void *state)
{
    handled += number == SIGUSR1 && info->si_signo == number && info->si_pid == getpid() && state != NULL;
}

/* The first task of the calling thread interrupts; what others have begun by then they end. */
static void interrupt_once(void *arg, int64_t task, int32_t worker)
{
    interruption *i = arg;
    (void)task;
    if (i->done)
        i->after++;
    else
        i->before++;
    if (worker == 0 && !i->done) {
        i->interrupt();
        i->done = 1;
    }
    while (worker && !i->done)
        sched_yield();
}

/* A call on n elements, in place or not, whose work is two loops: the status, and whether both ran whole. */
static int32_t call_interrupted(torchlean_buffer *a, uint32_t n, int in_place, void (*interrupt)(void), int *whole)
{
    interruption first = {.interrupt = interrupt}, second = {.interrupt = do_nothing};
    torchlean_buffer *out = in_place ? a : NULL;
    tl_call call;
    tl_enter(&call, "fake", "a", a);
    call.elementwise = 1;
    tl_input(&call, "a", a, "n", n);
    tl_output(&call, "out", &out, "n", n);
    CHECK(tl_begin(&call));
    tl_parallel(TASKS, interrupt_once, &first);
    tl_parallel(TASKS, interrupt_once, &second);
    const int32_t status = tl_end(&call);
    *whole = first.before + first.after == TASKS && second.before + second.after == TASKS;
    CHECK(*whole || (first.after < (int)torchlean_cuda_threads() && second.before + second.after == 0));
    CHECK((out == NULL) == (status != TORCHLEAN_OK));
    if (out && out != a) OK(torchlean_cuda_buffer_release(out));
    return status;
}

static void *call_unwatched(void *a)
{
    int whole;
    OK(call_interrupted(a, 1 << 17, 0, signal_self, &whole));
    CHECK(whole);
    return NULL;
}

/* What a call may do while it is under way: set another handler, which stays; choose another signal, which is refused; wait for
 * a call of another thread that watches the same signal; convert numbers, from a signal's handler. */
static void count_otherwise(int number) { handled += 100 * (number == SIGUSR1); }
static void set_handler(void) { signal(SIGUSR1, count_otherwise); }
static void watch_another(void) { CHECK_STATUS(torchlean_cuda_watch_signal(SIGUSR2), TORCHLEAN_UNAVAILABLE); }

static torchlean_buffer *beside;
static void *call_watched(TL_UNUSED void *arg)
{
    int whole;
    OK(torchlean_cuda_watch_signal(SIGUSR1));
    OK(call_interrupted(beside, 1 << 17, 0, do_nothing, &whole));
    CHECK(whole);
    return NULL;
}

static void call_beside(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, call_watched, NULL);
    pthread_join(thread, NULL);
    raise(SIGUSR1);
}

enum { LARGE = 3 << 20 }; /* numbers, of which a conversion takes several pieces */
static double *numbers;
static float *converted;
static void convert(void)
{
    memset(converted, 0, LARGE * sizeof *converted);
    OK(torchlean_cuda_convert(numbers, TORCHLEAN_FLOAT64, LARGE, converted, TORCHLEAN_FLOAT32));
    CHECK(converted[0] == 2 && converted[LARGE - 1] == 2);
}

static _Atomic int interrupting;
static void *interrupt_often(TL_UNUSED void *arg)
{
    while (interrupting) {
        torchlean_cuda_interrupt();
        sched_yield();
    }
    return NULL;
}

/* A conversion that another thread's interrupts end, between two pieces. */
static void test_interrupted_conversion(void)
{
    pthread_t thread;
    int32_t status = TORCHLEAN_OK;
    interrupting = 1;
    pthread_create(&thread, NULL, interrupt_often, NULL);
    while (status == TORCHLEAN_OK)
        status = torchlean_cuda_convert(numbers, TORCHLEAN_FLOAT64, LARGE, converted, TORCHLEAN_FLOAT32);
    interrupting = 0;
    pthread_join(thread, NULL);
    CHECK_STATUS(status, TORCHLEAN_INTERRUPTED);
    CHECK(strcmp(torchlean_cuda_last_error(), "torchlean_cuda_convert: got an interrupt, expected none") == 0);
    convert();
}

static void test_acts_within_a_call(torchlean_buffer *a)
{
    torchlean_context *other = NULL;
    int whole;
    numbers = malloc(LARGE * sizeof *numbers);
    converted = malloc(LARGE * sizeof *converted);
    for (int i = 0; i < LARGE; i++)
        numbers[i] = 2;
    OK(call_interrupted(a, 1 << 17, 0, convert, &whole));
    CHECK(whole);
    OK(call_interrupted(a, 1 << 17, 0, watch_another, &whole));
    CHECK(whole);
    OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &other));
    OK(torchlean_cuda_buffer_zeros(other, 1 << 17, &beside));
    handled = 0;
    CHECK_STATUS(call_interrupted(a, 1 << 17, 0, call_beside, &whole), TORCHLEAN_INTERRUPTED);
    CHECK(!whole && handled == 1);
    OK(torchlean_cuda_context_destroy(other));
    OK(call_interrupted(a, 1 << 17, 0, set_handler, &whole));
    raise(SIGUSR1);
    CHECK(whole && handled == 101);
    signal(SIGUSR1, count_handled);
    test_interrupted_conversion();
    free(numbers);
    free(converted);
}

void core_test_interrupts(void)
{
    torchlean_context *context = NULL;
    torchlean_buffer *a = NULL, *small = NULL;
    torchlean_memory before, after;
    struct sigaction now;
    pthread_t thread;
    int whole;
    signal(SIGUSR1, count_handled);
    OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &context));
    OK(torchlean_cuda_buffer_zeros(context, 1 << 17, &a));
    OK(torchlean_cuda_buffer_zeros(context, 1 << 10, &small));
    OK(torchlean_cuda_memory_stats(context, &before));
    CHECK_STATUS(torchlean_cuda_watch_signal(12345), TORCHLEAN_ARGUMENT);
    CHECK(strcmp(torchlean_cuda_last_error(),
                 "torchlean_cuda_watch_signal: number: got 12345, expected a signal or 0") == 0);
    for (uint32_t threads = 1; threads <= 4; threads += 3) {
        OK(torchlean_cuda_set_threads(threads));
        handled = 0;
        OK(torchlean_cuda_watch_signal(0));
        OK(call_interrupted(a, 1 << 17, 0, signal_self, &whole)); /* not watched */
        CHECK(whole && handled == 1);
        OK(torchlean_cuda_watch_signal(SIGUSR1));
        CHECK_STATUS(call_interrupted(a, 1 << 17, 0, torchlean_cuda_interrupt, &whole), TORCHLEAN_INTERRUPTED);
        CHECK(!whole && strstr(torchlean_cuda_last_error(), "fake: got an interrupt") != NULL);
        CHECK_STATUS(call_interrupted(a, 1 << 17, 0, signal_self, &whole), TORCHLEAN_INTERRUPTED);
        CHECK(!whole && handled == 2);
        OK(call_interrupted(a, 1 << 17, 1, signal_self, &whole)); /* its input is lost */
        CHECK(whole && handled == 3);
        OK(call_interrupted(small, 1 << 10, 0, torchlean_cuda_interrupt, &whole));
        CHECK(whole);
        torchlean_cuda_interrupt();
        raise(SIGUSR1); /* between calls */
        OK(call_interrupted(a, 1 << 17, 0, do_nothing, &whole));
        CHECK(whole && handled == 4);
        pthread_create(&thread, NULL, call_unwatched, a);
        pthread_join(thread, NULL);
        CHECK(handled == 5 && !sigaction(SIGUSR1, NULL, &now) && now.sa_handler == count_handled);
        CHECK(tl_looking == 0); /* calls that need not look do not */
    }
    test_acts_within_a_call(a);
    handled = 5;
    /* a handler that takes the signal's information */
    now.sa_flags = SA_SIGINFO;
    now.sa_sigaction = count_information;
    CHECK(!sigaction(SIGUSR1, &now, NULL));
    CHECK_STATUS(call_interrupted(a, 1 << 17, 0, signal_self, &whole), TORCHLEAN_INTERRUPTED);
    CHECK(!whole && handled == 6 && !sigaction(SIGUSR1, NULL, &now) && now.sa_sigaction == count_information);
    signal(SIGUSR1, SIG_IGN);
    OK(call_interrupted(a, 1 << 17, 0, signal_self, &whole));
    CHECK(whole);
    OK(torchlean_cuda_watch_signal(0));
    OK(torchlean_cuda_memory_stats(context, &after));
    CHECK(before.live_bytes == after.live_bytes && before.live_buffers == after.live_buffers);
    OK(torchlean_cuda_context_destroy(context));
}
