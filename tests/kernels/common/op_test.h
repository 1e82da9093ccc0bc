// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared by the tests of ops: tensors of either type with their exact doubles, threads and instruction sets to run on.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"
#include "tests/test.hpp"

namespace slipstream::test {

using Doubles = std::vector<double>;

/// Elements of `dtype` followed by guards of NaN: a read past the end shows as NaN, a write as a changed guard.
class Tensor {
 public:
  Tensor(int64_t elems, DType dtype)
      : dtype_(dtype), elems_(elems), bytes_(static_cast<size_t>(bytes_of(elems, dtype)) + kGuard, 0xff) {}
  Tensor(const Doubles& values, DType dtype) : Tensor(static_cast<int64_t>(values.size()), dtype) {
    for (size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }
  template <typename T = void>
  T* data(int64_t elems = 0) {
    return reinterpret_cast<T*>(bytes_.data() + bytes_of(elems, dtype_));
  }
  Doubles doubles() const {
    Doubles values(static_cast<size_t>(elems_));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype_ == DType::f32) {
        float value;
        std::memcpy(&value, bytes_.data() + 4 * i, 4);
        values[i] = value;
      } else {
        bfloat16 value;
        std::memcpy(static_cast<void*>(&value), bytes_.data() + 2 * i, 2);
        values[i] = static_cast<float>(value);
      }
    }
    return values;
  }
  bool guard_intact() const {
    return std::all_of(bytes_.end() - kGuard, bytes_.end(), [](uint8_t byte) { return byte == 0xff; });
  }
  bool operator==(const Tensor& other) const { return bytes_ == other.bytes_; }

 private:
  static constexpr int kGuard = 256;
  void set(size_t i, double value) {
    const float rounded = static_cast<float>(value);
    const bfloat16 half(rounded);
    if (dtype_ == DType::f32)
      std::memcpy(bytes_.data() + 4 * i, &rounded, 4);
    else
      std::memcpy(bytes_.data() + 2 * i, &half, 2);
  }
  DType dtype_;
  int64_t elems_;
  std::vector<uint8_t> bytes_;
};

/// Normal values, already rounded to `dtype`, so that the reference uses the kernel's inputs.
inline Doubles random_doubles(int64_t elems, DType dtype, uint32_t seed, double scale = 1.0) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, scale);
  Doubles values(static_cast<size_t>(elems));
  for (double& value : values) value = normal(generator);
  return Tensor(values, dtype).doubles();
}

/// Largest difference over largest expected element. NaN counts as infinite.
inline double error_of(const Doubles& got, const Doubles& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double difference = 0, largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(got[i] - expected[i]);
    difference = std::isnan(d) ? INFINITY : std::max(difference, d);
    largest = std::max(largest, std::abs(expected[i]));
  }
  return difference == 0 ? 0 : difference / (largest > 0 ? largest : 1);
}

/// f32: 1e-6 sqrt(K) forward, 1e-5 sqrt(K) gradients, K the length of the sums. bf16: 2^-7 times the number of
/// `roundings`.
inline double forward_tolerance(DType dtype, int64_t k, double roundings = 1) {
  return dtype == DType::f32 ? 1e-6 * std::sqrt(static_cast<double>(k)) : std::ldexp(roundings, -7);
}
inline double gradient_tolerance(DType dtype, int64_t k, double roundings = 1) {
  return dtype == DType::f32 ? 1e-5 * std::sqrt(static_cast<double>(k)) : std::ldexp(roundings, -7);
}

template <typename Args>
using CpuFunction = void (*)(LaunchContext&, const Args&);

/// Calls check(context, function, label) for every instruction set that runs here with 1, 2 and 3 threads.
template <typename Args, typename Check>
void for_isas_and_threads(CpuFunction<Args> baseline, CpuFunction<Args> avx2, CpuFunction<Args> avx512, Check check) {
  for (const auto& [isa, function] : {std::pair(kernels::Isa::baseline, baseline), std::pair(kernels::Isa::avx2, avx2),
                                      std::pair(kernels::Isa::avx512, avx512)})
    if (isa <= kernels::isa())
      for (int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        LaunchContext context;
        context.pool = &pool;
        check(context, function, fmt::format("{} with {} threads", kernels::name_of(isa), threads));
      }
}

#define SLIP_EVERY_ISA(function) isa_baseline::function, isa_avx2::function, isa_avx512::function

/// The gradient of `loss` at `x` by central differences of the fourth order.
inline Doubles central_differences(const std::function<double(const Doubles&)>& loss, Doubles x) {
  Doubles gradient(x.size());
  const double h = 1e-3;
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    const auto value = [&](double step) {
      x[i] = at + step;
      return loss(x);
    };
    gradient[i] = (8 * (value(h) - value(-h)) - (value(2 * h) - value(-2 * h))) / (12 * h);
    x[i] = at;
  }
  return gradient;
}

inline double dot(const Doubles& a, const Doubles& b) {
  double total = 0;
  for (size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
  return total;
}

}  // namespace slipstream::test
