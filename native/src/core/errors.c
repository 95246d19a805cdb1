/* The thread-local message of the last failure, and the names of statuses. */
#include "errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[512];
static _Thread_local uint32_t failures;

int32_t tl_fail(int32_t status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    failures++;
    return status;
}

uint32_t tl_error_serial(void) { return failures; }

void tl_error_name(const char *op, int32_t status, uint32_t serial)
{
    if (failures == serial) {
        tl_fail(status, "%s: failed with status %s and no message", op, torchlean_cuda_status_name(status));
        return;
    }
    size_t length = strlen(op);
    if (strncmp(message, op, length) == 0 && message[length] == ':')
        return;
    char text[sizeof message];
    memcpy(text, message, sizeof text);
    tl_fail(status, "%s: %s", op, text);
}

TL_API const char *torchlean_cuda_last_error(void) { return message; }

TL_API const char *torchlean_cuda_status_name(int32_t status)
{
    static const char *const names[] = {"OK",          "NULL",  "SHAPE",    "OVERFLOW", "DEVICE",
                                        "UNAVAILABLE", "INDEX", "ARGUMENT", "ALIAS",    "RELEASED",
                                        "NO_MEMORY",   "CUDA",  "CUBLAS",   "CUFFT",    "INTERNAL"};
    _Static_assert(sizeof names / sizeof *names == TORCHLEAN_INTERNAL / 10 + 1, "statuses are tens");
    return status >= 0 && status <= TORCHLEAN_INTERNAL && status % 10 == 0 ? names[status / 10] : "UNKNOWN";
}
