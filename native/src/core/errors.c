/* The thread-local messages of the last failures, and the names of statuses. */
#include "errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGES = 8 };

typedef struct failure {
    char text[512];
    uint64_t serial; /* of the thread's failures, from 1 */
    int32_t status;
    int8_t taken, reentry;
} failure;

_Thread_local int32_t tl_inside;
static _Thread_local failure failures[MESSAGES];
static _Thread_local uint64_t count;

/* Points `last` to the latest failure f that meets the condition, if there is one. */
#define FIND_LATEST(last, condition)                                         \
    for (failure *f = failures; f < failures + MESSAGES; f++)                \
        if ((condition) && (!last || f->serial > last->serial)) \
            last = f

/* The place of the next failure: of those whose text was taken the oldest, else of all. It is the new failure's before its
 * text is written, as a signal handler may fail meanwhile. */
static failure *add_failure(int32_t status, int8_t reentry)
{
    failure *place = &failures[0];
    for (failure *f = failures; f < failures + MESSAGES; f++)
        if (f->serial == 0 || f->taken > place->taken || (f->taken == place->taken && f->serial < place->serial))
            place = f;
    *place = (failure){.serial = ++count, .status = status, .reentry = reentry};
    return place;
}

int32_t tl_fail(int32_t status, const char *format, ...)
{
    va_list arguments;
    failure *place = add_failure(status, 0);
    va_start(arguments, format);
    vsnprintf(place->text, sizeof place->text, format, arguments);
    va_end(arguments);
    return status;
}

int32_t tl_fail_reentry(const char *op)
{
    failure *place = add_failure(TORCHLEAN_UNAVAILABLE, 1);
    snprintf(place->text, sizeof place->text, "%s: got a call within another of its thread, expected none", op);
    return TORCHLEAN_UNAVAILABLE;
}

int32_t tl_enter_thread(const char *op)
{
    if (tl_inside) return tl_fail_reentry(op);
    tl_inside = 1;
    return TORCHLEAN_OK;
}

uint64_t tl_error_serial(void) { return count; }

void tl_error_name(const char *op, int32_t status, uint64_t serial)
{
    failure *last = NULL;
    FIND_LATEST(last, f->serial > serial && !f->reentry);
    if (!last) {
        tl_fail(status, "%s: failed with status %s and no message", op, torchlean_cuda_status_name(status));
        return;
    }
    last->status = status;
    size_t length = strlen(op);
    if (strncmp(last->text, op, length) == 0 && last->text[length] == ':') return;
    char text[sizeof last->text];
    memcpy(text, last->text, sizeof text);
    if (snprintf(last->text, sizeof last->text, "%s: %s", op, text) < 0) last->text[0] = 0;
}

TL_API const char *torchlean_cuda_last_error(void)
{
    const failure *last = NULL;
    FIND_LATEST(last, f->serial);
    return last ? last->text : "";
}

TL_API uint32_t torchlean_cuda_take_error(int32_t status, char *text, uint32_t capacity)
{
    failure *last = NULL;
    FIND_LATEST(last, f->serial && !f->taken && f->status == status);
    if (text && capacity) snprintf(text, capacity, "%s", last ? last->text : "");
    if (last) last->taken = 1;
    return last ? (uint32_t)strlen(last->text) : 0;
}

TL_API const char *torchlean_cuda_status_name(int32_t status)
{
    static const char *const names[] = {"OK",     "NULL",     "SHAPE",    "OVERFLOW",   "DEVICE",    "UNAVAILABLE",
                                        "INDEX",  "ARGUMENT", "ALIAS",    "RELEASED",   "NO_MEMORY", "CUDA",
                                        "CUBLAS", "CUFFT",    "INTERNAL", "INTERRUPTED"};
    _Static_assert(sizeof names / sizeof *names == TORCHLEAN_INTERRUPTED / 10 + 1, "statuses are tens");
    return status >= 0 && status <= TORCHLEAN_INTERRUPTED && status % 10 == 0 ? names[status / 10] : "UNKNOWN";
}
