/* The thread-local message of the last failure, status names, version and build information. */
#include <stdio.h>
#include <string.h>

#include "../../generated/abi_hash.h"
#include "handles.h"

enum { TL_VERSION_MAJOR = 0, TL_VERSION_MINOR = 1, TL_VERSION_PATCH = 0 };

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

int32_t tl_fail_handle(const char *op, const char *name, const char *kind, const void *handle, tl_verdict verdict)
{
    if (!handle)
        return tl_fail(TORCHLEAN_NULL, "%s: %s: got NULL, expected a %s", op, name, kind);
    if (verdict == TL_WAS_RELEASED)
        return tl_fail(TORCHLEAN_RELEASED, "%s: %s: got a released %s, expected a live one", op, name, kind);
    return tl_fail(TORCHLEAN_RELEASED, "%s: %s: got a value that was never issued as a handle, expected a live %s", op,
                   name, kind);
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

TL_API uint32_t torchlean_cuda_version(void)
{
    return TL_VERSION_MAJOR * 10000 + TL_VERSION_MINOR * 100 + TL_VERSION_PATCH;
}

static char build_info[512];

__attribute__((constructor)) static void write_build_info(void)
{
    const char *cuda = tl_cuda_build();
    snprintf(build_info, sizeof build_info, "version=%d.%d.%d; backend=%s; compiler=%s%s%s; cpu_variants=%s",
             TL_VERSION_MAJOR, TL_VERSION_MINOR, TL_VERSION_PATCH, *cuda ? "cpu+cuda" : "cpu",
#if defined(__clang__)
             "clang " __clang_version__,
#else
             "gcc " __VERSION__,
#endif
             *cuda ? "; cuda=" : "", cuda, tl_variant_list());
}

TL_API const char *torchlean_cuda_build_info(void) { return build_info; }

TL_API const char *torchlean_cuda_abi_hash(void) { return TL_ABI_HASH; }
