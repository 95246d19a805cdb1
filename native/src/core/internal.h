/* Everything of the core at once, for files that do not yet include what they use. */
#ifndef TL_INTERNAL_H
#define TL_INTERNAL_H

#include "backend.h"
#include "kernel.h"
#include "threads.h"
#ifndef __cplusplus
#include "call.h"
#include "dispatch.h"
#endif

#endif
