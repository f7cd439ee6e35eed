/* Executed instructions of an emulated program, counted exactly: a plugin for QEMU (ABI version 1).
 *
 *     qemu-arm -plugin count.so,config=FILE program
 *
 * Every straight run of instructions (a part of a translation block, cut at the sites below) has a
 * counter that the translated code increments itself. Nothing is sampled, and nothing depends on
 * time: the same program gives the same numbers. A conditional instruction whose condition is false
 * counts as executed.
 *
 * The plugin knows neither instruction sets nor symbols; whoever writes the configuration does
 * (counting.py). Lines, addresses in hexadecimal:
 *
 *     out PATH                 where the result goes, as JSON
 *     call ADDRESS NEXT        a call instruction, and the address behind it
 *     entry ADDRESS INDEX REC  first instruction of watched function INDEX; REC 1: record in it
 *     start ADDRESS            record from this instruction on, this one included
 *     stop ADDRESS             record up to this instruction, this one excluded
 *
 * The result: instructions from entry to return of each call of a watched function, what it calls
 * included, in the order of the returns; and how often each run was executed while recording
 * (always, if nothing says where to record). */

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* QEMU's plugin interface, as far as it is used; the emulator exports these functions. */
typedef uint64_t qemu_plugin_id_t;
typedef struct {
    const char *target_name;
    struct {
        int min, cur;
    } version;
    bool system_emulation;
    struct {
        int smp_vcpus, max_vcpus;
    } system;
} qemu_info_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { QEMU_PLUGIN_CB_NO_REGS };
enum { QEMU_PLUGIN_INLINE_ADD_U64 };
typedef void (*at_vcpu_t)(qemu_plugin_id_t, unsigned int);
typedef void (*at_translation_t)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*at_execution_t)(unsigned int, void *);
typedef void (*at_exit_t)(qemu_plugin_id_t, void *);
void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t, at_vcpu_t);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, at_translation_t);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, at_execution_t, int, void *);
void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *, int, void *, uint64_t);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, at_exit_t, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = 1;

/* What happens when an address is executed. */
typedef struct {
    uint64_t address;
    uint64_t next; /* of a call: where it returns to */
    int function;  /* of an entry */
    bool call, returned, entry, recorded, start, stop;
} site_t;

/* A straight run of instructions. */
typedef struct {
    uint64_t address;
    uint64_t instructions;
    uint64_t executions;     /* incremented by translated code */
    uint64_t when_recording; /* executions when recording began */
    uint64_t recorded;
} run_t;

/* Addresses (and a second key) to objects: open addressing, never shrinks. */
typedef struct {
    void **slots;
    size_t size, used;
} table_t;

typedef struct {
    int function;
    size_t depth; /* calls that had not returned at its entry */
    uint64_t at_entry;
    bool recorded;
} watch_t;

typedef struct {
    int function;
    unsigned int level;
    uint64_t instructions;
} result_t;

#define LARGEST_DEPTH 4096
#define LARGEST_WATCHES 256

static table_t sites, runs;
static char *out_path;
static unsigned int vcpus;
static uint64_t total; /* incremented by translated code */
static bool always = true, overflow;
static unsigned int recording;
static uint64_t returns[LARGEST_DEPTH];
static size_t depth;
static watch_t watches[LARGEST_WATCHES];
static size_t watched;
static result_t *results;
static size_t num_results, room_for_results;

static void *checked(void *memory) {
    if (memory == NULL) {
        fputs("count: out of memory\n", stderr);
        abort();
    }
    return memory;
}

/* Both kinds of object begin with the address; runs have the length as second key. */
static size_t slot_of(const table_t *table, uint64_t address, uint64_t second) {
    size_t slot = (size_t)((address + second * 977) * 0x9e3779b97f4a7c15u >> 20);
    for (slot &= table->size - 1; table->slots[slot] != NULL; slot = (slot + 1) & (table->size - 1)) {
        const run_t *object = table->slots[slot];
        if (object->address == address && (table == &sites || object->instructions == second)) {
            break;
        }
    }
    return slot;
}

static void *find(const table_t *table, uint64_t address, uint64_t second) {
    return table->size == 0 ? NULL : table->slots[slot_of(table, address, second)];
}

static void insert(table_t *table, void *object, uint64_t second) {
    if (2 * table->used >= table->size) {
        table_t old = *table;
        table->size = old.size == 0 ? 1024 : 2 * old.size;
        table->slots = checked(calloc(table->size, sizeof(void *)));
        for (size_t i = 0; i < old.size; i++) {
            if (old.slots[i] != NULL) {
                const run_t *moved = old.slots[i];
                uint64_t key = table == &sites ? 0 : moved->instructions;
                table->slots[slot_of(table, moved->address, key)] = old.slots[i];
            }
        }
        free(old.slots);
    }
    table->slots[slot_of(table, *(const uint64_t *)object, second)] = object;
    table->used++;
}

static site_t *site_at(uint64_t address) {
    site_t *site = find(&sites, address, 0);
    if (site == NULL) {
        site = checked(calloc(1, sizeof *site));
        site->address = address;
        insert(&sites, site, 0);
    }
    return site;
}

static void begin_recording(void) {
    if (recording++ == 0) {
        for (size_t i = 0; i < runs.size; i++) {
            run_t *run = runs.slots[i];
            if (run != NULL) {
                run->when_recording = run->executions;
            }
        }
    }
}

static void end_recording(void) {
    if (recording > 0 && --recording == 0) {
        for (size_t i = 0; i < runs.size; i++) {
            run_t *run = runs.slots[i];
            if (run != NULL) {
                run->recorded += run->executions - run->when_recording;
            }
        }
    }
}

static void begin_watch(const site_t *site) {
    /* A loop may branch back to the first instruction of its function: that is no call. */
    for (size_t i = watched; i > 0 && watches[i - 1].depth == depth; i--) {
        if (watches[i - 1].function == site->function) {
            return;
        }
    }
    if (watched == LARGEST_WATCHES) {
        overflow = true;
        return;
    }
    watches[watched++] = (watch_t){site->function, depth, total, site->recorded};
    if (site->recorded) {
        begin_recording();
    }
}

static void end_watch(void) {
    const watch_t *watch = &watches[--watched];
    if (num_results == room_for_results) {
        room_for_results = room_for_results == 0 ? 1024 : 2 * room_for_results;
        results = checked(realloc(results, room_for_results * sizeof *results));
    }
    results[num_results++] =
        (result_t){watch->function, (unsigned int)watched, total - watch->at_entry};
    if (watch->recorded) {
        end_recording();
    }
}

/* Execution is behind a call: if that is the innermost call, or one around it, it has returned.
 * A conditional call that is not taken "returns" at once. */
static void leave_calls(uint64_t address) {
    size_t level = depth;
    while (level > 0 && returns[level - 1] != address) {
        level--;
    }
    if (level == 0) {
        return;
    }
    depth = level - 1;
    while (watched > 0 && watches[watched - 1].depth > depth) {
        end_watch();
    }
}

static void at_site(unsigned int vcpu, void *data) {
    const site_t *site = data;
    (void)vcpu;
    if (site->returned) {
        leave_calls(site->address);
    }
    if (site->stop) {
        end_recording();
    }
    if (site->start) {
        begin_recording();
    }
    if (site->entry) {
        begin_watch(site);
    }
    if (site->call) {
        if (depth == LARGEST_DEPTH) {
            overflow = true;
        } else {
            returns[depth++] = site->next;
        }
    }
}

static void count_run(struct qemu_plugin_insn *first, uint64_t instructions) {
    uint64_t address = qemu_plugin_insn_vaddr(first);
    run_t *run = find(&runs, address, instructions);
    if (run == NULL) {
        run = checked(calloc(1, sizeof *run));
        run->address = address;
        run->instructions = instructions;
        insert(&runs, run, instructions);
    }
    qemu_plugin_register_vcpu_insn_exec_inline(first, QEMU_PLUGIN_INLINE_ADD_U64,
                                               &run->executions, 1);
    qemu_plugin_register_vcpu_insn_exec_inline(first, QEMU_PLUGIN_INLINE_ADD_U64, &total,
                                               instructions);
}

/* Callbacks of an instruction run before its counters are incremented, so that an instruction at a
 * site is not yet counted when its site is reached. */
static void at_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
    size_t count = qemu_plugin_tb_n_insns(block);
    struct qemu_plugin_insn *first = NULL;
    uint64_t instructions = 0;
    (void)id;
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        site_t *site = find(&sites, qemu_plugin_insn_vaddr(instruction), 0);
        if (first != NULL && site != NULL) {
            count_run(first, instructions);
            first = NULL;
        }
        if (site != NULL) {
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, at_site, QEMU_PLUGIN_CB_NO_REGS,
                                                   site);
        }
        if (first == NULL) {
            first = instruction;
            instructions = 0;
        }
        instructions++;
    }
    if (first != NULL) {
        count_run(first, instructions);
    }
}

static void at_vcpu(qemu_plugin_id_t id, unsigned int index) {
    (void)id;
    (void)index;
    vcpus++;
}

static void write_result(FILE *file) {
    fprintf(file, "{\"vcpus\": %u, \"overflow\": %s, \"recording\": %u, \"executed\": %" PRIu64,
            vcpus, overflow ? "true" : "false", recording, total);
    fputs(", \"open\": [", file);
    for (size_t i = 0; i < watched; i++) {
        fprintf(file, "%s%d", i == 0 ? "" : ", ", watches[i].function);
    }
    fputs("],\n\"calls\": [", file);
    for (size_t i = 0; i < num_results; i++) {
        fprintf(file, "%s\n[%d, %u, %" PRIu64 "]", i == 0 ? "" : ",", results[i].function,
                results[i].level, results[i].instructions);
    }
    fputs("],\n\"runs\": [", file);
    const char *separator = "";
    for (size_t i = 0; i < runs.size; i++) {
        const run_t *run = runs.slots[i];
        if (run == NULL) {
            continue;
        }
        uint64_t executions = always ? run->executions : run->recorded;
        if (executions > 0) {
            fprintf(file, "%s\n[%" PRIu64 ", %" PRIu64 ", %" PRIu64 "]", separator, run->address,
                    run->instructions, executions);
            separator = ",";
        }
    }
    fputs("]}\n", file);
}

static void at_exit(qemu_plugin_id_t id, void *data) {
    unsigned int open = recording;
    (void)id;
    (void)data;
    while (recording > 0) {
        end_recording();
    }
    recording = open;
    FILE *file = fopen(out_path, "w");
    if (file == NULL) {
        perror(out_path);
        return;
    }
    write_result(file);
    if (fclose(file) != 0) {
        perror(out_path);
    }
}

static bool read_line(char *line) {
    uint64_t address, next;
    int function, recorded;
    line[strcspn(line, "\n")] = '\0';
    if (strncmp(line, "out ", 4) == 0) {
        free(out_path);
        out_path = checked(strdup(line + 4));
    } else if (sscanf(line, "call %" SCNx64 " %" SCNx64, &address, &next) == 2) {
        site_t *site = site_at(address);
        site->call = true;
        site->next = next;
        site_at(next)->returned = true;
    } else if (sscanf(line, "entry %" SCNx64 " %d %d", &address, &function, &recorded) == 3) {
        site_t *site = site_at(address);
        site->entry = true;
        site->function = function;
        site->recorded = recorded != 0;
        always = always && recorded == 0;
    } else if (sscanf(line, "start %" SCNx64, &address) == 1) {
        site_at(address)->start = true;
        always = false;
    } else if (sscanf(line, "stop %" SCNx64, &address) == 1) {
        site_at(address)->stop = true;
        always = false;
    } else {
        return false;
    }
    return true;
}

static bool read_configuration(const char *path) {
    char line[4096];
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        perror(path);
        return false;
    }
    bool good = true;
    while (good && fgets(line, sizeof line, file) != NULL) {
        good = read_line(line);
    }
    fclose(file);
    if (!good) {
        fprintf(stderr, "count: %s: cannot read: %s\n", path, line);
    }
    return good && out_path != NULL;
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
                               char **argv) {
    static const char option[] = "config=";
    if (info->version.min > qemu_plugin_version || info->version.cur < qemu_plugin_version) {
        fputs("count: this emulator has another plugin interface\n", stderr);
        return -1;
    }
    if (argc != 1 || strncmp(argv[0], option, sizeof option - 1) != 0) {
        fputs("count: expected exactly one option, config=FILE\n", stderr);
        return -1;
    }
    if (!read_configuration(argv[0] + sizeof option - 1)) {
        return -1;
    }
    qemu_plugin_register_vcpu_init_cb(id, at_vcpu);
    qemu_plugin_register_vcpu_tb_trans_cb(id, at_translation);
    qemu_plugin_register_atexit_cb(id, at_exit, NULL);
    return 0;
}
