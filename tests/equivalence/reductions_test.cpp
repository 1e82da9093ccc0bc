// SPDX-License-Identifier: Apache-2.0
// The proof of reductions accepts every layout that trains as one rank does, and refuses every plan with a faulty sum.

#include <algorithm>
#include <cstdio>
#include <map>

#include <fmt/core.h>

#include "comm/rehearse/finish.h"
#include "tests/equivalence/reductions.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

TEST_CASE("reductions: every layout of the tables is accepted, as every rank plans it", "[reductions]") {
  std::vector<Layout> rows = layouts();
  for (const ZeroRow& row : zero_rows(true)) rows.push_back(row.layout());
  int64_t ranks = 0, works = 0, arrays = 0;
  for (const Layout& row : rows)
    for (int rank = 0; rank < row.world(); ++rank) {
      INFO(row.name << ", rank " << rank);
      const comm::ReductionReport report = checked(make_jobs(with_copies(row), rank));
      CHECK(first_fault(report) == "");
      ++ranks, works += report.works, arrays += report.saved_arrays;
    }
  std::printf("  COUNTED %zu layouts, plans of %lld ranks, %lld works, %lld saved arrays\n", rows.size(),
              static_cast<long long>(ranks), static_cast<long long>(works), static_cast<long long>(arrays));
}

namespace {

bool is_in_place(const Task& task) {
  return std::any_of(task.reads.begin(), task.reads.end(), [&](const Slice& read) {
    return std::any_of(task.writes.begin(), task.writes.end(),
                       [&](const Slice& write) { return read.overlaps(write); });
  });
}

/// Does the work add values of several ranks or micro-batches? A barrier adds none.
bool adds_up(const Job& job, const Task& task) {
  if (job.channels[task.channel].role == Role::align) return false;
  return task.op == Op::all_reduce || task.op == Op::reduce_scatter || task.op == Op::sum_parts || task.op == Op::add ||
         task.op == Op::add_rows;
}

/// Does the work move values that a sum or the next step needs?
bool carries_terms(const Job& job, const Task& task) {
  if (adds_up(job, task) || task.op == Op::all_to_all || task.op == Op::exchange) return true;
  // Weights that are gathered into a slot once more may still be there.
  if (job.sharding().parameters && job.channels[task.channel].role == Role::gather) return false;
  return task.op == Op::all_gather || task.op == Op::encode || task.op == Op::decode;
}

/// Axes that connect other ranks than `axis`.
std::vector<Axis> other_axes(const Job& job, Axis axis) {
  std::vector<Axis> others;
  const int rank = job.options.rank;
  for (Axis other : {Axis::data, Axis::context, Axis::tensor, Axis::pipeline, Axis::replica, Axis::data_inner,
                     Axis::data_outer, Axis::world, Axis::expert, Axis::expert_data, Axis::expert_inner})
    if (job.mesh.group_size(other) > 1 && job.mesh.group(other, rank) != job.mesh.group(axis, rank))
      others.push_back(other);
  return others;
}

struct Counts {
  int64_t mutants = 0, refused = 0;
};

/// The mutant must be refused by a sentence that names a tensor, an axis and an item.
void refuses(const Jobs& jobs, const std::string& mutation, Counts& counts) {
  INFO(mutation);
  const comm::ReductionReport report = checked(jobs);
  ++counts.mutants;
  CHECK(!report.found.empty());
  if (report.found.empty()) return;
  ++counts.refused;
  const comm::Incomplete& first = report.found[0];
  for (const std::string& name : {first.tensor, first.axis, first.item}) {
    CHECK(!name.empty());
    CHECK(first.sentence().find(name) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("reductions: every reduction that is deleted, doubled or moved to another group is refused", "[reductions]") {
  Counts deleted, doubled, moved;
  for (const Layout& row : strategies(test_everything())) {
    INFO(row.name);
    Jobs jobs = make_jobs(row, 0);
    for (const auto& job : jobs)
      for (ItemId id = static_cast<ItemId>(job->train().spine.size()); id < job->train().size(); ++id) {
        const Plan whole = job->train();
        const Task& task = whole.task(id);
        if (carries_terms(*job, task)) {
          make_nothing(job->train().task(id));
          refuses(jobs, "without " + task.name, deleted);
          job->train() = whole;
        }
        if (!adds_up(*job, task)) continue;
        if (is_in_place(task)) {
          repeat(job->train(), id, id);
          refuses(jobs, "twice " + task.name, doubled);
          job->train() = whole;
        }
        const Channel channel = job->channels[task.channel];
        if (!is_communication(task.op)) continue;
        for (Axis axis : other_axes(*job, channel.axis)) {
          job->channels.push_back(channel);
          job->channels.back().axis = axis;
          job->train().task(id).channel = static_cast<ChannelId>(job->channels.size() - 1);
          refuses(jobs, std::string(name_of(axis)) + " for " + name_of(channel.axis) + " in " + task.name, moved);
          job->channels.pop_back();
          job->train() = whole;
        }
      }
  }
  const auto print = [](const char* what, const Counts& counts) {
    std::printf("  COUNTED %s: %lld of %lld refused\n", what, static_cast<long long>(counts.refused),
                static_cast<long long>(counts.mutants));
  };
  print("deleted", deleted);
  print("doubled", doubled);
  print("moved", moved);
}

namespace {

/// Every fault of one task of a plan that saves or keeps.
void check_copies(const Jobs& jobs, Plan& plan, const Keeping& keeping, Counts& deleted, Counts& misread) {
  const Plan whole = plan;
  std::vector<ItemId> copies;
  for (ItemId id = static_cast<ItemId>(plan.spine.size()); id < plan.size(); ++id)
    if (whole.task(id).op == Op::snapshot && whole.task(id).reads[0].size_bytes > 0) copies.push_back(id);
  for (ItemId id = static_cast<ItemId>(plan.spine.size()); id < plan.size(); ++id) {
    const Task& task = whole.task(id);
    const bool carries =
        task.op == Op::exchange && task.reads[0].begin_bytes < Keeping::kHeaderBytes + keeping.arrays_bytes;
    if (task.op == Op::seal || carries || std::find(copies.begin(), copies.end(), id) != copies.end()) {
      make_nothing(plan.task(id));
      refuses(jobs, "without " + task.name, deleted);
      plan = whole;
    }
    if (task.op != Op::exchange) continue;
    plan.task(id).peer = static_cast<int16_t>(task.peer + 1);
    refuses(jobs, "to another rank: " + task.name, misread);
    plan = whole;
  }
  // Other arrays of the same bucket, and of the next one.
  for (size_t i = 0; i < copies.size(); ++i)
    for (size_t further : {1, 2, 3}) {
      const ItemId id = copies[i], other = copies[(i + further) % copies.size()];
      const Slice& from = whole.task(other).reads[0];
      if (id == other || from.size_bytes < whole.task(id).reads[0].size_bytes) continue;
      plan.task(id).reads[0] = {from.buffer, from.begin_bytes, whole.task(id).reads[0].size_bytes};
      refuses(jobs, whole.task(id).name + " of what belongs to " + whole.task(other).name, misread);
      plan = whole;
    }
}

}  // namespace

TEST_CASE("reductions: a checkpoint without an array, or with another one in its place, is refused", "[reductions]") {
  Counts deleted, misread;
  for (const Layout& row : strategies(test_everything())) {
    INFO(row.name);
    Jobs jobs = make_jobs(with_copies(row), 0);
    for (const auto& job : jobs)
      for (PlanRow& plan : job->plans)
        if (plan.kind == PlanKind::save || plan.kind == PlanKind::keep)
          check_copies(jobs, plan.plan, job->keeping, deleted, misread);
  }
  std::printf("  COUNTED deleted: %lld of %lld refused, misread: %lld of %lld\n",
              static_cast<long long>(deleted.refused), static_cast<long long>(deleted.mutants),
              static_cast<long long>(misread.refused), static_cast<long long>(misread.mutants));
}

namespace {

std::string text_of(const Job& job) {
  std::string text = text_of(job.mesh.sizes());
  for (const ParameterGroup& group : job.groups) {
    const Placement& p = group.placement;
    text += fmt::format(", sums over {}, shards over {}, copies over {}, divides {}{}{}, formats {} {} {}",
                        name_of(p.sums_over), name_of(p.sharded_over), name_of(p.copied_over), p.sharding.states,
                        p.sharding.gradients, p.sharding.parameters, name_of(p.value), name_of(p.reduce_wire),
                        name_of(p.gather_wire));
  }
  return text;
}

uint64_t hash_of(const Job& job) {
  std::vector<const Plan*> plans;
  for (const PlanRow& row : job.plans) plans.push_back(&row.plan);
  return comm::order_hash(plans);
}

}  // namespace

// Before step 0, ranks compare this hash. The types at the end of a plan follow from the placement, and so do its
// tasks.
TEST_CASE("reductions: plans of ranks with different placements have different hashes", "[reductions]") {
  std::map<std::string, uint64_t> placements;
  std::map<uint64_t, std::string> hashes;
  for (int context : {1, 2})
    for (int stage : {0, 1, 2, 3})
      for (int shard_size : {0, 2})
        for (Format reduce : {Format(DType::f32), Format(DType::bf16), kInt8})
          for (std::optional<Format> gather : {std::optional<Format>(), {DType::bf16}, {kInt8}}) {
            if (stage == 0 && (shard_size > 0 || gather)) continue;
            Layout layout{.name = "placement", .model = with_tokens(smallest(Family::gpt2), 8), .micro_batch = 2};
            layout.model.split_tied_embedding = false;
            layout.ranks = 4 / context, layout.context = context, layout.zero_stage = stage;
            layout.shard_size = shard_size, layout.wire_dtype = reduce, layout.gather_dtype = gather;
            const Jobs jobs = make_jobs(layout, 0);
            const std::string text = text_of(*jobs[0]);
            const uint64_t hash = hash_of(*jobs[0]);
            CAPTURE(text);
            CHECK(hashes.try_emplace(hash, text).first->second == text);
            CHECK(placements.try_emplace(text, hash).first->second == hash);
          }
  CHECK(placements.size() == 2 * (3 + 3 * 2 * 9));
}
