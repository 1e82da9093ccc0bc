// SPDX-License-Identifier: Apache-2.0
// Published bugs of other engines in pipelines, as laws of this engine's plans; and random pipelines of real models
// under random latencies.

#include <algorithm>
#include <cstdio>
#include <map>

#include "comm/rehearse/hazards.h"
#include "comm/rehearse/rehearse.h"
#include "comm/rehearse/seams.h"
#include "engine/base/philox.h"
#include "tests/equivalence/mutated.h"
#include "tests/equivalence/table.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr ScheduleKind kKinds[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved_1f1b,
                                   ScheduleKind::zb_h1, ScheduleKind::zb_v};

Layout piped(Family family, ScheduleKind kind, int stages, int micro_batches) {
  Layout layout{.name = name_of(kind),
                .model = smallest(family),
                .micro_batch = 1,
                .stages = stages,
                .schedule = kind,
                .virtual_stages = chunks_of(kind) == 1 ? 1 : 2,
                .micro_batches = micro_batches,
                .bucket_bytes = 512,
                .first_bucket_bytes = 256};
  layout.model.layers = 2 * stages;
  layout.model.split_tied_embedding = false;
  return layout;
}

/// Every item has its own duration, the same on all ranks; the size and the seed decide the duration of a collective or
/// a transfer.
class RandomPrice : public comm::RooflinePrice {
 public:
  explicit RandomPrice(uint64_t seed) : RooflinePrice({}, {}), random_(seed, "latencies") {}
  int64_t local_ns(const Plan& plan, ItemId item) const override {
    return draw(std::hash<std::string>{}(plan[item].name) + item);
  }
  comm::WireCost wire(const Plan& plan, ItemId item, Axis axis, int ranks) const override {
    return {.latency_ns = draw(static_cast<uint64_t>(plan.task(item).elems) * 31 + static_cast<uint64_t>(axis) * 7 +
                               static_cast<uint64_t>(ranks)),
            .wire_ns = 0};
  }

 private:
  int64_t draw(uint64_t at) const {
    return 1 + static_cast<int64_t>(random_.below(at, random_.below(at + 1, 4) == 0 ? 100'000 : 1000));
  }
  Philox random_;
};

}  // namespace

TEST_CASE("random pipelines of real models hold, and no latency stops them under any gate", "[pipeline]") {
  const uint64_t seed = 2104;
  const int rounds = test_everything() ? 120 : 24;
  std::printf("  seed %llu, %d rounds\n", static_cast<unsigned long long>(seed), rounds);
  const Philox random(seed, "pipelines");
  uint64_t drawn = 0;
  const auto draw = [&](int bound) { return static_cast<int>(random.below(drawn++, static_cast<uint64_t>(bound))); };
  for (int round = 0; round < rounds; ++round) {
    const int stages = 2 + draw(3);
    const ScheduleKind kind = kKinds[draw(5)];
    Layout layout = piped(draw(2) ? Family::llama : Family::gpt2, kind, stages,
                          kind == ScheduleKind::interleaved_1f1b ? stages * (1 + draw(2)) : 1 + draw(6));
    layout.ranks = 1 << draw(3);
    layout.zero_stage = draw(4);
    layout.shard_size = layout.ranks == 4 && layout.zero_stage > 0 && draw(2) ? 2 : 0;
    layout.recompute = static_cast<Recomputation>(draw(3));
    layout.hides_transfers = draw(2);
    layout.update_on_spine = draw(2);
    layout.max_norm = draw(2) ? 0.5f : 0.0f;
    CAPTURE(round, layout.name, stages, layout.micro_batches, layout.ranks, layout.zero_stage, layout.shard_size,
            name_of(layout.recompute));
    const auto jobs = make_jobs(layout, 0);  // throws unless proved
    for (uint64_t latencies = 1; latencies <= 3; ++latencies) {
      std::vector<comm::RankRuns> ranks;
      for (size_t s = 0; s < jobs.size(); ++s) {
        const std::vector<const Plan*> plans{&jobs[s]->train(), &jobs[s]->train(), &jobs[s]->plan(PlanKind::evaluate),
                                             &jobs[s]->train()};
        ranks.push_back({.rank = jobs[0]->mesh.rank({.pipeline = static_cast<int>(s)}),
                         .runs = plans,
                         .seams = comm::link_all(plans, jobs[s]->channels)});
      }
      for (comm::Gate gate : {comm::Gate::none, comm::Gate::launch_order, comm::Gate::serial}) {
        const comm::Rehearsal rehearsal =
            comm::rehearse(jobs[0]->mesh, jobs[0]->channels, ranks, RandomPrice(seed + latencies), {.gate = gate});
        INFO(comm::name_of(gate) << ": " << rehearsal.deadlock);
        CHECK(rehearsal.finished);
      }
    }
  }
}

TEST_CASE("a bucket is reduced when, and not before, the last pass of the last micro-batch has completed it",
          "[pipeline][peers]") {
  // Zero-bubble schedules move weight gradients after the backward pass; a flag "last micro-batch" set in the backward
  // pass reduces gradients that do not exist yet.
  for (ScheduleKind kind : kKinds)
    for (int zero : {0, 1})
      for (bool clip : {true, false}) {
        Layout layout = piped(Family::gpt2, kind, 2, 4);
        layout.ranks = 2, layout.zero_stage = zero, layout.max_norm = clip ? 0.5f : 0;
        int reductions = 0;
        for (const auto& job : make_jobs(layout, 0))
          for (const Task& task : job->train().tasks) {
            if (task.bucket < 0 || (task.op != Op::all_reduce && task.op != Op::reduce_scatter)) continue;
            const SpineItem* last = nullptr;
            for (const SpineItem& item : job->train().spine)
              for (const Slice& write : item.writes)
                for (const Slice& read : task.reads)
                  if (item.op == Op::compute && write.buffer == read.buffer && write.begin_bytes < read.end_bytes() &&
                      read.begin_bytes < write.end_bytes())
                    last = &item;
            REQUIRE(last != nullptr);
            CAPTURE(name_of(kind), zero, task.name, last->name);
            CHECK(last->micro_batch == layout.micro_batches - 1);
            if (task.after.empty()) continue;  // the previous task on its channel implies the wait
            REQUIRE(task.after.size() == 1);
            CHECK(task.after[0].item == static_cast<ItemId>(last - job->train().spine.data()));
            ++reductions;
          }
        CHECK(reductions > 4);
      }
}

TEST_CASE("a layer is in its slot for every item that uses it, under every schedule", "[pipeline][peers]") {
  // Interleaved schedules go through chunks in another order than that of layers: gathers by layer number come at the
  // wrong time.
  for (ScheduleKind kind : kKinds)
    for (int depth : {0, 1, 2}) {
      Layout layout = piped(Family::llama, kind, 2, 4);
      layout.ranks = 2, layout.zero_stage = 3, layout.prefetch_depth = depth,
      layout.recompute = depth == 1 ? Recomputation::full : Recomputation::none;
      for (const auto& job : make_jobs(layout, 0)) {
        std::map<int64_t, int32_t> tenant;  // by first byte: the bucket that was gathered there last
        int64_t actions = 0;
        for (ItemId id : job->train().order) {
          const Item& item = job->train()[id];
          if (item.op == Op::all_gather && item.writes[0].buffer == job->ids.value_slots)
            tenant[item.writes[0].begin_bytes] = item.bucket;
          if (!job->train().is_spine(id) || item.op != Op::compute || job->train().spine[id].piece == UINT32_MAX)
            continue;
          const int layer = job->model.pieces[job->train().spine[id].piece].layer;
          for (const Slice& read : item.reads) {
            if (read.buffer != job->ids.value_slots) continue;
            const auto slot = std::prev(tenant.upper_bound(read.begin_bytes));
            CAPTURE(name_of(kind), depth, item.name);
            CHECK(job->layout.buckets[static_cast<size_t>(slot->second)].unit == layer);
            ++actions;
          }
        }
        CHECK(actions > 0);
      }
    }
}

TEST_CASE("each wait is needed, and for that item: interleaved and zero-bubble with sharded layers",
          "[pipeline][mutation]") {
  comm::Mutations found;
  for (ScheduleKind kind : {ScheduleKind::interleaved_1f1b, ScheduleKind::zb_h1})
    for (int zero : {2, 3}) {
      Layout layout = piped(Family::gpt2, kind, 2, 2);
      layout.ranks = 4, layout.shard_size = 2, layout.zero_stage = zero;
      CAPTURE(name_of(kind), zero);
      for (const auto& job : make_jobs(layout, 0))
        for (comm::Mutation mutation : {comm::Mutation::deleted, comm::Mutation::one_early})
          found += check_waits_needed(*job, mutation);
    }
  std::printf("  %lld waits\n", static_cast<long long>(found.waits));
}
