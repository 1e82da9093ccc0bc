// SPDX-License-Identifier: Apache-2.0
// The proof of reductions accepts every layout that trains as one rank does, and refuses every plan with a faulty sum.

#include <cstdio>

#include "comm/rehearse/reductions.h"
#include "tests/equivalence/table.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

comm::ReductionReport checked(const std::vector<std::unique_ptr<Job>>& jobs) {
  std::vector<const Job*> stages;
  for (const auto& job : jobs) stages.push_back(job.get());
  return comm::find_incomplete(stages);
}

std::string first_fault(const comm::ReductionReport& report) {
  return report.found.empty() ? "" : report.found[0].sentence();
}

}  // namespace

TEST_CASE("reductions: every layout of the tables is accepted, as every rank plans it", "[reductions]") {
  std::vector<Layout> rows = strategies(true);
  for (const ZeroRow& row : zero_rows(true)) rows.push_back(row.layout());
  int64_t ranks = 0, works = 0;
  for (const Layout& row : rows)
    for (int rank = 0; rank < row.world(); ++rank) {
      INFO(row.name << ", rank " << rank);
      const comm::ReductionReport report = checked(make_jobs(row, rank));
      CHECK(first_fault(report) == "");
      ++ranks, works += report.works;
    }
  std::printf("  COUNTED %zu layouts, plans of %lld ranks, %lld works\n", rows.size(), static_cast<long long>(ranks),
              static_cast<long long>(works));
}

namespace {

using Jobs = std::vector<std::unique_ptr<Job>>;

void make_nothing(Task& task) {
  task.op = Op::copy;
  task.reads.clear();
  task.writes.clear();
}

/// Issues a copy of item `id` right after item `behind`.
void repeat(Plan& plan, ItemId id, ItemId behind) {
  Task again = plan.task(id);
  again.name += ".again";
  plan.tasks.push_back(std::move(again));
  plan.order.insert(std::find(plan.order.begin(), plan.order.end(), behind) + 1, static_cast<ItemId>(plan.size() - 1));
}

bool is_in_place(const Task& task) {
  return std::any_of(task.reads.begin(), task.reads.end(), [&](const Slice& read) {
    return std::any_of(task.writes.begin(), task.writes.end(),
                       [&](const Slice& write) { return read.overlaps(write); });
  });
}

/// Does it add values of several ranks or micro-batches? A barrier adds none.
bool adds_up(const Job& job, const Task& task) {
  if (job.channels[task.channel].role == Role::align) return false;
  return task.op == Op::all_reduce || task.op == Op::reduce_scatter || task.op == Op::sum_parts || task.op == Op::add ||
         task.op == Op::add_rows;
}

/// Moves values that a sum or the next step needs.
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
                     Axis::data_outer, Axis::world})
    if (job.mesh.group_size(other) > 1 && job.mesh.group(other, rank) != job.mesh.group(axis, rank))
      others.push_back(other);
  return others;
}

struct Counts {
  int64_t mutants = 0, refused = 0;
};

/// The mutant must be refused by a sentence that names a tensor and an item.
void refuses(const Jobs& jobs, const std::string& mutation, Counts& counts) {
  INFO(mutation);
  const comm::ReductionReport report = checked(jobs);
  ++counts.mutants;
  CHECK(!report.found.empty());
  if (report.found.empty()) return;
  ++counts.refused;
  CHECK(!report.found[0].tensor.empty());
  CHECK(!report.found[0].item.empty());
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
