/* A part of core_test: arguments that functions of the core refuse, and the texts that say so. */
#include <stdlib.h>
#include <string.h>

#include "core/call.h"
#include "core/errors.h"
#include "core/kernel.h"
#include "core_test.h"

#define SAYS(expr, wanted, part) (CHECK_STATUS(expr, wanted), CHECK(strstr(torchlean_cuda_last_error(), part) != NULL))

/* Texts of failures: whose they are, and where they are written. */
static void test_errors(void)
{
    char text[40] = "as before";
    tl_fail(TORCHLEAN_INDEX, "fake_opera: got 7, expected less");
    CHECK(torchlean_cuda_take_error(TORCHLEAN_OK, text, sizeof text) == 0 && !*text);
    strcpy(text, "as before");
    CHECK(torchlean_cuda_take_error(TORCHLEAN_INDEX, text, 0) == 32 && strcmp(text, "as before") == 0);
    const uint64_t serial = tl_error_serial();
    tl_fail(TORCHLEAN_INDEX, "fake_opera: got 7, expected less");
    tl_error_name("fake_op", TORCHLEAN_INDEX, serial); /* another operation, whose name begins like this one's */
    CHECK(strcmp(torchlean_cuda_last_error(), "fake_op: fake_opera: got 7, expected less") == 0);
    tl_error_name("fake_op", TORCHLEAN_INDEX, serial);
    CHECK(strcmp(torchlean_cuda_last_error(), "fake_op: fake_opera: got 7, expected less") == 0);
}

/* No place for a result. */
static void test_no_place(void)
{
    torchlean_context *context = NULL;
    torchlean_buffer *a = NULL;
    OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &context));
    OK(torchlean_cuda_buffer_zeros(context, 2, &a));
    SAYS(torchlean_cuda_memory_stats(context, NULL), TORCHLEAN_NULL, "expected a place for the counters");
    SAYS(torchlean_cuda_context_device(context, NULL), TORCHLEAN_NULL, "expected a place for the number");
    SAYS(torchlean_cuda_buffer_share(a, NULL), TORCHLEAN_NULL, "expected a place for a buffer");
    SAYS(torchlean_cuda_buffer_length(a, NULL), TORCHLEAN_NULL, "expected a place for the length");
    SAYS(torchlean_cuda_buffer_context(a, NULL), TORCHLEAN_NULL, "expected a place for a context");
    SAYS(torchlean_cuda_buffer_references(a, NULL), TORCHLEAN_NULL, "expected a place for the count");
    OK(torchlean_cuda_context_destroy(context));
}

/* How a context computes is what it was set to, and stays so where another value is refused. */
static void test_math(void)
{
    torchlean_context *context = NULL;
    int32_t math = -1;
    OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &context));
    const int32_t settings[] = {TORCHLEAN_REPRODUCIBLE, TORCHLEAN_FAST, TORCHLEAN_REPRODUCIBLE};
    for (int i = 0; i < 3; i++) {
        OK(torchlean_cuda_context_set_math(context, settings[i]));
        OK(torchlean_cuda_context_math(context, &math));
        CHECK(math == settings[i]);
    }
    SAYS(torchlean_cuda_context_set_math(context, 2), TORCHLEAN_ARGUMENT, "math: got 2, expected 0 (fast) or 1");
    SAYS(torchlean_cuda_context_set_math(context, -1), TORCHLEAN_ARGUMENT, "math: got -1, expected 0 (fast) or 1");
    OK(torchlean_cuda_context_math(context, &math));
    CHECK(math == TORCHLEAN_REPRODUCIBLE);
    OK(torchlean_cuda_context_destroy(context));
}

/* Numbers of every type, in one piece and in several; the rounding is test_float_mode's. */
static void test_conversion(void)
{
    enum { MANY = (1 << 20) + 3 };
    double from = 1, *several = malloc(MANY * sizeof *several);
    float to = 7, *rounded = malloc(MANY * sizeof *rounded);
    SAYS(torchlean_cuda_convert(&from, -1, 1, &to, 0), TORCHLEAN_ARGUMENT, "from_type: got -1, expected 0 to 3");
    SAYS(torchlean_cuda_convert(&from, 4, 1, &to, 0), TORCHLEAN_ARGUMENT, "from_type: got 4, expected 0 to 3");
    SAYS(torchlean_cuda_convert(&from, 1, 1, &to, -1), TORCHLEAN_ARGUMENT, "to_type: got -1, expected 0 or 1");
    SAYS(torchlean_cuda_convert(&from, 1, 1, &to, 2), TORCHLEAN_ARGUMENT, "to_type: got 2, expected 0 or 1");
    SAYS(torchlean_cuda_convert(NULL, 1, 3, &to, 0), TORCHLEAN_NULL, "from: got NULL, expected 3 values");
    SAYS(torchlean_cuda_convert(&from, 1, 3, NULL, 0), TORCHLEAN_NULL, "to: got NULL, expected 3 values");
    OK(torchlean_cuda_convert(NULL, 1, 0, NULL, 0));
    CHECK(to == 7);
    for (int i = 0; i < MANY; i++)
        several[i] = i + 1;
    OK(torchlean_cuda_convert(several, TORCHLEAN_FLOAT64, MANY, rounded, TORCHLEAN_FLOAT32));
    CHECK(rounded[0] == 1 && rounded[(1 << 20) - 1] == 1 << 20 && rounded[MANY - 1] == MANY);
    free(several);
    free(rounded);
}

/* Lengths and types of what is refused, and more arguments than a call has room for. */
static void test_calls(void)
{
    torchlean_context *context = NULL, *other = NULL;
    torchlean_buffer *a = NULL, *three = NULL, *foreign = NULL;
    tl_call call;
    OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &context));
    OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &other));
    OK(torchlean_cuda_buffer_zeros(context, 6, &a));
    OK(torchlean_cuda_buffer_zeros(context, 3, &three));
    OK(torchlean_cuda_buffer_zeros(other, 6, &foreign));
    tl_enter(&call, "fake_op", "a", a);
    CHECK(tl_length(&call, "a", a) == 6 && !tl_is_index(&call, "a", a));
    CHECK(tl_length(&call, "b", foreign) == 0 && tl_length(&call, "a", a) == 0);
    CHECK_STATUS(tl_end(&call), TORCHLEAN_DEVICE);
    tl_enter(&call, "fake_op", "a", a);
    CHECK(!tl_is_index(&call, "b", foreign) && !tl_is_index(&call, "a", a));
    CHECK_STATUS(tl_end(&call), TORCHLEAN_DEVICE);
    tl_enter(&call, "fake_op", "a", a);
    CHECK(tl_input(&call, "b", three, NULL, 6) == NULL);
    SAYS(tl_end(&call), TORCHLEAN_SHAPE, "fake_op: b: got 3 elements, expected 6");
    tl_enter(&call, "fake_op", "a", a);
    for (int i = 0; i <= TL_MAX_INPUTS; i++)
        CHECK((tl_input(&call, "a", a, "n", 6) != NULL) == (i < TL_MAX_INPUTS));
    SAYS(tl_end(&call), TORCHLEAN_INTERNAL, "fake_op: a: more than 16 inputs");
    tl_enter(&call, "fake_op", "a", a);
    torchlean_buffer *outputs[TL_MAX_OUTPUTS + 1] = {NULL};
    for (int i = 0; i <= TL_MAX_OUTPUTS; i++)
        tl_output(&call, "out", &outputs[i], "n", 6);
    SAYS(tl_end(&call), TORCHLEAN_INTERNAL, "fake_op: out: more than 16 outputs");
    CHECK(!outputs[0] && !outputs[TL_MAX_OUTPUTS]);
    OK(torchlean_cuda_context_destroy(context));
    OK(torchlean_cuda_context_destroy(other));
}

void core_test_arguments(void)
{
    test_calls();
    test_errors();
    test_no_place();
    test_math();
    test_conversion();
}
