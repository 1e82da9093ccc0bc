// SPDX-License-Identifier: Apache-2.0
// The products of text generation on the CPU: one pass over memory, at the speed of memory.

#include <algorithm>
#include <atomic>

#include "kernels/common/vectors.h"
#include "kernels/decode/decode.h"
#include "kernels/decode/shared_range.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

// The distance of the prefetch in a stream, because the hardware prefetches only up to the end of a page. The lines go
// into the L2 cache: the lines that several streams have on their way would evict x from the L1 cache, which halves the
// speed of four rows.
constexpr int64_t kAheadBytes = 8 * 1024;
constexpr int kIntoL2 = 2;  // locality of __builtin_prefetch
// With several rows, the sums of one line leave the core no room to look ahead to the next lines.
constexpr int64_t kAheadInL2Bytes = 512;
constexpr int kIntoL1 = 3;
constexpr int64_t kLineBytes = 64;         // of a cache line
constexpr int64_t kPartBytes = 64 * 1024;  // the least bytes of weights for a thread

/// a * b + c with one rounding, if the instruction set has such an instruction. GCC emits it for some loops and two
/// instructions for others, but bits may not depend on the number of rows.
inline Vf multiply_add(Vf a, Vf b, Vf c) {
#if SLIP_VECTOR_BYTES == 64 && defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif SLIP_VECTOR_BYTES == 32 && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

/// The weight rows that a thread multiplies at once. Their sums are independent, which hides the latency of additions.
/// Each vector of x is loaded once for all of them, and all sums fit into the registers.
constexpr int kMostStreams = 4;
constexpr int streams_of(int rows) {
  if (SLIP_VECTOR_BYTES == 64) return rows <= 6 ? kMostStreams : 3;  // 32 registers
  return rows <= 2 ? kMostStreams : rows <= 6 ? 2 : 1;
}

/// y[r][s * apart] = x[r] . w[s * apart] + bias[s * apart]. Each sum goes through one vector in the order of `in`, with
/// any number of rows and streams.
template <int kStreams, int kRows, typename T>
inline void multiply(const FewRowsProduct& args, int64_t row, int64_t o, int64_t apart) {
  constexpr int64_t kStep = kLineBytes / static_cast<int64_t>(sizeof(T));
  const int64_t in = args.in;
  const float* const x = args.x + row * in;
  const T* const w = static_cast<const T*>(args.weight) + o * in;
  // All loops over sums are unrolled, so that they stay in registers.
  Vf of[kRows][kMostStreams];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int s = 0; s < kMostStreams; ++s) of[r][s] = Vf{};
  const auto add = [&](auto lanes, int64_t at) {
    Vf weights[kStreams];
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) weights[s] = lanes.load(w + s * apart * in + at);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vf values = lanes.load(x + r * in + at);
#pragma GCC unroll 4
      for (int s = 0; s < kStreams; ++s) of[r][s] = multiply_add(values, weights[s], of[r][s]);
    }
  };
  int64_t i = 0;
  for (; i + kStep <= in; i += kStep) {
    for (int s = 0; s < kStreams; ++s)
      __builtin_prefetch(reinterpret_cast<const char*>(w + s * apart * in + i) + kAheadBytes, 0, kIntoL2);
    if constexpr (kRows > 1)
      for (int s = 0; s < kStreams; ++s)
        __builtin_prefetch(reinterpret_cast<const char*>(w + s * apart * in + i) + kAheadInL2Bytes, 0, kIntoL1);
#pragma GCC unroll 8
    for (int64_t v = 0; v < kStep; v += kLanes) add(Whole{}, i + v);
  }
  for_vectors(i, in, add);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    float y[kMostStreams];
    sums(of[r][0], of[r][1], of[r][2], of[r][3], y);
    for (int s = 0; s < kStreams; ++s) {
      const int64_t at = o + s * apart;
      args.y[(row + r) * args.out + at] = y[s] + (args.bias ? args.bias[at] : 0.0f);
    }
  }
}

/// The streams of a part are its equal pieces, so that each of them reads forward.
template <int kRows, typename T>
void product(LaunchContext& context, const FewRowsProduct& args, int64_t row) {
  constexpr int kStreams = streams_of(kRows);
  const int64_t grain = std::max<int64_t>(kStreams, kPartBytes / (args.in * static_cast<int64_t>(sizeof(T))));
  for_shared(context, args.out, grain, [&](int64_t begin, int64_t end) {
    const int64_t apart = (end - begin) / kStreams;
    for (int64_t o = begin; o < begin + apart; ++o) multiply<kStreams, kRows, T>(args, row, o, apart);
    for (int64_t o = begin + apart * kStreams; o < end; ++o) multiply<1, kRows, T>(args, row, o, 0);
  });
}

template <typename T>
void products(LaunchContext& context, const FewRowsProduct& args) {
  switch (args.rows) {
    case 1:
      return product<1, T>(context, args, 0);
    case 2:
      return product<2, T>(context, args, 0);
    case 3:
      return product<3, T>(context, args, 0);
    case 4:
      return product<4, T>(context, args, 0);
    case 5:
      return product<5, T>(context, args, 0);
    case 6:
      return product<6, T>(context, args, 0);
    case 7:
      return product<7, T>(context, args, 0);
    default:
      return product<8, T>(context, args, 0);
  }
}

}  // namespace

void few_rows_product_cpu(LaunchContext& context, const FewRowsProduct& args) {
  if (args.dtype == DType::f32) return products<float>(context, args);
  products<bfloat16>(context, args);
}

void read_all_cpu(LaunchContext& context, const ReadAll& args) {
  constexpr int64_t kStreams = 4, kLine = kLineBytes / 4, kVectors = kLine / kLanes;
  std::atomic<double> total{0};
  for_shared(context, args.elems / kLine, kPartBytes / kLineBytes, [&](int64_t begin, int64_t end) {
    Vf sums[kStreams][kVectors] = {};
    const auto add = [&](int64_t stream, int64_t line) {
      const float* const at = args.at + line * kLine;
      __builtin_prefetch(reinterpret_cast<const char*>(at) + kAheadBytes, 0, kIntoL2);
      for (int64_t v = 0; v < kVectors; ++v) sums[stream][v] += load(at + v * kLanes);
    };
    const int64_t apart = (end - begin) / kStreams;
    for (int64_t line = begin; line < begin + apart; ++line)
#pragma GCC unroll 4
      for (int64_t s = 0; s < kStreams; ++s) add(s, line + s * apart);
    for (int64_t line = begin + kStreams * apart; line < end; ++line) add(0, line);
    double part = 0;
    for (const auto& stream : sums)
      for (const Vf& vector : stream) part += static_cast<double>(sum(vector));
    total += part;
  });
  for (int64_t i = args.elems / kLine * kLine; i < args.elems; ++i) total += static_cast<double>(args.at[i]);
  *args.sum = total;
}

}  // namespace slipstream::kernels::SLIP_ISA
