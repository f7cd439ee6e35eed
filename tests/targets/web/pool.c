/* Loops that the pool of WebAssembly runs, for tests: `launch` is called as kernels call it. */
#include <stdatomic.h>
#include <stdint.h>

enum { STACK_BYTES = 1 << 16, TASKS = 64, COUNT = 0, TOGETHER = 1, TRAP = 2, STAY = 3 };

int ibert_parallel_launch(int (*function)(int, void *, void *), void *data, int num_task);

uint8_t message[256];
_Atomic int32_t runs[TASKS];
static atomic_int others;

/* Workers' stacks lie behind the caller's, which is the first of the memory. */
static int is_worker(void) { return (uintptr_t)__builtin_frame_address(0) > STACK_BYTES; }

static int task(int number, void *env, void *data) {
    const int kind = *(const int *)data;
    (void)env;
    atomic_fetch_add(&runs[number], 1);
    if (kind == COUNT) {
        return 0;
    }
    if (is_worker()) {
        atomic_fetch_add(&others, 1);
        if (kind == TRAP) {
            __builtin_trap();
        }
        while (kind == STAY) {
            atomic_load(&others);
        }
    }
    while (atomic_load(&others) == 0) { /* so that a worker comes by */
    }
    return 0;
}

__attribute__((export_name("loop"))) int loop(int kind, int tasks) {
    atomic_store(&others, 0);
    for (int i = 0; i < TASKS; i++) {
        atomic_store(&runs[i], 0);
    }
    return ibert_parallel_launch(task, &kind, tasks);
}
