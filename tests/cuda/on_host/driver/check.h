// Checks of every access of a kernel to memory, for images that were compiled to report them
// (`-fsanitize=thread`, of which only the calls are used): bounds, alignment, what was never
// written, and races.
#pragma once

#include <cstdint>

#include "../execution.h"
#include "memory.h"

namespace on_host {

// Whether the kernel that runs reports its accesses.
bool checking();

void start_checks(const Image& image, const Memory& memory);
void note_block(unsigned num_threads);
// A __shared__ variable has got its memory.
void note_shared(unsigned char* shared, size_t offset, size_t size);
// The running thread has started an asynchronous copy; one arrives.
void note_copy_started(void* destination, unsigned size);
void note_copy_arrived(const Copy& copy);
void note_barrier();
// The lanes `lanes` of a warp have met.
void note_collective(unsigned first_thread, uint32_t lanes);

}  // namespace on_host
