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
    switch (status) {
    case TORCHLEAN_OK: return "OK";
    case TORCHLEAN_NULL: return "NULL";
    case TORCHLEAN_SHAPE: return "SHAPE";
    case TORCHLEAN_OVERFLOW: return "OVERFLOW";
    case TORCHLEAN_DEVICE: return "DEVICE";
    case TORCHLEAN_UNAVAILABLE: return "UNAVAILABLE";
    case TORCHLEAN_INDEX: return "INDEX";
    case TORCHLEAN_ARGUMENT: return "ARGUMENT";
    case TORCHLEAN_ALIAS: return "ALIAS";
    case TORCHLEAN_RELEASED: return "RELEASED";
    case TORCHLEAN_NO_MEMORY: return "NO_MEMORY";
    case TORCHLEAN_CUDA: return "CUDA";
    case TORCHLEAN_CUBLAS: return "CUBLAS";
    case TORCHLEAN_CUFFT: return "CUFFT";
    case TORCHLEAN_INTERNAL: return "INTERNAL";
    default: return "UNKNOWN";
    }
}
