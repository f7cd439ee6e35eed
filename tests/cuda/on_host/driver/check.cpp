#include "check.h"
namespace on_host {
bool checking() { return false; }
void start_checks(const Image&, const Memory&) {}
void note_block(unsigned) {}
void note_shared(unsigned char*, size_t, size_t) {}
void note_copy_started(void*, unsigned) {}
void note_copy_arrived(const Copy&) {}
void note_barrier() {}
void note_collective(unsigned, uint32_t) {}
void note_shared_read(const void*, unsigned, unsigned) {}
}
