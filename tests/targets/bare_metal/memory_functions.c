#include <stdio.h>
#include <stdlib.h>
#include <string.h>
void *own_memcpy(void *, const void *, size_t);
void *own_memmove(void *, const void *, size_t);
void *own_memset(void *, int, size_t);
#define COPY(name) void __aeabi_##name(void *, const void *, size_t)
#define SET(name) void __aeabi_##name(void *, size_t, int)
#define CLEAR(name) void __aeabi_##name(void *, size_t)
COPY(memcpy); COPY(memcpy4); COPY(memcpy8); COPY(memmove); COPY(memmove4); COPY(memmove8);
SET(memset); SET(memset4); SET(memset8); CLEAR(memclr); CLEAR(memclr4); CLEAR(memclr8);

static unsigned state = 7;
static unsigned next(unsigned below) {
    state = state * 1103515245u + 12345u;
    return (state >> 8) % below;
}

int main(void) {
    for (int k = 0; k < 6000; ++k) {
        const size_t count = next(70), to = next(20), from = next(20), size = 100;
        unsigned char *mine = malloc(size), *theirs = malloc(size), *source = malloc(from + count);
        for (size_t i = 0; i < size; ++i) mine[i] = theirs[i] = (unsigned char)next(256);
        for (size_t i = 0; i < from + count; ++i) source[i] = (unsigned char)next(256);
        const int value = (int)next(1000) - 300;
        void *result = mine + to;
        switch (next(15)) {
        case 0: result = own_memcpy(mine + to, source + from, count); break;
        case 1: __aeabi_memcpy(mine + to, source + from, count); break;
        case 2: __aeabi_memcpy4(mine + to, source + from, count); break;
        case 3: __aeabi_memcpy8(mine + to, source + from, count); break;
        case 4: result = own_memmove(mine + to, mine + from, count); goto moved;
        case 5: __aeabi_memmove(mine + to, mine + from, count); goto moved;
        case 6: __aeabi_memmove4(mine + to, mine + from, count); goto moved;
        case 7: __aeabi_memmove8(mine + to, mine + from, count); goto moved;
        case 8: result = own_memset(mine + to, value, count); goto filled;
        case 9: __aeabi_memset(mine + to, count, value); goto filled;
        case 10: __aeabi_memset4(mine + to, count, value); goto filled;
        case 11: __aeabi_memset8(mine + to, count, value); goto filled;
        case 12: __aeabi_memclr(mine + to, count); goto cleared;
        case 13: __aeabi_memclr4(mine + to, count); goto cleared;
        default: __aeabi_memclr8(mine + to, count); goto cleared;
        }
        memcpy(theirs + to, source + from, count);
        goto done;
    moved:
        memmove(theirs + to, theirs + from, count);
        goto done;
    filled:
        memset(theirs + to, value, count);
        goto done;
    cleared:
        memset(theirs + to, 0, count);
    done:
        if (memcmp(mine, theirs, size) != 0 || result != mine + to) return 1;
        free(mine), free(theirs), free(source);
    }
    return 0;
}
