/* What a page calls of a model: its inputs, outputs and weights lie in the memory that the page gives
 * the module, where they are exported, and one function runs a shape.
 *
 * INPUT_BYTES and OUTPUT_BYTES are what each input and output has room for, MESSAGE_BYTES what the
 * words of an error have, TEXT_BYTES and TOKENS what the tokenizer has, where there is one; PAIRS is
 * defined if it takes two texts.
 */
#include "ibert_model.h"

static IBERT_ALIGNED uint8_t arena[IBERT_ARENA_BYTES];
IBERT_ALIGNED uint8_t inputs[IBERT_NUM_INPUTS][INPUT_BYTES];
IBERT_ALIGNED uint8_t outputs[IBERT_NUM_OUTPUTS][OUTPUT_BYTES];
/* What ended a worker, in UTF-8. */
uint8_t message[MESSAGE_BYTES];

__attribute__((export_name("run"))) int32_t run_shape(int32_t batch, int32_t seq_len) {
    ibert_context context;
    const void *given_inputs[IBERT_NUM_INPUTS];
    void *given_outputs[IBERT_NUM_OUTPUTS];
    size_t input_bytes[IBERT_NUM_INPUTS], output_bytes[IBERT_NUM_OUTPUTS];
    int32_t i, status;
    for (i = 0; i < IBERT_NUM_INPUTS; i++) {
        given_inputs[i] = inputs[i];
        input_bytes[i] = INPUT_BYTES;
    }
    for (i = 0; i < IBERT_NUM_OUTPUTS; i++) {
        given_outputs[i] = outputs[i];
        output_bytes[i] = OUTPUT_BYTES;
    }
    status = ibert_init(&context, IBERT_ABI_VERSION, IBERT_FINGERPRINT, arena, sizeof arena);
    return status != IBERT_OK ? status
                              : ibert_run(&context, batch, seq_len, given_inputs, input_bytes,
                                          given_outputs, output_bytes);
}

#ifdef TEXT_BYTES
uint8_t text[TEXT_BYTES];
int32_t ids[TOKENS], types[TOKENS];
/* Some tokenizers take a text as one word: of 8 KB, where there is a limit. */
static IBERT_ALIGNED uint8_t words[16 * IBERT_TOKENIZER_WORK_BYTES];

/* The number of ids, or a status below 0. */
__attribute__((export_name("tokenize"))) int32_t tokenize_text(int32_t bytes) {
    int32_t count, status;
    status = ibert_tokenize((const char *)text, (size_t)bytes, ids, TOKENS, &count, words,
                            sizeof words);
    return status == IBERT_OK ? count : -status;
}

#ifdef PAIRS
/* The same of two texts, one behind the other. */
__attribute__((export_name("tokenize_pair"))) int32_t tokenize_texts(int32_t bytes, int32_t more) {
    const char *const first = (const char *)text;
    int32_t count, status;
    status = ibert_tokenize_pair(first, (size_t)bytes, first + bytes, (size_t)more, ids, types,
                                 TOKENS, &count, words, sizeof words);
    return status == IBERT_OK ? count : -status;
}
#endif
#endif
