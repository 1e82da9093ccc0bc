// SPDX-License-Identifier: Apache-2.0
// Loss and gradient against double, padding columns, extreme logits, targets outside the vocabulary.

#include "kernels/cross_entropy/cross_entropy.h"

#include "engine/base/check.h"
#include "kernels/cross_entropy/cross_entropy_cpu.h"
#include "tests/kernels/products/cases.h"
#include "tests/reference/loss.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

constexpr float kScale = 0.25f;

template <typename T>
struct Batch {
  Batch(int64_t rows_, int64_t vocab_, int64_t stride_) : rows(rows_), vocab(vocab_), stride(stride_) {
    logits = random<T>(rows * stride, "logits");
    for (T& logit : logits) logit = T(static_cast<float>(logit) * 5.0f);
    const Philox philox(kSeed, "targets");
    for (int64_t row = 0; row < rows; ++row)
      targets.push_back(static_cast<int32_t>(philox.below(static_cast<uint64_t>(row), static_cast<uint64_t>(vocab))));
    losses.resize(static_cast<size_t>(rows));
  }
  CrossEntropy args(bool backward) {
    return {logits.data(), targets.data(), &loss,  losses.data(),      rows,
            vocab,         stride,         kScale, dtype_of<T>::value, backward};
  }
  std::vector<double> row(int64_t r) const {
    std::vector<double> values;
    for (int64_t j = 0; j < vocab; ++j) values.push_back(as_double(logits[static_cast<size_t>(r * stride + j)]));
    return values;
  }
  int64_t rows, vocab, stride;
  std::vector<T> logits;
  std::vector<int32_t> targets;
  std::vector<float> losses;
  double loss = -1.0;
};

/// Loss and gradient of a batch in double; padding has gradient 0.
template <typename T>
std::pair<double, std::vector<double>> expected(const Batch<T>& batch, int32_t shift = 0) {
  double loss = 0.0;
  std::vector<double> gradient;
  for (int64_t r = 0; r < batch.rows; ++r) {
    const auto logits = batch.row(r);
    const int64_t target = (batch.targets[static_cast<size_t>(r)] + shift) % batch.vocab;
    loss += reference::row_loss(logits, target);
    std::vector<double> row(static_cast<size_t>(batch.stride), 0.0);
    double sum = 0.0, largest = *std::max_element(logits.begin(), logits.end());
    for (double logit : logits) sum += std::exp(logit - largest);
    for (size_t j = 0; j < logits.size(); ++j)
      row[j] = double{kScale} * (std::exp(logits[j] - largest) / sum - (static_cast<int64_t>(j) == target ? 1.0 : 0.0));
    gradient.insert(gradient.end(), row.begin(), row.end());
  }
  return {loss, gradient};
}

template <typename T>
void check(int64_t rows, int64_t vocab, int64_t stride, double tolerance) {
  CAPTURE(rows, vocab, stride);
  const Batch<T> first(rows, vocab, stride);
  const auto [loss, gradient] = expected(first);
  double same = -1.0;
  for_each_machine([&](Isa isa, LaunchContext& context) {
    Batch<T> forward = first, both = first;
    SLIP_CALL_ON(isa, cross_entropy_cpu(context, forward.args(false)));
    CHECK(same_bits(forward.logits, first.logits));
    SLIP_CALL_ON(isa, cross_entropy_cpu(context, both.args(true)));
    CHECK(same_bits(both.losses, forward.losses));
    CHECK(relative_error(both.logits, [&, &g = gradient](int64_t i) { return g[static_cast<size_t>(i)]; }) <=
          tolerance);
    for (int64_t r = 0; r < rows; ++r)
      CHECK(
          as_double(both.losses[static_cast<size_t>(r)]) ==
          Approx(reference::row_loss(first.row(r), first.targets[static_cast<size_t>(r)])).epsilon(1e-6).margin(1e-6));
    Batch<T> chosen = first;
    cross_entropy(context, chosen.args(true));
    CHECK(chosen.loss == Approx(loss).epsilon(1e-6).margin(1e-6));
    if (same < 0.0) same = chosen.loss;
    CHECK(chosen.loss == same);
  });
}

}  // namespace

TEST_CASE("the reference gradient agrees with central differences") {
  const Batch<float> batch(3, 11, 11);
  for (int64_t r = 0; r < 3; ++r) {
    const auto logits = batch.row(r);
    const auto gradient = reference::row_gradient(logits, batch.targets[static_cast<size_t>(r)]);
    for (size_t j = 0; j < logits.size(); ++j) {
      auto above = logits, below = logits;
      above[j] += 1e-5;
      below[j] -= 1e-5;
      const int64_t target = batch.targets[static_cast<size_t>(r)];
      CHECK(std::abs((reference::row_loss(above, target) - reference::row_loss(below, target)) / 2e-5 - gradient[j]) <=
            1e-6);
    }
  }
}

TEST_CASE("loss and gradient equal double, padding columns become zero") {
  for (const auto& [rows, vocab, stride] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {3, 2, 4}, {13, 65, 65}, {5, 1023, 1024}, {4, 1025, 1100}, {2, 50257, 50304}}) {
    check<float>(rows, vocab, stride, 1e-5);
    check<bfloat16>(rows, vocab, stride, 0x1p-7);
  }
}

TEST_CASE("the tolerances see a target off by one and a gradient that forgot the one-hot") {
  Batch<bfloat16> batch(7, 101, 101);
  const auto shifted = expected(batch, 1);
  auto no_target = expected(batch).second;
  for (int64_t r = 0; r < 7; ++r)
    no_target[static_cast<size_t>(r * 101 + batch.targets[static_cast<size_t>(r)])] += double{kScale};
  LaunchContext context = context_of(2);
  cross_entropy(context, batch.args(true));
  CHECK(relative_error(batch.logits, [&](int64_t i) { return shifted.second[static_cast<size_t>(i)]; }) > 0x1p-7);
  CHECK(relative_error(batch.logits, [&](int64_t i) { return no_target[static_cast<size_t>(i)]; }) > 0x1p-7);
  CHECK(std::abs(batch.loss - shifted.first) > 1e-6 * shifted.first);
}

TEST_CASE("huge logits, masked logits and NaN") {
  for_each_machine([&](Isa isa, LaunchContext& context) {
    Batch<float> batch(1, 2100, 2100);
    std::fill(batch.logits.begin(), batch.logits.end(), -INFINITY);
    batch.logits[5] = -1e4f;
    batch.logits[2000] = 1e4f;
    batch.targets[0] = 2000;
    SLIP_CALL_ON(isa, cross_entropy_cpu(context, batch.args(true)));
    CHECK(batch.losses[0] == 0.0f);
    CHECK(batch.logits == std::vector<float>(2100, 0.0f));
    batch.logits[1500] = NAN;
    SLIP_CALL_ON(isa, cross_entropy_cpu(context, batch.args(false)));
    CHECK(std::isnan(batch.losses[0]));
  });
}

TEST_CASE("a target outside the vocabulary is refused before anything is written") {
  LaunchContext context = context_of(2);
  for (int32_t bad : {-1, 65, -100}) {
    Batch<float> batch(4, 65, 66);
    const auto before = batch.logits;
    batch.targets[2] = bad;
    CHECK_THROWS_AS(cross_entropy(context, batch.args(true)), DataError);
    CHECK(same_bits(batch.logits, before));
  }
  Batch<float> batch(4, 65, 66);
  batch.stride = 64;
  CHECK_THROWS_AS(cross_entropy(context, batch.args(true)), ShapeError);
  CHECK(cross_entropy_cost({.rows = 2, .vocab = 3, .stride = 4}).bytes == 4 * 6 + 16 + 4 * 8);
}
