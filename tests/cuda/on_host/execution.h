// How a kernel that runs on the CPU and the stand-in driver see one another.
//
// A kernel image is a shared library made by g++ from CUDA source. It is loaded by the stand-in
// libcuda.so.1, which runs every thread of a block as a fibre and exports the functions below.
#pragma once

#include <cstddef>
#include <cstdint>

namespace on_host {

constexpr unsigned kAbiVersion = 2;
constexpr unsigned kWarpSize = 32;
constexpr uint32_t kFullMask = 0xffffffffu;
constexpr unsigned kMaxThreads = 1024;     // of a block, on every architecture
constexpr unsigned kRegisterRows = 16;     // registers per lane that a collective may exchange
// What memory holds that was never written: the same in each byte, and improbable as a result.
constexpr unsigned char kUnwritten = 0xa5;

struct Index {
  unsigned x, y, z;
};

struct Thread;

// The registers of the lanes at a collective operation: `value[register][lane]`.
struct alignas(64) Registers {
  uint32_t value[kRegisterRows][kWarpSize];
};

// A collective that some lanes have reached and others have not.
struct Pending {
  uint32_t mask;     // lanes that take part
  uint32_t arrived;  // lanes that wait
  const char* operation;
  unsigned line;
};

struct Warp {
  Registers registers;
  uint32_t live;     // lanes that have not returned
  uint32_t ready;    // lanes that can run
  uint32_t barrier;  // lanes that wait at __syncthreads
  unsigned first_thread;
  unsigned num_pending;
  Pending pending[kWarpSize];
};

// One asynchronous copy to shared memory that has been started and has not arrived.
struct Copy {
  void* destination;
  const void* source;  // null: zeros
  unsigned size;
  unsigned copied;  // bytes of `size` that come from the source; the rest becomes zero
  unsigned group;   // number of commits before it
};

struct Thread {
  void* stack_pointer;
  Index index;  // threadIdx
  unsigned lane;
  unsigned number;  // in the block
  Warp* warp;
  const char* waits_for;  // what it waits for, for messages
  unsigned line;
  unsigned num_copies, commits;
};

// What kernels read of the block that runs.
struct State {
  Thread* current;
  Index block, block_dim, grid_dim;
  unsigned char* dynamic_shared;
  unsigned dynamic_shared_size;
  uint64_t block_number;  // counts the blocks of all launches; never 0
};

using Execute = void (*)(Registers& registers);

// A kernel of an image. `call` takes the addresses of the arguments, as cuLaunchKernel does.
struct Kernel {
  const char* name;
  void (*call)(void** arguments);
  unsigned num_arguments;
  const unsigned char* sizes;      // bytes of each argument
  const unsigned char* is_pointer;  // 1 where an argument is an address
  unsigned max_threads;             // of __launch_bounds__
};

struct Image {
  unsigned abi_version;
  unsigned architecture;  // 75, 80, 90
  bool observed;          // whether it reports its accesses to memory
  unsigned num_kernels;
  const Kernel* kernels;
};

}  // namespace on_host

extern "C" {
extern on_host::State on_host_state;

// Waits until all lanes of `mask` have come here; the last one executes. Lanes that come to
// another operation, or from another line, are an error.
void on_host_collective(uint32_t mask, const char* operation, unsigned line, bool aligned,
                        on_host::Execute execute);
void on_host_barrier(unsigned line);
// Memory of a __shared__ variable of the block that runs.
void* on_host_shared(size_t size, size_t alignment);
// Starts a copy of `size` bytes; the first `copied` come from the source, zeros follow.
void on_host_copy_async(void* destination, const void* source, unsigned size, unsigned copied);
void on_host_copy_commit();
// Lets all but the latest `groups` groups of copies of this thread arrive.
void on_host_copy_wait(unsigned groups);
// Ends the kernel with an error of a real GPU (`code`: a CUresult).
[[noreturn]] void on_host_fail(int code, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

// Ends the kernel where `size` bytes at an address are not in the block's shared memory, or not
// aligned to their size; reports the access, if accesses are.
void on_host_access_shared(const void* address, unsigned size, bool write, const char* operation);

// What the last lane executes; warp.cpp says where the registers lie.
void on_host_shuffle(on_host::Registers& registers);
void on_host_ballot(on_host::Registers& registers);
void on_host_reduce_add(on_host::Registers& registers);
void on_host_ldmatrix_x1(on_host::Registers& registers);
void on_host_ldmatrix_x2(on_host::Registers& registers);
void on_host_ldmatrix_x4(on_host::Registers& registers);
void on_host_ldmatrix_x1_trans(on_host::Registers& registers);
void on_host_ldmatrix_x2_trans(on_host::Registers& registers);
void on_host_ldmatrix_x4_trans(on_host::Registers& registers);
void on_host_mma_m16n8k16_s8(on_host::Registers& registers);
void on_host_mma_m16n8k16_u8(on_host::Registers& registers);
void on_host_mma_m16n8k32_s8(on_host::Registers& registers);
void on_host_mma_m16n8k32_u8(on_host::Registers& registers);
}
