// SPDX-License-Identifier: Apache-2.0
// The choice of tokens on CUDA: one block of threads for each row. Its passes over the logits read from the L2 cache.

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/sample/sample.h"
#include "kernels/sample/sample_rule.h"

namespace slipstream::kernels {
namespace {

constexpr int kWarps = 16, kThreads = kWarps * kWarp;
constexpr int kDigitBits = 3, kDigits = 1 << kDigitBits;
constexpr int kExponentBits = 31;
constexpr float kLowest = -3.4028234663852886e+38f;

/// The sums of all threads, for all threads; up to kDigits numbers at once.
struct Totals {
  Shared<uint64_t> of_warps;  // [kDigits, kWarps]

  template <int kCount>
  __device__ __forceinline__ void operator()(uint64_t (&values)[kCount]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = warp_sum(values[i]);
      if (lane == 0) of_warps[i * kWarps + warp] = values[i];
    }
    __syncthreads();  // the sums of all warps are there
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = lane < kWarps ? of_warps[i * kWarps + lane] : uint64_t{0};
      values[i] = warp_sum(values[i]);
    }
    __syncthreads();  // and have been read
  }
};

/// Finds the lowest exponent up to which the measures of all tokens sum to at least `enough`, and the sum of the
/// measures below it. The search goes digit by digit, from the highest one: a token counts if its higher digits are
/// those found so far. A thread reads only the exponents that it has written.
template <typename Exponent, typename Measure>
__device__ __forceinline__ uint32_t lowest_with(uint64_t enough, int64_t vocab, const Totals& totals,
                                                const Exponent& exponent_at, const Measure& measure, uint64_t& below) {
  uint32_t found = 0;
  below = 0;
  for (int shift = (kExponentBits - 1) / kDigitBits * kDigitBits; shift >= 0; shift -= kDigitBits) {
    uint64_t sums[kDigits] = {};
    for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
      const uint32_t exponent = exponent_at(i);
      if (exponent >> shift >> kDigitBits != found) continue;
      const uint64_t size = measure(exponent);
#pragma unroll
      for (uint32_t d = 0; d < kDigits; ++d) sums[d] += (exponent >> shift & (kDigits - 1)) == d ? size : 0;
    }
    totals(sums);
    uint32_t digit = 0;
#pragma unroll
    for (int d = 0; d < kDigits - 1; ++d)
      if (static_cast<int>(digit) == d && below + sums[d] < enough) below += sums[d], ++digit;
    found = found << kDigitBits | digit;
  }
  return found;
}

/// Finds the token i at which the sum of the measures of tokens 0 to i exceeds `target`. The warps share a range; the
/// range of the warp with the token is the next one.
template <typename Measure>
__device__ __forceinline__ int64_t token_at(uint64_t target, int64_t vocab, const Shared<uint64_t>& of_warps,
                                            const Measure& measure) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int64_t first = 0;
  for (int64_t count = vocab; count > 1;) {
    const int64_t part = (count + kWarps - 1) / kWarps;
    const int64_t begin = first + warp * part, end = first + (count < (warp + 1) * part ? count : (warp + 1) * part);
    uint64_t sum = 0;
    for (int64_t i = begin + lane; i < end; i += kWarp) sum += measure(i);
    sum = warp_sum(sum);
    if (lane == 0) of_warps[warp] = sum;
    __syncthreads();  // the sums of all warps are there
    int which = 0;
    for (uint64_t of_warp = of_warps[0]; target >= of_warp && which < kWarps - 1; of_warp = of_warps[which])
      target -= of_warp, ++which;
    __syncthreads();  // and have been read
    first += which * part;
    count = count - which * part < part ? count - which * part : part;
  }
  return first;
}

/// Fills the row with its penalised logits, without holes. Returns the highest one, or NaN unless all logits are
/// finite.
__device__ __forceinline__ float prepare(const Sample& args, const SamplingNumbers& numbers, float* logits,
                                         const uint32_t* seen, const Shared<float>& of_warps) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  float top = kLowest, zero = 0.0f;
  for (int64_t i = threadIdx.x; i < args.vocab; i += kThreads) {
    const float given = logits[i];
    float logit = given;
    zero += logit * 0.0f;  // NaN after an infinity or NaN
    if (numbers.penalty != 1 && is_in(seen, i)) logit = penalised(logit, numbers.penalty);
    if (args.holes && is_in(args.holes, i)) logit = kLowest;
    if (logit != given) logits[i] = logit;
    top = fmaxf(top, logit);
  }
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, bits));
    zero += __shfl_xor_sync(kWholeWarp, zero, bits);
  }
  if (lane == 0) of_warps[warp] = zero == 0.0f ? top : __uint_as_float(0x7fffffffu);
  __syncthreads();  // the maxima of all warps are there
  bool finite = true;
  for (int w = 0; w < kWarps; ++w) {
    const float of_warp = of_warps[w];
    finite = finite && of_warp == of_warp;
    top = fmaxf(top, of_warp);
  }
  return finite ? top : __uint_as_float(0x7fffffffu);
}

/// Chooses the token of a row. `sums`: [kDigits, kWarps]; `maxima`: [kWarps].
__device__ __forceinline__ int64_t choose(const Sample& args, const SamplingNumbers& numbers, float* logits,
                                          const uint32_t* seen, uint64_t random, const Shared<uint64_t>& sums,
                                          const Shared<float>& maxima) {
  const float top = prepare(args, numbers, logits, seen, maxima);
  if (top != top) return kNotFinite;
  if (numbers.factor == 0.0f)
    return token_at(0, args.vocab, sums, [&](int64_t i) { return uint64_t{logits[i] == top}; });
  // Their exponents replace the logits.
  for (int64_t i = threadIdx.x; i < args.vocab; i += kThreads)
    logits[i] = __uint_as_float(exponent_of(top - logits[i], numbers.factor));
  const auto exponent_at = [&](int64_t i) { return __float_as_uint(logits[i]); };
  const Totals totals{sums};
  const auto sum_of = [&](const auto& measure) {
    uint64_t total[1] = {};
    for (int64_t i = threadIdx.x; i < args.vocab; i += kThreads) total[0] += measure(i);
    totals(total);
    return total[0];
  };
  uint32_t most = kNoWeight;  // exponents up to this stay
  int64_t last = args.vocab;  // of the tokens with this exponent, those up to this one stay
  uint64_t below;
  if (numbers.top_k > 0) {
    const auto one = [](uint32_t) { return uint64_t{1}; };
    most = lowest_with(numbers.top_k, args.vocab, totals, exponent_at, one, below);
  }
  if (numbers.top_p > 0) {
    const auto weight = [&](uint32_t exponent) { return exponent <= most ? weight_of(exponent) : 0; };
    const uint64_t total = sum_of([&](int64_t i) { return weight(exponent_at(i)); });
    const uint64_t share = high_product(total, numbers.top_p), enough = share > 1 ? share : 1;
    most = lowest_with(enough, args.vocab, totals, exponent_at, weight, below);
    const uint64_t of_one = weight_of(most), more = (enough - below + of_one - 1) / of_one;
    last = token_at(more - 1, args.vocab, sums, [&](int64_t i) { return uint64_t{exponent_at(i) == most}; });
  }
  const auto kept = [&](int64_t i) {
    const uint32_t exponent = exponent_at(i);
    const uint64_t weight = exponent < most || (exponent == most && i <= last) ? weight_of(exponent) : 0;
    return weight >= numbers.min_weight ? weight : 0;
  };
  return token_at(high_product(sum_of(kept), random), args.vocab, sums, kept);
}

__global__ void __launch_bounds__(kThreads) sample_kernel(Sample args, SamplingNumbers numbers) {
  ptx::after_earlier_kernels();
  __shared__ uint64_t of_sums[kDigits * kWarps];
  __shared__ float of_maxima[kWarps];
  const Shared<uint64_t> sums(of_sums);
  const Shared<float> maxima(of_maxima);
  const int64_t row = blockIdx.x, sequence = args.sequences[row];
  uint32_t* const seen = numbers.penalty != 1 ? args.seen + sequence * numbers.words : nullptr;
  TextState text = args.text[sequence];
  uint32_t words[4] = {text.draws, text.text, 0, 1};
  philox_words(words, args.key);
  const int64_t id = choose(args, numbers, args.logits + row * args.stride, seen,
                            static_cast<uint64_t>(words[1]) << 32 | words[0], sums, maxima);
  if (threadIdx.x > 0) return;  // all threads have read the state of the text before the barriers above
  text.id = static_cast<int32_t>(id);
  ++text.token;
  ++text.draws;
  args.text[sequence] = text;
  args.chosen[row] = text.id;
  if (seen && id >= 0) seen[id / 32] |= 1u << id % 32;
}

__global__ void __launch_bounds__(kThreads) next_rows_kernel(NextRows args) {
  ptx::after_earlier_kernels();
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= args.rows) return;
  const TextState text = args.text[args.sequences[row]];
  args.ids[row] = text.id;
  args.places[row] = text.token;
}

}  // namespace

void sample_cuda(LaunchContext& context, const Sample& args) {
  launch(stream_of(context), sample_kernel, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads), 0, args,
         numbers_of(args));
}

void next_rows_cuda(LaunchContext& context, const NextRows& args) {
  launch(stream_of(context), next_rows_kernel, dim3(static_cast<unsigned>(blocks_for(args.rows, kThreads))),
         dim3(kThreads), 0, args);
}

}  // namespace slipstream::kernels
