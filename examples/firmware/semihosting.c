/* Semihosting: a breakpoint with the operation in one register and its arguments behind the next
 * ("Semihosting for AArch32 and AArch64", Arm 2022; "RISC-V Semihosting", 2023). Without a debugger
 * attached the breakpoint is a fault. */
#include "semihosting.h"

enum {
  SYS_OPEN = 0x01,
  SYS_CLOSE = 0x02,
  SYS_WRITE0 = 0x04,
  SYS_WRITE = 0x05,
  SYS_READ = 0x06,
  SYS_SEEK = 0x0a,
  SYS_EXIT_EXTENDED = 0x20,
  ADP_STOPPED_APPLICATION_EXIT = 0x20026,
};

static int32_t call(uint32_t operation, const void *arguments) {
#if defined(__riscv)
  register uint32_t a0 __asm__("a0") = operation;
  register const void *a1 __asm__("a1") = arguments;
  /* What a debugger looks for: three instructions of four bytes, on one page. */
  __asm__ volatile(
      ".option push\n.option norvc\n.balign 16\n"
      "slli x0, x0, 0x1f\nebreak\nsrai x0, x0, 7\n.option pop"
      : "+r"(a0)
      : "r"(a1)
      : "memory");
  return (int32_t)a0;
#else
  register uint32_t r0 __asm__("r0") = operation;
  register const void *r1 __asm__("r1") = arguments;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return (int32_t)r0;
#endif
}

static size_t length(const char *text) {
  size_t count = 0;
  while (text[count] != '\0') ++count;
  return count;
}

void host_print(const char *text) {
  /* ":tt" for writing is the standard output; SYS_WRITE0 would be a debugger's own console. */
  static int32_t console = -1;
  if (console < 0) console = host_open(":tt", "w");
  if (console < 0 || host_write(console, text, length(text)) != 0) (void)call(SYS_WRITE0, text);
}

void host_print_integer(int32_t value) {
  /* Dividing is left to the compiler's runtime on a Cortex-M0, which has no instruction for it. */
  char digits[12];
  char *at = digits + sizeof digits - 1;
  uint32_t rest = value < 0 ? 0u - (uint32_t)value : (uint32_t)value;
  *at = '\0';
  do {
    *--at = (char)('0' + rest % 10);
    rest /= 10;
  } while (rest != 0);
  if (value < 0) *--at = '-';
  host_print(at);
}

void host_print_hex(uint32_t value) {
  char digits[11] = "0x00000000";
  for (int place = 9; place >= 2; --place, value >>= 4) digits[place] = "0123456789abcdef"[value & 15];
  host_print(digits);
}

int32_t host_open(const char *path, const char *mode) {
  /* The modes of fopen by number; those of this example are two. */
  const uint32_t number = mode[0] == 'w' ? 5u /* "wb" */ : 1u /* "rb" */;
  const uint32_t arguments[3] = {(uint32_t)path, number, length(path)};
  return call(SYS_OPEN, arguments);
}

int host_read(int32_t file, void *to, size_t size) {
  const uint32_t arguments[3] = {(uint32_t)file, (uint32_t)to, size};
  return call(SYS_READ, arguments) == 0 ? 0 : -1; /* what is returned are the bytes not read */
}

int host_seek(int32_t file, uint32_t offset) {
  const uint32_t arguments[2] = {(uint32_t)file, offset};
  return call(SYS_SEEK, arguments) == 0 ? 0 : -1;
}

int host_write(int32_t file, const void *from, size_t size) {
  const uint32_t arguments[3] = {(uint32_t)file, (uint32_t)from, size};
  return call(SYS_WRITE, arguments) == 0 ? 0 : -1;
}

void host_close(int32_t file) {
  const uint32_t arguments[1] = {(uint32_t)file};
  (void)call(SYS_CLOSE, arguments);
}

int host_read_file(const char *path, void *to, size_t size) {
  const int32_t file = host_open(path, "r");
  if (file < 0) return -1;
  const int status = host_read(file, to, size);
  host_close(file);
  return status;
}

int host_write_file(const char *path, const void *from, size_t size) {
  const int32_t file = host_open(path, "w");
  if (file < 0) return -1;
  const int status = host_write(file, from, size);
  host_close(file);
  return status;
}

void host_exit(int32_t status) {
  const uint32_t arguments[2] = {ADP_STOPPED_APPLICATION_EXIT, (uint32_t)status};
  (void)call(SYS_EXIT_EXTENDED, arguments);
  for (;;) {
  }
}
