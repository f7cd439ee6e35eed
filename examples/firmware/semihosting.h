/* Talking to a debugger, or to QEMU, through semihosting: text, files, the exit status. */
#ifndef SEMIHOSTING_H
#define SEMIHOSTING_H

#include <stddef.h>
#include <stdint.h>

/* Print text, or a number; nothing here needs a C library. */
void host_print(const char *text);
void host_print_integer(int32_t value);
void host_print_hex(uint32_t value);

/* Read a whole file of `size` bytes, or write one; 0 if that worked, -1 if not. */
int host_read_file(const char *path, void *to, size_t size);
int host_write_file(const char *path, const void *from, size_t size);

/* The same for files that are read, or written, piece by piece. */
int32_t host_open(const char *path, const char *mode);
int host_read(int32_t file, void *to, size_t size);
int host_seek(int32_t file, uint32_t offset);
int host_write(int32_t file, const void *from, size_t size);
void host_close(int32_t file);

/* End the emulation with an exit status. */
__attribute__((noreturn)) void host_exit(int32_t status);

#endif
