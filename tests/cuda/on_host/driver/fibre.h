// Switching between the threads of a block.
#pragma once

#include <cstddef>

namespace on_host {

// Gives a fibre its first stack frame: switching to the returned stack pointer calls `entry`,
// which must not return.
void* prepare_fibre(void* stack, size_t size, void (*entry)());

}  // namespace on_host

// Saves the caller's registers and stack pointer, and goes on where `to` was saved. What a function
// call may overwrite anyway is not saved.
extern "C" void on_host_switch(void** from, void* to);
