/* The public header as the library's own files see it: with its functions exported. */
#ifndef TL_API_H
#define TL_API_H

#undef TL_API
#define TL_API __attribute__((visibility("default")))
#include "torchlean_cuda.h"

#endif
