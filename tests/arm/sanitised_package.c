/* Runs a package on inputs from stdin, one run after the other, and writes the outputs to stdout.
 *
 *     sanitised [WEIGHTS]
 *
 * All memory that the model is given is on the heap and just as large as the header says, so that
 * AddressSanitizer has red zones round it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "ibert_model.h"

static void *allocated(size_t bytes) {
    void *const memory = aligned_alloc(IBERT_ALIGNMENT, bytes);
    if (memory == NULL) exit(98);
    return memory;
}

int main(int argc, char **argv) {
    static const void *in[IBERT_NUM_INPUTS];
    static void *out[IBERT_NUM_OUTPUTS];
    static size_t in_bytes[IBERT_NUM_INPUTS], out_bytes[IBERT_NUM_OUTPUTS];
    uint8_t *const arena = allocated(IBERT_ARENA_BYTES);
    void *input, *const output = malloc(IBERT_OUTPUT_BYTES), *weights = NULL;
    ibert_context context;
    ibert_shape shape;
    int32_t status = ibert_get_shape(0, &shape);
    const size_t bytes = (size_t)shape.seq_len * sizeof(int32_t);

    if (status == IBERT_OK)
        status = ibert_init(&context, IBERT_ABI_VERSION, IBERT_FINGERPRINT, arena,
                            IBERT_ARENA_BYTES);
#ifdef IBERT_EXTERNAL_WEIGHT_BYTES
    FILE *const file = fopen(argv[argc - 1], "rb");
    weights = allocated(IBERT_EXTERNAL_WEIGHT_BYTES);
    if (file == NULL || fread(weights, 1, IBERT_EXTERNAL_WEIGHT_BYTES, file) !=
                            IBERT_EXTERNAL_WEIGHT_BYTES) return 97;
    fclose(file);
    if (status == IBERT_OK)
        status = ibert_set_weights(&context, weights, IBERT_EXTERNAL_WEIGHT_BYTES);
#else
    (void)argc, (void)argv;
#endif
    for (int i = 0; i < IBERT_NUM_INPUTS; i++) in_bytes[i] = bytes;
    out[0] = output;
    out_bytes[0] = IBERT_OUTPUT_BYTES;
    for (size_t read = 1; status == IBERT_OK && read == 1;) {
        for (int i = 0; i < IBERT_NUM_INPUTS && read == 1; i++) {
            in[i] = input = malloc(bytes);
            read = fread(input, bytes, 1, stdin);
        }
        if (read == 1) {
            status = ibert_run(&context, 1, shape.seq_len, in, in_bytes, out, out_bytes);
            fwrite(output, 1, IBERT_OUTPUT_BYTES, stdout);
        }
        for (int i = 0; i < IBERT_NUM_INPUTS; i++) free((void *)(uintptr_t)in[i]), in[i] = NULL;
    }
    free(arena), free(output), free(weights);
    return (int)status;
}
