/* Run a model whose weights are a memory-mapped file, and print the integers of its first output.
 *
 *     ibert compile minilm.ibert --target c99 --seq-len 32 --prefix ibert --external-weights all -o p
 *     make -C p
 *     cc -O2 -Ip examples/c/mapped_weights.c -Lp -libert_model -o mapped
 *     ./mapped p/ibert_weights.bin 101 7592 2088 102
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ibert_model.h"

static IBERT_ALIGNED uint8_t arena[IBERT_ARENA_BYTES];
static uint64_t inputs[IBERT_INPUT_BYTES / 8], outputs[IBERT_OUTPUT_BYTES / 8];

int main(int argc, char **argv) {
    const void *in[IBERT_NUM_INPUTS];
    void *out[IBERT_NUM_OUTPUTS];
    size_t in_bytes[IBERT_NUM_INPUTS], out_bytes[IBERT_NUM_OUTPUTS];
    ibert_context context;
    ibert_shape shape;
    int32_t status = ibert_get_shape(0, &shape);
    if (argc < 2 || argc - 2 > shape.seq_len || IBERT_NUM_OUTPUTS != 1) {
        fprintf(stderr, "usage: mapped WEIGHTS [ID ...], at most %d ids\n", (int)shape.seq_len);
        return EXIT_FAILURE;
    }
    const int file = open(argv[1], O_RDONLY);
    const void *weights = mmap(NULL, IBERT_EXTERNAL_WEIGHT_BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    if (file < 0 || weights == MAP_FAILED) {
        perror(argv[1]);
        return EXIT_FAILURE;
    }
    const size_t bytes = (size_t)lseek(file, 0, SEEK_END);

    for (int32_t number = 0; number < IBERT_NUM_INPUTS; number++) {
        int32_t *row = (int32_t *)inputs + number * shape.seq_len;
        const char *name = ibert_input(number)->name;
        for (int32_t token = 0; token < shape.seq_len; token++) {
            const int given = token < argc - 2;
            if (strcmp(name, "input_ids") == 0) {
                row[token] = given ? atoi(argv[token + 2]) : IBERT_PAD_TOKEN_ID;
            } else {
                row[token] = given && strcmp(name, "attention_mask") == 0;
            }
        }
        in[number] = row;
        in_bytes[number] = (size_t)shape.seq_len * sizeof *row;
    }
    out[0] = outputs;
    out_bytes[0] = sizeof outputs;
    if (status == IBERT_OK) {
        status = ibert_init(&context, IBERT_ABI_VERSION, IBERT_FINGERPRINT, arena, sizeof arena);
    }
    if (status == IBERT_OK) {
        status = ibert_set_weights(&context, weights, bytes);
    }
    if (status == IBERT_OK) {
        status = ibert_run(&context, shape.batch, shape.seq_len, in, in_bytes, out, out_bytes);
    }
    if (status != IBERT_OK) {
        fprintf(stderr, "%s\n", ibert_strerror(status));
        return (int)status;
    }
    const ibert_tensor *const output = ibert_output(0);
    for (int32_t index = 0; index < output->shape[output->rank - 1]; index++) {
        const int wide = output->type == IBERT_INT32;
        printf("%d\n", wide ? ((int32_t *)outputs)[index] : (int)((int8_t *)outputs)[index]);
    }
    return EXIT_SUCCESS;
}
