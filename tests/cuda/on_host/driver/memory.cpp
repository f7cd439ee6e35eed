#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "../execution.h"

namespace on_host {
namespace {

// Bytes after each allocation that belong to nobody and are watched.
constexpr size_t kGuard = 512;

uintptr_t reserve(size_t size, int protection) {
  void* memory =
      mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? 0 : reinterpret_cast<uintptr_t>(memory);
}

size_t rounded(size_t size) {
  return (std::max<size_t>(size, 1) + kGuard + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

struct Memory::Table {
  std::map<uintptr_t, Allocation> live;  // by address
  std::map<uintptr_t, size_t> free;      // address and bytes, neighbours merged
};

Memory::Memory(size_t capacity) : capacity_(capacity), table_(new Table) {
  // Guards and rounding take address space, not capacity: allocations of a page's fraction are few.
  reserved_ = 2 * capacity + (size_t{64} << 20);
  window_ = reserve(reserved_, PROT_NONE);
  memory_ = reserve(reserved_, PROT_READ | PROT_WRITE);
  if (window_ != 0 && memory_ != 0) table_->free[window_] = reserved_;
}

void* Memory::translate(uintptr_t address) const {
  return reinterpret_cast<void*>(address - window_ + memory_);
}

bool Memory::in_window(uintptr_t address) const {
  return address - window_ < reserved_;
}

uintptr_t Memory::allocate(size_t size) {
  if (size > capacity_ - used_) return 0;
  const size_t bytes = rounded(size);
  for (auto place = table_->free.begin(); place != table_->free.end(); ++place) {
    if (place->second < bytes) continue;
    const uintptr_t address = place->first;
    const size_t rest = place->second - bytes;
    table_->free.erase(place);
    if (rest != 0) table_->free[address + bytes] = rest;
    table_->live[address] = {address, size};
    used_ += size;
    peak_ = std::max(peak_, used_);
    std::memset(translate(address), kUnwritten, bytes);
    return address;
  }
  return 0;
}

bool Memory::release(uintptr_t address) {
  const auto found = table_->live.find(address);
  if (found == table_->live.end()) return false;
  size_t bytes = rounded(found->second.size);
  used_ -= found->second.size;
  table_->live.erase(found);
  std::memset(translate(address), kUnwritten, bytes);
  const auto next = table_->free.lower_bound(address);
  if (next != table_->free.end() && address + bytes == next->first) {
    bytes += next->second;
    table_->free.erase(next);
  }
  const auto after = table_->free.lower_bound(address);
  if (after != table_->free.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == address) {
      before->second += bytes;
      return true;
    }
  }
  table_->free[address] = bytes;
  return true;
}

const Allocation* Memory::find(uintptr_t address, size_t size) const {
  auto after = table_->live.upper_bound(address);
  if (after == table_->live.begin()) return nullptr;
  const Allocation& candidate = std::prev(after)->second;
  const size_t offset = address - candidate.address;
  if (offset > candidate.size || size > candidate.size - offset) return nullptr;
  return &candidate;
}

const Allocation* Memory::find_translated(uintptr_t address, size_t size) const {
  return find(address - memory_ + window_, size);
}

std::string Memory::damage() {
  for (const auto& [address, allocation] : table_->live) {
    auto* end = static_cast<unsigned char*>(translate(address + allocation.size));
    const size_t guard = rounded(allocation.size) - allocation.size;
    for (size_t i = 0; i < guard; ++i) {
      if (end[i] != kUnwritten) {
        char text[160];
        std::snprintf(text, sizeof text,
                      "something wrote %zu bytes behind the end of an allocation of %zu bytes", i,
                      allocation.size);
        std::memset(end, kUnwritten, guard);
        return text;
      }
    }
  }
  return "";
}

}  // namespace on_host
