/* Runs a model on a text or token ids and prints what comes out.
 *
 * TEXT, which the Makefile compiles in, is for packages with a tokenizer; SECOND is the other text of
 * a pair. Without them the ids are those of TOKENS; where the host has a file inputs.bin (all inputs
 * one after another, as ibert_model.h lists them) it is read instead, and the outputs are written to
 * outputs.bin. */
#include "board.h"
#include "ibert_model.h"
#include "semihosting.h"

#ifndef TOKENS
/* "hello, world!" in the vocabulary of BERT. */
#define TOKENS 101, 7592, 1010, 2088, 999, 102
#endif

/* Which of the shapes that the model was compiled for. */
#ifndef SHAPE
#define SHAPE 0
#endif

static IBERT_ALIGNED uint8_t arena[IBERT_ARENA_BYTES];
static uint64_t inputs[IBERT_INPUT_BYTES / 8], outputs[IBERT_OUTPUT_BYTES / 8];
static ibert_context context;
#ifdef TEXT
static int32_t text_work[(IBERT_TEXT_WORK_BYTES + 3) / 4];
#endif

#ifdef IBERT_FETCH_BYTES
/* Stands for a controller of SPI flash or an SD card: start would set its DMA going, and wait look at
 * the flag that it sets. Here the card is a file, and nothing is written before wait. */
#ifndef WEIGHTS
#define WEIGHTS "ibert_weights.bin"
#endif
static struct {
  int32_t card;
  uint32_t offset;
  size_t bytes;
  uint8_t *to;
} transfer;

static int32_t start_transfer(void *user, uint32_t offset, size_t bytes, void *to) {
  (void)user;
  if (bytes > IBERT_EXTERNAL_WEIGHT_BYTES || offset > IBERT_EXTERNAL_WEIGHT_BYTES - bytes) return 1;
  transfer.offset = offset;
  transfer.bytes = bytes;
  transfer.to = to;
  return 0;
}

static int32_t wait_for_transfer(void *user) {
  (void)user;
  return host_seek(transfer.card, transfer.offset) != 0 ||
         host_read(transfer.card, transfer.to, transfer.bytes) != 0;
}
#elif defined(IBERT_EXTERNAL_WEIGHT_BYTES)
extern const uint8_t external_weights[];
#endif

static const int32_t tokens[] = {TOKENS};
enum { NUM_TOKENS = sizeof tokens / sizeof tokens[0] };

static int32_t elements(const ibert_tensor *tensor, const ibert_shape *shape) {
  int32_t count = 1;
  for (int32_t axis = 0; axis < tensor->rank; ++axis) {
    const int32_t size = tensor->shape[axis];
    count *= size == IBERT_BATCH ? shape->batch : size == IBERT_SEQ_LEN ? shape->seq_len : size;
  }
  return count;
}

static int32_t entry_bytes(const ibert_tensor *tensor) {
  switch (tensor->type) {
    case IBERT_INT8:
    case IBERT_UINT8: return 1;
    case IBERT_INT16: return 2;
    case IBERT_INT64: return 8;
    default: return 4;
  }
}

static int32_t entry(const ibert_tensor *tensor, const void *values, int32_t index) {
  switch (tensor->type) {
    case IBERT_INT8: return ((const int8_t *)values)[index];
    case IBERT_UINT8: return ((const uint8_t *)values)[index];
    case IBERT_INT16: return ((const int16_t *)values)[index];
    case IBERT_INT64: return (int32_t)((const int64_t *)values)[index];
    default: return ((const int32_t *)values)[index];
  }
}

static void set_entry(const ibert_tensor *tensor, void *values, int32_t index, int32_t value) {
  switch (tensor->type) {
    case IBERT_INT8:
    case IBERT_UINT8: ((uint8_t *)values)[index] = (uint8_t)value; break;
    case IBERT_INT16: ((int16_t *)values)[index] = (int16_t)value; break;
    case IBERT_INT64: ((int64_t *)values)[index] = value; break;
    default: ((int32_t *)values)[index] = value;
  }
}

static int same(const char *a, const char *b) {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return *a == *b;
}

/* Checksum of zlib and Python's binascii.crc32. */
static uint32_t crc32(const uint8_t *bytes, size_t count) {
  uint32_t sum = ~0u;
  for (size_t index = 0; index < count; ++index) {
    sum ^= bytes[index];
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (0xedb88320u & -(sum & 1));
  }
  return ~sum;
}

/* Embedded ids in the first row, everything else padding. */
static int fill_inputs(void *const *places, const ibert_shape *shape) {
  if (NUM_TOKENS > shape->seq_len) {
    host_print("more tokens than the model was compiled for\n");
    return -1;
  }
  for (int32_t number = 0; number < IBERT_NUM_INPUTS; ++number) {
    const ibert_tensor *const tensor = ibert_input(number);
    const int32_t count = elements(tensor, shape);
    for (int32_t index = 0; index < count; ++index) {
      int32_t value = 0;
      if (same(tensor->name, "attention_mask")) value = index < NUM_TOKENS;
#ifdef IBERT_PAD_TOKEN_ID
      if (same(tensor->name, "input_ids"))
        value = index < NUM_TOKENS ? tokens[index] : IBERT_PAD_TOKEN_ID;
#endif
      set_entry(tensor, places[number], index, value);
    }
  }
  return 0;
}

static void print_output(const ibert_tensor *tensor, const void *values, int32_t count) {
  host_print(tensor->name);
  host_print(": ");
  host_print_integer(count);
  host_print(" integers, scale ");
  host_print(tensor->scale);
  host_print(", crc32 ");
  host_print_hex(crc32(values, (size_t)count * (size_t)entry_bytes(tensor)));
  host_print(":");
  for (int32_t index = 0; index < count && index < 8; ++index) {
    host_print(" ");
    host_print_integer(entry(tensor, values, index));
  }
  host_print(count > 8 ? " ...\n" : "\n");
}

int main(void) {
  ibert_shape shape;
  void *in[IBERT_NUM_INPUTS], *out[IBERT_NUM_OUTPUTS];
  int32_t status = ibert_get_shape(SHAPE, &shape);
  if (status != IBERT_OK) return status;

  size_t offset = 0, in_bytes[IBERT_NUM_INPUTS], out_bytes[IBERT_NUM_OUTPUTS];
  for (int32_t number = 0; number < IBERT_NUM_INPUTS; ++number) {
    const ibert_tensor *const tensor = ibert_input(number);
    in[number] = (uint8_t *)inputs + offset;
    in_bytes[number] = (size_t)(elements(tensor, &shape) * entry_bytes(tensor));
    offset += (in_bytes[number] + 7) / 8 * 8;
  }
  offset = 0;
  for (int32_t number = 0; number < IBERT_NUM_OUTPUTS; ++number) {
    const ibert_tensor *const tensor = ibert_output(number);
    out[number] = (uint8_t *)outputs + offset;
    out_bytes[number] = (size_t)(elements(tensor, &shape) * entry_bytes(tensor));
    offset += (out_bytes[number] + 7) / 8 * 8;
  }

  const int32_t file = host_open("inputs.bin", "r");
  if (file < 0) {
    if (fill_inputs(in, &shape) != 0) return 64;
  } else {
    for (int32_t number = 0; number < IBERT_NUM_INPUTS; ++number) {
      if (host_read(file, in[number], in_bytes[number]) != 0) {
        host_print("inputs.bin is too short\n");
        return 65;
      }
    }
    host_close(file);
  }

  status = ibert_init(&context, IBERT_ABI_VERSION, IBERT_FINGERPRINT, arena, sizeof arena);
#ifdef IBERT_FETCH_BYTES
  transfer.card = host_open(WEIGHTS, "r");
  if (status == IBERT_OK)
    status = ibert_set_fetch(&context, start_transfer, wait_for_transfer, NULL);
  if (status == IBERT_OK) status = ibert_check_weights(&context);
#elif defined(IBERT_EXTERNAL_WEIGHT_BYTES)
  if (status == IBERT_OK)
    status = ibert_set_weights(&context, external_weights, IBERT_EXTERNAL_WEIGHT_BYTES);
#endif
#ifdef SECOND
  if (status == IBERT_OK)
    status = ibert_embed_pair(&context, TEXT, sizeof TEXT - 1, SECOND, sizeof SECOND - 1, text_work,
                              sizeof text_work, out, out_bytes);
#elif defined(TEXT)
  if (status == IBERT_OK)
    status = ibert_embed_text(&context, TEXT, sizeof TEXT - 1, text_work, sizeof text_work, out,
                              out_bytes);
#else
  if (status == IBERT_OK)
    status = ibert_run(&context, shape.batch, shape.seq_len, (const void *const *)in, in_bytes, out,
                       out_bytes);
#endif
  if (status != IBERT_OK) {
    host_print(ibert_strerror(status));
    host_print("\n");
    return status;
  }

  const int32_t written = file < 0 ? -1 : host_open("outputs.bin", "w");
  for (int32_t number = 0; number < IBERT_NUM_OUTPUTS; ++number) {
    const ibert_tensor *const tensor = ibert_output(number);
    const int32_t count = elements(tensor, &shape);
    print_output(tensor, out[number], count);
    if (file >= 0 && host_write(written, out[number], (size_t)(count * entry_bytes(tensor))) != 0) {
      host_print("cannot write outputs.bin\n");
      return 66;
    }
  }
  if (file >= 0) host_close(written);
  host_print("stack used, by this program and the model: ");
  host_print_integer((int32_t)board_stack_used());
  host_print(" bytes, arena: ");
  host_print_integer(IBERT_ARENA_BYTES);
  host_print(" bytes\n");
  return 0;
}
