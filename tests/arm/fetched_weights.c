/* Runs a package whose weights are fetched, from a file, and looks at how they are fetched.
 *
 *     fetched WEIGHTS [ID ...]
 *
 * Memory that a copy is under way to is poisoned, so that AddressSanitizer ends the program where
 * anything reads it too early. Printed are the events of one run ("s" and "w": start of a piece, and
 * wait for it; "r": a row; "k": a kernel done), then the output; each on a line. */
#include <fcntl.h>
#include <sanitizer/asan_interface.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ibert_model.h"

#define REQUIRE(condition)                                                       \
    do {                                                                         \
        if (!(condition)) {                                                      \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);              \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

static struct {
    int file, under_way, log;
    long starts, waits, failing_start, failing_wait;
    uint32_t offset;
    size_t bytes;
    uint8_t *to;
} state;
static uint8_t *arena;

static void event(const char *name) {
    if (state.log) fputs(name, stdout);
}

static int32_t start(void *user, uint32_t offset, size_t bytes, void *to) {
    REQUIRE(user == &state && !state.under_way && bytes > 0);
    REQUIRE(offset <= IBERT_EXTERNAL_WEIGHT_BYTES &&
            bytes <= IBERT_EXTERNAL_WEIGHT_BYTES - offset && bytes <= IBERT_FETCH_BYTES);
    REQUIRE((uint8_t *)to >= arena && (uint8_t *)to + bytes <= arena + IBERT_ARENA_BYTES);
    if (state.starts++ == state.failing_start) return -7;
    state.under_way = 1;
    state.offset = offset;
    state.bytes = bytes;
    state.to = to;
    memset(to, 0xa5, bytes);
    /* Bytes that share a granule of 8 with something else cannot be poisoned: rows of 4, say. */
    ASAN_POISON_MEMORY_REGION(to, bytes);
    event(bytes % 512 == 0 ? "s" : "r");
    return 0;
}

static int32_t wait_for_it(void *user) {
    REQUIRE(user == &state && state.under_way);
    state.under_way = 0;
    ASAN_UNPOISON_MEMORY_REGION(state.to, state.bytes);
    if (state.bytes % 512 == 0) event("w");
    if (state.waits++ == state.failing_wait) return 3;
    return pread(state.file, state.to, state.bytes, state.offset) != (ssize_t)state.bytes;
}

static int32_t kernel_done(void *user, int32_t done, int32_t total) {
    const int32_t *const last = user;
    (void)total;
    if (done > 0) event("k");
    return last != NULL && done == *last;
}

static int32_t ids[IBERT_NUM_INPUTS][4096];
static const void *in[IBERT_NUM_INPUTS];
static size_t in_bytes[IBERT_NUM_INPUTS];
static ibert_shape shape;
static ibert_context context;

static int32_t run(int fill, uint64_t *output) {
    void *out[1] = {output};
    const size_t out_bytes[1] = {IBERT_OUTPUT_BYTES};
    int32_t status;
    memset(arena, fill, IBERT_ARENA_BYTES);
    state.starts = state.waits = 0;
    status = ibert_run(&context, shape.batch, shape.seq_len, in, in_bytes, out, out_bytes);
    REQUIRE(!state.under_way);
    return status;
}

int main(int argc, char **argv) {
    static uint64_t output[IBERT_OUTPUT_BYTES / 8 + 1], again[IBERT_OUTPUT_BYTES / 8 + 1];
    const ibert_tensor *const result = ibert_output(0);
    long fetches, number;
    REQUIRE(argc > 2 && ibert_get_shape(0, &shape) == IBERT_OK && argc - 2 <= shape.seq_len);
    state.file = open(argv[1], O_RDONLY);
    state.failing_start = state.failing_wait = -1;
    arena = aligned_alloc(IBERT_ALIGNMENT, IBERT_ARENA_BYTES); /* with red zones round it */
    REQUIRE(state.file >= 0 && arena != NULL);
    for (int32_t input = 0; input < IBERT_NUM_INPUTS; input++) {
        const char *const name = ibert_input(input)->name;
        for (int32_t token = 0; token < shape.seq_len; token++) {
            const int given = token < argc - 2;
            ids[input][token] = strcmp(name, "input_ids") == 0
                                    ? given ? atoi(argv[token + 2]) : IBERT_PAD_TOKEN_ID
                                    : given && strcmp(name, "attention_mask") == 0;
        }
        in[input] = ids[input];
        in_bytes[input] = (size_t)shape.seq_len * 4;
    }
    REQUIRE(ibert_init(&context, IBERT_ABI_VERSION, IBERT_FINGERPRINT, arena, IBERT_ARENA_BYTES) ==
            IBERT_OK);
    REQUIRE(run(0, output) == IBERT_ERROR_WEIGHTS && ibert_check_weights(&context) == IBERT_ERROR_WEIGHTS);
    REQUIRE(ibert_set_fetch(&context, start, NULL, &state) == IBERT_ERROR_NULL_POINTER);
    REQUIRE(ibert_set_fetch(&context, start, wait_for_it, &state) == IBERT_OK);
    const int32_t checked = ibert_check_weights(&context);
    if (checked != IBERT_OK) return checked;
    REQUIRE(ibert_set_hook(&context, kernel_done, NULL) == IBERT_OK);

    state.log = 1;
    REQUIRE(run(0x5a, output) == IBERT_OK);
    state.log = 0;
    fetches = state.starts;
    REQUIRE(fetches == state.waits && run(0xff, again) == IBERT_OK);
    REQUIRE(memcmp(output, again, IBERT_OUTPUT_BYTES) == 0);

    /* Each fetch in turn fails, or the run is ended: the next run is right. */
    for (number = 0; number < fetches; number++) {
        state.failing_start = number;
        REQUIRE(run(0, again) == IBERT_ERROR_FETCH && state.starts == number + 1);
        state.failing_start = -1;
        state.failing_wait = number;
        REQUIRE(run(0, again) == IBERT_ERROR_FETCH && state.waits >= number + 1);
        state.failing_wait = -1;
    }
    for (int32_t last = 0; last <= shape.num_kernels; last++) {
        REQUIRE(ibert_set_hook(&context, kernel_done, &last) == IBERT_OK);
        REQUIRE(run(0, again) == IBERT_ERROR_CANCELLED && state.starts == state.waits);
    }
    REQUIRE(ibert_set_hook(&context, NULL, NULL) == IBERT_OK);
    memset(again, 0, sizeof again);
    REQUIRE(run(0, again) == IBERT_OK && memcmp(output, again, IBERT_OUTPUT_BYTES) == 0);

    puts("");
    for (int32_t index = 0; index < result->shape[result->rank - 1]; index++) {
        const int wide = result->type == IBERT_INT32;
        printf("%d ", wide ? ((int32_t *)output)[index] : (int)((int8_t *)output)[index]);
    }
    puts("");
    return 0;
}
