// Runs the blocks of a kernel, thread by thread.
#pragma once

#include <string>

#include "../execution.h"

namespace on_host {

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

// Tells the race detection, if it is on, that a lane read shared memory without instructions of
// its own.
void note_shared_read(const void* address, unsigned size, unsigned lane);

}  // namespace on_host
