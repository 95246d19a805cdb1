/* What both programs share: a failed call ends the program with its text. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <torchlean_cuda_ops.h>

#define TRY(call)                                                        \
    do {                                                                 \
        if ((call) != TORCHLEAN_OK) {                                    \
            fprintf(stderr, "%s\n", torchlean_cuda_last_error());        \
            exit(1);                                                     \
        }                                                                \
    } while (0)
