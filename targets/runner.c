/* Runs one call of a library that has the plain C interface, on the library's own machine.
 *
 *     runner LIBRARY PREFIX THREADS BATCH SEQ_LEN INPUTS OUTPUTS FILE BYTES FILE BYTES ...
 *
 * INPUTS files are read, OUTPUTS files are written; BYTES is the size of each. THREADS is 1 where
 * the library has none. Knows no model: the library says how much memory it needs. The exit status is 0, or 1 with the reason on stderr.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64, MOST_BUFFERS = 64, LONGEST_NAME = 64, ABI_VERSION = 3, CONTEXT_BYTES = 256 };
enum { FIRST_FILE = 8 }; /* of the arguments */

/* Of ibert_model.h, version 3; a context is smaller than CONTEXT_BYTES. */
typedef struct {
    int32_t batch;
    int32_t seq_len;
    size_t arena_bytes;
    int32_t num_kernels;
} ibert_shape;

static void *library;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* Address of a function; C has no cast from void *. */
static void find(const char *prefix, const char *part, void *function) {
    char name[LONGEST_NAME];
    void *address;
    snprintf(name, sizeof name, "%s_%s", prefix, part);
    address = dlsym(library, name);
    if (address == NULL) {
        fail("the library has no function", name);
    }
    memcpy(function, &address, sizeof address);
}

static void *aligned(size_t bytes) {
    void *memory;
    if (posix_memalign(&memory, ALIGNMENT, bytes ? bytes : 1) != 0) {
        fail("memory", "there is not enough");
    }
    return memory;
}

static void read_file(const char *path, void *memory, size_t bytes) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(memory, 1, bytes, file) != bytes) {
        fail("cannot read", path);
    }
    fclose(file);
}

static void write_file(const char *path, const void *memory, size_t bytes) {
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(memory, 1, bytes, file) != bytes || fclose(file) != 0) {
        fail("cannot write", path);
    }
}

int main(int argc, char **argv) {
    uint32_t (*version)(void);
    int32_t (*find_shape)(int32_t, int32_t, ibert_shape *);
    uint64_t (*fingerprint)(void);
    int32_t (*init)(void *, uint32_t, uint64_t, void *, size_t);
    int32_t (*run)(void *, int32_t, int32_t, const void *const *, const size_t *, void *const *,
                   const size_t *);
    void (*set_threads)(int);
    const char *(*describe)(int32_t);
    const char *prefix;
    void *buffers[MOST_BUFFERS], *context, *arena;
    size_t sizes[MOST_BUFFERS];
    ibert_shape shape;
    int32_t threads, batch, seq_len, inputs, outputs, index, status;

    if (argc < FIRST_FILE) {
        fail("usage", "runner LIBRARY PREFIX THREADS BATCH SEQ_LEN INPUTS OUTPUTS FILE BYTES ...");
    }
    prefix = argv[2];
    threads = atoi(argv[3]);
    batch = atoi(argv[4]);
    seq_len = atoi(argv[5]);
    inputs = atoi(argv[6]);
    outputs = atoi(argv[7]);
    if (inputs < 0 || outputs < 0 || inputs + outputs > MOST_BUFFERS ||
        argc != FIRST_FILE + 2 * (inputs + outputs)) {
        fail("usage", "FILE and BYTES for every input and every output");
    }
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fail("cannot load the library", dlerror());
    }
    find(prefix, "abi_version", &version);
    if (version() != ABI_VERSION) {
        fail("the library", "its interface has another version than this program");
    }
    find(prefix, "find_shape", &find_shape);
    find(prefix, "fingerprint", &fingerprint);
    find(prefix, "init", &init);
    find(prefix, "run", &run);
    find(prefix, "strerror", &describe);
    if (threads > 1) {
        find(prefix, "set_threads", &set_threads);
        set_threads(threads);
    }
    for (index = 0; index < inputs + outputs; index++) {
        sizes[index] = (size_t)strtoull(argv[FIRST_FILE + 1 + 2 * index], NULL, 10);
        buffers[index] = aligned(sizes[index]);
        if (index < inputs) {
            read_file(argv[FIRST_FILE + 2 * index], buffers[index], sizes[index]);
        }
    }
    status = find_shape(batch, seq_len, &shape);
    if (status != 0) {
        fail("find_shape", describe(status));
    }
    if (shape.batch != batch || shape.seq_len != seq_len) {
        fail("find_shape", "the library was not compiled for this very shape");
    }
    /* Nothing may depend on what the memory holds before: -128 in every byte is the hardest. */
    context = memset(aligned(CONTEXT_BYTES), 0x80, CONTEXT_BYTES);
    arena = memset(aligned(shape.arena_bytes), 0x80, shape.arena_bytes);
    status = init(context, ABI_VERSION, fingerprint(), arena, shape.arena_bytes);
    if (status != 0) {
        fail("init", describe(status));
    }
    status = run(context, batch, seq_len, (const void *const *)buffers, sizes, buffers + inputs,
                 sizes + inputs);
    if (status != 0) {
        fail("run", describe(status));
    }
    for (index = inputs; index < inputs + outputs; index++) {
        write_file(argv[FIRST_FILE + 2 * index], buffers[index], sizes[index]);
    }
    return 0;
}
