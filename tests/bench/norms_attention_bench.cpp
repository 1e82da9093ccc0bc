// SPDX-License-Identifier: Apache-2.0
// Medians of the norms, activations and attention against measured bounds: FMA peak, and a copy through memory.
//
// An argument picks the lines that hold it. One thread, its own CPU time (other processes of the machine do not count).
// Prints time, GFLOP/s or GB/s by the op's own cost, and its share of the bound measured in this process.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/gelu/gelu.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/residual/residual.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/swiglu/swiglu.h"

using namespace slipstream;
using namespace slipstream::kernels;

namespace {

/// Normal values; for bf16 in the first half of the vector's bytes.
std::vector<float> random_values(int64_t elems, DType dtype = DType::f32) {
  static std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(elems));
  for (int64_t i = 0; i < elems; ++i) {
    const float value = normal(generator);
    const bfloat16 half(value);
    if (dtype == DType::f32)
      values[static_cast<size_t>(i)] = value;
    else
      std::memcpy(reinterpret_cast<std::byte*>(values.data()) + 2 * i, &half, 2);
  }
  return values;
}

template <typename F>
double median_ns(F body) {
  std::vector<double> times;
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  while (times.size() < 9 || (now() - start < 1e8 && times.size() < 2000)) {
    const double before = now();
    body();
    times.push_back(now() - before);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) float fma_loop(int64_t rounds) {
  typedef float V __attribute__((vector_size(32)));
  V a[12];
  for (int i = 0; i < 12; ++i) a[i] = V{} + static_cast<float>(i);
  V b = V{} + 0.999f;
  V c = V{} + 0.001f;
  asm volatile("" : "+x"(b), "+x"(c));
  for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) a[i] = a[i] * b + c;
  float total = 0;
  for (int i = 0; i < 12; ++i) total += a[i][0];
  return total;
}
double peak_gflops() {
  volatile float sink = 0;
  constexpr int64_t kRounds = 100000;
  return 12 * 16.0 * kRounds / median_ns([&] { sink = fma_loop(kRounds); });
}
#else
double peak_gflops() {
  return 0.0;
}
#endif

struct Bounds {
  double gflops;
  double gbytes;
};

std::string wanted;  // only names that hold it

template <typename F>
void bench(const std::string& name, F body, const Cost& cost, const Bounds& bounds) {
  if (name.find(wanted) == std::string::npos) return;
  const double time_ns = median_ns(body);
  const double gflops = static_cast<double>(cost.flops) / time_ns;
  const double gbytes = static_cast<double>(cost.bytes) / time_ns;
  fmt::print("{:<44} {:>9.1f} us {:>7.1f} GFLOP/s {:>4.0f} % {:>7.1f} GB/s {:>4.0f} %\n", name, time_ns / 1e3, gflops,
             100 * gflops / bounds.gflops, gbytes, 100 * gbytes / bounds.gbytes);
}

struct Shape {
  int64_t batch, tokens, heads, kv_heads, head_dim;
};

void bench_attention(LaunchContext& context, const Bounds& bounds, const Shape& s, DType dtype) {
  const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
  const int64_t out_width = s.heads * s.head_dim;
  const int64_t rows = s.batch * s.tokens;
  std::vector<float> qkv = random_values(rows * width, dtype), dout = random_values(rows * out_width, dtype);
  std::vector<float> out(static_cast<size_t>(rows * out_width)), dqkv(qkv.size());
  std::vector<float> lse(static_cast<size_t>(rows * s.heads));
  const auto at = [&](std::vector<float>& values, int64_t elems) -> void* {
    return reinterpret_cast<std::byte*>(values.data()) + bytes_of(elems, dtype);
  };
  const int64_t k = s.heads * s.head_dim, v = k + s.kv_heads * s.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  const AttentionForward forward = {at(qkv, 0), at(qkv, k), at(qkv, v), out.data(), lse.data(),
                                    s.batch,    s.tokens,   s.heads,    s.kv_heads, s.head_dim,
                                    width,      width,      out_width,  scale,      dtype};
  AttentionBackward backward = {dout.data(), at(qkv, 0),  at(qkv, k),  at(qkv, v), out.data(), lse.data(),
                                at(dqkv, 0), at(dqkv, k), at(dqkv, v), nullptr,    s.batch,    s.tokens,
                                s.heads,     s.kv_heads,  s.head_dim,  width,      width,      out_width,
                                width,       width,       scale,       dtype};
  std::vector<float> workspace(static_cast<size_t>(attention_backward_workspace_elems(backward)));
  backward.workspace = workspace.data();
  const std::string shape =
      fmt::format("{} B{} T{} H{}/{} E{}", name_of(dtype), s.batch, s.tokens, s.heads, s.kv_heads, s.head_dim);
  bench(
      "attention_forward " + shape, [&] { attention_forward(context, forward); }, attention_forward_cost(forward),
      bounds);
  bench(
      "attention_backward " + shape, [&] { attention_backward(context, backward); }, attention_backward_cost(backward),
      bounds);
}

void bench_norms(LaunchContext& context, const Bounds& bounds, int64_t rows, int64_t width, DType dtype) {
  const std::string shape = fmt::format("{} {} x {}", name_of(dtype), rows, width);
  std::vector<float> x = random_values(rows * width, dtype), delta(x), sum(x), y(x),
                     weight = random_values(width, dtype), bias(weight);
  std::vector<float> mean(static_cast<size_t>(rows)), inv(mean), dweight(weight), dbias(weight);
  std::vector<float> workspace(static_cast<size_t>(layer_norm_backward_workspace_elems(rows, width)));
  const LayerNormForward ln = {x.data(),    delta.data(), sum.data(), weight.data(), bias.data(), y.data(),
                               mean.data(), inv.data(),   rows,       width,         1e-5f,       dtype};
  bench(
      "layer_norm_forward+delta " + shape, [&] { layer_norm_forward(context, ln); }, layer_norm_forward_cost(ln),
      bounds);
  const LayerNormBackward lb = {y.data(),     sum.data(), weight.data(),  mean.data(),  inv.data(),
                                delta.data(), x.data(),   dweight.data(), dbias.data(), workspace.data(),
                                rows,         width,      dtype};
  bench(
      "layer_norm_backward+residual " + shape, [&] { layer_norm_backward(context, lb); }, layer_norm_backward_cost(lb),
      bounds);
  const RmsNormForward rn = {sum.data(), delta.data(), sum.data(), weight.data(), y.data(),
                             inv.data(), rows,         width,      1e-5f,         dtype};
  bench(
      "rms_norm_forward+delta " + shape, [&] { rms_norm_forward(context, rn); }, rms_norm_forward_cost(rn), bounds);
  const RmsNormBackward rb = {y.data(),       sum.data(),       weight.data(), inv.data(), delta.data(), x.data(),
                              dweight.data(), workspace.data(), rows,          width,      dtype};
  bench(
      "rms_norm_backward+residual " + shape, [&] { rms_norm_backward(context, rb); }, rms_norm_backward_cost(rb),
      bounds);
}

void bench_activations(LaunchContext& context, const Bounds& bounds, int64_t rows, int64_t width, DType dtype) {
  const std::string shape = fmt::format("{} {} x {}", name_of(dtype), rows, width);
  std::vector<float> x = random_values(2 * rows * width, dtype), y = random_values(rows * width, dtype), d(x);
  const GeluForward gf = {x.data(), y.data(), rows * width, dtype};
  bench(
      "gelu_forward " + shape, [&] { gelu_forward(context, gf); }, gelu_forward_cost(gf), bounds);
  const GeluBackward gb = {y.data(), x.data(), d.data(), rows * width, dtype};
  bench(
      "gelu_backward " + shape, [&] { gelu_backward(context, gb); }, gelu_backward_cost(gb), bounds);
  const SwigluForward sf = {x.data(), y.data(), rows, width, dtype};
  bench(
      "swiglu_forward " + shape, [&] { swiglu_forward(context, sf); }, swiglu_forward_cost(sf), bounds);
  const SwigluBackward sb = {y.data(), x.data(), d.data(), rows, width, dtype};
  bench(
      "swiglu_backward " + shape, [&] { swiglu_backward(context, sb); }, swiglu_backward_cost(sb), bounds);
  const Residual rs = {y.data(), d.data(), x.data(), rows * width, dtype};
  bench(
      "residual " + shape, [&] { residual(context, rs); }, residual_cost(rs), bounds);
}

void bench_rope(LaunchContext& context, const Bounds& bounds, int64_t batch, int64_t tokens, int64_t heads,
                int64_t head_dim) {
  std::vector<float> x = random_values(batch * tokens * heads * head_dim),
                     table(static_cast<size_t>(tokens * head_dim));
  rope_table(table.data(), tokens, head_dim, 10000.0f);
  const Rope args = {x.data(), batch, tokens, heads,      head_dim,    heads * head_dim,
                     10000.0f, 0,     false,  DType::f32, table.data()};
  bench(
      fmt::format("rope float32 B{} T{} H{} E{}", batch, tokens, heads, head_dim), [&] { rope(context, args); },
      rope_cost(args), bounds);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) wanted = argv[1];
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  std::vector<float> from = random_values(16 << 20), to(from.size());
  const double copy_ns = median_ns([&] { std::memcpy(to.data(), from.data(), from.size() * sizeof(float)); });
  const Bounds bounds = {peak_gflops(), 2.0 * static_cast<double>(from.size() * sizeof(float)) / copy_ns};
  fmt::print("{}: FMA peak {:.1f} GFLOP/s, copy through memory {:.1f} GB/s (in cache an op may pass it)\n",
             name_of(isa()), bounds.gflops, bounds.gbytes);
  for (DType dtype : {DType::f32, DType::bf16}) {
    bench_attention(context, bounds, {12, 64, 4, 4, 32}, dtype);
    bench_attention(context, bounds, {8, 256, 6, 6, 64}, dtype);
    bench_attention(context, bounds, {1, 1024, 12, 4, 64}, dtype);
  }
  for (DType dtype : {DType::f32, DType::bf16}) {
    bench_norms(context, bounds, 768, 128, dtype);
    bench_norms(context, bounds, 2048, 384, dtype);
    bench_activations(context, bounds, 768, 512, dtype);
    bench_activations(context, bounds, 2048, 1536, dtype);
  }
  bench_rope(context, bounds, 8, 256, 6, 64);
}
