// SPDX-License-Identifier: Apache-2.0
// The products of a linear layer against direct calls of oneDNN's sgemm on its own OpenMP threads.

#include <fmt/core.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "engine/base/philox.h"
#include "kernels/matmul/matmul.h"
#include "tests/bench/stopwatch.h"

namespace {

using namespace slipstream;
using namespace slipstream::kernels;

struct Shape {
  int64_t rows, in, out;
};

std::vector<float> random(int64_t elems, const char* name) {
  const Philox philox(1, name);
  std::vector<float> values(static_cast<size_t>(elems));
  for (int64_t i = 0; i < elems; ++i)
    values[static_cast<size_t>(i)] =
        static_cast<float>(philox.bits(static_cast<uint64_t>(i) / 2) >> (i % 2 * 32) & 0xffff) / 65536.0f - 0.5f;
  return values;
}

void compare(const char* name, const Shape& s, int threads, const bench::Timing& ours, const bench::Timing& direct) {
  const double flops = 2.0 * static_cast<double>(s.rows) * static_cast<double>(s.in) * static_cast<double>(s.out);
  fmt::print(
      "{:>5} x {:>5} x {:>5}  {:<8} {} thr  ours {:7.1f}  direct {:7.1f} GFLOP/s (medians)  time ratio {:.3f}  best "
      "{:.3f}\n",
      s.rows, s.in, s.out, name, threads, flops / ours.median_s * 1e-9, flops / direct.median_s * 1e-9,
      ours.median_s / direct.median_s, ours.best_s / direct.best_s);
}

void run(const Shape& s, int threads) {
  const auto x = random(s.rows * s.in, "x"), weight = random(s.out * s.in, "weight"), dy = random(s.rows * s.out, "dy");
  std::vector<float> y(dy.size()), dx(x.size()), dweight(weight.size());
  ThreadPool pool(threads);
  LaunchContext context;
  context.pool = &pool;
  // One thread per core on both sides: with other programs about, the scheduler wakes both threads of a pool on one.
  pool.parallel_for(threads, 1, [](int64_t core, int64_t) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(core), &set);
    sched_setaffinity(0, sizeof set, &set);
  });
  // Our pool's threads hold OpenMP to one thread; the direct calls come from a thread that never touches it.
  const auto direct = [&](auto&& body) {
    return [&, body] {
      omp_set_num_threads(threads);
      body();
      omp_set_num_threads(1);
    };
  };
  const int rounds = static_cast<int>(std::clamp<int64_t>(4'000'000'000 / (s.rows * s.in * s.out) + 5, 7, 60));
  const auto t = bench::interleaved(
      rounds,
      {[&] {
         matmul_forward(context, {x.data(), weight.data(), nullptr, y.data(), nullptr, s.rows, s.in, s.out});
       },
       direct([&] {
         dnnl_sgemm('N', 'T', s.rows, s.out, s.in, 1, x.data(), s.in, weight.data(), s.in, 0, y.data(), s.out);
       }),
       [&] {
         matmul_backward_input(context, {dy.data(), weight.data(), dx.data(), s.rows, s.in, s.out});
       },
       direct([&] {
         dnnl_sgemm('N', 'N', s.rows, s.in, s.out, 1, dy.data(), s.out, weight.data(), s.in, 0, dx.data(), s.in);
       }),
       [&] {
         matmul_backward_weight(context,
                                {x.data(), dy.data(), dweight.data(), nullptr, s.rows, s.in, s.out, DType::f32, true});
       },
       direct([&] {
         dnnl_sgemm('T', 'N', s.out, s.in, s.rows, 1, dy.data(), s.out, x.data(), s.in, 1, dweight.data(), s.in);
       })});
  compare("forward", s, threads, t[0], t[1]);
  compare("input", s, threads, t[2], t[3]);
  compare("weight", s, threads, t[4], t[5]);
}

}  // namespace

/// Usage: matmul_bench [threads...]; 1 and 2 by default.
int main(int argc, char** argv) {
  // OpenMP reads these when it is loaded: without the first its idle threads spin through our turn.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) {
    setenv("OMP_WAIT_POLICY", "passive", 1);
    setenv("OMP_PROC_BIND", "true", 1);
    execv("/proc/self/exe", argv);
  }
  std::vector<int> threads;
  for (int i = 1; i < argc; ++i) threads.push_back(std::stoi(argv[i]));
  if (threads.empty()) threads = {1, 2};
  for (const int count : threads)
    for (const Shape& shape :
         {Shape{256, 768, 3072}, Shape{1024, 384, 384}, Shape{768, 128, 512}, Shape{256, 768, 50257}})
      run(shape, count);
}
