// SPDX-License-Identifier: Apache-2.0
// Runs the ops and their bounds in turns, and prints the table.

#include "trainer/bench/kernel_timer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "engine/base/parallel.h"
#include "engine/base/philox.h"
#include "engine/base/print.h"
#include "engine/device/clock.h"
#include "kernels/common/isa.h"
#include "trainer/bench/candidate.h"

namespace slipstream::bench {
namespace {

// The approximate duration of a turn. The pause outlasts the polling of OpenMP's idle threads, which lasts a few
// milliseconds. Woken threads may share a core until the kernel rebalances them some milliseconds later, so the body
// runs for that long before it is timed.
constexpr int64_t kTurnNs = 4'000'000, kWarmNs = 10'000'000;
constexpr auto kPause = std::chrono::milliseconds(6);

/// Returns the median times of one call. The bodies are interleaved.
std::vector<double> interleaved_ns(const std::vector<KernelTimer::Body>& bodies, int rounds) {
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

}  // namespace

using namespace kernels;

KernelTimer::KernelTimer(const KernelsOptions& options) : options_(options) {
  csv_.open(options_.csv, "op,dtype,size,shape,threads,time_us,gflops,gbytes_per_s,bound,bound_us,share_of_bound\n");
}

bool KernelTimer::wanted(const std::string& op) {
  const bool holds = fmt::format("{} {} {}", op, name_of(dtype_), size_->name).find(options_.only) != std::string::npos;
  found_ = found_ || holds;
  return holds;
}

void* KernelTimer::values(int64_t elems, DType dtype) {
  memory_.emplace_back(static_cast<size_t>(bytes_of(elems, dtype)) / 64 + 1);
  void* at = memory_.back().data();
  for (int64_t i = 0; i < elems; ++i) {
    const float value = static_cast<float>(static_cast<uint32_t>(i) * 2654435761u >> 16 & 0xffff) / 65536.0f - 0.5f;
    if (dtype == DType::f32)
      static_cast<float*>(at)[i] = value;
    else
      static_cast<bfloat16*>(at)[i] = bfloat16(value);
  }
  return at;
}

const int32_t* KernelTimer::ids(int64_t elems, int64_t vocab) {
  auto* at = reinterpret_cast<int32_t*>(floats(elems));
  const Philox random(2, "ids");
  for (int64_t i = 0; i < elems; ++i)
    at[i] = static_cast<int32_t>(random.zipf(static_cast<uint64_t>(i), static_cast<uint64_t>(vocab)));
  return at;
}

void KernelTimer::copy_bytes(int64_t bytes) {
  const int64_t half = std::min<int64_t>(bytes / 2, static_cast<int64_t>(from_.size()));
  context_.pool->parallel_for(half, 64 << 10, [&](int64_t begin, int64_t end) {
    std::memcpy(to_.data() + begin, from_.data() + begin, static_cast<size_t>(end - begin));
  });
}

void KernelTimer::measure_rates(const Size& any) {
  from_.assign(256 << 20, std::byte{1});
  to_.assign(from_.size(), std::byte{2});
  const int64_t n = 1024;
  const int threads = context_.pool->threads();
  size_ = &any, dtype_ = DType::f32;
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
                                                   if (!product_direct(large, DType::f32, threads)) product_f32(large);
                                                 }},
                                                3);
  memory_.clear();
  flops_per_ns_ = 2.0 * static_cast<double>(n * n * n) / ns[1];
  print_result(
      "{}, {}, {} thread{}: copy through memory {:.1f} GB/s (read and written), product of 1024 x 1024 x 1024 {:.1f} "
      "GFLOP/s; medians of {} interleaved rounds\n"
      "{:<26}{:<10}{:<8}{:<28}{:>12}{:>10}{:>9}{:>12}{:>9}  {}\n",
      product_library(), name_of(isa()), threads, threads == 1 ? "" : "s",
      2.0 * static_cast<double>(from_.size()) / ns[0], flops_per_ns_, options_.rounds, "op", "dtype", "size", "shape",
      "us", "GFLOP/s", "GB/s", "bound us", "share", "bound by");
}

void KernelTimer::compare(const std::string& op, const std::string& shape, const Cost& cost, const Body& ours) {
  if (!wanted(op)) return;
  const std::vector<double> ns = interleaved_ns({ours, [&] { copy_bytes(cost.bytes); }}, options_.rounds);
  const double arithmetic_ns = static_cast<double>(cost.flops) / flops_per_ns_;
  const double copied =
      std::min(1.0, 2.0 * static_cast<double>(from_.size()) / static_cast<double>(std::max<int64_t>(1, cost.bytes)));
  const double copy_ns = ns[1] / copied;
  print(op, shape, cost, ns[0], std::max(arithmetic_ns, copy_ns), copy_ns > arithmetic_ns ? "copy" : "operations");
}

void KernelTimer::compare_product(const std::string& op, const std::string& shape, const Cost& cost, const Body& ours,
                                  const Product& direct) {
  if (!wanted(op)) return;
  const int threads = context_.pool->threads();
  const DType dtype = product_has_bf16() ? dtype_ : DType::f32;
  if (!product_direct(direct, dtype, threads)) return compare(op, shape, cost, ours);
  const std::vector<double> ns =
      interleaved_ns({ours, [&] { product_direct(direct, dtype, threads); }}, options_.rounds);
  print(op, shape, cost, ns[0], ns[1], dtype == dtype_ ? "library" : "library in float32");
}

void KernelTimer::print(const std::string& op, const std::string& shape, const Cost& cost, double ns, double bound_ns,
                        const char* bound) {
  const double gflops = static_cast<double>(cost.flops) / ns, gbytes = static_cast<double>(cost.bytes) / ns;
  print_result("{:<26}{:<10}{:<8}{:<28}{:>12.1f}{:>10.1f}{:>9.1f}{:>12.1f}{:>8.0f}%  {}\n", op, name_of(dtype_),
               size_->name, shape, ns / 1e3, gflops, gbytes, bound_ns / 1e3, 100 * bound_ns / ns, bound);
  flush_printed();
  csv_.row("{},{},{},{},{},{:.6g},{:.6g},{:.6g},{},{:.6g},{:.6g}\n", op, name_of(dtype_), size_->name, shape,
           context_.pool->threads(), ns / 1e3, gflops, gbytes, bound, bound_ns / 1e3, bound_ns / ns);
}

}  // namespace slipstream::bench
