/* A stand-in for NVRTC and nvFatbin: what it "compiles" is the options and the source, as text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char source[4096], made[8192];
    size_t size;
} text;

int nvrtcVersion(int *major, int *minor) {
    *major = 12;
    *minor = 9;
    return 0;
}

int nvrtcGetNumSupportedArchs(int *count) {
    *count = 2;
    return 0;
}

int nvrtcGetSupportedArchs(int *numbers) {
    numbers[0] = 75;
    numbers[1] = 80;
    return 0;
}

int nvrtcCreateProgram(text **made, const char *source, const char *name, int headers,
                       const char *const *contents, const char *const *names) {
    int found = 0;
    for (int i = 0; i < headers; i++) {
        found += strcmp(names[i], "stdint.h") == 0 && strstr(contents[i], "int8_t;") != NULL;
    }
    *made = calloc(1, sizeof **made);
    snprintf((*made)->source, sizeof (*made)->source, "%s", source);
    return found != 1 || strcmp(name, "kernels.cu") != 0;
}

int nvrtcCompileProgram(text *program, int count, const char *const *options) {
    if (strstr(program->source, "missing") != NULL) {
        strcpy(program->made, "kernels.cu(1): error: identifier \"missing\" is undefined\n");
    } else {
        for (int i = 0; i < count; i++) {
            strcat(strcat(program->made, options[i]), " ");
        }
    }
    program->size = strlen(program->made) + 1;
    return strstr(program->source, "missing") != NULL ? 6 : 0;
}

static int size_of(const text *made, size_t *size) {
    *size = made->size;
    return 0;
}

static int copy_of(const text *made, char *to) {
    memcpy(to, made->made, made->size);
    return 0;
}

int nvrtcGetProgramLogSize(text *program, size_t *size) { return size_of(program, size); }
int nvrtcGetProgramLog(text *program, char *log) { return copy_of(program, log); }
int nvrtcGetCUBINSize(text *program, size_t *size) { return size_of(program, size); }
int nvrtcGetCUBIN(text *program, char *cubin) { return copy_of(program, cubin); }
int nvrtcGetPTXSize(text *program, size_t *size) { return size_of(program, size); }
int nvrtcGetPTX(text *program, char *ptx) { return copy_of(program, ptx); }

int nvFatbinCreate(text **made, const char **options, size_t count) {
    *made = calloc(1, sizeof **made);
    return count != 2 || strcmp(options[1], "-compress=false") != 0;
}

int nvFatbinAddCubin(text *image, const void *cubin, size_t size, const char *number,
                     const char *name) {
    image->size += (size_t)sprintf(image->made + image->size, "[elf %s: %.*s]", number, (int)size,
                                   (const char *)cubin);
    return name != NULL;
}

int nvFatbinAddPTX(text *image, const char *ptx, size_t size, const char *number, const char *name,
                   const char *options) {
    image->size += (size_t)sprintf(image->made + image->size, "[ptx %s: %s]", number, ptx);
    return name != NULL || options != NULL || ptx[size - 1] != 0;
}

int nvFatbinSize(text *image, size_t *size) { return size_of(image, size); }
int nvFatbinGet(text *image, char *to) { return copy_of(image, to); }
