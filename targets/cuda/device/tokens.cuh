// Where the tokens of a padded batch lie once padding is left out: what the loops of
// relay_passes/integer/operators/slots.py compute one by one, by one block of threads.
//
// Each function has the name of its operator. `sequences` and `length` are the sizes of the batch,
// `threads` those of the block; other numbers are the operator's own.
#pragma once

#include "primitives.cuh"

namespace ibert {

// Calls visit(i, kept, rank) for i = 0 .. count - 1, where `kept` is keep(i) and `rank` the number
// of those before i that are kept. Returns the number of all that are. All threads take part.
template <int count, int threads, typename Keep, typename Visit>
__device__ __forceinline__ int32_t visit_ranked(Keep keep, Visit visit) {
  constexpr int warps = threads / 32;
  __shared__ int32_t of_warps[warps];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int32_t before = 0;
  for (int first = 0; first < count; first += threads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool kept = i < count && keep(i);
    const unsigned lanes = __ballot_sync(all_lanes, kept);
    if (lane == 0) of_warps[warp] = __popc(lanes);
    __syncthreads();
    int32_t rank = before + __popc(lanes & ((1u << lane) - 1));
#pragma unroll
    for (int other = 0; other < warps; ++other) {
      const int32_t kept_there = of_warps[other];
      if (other < warp) rank += kept_there;
      before += kept_there;
    }
    if (i < count) visit(i, kept, rank);
    __syncthreads();  // of_warps has been read
  }
  return before;
}

template <int sequences, int length, int threads, int... selected, typename T>
__device__ __forceinline__ void token_slots(const T* mask, int32_t* slots) {
  visit_ranked<sequences * length, threads>(
      [=](int i) { return mask[i] != 0 || ((i % length == selected) || ...); },
      [=](int i, bool kept, int32_t rank) { slots[i] = kept ? rank : -1; });
}

template <int sequences, int length, int threads>
__device__ __forceinline__ void slot_starts(const int32_t* slots, int32_t* starts) {
  const int32_t total = visit_ranked<sequences * length, threads>(
      [=](int i) { return slots[i] >= 0; },
      [=](int i, bool, int32_t rank) {
        if (i % length == 0) starts[i / length] = rank;
      });
  if (threadIdx.x == 0) starts[sequences] = total;
}

template <int sequences, int length, int threads>
__device__ __forceinline__ void slot_tokens(const int32_t* slots, int32_t* tokens) {
  const int32_t total = visit_ranked<sequences * length, threads>(
      [=](int i) { return slots[i] >= 0; },
      [=](int i, bool kept, int32_t rank) {
        if (kept) tokens[rank] = i;
      });
  for (int i = total + static_cast<int>(threadIdx.x); i < sequences * length; i += threads) {
    tokens[i] = 0;
  }
}

}  // namespace ibert
