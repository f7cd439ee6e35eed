#include "check.h"

#include <link.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "banks.h"
#include "block.h"

namespace on_host {
namespace {

constexpr int kIllegalAddress = 700;
constexpr int kMisaligned = 716;
constexpr int kLaunchFailed = 719;

constexpr size_t kChunk = 64;  // bytes of device memory that are looked up together

// Who accessed a byte last. Times are counts of barriers; a new block is one, too.
struct Cell {
  uint32_t write_time, write_block, read_time, read_block;
  uint32_t write_sync, read_sync;  // counts of __syncwarp of the warp
  uint16_t writer, reader;         // threads
  uint8_t many_readers;            // since read_time: 1 several of one warp, 2 several warps
  bool written, in_flight;
};

struct Chunk {
  Cell cells[kChunk];
};

struct Range {
  uintptr_t begin, end;
  bool holds(uintptr_t address) const { return address - begin < end - begin; }
};

const Memory* memory;
bool observed;
uint32_t barriers, blocks;
uint32_t warp_barriers[kMaxThreads / kWarpSize];
unsigned char* shared;
std::vector<Cell> shared_cells;
std::unordered_map<uintptr_t, Chunk> device_cells;
// By kernel; the one that runs.
std::map<std::string, Banks> all_banks;
Banks* banks;
// Data of the image and of this library, which a kernel may read and the built-ins write.
Range image_data, driver_data;

struct Search {
  uintptr_t address;
  Range range;
};

int find_range(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  uintptr_t begin = ~uintptr_t{0}, end = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    begin = std::min<uintptr_t>(begin, info->dlpi_addr + header.p_vaddr);
    end = std::max<uintptr_t>(end, info->dlpi_addr + header.p_vaddr + header.p_memsz);
  }
  if (search->address < begin || search->address >= end) return 0;
  search->range = {begin, end};
  return 1;
}

Range loaded_range(const void* address) {
  Search search{reinterpret_cast<uintptr_t>(address), {0, 0}};
  dl_iterate_phdr(find_range, &search);
  return search.range;
}

// Whether nothing orders an earlier access before one of `thread` now.
bool unordered(uint32_t time, uint32_t block, uint32_t sync, unsigned earlier, unsigned thread) {
  if (block != blocks) return true;
  if (time != barriers || earlier == thread) return false;
  return earlier / kWarpSize != thread / kWarpSize || sync == warp_barriers[thread / kWarpSize];
}

const char* space_name(bool is_shared) { return is_shared ? "shared" : "device"; }

// `blind`: the read may be of what nobody has written.
void access(Cell& cell, unsigned thread, bool write, bool is_shared, size_t offset, bool blind) {
  const bool after_write =
      cell.written &&
      unordered(cell.write_time, cell.write_block, cell.write_sync, cell.writer, thread);
  if (after_write) {
    on_host_fail(kLaunchFailed,
                 "race in %s memory at byte %zu: thread %u %s what thread %u%s wrote, with no "
                 "barrier between", space_name(is_shared), offset, thread,
                 write ? "overwrites" : "reads", cell.writer,
                 cell.write_block == blocks ? "" : " of another block");
  }
  if (!write) {
    if (is_shared && cell.in_flight) {
      on_host_fail(kLaunchFailed,
                   "shared memory at byte %zu is read by thread %u before the copy to it was "
                   "waited for", offset, thread);
    }
    if (is_shared && !cell.written && !blind) {
      on_host_fail(kLaunchFailed, "shared memory at byte %zu is read by thread %u, and nobody has "
                   "written it", offset, thread);
    }
    const uint32_t sync = warp_barriers[thread / kWarpSize];
    const bool same = cell.read_block == blocks && cell.read_time == barriers;
    if (!same) {
      cell.many_readers = cell.read_block != 0 && cell.read_block != blocks ? 2 : 0;
    } else if (cell.reader / kWarpSize != thread / kWarpSize) {
      cell.many_readers = 2;
    } else if (cell.reader != thread && cell.read_sync == sync) {
      cell.many_readers = std::max<uint8_t>(cell.many_readers, 1);
    }
    cell.read_time = barriers;
    cell.read_block = blocks;
    cell.read_sync = sync;
    cell.reader = static_cast<uint16_t>(thread);
    return;
  }
  if (cell.read_block != 0) {
    bool race = unordered(cell.read_time, cell.read_block, cell.read_sync, cell.reader, thread);
    const bool same = cell.read_block == blocks && cell.read_time == barriers;
    if (same && cell.many_readers == 2) race = true;
    if (same && cell.many_readers == 1 &&
        (cell.reader / kWarpSize != thread / kWarpSize ||
         cell.read_sync == warp_barriers[thread / kWarpSize])) {
      race = true;
    }
    if (race) {
      on_host_fail(kLaunchFailed,
                   "race in %s memory at byte %zu: thread %u overwrites what %s read, with no "
                   "barrier between", space_name(is_shared), offset, thread,
                   cell.many_readers ? "several threads" : "another thread");
    }
  }
  cell.written = true;
  cell.write_time = barriers;
  cell.write_block = blocks;
  cell.write_sync = warp_barriers[thread / kWarpSize];
  cell.writer = static_cast<uint16_t>(thread);
}

void access_shared(uintptr_t address, size_t size, unsigned thread, bool write,
                   bool blind = false) {
  const size_t offset = address - reinterpret_cast<uintptr_t>(shared);
  for (size_t i = 0; i < size; ++i) {
    access(shared_cells[offset + i], thread, write, true, offset + i, blind);
  }
}

void access_device(uintptr_t address, size_t size, unsigned thread, bool write) {
  const Allocation* allocation = memory->find_translated(address, size);
  if (allocation == nullptr) {
    on_host_fail(kIllegalAddress, "%s of %zu bytes outside of every allocation of device memory",
                 write ? "write" : "read", size);
  }
  const void* begin = memory->translate(allocation->address);
  const size_t first = address - reinterpret_cast<uintptr_t>(begin);
  for (size_t i = 0; i < size; ++i) {
    Cell& cell = device_cells[(address + i) / kChunk].cells[(address + i) % kChunk];
    access(cell, thread, write, false, first + i, true);
  }
}

void report(const void* pointer, size_t size, bool write, bool aligned, const void* place) {
  if (!observed) return;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (driver_data.holds(address) || image_data.holds(address) || on_own_stack(pointer)) return;
  const unsigned thread = on_host_state.current->number;
  if (aligned && address % size != 0) {
    on_host_fail(kMisaligned, "%s of %zu bytes at an address that is no multiple of that",
                 write ? "write" : "read", size);
  }
  const bool in_shared =
      address - reinterpret_cast<uintptr_t>(shared) < shared_cells.size();
  if (in_shared) {
    // Bounds only: vectors may be of fewer bytes than their accesses are aligned to.
    check_shared_bounds(pointer, static_cast<unsigned>(size), write ? "write" : "read");
    access_shared(address, size, thread, write);
    banks->add(reinterpret_cast<uintptr_t>(place) - image_data.begin, thread, address,
               static_cast<unsigned>(size));
  } else if (memory->in_memory(address)) {
    access_device(address, size, thread, write);
  } else {
    on_host_fail(kIllegalAddress, "%s of %zu bytes at %p, which is no memory of the device",
                 write ? "write" : "read", size, pointer);
  }
}

}  // namespace

bool checking() { return observed; }

void start_checks(const Image& image, const Kernel& kernel, const Memory& device_memory) {
  observed = image.observed;
  if (!observed) return;
  memory = &device_memory;
  image_data = loaded_range(&image);
  driver_data = loaded_range(&on_host_state);
  shared_cells.resize(kSharedCapacity);
  device_cells.clear();
  // Blocks of other launches are over.
  blocks = 0;
  banks = &all_banks[kernel.name];
}

void note_block(unsigned char* memory_of_block) {
  shared = memory_of_block;
  ++blocks;
  ++barriers;
  if (observed) banks->finish_all();
}

void note_shared(size_t offset, size_t size) {
  if (!observed) return;
  std::fill_n(shared_cells.begin() + static_cast<ptrdiff_t>(offset), size, Cell{});
}

void note_copy_started(const Copy& copy, const void* place) {
  if (!observed) return;
  const auto address = reinterpret_cast<uintptr_t>(copy.destination);
  const unsigned thread = on_host_state.current->number;
  access_shared(address, copy.size, thread, true);
  banks->add(reinterpret_cast<uintptr_t>(place) - image_data.begin, thread, address, copy.size);
  if (copy.copied != 0) {
    access_device(reinterpret_cast<uintptr_t>(copy.source), copy.copied, thread, false);
  }
  for (unsigned i = 0; i < copy.size; ++i) {
    shared_cells[address - reinterpret_cast<uintptr_t>(shared) + i].in_flight = true;
  }
}

void note_copy_arrived(const Copy& copy) {
  if (!observed) return;
  const auto address = reinterpret_cast<uintptr_t>(copy.destination);
  access_shared(address, copy.size, on_host_state.current->number, true);
  for (unsigned i = 0; i < copy.size; ++i) {
    shared_cells[address - reinterpret_cast<uintptr_t>(shared) + i].in_flight = false;
  }
}

void note_barrier() {
  ++barriers;
  if (observed) banks->finish_all();
}

void note_warp_met(unsigned first_thread) {
  if (observed) banks->finish(first_thread / kWarpSize);
}

void note_matrix_rows(const uintptr_t* rows, unsigned count) {
  if (!observed) return;
  // A line of a header stands for the place; code has larger addresses.
  banks->add_rows(on_host_state.current->line, rows, count);
}

std::string bank_report() {
  std::string text;
  for (auto& [kernel, of] : all_banks) {
    of.finish_all();
    for (const auto& [place, count] : of.counts) {
      char line[160];
      std::snprintf(line, sizeof line, "\t%zu\t%llu\t%llu\t%llu\n", static_cast<size_t>(place),
                    static_cast<unsigned long long>(count.instructions),
                    static_cast<unsigned long long>(count.turns),
                    static_cast<unsigned long long>(count.least));
      text += kernel + line;
    }
  }
  all_banks.clear();
  return text;
}

void note_warp_barrier(unsigned first_thread) { ++warp_barriers[first_thread / kWarpSize]; }

void note_shared_access(const void* address, unsigned size, bool write, const void* place) {
  if (!observed) return;
  const auto at = reinterpret_cast<uintptr_t>(address);
  const unsigned thread = on_host_state.current->number;
  access_shared(at, size, thread, write);
  banks->add(reinterpret_cast<uintptr_t>(place) - image_data.begin, thread, at, size);
}

void note_shared_read(const void* address, unsigned size, unsigned lane) {
  if (!observed) return;
  // Fragments are loaded ahead of their use, also where none is used any more. A result that came
  // from there would be wrong.
  access_shared(reinterpret_cast<uintptr_t>(address), size,
                on_host_state.current->warp->first_thread + lane, false, true);
}

}  // namespace on_host

// What g++ calls before every access.
#define OBSERVER(name, size, write, aligned)                                     \
  extern "C" void name(const void* address) {                                    \
    on_host::report(address, size, write, aligned, __builtin_return_address(0)); \
  }
OBSERVER(__tsan_read1, 1, false, true)
OBSERVER(__tsan_read2, 2, false, true)
OBSERVER(__tsan_read4, 4, false, true)
OBSERVER(__tsan_read8, 8, false, true)
OBSERVER(__tsan_read16, 16, false, true)
OBSERVER(__tsan_write1, 1, true, true)
OBSERVER(__tsan_write2, 2, true, true)
OBSERVER(__tsan_write4, 4, true, true)
OBSERVER(__tsan_write8, 8, true, true)
OBSERVER(__tsan_write16, 16, true, true)
OBSERVER(__tsan_unaligned_read2, 2, false, false)
OBSERVER(__tsan_unaligned_read4, 4, false, false)
OBSERVER(__tsan_unaligned_read8, 8, false, false)
OBSERVER(__tsan_unaligned_read16, 16, false, false)
OBSERVER(__tsan_unaligned_write2, 2, true, false)
OBSERVER(__tsan_unaligned_write4, 4, true, false)
OBSERVER(__tsan_unaligned_write8, 8, true, false)
OBSERVER(__tsan_unaligned_write16, 16, true, false)
#undef OBSERVER

extern "C" {
void __tsan_read_range(const void* address, size_t size) {
  on_host::report(address, size, false, false, __builtin_return_address(0));
}
void __tsan_write_range(const void* address, size_t size) {
  on_host::report(address, size, true, false, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
