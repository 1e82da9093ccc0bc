// SPDX-License-Identifier: Apache-2.0
// The table of ZeRO: stages x ranks x accumulation x prefetch x groups, each row compared with the row that it must
// equal.
//
// Rows equal stage 0 on as many ranks to the bit where sums have its order: one micro-batch per rank, stage 1, or stage
// 2 that accumulates whole gradients. Elsewhere sums over ranks come before sums over micro-batches, or sums inside a
// group before sums across groups: float rounding, a few times 2^-24 of each addend. Every row except the references
// runs under random delays.

#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>

#include "tests/equivalence/table.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 3;
constexpr double kTolerance = 2e-5;

}  // namespace

TEST_CASE("stages x ranks x accumulation x prefetch x groups: the bits of stage 0 where sums have its order",
          "[zero][table]") {
  // The reference of each row is trained once.
  std::map<std::tuple<Family, int, int>, Trained> references;
  const auto reference = [&](Family family, int ranks, int micro_batches) -> const Trained& {
    Trained& trained = references[{family, ranks, micro_batches}];
    if (trained.hash.empty()) trained = train(ZeroRow{family, 0, ranks, micro_batches, 1, 1, false}.layout(), kSteps);
    return trained;
  };
  const std::vector<ZeroRow> rows = zero_rows(test_everything());
  int equal = 0, close = 0;
  double largest = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
#ifdef __SANITIZE_THREAD__
    if (i % 3 != 0 && !test_everything()) continue;
#endif
    const ZeroRow& row = rows[i];
    CAPTURE(row.family, row.stage, row.ranks, row.micro_batches, row.depth, row.groups, row.unsharded, i);
    const Trained trained =
        train(with(row.layout(), [&](Layout& l) { l.delay_seed = 1 + i, l.evaluate_between = i % 3 == 0; }), kSteps);
    for (const std::string& hash : trained.rank_hashes) CHECK(hash == trained.hash);
    const Trained& whole = reference(row.family, row.ranks, row.micro_batches);
    if (row.has_order_of_stage_0()) {
      CHECK(trained.hash == whole.hash);
      CHECK(trained.losses == whole.losses);
      ++equal;
    } else {
      const double off = difference(trained.weights, whole.weights);
      largest = std::max(largest, off);
      CHECK(off < kTolerance);
      ++close;
    }
    // Also, stage 0 on several ranks is the model of one.
    if (row.stage == 0) CHECK(difference(whole.weights, reference(row.family, 1, 1).weights) < kTolerance);
  }
  std::printf("  COUNTED %zu rows: %d of the same bits, %d off by at most %.1e of %.0e\n", rows.size(), equal, close,
              largest, kTolerance);
  CHECK(equal > 0);
  CHECK(close > 0);
}

#ifdef __SANITIZE_THREAD__
TEST_CASE("the control: without the waits of slots for their last readers a gather races with compute", "[.race]") {
  // scripts/tsan.sh expects the sanitizer to end this.
  Layout mutant = ZeroRow{Family::gpt2, 3, 2, 1, 1, 1, false}.layout();
  mutant.check_hazards = false;
  mutant.mutate = [](Job& job) {
    for (ItemId i = 0; i < job.train().size(); ++i)
      if (job.train()[i].op == Op::all_gather)
        std::erase_if(job.train()[i].after, [&](const Point& p) { return job.train().is_spine(p.item); });
  };
  for (uint64_t seed = 1; seed <= 8; ++seed) train(with(mutant, [&](Layout& l) { l.delay_seed = seed; }), kSteps);
}
#endif
