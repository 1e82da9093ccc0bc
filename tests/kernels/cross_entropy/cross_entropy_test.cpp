// SPDX-License-Identifier: Apache-2.0
// Loss and gradient against double, padding columns, extreme logits, targets outside the vocabulary.

#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <array>

#include "engine/base/check.h"
#include "kernels/cross_entropy/sharded_cross_entropy.h"
#include "tests/kernels/common/backend.h"
#include "tests/kernels/common/cases.h"
#include "tests/reference/loss.h"
#include "tests/sample.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

constexpr float kScale = 0.25f;

struct Losses {
  double sum = 0.0;
  Doubles rows, gradient;
};

Losses losses_of(const Doubles& logits, const std::vector<int32_t>& targets, int64_t vocab, int64_t stride) {
  Losses result;
  for (size_t r = 0; r < targets.size(); ++r) {
    const auto begin = logits.begin() + static_cast<int64_t>(r) * stride;
    const Doubles row(begin, begin + vocab);
    result.rows.push_back(reference::row_loss(row, targets[r]));
    result.sum += result.rows.back();
    Doubles gradient = reference::row_gradient(row, targets[r]);
    gradient.resize(static_cast<size_t>(stride), 0.0);
    for (double element : gradient) result.gradient.push_back(kScale * element);
  }
  return result;
}

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
std::pair<double, std::vector<double>> expected_of(const Batch<T>& batch, int32_t shift = 0) {
  double loss = 0.0;
  std::vector<double> gradient;
  for (int64_t r = 0; r < batch.rows; ++r) {
    const auto logits = batch.row(r);
    const int64_t target = (batch.targets[static_cast<size_t>(r)] + shift) % batch.vocab;
    loss += reference::row_loss(logits, target);
    std::vector<double> row = reference::row_gradient(logits, target);
    row.resize(static_cast<size_t>(batch.stride), 0.0);
    for (double element : row) gradient.push_back(double{kScale} * element);
  }
  return {loss, gradient};
}

}  // namespace

TEST_CASE("cross-entropy: the reference gradient agrees with central differences", "[.][cpu]") {
  const Batch<float> batch(3, 11, 11);
  for (int64_t r = 0; r < 3; ++r) {
    INFO("row " << r << ", seed " << kSeed);
    const auto logits = batch.row(r);
    const int64_t target = batch.targets[static_cast<size_t>(r)];
    std::vector<double> slope;
    for (size_t j = 0; j < logits.size(); ++j) {
      auto above = logits, below = logits;
      above[j] += 1e-5;
      below[j] -= 1e-5;
      slope.push_back((reference::row_loss(above, target) - reference::row_loss(below, target)) / 2e-5);
    }
    const auto gradient = reference::row_gradient(logits, target);
    CHECK(relative_error(slope, [&](int64_t j) { return gradient[static_cast<size_t>(j)]; }) <= 1e-6);
  }
}

TEST_CASE("cross-entropy: the tolerances see a target off by one and a gradient that forgot the one-hot", "[.][cpu]") {
  Batch<bfloat16> batch(7, 101, 101);
  const auto shifted = expected_of(batch, 1);
  auto no_target = expected_of(batch).second;
  for (int64_t r = 0; r < 7; ++r)
    no_target[static_cast<size_t>(r * 101 + batch.targets[static_cast<size_t>(r)])] += double{kScale};
  LaunchContext context = context_of(2);
  cross_entropy(context, batch.args(true));
  CHECK(relative_error(batch.logits, [&](int64_t i) { return shifted.second[static_cast<size_t>(i)]; }) > 0x1p-7);
  CHECK(relative_error(batch.logits, [&](int64_t i) { return no_target[static_cast<size_t>(i)]; }) > 0x1p-7);
  CHECK(std::abs(batch.loss - shifted.first) > 1e-6 * shifted.first);
}

TEST_CASE("cross-entropy: masked columns add nothing at any position: loss and gradient are those of the other columns",
          "[.][cpu]") {
  // A mask of a third of the row covers a whole block of a kernel that works in blocks of up to 1024.
  constexpr int64_t kVocab = 6200, kMasked = 2100;
  for (const int64_t begin : {int64_t{0}, int64_t{2000}, kVocab - kMasked}) {
    CAPTURE(begin);
    Batch<float> batch(1, kVocab, kVocab);
    batch.targets[0] = static_cast<int32_t>((begin + kMasked + 7) % kVocab);
    std::vector<double> left;
    int64_t target = 0;
    for (int64_t j = 0; j < kVocab; ++j) {
      float& logit = batch.logits[static_cast<size_t>(j)];
      if (begin <= j && j < begin + kMasked) {
        logit = -INFINITY;
        continue;
      }
      if (j == batch.targets[0]) target = std::ssize(left);
      left.push_back(double{logit});
    }
    const double loss = reference::row_loss(left, target);
    std::vector<double> gradient = reference::row_gradient(left, target);
    gradient.insert(gradient.begin() + begin, kMasked, 0.0);
    for_machines([&](LaunchContext& context) {
      Batch<float> both = batch;
      cross_entropy(context, both.args(true));
      CHECK(double{both.losses[0]} == Approx(loss).epsilon(1e-6));
      CHECK(relative_error(both.logits, [&](int64_t i) { return kScale * gradient[static_cast<size_t>(i)]; }) <= 1e-5);
      CHECK(std::all_of(both.logits.begin() + begin, both.logits.begin() + begin + kMasked,
                        [](float element) { return element == 0.0f; }));
    });
  }
}

TEST_CASE("cross-entropy: a target outside the vocabulary is refused before anything is written", "[.][cpu]") {
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

namespace {

/// The columns of `whole` distributed to `ranks`, each with `held` columns of memory; the rest is padding full of
/// numbers that must not count.
template <typename T>
struct Shared {
  Shared(const Batch<T>& whole_, int64_t ranks_, int64_t held_)
      : whole(whole_),
        ranks(ranks_),
        held(held_),
        logits(static_cast<size_t>(ranks), std::vector<T>(static_cast<size_t>(whole.rows * held), T(77.0f))),
        parts(static_cast<size_t>(ranks * whole.rows * kCrossEntropyPartElems), -1.0),
        losses(static_cast<size_t>(whole.rows)) {
    for (int64_t r = 0; r < whole.rows; ++r)
      for (int64_t j = 0; j < whole.vocab; ++j) at(r, j) = whole.logits[static_cast<size_t>(r * whole.vocab + j)];
  }
  T& at(int64_t row, int64_t column) {
    return logits[static_cast<size_t>(column / held)][static_cast<size_t>(row * held + column % held)];
  }
  int64_t columns(int64_t rank) const { return std::clamp<int64_t>(whole.vocab - rank * held, 0, held); }
  CrossEntropyPart part(int64_t rank) {
    return {logits[static_cast<size_t>(rank)].data(),
            whole.targets.data(),
            parts.data() + rank * whole.rows * kCrossEntropyPartElems,
            whole.rows,
            columns(rank),
            held,
            rank * held,
            whole.vocab,
            dtype_of<T>::value};
  }
  CrossEntropyMerge merge(int64_t rank, bool backward) {
    return {logits[static_cast<size_t>(rank)].data(),
            whole.targets.data(),
            parts.data(),
            &loss,
            losses.data(),
            whole.rows,
            columns(rank),
            held,
            rank * held,
            ranks,
            kScale,
            dtype_of<T>::value,
            backward};
  }
  /// After merge() of all ranks: the columns of `whole`, from their owners.
  std::vector<T> gradient() {
    std::vector<T> gathered;
    for (int64_t r = 0; r < whole.rows; ++r)
      for (int64_t j = 0; j < whole.vocab; ++j) gathered.push_back(at(r, j));
    return gathered;
  }
  const Batch<T>& whole;
  int64_t ranks, held;
  std::vector<std::vector<T>> logits;
  std::vector<double> parts;
  std::vector<float> losses;
  double loss = -1.0;
};

}  // namespace

TEST_CASE(
    "cross-entropy: the tolerance of a shared vocabulary sees a rank that takes its columns for all and targets that "
    "count from each rank's first column",
    "[.][cpu]") {
  constexpr int64_t kRows = 5, kVocab = 101, kRanks = 2, kHeld = 64;
  const Batch<bfloat16> whole(kRows, kVocab, kVocab);  // the widest tolerance
  LaunchContext context = context_of(2);
  Shared<bfloat16> shared(whole, kRanks, kHeld);
  for (int64_t rank = 0; rank < kRanks; ++rank) cross_entropy_part(context, shared.part(rank));
  for (int64_t rank = 0; rank < kRanks; ++rank) cross_entropy_merge(context, shared.merge(rank, true));
  std::vector<double> alone = expected_of(whole).second, everywhere = alone, nowhere = alone;
  for (int64_t r = 0; r < kRows; ++r) {
    const std::vector<double> logits = whole.row(r);
    const int64_t target = whole.targets[static_cast<size_t>(r)];
    nowhere[static_cast<size_t>(r * kVocab + target)] += double{kScale};
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const int64_t begin = rank * kHeld, end = std::min(kVocab, begin + kHeld);
      const std::vector<double> own(logits.begin() + begin, logits.begin() + end);
      const double missing = std::exp(reference::log_sum(logits) - reference::log_sum(own));
      for (int64_t j = begin; j < end; ++j) {
        double& element = alone[static_cast<size_t>(r * kVocab + j)];
        const double one = j == target ? double{kScale} : 0.0;
        element = (element + one) * missing - one;
      }
      if (const int64_t j = begin + target % kHeld; j != target && j < end)
        everywhere[static_cast<size_t>(r * kVocab + j)] -= double{kScale};
    }
  }
  const auto error = [&](const std::vector<double>& formula) {
    return relative_error(shared.gradient(), [&](int64_t i) { return formula[static_cast<size_t>(i)]; });
  };
  INFO("seed " << kSeed);
  CHECK(error(expected_of(whole).second) <= 0x1p-7);
  CHECK(error(alone) > 0x1p-7);
  CHECK(error(everywhere) > 0x1p-7);
  CHECK(error(nowhere) > 0x1p-7);
}

TEST_CASE("cross-entropy: a shared vocabulary refuses targets that no rank has", "[.][cpu]") {
  LaunchContext context = context_of(2);
  const Batch<float> batch(4, 64, 64);
  std::vector<double> parts(12);
  for (int32_t bad : {-1, 128}) {
    std::vector<int32_t> targets = batch.targets;
    targets[1] = bad;
    CHECK_THROWS_AS(cross_entropy_part(
                        context, {batch.logits.data(), targets.data(), parts.data(), 4, 64, 64, 64, 128, DType::f32}),
                    DataError);
  }
  CHECK_THROWS_AS(cross_entropy_part(
                      context, {batch.logits.data(), batch.targets.data(), parts.data(), 4, 64, 63, 0, 64, DType::f32}),
                  ShapeError);
}

TEST_CASE("cross-entropy: loss and gradient equal double, padding columns become zero") {
  // The last five have rows that shared memory holds whole (bf16) or in part (float, 196 of 99 KiB), that are aligned
  // to 16 bytes or not, and whose last pack is whole or not.
  for (DType dtype : {DType::f32, DType::bf16})
    for (const auto& [rows, vocab, stride] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                                 {2, 1, 8},
                                                                                 {3, 2, 4},
                                                                                 {13, 65, 65},
                                                                                 {5, 65, 65},
                                                                                 {3, 1023, 1024},
                                                                                 {3, 1025, 1100},
                                                                                 {257, 9, 16},
                                                                                 {1027, 2, 8},
                                                                                 {2, 2049, 2056},
                                                                                 {2, 4104, 4104},
                                                                                 {1, 50257, 50304},
                                                                                 {1, 50304, 50304},
                                                                                 {1, 50257, 50257}}) {
      if (rows > 1000 && dtype == DType::bf16 && !test_everything()) continue;  // sums of losses are float in both
      CAPTURE(rows, vocab, stride, name_of(dtype));
      Doubles logits = Tensor(random_doubles(rows * stride, dtype, 1, 5.0), dtype).doubles();
      std::vector<int32_t> targets;
      for (int64_t r = 0; r < rows; ++r) targets.push_back(static_cast<int32_t>(r * 7919 % vocab));
      const Losses want = losses_of(logits, targets, vocab, stride);
      OnDevice ids(targets, "targets");
      Same<double> same;
      for_machines([&](LaunchContext& context) {
        OnDevice x(logits, dtype, "logits"), losses(rows, DType::f32, "row_losses");
        const Held<double> sum({-1.0}, "sum");
        CrossEntropy args = {
            x.data(), ids.data<int32_t>(), sum.data(), losses.data<float>(), rows, vocab, stride, kScale, dtype, false};
        cross_entropy(context, args);
        CHECK(x.doubles() == logits);
        const auto forward_losses = losses.bytes();
        args.backward = true;
        cross_entropy(context, args);
        CHECK(losses.bytes() == forward_losses);
        CHECK(error_of(x.doubles(), want.gradient) < (dtype == DType::f32 ? 1e-5 : 0x1p-7));
        CHECK(same(sum.values()[0]));
        CHECK(sum.values()[0] == Approx(want.sum).epsilon(1e-6).margin(1e-6));
        std::vector<float> of_rows(static_cast<size_t>(rows));
        read_device(of_rows.data(), losses.data(), of_rows.size() * 4);
        CHECK(sum.values()[0] == sum_of_losses(of_rows.data(), rows));
        for (size_t r = 0; r < of_rows.size(); ++r)
          CHECK(static_cast<double>(of_rows[r]) == Approx(want.rows[r]).epsilon(1e-6).margin(1e-6));
        CHECK((x.intact() && losses.intact() && sum.intact()));
      });
    }
}

TEST_CASE("cross-entropy: huge, masked and NaN logits, no rows, targets outside the vocabulary") {
  for_machines([&](LaunchContext& context) {
    Doubles logits(2100, -INFINITY);
    logits[5] = -1e4, logits[2000] = 1e4;
    OnDevice x(logits, DType::f32, "logits"), losses(1, DType::f32, "row_losses"),
        target(std::vector<int32_t>{2000}, "targets");
    const Held<double> sum({-1.0}, "sum");
    CrossEntropy args = {
        x.data(), target.data<int32_t>(), sum.data(), losses.data<float>(), 1, 2100, 2100, kScale, DType::f32, true};
    cross_entropy(context, args);
    CHECK(sum.values()[0] == 0.0);
    CHECK(x.doubles() == Doubles(2100, 0.0));
    logits[1500] = NAN;
    x.set(logits);
    cross_entropy(context, args);
    CHECK(std::isnan(sum.values()[0]));
    if (on_cpu()) return;  // which refuses the others
    for (int32_t bad : {-1, 2100, 2000000000}) {
      x.set(Doubles(2100, 1.0));
      write_device(target.data(), &bad, sizeof bad);
      cross_entropy(context, args);
      CHECK(std::isnan(sum.values()[0]));
      CHECK(x.intact());
    }
    args.rows = 0;
    cross_entropy(context, args);
    CHECK(sum.values()[0] == 0.0);
  });
}

TEST_CASE("cross-entropy: parts of a shared vocabulary merge into the loss and the gradient of the whole") {
  for (const auto& [rows, vocab, ranks, held] : std::vector<std::array<int64_t, 4>>{
           {3, 11, 1, 11}, {5, 101, 2, 64}, {4, 65, 4, 64}, {3, 1100, 3, 512}, {3, 2100, 3, 704}})
    for (DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(rows, vocab, ranks, held, name_of(dtype));
      const Doubles logits = Tensor(random_doubles(rows * vocab, dtype, 1, 5.0), dtype).doubles();
      std::vector<int32_t> targets;
      for (int64_t r = 0; r < rows; ++r) targets.push_back(static_cast<int32_t>((r * 700 + vocab - 1) % vocab));
      const Losses want = losses_of(logits, targets, vocab, vocab);
      const OnDevice ids(targets, "targets");
      // The columns of a rank in memory for `held`; the rest is padding full of numbers that must not count.
      const auto columns_of = [&](int64_t rank) { return std::clamp<int64_t>(vocab - rank * held, 0, held); };
      const auto part_of = [&](const Doubles& whole, int64_t rank, double padding) {
        Doubles own(static_cast<size_t>(rows * held), padding);
        for (int64_t r = 0; r < rows; ++r)
          std::copy_n(whole.begin() + r * vocab + rank * held, columns_of(rank), own.begin() + r * held);
        return own;
      };
      for_machines([&](LaunchContext& context) {
        const OnDevice all(ranks * rows * kCrossEntropyPartElems, DType::f64, "parts");
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const OnDevice x(part_of(logits, rank, 77.0), dtype, "logits");
          cross_entropy_part(
              context, {x.data(), ids.data<int32_t>(), all.data<double>() + rank * rows * kCrossEntropyPartElems, rows,
                        columns_of(rank), held, rank * held, vocab, dtype});
        }
        for (int64_t rank = 0; rank < ranks; ++rank)
          for (bool backward : {false, true}) {
            const Doubles own = part_of(logits, rank, 77.0);
            const OnDevice x(own, dtype, "logits"), losses(rows, DType::f32, "row_losses");
            const Held<double> sum({-1.0}, "sum");
            cross_entropy_merge(
                context, {x.data(), ids.data<int32_t>(), all.data<double>(), sum.data(), losses.data<float>(), rows,
                          columns_of(rank), held, rank * held, ranks, kScale, dtype, backward});
            CHECK(sum.values()[0] == Approx(want.sum).epsilon(1e-6).margin(1e-6));
            const Doubles got = x.doubles(), gradient = part_of(want.gradient, rank, 0.0);
            double worst = 0.0;
            for (size_t i = 0; i < got.size(); ++i)
              worst = std::max(worst, std::abs(got[i] - gradient[i]) / double{kScale});
            if (backward)
              CHECK(worst < (dtype == DType::f32 ? 1e-5 : 0x1p-7));
            else
              CHECK(got == own);
            CHECK((x.intact() && losses.intact() && all.intact()));
          }
      });
    }
}
