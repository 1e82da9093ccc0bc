// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared by the tests of the products, the loss and the optimizer: instruction sets, thread pools, seeded values.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/parallel.h"
#include "engine/base/philox.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"
#include "tests/test.hpp"

namespace slipstream::test {

constexpr uint64_t kSeed = 20261121;

/// The sets that this machine supports.
inline std::vector<kernels::Isa> isas() {
  std::vector<kernels::Isa> all = {kernels::Isa::baseline};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all.push_back(kernels::Isa::avx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    all.push_back(kernels::Isa::avx512);
#endif
  return all;
}

/// Calls the function of a named set, whatever set the process chose.
#define SLIP_CALL_ON(set, call)                         \
  do {                                                  \
    if ((set) == ::slipstream::kernels::Isa::avx512)    \
      ::slipstream::kernels::isa_avx512::call;          \
    else if ((set) == ::slipstream::kernels::Isa::avx2) \
      ::slipstream::kernels::isa_avx2::call;            \
    else                                                \
      ::slipstream::kernels::isa_baseline::call;        \
  } while (false)

/// A context on a pool of 1, 2 or 3 threads that lives as long as the process.
inline LaunchContext context_of(int threads) {
  static std::vector<std::unique_ptr<ThreadPool>> pools(4);
  auto& pool = pools[static_cast<size_t>(threads)];
  if (!pool) pool = std::make_unique<ThreadPool>(threads);
  LaunchContext context;
  context.pool = pool.get();
  return context;
}

/// body(isa, context) for every set and 1, 2 and 3 threads.
template <typename Body>
void for_each_machine(const Body& body) {
  for (kernels::Isa isa : isas())
    for (int threads : {1, 2, 3}) {
      INFO("isa " << kernels::name_of(isa) << ", " << threads << " threads, seed " << kSeed);
      LaunchContext context = context_of(threads);
      body(isa, context);
    }
}

/// Uniform in [-1, 1), the same for the same name, and representable in T.
template <typename T>
std::vector<T> random(int64_t elems, const std::string& name) {
  const Philox philox(kSeed, name);
  std::vector<T> values(static_cast<size_t>(elems));
  for (size_t i = 0; i < values.size(); ++i) values[i] = T(static_cast<float>(philox.uniform(i) * 2.0 - 1.0));
  return values;
}

template <typename T>
double as_double(T value) {
  return static_cast<double>(static_cast<float>(value));
}
inline double as_double(double value) { return value; }  // of a reference: not converted through float

/// Largest difference relative to the largest element of `expected`; infinity if something is not finite.
template <typename T, typename Expected>
double relative_error(const std::vector<T>& got, const Expected& expected) {
  double largest = 0.0, difference = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double want = expected(static_cast<int64_t>(i)), have = as_double(got[i]);
    if (!std::isfinite(have)) return INFINITY;
    largest = std::max(largest, std::abs(want));
    difference = std::max(difference, std::abs(have - want));
  }
  return difference == 0.0 ? 0.0 : difference / std::max(largest, 1e-300);
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace slipstream::test
