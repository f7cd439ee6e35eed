// Counts of accesses to shared memory as its banks serve them.
//
// Shared memory has 32 banks of 4 bytes. An instruction of a warp takes as many turns
// ("wavefronts") as the most different words that one bank has to give; lanes that ask for the same
// word share it. Accesses of 8 bytes are served by halves of a warp, those of 16 bytes by quarters,
// and ldmatrix by matrices of 8 rows.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../execution.h"

namespace on_host {

struct BankCount {
  uint64_t instructions = 0, turns = 0, least = 0;  // `least`: turns if no bank met another
};

class Banks {
 public:
  // One lane's part of an instruction, which is known by its place in the code.
  void add(uintptr_t place, unsigned thread, uintptr_t address, unsigned size);
  // An instruction that reads 8 rows of 16 bytes per turn.
  void add_rows(uintptr_t place, const uintptr_t* rows, unsigned count);
  // What the lanes of a warp did since they last met is complete.
  void finish(unsigned warp);
  void finish_all();

  std::map<uintptr_t, BankCount> counts;

 private:
  struct Access {
    unsigned size = 0;
    uint32_t lanes = 0;
    uintptr_t addresses[kWarpSize];
  };
  // The n-th time that a lane comes to a place belongs to the n-th time of the other lanes.
  struct Place {
    std::vector<Access> accesses;
    uint16_t times[kWarpSize] = {};
  };

  std::map<uintptr_t, Place> open_[kMaxThreads / kWarpSize];
};

}  // namespace on_host
