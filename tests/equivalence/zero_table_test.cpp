// SPDX-License-Identifier: Apache-2.0
// The table of ZeRO: stages x ranks x accumulation x prefetch x groups, each row beside the row that it must equal.
//
// Rows equal stage 0 on as many ranks to the bit where sums have its order: one micro-batch per rank, stage 1, or stage
// 2 that accumulates whole gradients. Elsewhere sums over ranks come before sums over micro-batches, or sums inside a
// group before sums across: float rounding, a few times 2^-24 of each addend. Every row but the references runs under
// random delays.

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

struct Row {
  models::Family family;
  int stage, ranks, micro_batches, depth, groups;
  bool unsharded;  // stage 2: gradients are whole until the last micro-batch

  bool has_order_of_stage_0() const { return groups == 1 && (micro_batches == 1 || stage <= 1 || unsharded); }
  Layout layout() const {
    Layout l{.name = "zero",
             .model = smallest(family),
             .ranks = ranks,
             .micro_batch = 48 / ranks / micro_batches,
             .bucket_bytes = 1024,
             .first_bucket_bytes = 256};
    l.model.layers = 5;  // more than the deepest prefetch has slots
    l.model.split_tied_embedding = false;
    l.micro_batches = micro_batches, l.zero_stage = stage, l.prefetch_depth = depth, l.accumulate_unsharded = unsharded;
    l.shard_size = groups > 1 ? ranks / groups : 0;
    // Both: the update on the compute stream and beside it.
    l.update_on_spine = (stage + ranks + depth) % 2 == 0;
    return l;
  }
};

std::vector<Row> table(bool everything) {
  std::vector<Row> rows;
  for (models::Family family : {models::Family::gpt2, models::Family::llama})
    for (int ranks : {1, 2, 3, 4})
      for (int micro_batches : {1, 4})
        for (int stage : {0, 1, 2, 3})
          for (int depth : {1, 2, 3})
            for (int groups : {1, 2})
              for (bool unsharded : {false, true}) {
                if (stage < 3 && depth > 1) continue;
                if (groups > 1 && (stage == 0 || ranks < 4)) continue;
                if (unsharded && (stage != 2 || micro_batches == 1)) continue;
                rows.push_back({family, stage, ranks, micro_batches, depth, groups, unsharded});
              }
  if (everything) return rows;
  // Every value of every column.
  std::vector<Row> sample;
  for (size_t i = 0; i < rows.size(); ++i)
    if (i % 6 == 1) sample.push_back(rows[i]);
  return sample;
}

}  // namespace

TEST_CASE("stages x ranks x accumulation x prefetch x groups: the bits of stage 0 where sums have its order",
          "[zero][table]") {
  // What a row is compared with, trained once.
  std::map<std::tuple<models::Family, int, int>, Trained> references;
  const auto reference = [&](models::Family family, int ranks, int micro_batches) -> const Trained& {
    Trained& trained = references[{family, ranks, micro_batches}];
    if (trained.hash.empty()) trained = train(Row{family, 0, ranks, micro_batches, 1, 1, false}.layout(), kSteps);
    return trained;
  };
  const std::vector<Row> rows = table(test_everything());
  int equal = 0, close = 0;
  double largest = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
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
    // And stage 0 on several ranks is the model of one.
    if (row.stage == 0) CHECK(difference(whole.weights, reference(row.family, 1, 1).weights) < kTolerance);
  }
  std::printf("  %zu rows: %d of the same bits, %d off by at most %.1e of %.0e\n", rows.size(), equal, close, largest,
              kTolerance);
  CHECK(equal > 0);
  CHECK(close > 0);
}

#ifdef __SANITIZE_THREAD__
TEST_CASE("the control: without the waits of slots for their last readers a gather races with compute", "[.race]") {
  // scripts/tsan.sh expects the sanitizer to end this.
  Layout mutant = Row{models::Family::gpt2, 3, 2, 1, 1, 1, false}.layout();
  mutant.check_hazards = false;
  mutant.mutate = [](Job& job) {
    for (ItemId i = 0; i < job.train.size(); ++i)
      if (job.train[i].op == Op::all_gather)
        std::erase_if(job.train[i].after, [&](const Point& p) { return job.train.is_spine(p.item); });
  };
  for (uint64_t seed = 1; seed <= 8; ++seed) train(with(mutant, [&](Layout& l) { l.delay_seed = seed; }), kSteps);
}
#endif
