/* The public header as the library's own files see it: with its functions exported. */
#pragma once

#undef TL_API
#define TL_API __attribute__((visibility("default")))
#include "torchlean_cuda.h"
