// Device memory. What the host is given are addresses in a window that nobody can access; the bytes
// lie elsewhere, and only launches and copies translate. So a host that reads device memory faults,
// and a kernel that is given a host pointer is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace on_host {

constexpr size_t kAlignment = 512;

struct Allocation {
  uintptr_t address;  // as the host knows it
  size_t size;
};

class Memory {
 public:
  // Takes address space for `capacity` bytes.
  explicit Memory(size_t capacity);

  // 0 where there is no room. Bytes are kUnwritten.
  uintptr_t allocate(size_t size);
  // False where no allocation starts at the address.
  bool release(uintptr_t address);

  bool in_window(uintptr_t address) const;
  // The live allocation that holds `size` bytes at an address; null if there is none.
  const Allocation* find(uintptr_t address, size_t size) const;
  // The same by the address that a kernel uses.
  const Allocation* find_translated(uintptr_t address, size_t size) const;
  void* translate(uintptr_t address) const;
  // Whether a kernel's address is one of device memory, live or not.
  bool in_memory(uintptr_t translated) const { return translated - memory_ < reserved_; }

  size_t capacity() const { return capacity_; }
  size_t used() const { return used_; }
  size_t peak() const { return peak_; }

  // Looks for writes behind the end of an allocation, and undoes them; empty if there is none.
  std::string damage();

 private:
  struct Table;
  size_t capacity_, used_ = 0, peak_ = 0;
  uintptr_t window_ = 0;    // what the host sees
  uintptr_t memory_ = 0;    // where it is
  size_t reserved_ = 0;
  Table* table_;
};

}  // namespace on_host
