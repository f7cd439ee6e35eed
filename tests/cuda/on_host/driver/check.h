// Checks of every access of a kernel to memory, for images that were compiled to report them
// (`-fsanitize=thread`, of which only the calls are used): bounds, alignment, what was never
// written, and races. Two accesses of different threads to a byte, one of them a write, are a race
// unless a barrier of the block lies between them, or a __syncwarp of their warp; nothing orders
// the accesses of different blocks.
#pragma once

#include <cstdint>
#include <string>

#include "../execution.h"
#include "memory.h"

namespace on_host {

// Whether the kernel that runs reports its accesses.
bool checking();

// A kernel of an image starts.
void start_checks(const Image& image, const Kernel& kernel, const Memory& memory);
// A block starts, whose shared memory is here.
void note_block(unsigned char* shared);
// A __shared__ variable has got its memory.
void note_shared(size_t offset, size_t size);
// The running thread has started an asynchronous copy, at a place in the code; one arrives.
void note_copy_started(const Copy& copy, const void* place);
void note_copy_arrived(const Copy& copy);
// All threads have met; or all lanes of a warp, at __syncwarp.
void note_barrier();
void note_warp_barrier(unsigned first_thread);
// The running thread has accessed shared memory by a function of the driver.
void note_shared_access(const void* address, unsigned size, bool write, const void* place);
// A lane of the running warp reads shared memory without instructions of its own.
void note_shared_read(const void* address, unsigned size, unsigned lane);
// What a warp's ldmatrix reads: `count` rows of 16 bytes, eight at a time.
void note_matrix_rows(const uintptr_t* rows, unsigned count);
// A warp has met: what its lanes did before belongs together (see banks.h).
void note_warp_met(unsigned first_thread);

// How banks served observed kernels since the last call: lines of kernel, place (an offset in its
// image, or the line of an ldmatrix), instructions, turns, and the least turns there could be.
std::string bank_report();

}  // namespace on_host
