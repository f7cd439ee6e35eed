/* The threads that run a library's kernels.
 *
 * Compiled into every library. A loader points TVM's hook __TVMBackendParallelLaunch of all
 * libraries in a process to ibert_parallel_launch of one of them, so that the process has one pool.
 * TVM's own has threads per calling thread, never fewer than at first, that spin for a sixth of a
 * second after each call.
 *
 * A loop is cut into several tasks per thread, and every thread takes the next one when it is done:
 * where rows without a token are skipped, equal shares would be unequal work.
 *
 * Kernels hold no floating point, and neither does this: it is compiled without its registers.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* TVM's interface: tvm/runtime/c_backend_api.h */
typedef struct {
    void *sync_handle;
    int32_t num_task;
} group_env;
typedef int (*task_function)(int task_id, group_env *env, void *data);

enum {
    MOST_THREADS = 255,
    TASKS_PER_THREAD = 4,
    SPINS_BEFORE_YIELD = 2000,
    YIELDS_BEFORE_SLEEP = 500, /* together well below a millisecond */
    CLOSED = 1 << 30,
};

static struct {
    task_function function;
    void *data;
    group_env env;
    atomic_int next_task;
    atomic_int failure;
} job;

/* Number of the job in the upper bits, threads besides the caller's that shall work on it in the
 * lower 8: one word, so that a thread that wakes late cannot mix two jobs. */
static atomic_uint_fast64_t ticket;
/* Threads besides the caller's that are at the job, and CLOSED while none may join: the caller
 * waits for those that joined and for no other, so a thread that the system does not run now (the
 * processors are busy with something else) holds nobody up. */
static atomic_int members = CLOSED;
static atomic_uchar asleep[MOST_THREADS];
static int started;
static pthread_mutex_t region = PTHREAD_MUTEX_INITIALIZER; /* held while a job is running */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static _Thread_local int wanted_threads = 1;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ __volatile__("yield");
#endif
}

static void work(void) {
    int task;
    while ((task = atomic_fetch_add_explicit(&job.next_task, 1, memory_order_relaxed)) <
           job.env.num_task) {
        int result = job.function(task, &job.env, job.data);
        if (result != 0) {
            atomic_store_explicit(&job.failure, result, memory_order_relaxed);
        }
    }
}

/* Wait for a job after `seen` that thread `index` shall work on. */
static uint_fast64_t next_ticket(uint_fast64_t seen, uint_fast64_t index) {
    uint_fast64_t now;
    for (int spin = 0; spin < SPINS_BEFORE_YIELD + YIELDS_BEFORE_SLEEP; spin++) {
        now = atomic_load_explicit(&ticket, memory_order_acquire);
        if (now != seen && index < (now & 0xff)) {
            return now;
        }
        if (spin < SPINS_BEFORE_YIELD) {
            relax();
        } else {
            sched_yield();
        }
    }
    pthread_mutex_lock(&gate);
    atomic_store(&asleep[index], 1); /* before it looks again: see the launch */
    while ((now = atomic_load(&ticket)) == seen || index >= (now & 0xff)) {
        pthread_cond_wait(&wake, &gate);
    }
    atomic_store(&asleep[index], 0);
    pthread_mutex_unlock(&gate);
    return now;
}

static void *serve(void *argument) {
    uint_fast64_t index = (uint_fast64_t)(uintptr_t)argument, seen = 0;
    for (;;) {
        seen = next_ticket(seen, index);
        /* The job that is open may be a later one than the ticket's, with fewer threads. */
        if (!(atomic_fetch_add(&members, 1) & CLOSED) &&
            index < (atomic_load(&ticket) & 0xff)) {
            work();
        }
        atomic_fetch_sub_explicit(&members, 1, memory_order_release);
    }
    return NULL;
}

/* A forked process has the thread that forked and no other. */
static void forget_threads(void) {
    started = 0;
    atomic_store(&ticket, 0);
    atomic_store(&members, CLOSED);
    for (int index = 0; index < MOST_THREADS; index++) {
        atomic_store(&asleep[index], 0);
    }
    pthread_mutex_init(&region, NULL);
    pthread_mutex_init(&gate, NULL);
    pthread_cond_init(&wake, NULL);
}

/* Start threads until there are `count`, or the system refuses; called with `region` held. */
static int start_threads(int count) {
    static int registered;
    sigset_t all, before;
    if (started >= count) {
        return count;
    }
    if (!registered) {
        registered = 1;
        pthread_atfork(NULL, NULL, forget_threads);
    }
    sigfillset(&all); /* signals are the caller's business */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < count) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, (void *)(uintptr_t)started) != 0) {
            break;
        }
        pthread_detach(thread);
        started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started < count ? started : count;
}

/* Set the number of threads, the calling one included, for what the calling thread runs. */
void ibert_set_threads(int count) {
    wanted_threads = count < 1 ? 1 : count > MOST_THREADS ? MOST_THREADS : count;
}

/* Number of threads that were started besides the callers'. */
int ibert_started_threads(void) { return started; }

/* Run the body of a parallel loop: TVMBackendParallelLaunch. */
int ibert_parallel_launch(task_function function, void *data, int num_task) {
    group_env alone = {NULL, 1};
    int others = wanted_threads - 1;
    if (others < 1 || num_task == 1) {
        return function(0, &alone, data);
    }
    /* Another thread's kernel has the processors: do not add more threads than were asked for. */
    if (pthread_mutex_trylock(&region) != 0) {
        return function(0, &alone, data);
    }
    others = start_threads(others);
    job.function = function;
    job.data = data;
    job.env.sync_handle = NULL;
    job.env.num_task = num_task > 0 ? num_task : (others + 1) * TASKS_PER_THREAD;
    atomic_store_explicit(&job.next_task, 0, memory_order_relaxed);
    atomic_store_explicit(&job.failure, 0, memory_order_relaxed);
    atomic_fetch_and(&members, ~CLOSED); /* before the ticket, which calls the threads */
    atomic_store(&ticket, (((atomic_load(&ticket) >> 8) + 1) << 8) | (uint_fast64_t)others);
    for (int index = 0; index < others; index++) {
        if (atomic_load(&asleep[index])) {
            pthread_mutex_lock(&gate);
            pthread_cond_broadcast(&wake);
            pthread_mutex_unlock(&gate);
            break;
        }
    }
    work();
    atomic_fetch_or(&members, CLOSED);
    for (int spin = 0; atomic_load_explicit(&members, memory_order_acquire) != CLOSED; spin++) {
        if (spin < SPINS_BEFORE_YIELD) {
            relax();
        } else {
            sched_yield();
        }
    }
    int failure = atomic_load_explicit(&job.failure, memory_order_relaxed);
    pthread_mutex_unlock(&region);
    return failure;
}
