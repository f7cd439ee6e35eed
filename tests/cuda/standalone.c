/* Runs a compiled model once, on a GPU: inputs from files, outputs to files.
 *
 * standalone DEVICE BATCH SEQ_LEN INPUT... OUTPUT...; errors as text, to standard error.
 */
#include <stdio.h>
#include <stdlib.h>
#include "model.h"

static IBERT_ALIGNED uint8_t arena[IBERT_ARENA_BYTES];

static int refused(int32_t status) {
    fprintf(stderr, "%s: %s\n", ibert_strerror(status), ibert_device_report());
    return 1;
}

int main(int count, char **arguments) {
    enum { TENSORS = IBERT_NUM_INPUTS + IBERT_NUM_OUTPUTS };
    void *pointers[TENSORS];
    size_t bytes[TENSORS];
    ibert_context context;
    const int batch = atoi(arguments[2]), seq_len = atoi(arguments[3]);
    int32_t status = ibert_init(&context, IBERT_ABI_VERSION, IBERT_FINGERPRINT, arena, sizeof arena);
    if (count != 4 + TENSORS || status != IBERT_OK) {
        return 2;
    }
    for (int i = 0; i < TENSORS; i++) {
        bytes[i] = 1 << 20;
        pointers[i] = calloc(1, bytes[i]);
        FILE *file = fopen(arguments[4 + i], "rb");
        if (i < IBERT_NUM_INPUTS) {
            fread(pointers[i], 1, bytes[i], file);
        }
        fclose(file);
    }
    if (atoi(arguments[1]) > 0) {
        status = ibert_set_device(&context, atoi(arguments[1]));
    }
    for (int i = 0; i < 2 && status == IBERT_OK; i++) { /* the second run launches the same graph */
        status = ibert_run(&context, batch, seq_len, (const void *const *)pointers, bytes,
                           pointers + IBERT_NUM_INPUTS, bytes + IBERT_NUM_INPUTS);
    }
    if (status != IBERT_OK) {
        return refused(status);
    }
    for (int i = IBERT_NUM_INPUTS; i < TENSORS; i++) {
        FILE *file = fopen(arguments[4 + i], "wb");
        fwrite(pointers[i], 1, bytes[i], file);
        fclose(file);
    }
    ibert_release(&context);
    return 0;
}
