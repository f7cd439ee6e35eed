#include "fibre.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)

// System V ABI: a callee preserves rbx, rbp and r12 to r15.
asm(R"(
  .text
  .globl on_host_switch
  .hidden on_host_switch
  .type on_host_switch, @function
on_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size on_host_switch, . - on_host_switch
)");

namespace on_host {

void* prepare_fibre(void* stack, size_t size, void (*entry)()) {
  uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + size) & ~uintptr_t{15};
  // At a function's entry the stack pointer is 8 less than a multiple of 16: a return address (of
  // nothing, 0) lies there. Below it what `ret` jumps to, and six registers.
  auto* frame = reinterpret_cast<uintptr_t*>(top) - 8;
  std::memset(frame, 0, 8 * sizeof(*frame));
  frame[6] = reinterpret_cast<uintptr_t>(entry);
  return frame;
}

}  // namespace on_host

#elif defined(__aarch64__)

// AAPCS64: a callee preserves x19 to x28, the frame and link registers, and d8 to d15.
asm(R"(
  .text
  .globl on_host_switch
  .hidden on_host_switch
  .type on_host_switch, %function
on_host_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size on_host_switch, . - on_host_switch
)");

namespace on_host {

void* prepare_fibre(void* stack, size_t size, void (*entry)()) {
  uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + size) & ~uintptr_t{15};
  auto* frame = reinterpret_cast<uintptr_t*>(top) - 20;
  std::memset(frame, 0, 20 * sizeof(*frame));
  frame[11] = reinterpret_cast<uintptr_t>(entry);  // the link register
  return frame;
}

}  // namespace on_host

#else
#error "Switching between fibres is written for x86-64 and AArch64"
#endif
