/* Attention of few queries to many keys (attention/few.c). */
#pragma once

#include "cpu/attention/geometry.h"

#define tl_attention_few_serves TL_V(tl_attention_few_serves)
#define tl_attention_few TL_V(tl_attention_few)

int tl_attention_few_serves(const geometry *of);
int32_t tl_attention_few(tl_context *ctx, const geometry *of, const float *Q, const float *K, const float *V,
                         float *out);
