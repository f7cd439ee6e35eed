#include "banks.h"

#include <algorithm>

namespace on_host {
namespace {

constexpr unsigned kBanks = 32, kBankBytes = 4;

// Turns that lanes `first` to `first + count - 1` take together.
unsigned turns_of(const uintptr_t* addresses, uint32_t lanes, unsigned first, unsigned count,
                  unsigned size) {
  std::vector<uintptr_t> words[kBanks];
  unsigned most = 0;
  for (unsigned lane = first; lane < first + count; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    const uintptr_t last = (addresses[lane] + size - 1) / kBankBytes;
    for (uintptr_t word = addresses[lane] / kBankBytes; word <= last; ++word) {
      auto& bank = words[word % kBanks];
      if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
      most = std::max(most, static_cast<unsigned>(bank.size()));
    }
  }
  return most;
}

}  // namespace

void Banks::add(uintptr_t place, unsigned thread, uintptr_t address, unsigned size) {
  Place& of = open_[thread / kWarpSize][place];
  const unsigned lane = thread % kWarpSize;
  const unsigned time = of.times[lane]++;
  if (time >= of.accesses.size()) of.accesses.resize(time + 1);
  Access& access = of.accesses[time];
  access.size = size;
  access.lanes |= 1u << lane;
  access.addresses[lane] = address;
}

void Banks::add_rows(uintptr_t place, const uintptr_t* rows, unsigned count) {
  BankCount& to = counts[place];
  ++to.instructions;
  for (unsigned first = 0; first < count; first += 8) {
    to.turns += turns_of(rows, kFullMask, first, 8, 16);
    ++to.least;
  }
}

void Banks::finish(unsigned warp) {
  for (const auto& [place, of] : open_[warp]) {
    BankCount& to = counts[place];
    for (const Access& access : of.accesses) {
      const unsigned together = access.size <= 4 ? kWarpSize : (access.size <= 8 ? 16 : 8);
      ++to.instructions;
      for (unsigned first = 0; first < kWarpSize; first += together) {
        const unsigned turns =
            turns_of(access.addresses, access.lanes, first, together, access.size);
        to.turns += turns;
        to.least += turns != 0;
      }
    }
  }
  open_[warp].clear();
}

void Banks::finish_all() {
  for (unsigned warp = 0; warp < kMaxThreads / kWarpSize; ++warp) finish(warp);
}

}  // namespace on_host
