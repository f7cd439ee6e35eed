/* Run a model whose weights are a file, and print the integers of its first output.
 *
 *     ibert compile minilm.ibert --target c99 --seq-len 32 --prefix ibert --external-weights all -o p
 *     make -C p
 *     cc -O2 -Ip examples/c/weights_file.c -Lp -libert_model -o run
 *     ./run p/ibert_weights.bin 101 7592 2088 102
 *
 * The file is mapped; with --external-weights fetch it is read while the model runs, as a program
 * for a card does it: whole sectors, asynchronously.
 */
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ibert_model.h"

static IBERT_ALIGNED uint8_t arena[IBERT_ARENA_BYTES];
static uint64_t inputs[IBERT_INPUT_BYTES / 8], outputs[IBERT_OUTPUT_BYTES / 8];

#ifdef IBERT_FETCH_BYTES
enum { SECTOR = 512 };

/* One transfer: from the card to the arena, or by a buffer of our own where it is not of whole
 * sectors (rows of the table of words). */
static struct {
    struct aiocb control;
    uint8_t sectors[IBERT_FETCH_BYTES + SECTOR];
    uint8_t *destination;
    size_t skipped, bytes;
} card;

static int32_t start(void *user, uint32_t offset, size_t bytes, void *destination) {
    const int whole = offset % SECTOR == 0 && bytes % SECTOR == 0;
    (void)user;
    card.destination = whole ? NULL : (uint8_t *)destination;
    card.skipped = offset % SECTOR;
    card.bytes = bytes;
    card.control.aio_buf = whole ? destination : card.sectors;
    card.control.aio_offset = (off_t)(offset - card.skipped);
    card.control.aio_nbytes = (card.skipped + bytes + SECTOR - 1) / SECTOR * SECTOR;
    return aio_read(&card.control);
}

static int32_t wait_until_read(void *user) {
    const struct aiocb *const list[] = {&card.control};
    (void)user;
    while (aio_error(&card.control) == EINPROGRESS) {
        (void)aio_suspend(list, 1, NULL);
    }
    if (aio_return(&card.control) != (ssize_t)card.control.aio_nbytes) {
        return 1;
    }
    if (card.destination != NULL) {
        memcpy(card.destination, card.sectors + card.skipped, card.bytes);
    }
    return 0;
}

static int32_t use_file(ibert_context *context, int file) {
    int32_t status = ibert_set_fetch(context, start, wait_until_read, NULL);
    card.control.aio_fildes = file;
    return status == IBERT_OK ? ibert_check_weights(context) : status;
}
#else
static int32_t use_file(ibert_context *context, int file) {
    void *weights = mmap(NULL, IBERT_EXTERNAL_WEIGHT_BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    if (weights == MAP_FAILED) {
        return IBERT_ERROR_WEIGHTS;
    }
    return ibert_set_weights(context, weights, (size_t)lseek(file, 0, SEEK_END));
}
#endif

static long long integer(int32_t type, const void *values, int32_t index) {
    switch (type) {
    case IBERT_INT8: return ((const int8_t *)values)[index];
    case IBERT_UINT8: return ((const uint8_t *)values)[index];
    case IBERT_INT16: return ((const int16_t *)values)[index];
    case IBERT_INT32: return ((const int32_t *)values)[index];
    default: return ((const int64_t *)values)[index];
    }
}

int main(int argc, char **argv) {
    const void *in[IBERT_NUM_INPUTS];
    void *out[IBERT_NUM_OUTPUTS];
    size_t in_bytes[IBERT_NUM_INPUTS], out_bytes[IBERT_NUM_OUTPUTS];
    ibert_context context;
    ibert_shape shape;
    int32_t status = ibert_get_shape(0, &shape);
    if (argc < 2 || argc - 2 > shape.seq_len || IBERT_NUM_OUTPUTS != 1) {
        fprintf(stderr, "usage: run WEIGHTS [ID ...], at most %d ids\n", (int)shape.seq_len);
        return EXIT_FAILURE;
    }
    const int file = open(argv[1], O_RDONLY);
    if (file < 0) {
        perror(argv[1]);
        return EXIT_FAILURE;
    }

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
        status = use_file(&context, file);
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
        printf("%lld\n", integer(output->type, outputs, index));
    }
    return EXIT_SUCCESS;
}
