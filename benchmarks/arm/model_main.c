/* Runs a model of one shape once, under Linux: inputs come from standard input, outputs go to
 * standard output. INPUT_BYTES and OUTPUT_BYTES: of all of them, each a multiple of eight. */
#include <stdio.h>

#include "ibert_model.h"

static IBERT_ALIGNED uint8_t arena[IBERT_ARENA_BYTES];
static uint64_t inputs[INPUT_BYTES / 8], outputs[OUTPUT_BYTES / 8];
static ibert_context context;

static size_t bytes_of(const ibert_tensor *tensor, const ibert_shape *shape) {
    size_t count = 1;
    for (int32_t axis = 0; axis < tensor->rank; ++axis) {
        const int32_t size = tensor->shape[axis];
        count *= (size_t)(size == IBERT_BATCH     ? shape->batch
                          : size == IBERT_SEQ_LEN ? shape->seq_len
                                                  : size);
    }
    switch (tensor->type) {
        case IBERT_INT8:
        case IBERT_UINT8: return count;
        case IBERT_INT16: return 2 * count;
        case IBERT_INT64: return 8 * count;
        default: return 4 * count;
    }
}

int main(void) {
    ibert_shape shape;
    const void *in[IBERT_NUM_INPUTS];
    void *out[IBERT_NUM_OUTPUTS];
    size_t in_bytes[IBERT_NUM_INPUTS], out_bytes[IBERT_NUM_OUTPUTS];
    if (ibert_get_shape(0, &shape) != IBERT_OK) return 64;
    size_t offset = 0;
    for (int32_t number = 0; number < IBERT_NUM_INPUTS; ++number) {
        const size_t size = bytes_of(ibert_input(number), &shape);
        in_bytes[number] = size;
        in[number] = (uint8_t *)inputs + offset;
        if (fread((uint8_t *)inputs + offset, 1, size, stdin) != size) return 65;
        offset += (size + 7) / 8 * 8;
    }
    offset = 0;
    for (int32_t number = 0; number < IBERT_NUM_OUTPUTS; ++number) {
        out[number] = (uint8_t *)outputs + offset;
        out_bytes[number] = bytes_of(ibert_output(number), &shape);
        offset += (out_bytes[number] + 7) / 8 * 8;
    }
    int32_t status = ibert_init(&context, IBERT_ABI_VERSION, IBERT_FINGERPRINT, arena, sizeof arena);
    if (status != IBERT_OK) return status;
    status = ibert_run(&context, shape.batch, shape.seq_len, in, in_bytes, out, out_bytes);
    if (status != IBERT_OK) return status;
    for (int32_t number = 0; number < IBERT_NUM_OUTPUTS; ++number) {
        if (fwrite(out[number], 1, out_bytes[number], stdout) != out_bytes[number]) return 66;
    }
    return 0;
}
