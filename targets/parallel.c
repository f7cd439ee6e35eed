/* The threads that run a library's kernels.
 *
 * Compiled into every library whose machine has threads. A loader points TVM's hook
 * __TVMBackendParallelLaunch of all libraries in a process to ibert_parallel_launch of one of them,
 * so that the process has one pool.
 * TVM's own has threads per calling thread, never fewer than at first, that spin for a sixth of a
 * second after each call.
 *
 * Callers that run at the same time have a team of threads each, a part of the pool. How many
 * threads a caller may have is up to the loader, which knows how many callers there are.
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
    MOST_TEAMS = 32,
    TASKS_PER_THREAD = 4,
    SPINS_BEFORE_YIELD = 2000,
    YIELDS_BEFORE_SLEEP = 500, /* together well below a millisecond */
    OPEN = 1 << 30,
};

typedef struct {
    task_function function;
    void *data;
    group_env env;
    atomic_int next_task;
    atomic_int failure;
    /* Number of the job in the upper bits, threads besides the caller's that shall work on it in
     * the lower 8: one word, so that a thread that wakes late cannot mix two jobs. */
    atomic_uint_fast64_t ticket;
    /* Threads besides the caller's that are at the job, and OPEN while more may join: the caller
     * waits for those that joined and for no other, so a thread that the system does not run now
     * (the processors are busy with something else) holds nobody up. */
    atomic_int members;
    atomic_uchar asleep[MOST_THREADS];
    int started;
    pthread_mutex_t region; /* held while a job is running */
    pthread_mutex_t gate;
    pthread_cond_t wake;
} __attribute__((aligned(128))) team_state; /* two cache lines: callers do not disturb each other */

static const team_state idle_team = {
    .region = PTHREAD_MUTEX_INITIALIZER,
    .gate = PTHREAD_MUTEX_INITIALIZER,
    .wake = PTHREAD_COND_INITIALIZER,
};
static team_state teams[MOST_TEAMS] = {[0 ... MOST_TEAMS - 1] = {
    .region = PTHREAD_MUTEX_INITIALIZER,
    .gate = PTHREAD_MUTEX_INITIALIZER,
    .wake = PTHREAD_COND_INITIALIZER,
}};
static _Thread_local int wanted_threads = 1;
/* The team that ran the calling thread's last loop: its threads are awake. */
static _Thread_local int last_team;
/* Whether the calling thread is in a loop: one inside of it runs in that thread alone. */
static _Thread_local int inside;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ __volatile__("yield");
#endif
}

static void work(team_state *team) {
    int task;
    while ((task = atomic_fetch_add_explicit(&team->next_task, 1, memory_order_relaxed)) <
           team->env.num_task) {
        int result = team->function(task, &team->env, team->data);
        if (result != 0) {
            atomic_store_explicit(&team->failure, result, memory_order_relaxed);
        }
    }
}

/* Wait for a job after `seen` that thread `index` of a team shall work on. */
static uint_fast64_t next_ticket(team_state *team, uint_fast64_t seen, uint_fast64_t index) {
    uint_fast64_t now;
    for (int spin = 0; spin < SPINS_BEFORE_YIELD + YIELDS_BEFORE_SLEEP; spin++) {
        now = atomic_load_explicit(&team->ticket, memory_order_acquire);
        if (now != seen && index < (now & 0xff)) {
            return now;
        }
        if (spin < SPINS_BEFORE_YIELD) {
            relax();
        } else {
            sched_yield();
        }
    }
    pthread_mutex_lock(&team->gate);
    atomic_store(&team->asleep[index], 1); /* before it looks again: see the launch */
    while ((now = atomic_load(&team->ticket)) == seen || index >= (now & 0xff)) {
        pthread_cond_wait(&team->wake, &team->gate);
    }
    atomic_store(&team->asleep[index], 0);
    pthread_mutex_unlock(&team->gate);
    return now;
}

static void *serve(void *argument) {
    uint_fast64_t number = (uint_fast64_t)(uintptr_t)argument, seen = 0;
    uint_fast64_t index = number % MOST_THREADS;
    team_state *team = &teams[number / MOST_THREADS];
    inside = 1; /* all that it ever runs is tasks of loops */
    for (;;) {
        seen = next_ticket(team, seen, index);
        /* The job that is open may be a later one than the ticket's, with fewer threads. */
        if ((atomic_fetch_add(&team->members, 1) & OPEN) &&
            index < (atomic_load(&team->ticket) & 0xff)) {
            work(team);
        }
        atomic_fetch_sub_explicit(&team->members, 1, memory_order_release);
    }
    return NULL;
}

/* A forked process has the thread that forked and no other. */
static void forget_threads(void) {
    for (int number = 0; number < MOST_TEAMS; number++) {
        teams[number] = idle_team;
    }
}

static void register_fork(void) { pthread_atfork(NULL, NULL, forget_threads); }

/* Start threads of a team until it has `count`, or the system refuses; called with its `region`
 * held. */
static int start_threads(team_state *team, int count) {
    static pthread_once_t registered = PTHREAD_ONCE_INIT;
    sigset_t all, before;
    if (team->started >= count) {
        return count;
    }
    pthread_once(&registered, register_fork);
    sigfillset(&all); /* signals are the caller's business */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (team->started < count) {
        pthread_t thread;
        uintptr_t number = (uintptr_t)((team - teams) * MOST_THREADS + team->started);
        if (pthread_create(&thread, NULL, serve, (void *)number) != 0) {
            break;
        }
        pthread_detach(thread);
        team->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return team->started < count ? team->started : count;
}

/* The idle team that the calling thread shall have, its `region` locked; NULL if all have work. */
static team_state *idle(void) {
    for (int turn = 0; turn < MOST_TEAMS; turn++) {
        int number = (last_team + turn) % MOST_TEAMS;
        if (pthread_mutex_trylock(&teams[number].region) == 0) {
            last_team = number;
            return &teams[number];
        }
    }
    return NULL;
}

/* Set the number of threads, the calling one included, for what the calling thread runs. */
void ibert_set_threads(int count) {
    wanted_threads = count < 1 ? 1 : count > MOST_THREADS ? MOST_THREADS : count;
    last_team = 0; /* a caller that is alone always has the same one */
}

/* Number of threads that were started besides the callers'. */
int ibert_started_threads(void) {
    int count = 0;
    for (int number = 0; number < MOST_TEAMS; number++) {
        count += teams[number].started;
    }
    return count;
}

/* Run the body of a parallel loop: TVMBackendParallelLaunch. */
int ibert_parallel_launch(task_function function, void *data, int num_task) {
    group_env alone = {NULL, 1};
    int others = wanted_threads - 1;
    if (others < 1 || num_task == 1 || inside) {
        return function(0, &alone, data);
    }
    team_state *team = idle();
    if (team == NULL) {
        return function(0, &alone, data);
    }
    inside = 1;
    others = start_threads(team, others);
    team->function = function;
    team->data = data;
    team->env.sync_handle = NULL;
    team->env.num_task = num_task > 0 ? num_task : (others + 1) * TASKS_PER_THREAD;
    atomic_store_explicit(&team->next_task, 0, memory_order_relaxed);
    atomic_store_explicit(&team->failure, 0, memory_order_relaxed);
    atomic_fetch_or(&team->members, OPEN); /* before the ticket, which calls the threads */
    atomic_store(&team->ticket,
                 (((atomic_load(&team->ticket) >> 8) + 1) << 8) | (uint_fast64_t)others);
    for (int index = 0; index < others; index++) {
        if (atomic_load(&team->asleep[index])) {
            pthread_mutex_lock(&team->gate);
            pthread_cond_broadcast(&team->wake);
            pthread_mutex_unlock(&team->gate);
            break;
        }
    }
    work(team);
    atomic_fetch_and(&team->members, ~OPEN);
    for (int spin = 0; atomic_load_explicit(&team->members, memory_order_acquire) != 0; spin++) {
        if (spin < SPINS_BEFORE_YIELD) {
            relax();
        } else {
            sched_yield();
        }
    }
    int failure = atomic_load_explicit(&team->failure, memory_order_relaxed);
    inside = 0;
    pthread_mutex_unlock(&team->region);
    return failure;
}

#ifdef IBERT_WITHOUT_RUNTIME
/* What kernels call, which TVM's runtime sets otherwise. */
int (*__TVMBackendParallelLaunch)(task_function, void *, int) = ibert_parallel_launch;
#endif
