// SPDX-License-Identifier: Apache-2.0
// The small works of a step against the formulas in their header, in long double.

#include "kernels/step_scalars/step_scalars.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/philox.h"
#include "tests/kernels/common/backend.h"

using namespace slipstream;
using namespace slipstream::test;

namespace {

LaunchContext cpu() { return LaunchContext{.kind = DeviceKind::cpu}; }

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

struct Verdict {
  float factor = 0;
  double norm = -1, first_not_finite = -1, skipped = -1;
};

Verdict verdict_of(const std::vector<double>& sums, double max_norm, const double* loss = nullptr,
                   const float* limits = nullptr) {
  float scalars[] = {3, -1, 5};  // the factor's neighbours stay
  double norm[] = {-1, -1, -1, 5};
  LaunchContext context = cpu();
  kernels::clip(context, {.sums = sums.data(),
                          .count = static_cast<int64_t>(sums.size()),
                          .max_norm = max_norm,
                          .norm = norm,
                          .factor = &scalars[1],
                          .loss = loss,
                          .limits = limits});
  CHECK(scalars[0] == 3);
  CHECK(scalars[2] == 5);
  CHECK(norm[3] == 5);
  return {scalars[1], norm[0], norm[1], norm[2]};
}

float clip_of(const std::vector<double>& sums, double max_norm, double& norm) {
  const Verdict verdict = verdict_of(sums, max_norm);
  norm = verdict.norm;
  CHECK(verdict.skipped == 0);
  return verdict.factor;
}

}  // namespace

TEST_CASE("a step's loss is overwritten by the first micro-batch and added to by the others", "[.][cpu]") {
  LaunchContext context = cpu();
  double part = 2.5, total = std::numeric_limits<double>::quiet_NaN();
  kernels::add_loss(context, {.part = &part, .total = &total, .accumulate = false});
  CHECK(total == 2.5);
  part = 0.25;
  kernels::add_loss(context, {.part = &part, .total = &total, .accumulate = true});
  CHECK(total == 2.75);
}

TEST_CASE("the clip factor and the norm are those of the formula", "[.][cpu]") {
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

TEST_CASE("a zero gradient is not clipped, an infinite one is clipped to nothing", "[.][cpu]") {
  double norm = -1;
  CHECK(clip_of({0.0, 0.0}, 1, norm) == 1.0f);
  CHECK(norm == 0);
  CHECK(clip_of({std::numeric_limits<double>::infinity()}, 1, norm) == 0.0f);
}

TEST_CASE("the first sum that is not finite has its number in the verdict", "[.][cpu]") {
  CHECK(verdict_of({1, 2}, 1).first_not_finite == 0);
  CHECK(verdict_of({}, 1).first_not_finite == 0);
  CHECK(verdict_of({kNan, 1}, 1).first_not_finite == 1);
  CHECK(verdict_of({1, 2, kInfinity, kNan}, 1).first_not_finite == 3);
  // Without a loss, nothing is skipped.
  CHECK(verdict_of({kNan}, 1).skipped == 0);
  CHECK(verdict_of({kNan}, 1).factor == 1.0f);
}

TEST_CASE("a step is skipped if its norm or its loss is not finite or exceeds its limit", "[.][cpu]") {
  const double loss = 2;
  const auto infinity = static_cast<float>(kInfinity);
  const float none[] = {infinity, infinity}, both[] = {5, 2};
  for (double max_norm : {1.0, kInfinity}) {
    for (const float* limits : {none, both}) {  // a limit itself is allowed: the norm is 5
      const Verdict verdict = verdict_of({9, 16}, max_norm, &loss, limits);
      CHECK(verdict.skipped == 0);
      CHECK(verdict.factor == verdict_of({9, 16}, max_norm).factor);
      CHECK(verdict.norm == 5);
    }
    const auto skips = [&](const std::vector<double>& sums, double of_loss, float norm_limit, float loss_limit) {
      const float limits[] = {norm_limit, loss_limit};
      const Verdict verdict = verdict_of(sums, max_norm, &of_loss, limits);
      return verdict.skipped == 1 && verdict.factor == kernels::kSkipUpdate;
    };
    CHECK(skips({9, 16}, 2, 4.99f, infinity));
    CHECK(skips({9, 16}, 2, infinity, 1.99f));
    for (double odd : {kNan, kInfinity}) {
      CHECK(skips({9, odd}, 2, infinity, infinity));
      CHECK(skips({9, 16}, odd, infinity, infinity));
    }
    CHECK(skips({9, 16}, -kInfinity, infinity, infinity));
  }
}

TEST_CASE("report, copy and zero move bits", "[.][cpu]") {
  LaunchContext context = cpu();
  const double loss = -0.0, norm[] = {7, 8, 9};
  double slot[5] = {1, 1, 1, 1, 1};
  kernels::report(context, {.loss = &loss, .norm = norm, .slot = slot});
  CHECK(std::signbit(slot[0]));
  CHECK(std::vector<double>(slot + 1, slot + 5) == std::vector<double>{7, 8, 9, 1});
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

TEST_CASE("an upload on cpu fills the parts themselves", "[.][cpu]") {
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

TEST_CASE("wrong operands are refused", "[.][cpu]") {
  LaunchContext context = cpu();
  double x = 0;
  CHECK_THROWS_AS(kernels::add_loss(context, {.part = &x}), ShapeError);
  CHECK_THROWS_AS(kernels::copy(context, {.from = &x, .to = &x, .size_bytes = -1}), ShapeError);
  CHECK_THROWS_AS(kernels::clip(context, {.count = 1, .norm = &x}), ShapeError);
  float factor = 0;
  CHECK_THROWS_AS(kernels::clip(context, {.norm = &x, .factor = &factor, .loss = &x}), ShapeError);
  LaunchContext sim{.kind = DeviceKind::sim};
  CHECK_THROWS_AS(kernels::add_loss(sim, {.part = &x, .total = &x}), ResourceError);
}

TEST_CASE("clip and report: the CPU's verdicts and bits", "[cuda]") {
  for (const Doubles& sums :
       {Doubles{}, Doubles{9, 16}, Doubles{1e-3, 2e-5, 0}, Doubles{1, kInfinity, kNan}, Doubles{kNan, 1}})
    for (const double loss : {2.0, kNan, kInfinity, -kInfinity})
      for (const double max_norm : {0.5, kInfinity})
        for (const std::array<float, 2>& limits : {std::array{5.0f, 2.0f}, {4.0f, INFINITY}, {INFINITY, INFINITY}})
          for (const bool skips : {false, true}) {
            CAPTURE(sums, loss, max_norm, limits[0], limits[1], skips);
            const auto run = [&](LaunchContext context, const double* of_sums, const double* of_loss,
                                 const float* of_limits, double* norm, float* factor, double* slot) {
              kernels::clip(context, {.sums = of_sums,
                                      .count = static_cast<int64_t>(sums.size()),
                                      .max_norm = max_norm,
                                      .norm = norm,
                                      .factor = factor,
                                      .loss = skips ? of_loss : nullptr,
                                      .limits = skips ? of_limits : nullptr});
              kernels::report(context, {.loss = of_loss, .norm = norm, .slot = slot});
            };
            double norm[3] = {-1, -1, -1}, slot[4] = {-1, -1, -1, -1};
            float factor = -5;
            run(cpu(), sums.data(), &loss, limits.data(), norm, &factor, slot);
            const Held<double> of_sums(sums), of_loss({loss}), norm_there({-1, -1, -1}), slot_there({-1, -1, -1, -1});
            const Held<float> of_limits({limits[0], limits[1]}), factor_there({-5});
            run(a_context(), of_sums.data(), of_loss.data(), of_limits.data(), norm_there.data(), factor_there.data(),
                slot_there.data());
            const std::vector<double> got = slot_there.values();
            for (size_t i = 0; i < got.size(); ++i)
              CHECK((got[i] == slot[i] || (std::isnan(got[i]) && std::isnan(slot[i]))));
            CHECK(factor_there.values()[0] == factor);
          }
}
