// SPDX-License-Identifier: Apache-2.0
// Runs slipstream bench kernels: every op at the sizes of three models, interleaved with its bound.

#include "trainer/bench/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "engine/base/parallel.h"
#include "engine/base/philox.h"
#include "engine/base/print.h"
#include "engine/device/clock.h"
#include "kernels/common/isa.h"
#include "trainer/bench/candidate.h"
#include "trainer/bench/csv_file.h"
#include "trainer/bench/op_cases.h"

namespace slipstream::bench {
namespace {

using namespace kernels;

struct Size {
  const char* name;
  int64_t batch, tokens, heads, width, ffn, vocab;
};
// The models of the comparison with PyTorch.
constexpr Size kSizes[] = {
    {"small", 12, 64, 4, 128, 512, 65}, {"middle", 8, 256, 6, 384, 1536, 256}, {"gpt2", 4, 64, 12, 768, 3072, 50257}};

// The approximate duration of a turn. The pause outlasts the polling of OpenMP's idle threads, which lasts a few
// milliseconds. Woken threads may share a core until the kernel rebalances them some milliseconds later, so the body
// runs for that long before it is timed.
constexpr int64_t kTurnNs = 4'000'000, kWarmNs = 10'000'000;
constexpr auto kPause = std::chrono::milliseconds(6);

/// Returns the median times of one call. The bodies are interleaved.
std::vector<double> interleaved_ns(const std::vector<std::function<void()>>& bodies, int rounds) {
  std::vector<std::vector<double>> seen(bodies.size());
  std::vector<int64_t> calls(bodies.size(), 1);
  for (int round = -1; round < rounds; ++round)
    for (size_t b = 0; b < bodies.size(); ++b) {
      std::this_thread::sleep_for(kPause);
      int64_t begin = monotonic_ns();
      do bodies[b]();
      while (monotonic_ns() - begin < kWarmNs);
      begin = monotonic_ns();
      for (int64_t i = 0; i < calls[b]; ++i) bodies[b]();
      const double ns = static_cast<double>(monotonic_ns() - begin) / static_cast<double>(calls[b]);
      if (round < 0)
        calls[b] = std::clamp<int64_t>(static_cast<int64_t>(kTurnNs / std::max(1.0, ns)), 1, 10000);
      else
        seen[b].push_back(ns);
    }
  std::vector<double> medians;
  for (std::vector<double>& values : seen) medians.push_back(median(std::move(values)));
  return medians;
}

/// The bound of a product is the time of the library, called directly with the same shape and threads. The bound of
/// every other op is the larger of two times: a copy of the same bytes, and its operations at the rate of a large
/// product. Bound and op are interleaved, so that a busy machine slows both. Prints a line and writes a row for each
/// op.
class KernelBench final : OpCases {
 public:
  /// Throws: IoError if the CSV cannot be written.
  explicit KernelBench(const KernelsOptions& options) : options_(options) {
    csv_.open(options_.csv, "op,dtype,size,shape,threads,time_us,gflops,gbytes_per_s,bound,bound_us,share_of_bound\n");
  }

  void run() {
    for (int threads : options_.threads) {
      if (threads < 1) throw ConfigError("[bench] --threads {} must be at least 1.", threads);
      ThreadPool pool(threads);
      context_.pool = &pool;
      measure_rates();
      for (const Size& size : kSizes)
        for (DType dtype : {DType::f32, DType::bf16}) {
          size_ = &size, dtype_ = dtype;
          ops_of(size);
        }
    }
    if (!found_)
      throw ConfigError(
          "[bench] no row of 'op dtype size' contains --only '{}'. Use part of a row, for instance matmul or 'float32 "
          "gpt2'.",
          options_.only);
  }

 private:
  void ops_of(const Size& s) {
    const int64_t rows = s.batch * s.tokens, head_dim = s.width / s.heads;
    products({.name = "qkv", .rows = rows, .in = s.width, .out = 3 * s.width});
    products({.name = "projection", .rows = rows, .in = s.width, .out = s.width});
    products({.name = "up", .rows = rows, .in = s.width, .out = s.ffn});
    products({.name = "down", .rows = rows, .in = s.ffn, .out = s.width});
    products({.name = "head", .rows = rows, .in = s.width, .out = s.vocab});
    activations(rows, s.ffn);
    experts(rows, s.width, s.ffn / 2, 8, 2);
    experts(rows, s.width, s.ffn / 8, 64, 8);
    residuals(s.batch, s.tokens, s.width);
    layer_norm(rows, s.width);
    rms_norm(rows, s.width);
    head_norm(rows, s.heads, head_dim);
    attention(s.batch, s.tokens, s.heads, s.heads, head_dim, false);
    rope(s.batch, s.tokens, s.heads, head_dim, 3 * s.width);
    embedding(s.batch, s.tokens, s.width, s.vocab, s.vocab);
    loss(rows, s.vocab, s.vocab);
    // These ops use float for every activation type, here over the parameters of one block.
    if (dtype_ == DType::f32) update(12 * s.width * s.width + 13 * s.width, false);
  }

  bool wanted(const std::string& op) override {
    return fmt::format("{} {} {}", op, name_of(dtype_), size_->name).find(options_.only) != std::string::npos;
  }
  void* take(int64_t size_bytes) override {
    memory_.emplace_back(static_cast<size_t>(size_bytes) / sizeof(Line) + 1);
    return memory_.back().data();
  }
  void* values(int64_t elems, DType dtype, float scale) override {
    void* at = take(bytes_of(elems, dtype));
    for (int64_t i = 0; i < elems; ++i) {
      const float value =
          scale * (static_cast<float>(static_cast<uint32_t>(i) * 2654435761u >> 16 & 0xffff) / 65536.0f - 0.5f);
      if (dtype == DType::f32)
        static_cast<float*>(at)[i] = value;
      else
        static_cast<bfloat16*>(at)[i] = bfloat16(value);
    }
    return at;
  }
  int32_t* ids(int64_t elems, int64_t below) override {
    auto* at = static_cast<int32_t*>(take(4 * elems));
    const Philox random(2, "ids");
    for (int64_t i = 0; i < elems; ++i)
      at[i] = static_cast<int32_t>(random.zipf(static_cast<uint64_t>(i), static_cast<uint64_t>(below)));
    return at;
  }
  void upload(void* to, const void* from, int64_t size_bytes) override {
    std::memcpy(to, from, static_cast<size_t>(size_bytes));
  }
  void free_all() override { memory_.clear(); }
  std::optional<DType> direct_type() const override { return product_has_bf16() ? dtype_ : DType::f32; }

  void copy_bytes(int64_t bytes) {
    const int64_t half = std::min<int64_t>(bytes / 2, static_cast<int64_t>(from_.size()));
    context_.pool->parallel_for(half, 64 << 10, [&](int64_t begin, int64_t end) {
      std::memcpy(to_.data() + begin, from_.data() + begin, static_cast<size_t>(end - begin));
    });
  }

  /// Measures the rates of a copy and of a large product on the context's threads.
  void measure_rates() {
    from_.assign(256 << 20, std::byte{1});
    to_.assign(from_.size(), std::byte{2});
    const int64_t n = 1024;
    const int threads = context_.pool->threads();
    const Product large{.a = floats(n * n),
                        .a_stride = n,
                        .b = floats(n * n),
                        .b_stride = n,
                        .c = floats(n * n),
                        .c_stride = n,
                        .m = n,
                        .n = n,
                        .k = n};
    const std::vector<double> ns = interleaved_ns({[&] { copy_bytes(int64_t{2} * static_cast<int64_t>(from_.size())); },
                                                   [&] {
                                                     if (!product_direct(large, DType::f32, threads))
                                                       product_f32(large);
                                                   }},
                                                  3);
    free_all();
    flops_per_ns_ = 2.0 * static_cast<double>(n * n * n) / ns[1];
    print_result(
        "{}, {}, {} thread{}: copy through memory {:.1f} GB/s (read and written), product of 1024 x 1024 x 1024 {:.1f} "
        "GFLOP/s; medians of {} interleaved rounds\n"
        "{:<32}{:<10}{:<8}{:<28}{:>12}{:>10}{:>9}{:>12}{:>9}  {}\n",
        product_library(), name_of(isa()), threads, threads == 1 ? "" : "s",
        2.0 * static_cast<double>(from_.size()) / ns[0], flops_per_ns_, options_.rounds, "op", "dtype", "size", "shape",
        "us", "GFLOP/s", "GB/s", "bound us", "share", "bound by");
  }

  void measure(const OpCase& op) override {
    if (!wanted(op.op)) return;
    found_ = true;
    const int threads = context_.pool->threads();
    const DType direct = *direct_type();
    if (op.direct.k > 0 && product_direct(op.direct, direct, threads)) {
      const std::vector<double> ns =
          interleaved_ns({op.run, [&] { product_direct(op.direct, direct, threads); }}, options_.rounds);
      return print(op, ns[0], ns[1], direct == dtype_ ? "library" : "library in float32");
    }
    // The copy has as many bytes as the op, so that both stay in the cache or both use memory.
    const std::vector<double> ns = interleaved_ns({op.run, [&] { copy_bytes(op.cost.bytes); }}, options_.rounds);
    const double arithmetic_ns = static_cast<double>(op.cost.flops) / flops_per_ns_;
    const double copied = std::min(
        1.0, 2.0 * static_cast<double>(from_.size()) / static_cast<double>(std::max<int64_t>(1, op.cost.bytes)));
    const double copy_ns = ns[1] / copied;
    print(op, ns[0], std::max(arithmetic_ns, copy_ns), copy_ns > arithmetic_ns ? "copy" : "operations");
  }

  void print(const OpCase& op, double ns, double bound_ns, const char* bound) {
    const double gflops = static_cast<double>(op.cost.flops) / ns, gbytes = static_cast<double>(op.cost.bytes) / ns;
    print_result("{:<32}{:<10}{:<8}{:<28}{:>12.1f}{:>10.1f}{:>9.1f}{:>12.1f}{:>8.0f}%  {}\n", op.op, name_of(dtype_),
                 size_->name, op.shape, ns / 1e3, gflops, gbytes, bound_ns / 1e3, 100 * bound_ns / ns, bound);
    flush_printed();
    csv_.row("{},{},{},{},{},{:.6g},{:.6g},{:.6g},{},{:.6g},{:.6g}\n", op.op, name_of(dtype_), size_->name, op.shape,
             context_.pool->threads(), ns / 1e3, gflops, gbytes, bound, bound_ns / 1e3, bound_ns / ns);
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  const KernelsOptions& options_;
  const Size* size_ = nullptr;
  bool found_ = false;  // --only selects at least one row
  std::vector<std::vector<Line>> memory_;
  std::vector<std::byte> from_, to_;
  double flops_per_ns_ = 0;
  CsvFile csv_;
};

}  // namespace

int bench_kernels(const KernelsOptions& options) {
  if (options.rounds < 1) throw ConfigError("[bench] --rounds {} must be at least 1.", options.rounds);
  KernelBench(options).run();
  return 0;
}

}  // namespace slipstream::bench
