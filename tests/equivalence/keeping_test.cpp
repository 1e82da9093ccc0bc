// SPDX-License-Identifier: Apache-2.0
// Snapshots that travel to another rank beside every step: both copies equal the state at rest, training does not
// change, and every wait that protects the slots is needed.

#include <cstdio>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "comm/rehearse/hazards.h"
#include "comm/rehearse/seams.h"
#include "engine/checkpoint/kept_part.h"
#include "engine/plan/saved_state.h"
#include "tests/equivalence/snapshots.h"
#include "tests/equivalence/table.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 5;

std::vector<Layout> rows() {
  std::vector<Layout> rows;
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
  add("two ranks", [](Layout&) {});
  add("three ranks, the holder two away, ZeRO-3",
      [](Layout& l) { l.model.split_tied_embedding = false, l.ranks = 3, l.zero_stage = 3, l.to_holder = 2; });
  add("ZeRO-1, two copies of the weights", [](Layout& l) {
    l.model.split_tied_embedding = false, l.zero_stage = 1, l.double_buffer = true, l.update_on_spine = false;
  });
  add("stages of different sizes", [](Layout& l) { l.ranks = 1, l.stages = 2; });
  if (test_everything()) {
    add("ZeRO-2 bfloat16",
        [](Layout& l) { l.model.split_tied_embedding = false, l.zero_stage = 2, l.model.dtype = DType::bf16; });
    add("stages of two ranks, the holder on the other", [](Layout& l) { l.stages = 2, l.to_holder = 2; });
    for (Layout& row : strategies(true)) rows.push_back(std::move(row));
  }
  return rows;
}

/// Copies of slots by step, rank and buffer (0: own, 1: peer).
using Slots = std::map<std::tuple<int, int, int>, std::vector<std::byte>>;

Slots run_keeping(Layout row, Trained& trained) {
  Slots slots;
  std::mutex mutex;
  row.keeps = true;
  row.kept = [&](runtime::Rank& rank, int step, int slot) {
    const Keeping& keeping = rank.job().keeping;
    for (int copy = 0; copy < (keeping.to_holder != 0 ? 2 : 1); ++copy) {
      const std::span<const std::byte> bytes = rank.kept(copy == 0 ? keeping.own : keeping.peer, slot);
      std::lock_guard lock(mutex);
      slots[{step, rank.job().options.rank, copy}] = {bytes.begin(), bytes.end()};
    }
  };
  trained = train(row, kSteps);
  return slots;
}

}  // namespace

TEST_CASE("both copies of a kept snapshot equal the state at rest, and training does not change", "[keeping]") {
  int64_t arrays = 0;
  uint64_t number = 0;
  for (Layout row : rows()) {
    INFO(row.name);
    const Seen expected = run_at_rest(row, kSteps);
    ++number;
    for (uint64_t seed : {0, 1, 2}) {
      if (!test_everything() && seed != number % 3) continue;  // the sample: one of the three by turns
      CAPTURE(seed);
      row.delay_seed = seed;
      row.check_hazards = seed == 0;
      row.evaluate_between = seed == 2;
      Trained trained;
      const Slots slots = run_keeping(row, trained);
      CHECK(trained.hash == expected.trained.hash);
      CHECK(trained.rank_hashes == expected.trained.rank_hashes);
      CHECK(trained.losses == expected.trained.losses);
      const int world = row.world(), copies = world > 1 ? 2 : 1;
      REQUIRE(std::ssize(slots) == 2 * world * copies);
      for (const auto& [at, bytes] : slots) {
        const auto& [step, rank, copy] = at;
        CAPTURE(step, rank, copy);
        Layout kept = row;
        kept.keeps = true;
        const int of = copy == 0 ? rank : (rank - row.to_holder + world) % world;
        const std::unique_ptr<Job> job = make_job(kept, of);
        for (size_t b = 0; b < job->storage.size(); ++b)
          for (size_t i = 0; i < job->storage[b].kept.size(); ++i) {
            const Slice& slice = job->storage[b].kept[i];
            const std::vector<std::byte> held(bytes.begin() + slice.begin_bytes, bytes.begin() + slice.end_bytes());
            REQUIRE(held == expected.states.at({step, of, b, i}));
            ++arrays;
          }
        // A header that another machine can verify.
        const std::span<const std::byte> behind =
            std::span(bytes).subspan(Keeping::kHeaderBytes, static_cast<size_t>(job->keeping.arrays_bytes));
        std::vector<std::byte> header(Keeping::kHeaderBytes);
        checkpoint::seal_slot(header.data(), step, behind);
        CHECK(std::equal(header.begin(), header.begin() + 128, bytes.begin()));
      }
    }
  }
  std::printf("  COUNTED %lld arrays of kept snapshots, equal to those at rest\n", static_cast<long long>(arrays));
}

TEST_CASE("every wait between steps and kept snapshots is needed, and for its last item", "[keeping][mutation]") {
  comm::Mutations all;
  for (Layout row : rows()) {
    row.keeps = true;
    for (int rank = 0; rank < row.world(); ++rank) {
      if (!test_everything() && Mesh(row.sizes()).coordinates(rank).data != row.ranks - 1) continue;
      const std::unique_ptr<Job> job = make_job(row, rank);
      INFO(row.name << ", rank " << rank);
      const Plan *keep = &job->plan(PlanKind::keep), *keep_other = &job->plan(PlanKind::keep, 1), *step = &job->train(),
                 *step_other = &job->plan(PlanKind::train, 1), *evaluate = &job->plan(PlanKind::evaluate, 1);
      const std::vector<const Plan*> runs{
          &job->plan(PlanKind::prime), keep, step, keep_other, step_other, step, evaluate, keep_other, step_other};
      const auto seams = comm::link_all(runs, job->channels);
      const comm::Sequence sequence{runs, seams};
      const comm::HazardReport report = comm::find_hazards(sequence, job->channels, &job->buffers);
      INFO((report.hazards.empty() ? "" : report.hazards[0].sentence()));
      CHECK(report.count == 0);
      int64_t agreed = 0;  // copies that wait for the agreement on the snapshot before
      for (size_t r = 0; r < runs.size(); ++r)
        for (const SeamWait& wait : seams[r])
          agreed += runs[r]->kind == "keep" && (*runs[wait.run])[wait.from].name == "keep.agreement";
      CHECK(agreed == (row.world() > 1 ? 2 : 0));
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

TEST_CASE("a timeline names the plan of every item, and the steps are those in which the calendar has it",
          "[keeping]") {
  constexpr int kSaveInterval = 2;
  Layout row = rows()[3];  // two copies of the weights
  row.keeps = true;
  row.save_interval = kSaveInterval;
  std::mutex mutex;
  int64_t spans = 0;
  row.inspect = [&](runtime::Rank& rank) {
    const std::lock_guard lock(mutex);
    const Job& job = rank.job();
    const std::vector<int32_t> tokens(static_cast<size_t>(job.model.batch * job.model.tokens), 0);
    rank.evaluate(tokens, tokens);
    const std::vector<std::vector<Span>> channels = rank.drain();
    std::set<std::pair<PlanKind, uint32_t>> seen;
    for (ChannelId c = 0; c < channels.size(); ++c)
      for (const Span& span : channels[c]) {
        if (span.work != nullptr && span.work->name == "prepare_stream") continue;
        const auto [plan_row, item] = job.of_timeline(span.item);
        CHECK(plan_row->plan[item].channel == c);
        CHECK(job.is_in_step(span.item) == (plan_row->kind == PlanKind::train));
        seen.emplace(plan_row->kind, span.step);
        ++spans;
        if (span.kind != Span::Kind::wait) continue;
        const auto [awaited_row, awaited] = job.of_timeline(static_cast<uint32_t>(span.awaited));
        CHECK(awaited_row->plan[awaited].channel == static_cast<ChannelId>(span.awaited >> 32));
      }
    std::set<std::pair<PlanKind, uint32_t>> expected{{PlanKind::evaluate, 0}, {PlanKind::prime, 0}};
    for (uint32_t step = 1; step <= kSteps; ++step) {
      expected.emplace(PlanKind::train, step);
      expected.emplace(PlanKind::keep, step);
      if (step % kSaveInterval == 0) expected.emplace(PlanKind::save, step);
    }
    CHECK(seen == expected);
  };
  train(row, kSteps);
  CHECK(spans > 0);
}

TEST_CASE("kept snapshots change no training plan, and all their bytes are in the table", "[keeping]") {
  for (Layout row : rows()) {
    INFO(row.name);
    const std::unique_ptr<Job> without = make_job(row, 0);
    row.keeps = true;
    const std::unique_ptr<Job> with = make_job(row, 0);
    REQUIRE(with->train().size() == without->train().size());
    CHECK(with->train().order == without->train().order);
    for (ItemId i = 0; i < with->train().size(); ++i) {
      CHECK(with->train()[i].after == without->train()[i].after);
      CHECK(with->train()[i].name == without->train()[i].name);
    }
    const int64_t copies = row.world() > 1 ? 2 : 1;
    CHECK(with->buffers.bytes(Owner::kept) == 2 * copies * with->keeping.slot_bytes);
    CHECK(with->buffers.total_bytes() - without->buffers.total_bytes() == with->buffers.bytes(Owner::kept));
    CHECK(without->buffers.bytes(Owner::kept) == 0);
  }
}
