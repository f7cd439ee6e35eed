/* Random calls of a model's C interface; what is passed is as large as the caller says.
 *
 * Every array is a block of its own, so that the address sanitiser sees each byte that is touched
 * outside of it. The program ends with the number of calls that ran, or aborts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ibert_model.h"

#define MOST 8
#define SEQ_LEN(batch) ((batch) == 1 ? 24 : 8) /* of the shapes that were compiled */
#define CHECK(condition)                                                  \
    do {                                                                  \
        if (!(condition)) {                                               \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);       \
            abort();                                                      \
        }                                                                 \
    } while (0)

int kernels_until_failure = -1; /* of the kernels, which are beside this file */

static uint64_t state;

static uint32_t next(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 16) % below);
}

static size_t entry_bytes(const ibert_tensor *tensor) {
    return tensor->type == IBERT_INT64   ? 8
           : tensor->type == IBERT_INT32 ? 4
           : tensor->type == IBERT_INT16 ? 2
                                         : 1;
}

static size_t bytes_of(const ibert_tensor *tensor, int32_t batch, int32_t seq_len) {
    size_t count = 1;
    int32_t axis;
    for (axis = 0; axis < tensor->rank; axis++) {
        const int32_t size = tensor->shape[axis];
        count *= (size_t)(size == IBERT_BATCH ? batch : size == IBERT_SEQ_LEN ? seq_len : size);
    }
    return count * entry_bytes(tensor);
}

/* A block that starts `offset` bytes behind a multiple of the largest alignment. */
static void *block(size_t bytes, size_t offset, void **whole) {
    *whole = NULL;
    /* Of exactly these bytes: a longer block would hide what is read behind them. */
    CHECK(posix_memalign(whole, IBERT_ALIGNMENT, bytes + offset + (bytes + offset == 0)) == 0);
    return (uint8_t *)*whole + offset;
}

static size_t any_size(size_t right) {
    switch (next(12)) {
    case 0:
        return 0;
    case 1:
        return right - 1;
    case 2:
        return right + 1 + next(40);
    case 3:
        return next((uint32_t)right);
    default:
        return right;
    }
}

static void fill(const ibert_tensor *tensor, void *values, size_t bytes, int wild) {
    size_t k;
    for (k = 0; k + entry_bytes(tensor) <= bytes; k += entry_bytes(tensor)) {
        const int64_t span = (int64_t)tensor->high - tensor->low + 1;
        int64_t value = tensor->low + (int64_t)(next(1u << 30) % (uint64_t)span);
        if (wild && next(6) == 0) {
            value = next(2) ? (int64_t)tensor->high + 1 : (int64_t)tensor->low - 1;
        }
        memcpy((uint8_t *)values + k, &value, entry_bytes(tensor)); /* little-endian */
    }
}

typedef struct {
    ibert_context context;
    void *arena;
    int cancel_at, nested;
} caller;

static caller callers[2];
static const void *nested_inputs[MOST];
static void *nested_outputs[MOST];
static size_t nested_bytes[MOST];

static int32_t hook(void *user, int32_t done, int32_t total) {
    caller *one = (caller *)user;
    CHECK(done >= 0 && done <= total);
    if (one->nested) {
        CHECK(ibert_run(&one->context, 1, 24, nested_inputs, nested_bytes, nested_outputs,
                        nested_bytes) == IBERT_ERROR_BUSY);
        CHECK(ibert_set_hook(&one->context, NULL, NULL) == IBERT_ERROR_BUSY);
    }
    return done == one->cancel_at;
}

static void start(caller *one) {
    const size_t sizes[] = {0, 1, IBERT_ARENA_BYTES_B2_S8 - 1, IBERT_ARENA_BYTES_B2_S8,
                            IBERT_ARENA_BYTES, IBERT_ARENA_BYTES, IBERT_ARENA_BYTES + 64};
    const size_t size = sizes[next(7)], offset = next(8) ? 0 : 1 + next(63);
    uint8_t *arena;
    int32_t status;
    free(one->arena);
    arena = block(size, offset, &one->arena);
    memset(&one->context, next(2) ? 0 : 0xA5, sizeof one->context);
    status = ibert_init(next(20) ? &one->context : NULL,
                        next(20) ? IBERT_ABI_VERSION : IBERT_ABI_VERSION + 1,
                        next(20) ? IBERT_FINGERPRINT : IBERT_FINGERPRINT ^ 1,
                        next(20) ? arena : NULL, size);
    CHECK(status == IBERT_OK || status == IBERT_ERROR_NULL_POINTER ||
          status == IBERT_ERROR_ABI_VERSION || status == IBERT_ERROR_MODEL ||
          status == IBERT_ERROR_ARENA_ALIGNMENT || status == IBERT_ERROR_ARENA_SIZE);
    one->cancel_at = next(4) ? -1 : (int)next(5);
    one->nested = (int)next(2);
    ibert_set_hook(next(20) ? &one->context : NULL, next(2) ? hook : NULL, one);
}

static int call(caller *one) {
    const void *inputs[MOST];
    void *outputs[MOST], *whole[2 * MOST], *before[MOST];
    size_t input_bytes[MOST], output_bytes[MOST];
    const int32_t batch = next(15) ? 1 + (int32_t)next(3) : (int32_t)next(6) - 1;
    const int32_t seq_len = next(15) ? SEQ_LEN(batch) : (int32_t)next(30) - 1;
    /* One tensor may be wrong, or any: when all are random one fault hides the others. */
    const int wrong = next(3) == 0, plain = next(2);
    const int only = next(4) ? (int)next(IBERT_NUM_INPUTS + IBERT_NUM_OUTPUTS) : -1;
    int32_t status = IBERT_OK, i;
    for (i = 0; i < IBERT_NUM_INPUTS; i++) {
        const ibert_tensor *tensor = ibert_input(i);
        const size_t right = bytes_of(tensor, batch < 1 ? 1 : batch, seq_len < 1 ? 1 : seq_len);
        const int odd = wrong && (only < 0 || only == i);
        void *values;
        input_bytes[i] = odd ? any_size(right) : right;
        values = block(input_bytes[i], odd && next(8) == 0 ? 1 + next(7) : 0, &whole[i]);
        fill(tensor, values, input_bytes[i], odd);
        inputs[i] = odd && next(20) == 0 ? NULL : values;
    }
    for (i = 0; i < IBERT_NUM_OUTPUTS; i++) {
        const ibert_tensor *tensor = ibert_output(i);
        const size_t right = bytes_of(tensor, batch < 1 ? 1 : batch, seq_len < 1 ? 1 : seq_len);
        const int odd = wrong && (only < 0 || only == IBERT_NUM_INPUTS + i);
        output_bytes[i] = odd ? any_size(right) : right;
        outputs[i] = block(output_bytes[i], odd && next(8) == 0 ? 1 + next(7) : 0,
                           &whole[MOST + i]);
        memset(outputs[i], 0xEE, output_bytes[i]);
        before[i] = outputs[i];
        outputs[i] = odd && next(20) == 0 ? NULL : outputs[i];
    }
    kernels_until_failure = next(10) ? -1 : (int)next(4);
    if (plain || batch < 1 || batch > 3 || seq_len != SEQ_LEN(batch)) {
        ibert_context *context = next(30) ? &one->context : NULL;
        status = ibert_run(context, batch, seq_len, next(30) ? inputs : NULL,
                           next(30) ? input_bytes : NULL, next(30) ? outputs : NULL,
                           next(30) ? output_bytes : NULL);
    } else {
        status = typed(next(30) ? &one->context : NULL, batch, inputs, input_bytes, outputs,
                       output_bytes);
    }
    kernels_until_failure = -1;
    if (status != IBERT_OK && status != IBERT_ERROR_CANCELLED && status != IBERT_ERROR_KERNEL) {
        for (i = 0; i < IBERT_NUM_OUTPUTS; i++) {
            size_t k;
            for (k = 0; k < output_bytes[i]; k++) {
                CHECK(((uint8_t *)before[i])[k] == 0xEE);
            }
        }
    }
    if (status == IBERT_OK) { /* the last output is a copy of the first input */
        CHECK(memcmp(outputs[IBERT_NUM_OUTPUTS - 1], inputs[0],
                     bytes_of(ibert_input(0), batch, seq_len)) == 0);
    }
    for (i = 0; i < IBERT_NUM_INPUTS; i++) {
        free(whole[i]);
    }
    for (i = 0; i < IBERT_NUM_OUTPUTS; i++) {
        free(whole[MOST + i]);
    }
    return status == IBERT_OK;
}

static void ask(void) {
    ibert_shape shape;
    const int32_t index = (int32_t)next(7) - 2;
    CHECK((ibert_input(index) != NULL) == (index >= 0 && index < IBERT_NUM_INPUTS));
    CHECK((ibert_output(index) != NULL) == (index >= 0 && index < IBERT_NUM_OUTPUTS));
    CHECK((ibert_get_shape(index, &shape) == IBERT_OK) ==
          (index >= 0 && index < ibert_num_shapes()));
    CHECK(ibert_get_shape(index, NULL) == IBERT_ERROR_NULL_POINTER);
    CHECK(ibert_find_shape(1, 1, NULL) == IBERT_ERROR_NULL_POINTER);
    if (ibert_find_shape((int32_t)next(5) - 1, (int32_t)next(28) - 1, &shape) == IBERT_OK) {
        CHECK(shape.arena_bytes <= IBERT_ARENA_BYTES);
    }
    CHECK(strlen(ibert_strerror((int32_t)next(24) - 2)) > 0);
    CHECK(ibert_abi_version() == IBERT_ABI_VERSION && ibert_fingerprint() == IBERT_FINGERPRINT);
}

int main(int argc, char **argv) {
    int count = argc > 2 ? atoi(argv[2]) : 1000, ran = 0, k;
    state = 0x9E3779B97F4A7C15u ^ (uint64_t)(argc > 1 ? atoi(argv[1]) : 1);
    for (k = 0; k < count; k++) {
        caller *one = &callers[next(2)];
        if (next(5) == 0) {
            start(one);
        }
        ask();
        ran += call(one);
    }
    free(callers[0].arena);
    free(callers[1].arena);
    printf("%d\n", ran);
    return 0;
}
