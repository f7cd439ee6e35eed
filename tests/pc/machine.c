/* The program of the emulated PC: calls a library once and prints what it computed.
 *
 * There is no operating system. image.py puts the library, its memory and a `job` into the image;
 * the result leaves through the parallel port, which the emulator writes to a file.
 */
#include <stddef.h>
#include <stdint.h>

enum { MOST_BUFFERS = 16, CONTEXT_BYTES = 256, FIRST_INTERFACE = 1, FAULT = -1000, NO_ROOM = -1 };
enum { PRINTER = 0x378, PRINTER_STATUS = 0x379, PRINTER_CONTROL = 0x37a, POWER = 0x8900 };

/* Of ibert_model.h. */
typedef struct {
    int32_t batch;
    int32_t seq_len;
    size_t arena_bytes;
    int32_t num_kernels;
} ibert_shape;

/* What image.py writes to JOB; `init` and `run` have other parameters in version 1. */
typedef struct {
    uint32_t (*abi_version)(void);
    int32_t (*find_shape)(int32_t, int32_t, ibert_shape *);
    uint64_t (*fingerprint)(void); /* NULL in version 1 */
    void *init;
    void *run;
    uint8_t *context;
    uint8_t *arena;
    size_t arena_bytes;
    int64_t batch, seq_len, inputs, outputs, printed;
    void *buffers[MOST_BUFFERS];
    size_t sizes[MOST_BUFFERS];
} job_t;

#define JOB ((job_t *)0x108000)

typedef int32_t init_1(void *, uint32_t, void *, size_t);
typedef int32_t init_3(void *, uint32_t, uint64_t, void *, size_t);
typedef int32_t run_1(void *, int32_t, int32_t, const void *const *, void *const *);
typedef int32_t run_3(void *, int32_t, int32_t, const void *const *, const size_t *, void *const *,
                      const size_t *);

/* At 0x100000 and 16 bytes behind: where boot.s goes to. */
__asm__(".section .entry, \"ax\"\n jmp enter\n .org 16\n jmp fault\n .text");

static void write_port(uint16_t port, uint8_t value) {
    __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static uint8_t read_port(uint16_t port) {
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

/* The emulator's clock counts instructions. */
static uint64_t instructions(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}

static void print(const void *memory, size_t bytes) {
    const uint8_t *next = memory;
    for (; bytes; bytes--) {
        write_port(PRINTER, *next++);
        write_port(PRINTER_CONTROL, 0x0d); /* select, init, strobe */
        write_port(PRINTER_CONTROL, 0x0c);
        read_port(PRINTER_STATUS); /* acknowledges */
    }
}

static _Noreturn void stop(void) {
    const char *word;
    for (word = "Shutdown"; *word; word++) {
        write_port(POWER, (uint8_t)*word);
    }
    for (;;) {
    }
}

static void report(int32_t status, uint64_t count) {
    print(&status, sizeof status);
    print(&count, sizeof count);
}

/* What libraries call of the C library. */
void *memset(void *to, int value, size_t bytes) {
    void *result = to;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
    return result;
}

void *memcpy(void *to, const void *from, size_t bytes) {
    void *result = to;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
    return result;
}

/* Variables of the only thread: see image.py. */
void *__tls_get_addr(const uint64_t *variable) { return (void *)(variable[0] + variable[1]); }

/* What the library starts and stops threads with, of which nothing asks here for more than one. */
static int no_threads(void) { __asm__ volatile("ud2"); return 0; }
#define NO_THREADS(name) int name(void) __attribute__((alias("no_threads")))
NO_THREADS(__register_atfork);
NO_THREADS(pthread_cond_broadcast);
NO_THREADS(pthread_cond_wait);
NO_THREADS(pthread_create);
NO_THREADS(pthread_detach);
NO_THREADS(pthread_mutex_lock);
NO_THREADS(pthread_mutex_trylock);
NO_THREADS(pthread_mutex_unlock);
NO_THREADS(pthread_once);
NO_THREADS(pthread_sigmask);
NO_THREADS(sched_yield);
NO_THREADS(sigfillset);

/* And what describes the board, which nobody asks of the emulated PC. */
#define NO_BOARD(name) NO_THREADS(name)
NO_BOARD(close);
NO_BOARD(getauxval);
NO_BOARD(open);
NO_BOARD(read);
NO_BOARD(strchr);
NO_BOARD(strstr);
NO_BOARD(sysconf);
NO_BOARD(uname);

_Noreturn void fault(uint64_t exception) {
    report(FAULT - (int32_t)exception, 0);
    stop();
}

_Noreturn void enter(void) {
    job_t *job = JOB;
    int32_t batch = (int32_t)job->batch, seq_len = (int32_t)job->seq_len, status;
    uint32_t version = job->abi_version();
    const void *const *inputs = (const void *const *)job->buffers;
    void **outputs = job->buffers + job->inputs;
    uint64_t begin = 0, end = 0;
    ibert_shape shape;
    int64_t index;

    status = job->find_shape(batch, seq_len, &shape);
    if (status == 0 && shape.arena_bytes > job->arena_bytes) {
        status = NO_ROOM;
    }
    if (status == 0) {
        /* Nothing may depend on what the memory holds before: -128 in every byte is the hardest. */
        memset(job->context, 0x80, CONTEXT_BYTES);
        memset(job->arena, 0x80, shape.arena_bytes);
        status = version == FIRST_INTERFACE
                     ? ((init_1 *)job->init)(job->context, version, job->arena, shape.arena_bytes)
                     : ((init_3 *)job->init)(job->context, version, job->fingerprint(), job->arena,
                                             shape.arena_bytes);
    }
    if (status == 0) {
        begin = instructions();
        status = version == FIRST_INTERFACE
                     ? ((run_1 *)job->run)(job->context, batch, seq_len, inputs, outputs)
                     : ((run_3 *)job->run)(job->context, batch, seq_len, inputs, job->sizes,
                                           outputs, job->sizes + job->inputs);
        end = instructions();
    }
    report(status, end - begin);
    if (status != 0 || !job->printed) {
        stop();
    }
    for (index = job->inputs; index < job->inputs + job->outputs; index++) {
        print(job->buffers[index], job->sizes[index]);
    }
    stop();
}
