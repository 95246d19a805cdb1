/* The arguments of a call: a drawn case, good handles and arrays for it, and what may be wrong with each argument. */
#include <math.h>
#include <string.h>

#include "fuzz_abi.h"

uint32_t fuzz_indices[FUZZ_HOST];
double fuzz_numbers[FUZZ_HOST];
_Thread_local double fuzz_sink[FUZZ_HOST];

void fuzz_make_host(void)
{
    for (uint32_t i = 0; i < FUZZ_HOST; i++) {
        fuzz_indices[i] = i % 11 == 10 ? UINT32_MAX : (uint32_t)(tl_mix(i) % 7);
        fuzz_numbers[i] = (double)(tl_mix(i) % 1000) / 64.0 - 8.0;
    }
}

const uint64_t *fuzz_pick_case(fuzz_run *f, const fuzz_entry *e)
{
    const uint64_t *at = e->cases;
    for (uint64_t k = fuzz_below(f, (uint64_t)e->count); k > 0; k--)
        at += at[0] + 1;
    return at + 1;
}

void fuzz_read_case(const fuzz_entry *e, const uint64_t *w, fuzz_value *v)
{
    for (int i = 0; i < e->arguments; i++) {
        v[i].truth = FUZZ_ABSENT;
        v[i].no_list = 0;
        v[i].length = 0;
        v[i].slot = NULL;
        switch (e->argument[i].kind) {
        case FUZZ_BUFFER:
        case FUZZ_INDEX: v[i].length = *w++; break;
        case FUZZ_OPTIONAL: v[i].u = *w++; break;
        case FUZZ_DIM:
        case FUZZ_U64: v[i].u = *w++; break;
        case FUZZ_FLOAT: memcpy(&v[i].real, w++, sizeof(double)); break;
        case FUZZ_DIMS:
            v[i].rank = (uint32_t)*w++;
            for (uint32_t k = 0; k < v[i].rank; k++)
                v[i].list[k] = (uint32_t)*w++;
            v[i].array = v[i].list;
            break;
        case FUZZ_U32S:
            v[i].length = *w++;
            v[i].array = NULL;
            v[i].u = (uint64_t)(uintptr_t)w; /* the case's own indices, as words */
            w += v[i].length;
            break;
        case FUZZ_LIST_IN:
        case FUZZ_OUT_LIST:
            v[i].rank = (uint32_t)*w++;
            for (uint32_t k = 0; k < v[i].rank; k++, w++)
                v[i].lengths[k] = (uint32_t)*w;
            break;
        default: break;
        }
    }
}

void fuzz_spoil_sizes(fuzz_run *f, const fuzz_entry *e, fuzz_value *v)
{
    for (uint64_t times = 1 + fuzz_below(f, 3); times > 0; times--) {
        int i = (int)fuzz_below(f, (uint64_t)e->arguments);
        switch (e->argument[i].kind) {
        case FUZZ_DIM: v[i].u = fuzz_size(f); break;
        case FUZZ_U64: v[i].u = fuzz_one_in(f, 2) ? fuzz_next(f) : fuzz_size(f); break;
        case FUZZ_FLOAT: v[i].real = fuzz_real(f); break;
        case FUZZ_BUFFER:
            if (e->elementwise) v[i].length = fuzz_one_in(f, 8) ? 65535 + fuzz_below(f, 3) : fuzz_below(f, 70);
            break;
        case FUZZ_DIMS:
            if (fuzz_one_in(f, 3)) {
                uint32_t more = (uint32_t)fuzz_below(f, TL_MAX_RANK + 1);
                for (uint32_t k = v[i].rank; k < more; k++)
                    v[i].list[k] = 1 + (uint32_t)fuzz_below(f, 2);
                v[i].rank = more;
            } else if (v[i].rank) {
                v[i].list[fuzz_below(f, v[i].rank)] = fuzz_size(f);
            }
            break;
        default: break;
        }
    }
}

int fuzz_too_much(const fuzz_entry *e, const fuzz_value *v, const uint64_t *n)
{
    double product = 1;
    int empty = 0;
    for (int i = 0; i < e->arguments; i++) {
        const fuzz_kind kind = e->argument[i].kind;
        /* an output's element looks at every place of its window, inside the image or not; a query at every key */
        const int twice = strncmp(e->argument[i].name, "kernel", 6) == 0 ||
                          (strcmp(e->argument[i].name, "n") == 0 && strstr(e->symbol, "attention"));
        empty |= (kind == FUZZ_BUFFER || kind == FUZZ_INDEX || fuzz_is_output(kind)) && n[i] == 0;
        for (uint32_t k = 0; kind == FUZZ_DIMS && k < v[i].rank && k < TL_MAX_RANK; k++)
            product *= pow(v[i].list[k] ? (double)v[i].list[k] : 1, 1 + twice);
        if (kind == FUZZ_DIM) product *= pow(v[i].u ? (double)v[i].u : 1, 1 + twice);
    }
    return product > (empty ? 1e18 : 1e7);
}

static void give_output(fuzz_run *f, const fuzz_entry *e, fuzz_value *v, int i, uint64_t n, int input)
{
    v[i].handle = NULL;
    v[i].slot = &v[i].handle;
    v[i].truth = FUZZ_ABSENT;
    v[i].length = n;
    uint64_t way = fuzz_below(f, 20);
    if (way < 10 || n >= FUZZ_LENGTHS) return;
    if (e->argument[i].kind == FUZZ_OUT_OPTIONAL && way < 13) {
        v[i].slot = NULL;
        return;
    }
    v[i].truth = FUZZ_GOOD;
    if (e->elementwise && way == 19 && input >= 0 && v[input].length == n && v[input].truth == FUZZ_GOOD) {
        v[i].place = v[input].place; /* in place */
    } else {
        v[i].place = fuzz_output_place(i, fuzz_is_index(e->argument[i].kind));
    }
    v[i].handle = fuzz_take(f, (uint32_t)n, v[i].place);
}

void fuzz_supply(fuzz_run *f, const fuzz_entry *e, fuzz_value *v, const uint64_t *n, int own_indices)
{
    static _Thread_local uint32_t own[4096];
    int input = -1, outputs = 0;
    for (int i = 0; i < e->arguments; i++) {
        switch (e->argument[i].kind) {
        case FUZZ_CONTEXT:
            v[i].u = (uint64_t)(uintptr_t)f->context;
            v[i].truth = FUZZ_GOOD;
            break;
        case FUZZ_OPTIONAL:
            if (!v[i].u) break;
            /* fallthrough */
        case FUZZ_BUFFER:
        case FUZZ_INDEX:
            v[i].length = n[i] < FUZZ_LENGTHS ? n[i] : fuzz_below(f, 64);
            v[i].place = fuzz_input_place(f, fuzz_is_index(e->argument[i].kind));
            v[i].u = (uint64_t)(uintptr_t)fuzz_take(f, (uint32_t)v[i].length, v[i].place);
            v[i].truth = FUZZ_GOOD;
            if (input < 0) input = i;
            break;
        case FUZZ_U32S:
            if (own_indices) {
                const uint64_t *w = (const uint64_t *)(uintptr_t)v[i].u;
                for (uint64_t k = 0; k < v[i].length; k++)
                    own[k] = (uint32_t)w[k];
                v[i].array = own;
            } else {
                v[i].array = fuzz_indices;
            }
            break;
        case FUZZ_F64S: v[i].array = fuzz_numbers; break;
        case FUZZ_OUT_F64S:
            v[i].array = fuzz_sink;
            memset(fuzz_sink, 77, FUZZ_SHOWN);
            break;
        case FUZZ_LIST_IN:
            for (uint32_t k = 0; k < v[i].rank; k++) {
                v[i].places[k] = (int16_t)(k ? fuzz_below(f, 4) : FUZZ_FLOATS - 1);
                v[i].handles[k] = fuzz_take(f, v[i].lengths[k], v[i].places[k]);
                v[i].truths[k] = FUZZ_GOOD;
            }
            break;
        case FUZZ_OUT:
        case FUZZ_OUT_OPTIONAL:
        case FUZZ_OUT_INDEX: give_output(f, e, v, i, n[i], outputs++ ? -1 : input); break;
        case FUZZ_OUT_LIST:
            for (uint32_t k = 0; k < v[i].rank; k++) {
                v[i].handles[k] = NULL;
                v[i].truths[k] = FUZZ_ABSENT;
            }
            if (v[i].rank && !outputs++ && fuzz_one_in(f, 3)) { /* in place: nothing else is at the last place */
                v[i].places[0] = FUZZ_FLOATS - 1;
                v[i].handles[0] = fuzz_take(f, v[i].lengths[0], FUZZ_FLOATS - 1);
                v[i].truths[0] = FUZZ_GOOD;
            }
            break;
        default: break;
        }
    }
}

void fuzz_spoil(fuzz_run *f, const fuzz_entry *e, fuzz_value *v, int i)
{
    fuzz_value *a = &v[i];
    switch (e->argument[i].kind) {
    case FUZZ_CONTEXT:
        a->truth = FUZZ_BAD;
        a->u = fuzz_one_in(f, 3) ? 0 : (uint64_t)(uintptr_t)f->destroyed;
        if (a->u && fuzz_one_in(f, 2)) a->u = (uint64_t)(uintptr_t)f->released[0];
        break;
    case FUZZ_BUFFER:
    case FUZZ_OPTIONAL:
    case FUZZ_INDEX:
        if (fuzz_one_in(f, 4)) {
            a->u = 0;
            a->truth = FUZZ_ABSENT;
        } else if (fuzz_one_in(f, 3)) {
            const int other = fuzz_one_in(f, 3); /* indices for floats and the reverse, of the right length */
            if (!other)
                a->length = fuzz_one_in(f, 2) ? (a->length + (fuzz_one_in(f, 2) ? 1 : FUZZ_LENGTHS - 1)) % FUZZ_LENGTHS
                                              : fuzz_below(f, 300);
            if (a->length > 5000) a->length = 0;
            a->place = FUZZ_FLOATS * (fuzz_is_index(e->argument[i].kind) ^ other);
            a->u = (uint64_t)(uintptr_t)fuzz_take(f, (uint32_t)a->length, a->place);
            a->truth = FUZZ_GOOD;
        } else {
            a->u = fuzz_bad_handle(f, &a->truth);
        }
        break;
    case FUZZ_DIM: a->u = fuzz_size(f); break;
    case FUZZ_U64: a->u = fuzz_one_in(f, 2) ? 0 : fuzz_next(f); break;
    case FUZZ_FLOAT: a->real = fuzz_real(f); break;
    case FUZZ_DIMS:
        switch (fuzz_below(f, 4)) {
        case 0: a->array = NULL; break;
        case 1: a->rank = fuzz_one_in(f, 2) ? 9 : fuzz_size(f) | 16; break;
        case 2: a->rank = (uint32_t)fuzz_below(f, TL_MAX_RANK + 1); break;
        default: a->list[fuzz_below(f, TL_MAX_RANK)] = fuzz_size(f); break;
        }
        break;
    case FUZZ_U32S:
    case FUZZ_F64S:
    case FUZZ_OUT_F64S: a->array = NULL; break;
    case FUZZ_LIST_IN:
    case FUZZ_OUT_LIST:
        if (fuzz_one_in(f, 4) || !a->rank) {
            a->no_list = 1;
        } else {
            uint32_t k = (uint32_t)fuzz_below(f, a->rank);
            fuzz_truth truth;
            a->handles[k] = (torchlean_buffer *)(uintptr_t)(fuzz_one_in(f, 3) ? 0 : fuzz_bad_handle(f, &truth));
            if (fuzz_one_in(f, 3)) a->handles[k] = fuzz_take(f, a->lengths[k], FUZZ_FLOATS);
            a->truths[k] = a->handles[k] ? FUZZ_BAD : FUZZ_ABSENT;
        }
        break;
    case FUZZ_OUT:
    case FUZZ_OUT_OPTIONAL:
    case FUZZ_OUT_INDEX: {
        int other = (int)fuzz_below(f, (uint64_t)e->arguments);
        switch (fuzz_below(f, 4)) {
        case 0: a->slot = NULL; break;
        case 1:
            a->handle = (torchlean_buffer *)(uintptr_t)fuzz_bad_handle(f, &a->truth);
            a->slot = &a->handle;
            break;
        case 2: /* another argument's buffer, or its place */
            if ((e->argument[other].kind == FUZZ_BUFFER || e->argument[other].kind == FUZZ_INDEX) &&
                v[other].truth == FUZZ_GOOD) {
                a->handle = (torchlean_buffer *)(uintptr_t)v[other].u;
                if (f->twin_count < FUZZ_ARGUMENTS && fuzz_one_in(f, 2)) {
                    torchlean_buffer *twin = NULL;
                    if (!torchlean_cuda_buffer_share(a->handle, &twin)) {
                        f->twins[f->twin_count++] = a->handle = twin;
                        f->live++;
                    }
                }
                a->slot = &a->handle;
                a->length = v[other].length;
                a->place = v[other].place;
                a->truth = FUZZ_GOOD;
            } else if (other < i && v[other].slot) {
                a->slot = v[other].slot;
            }
            break;
        default: /* another length, or another type */
            if (a->length > 5000 || fuzz_one_in(f, 2)) a->length = fuzz_below(f, 300);
            a->place = fuzz_output_place(i, fuzz_is_index(e->argument[i].kind) ^ fuzz_one_in(f, 3));
            a->handle = fuzz_take(f, (uint32_t)a->length, a->place);
            a->slot = &a->handle;
            a->truth = FUZZ_GOOD;
        }
        break;
    }
    }
}
