/* Random bytes to the tokenizer, each text and each result in memory of its exact size. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ibert_model.h"

static uint64_t state;

static uint32_t next(uint32_t bound) { /* xorshift64 */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % bound;
}

static const char *const PIECES[] = {"the ", "[MASK]", "[SEP", " ", "\xcc\x81", "\xcd\x85",
                                     "\xe1\x84\x80\xe1\x85\xa1", "\xf0\x9f\x98\x80", "\xed\xa0\x80",
                                     "\xe4\xb8\xad", "\xc3\xa9", "\xf4\x90\x80\x80", "'ll", "<mask>"};

static size_t fill(char *text, size_t room) {
    size_t used = 0;
    while (used < room) {
        if (next(3) > 0) {
            text[used++] = (char)next(256);
        } else {
            const char *piece = PIECES[next(sizeof PIECES / sizeof PIECES[0])];
            size_t length = strlen(piece);
            length = length < room - used ? length : room - used;
            memcpy(text + used, piece, length);
            used += length;
        }
    }
    return used;
}

int main(int argc, char **argv) {
    const long calls = argc > 2 ? atol(argv[2]) : 0;
    unsigned long tokens = 0;
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    for (long call = 0; call < calls; call++) {
        const size_t bytes = next(next(20) ? 80 : 2000);
        const int32_t capacity = (int32_t)next(40);
        const size_t work_bytes = IBERT_TOKENIZER_WORK_BYTES + next(20);
        char *text = malloc(bytes ? bytes : 1);
        int32_t *ids = malloc((size_t)capacity * sizeof *ids + 1), count = -1, status;
        uint8_t *work = malloc(work_bytes);
        if (text == NULL || ids == NULL || work == NULL) {
            return 2;
        }
        fill(text, bytes);
        status = ibert_tokenize(bytes ? text : NULL, bytes, ids, capacity, &count, work, work_bytes);
        if (status == IBERT_OK) {
            if (count < 0 || count > capacity) {
                return 3;
            }
            for (int32_t index = 0; index < count; index++) {
                tokens += (unsigned long)ids[index] + 1;
            }
        } else if (status != IBERT_ERROR_TEXT && status != IBERT_ERROR_BUFFER_SIZE) {
            return 4;
        }
#ifdef PAIRS
        {
            const size_t length = next(bytes + 1);
            char *const first = malloc(length + 1), *const second = malloc(bytes - length + 1);
            int32_t *const types = malloc((size_t)capacity * sizeof *types + 1);
            if (first == NULL || second == NULL || types == NULL) {
                return 2;
            }
            memcpy(first, text, length);
            memcpy(second, text + length, bytes - length);
            status = ibert_tokenize_pair(length ? first : NULL, length, second, bytes - length, ids,
                                         next(4) ? types : NULL, capacity, &count, work, work_bytes);
            if (status == IBERT_OK) {
                if (count < 0 || count > capacity) {
                    return 3;
                }
                for (int32_t index = 0; index < count; index++) {
                    tokens += (unsigned long)ids[index] + 1;
                }
            } else if (status != IBERT_ERROR_TEXT && status != IBERT_ERROR_BUFFER_SIZE) {
                return 4;
            }
            free(first);
            free(second);
            free(types);
        }
#endif
        free(text);
        free(ids);
        free(work);
    }
    printf("%lu\n", tokens);
    return 0;
}
