/* Inference on the CPU: a network of two affine layers, written by export_digits.py, reads handwritten digits.
 *
 *     digits digits.bin
 *
 * The file holds five numbers (images, pixels, hidden units, classes, and 0) and then weights, biases, images and Python's scores
 * as float32, and the labels as uint32. The exit status is 0 if the scores have the same bits as in Python. */
#include <string.h>

#include "example.h"

static float *numbers(FILE *file, size_t count)
{
    float *x = malloc(count * sizeof *x);
    if (!x || fread(x, sizeof *x, count, file) != count) {
        fprintf(stderr, "the file ends too early\n");
        exit(1);
    }
    return x;
}

static torchlean_buffer *buffer(torchlean_context *context, FILE *file, uint32_t count)
{
    torchlean_buffer *made = NULL;
    float *x = numbers(file, count);
    TRY(torchlean_cuda_buffer_upload(context, x, count, &made));
    free(x);
    return made;
}

int main(int argc, char **argv)
{
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    uint32_t sizes[5];
    if (!file || fread(sizes, sizeof *sizes, 5, file) != 5) {
        fprintf(stderr, "usage: digits FILE, which export_digits.py writes\n");
        return 1;
    }
    const uint32_t images = sizes[0], pixels = sizes[1], hidden = sizes[2], classes = sizes[3];
    torchlean_context *context = NULL;
    TRY(torchlean_cuda_context_create(TORCHLEAN_CPU, &context));
    TRY(torchlean_cuda_context_set_math(context, TORCHLEAN_REPRODUCIBLE));
    torchlean_buffer *W1 = buffer(context, file, hidden * pixels), *b1 = buffer(context, file, hidden);
    torchlean_buffer *W2 = buffer(context, file, classes * hidden), *b2 = buffer(context, file, classes);
    torchlean_buffer *x = buffer(context, file, images * pixels);
    float *expected = numbers(file, images * classes), *labels = numbers(file, images);

    torchlean_buffer *h = NULL, *a = NULL, *y = NULL;
    TRY(torchlean_cuda_buffer_linear(W1, x, b1, hidden, pixels, images, &h));
    TRY(torchlean_cuda_buffer_relu(h, &a));
    TRY(torchlean_cuda_buffer_linear(W2, a, b2, classes, hidden, images, &y));
    float *scores = malloc(images * classes * sizeof *scores);
    TRY(torchlean_cuda_buffer_download(y, scores, images * classes));

    uint32_t right = 0;
    for (uint32_t i = 0; i < images; i++) {
        uint32_t best = 0, label;
        for (uint32_t c = 1; c < classes; c++)
            if (scores[i * classes + c] > scores[i * classes + best]) best = c;
        memcpy(&label, labels + i, sizeof label);
        right += best == label;
    }
    const int same = memcmp(scores, expected, images * classes * sizeof *scores) == 0;
    printf("%u of %u digits read; %s\n", right, images,
           same ? "the bits are Python's" : "the bits DIFFER from Python's");
    TRY(torchlean_cuda_context_destroy(context)); /* and with it every buffer */
    free(scores);
    free(expected);
    free(labels);
    fclose(file);
    return !same;
}
