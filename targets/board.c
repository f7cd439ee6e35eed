/* What a library tells about the machine that it was loaded on, to a program on another machine.
 *
 * `ibert run --rpc` loads a library in a server on a board and has nothing there but TVM's runtime.
 * These functions have the calling convention of TVM's function interface, so that the server finds
 * them in the library like a compiled kernel; of a library with the plain C interface, one calls
 * that. No floating point, no library but libc.
 */
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/utsname.h>
#include <unistd.h>

/* TVM's interface: tvm/ffi/c_api.h */
typedef struct {
    int32_t type_index;
    uint32_t padding;
    union {
        int64_t integer;
        void *pointer;
    } value;
} any;
typedef struct {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} tensor;
typedef struct {
    uint64_t references;
    int32_t type_index;
    uint32_t padding;
    void *deleter;
} object;

enum { NONE = 0, INTEGER = 1, TENSOR_POINTER = 7, TENSOR_OBJECT = 70 };
enum { HARDWARE_CAPABILITIES = 16, MORE_HARDWARE_CAPABILITIES = 26 };

extern const unsigned char ibert_weights[];
int ibert_parallel_launch(int (*function)(int, void *, void *), void *data, int num_task);
void ibert_set_threads(int count);
/* Set by TVM when it loads the library; absent where no kernel is parallel. */
extern void *__TVMBackendParallelLaunch __attribute__((weak));

static void answer(any *result, int64_t value) {
    result->type_index = INTEGER;
    result->padding = 0;
    result->value.integer = value;
}

static tensor *tensor_of(const any *argument) {
    if (argument->type_index == TENSOR_POINTER) {
        return argument->value.pointer;
    }
    if (argument->type_index == TENSOR_OBJECT) { /* the tensor lies behind the object's header */
        return (tensor *)((object *)argument->value.pointer + 1);
    }
    return NULL;
}

/* Text that is being written. Not stdio: its printing can print floats, and this library shall need
 * nothing that computes with any. */
typedef struct {
    char *start;
    int64_t used, size;
} text;

static void put(text *out, const char *word) {
    for (; *word != 0 && out->used < out->size; word++) {
        out->start[out->used++] = *word;
    }
}

static void put_number(text *out, unsigned long number, unsigned base) {
    char digits[24];
    int place = (int)sizeof digits - 1;
    digits[place] = 0;
    do {
        digits[--place] = "0123456789abcdef"[number % base];
        number /= base;
    } while (number != 0);
    put(out, digits + place);
}

/* Append what fits of a file. */
static void put_file(text *out, const char *path) {
    int file = open(path, O_RDONLY);
    ssize_t got;
    while (file >= 0 && out->used < out->size &&
           (got = read(file, out->start + out->used, (size_t)(out->size - out->used))) > 0) {
        out->used += got;
    }
    if (file >= 0) {
        close(file);
    }
}

/* Append where the process has TVM's runtime from, next to which its version is found. */
static void put_runtime(text *out) {
    char line[1024];
    int64_t length = 0;
    int file = open("/proc/self/maps", O_RDONLY), found = 0;
    char letter;
    while (file >= 0 && !found && read(file, &letter, 1) == 1) {
        if (letter != '\n') {
            if (length < (int64_t)sizeof line - 1) {
                line[length++] = letter;
            }
            continue;
        }
        line[length] = 0;
        length = 0;
        char *path = strchr(line, '/');
        if (path != NULL && strstr(path, "libtvm_runtime.so") != NULL) {
            put(out, "runtime ");
            put(out, path);
            put(out, "\n");
            found = 1;
        }
    }
    if (file >= 0) {
        close(file);
    }
}

/* ibert_board(bytes): describe the machine as text in a tensor of bytes; its length, or -1.
 *
 * Lines "machine NAME", "processors N", "capabilities HEX HEX" (of the auxiliary vector), "runtime
 * PATH", "cpuinfo", and what fits of /proc/cpuinfo. */
int __tvm_ffi_ibert_board(void *self, const any *arguments, int32_t count, any *result) {
    (void)self;
    tensor *bytes = count == 1 ? tensor_of(arguments) : NULL;
    if (bytes == NULL || bytes->ndim != 1 || bytes->shape[0] < 4096) {
        answer(result, -1);
        return 0;
    }
    text out = {(char *)bytes->data + bytes->byte_offset, 0, bytes->shape[0]};
    struct utsname name;
    put(&out, "machine ");
    put(&out, uname(&name) == 0 ? name.machine : "?");
    put(&out, "\nprocessors ");
    put_number(&out, (unsigned long)sysconf(_SC_NPROCESSORS_ONLN), 10);
    put(&out, "\ncapabilities ");
    put_number(&out, getauxval(HARDWARE_CAPABILITIES), 16);
    put(&out, " ");
    put_number(&out, getauxval(MORE_HARDWARE_CAPABILITIES), 16);
    put(&out, "\n");
    put_runtime(&out);
    put(&out, "cpuinfo\n");
    put_file(&out, "/proc/cpuinfo");
    answer(result, out.used);
    return 0;
}

/* ibert_threads(n): run kernels on the library's own pool, as a loader on this machine would. */
int __tvm_ffi_ibert_threads(void *self, const any *arguments, int32_t count, any *result) {
    (void)self;
    if (count == 1 && arguments->type_index == INTEGER) {
        if (&__TVMBackendParallelLaunch != NULL) {
            __TVMBackendParallelLaunch = (void *)ibert_parallel_launch;
        }
        ibert_set_threads((int)arguments->value.integer);
    }
    result->type_index = NONE;
    result->padding = 0;
    result->value.integer = 0;
    return 0;
}

/* ibert_parameters(): address of the weights in the mapped library, as an integer. */
int __tvm_ffi_ibert_parameters(void *self, const any *arguments, int32_t count, any *result) {
    (void)self;
    (void)arguments;
    (void)count;
    answer(result, (int64_t)(intptr_t)ibert_weights);
    return 0;
}

#ifdef IBERT_WITHOUT_RUNTIME
enum { ABI_VERSION = 3, MOST_TENSORS = 64, CALL_TENSORS = 3 };

/* The plain C interface: aot/ibert_model.h.in. */
uint64_t ibert_fingerprint(void);
int32_t ibert_init(void *, uint32_t, uint64_t, void *, size_t);
int32_t ibert_run(void *, int32_t, int32_t, const void *const *, const size_t *, void *const *,
                  const size_t *);

/* ibert_call(batch, seq_len, inputs, context, arena, tensor ...): run a shape on so many tensors
 * with inputs, and behind them those of outputs; gives the status of the C interface, or -1.
 *
 * Every call makes the context anew, which takes no time. */
int __tvm_ffi_ibert_call(void *self, const any *arguments, int32_t count, any *result) {
    void *addresses[MOST_TENSORS];
    size_t sizes[MOST_TENSORS];
    int32_t tensors = count - CALL_TENSORS;
    (void)self;
    answer(result, -1);
    if (tensors < 2 || tensors > MOST_TENSORS) {
        return 0;
    }
    for (int32_t index = 0; index < tensors; index++) {
        tensor *array = tensor_of(&arguments[CALL_TENSORS + index]);
        if (array == NULL) {
            return 0;
        }
        sizes[index] = (array->bits + 7) / 8;
        for (int32_t axis = 0; axis < array->ndim; axis++) {
            sizes[index] *= (size_t)array->shape[axis];
        }
        addresses[index] = (char *)array->data + array->byte_offset;
    }
    int64_t inputs = arguments[2].value.integer;
    if (inputs < 0 || inputs > tensors - 2) {
        return 0;
    }
    void **in = addresses + 2, **out = in + inputs;
    int32_t status = ibert_init(addresses[0], ABI_VERSION, ibert_fingerprint(), addresses[1],
                                sizes[1]);
    if (status == 0) {
        status = ibert_run(addresses[0], (int32_t)arguments[0].value.integer,
                           (int32_t)arguments[1].value.integer, (const void *const *)in, sizes + 2,
                           out, sizes + 2 + inputs);
    }
    answer(result, status);
    return 0;
}
#endif
