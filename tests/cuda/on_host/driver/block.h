// Runs the blocks of a kernel, thread by thread.
#pragma once

#include <string>

#include "../execution.h"

namespace on_host {

// Bytes of shared memory that there is at all; no device has as much.
constexpr size_t kSharedCapacity = 256 << 10;

// How a kernel ended that a GPU would have aborted.
struct Failure {
  int code;  // CUresult; 0: none
  std::string message;
};

// The order in which threads run between synchronisations.
struct Order {
  enum Kind { kForward, kReverse, kRandom } kind = kForward;
  uint64_t seed = 0;
};

struct Launch {
  const Kernel* kernel;
  Index grid, block;
  unsigned dynamic_shared;  // bytes
  unsigned shared_limit;    // bytes, static and dynamic together
  void** arguments;
};

// Runs all blocks of a kernel, one after the other, on the calling thread.
Failure run(const Launch& launch, const Order& order);

// The same as on_host_check_shared, on behalf of a lane of the running warp.
void check_shared(const void* address, unsigned size, const char* operation, unsigned lane);

// Whether bytes lie in one variable of the block's shared memory; ends the kernel if not.
void check_shared_bounds(const void* address, unsigned size, const char* operation);

// Whether an address is on the stack of the running thread.
bool on_own_stack(const void* address);

}  // namespace on_host
