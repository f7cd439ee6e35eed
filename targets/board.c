/* What a library tells about the machine that it was loaded on, to a program on another machine.
 *
 * `ibert run --rpc` loads a library in a server on a board and has nothing there but TVM's runtime.
 * These functions have the calling convention of TVM's function interface, so that the server finds
 * them in the library like a compiled kernel. No floating point, no library but libc.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
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

/* Write where the process has TVM's runtime from, next to which its version is found. */
static int64_t write_runtime(char *text, int64_t size) {
    char line[1024];
    FILE *maps = fopen("/proc/self/maps", "r");
    int64_t used = 0;
    while (maps != NULL && used == 0 && fgets(line, sizeof line, maps) != NULL) {
        char *path = strchr(line, '/');
        if (path != NULL && strstr(path, "libtvm_runtime.so") != NULL) {
            used = snprintf(text, (size_t)size, "runtime %s", path); /* with its line feed */
        }
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return used < size ? used : 0;
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
    char *text = (char *)bytes->data + bytes->byte_offset;
    int64_t size = bytes->shape[0], used;
    struct utsname name;
    if (uname(&name) != 0) {
        name.machine[0] = '?';
        name.machine[1] = 0;
    }
    used = snprintf(text, (size_t)size, "machine %s\nprocessors %ld\ncapabilities %lx %lx\n",
                    name.machine, sysconf(_SC_NPROCESSORS_ONLN), getauxval(HARDWARE_CAPABILITIES),
                    getauxval(MORE_HARDWARE_CAPABILITIES));
    used += write_runtime(text + used, size - used);
    used += snprintf(text + used, (size_t)(size - used), "cpuinfo\n");
    int file = open("/proc/cpuinfo", O_RDONLY);
    if (file >= 0) {
        ssize_t got;
        while (used < size && (got = read(file, text + used, (size_t)(size - used))) > 0) {
            used += got;
        }
        close(file);
    }
    answer(result, used);
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
