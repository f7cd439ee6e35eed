// What the lanes of a warp do together. `registers.value[register][lane]` holds the operands, and
// afterwards the results. Layouts are those of the PTX ISA; the section is named with each.
#include <cstring>
#include <type_traits>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "../execution.h"
#include "block.h"
#include "check.h"

using on_host::Registers;

namespace {

constexpr int kCudaErrorLaunchFailed = 719;

using Fragment = uint32_t[on_host::kWarpSize];

// C (8 x 8, int32) += A (8 x 16 bytes) B (16 bytes x 8 columns).
//
// "Matrix Fragments for mma.m8n8k16": lane l holds of A row l / 4, depth 4 (l % 4) to + 3, and of B
// column l / 4, the same depth. So the registers of a warp, one after the other, are A row by row
// and B column by column. Of C it holds row l / 4, columns 2 (l % 4) and + 1. Sums wrap in 32 bits.
struct Columns {
#ifdef __AVX2__
  __m256i pairs[8];  // of each column two neighbours of the depth, 16 bits each
#else
  uint32_t numbers[16][8];
#endif
};

#ifdef __AVX2__

void read_columns(Columns& to, const Fragment& b) {
  const auto* columns = reinterpret_cast<const __m128i*>(b);
  __m256i rows[8], turned[8];
  for (int i = 0; i < 8; ++i) rows[i] = _mm256_cvtepi8_epi16(_mm_loadu_si128(columns + i));
  // An 8 x 8 matrix of 32 bits is transposed: within halves by 32 and 64 bits, then the halves.
  for (int i = 0; i < 8; i += 2) {
    turned[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    turned[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    rows[i] = _mm256_unpacklo_epi64(turned[i], turned[i + 2]);
    rows[i + 1] = _mm256_unpackhi_epi64(turned[i], turned[i + 2]);
    rows[i + 2] = _mm256_unpacklo_epi64(turned[i + 1], turned[i + 3]);
    rows[i + 3] = _mm256_unpackhi_epi64(turned[i + 1], turned[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    to.pairs[i] = _mm256_permute2x128_si256(rows[i], rows[i + 4], 0x20);
    to.pairs[i + 4] = _mm256_permute2x128_si256(rows[i], rows[i + 4], 0x31);
  }
}

template <typename A>
void add_row(uint32_t (&sums)[8], const A* row, const Columns& columns) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
  alignas(32) int32_t pairs[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), std::is_signed_v<A>
                                                            ? _mm256_cvtepi8_epi16(bytes)
                                                            : _mm256_cvtepu8_epi16(bytes));
  __m256i total = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums));
  for (int i = 0; i < 8; ++i) {
    // Two products of 8 and 9 bits, and their sum, are exact.
    const __m256i products = _mm256_madd_epi16(_mm256_set1_epi32(pairs[i]), columns.pairs[i]);
    total = _mm256_add_epi32(total, products);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), total);
}

#else

void read_columns(Columns& to, const Fragment& b) {
  const auto* columns = reinterpret_cast<const int8_t*>(b);
  for (int column = 0; column < 8; ++column) {
    for (int k = 0; k < 16; ++k) {
      to.numbers[k][column] = static_cast<uint32_t>(columns[16 * column + k]);
    }
  }
}

template <typename A>
void add_row(uint32_t (&sums)[8], const A* row, const Columns& columns) {
  for (int k = 0; k < 16; ++k) {
    const auto factor = static_cast<uint32_t>(row[k]);
    for (int column = 0; column < 8; ++column) sums[column] += factor * columns.numbers[k][column];
  }
}

#endif

template <typename A>
void m8n8k16(Fragment& c0, Fragment& c1, const Fragment& a, const Columns& columns) {
  const auto* rows = reinterpret_cast<const A*>(a);
  for (int row = 0; row < 8; ++row) {
    uint32_t sums[8];
    for (int pair = 0; pair < 4; ++pair) {
      sums[2 * pair] = c0[4 * row + pair];
      sums[2 * pair + 1] = c1[4 * row + pair];
    }
    add_row(sums, rows + 16 * row, columns);
    for (int pair = 0; pair < 4; ++pair) {
      c0[4 * row + pair] = sums[2 * pair];
      c1[4 * row + pair] = sums[2 * pair + 1];
    }
  }
}

// "Matrix Fragments for mma.m16n8k16 with integer type", "... m16n8k32": C registers 0, 1 are row
// l / 4 and 2, 3 row l / 4 + 8; A registers 0, 2 (depth 0 to 15, 16 to 31) row l / 4 and 1, 3 row
// l / 4 + 8; B registers 0, 1 depth 0 to 15, 16 to 31. Each pair of registers of C with one of A
// and one of B is a product of 8 x 8 x 16, which is also how 7.5 has to do it.
template <typename A, int depth>
void m16n8(Registers& registers) {
  auto& value = registers.value;
  constexpr int num_a = depth / 8;
  for (int half = 0; half < depth / 16; ++half) {
    Columns columns;
    read_columns(columns, value[4 + num_a + half]);
    for (int rows = 0; rows < 2; ++rows) {
      m8n8k16<A>(value[2 * rows], value[2 * rows + 1], value[4 + 2 * half + rows], columns);
    }
  }
}

// "Warp-level matrix load instruction: ldmatrix", .m8n8 .b16: lane l gives the address of row l % 8
// of matrix l / 8; it gets of each matrix halves 2 (l % 4) and + 1 of row l / 4, or with .trans of
// column l / 4. Registers 0, 1: the address; 2 to 5: the result.
template <int matrices, bool transposed>
void ldmatrix(Registers& registers) {
  auto& value = registers.value;
  uint16_t rows[8 * matrices][8];
  uintptr_t addresses[8 * matrices];
  for (unsigned lane = 0; lane < 8 * matrices; ++lane) {
    const uint64_t address = static_cast<uint64_t>(value[1][lane]) << 32 | value[0][lane];
    on_host::check_shared(reinterpret_cast<const void*>(address), 16, "ldmatrix", lane);
    on_host::note_shared_read(reinterpret_cast<const void*>(address), 16, lane);
    std::memcpy(rows[lane], reinterpret_cast<const void*>(address), 16);
    addresses[lane] = address;
  }
  on_host::note_matrix_rows(addresses, 8 * matrices);
  for (int matrix = 0; matrix < matrices; ++matrix) {
    const auto& from = reinterpret_cast<const uint16_t(&)[8][8]>(rows[8 * matrix]);
    for (unsigned lane = 0; lane < on_host::kWarpSize; ++lane) {
      const unsigned group = lane / 4, half = lane % 4 * 2;
      const uint32_t low = transposed ? from[half][group] : from[group][half];
      const uint32_t high = transposed ? from[half + 1][group] : from[group][half + 1];
      value[2 + matrix][lane] = high << 16 | low;
    }
  }
}

}  // namespace

extern "C" {

void on_host_shuffle(Registers& registers) {
  auto& value = registers.value;
  const uint32_t present = on_host_state.current->warp->live;
  uint32_t low[on_host::kWarpSize], high[on_host::kWarpSize];
  // Every lane of a mask has the same mask: the executing one's.
  const uint32_t mask = value[3][on_host_state.current->lane] & present;
  for (unsigned lane = 0; lane < on_host::kWarpSize; ++lane) {
    if (!(mask >> lane & 1)) continue;
    const unsigned from = value[2][lane];
    if (!(mask >> from & 1)) {
      on_host_fail(kCudaErrorLaunchFailed,
                   "lane %u takes a shuffled value from lane %u, which does not take part", lane,
                   from);
    }
    low[lane] = value[0][from];
    high[lane] = value[1][from];
  }
  for (unsigned lane = 0; lane < on_host::kWarpSize; ++lane) {
    if (!(mask >> lane & 1)) continue;
    value[0][lane] = low[lane];
    value[1][lane] = high[lane];
  }
}

void on_host_ballot(Registers& registers) {
  auto& value = registers.value;
  const uint32_t mask =
      value[1][on_host_state.current->lane] & on_host_state.current->warp->live;
  uint32_t votes = 0;
  for (unsigned lane = 0; lane < on_host::kWarpSize; ++lane) {
    if ((mask >> lane & 1) && value[0][lane] != 0) votes |= 1u << lane;
  }
  for (unsigned lane = 0; lane < on_host::kWarpSize; ++lane) {
    if (mask >> lane & 1) value[0][lane] = votes;
  }
}

void on_host_reduce_add(Registers& registers) {
  auto& value = registers.value;
  const uint32_t mask =
      value[1][on_host_state.current->lane] & on_host_state.current->warp->live;
  uint32_t sum = 0;
  for (unsigned lane = 0; lane < on_host::kWarpSize; ++lane) {
    if (mask >> lane & 1) sum += value[0][lane];
  }
  for (unsigned lane = 0; lane < on_host::kWarpSize; ++lane) {
    if (mask >> lane & 1) value[0][lane] = sum;
  }
}

void on_host_ldmatrix_x1(Registers& registers) { ldmatrix<1, false>(registers); }
void on_host_ldmatrix_x2(Registers& registers) { ldmatrix<2, false>(registers); }
void on_host_ldmatrix_x4(Registers& registers) { ldmatrix<4, false>(registers); }
void on_host_ldmatrix_x1_trans(Registers& registers) { ldmatrix<1, true>(registers); }
void on_host_ldmatrix_x2_trans(Registers& registers) { ldmatrix<2, true>(registers); }
void on_host_ldmatrix_x4_trans(Registers& registers) { ldmatrix<4, true>(registers); }

void on_host_mma_m16n8k16_s8(Registers& registers) { m16n8<int8_t, 16>(registers); }
void on_host_mma_m16n8k16_u8(Registers& registers) { m16n8<uint8_t, 16>(registers); }
void on_host_mma_m16n8k32_s8(Registers& registers) { m16n8<int8_t, 32>(registers); }
void on_host_mma_m16n8k32_u8(Registers& registers) { m16n8<uint8_t, 32>(registers); }

}  // extern "C"
