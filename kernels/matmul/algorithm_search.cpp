// SPDX-License-Identifier: Apache-2.0
// Times cuBLASLt's algorithms on this GPU. Host waits are allowed, because no training runs meanwhile.

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "engine/base/check.h"
#include "engine/device/clock.h"
#include "kernels/cuda/cublaslt_types.h"
#include "kernels/matmul/matmul.h"

namespace slipstream::kernels {
namespace {

constexpr size_t kNoiseBytes = size_t{1} << 20;

class Memory {
 public:
  explicit Memory(int64_t size_bytes) {
    cuda_check(cudaMalloc(&block_, static_cast<size_t>(std::max<int64_t>(size_bytes, 256))),
               "allocating memory to time products in");
  }
  ~Memory() { cudaFree(block_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  unsigned char* data() const { return static_cast<unsigned char*>(block_); }

 private:
  void* block_ = nullptr;
};

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    cuda_check(cudaEventCreate(&begin_), "making an event");
    cuda_check(cudaEventCreate(&end_), "making an event");
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// The median over rounds of the time of one of `calls` calls of body(i); infinite if a call returns false.
  template <typename Body>
  double us_of(int rounds, int calls, const Body& body) {
    if (!body(0)) return std::numeric_limits<double>::infinity();
    std::vector<double> seen;
    for (int round = 0; round < rounds; ++round) {
      cuda_check(cudaEventRecord(begin_, stream_), "timing products");
      for (int i = 0; i < calls; ++i)
        if (!body(i)) return std::numeric_limits<double>::infinity();
      cuda_check(cudaEventRecord(end_, stream_), "timing products");
      cuda_check(cudaEventSynchronize(end_), "timing products");
      float ms = 0;
      cuda_check(cudaEventElapsedTime(&ms, begin_, end_), "timing products");
      seen.push_back(static_cast<double>(ms) * 1e3 / calls);
    }
    std::nth_element(seen.begin(), seen.begin() + static_cast<long>(seen.size() / 2), seen.end());
    return seen[seen.size() / 2];
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// Several sets of the operands of one product, filled with noise. With zeros, or with operands in the cache, products
/// run faster than in training.
class Operands {
 public:
  Operands(const ProductShape& p, int64_t rotate_bytes, cudaStream_t stream)
      : product_(p),
        sizes_{bytes(p.a_transposed ? p.m : p.k, p.a_ld, p.in), bytes(p.b_transposed ? p.k : p.n, p.b_ld, p.in),
               bytes(p.n, p.d_ld, p.out), bytes(1, std::max(p.m, p.n), DType::f32), bytes(p.n, p.d_ld, p.in)} {
    for (int64_t size : sizes_) set_bytes_ += size;
    sets_ = static_cast<int>(std::clamp<int64_t>(rotate_bytes / set_bytes_, 2, 64));
    memory_ = std::make_unique<Memory>(sets_ * set_bytes_);
    std::vector<uint32_t> noise(kNoiseBytes / 4);
    uint32_t state = 1;
    for (uint32_t& word : noise) {
      state = state * 1664525u + 1013904223u;
      word = 0x3c003c00u | (state >> 8 & 0x83ff83ffu);  // small values in float and in both bfloat16 halves
    }
    // Copies the host's noise once, and then doubles the filled part each time.
    const size_t all = static_cast<size_t>(sets_ * set_bytes_);
    size_t filled = std::min(kNoiseBytes, all);
    cuda_check(cudaMemcpyAsync(memory_->data(), noise.data(), filled, cudaMemcpyHostToDevice, stream),
               "filling operands");
    for (; filled < all; filled += std::min(filled, all - filled))
      cuda_check(cudaMemcpyAsync(memory_->data() + filled, memory_->data(), std::min(filled, all - filled),
                                 cudaMemcpyDeviceToDevice, stream),
                 "filling operands");
    cuda_check(cudaStreamSynchronize(stream), "filling operands");
  }

  int sets() const { return sets_; }
  /// Returns room for a float per row or column of D.
  float* sums(int call) const { return reinterpret_cast<float*>(places(call)[3]); }
  Gemm gemm(int call) const {
    const ProductShape& p = product_;
    const std::array<unsigned char*, 5> at = places(call);
    Gemm args{.a = at[0],
              .b = at[1],
              .d = at[2],
              .m = p.m,
              .n = p.n,
              .k = p.k,
              .a_ld = p.a_ld,
              .b_ld = p.b_ld,
              .d_ld = p.d_ld,
              .a_transposed = p.a_transposed,
              .b_transposed = p.b_transposed,
              .in = p.in,
              .out = p.out,
              .accumulate = p.accumulate};
    if (p.epilogue == Epilogue::bias || p.epilogue == Epilogue::gelu_bias) args.bias = at[3];
    if (p.epilogue == Epilogue::bias_gradient) args.b_sums = at[3];
    if (p.epilogue == Epilogue::gelu || p.epilogue == Epilogue::gelu_bias) args.pre_gelu = at[4];
    if (is_gradient(p.epilogue) && !args.b_sums) args.gelu_input = at[4];
    if (p.epilogue == Epilogue::gelu_bias_gradient) args.d_sums = at[3];
    args.summed_after = p.epilogue == Epilogue::summed_gelu_gradient;
    return args;
  }

 private:
  std::array<unsigned char*, 5> places(int call) const {
    std::array<unsigned char*, 5> at;
    unsigned char* next = memory_->data() + call % sets_ * set_bytes_;
    for (size_t i = 0; i < sizes_.size(); next += sizes_[i++]) at[i] = next;
    return at;
  }
  static int64_t bytes(int64_t columns, int64_t ld, DType dtype) {
    return (bytes_of(columns * ld, dtype) + 255) / 256 * 256;
  }

  ProductShape product_;
  std::array<int64_t, 5> sizes_;
  int64_t set_bytes_ = 0;
  int sets_ = 0;
  std::unique_ptr<Memory> memory_;
};

/// The fastest of the library's candidates; us is infinite if none runs.
TimedAlgorithm fastest(LaunchContext& context, Stopwatch& watch, const Operands& operands, const ProductShape& product,
                       const SearchOptions& options) {
  const lt::Tools tools = lt::tools_of(context);
  // They are described for every set of operands before the stopwatch starts. Otherwise host time that exceeds the
  // GPU's would be measured.
  std::vector<std::unique_ptr<const lt::Described>> described;
  for (int i = 0; i < operands.sets(); ++i) described.push_back(std::make_unique<lt::Described>(operands.gemm(i)));
  TimedAlgorithm best{.us = std::numeric_limits<double>::infinity()};
  for (const cublasLtMatmulAlgo_t& candidate :
       described[0]->candidates(tools.handle, product.alignment_bytes, options.candidates)) {
    const double us = watch.us_of(options.rounds, operands.sets(), [&](int i) {
      return described[static_cast<size_t>(i)]->enqueue(tools.handle, operands.gemm(i), candidate, tools.workspace,
                                                        stream_of(context)) == CUBLAS_STATUS_SUCCESS;
    });
    if (best.first_us == 0) best.first_us = us;
    if (us < best.us) best.us = us, best.algorithm = lt::bits_of(candidate);
  }
  if (!(best.first_us < std::numeric_limits<double>::infinity())) best.first_us = best.us;
  return best;
}

/// The time of everything that computes the same without this fused gradient, less the work that the fused one still
/// needs after it.
double apart_us(LaunchContext& context, Stopwatch& watch, const Operands& operands, const ProductShape& p,
                const SearchOptions& options, const AlgorithmTable& table) {
  const auto us = [&](const auto& body) {
    return watch.us_of(options.rounds, operands.sets(), [&](int i) {
      body(operands.gemm(i), operands.sums(i));
      return true;
    });
  };
  const auto known = [&](Epilogue epilogue) {
    ProductShape other = p;
    other.epilogue = epilogue;
    const TimedAlgorithm* timed = table.find(other);
    return std::pair(other, timed);
  };
  const auto plain_us = [&] {
    const auto [plain, timed] = known(Epilogue::none);
    return timed
               ? timed->us
               : fastest(context, watch, Operands(plain, options.rotate_bytes, stream_of(context)), plain, options).us;
  };
  const auto sums_us = [&](bool of_d, int64_t rows) {
    return us([&](const Gemm& g, float* sums) {
      matmul_backward_weight_cuda(context, {.dy = of_d ? g.d : g.b,
                                            .dbias = sums,
                                            .rows = rows,
                                            .out = of_d ? p.m : p.n,
                                            .dtype = of_d ? p.out : p.in,
                                            .accumulate = p.accumulate,
                                            .dy_stride = of_d ? p.d_ld : p.b_ld});
    });
  };
  const auto gelu_us = [&](bool summed) {
    return us([&](const Gemm& g, float* sums) {
      gelu_gradient_cuda(context, {.dx = g.d,
                                   .rows = p.n,
                                   .in = p.m,
                                   .dtype = p.out,
                                   .pre_activation = g.gelu_input,
                                   .dbias = summed ? sums : nullptr});
    });
  };
  switch (p.epilogue) {
    case Epilogue::gelu_gradient:
      return plain_us() + gelu_us(false);
    case Epilogue::bias_gradient:
      return plain_us() + sums_us(false, p.k) - (p.accumulate ? sums_us(false, 0) : 0);
    case Epilogue::summed_gelu_gradient:
      return plain_us() + gelu_us(true) - sums_us(true, p.n);
    case Epilogue::gelu_bias_gradient: {
      const TimedAlgorithm* summed = known(Epilogue::summed_gelu_gradient).second;
      const double apart = plain_us() + gelu_us(true);
      return (summed ? std::min(apart, summed->us + sums_us(true, p.n)) : apart) - sums_us(true, 0);
    }
    default:
      return 0;
  }
}

}  // namespace

size_t search_algorithms(LaunchContext& context, const std::vector<ProductShape>& products,
                         const SearchOptions& options, AlgorithmTable& table,
                         const std::function<void(const ProductShape&, const TimedAlgorithm&)>& added) {
  const int64_t began_ns = monotonic_ns();
  Stopwatch watch(stream_of(context));
  size_t left = 0;
  for (ProductShape product : products) {
    product.multiprocessors = 0;
    if (table.find(product)) continue;
    if (options.seconds > 0 && static_cast<double>(monotonic_ns() - began_ns) > 1e9 * options.seconds) {
      ++left;
      continue;
    }
    const Operands operands(product, options.rotate_bytes, stream_of(context));
    TimedAlgorithm timed = fastest(context, watch, operands, product, options);
    if (!(timed.us < std::numeric_limits<double>::infinity())) continue;
    timed.apart_us = apart_us(context, watch, operands, product, options, table);
    table.set(product, timed);
    if (added) added(product, timed);
  }
  return left;
}

}  // namespace slipstream::kernels
