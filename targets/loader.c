/* Opens a library as a program on the target would, and looks up what a runtime needs of it.
 *
 *     loader LIBRARY SYMBOL ...
 *
 * Every symbol that the library leaves open is resolved at once (RTLD_NOW), so that one which the
 * target's C library lacks is found where the library is made. A runtime's own functions are
 * offered by a second source file that is linked with this one.
 */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    void *library;
    int index, missing = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: loader LIBRARY SYMBOL ...\n");
        return 64;
    }
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    for (index = 2; index < argc; index++) {
        if (dlsym(library, argv[index]) == NULL) {
            fprintf(stderr, "it has no symbol %s\n", argv[index]);
            missing = 1;
        }
    }
    if (missing) {
        return 2;
    }
    printf("%d symbols\n", argc - 2);
    return 0;
}
