/* Calls that change a folder, counted; the n-th fails, or is the last thing that the process does.
 *
 * Loaded before the C library (LD_PRELOAD) by a process and by all that it starts. They share the
 * file that FAULT_CONTROL names. Counted is what names the folder, or writes to a file in it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct control {
    int armed;
    int at;      /* which call, from 1; 0 for none */
    int code;    /* of errno; 0 for SIGKILL */
    int calls;   /* how many there were */
    pid_t owner; /* who is killed, with the process that calls */
    char folder[PATH_MAX];
};

static struct control *control;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("FAULT_CONTROL");
    int file = name == NULL ? -1 : open(name, O_RDWR | O_CLOEXEC);
    if (file >= 0) {
        void *memory = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        control = memory == MAP_FAILED ? NULL : memory;
        close(file);
    }
}

size_t fault_bytes(void) { return sizeof *control; }

void fault_arm(const char *folder, int at, int code) {
    strncpy(control->folder, folder, sizeof control->folder - 1);
    control->at = at;
    control->code = code;
    control->calls = 0;
    control->owner = getpid();
    __atomic_store_n(&control->armed, 1, __ATOMIC_SEQ_CST);
}

int fault_disarm(void) {
    __atomic_store_n(&control->armed, 0, __ATOMIC_SEQ_CST);
    return control->calls;
}

/* Whether a path, absolute or not, lies in the folder. */
static int inside(int directory, const char *path) {
    char whole[2 * PATH_MAX], link[64];
    ssize_t size = 0;
    size_t length = strlen(control->folder);
    if (path == NULL) {
        return 0;
    }
    if (path[0] != '/') {
        if (directory == AT_FDCWD) {
            if (getcwd(whole, PATH_MAX) == NULL) {
                return 0;
            }
            size = (ssize_t)strlen(whole);
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
            size = readlink(link, whole, PATH_MAX);
            if (size < 0) {
                return 0;
            }
        }
        whole[size++] = '/';
    }
    snprintf(whole + size, sizeof whole - (size_t)size, "%s", path);
    return strncmp(whole, control->folder, length) == 0 &&
           (whole[length] == '/' || whole[length] == 0);
}

static int inside_file(int file) {
    char link[64], whole[PATH_MAX];
    ssize_t size;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    size = readlink(link, whole, sizeof whole - 1);
    if (size < 0) {
        return 0;
    }
    whole[size] = 0;
    return inside(AT_FDCWD, whole);
}

/* Count a call; 1 if it has to fail. */
static int counted(int matters) {
    int number;
    if (!matters) {
        return 0;
    }
    number = __atomic_add_fetch(&control->calls, 1, __ATOMIC_SEQ_CST);
    if (number != control->at) {
        return 0;
    }
    if (control->code == 0) {
        kill(control->owner, SIGKILL);
        kill(getpid(), SIGKILL);
    }
    errno = control->code;
    return 1;
}

#define ARMED (control != NULL && __atomic_load_n(&control->armed, __ATOMIC_SEQ_CST))
#define NEXT(type, name, ...)                                     \
    static type (*next)(__VA_ARGS__);                             \
    if (next == NULL) {                                           \
        next = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name);      \
    }

#define OF_FILE(type, name, declared, given, ...)                 \
    type name declared {                                          \
        NEXT(type, #name, __VA_ARGS__)                            \
        if (ARMED && counted(inside_file(file))) {                \
            return -1;                                            \
        }                                                         \
        return next given;                                        \
    }

OF_FILE(ssize_t, write, (int file, const void *data, size_t size), (file, data, size), int,
        const void *, size_t)
OF_FILE(ssize_t, pwrite, (int file, const void *data, size_t size, off_t at),
        (file, data, size, at), int, const void *, size_t, off_t)
OF_FILE(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t at),
        (file, data, size, at), int, const void *, size_t, off64_t)
OF_FILE(ssize_t, writev, (int file, const struct iovec *parts, int count), (file, parts, count),
        int, const struct iovec *, int)
OF_FILE(int, fsync, (int file), (file), int)
OF_FILE(int, ftruncate, (int file, off_t size), (file, size), int, off_t)
OF_FILE(int, ftruncate64, (int file, off64_t size), (file, size), int, off64_t)
OF_FILE(int, fchmod, (int file, mode_t mode), (file, mode), int, mode_t)

#define OF_PATH(name, declared, given, matters, ...)              \
    int name declared {                                           \
        NEXT(int, #name, __VA_ARGS__)                             \
        if (ARMED && counted(matters)) {                          \
            return -1;                                            \
        }                                                         \
        return next given;                                        \
    }

OF_PATH(rename, (const char *a, const char *b), (a, b),
        inside(AT_FDCWD, a) || inside(AT_FDCWD, b), const char *, const char *)
OF_PATH(renameat, (int d, const char *a, int e, const char *b), (d, a, e, b),
        inside(d, a) || inside(e, b), int, const char *, int, const char *)
OF_PATH(renameat2, (int d, const char *a, int e, const char *b, unsigned f), (d, a, e, b, f),
        inside(d, a) || inside(e, b), int, const char *, int, const char *, unsigned)
OF_PATH(mkdir, (const char *a, mode_t mode), (a, mode), inside(AT_FDCWD, a), const char *, mode_t)
OF_PATH(mkdirat, (int d, const char *a, mode_t mode), (d, a, mode), inside(d, a), int,
        const char *, mode_t)
OF_PATH(unlink, (const char *a), (a), inside(AT_FDCWD, a), const char *)
OF_PATH(unlinkat, (int d, const char *a, int f), (d, a, f), inside(d, a), int, const char *, int)
OF_PATH(rmdir, (const char *a), (a), inside(AT_FDCWD, a), const char *)
OF_PATH(symlink, (const char *a, const char *b), (a, b), inside(AT_FDCWD, b), const char *,
        const char *)
OF_PATH(chmod, (const char *a, mode_t mode), (a, mode), inside(AT_FDCWD, a), const char *, mode_t)
OF_PATH(fchmodat, (int d, const char *a, mode_t mode, int f), (d, a, mode, f), inside(d, a), int,
        const char *, mode_t, int)
OF_PATH(truncate, (const char *a, off_t size), (a, size), inside(AT_FDCWD, a), const char *, off_t)
OF_PATH(truncate64, (const char *a, off64_t size), (a, size), inside(AT_FDCWD, a), const char *,
        off64_t)

/* Opening to write, by each of its names. */
#define WRITING (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)
#define OPEN(name)                                                         \
    int name(const char *path, int flags, ...) {                           \
        mode_t mode = 0;                                                   \
        va_list more;                                                      \
        NEXT(int, #name, const char *, int, ...)                           \
        va_start(more, flags);                                             \
        mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                      \
        if (ARMED && counted((flags & WRITING) && inside(AT_FDCWD, path))) { \
            return -1;                                                     \
        }                                                                  \
        return next(path, flags, mode);                                    \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                       \
    int name(int directory, const char *path, int flags, ...) {            \
        mode_t mode = 0;                                                   \
        va_list more;                                                      \
        NEXT(int, #name, int, const char *, int, ...)                      \
        va_start(more, flags);                                             \
        mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                      \
        if (ARMED && counted((flags & WRITING) && inside(directory, path))) { \
            return -1;                                                     \
        }                                                                  \
        return next(directory, path, flags, mode);                         \
    }
OPENAT(openat)
OPENAT(openat64)

/* Of stdio, in tools: it writes by calls of its own that cannot be seen from here. */
#define FOPEN(name)                                                        \
    FILE *name(const char *path, const char *mode) {                       \
        NEXT(FILE *, #name, const char *, const char *)                    \
        if (ARMED && counted(mode[0] != 'r' && inside(AT_FDCWD, path))) {  \
            return NULL;                                                   \
        }                                                                  \
        return next(path, mode);                                           \
    }
FOPEN(fopen)
FOPEN(fopen64)

size_t fwrite(const void *data, size_t size, size_t count, FILE *stream) {
    NEXT(size_t, "fwrite", const void *, size_t, size_t, FILE *)
    if (ARMED && counted(inside_file(fileno(stream)))) {
        return 0;
    }
    return next(data, size, count, stream);
}
