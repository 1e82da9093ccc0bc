// SPDX-License-Identifier: Apache-2.0
// Snapshots: copies that run beside a step equal the state at rest before it and change nothing, and every wait that
// protects them is needed.

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>
#include <vector>

#include "comm/rehearse/hazards.h"
#include "comm/rehearse/seams.h"
#include "comm/wiring.h"
#include "engine/plan/saved_state.h"
#include "tests/equivalence/snapshots.h"
#include "tests/equivalence/table.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 4;

/// One row for every strategy (for every third one in the sample), and the rows with other places of weights and
/// updates.
std::vector<Layout> rows() {
  std::vector<Layout> rows, all = strategies(test_everything());
  for (size_t i = 0; i < all.size(); i += test_everything() ? 1 : 3) rows.push_back(std::move(all[i]));
  const auto add = [&](std::string name, auto change) {
    Layout row{.name = std::move(name),
               .model = smallest(Family::gpt2),
               .ranks = 2,
               .micro_batch = 2,
               .bucket_bytes = 512,
               .first_bucket_bytes = 256};
    change(row);
    rows.push_back(std::move(row));
  };
  add("one rank", [](Layout& l) { l.ranks = 1; });
  for (int stage : {0, 1, 2, 3})
    for (DType dtype : {DType::f32, DType::bf16})
      for (bool twice : {false, true}) {
        if (twice && stage == 3) continue;
        add("ZeRO-" + std::to_string(stage) + (dtype == DType::bf16 ? " bfloat16" : "") +
                (twice ? ", two copies of the weights" : ""),
            [&](Layout& l) {
              l.model.split_tied_embedding = stage == 0;
              l.model.dtype = dtype, l.zero_stage = stage, l.double_buffer = twice, l.update_on_spine = !twice;
            });
      }
  add("three ranks", [](Layout& l) { l.ranks = 3; });
  return rows;
}

}  // namespace

TEST_CASE("snapshots equal the state at rest and change nothing", "[snapshot]") {
  int64_t arrays = 0;
  uint64_t number = 0;
  for (const Layout& row : rows()) {
    INFO(row.name);
    const Seen expected = run_at_rest(row, kSteps);
    ++number;
    for (uint64_t seed : {0, 1, 2}) {
      if (!test_everything() && seed != number % 3) continue;  // the sample: one of the three by turns
      CAPTURE(seed);
      Layout delayed = row;
      delayed.delay_seed = seed;
      delayed.check_hazards = seed == 0;
      delayed.evaluate_between = seed == 2;
      delayed.save_interval = 1;
      const Seen seen = run_saving(delayed, kSteps);
      CHECK(seen.trained.hash == expected.trained.hash);
      CHECK(seen.trained.rank_hashes == expected.trained.rank_hashes);
      CHECK(seen.trained.losses == expected.trained.losses);
      // The state after the last step has no snapshot, because no step follows it.
      CHECK(seen.states.size() * (kSteps + 1) == expected.states.size() * kSteps);
      for (const auto& [at, bytes] : seen.states) {
        const auto& [step, rank, bucket, array] = at;
        CAPTURE(step, rank, bucket, array);
        REQUIRE(bytes == expected.states.at(at));
        ++arrays;
      }
    }
  }
  std::printf("  COUNTED %lld arrays of snapshots, equal to those at rest\n", static_cast<long long>(arrays));
}

TEST_CASE("without the waits between updates and copies, delays tear a snapshot", "[snapshot]") {
  Layout row{.name = "one rank",
             .model = smallest(Family::gpt2),
             .micro_batch = 2,
             .bucket_bytes = 512,
             .first_bucket_bytes = 256,
             .save_interval = 1,
             .check_hazards = false};
  const Seen expected = run_at_rest(row, kSteps);
  row.mutate = [](Job& job) {  // updates run in the order of the compute stream, which only the training itself needs
    for (SpineItem& item : job.train().spine)
      if (item.op == Op::update) item.writes.clear();
  };
  bool torn = false;
  for (uint64_t seed = 1; seed <= 5 && !torn; ++seed) {
    row.delay_seed = seed;
    const Seen seen = run_saving(row, kSteps);
    CHECK(seen.trained.hash == expected.trained.hash);
    for (const auto& [at, bytes] : seen.states) torn |= bytes != expected.states.at(at);
  }
  CHECK(torn);
}

TEST_CASE("every wait between steps and snapshots is needed, and for its last item", "[snapshot][mutation]") {
  comm::Mutations all;
  for (Layout row : rows()) {
    row.save_interval = 1;
    for (int rank = 0; rank < row.world(); ++rank) {
      // Data ranks have the same plans, except for the location of their shards.
      if (!test_everything() && Mesh(row.sizes()).coordinates(rank).data != row.ranks - 1) continue;
      const std::unique_ptr<Job> job = make_job(row, rank);
      INFO(row.name << ", rank " << rank);
      std::vector<const Plan*> runs{&job->plan(PlanKind::prime),
                                    &job->plan(PlanKind::save),
                                    &job->train(),
                                    &job->plan(PlanKind::save),
                                    &job->train(),
                                    &job->train(),
                                    &job->plan(PlanKind::evaluate),
                                    &job->plan(PlanKind::save),
                                    &job->train()};
      if (row.double_buffer)
        runs = {&job->plan(PlanKind::prime),       &job->plan(PlanKind::save),     &job->train(),
                &job->plan(PlanKind::save, 1),     &job->plan(PlanKind::train, 1), &job->train(),
                &job->plan(PlanKind::evaluate, 1), &job->plan(PlanKind::save, 1),  &job->plan(PlanKind::train, 1)};
      const auto seams = comm::link_all(runs, job->channels);
      const comm::Sequence sequence{runs, seams};
      const comm::HazardReport report = comm::find_hazards(sequence, job->channels, &job->buffers);
      INFO((report.hazards.empty() ? "" : report.hazards[0].sentence()));
      CHECK(report.count == 0);
      // For states that no gather protects, a wait is needed in both directions.
      int64_t before = 0, after = 0;
      for (size_t r = 0; r < runs.size(); ++r)
        for (const SeamWait& wait : seams[r]) {
          before += runs[r]->kind == "save";
          after += runs[wait.run]->kind == "save";
        }
      CHECK(before > 0);
      CHECK(after > 0);
      for (comm::Mutation mutation : {comm::Mutation::deleted, comm::Mutation::one_early}) {
        const comm::Mutations found = comm::mutate_waits(sequence, job->channels, &job->buffers, mutation);
        for (const std::string& name : found.missed_names) UNSCOPED_INFO("not needed: " << name);
        for (const std::string& name : found.redundant_names) UNSCOPED_INFO("redundant: " << name);
        CHECK(found.missed + found.redundant == 0);
        all += found;
      }
    }
  }
  std::printf("  COUNTED %lld changes of a wait, %lld noticed\n", static_cast<long long>(all.waits),
              static_cast<long long>(all.caught));
}

TEST_CASE("a snapshot changes no training plan", "[snapshot]") {
  for (Layout row : rows()) {
    INFO(row.name);
    const std::unique_ptr<Job> without = make_job(row, 0);
    row.save_interval = 1;
    const std::unique_ptr<Job> with = make_job(row, 0);
    REQUIRE(with->train().size() == without->train().size());
    CHECK(with->train().order == without->train().order);
    for (ItemId i = 0; i < with->train().size(); ++i) {
      CHECK(with->train()[i].after == without->train()[i].after);
      CHECK(with->train()[i].name == without->train()[i].name);
    }
    int64_t saved = 0;
    for (size_t b = 0; b < with->storage.size(); ++b)
      for (const SavedArray& array : saved_arrays(*with, b)) saved += bytes_of(array.most_elems, array.dtype);
    CHECK(with->buffers.bytes(Owner::snapshot) >= saved);
    CHECK(with->buffers.bytes(Owner::snapshot) < saved + 64 * 8);  // buffers end at multiples of 64 bytes
    CHECK(with->buffers.total_bytes() - without->buffers.total_bytes() == with->buffers.bytes(Owner::snapshot));
    CHECK(without->buffers.bytes(Owner::snapshot) == 0);
  }
}

TEST_CASE("a plan of every third step needs a cadence alone: it runs, is proved and has its times", "[snapshot]") {
  constexpr int kLast = 7;
  Layout row = with(strategies(false)[0], [](Layout& l) { l.ranks = 2; });
  const Seen expected = run_at_rest(row, kLast);
  row.save_interval = kLast + 1;  // the cadence never asks for a snapshot
  row.mutate = [](Job& job) {
    for (PlanRow& each : job.plans)
      if (each.kind == PlanKind::save) each.cadence = {When::step, 3, 2};
  };
  std::mutex mutex;
  row.inspect = [&](runtime::Rank& rank) {
    const std::lock_guard lock(mutex);
    const Job& job = rank.job();
    const uint32_t first = job.first_item(PlanKind::save);
    std::set<uint32_t> steps;
    for (const std::vector<Span>& channel : rank.drain())
      for (const Span& span : channel)
        if (span.step > 0 && span.item >= first) steps.insert(span.step);
    CHECK(steps == std::set<uint32_t>{3, 6});
    for_arrays(rank, [&](size_t b, size_t i) {
      const std::span<const std::byte> bytes = rank.snapshot(b, i);
      const std::vector<std::byte>& at_rest = expected.states.at({6, job.options.rank, b, i});
      CHECK(std::equal(bytes.begin(), bytes.end(), at_rest.begin(), at_rest.end()));
    });
    // Copies follow the updates of their step, and the next step's updates follow the copies.
    const PlanGraph graph = comm::graph_of(job);
    REQUIRE(graph.channels.size() == first + job.plan(PlanKind::save, 2).size());
    const auto any = [&](const std::vector<uint32_t>& items, auto is) {
      return std::any_of(items.begin(), items.end(), is);
    };
    bool copies_wait = false, updates_wait = false;
    for (uint32_t item = 0; item < graph.channels.size(); ++item) {
      CHECK((item < first || graph.awaited_before[item].empty()));
      const auto is_copy = [&](uint32_t other) { return other >= first; };
      const auto is_update = [&](uint32_t other) { return other < job.train().size(); };
      copies_wait |= item >= first && any(graph.awaited[item], is_update);
      updates_wait |= item < first && any(graph.awaited_before[item], is_copy);
    }
    CHECK(copies_wait);
    CHECK(updates_wait);
    for (const Calendar::Runs& sequence : job.calendar().sequences()) {
      std::vector<const Plan*> runs;
      for (size_t each : sequence) runs.push_back(&job.plans[each].plan);
      const auto seams = comm::link_all(runs, job.channels);
      CHECK(comm::find_hazards({runs, seams}, job.channels, &job.buffers).count == 0);
    }
  };
  CHECK(train(row, kLast).hash == expected.trained.hash);
}
