/* Training steps of a linear classifier on drawn numbers, on a GPU where there is one.
 *
 *     train [cpu|cuda]
 *
 * In reproducible contexts the losses have the same bits on both. */
#include <string.h>

#include "example.h"

enum { ROWS = 512, PIXELS = 64, CLASSES = 10, STEPS = 20 };

int main(int argc, char **argv)
{
    const int cuda = argc > 1 ? strcmp(argv[1], "cuda") == 0 : torchlean_cuda_device_count() > 0;
    torchlean_context *context = NULL;
    TRY(torchlean_cuda_context_create(cuda ? 0 : TORCHLEAN_CPU, &context));
    TRY(torchlean_cuda_context_set_math(context, TORCHLEAN_REPRODUCIBLE));

    /* the label of a row is the index of its largest number among the first CLASSES */
    torchlean_buffer *x = NULL, *parameters[2] = {NULL, NULL}, *gradients[2] = {NULL, NULL};
    static float rows[ROWS * PIXELS];
    static uint32_t labels[ROWS];
    TRY(torchlean_cuda_buffer_rand_normal(context, ROWS * PIXELS, 1, 0.0, 1.0, &x));
    TRY(torchlean_cuda_buffer_download(x, rows, ROWS * PIXELS));
    for (int i = 0; i < ROWS; i++)
        for (uint32_t c = 1; c < CLASSES; c++)
            if (rows[i * PIXELS + c] > rows[i * PIXELS + labels[i]]) labels[i] = c;

    torchlean_buffer *logits = NULL, *losses = NULL, *sum = NULL, *g = NULL, *glogits = NULL;
    TRY(torchlean_cuda_buffer_rand_normal(context, CLASSES * PIXELS, 2, 0.0, 0.1, &parameters[0]));
    TRY(torchlean_cuda_buffer_zeros(context, CLASSES, &parameters[1]));
    TRY(torchlean_cuda_buffer_empty(context, ROWS, &g));
    TRY(torchlean_cuda_buffer_fill(g, 1.0 / ROWS)); /* the gradient of the mean */
    for (int step = 0; step < STEPS; step++) {
        /* an output that holds a buffer is written to, so that nothing is allocated after the first step */
        TRY(torchlean_cuda_buffer_linear(parameters[0], x, parameters[1], CLASSES, PIXELS, ROWS, &logits));
        TRY(torchlean_cuda_buffer_cross_entropy_rows(logits, labels, NULL, ROWS, CLASSES, 0.0, &losses));
        TRY(torchlean_cuda_buffer_cross_entropy_rows_bwd(logits, labels, NULL, g, ROWS, CLASSES, 0.0, &glogits));
        TRY(torchlean_cuda_buffer_linear_bwd(parameters[0], x, glogits, CLASSES, PIXELS, ROWS, &gradients[0], NULL,
                                             &gradients[1]));
        TRY(torchlean_cuda_buffer_sgd_step(context, parameters, gradients, 2, 0.5, 0.0, parameters)); /* in place */
    }
    float loss;
    TRY(torchlean_cuda_buffer_reduce_sum(losses, ROWS, &sum));
    TRY(torchlean_cuda_buffer_download(sum, &loss, 1));
    loss /= ROWS;
    printf("%s: loss %.6f (%a) after %d steps\n", cuda ? "cuda" : "cpu", (double)loss, (double)loss, STEPS);
    TRY(torchlean_cuda_context_destroy(context));
    return 0;
}
