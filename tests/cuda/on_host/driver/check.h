// Checks of every access of a kernel to memory, for images that were compiled to report them
// (`-fsanitize=thread`, of which only the calls are used): bounds, alignment, what was never
// written, and races. Two accesses of different threads to a byte, one of them a write, are a race
// unless a barrier of the block lies between them, or a __syncwarp of their warp; nothing orders
// the accesses of different blocks.
#pragma once

#include <cstdint>

#include "../execution.h"
#include "memory.h"

namespace on_host {

// Whether the kernel that runs reports its accesses.
bool checking();

// A kernel of an image starts.
void start_checks(const Image& image, const Memory& memory);
// A block starts, whose shared memory is here.
void note_block(unsigned char* shared);
// A __shared__ variable has got its memory.
void note_shared(size_t offset, size_t size);
// The running thread has started an asynchronous copy; one arrives.
void note_copy_started(const Copy& copy);
void note_copy_arrived(const Copy& copy);
// All threads have met; or all lanes of a warp, at __syncwarp.
void note_barrier();
void note_warp_barrier(unsigned first_thread);
// A lane of the running warp reads shared memory without instructions of its own.
void note_shared_read(const void* address, unsigned size, unsigned lane);

}  // namespace on_host
