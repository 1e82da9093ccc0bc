// SPDX-License-Identifier: Apache-2.0
// The small works of a step against the formulas in their header, in long double.

#include "kernels/step_scalars/step_scalars.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/philox.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

LaunchContext cpu() { return LaunchContext{.kind = DeviceKind::cpu}; }

float clip_of(const std::vector<double>& sums, double max_norm, double& norm) {
  float scalars[] = {3, -1, 5};  // the factor's neighbours stay
  LaunchContext context = cpu();
  kernels::clip(context, {.sums = sums.data(),
                          .count = static_cast<int64_t>(sums.size()),
                          .max_norm = max_norm,
                          .norm = &norm,
                          .factor = &scalars[1]});
  CHECK(scalars[0] == 3);
  CHECK(scalars[2] == 5);
  return scalars[1];
}

}  // namespace

TEST_CASE("a step's loss is overwritten by the first micro-batch and added to by the others") {
  LaunchContext context = cpu();
  double part = 2.5, total = std::numeric_limits<double>::quiet_NaN();
  kernels::add_loss(context, {.part = &part, .total = &total, .accumulate = false});
  CHECK(total == 2.5);
  part = 0.25;
  kernels::add_loss(context, {.part = &part, .total = &total, .accumulate = true});
  CHECK(total == 2.75);
}

TEST_CASE("the clip factor and the norm are those of the formula") {
  const Philox random(17, "sums");
  for (size_t count : {0, 1, 2, 7, 148, 509}) {
    std::vector<double> sums(count);
    long double total = 0;
    for (size_t i = 0; i < count; ++i) total += sums[i] = random.uniform(i) * 10;
    for (double max_norm : {0.5, 1.0, 1e6}) {
      double norm = -1;
      const float factor = clip_of(sums, max_norm, norm);
      CHECK(norm == Approx(static_cast<double>(std::sqrt(total))).epsilon(1e-13));
      CHECK(factor == Approx(std::min(1.0, max_norm / (norm + 1e-6))).epsilon(1e-7));
      CHECK(factor <= 1.0f);
    }
  }
}

TEST_CASE("a zero gradient is not clipped, an infinite one is clipped to nothing") {
  double norm = -1;
  CHECK(clip_of({0.0, 0.0}, 1, norm) == 1.0f);
  CHECK(norm == 0);
  CHECK(clip_of({std::numeric_limits<double>::infinity()}, 1, norm) == 0.0f);
}

TEST_CASE("report, copy and zero move bits") {
  LaunchContext context = cpu();
  const double loss = -0.0, norm = 7;
  double slot[3] = {1, 1, 1};
  kernels::report(context, {.loss = &loss, .norm = &norm, .slot = slot});
  CHECK(std::signbit(slot[0]));
  CHECK(slot[1] == 7);
  CHECK(slot[2] == 1);
  for (int64_t size : {0, 1, 31, 4097}) {
    std::vector<unsigned char> from(static_cast<size_t>(size) + 1, 3), to(from.size(), 9);
    kernels::copy(context, {.from = from.data(), .to = to.data(), .size_bytes = size});
    for (int64_t i = 0; i < size; ++i) CHECK(to[static_cast<size_t>(i)] == 3);
    CHECK(to.back() == 9);
    kernels::zero(context, {.to = to.data(), .size_bytes = size});
    for (int64_t i = 0; i < size; ++i) CHECK(to[static_cast<size_t>(i)] == 0);
    CHECK(to.back() == 9);
  }
}

TEST_CASE("an upload on cpu fills the parts themselves") {
  LaunchContext context = cpu();
  std::byte batch[8] = {}, scalars[4] = {};
  kernels::upload(context, {.parts = {{{batch, 8}, {scalars, 4}}},
                            .fill =
                                [&](const auto& to) {
                                  CHECK(to[0] == batch);
                                  CHECK(to[1] == scalars);
                                  to[1][3] = std::byte{9};
                                },
                            .staging = kernels::make_upload_staging()});
  CHECK(scalars[3] == std::byte{9});
}

TEST_CASE("wrong operands are refused") {
  LaunchContext context = cpu();
  double x = 0;
  CHECK_THROWS_AS(kernels::add_loss(context, {.part = &x}), ShapeError);
  CHECK_THROWS_AS(kernels::copy(context, {.from = &x, .to = &x, .size_bytes = -1}), ShapeError);
  CHECK_THROWS_AS(kernels::clip(context, {.count = 1, .norm = &x}), ShapeError);
  LaunchContext sim{.kind = DeviceKind::sim};
  CHECK_THROWS_AS(kernels::add_loss(sim, {.part = &x, .total = &x}), ResourceError);
}
