/* Run a compiled model on token ids and print its outputs.
 *
 *     ibert compile minilm.ibert --runtime none --prefix ibert -o model.so --seq-len 32,128
 *     cc -std=c11 -O2 -I. examples/c/embed.c ./model.so -o embed
 *     ./embed 101 7592 2088 102
 *
 * The library needs nothing but libc. The model computes with integers; what turns them into real
 * numbers here, their scale, is the caller's own business.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h" /* written beside model.so */

/* All memory that a run needs. A context and an arena make one caller: a thread has its own. */
static IBERT_ALIGNED uint8_t arena[IBERT_ARENA_BYTES];

static int fail(const char *what, int32_t status) {
    fprintf(stderr, "%s: %s\n", what, ibert_strerror(status));
    return EXIT_FAILURE;
}

static size_t entry_bytes(int32_t type) {
    static const size_t sizes[] = {0, 1, 1, 2, 4, 8};
    return sizes[type];
}

static size_t count_entries(const ibert_tensor *tensor, const ibert_shape *shape) {
    size_t count = 1;
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        int32_t size = tensor->shape[axis];
        count *= (size_t)(size == IBERT_BATCH     ? shape->batch
                          : size == IBERT_SEQ_LEN ? shape->seq_len
                                                  : size);
    }
    return count;
}

static long long entry(const ibert_tensor *tensor, const void *values, size_t index) {
    switch (tensor->type) {
    case IBERT_INT8:
        return ((const int8_t *)values)[index];
    case IBERT_UINT8:
        return ((const uint8_t *)values)[index];
    case IBERT_INT16:
        return ((const int16_t *)values)[index];
    case IBERT_INT32:
        return ((const int32_t *)values)[index];
    default:
        return ((const int64_t *)values)[index];
    }
}

int main(int argc, char **argv) {
    const int32_t length = argc - 1;
    ibert_context context;
    ibert_shape shape;
    if (length < 1) {
        fprintf(stderr, "usage: %s ID [ID ...]\n", argv[0]);
        return 2;
    }

    int32_t status = ibert_init(&context, IBERT_ABI_VERSION, IBERT_FINGERPRINT, arena, sizeof arena);
    if (status != IBERT_OK) {
        return fail("ibert_init", status);
    }
    /* Functions have fixed shapes: take the smallest that holds the text, and fill it up. */
    status = ibert_find_shape(1, length, &shape);
    if (status != IBERT_OK) {
        return fail("ibert_find_shape", status);
    }

    const void *inputs[IBERT_NUM_INPUTS];
    void *outputs[IBERT_NUM_OUTPUTS];
    size_t input_bytes[IBERT_NUM_INPUTS], output_bytes[IBERT_NUM_OUTPUTS];
    for (int32_t i = 0; i < IBERT_NUM_INPUTS; i++) {
        const ibert_tensor *tensor = ibert_input(i);
        const size_t count = count_entries(tensor, &shape);
        int32_t *values = calloc(count, sizeof *values);
        if (values == NULL || tensor->type != IBERT_INT32) {
            fprintf(stderr, "no memory, or input %s is no int32\n", tensor->name);
            return EXIT_FAILURE;
        }
        for (int32_t token = 0; token < shape.batch * shape.seq_len; token++) {
            const int real = token < length;
            if (strcmp(tensor->name, "input_ids") == 0) {
                values[token] = real ? atoi(argv[1 + token]) : IBERT_PAD_TOKEN_ID;
            } else if (strcmp(tensor->name, "attention_mask") == 0) {
                values[token] = real; /* padding is masked */
            } /* token_type_ids stay 0 */
        }
        inputs[i] = values;
        input_bytes[i] = count * sizeof *values;
    }
    for (int32_t i = 0; i < IBERT_NUM_OUTPUTS; i++) {
        const ibert_tensor *tensor = ibert_output(i);
        output_bytes[i] = count_entries(tensor, &shape) * entry_bytes(tensor->type);
        outputs[i] = calloc(1, output_bytes[i]);
        if (outputs[i] == NULL) {
            fprintf(stderr, "no memory\n");
            return EXIT_FAILURE;
        }
    }

    status = ibert_run(&context, shape.batch, shape.seq_len, inputs, input_bytes, outputs,
                       output_bytes);
    if (status != IBERT_OK) {
        return fail("ibert_run", status);
    }

    for (int32_t i = 0; i < IBERT_NUM_OUTPUTS; i++) {
        const ibert_tensor *tensor = ibert_output(i);
        const double scale = strtod(tensor->scale, NULL);
        const size_t count = count_entries(tensor, &shape);
        printf("%s: %zu entries, scale %s\n", tensor->name, count, tensor->scale);
        for (size_t k = 0; k < count && k < 8; k++) {
            const long long value = entry(tensor, outputs[i], k);
            printf("  %lld = %.5f\n", value, (double)value * scale);
        }
        free(outputs[i]);
    }
    for (int32_t i = 0; i < IBERT_NUM_INPUTS; i++) {
        free((void *)inputs[i]);
    }
    return EXIT_SUCCESS;
}
