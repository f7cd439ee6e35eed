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
 * In WebAssembly the threads are workers, which a page starts and which call `serve`. There is one
 * caller, which may be one that browsers do not let sleep.
 *
 * Kernels hold no floating point, and neither does this: it is compiled without its registers.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#ifndef __wasm__
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#endif

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
#ifndef __wasm__
    int started;
    pthread_mutex_t region; /* held while a job is running */
    pthread_mutex_t gate;
    pthread_cond_t wake;
#endif
} __attribute__((aligned(128))) team_state; /* two cache lines: callers do not disturb each other */

/* Of each system: how a loop that waits goes on, how a thread sleeps, and who calls. */
#ifdef __wasm__
enum {
    SPINS_BEFORE_SLEEP = 100000, /* a tenth of a millisecond or two */
    SPINS_PER_MILLISECOND = 1000000,
    NAPS_PER_MILLISECOND = 20,
};

static team_state teams[1];
static int wanted_threads = 1;
/* Of the caller: whether it may sleep, and the milliseconds that it waits for a worker. */
static int may_sleep, patience;

static inline int goes_on_spinning(int spin) { return spin < SPINS_BEFORE_SLEEP; }

/* A part of a wait for members at work; 0 if it has lasted too long: a worker may be gone. */
static int waits(team_state *team, int64_t spin) {
    if (spin < SPINS_BEFORE_YIELD) {
        return 1;
    }
    if (!may_sleep) {
        return spin < (int64_t)patience * SPINS_PER_MILLISECOND;
    }
    __builtin_wasm_memory_atomic_wait32((int *)&team->members, atomic_load(&team->members),
                                        1000000 / NAPS_PER_MILLISECOND);
    return spin < SPINS_BEFORE_YIELD + (int64_t)patience * NAPS_PER_MILLISECOND;
}

static void sleep_on(team_state *team, uint_fast64_t ticket) {
    __builtin_wasm_memory_atomic_wait64((long long *)&team->ticket, (long long)ticket, -1);
}

static void wake(team_state *team) {
    __builtin_wasm_memory_atomic_notify((int *)&team->ticket, MOST_THREADS);
}

static void lock(team_state *team) { (void)team; }
static void unlock(team_state *team) { (void)team; }
#else
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

static inline void pause_in(int64_t spin) {
    if (spin < SPINS_BEFORE_YIELD) {
        relax();
    } else {
        sched_yield();
    }
}

static inline int goes_on_spinning(int spin) {
    pause_in(spin);
    return spin < SPINS_BEFORE_YIELD + YIELDS_BEFORE_SLEEP;
}

static inline int waits(team_state *team, int64_t spin) {
    (void)team;
    pause_in(spin);
    return 1;
}

static void sleep_on(team_state *team, uint_fast64_t ticket) {
    (void)ticket;
    pthread_cond_wait(&team->wake, &team->gate);
}

static void wake(team_state *team) {
    pthread_mutex_lock(&team->gate);
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->gate);
}

static void lock(team_state *team) { pthread_mutex_lock(&team->gate); }
static void unlock(team_state *team) { pthread_mutex_unlock(&team->gate); }
#endif

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

/* Whether `now`, a ticket, is of a job after `seen` that thread `index` shall work on. */
static inline int calls(uint_fast64_t now, uint_fast64_t seen, uint_fast64_t index) {
    return now != seen && index < (now & 0xff);
}

/* Wait for a job after `seen` that thread `index` of a team shall work on. */
static uint_fast64_t next_ticket(team_state *team, uint_fast64_t seen, uint_fast64_t index) {
    uint_fast64_t now;
    for (int spin = 0; goes_on_spinning(spin); spin++) {
        now = atomic_load_explicit(&team->ticket, memory_order_acquire);
        if (calls(now, seen, index)) {
            return now;
        }
    }
    lock(team);
    atomic_store(&team->asleep[index], 1); /* before it looks again: see the launch */
    while (!calls(now = atomic_load(&team->ticket), seen, index)) {
        sleep_on(team, now);
    }
    atomic_store(&team->asleep[index], 0);
    unlock(team);
    return now;
}

/* Work on jobs as thread `index` of a team, for ever. */
static void attend(team_state *team, uint_fast64_t index) {
    for (uint_fast64_t seen = 0;;) {
        seen = next_ticket(team, seen, index);
        /* The job that is open may be a later one than the ticket's, with fewer threads. */
        if ((atomic_fetch_add(&team->members, 1) & OPEN) &&
            index < (atomic_load(&team->ticket) & 0xff)) {
            work(team);
        }
        atomic_fetch_sub_explicit(&team->members, 1, memory_order_release);
    }
}

/* Run the body of a parallel loop in the calling thread and `others` of a team. */
static int launch(team_state *team, task_function function, void *data, int num_task, int others) {
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
            wake(team);
            break;
        }
    }
    work(team);
    atomic_fetch_and(&team->members, ~OPEN);
    for (int64_t spin = 0; atomic_load_explicit(&team->members, memory_order_acquire) != 0; spin++) {
        if (!waits(team, spin)) {
            return -1;
        }
    }
    return atomic_load_explicit(&team->failure, memory_order_relaxed);
}

#ifdef __wasm__
/* Set the number of threads, the calling one included, and how the calling one waits for others. */
__attribute__((export_name("share"))) void share(int threads, int sleeps, int milliseconds) {
    wanted_threads = threads;
    may_sleep = sleeps;
    patience = milliseconds;
}

/* What worker `index` does until it is ended. */
__attribute__((export_name("serve"))) void serve(int index) {
    attend(&teams[0], (uint_fast64_t)index);
}

/* What a worker calls that did not return from a task. */
__attribute__((export_name("abandon"))) void abandon(void) {
    atomic_store(&teams[0].failure, -1);
    atomic_fetch_sub(&teams[0].members, 1);
}

int ibert_parallel_launch(task_function function, void *data, int num_task) {
    group_env alone = {NULL, 1};
    return wanted_threads < 2 || num_task == 1
               ? function(0, &alone, data)
               : launch(&teams[0], function, data, num_task, wanted_threads - 1);
}
#else
static void *serve(void *argument) {
    const uintptr_t number = (uintptr_t)argument;
    inside = 1; /* all that it ever runs is tasks of loops */
    attend(&teams[number / MOST_THREADS], number % MOST_THREADS);
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
    int failure;
    if (wanted_threads < 2 || num_task == 1 || inside) {
        return function(0, &alone, data);
    }
    team_state *team = idle();
    if (team == NULL) {
        return function(0, &alone, data);
    }
    inside = 1;
    failure = launch(team, function, data, num_task, start_threads(team, wanted_threads - 1));
    inside = 0;
    pthread_mutex_unlock(&team->region);
    return failure;
}
#endif

#ifdef IBERT_WITHOUT_RUNTIME
/* What kernels call, which TVM's runtime sets otherwise. */
int (*__TVMBackendParallelLaunch)(task_function, void *, int) = ibert_parallel_launch;
#endif
