// SPDX-License-Identifier: Apache-2.0
// The hazard checker detects missing waits: every wait of every plan is deleted, and moved one item early; and for
// every strategy a deleted wait is shown to change the result.

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>

#include "comm/rehearse/hazards.h"
#include "comm/rehearse/seams.h"
#include "tests/equivalence/table.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

void print(const char* what, const comm::Mutations& m) {
  std::printf("  COUNTED %s: %lld waits: %lld caught, %lld redundant, %lld missed\n", what,
              static_cast<long long>(m.waits), static_cast<long long>(m.caught), static_cast<long long>(m.redundant),
              static_cast<long long>(m.missed));
}

}  // namespace

TEST_CASE("the plans of every rank of every layout pass the proof", "[mutation]") {
  for (const Layout& row : strategies(true))
    for (int rank = 0; rank < row.world(); ++rank) {
      INFO(row.name << ", rank " << rank);
      CHECK_NOTHROW(make_job(row, rank));
    }
}

TEST_CASE("every wait of every plan is needed: without it, or for the item before, the checker objects", "[mutation]") {
  comm::Mutations deleted, early;
  int64_t removed = 0;  // by the planner, beforehand: waits that others imply
  std::vector<Layout> rows = strategies(test_everything());
  if (test_everything())
    for (const ZeroRow& row : zero_rows(true)) rows.push_back(row.layout());
  int64_t ranks = 0;
  for (Layout row : rows) {
    row.proved = [&](const comm::Proof& proof) { removed += proof.pruned_count; };
    for (int rank = 0; rank < row.world(); ++rank) {
      // Data ranks have the same plans, except for the location of their shards.
      if (!test_everything() && Mesh(row.sizes()).coordinates(rank).data != row.ranks - 1) continue;
      const std::unique_ptr<Job> job = make_job(row, rank);
      ++ranks;
      INFO(row.name << ", rank " << rank);
      std::vector<const Plan*> runs{&job->plan(PlanKind::prime), &job->train(), &job->train(),
                                    &job->plan(PlanKind::evaluate), &job->train()};
      if (row.double_buffer)  // evaluations follow an even number of steps and an odd one
        runs = {&job->plan(PlanKind::prime),    &job->train(), &job->plan(PlanKind::train, 1),
                &job->plan(PlanKind::evaluate), &job->train(), &job->plan(PlanKind::evaluate, 1),
                &job->plan(PlanKind::train, 1)};
      const auto seams = comm::link_all(runs, job->channels);
      const comm::Sequence sequence{runs, seams};
      const comm::HazardReport report = comm::find_hazards(sequence, job->channels, &job->buffers);
      INFO((report.hazards.empty() ? "" : report.hazards[0].sentence()));
      CHECK(report.count == 0);
      for (comm::Mutation mutation : {comm::Mutation::deleted, comm::Mutation::one_early}) {
        const comm::Mutations found = comm::mutate_waits(sequence, job->channels, &job->buffers, mutation);
        for (const std::string& name : found.missed_names) UNSCOPED_INFO("not needed: " << name);
        for (const std::string& name : found.redundant_names) UNSCOPED_INFO("redundant: " << name);
        CHECK(found.missed + found.redundant == 0);
        (mutation == comm::Mutation::deleted ? deleted : early) += found;
      }
    }
  }
  std::printf("  COUNTED %zu layouts, plans of %lld ranks; %lld redundant waits removed by the planner\n", rows.size(),
              static_cast<long long>(ranks), static_cast<long long>(removed));
  print("deleted", deleted);
  print("one item early", early);
}

namespace {

/// The hash of the weights, or the message that the ranks disagree about the loss.
std::string outcome(const Layout& row, int steps) {
  try {
    return train(row, steps).hash;
  } catch (const PlanError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE(
    "for every strategy there is a wait without which random delays change the result, and the live checker names it",
    "[mutation]") {
  constexpr int kSteps = 4;
  std::set<std::array<int, 7>> seen;
  for (const Layout& row : strategies(test_everything())) {
    // Without the full set: data parallelism and ZeRO on two ranks, and one row for every other strategy.
    const bool more =
        seen.insert({row.shard_size, row.context > 1, row.tensor, static_cast<int>(row.wire_dtype.element),
                     row.sums_by_exchange, row.stages, static_cast<int>(row.schedule)})
            .second;
    const bool plain = row.max_norm > 0 && row.update_on_spine && row.ranks == 2 && row.prefetch_depth == 1 &&
                       row.wire_dtype == DType::f32;
    if (!plain && !more && !test_everything()) continue;
    INFO(row.name);
    const std::string expected = train(row, kSteps).hash;
    const std::unique_ptr<Job> job = make_job(row, 0);
    int tried = 0;
    std::string changed_by;
    for (uint64_t seed : {1, 2, 3})
      for (ItemId id = 0; id < job->train().size() && changed_by.empty(); ++id)
        for (size_t i = 0; i < job->train()[id].after.size() && changed_by.empty(); ++i) {
          if (job->train()[id].op == Op::report || job->train()[id].op == Op::load)
            continue;  // not part of the weights
          Layout mutant = row;
          mutant.mutate = [=, stage = job->stage()](Job& j) {
            if (j.stage() == stage)
              j.train()[id].after.erase(j.train()[id].after.begin() + static_cast<std::ptrdiff_t>(i));
          };
          CHECK_THROWS_AS(train(mutant, 2), PlanError);
          ++tried;
          mutant.check_hazards = false;
          mutant.delay_seed = seed;
          if (outcome(mutant, kSteps) != expected)
            changed_by = job->train()[id].name + " <- " + job->train()[job->train()[id].after[i].item].name +
                         ", seed " + std::to_string(seed);
        }
    std::printf("  %s: mutant %d changes the result: %s\n", row.name.c_str(), tried, changed_by.c_str());
    CHECK(!changed_by.empty());
  }
}
