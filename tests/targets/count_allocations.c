#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#define LARGE 4096
static volatile long counting, counted;
static void note(size_t size) { if (counting && size >= LARGE) counted++; }
#define NEXT(type, name) static type next; if (!next) next = (type)dlsym(RTLD_NEXT, name)
typedef void *(*malloc_t)(size_t);
typedef void *(*aligned_t)(size_t, size_t);
typedef int (*posix_t)(void **, size_t, size_t);
void *malloc(size_t size) { NEXT(malloc_t, "malloc"); note(size); return next(size); }
void *aligned_alloc(size_t to, size_t size) {
    NEXT(aligned_t, "aligned_alloc"); note(size); return next(to, size);
}
int posix_memalign(void **p, size_t to, size_t size) {
    NEXT(posix_t, "posix_memalign"); note(size); return next(p, to, size);
}
long count_allocations(int on) { long result = counted; counted = 0; counting = on; return result; }
